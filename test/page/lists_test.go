package page_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"

	"github.com/redrive-mq/redrive/internal/store"
)

// many adds parked messages of a queue.
func (s *scene) many(t testing.TB, queue string, n int) {
	t.Helper()
	for i := range n {
		r := message(200+i, store.Parked, time.Now())
		r.Queue, r.Error = queue, "HTTP 503 from payments"
		r.Message.Body = fmt.Appendf(nil, `{"customer": "Ada %d", "total": %d}`, i, i)
		s.add(t, r)
	}
}

// A query is completed by keyboard and mouse.
func TestCompletion(t *testing.T) {
	t.Parallel()
	s := newScene(t, options{})
	s.many(t, "orders.capture", 3)
	b := newTab(t, s.base)
	b.open("/messages?q=")
	b.keys("/")
	call(b, input.InsertText, input.InsertTextParams{Text: "sta"})
	b.says("#q-list", "state:")
	b.axe("completion")
	b.keys("↓\r")
	b.until("the field is completed", `document.getElementById("q").value == "state:"`)
	b.says("#q-list", "state:parked")
	b.click("#q-list li:nth-child(3)")
	b.until("the value is completed", `document.getElementById("q").value == "state:parked "`)
	call(b, input.InsertText, input.InsertTextParams{Text: "queue:ord"})
	b.says("#q-list", "queue:orders.capture")
	if n := js[int](b, `document.querySelectorAll("#q-list li").length`); n != 1 {
		t.Errorf("%d are proposed", n)
	}
	b.keys("↓↓")
	b.leave(func() { b.keys("\r\r") }, "#messages")
	if q := js[string](b, `new URLSearchParams(location.search).get("q").trim()`); q != "state:parked queue:orders.capture" {
		t.Errorf("it asks %q", q)
	}
	// Escape closes the list, and a second one leaves the field.
	b.keys("/")
	call(b, input.InsertText, input.InsertTextParams{Text: "r"})
	b.says("#q-list", "reason:")
	b.keys("␛")
	b.until("it is closed", `document.getElementById("q-list").hidden && document.activeElement.id == "q"`)
	b.open("/errors")
	b.keys("/")
	call(b, input.InsertText, input.InsertTextParams{Text: "a"})
	b.says("#q-list", "age:")
	if text := js[string](b, `document.getElementById("q-list").innerText`); strings.Contains(text, "attempt") {
		t.Errorf("of errors it proposes %s", text)
	}
}

// What a query finds is selected whole, beyond the page, and leads to a plan.
func TestAllThatMatchAreSelected(t *testing.T) {
	t.Parallel()
	s := newScene(t, options{})
	s.many(t, "orders.capture", 64)
	b := newTab(t, s.base)
	b.open("/messages?q=state%3Aparked&cols=body.customer%2Cheader.tenant")
	b.says("#messages thead", "body.customer")
	b.says("#messages tbody tr", "Ada")
	b.says("#messages .preview", `"customer": "Ada`)
	b.until("it is counted", `document.querySelector(".tabs .total").textContent == "64"`)
	b.keys("a")
	b.says("#selected", "50 selected")
	b.says("#all-matching", "Select all 64 that match")
	b.axe("all on the page are selected")
	b.keys("jx")
	b.says("#selected", "49 selected")
	b.until("no more than these are meant", `document.getElementById("all-matching").hidden && document.getElementById("all-matching-on").disabled`)
	b.keys("x")
	b.click("#all-matching")
	b.says("#selected", "All 64 that match are selected")
	b.leave(func() { b.keys("r") }, "#blocked") // there is no RabbitMQ
	b.says("h1", "Replay 64 messages")
	b.open("/messages?q=state%3Aparked&cols=body.customer")
	b.keys("aa")
	b.says("#selected", "All 64 that match are selected")
	b.leave(func() { b.keys("d") }, "#start-button")
	b.says("h1", "Discard 64 messages")
	// The columns stay, from page to page and with each tab.
	b.open("/messages?q=state%3Aparked&cols=body.customer")
	b.leave(func() { b.keys("n") }, "#messages")
	b.says("#messages thead", "body.customer")
	b.follow(".tabs li:last-child a", "#messages")
	b.says("#messages thead", "body.customer")
}

// Errors are one line in all queues, and their messages are replayed by a plan.
func TestErrorsAreActedOn(t *testing.T) {
	t.Parallel()
	s := newScene(t, options{})
	for i, queue := range []string{"orders.capture", "mail.send"} {
		r := message(i, store.Parked, time.Now())
		r.Queue, r.Error = queue, "HTTP 503 from payments"
		s.add(t, r)
	}
	s.many(t, "webhooks", 2)
	other := message(2, store.Parked, time.Now())
	other.Error = "no stock of 7"
	s.add(t, other)
	b := newTab(t, s.base)
	b.open("/groups?q=state%3Aparked")
	b.says("h1", "Errors")
	b.says("#errors tbody tr", "HTTP 503 from payments")
	b.says("#errors tbody tr .in", "mail.send")
	if n := js[int](b, `document.querySelectorAll("#errors tbody tr").length`); n != 2 {
		t.Errorf("%d lines", n)
	}
	b.keys("jx")
	b.says("#selected", "1 selected")
	b.leave(func() { b.keys("r") }, "#blocked")
	b.says("h1", "Replay 4 messages")
	b.open("/errors")
	b.click(`#errors tbody tr:nth-child(2) td.note summary`)
	b.write(`#errors details[open] input[name=note]`, "ticket 4711")
	b.leave(func() { b.keys("\r") }, "#errors")
	b.says("#errors", "ticket 4711")
	b.follow(`#errors thead th a[href*="sort=last"]`, "#errors")
	b.keys("j")
	b.leave(func() { b.keys("\r") }, "#messages")
}

// The editor says what is wrong while one types.
func TestTheEditorChecksWhileOneTypes(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.open("/messages/" + s.order + "/edit")
	text := js[string](b, `document.getElementById("content").value`)
	b.write("#content", strings.Replace(text, "{", "{{", 1))
	b.says("#edit-says .bad", "JSON")
	b.write("#content", strings.Replace(text, "Katherine", "K.", 1))
	b.says("#edit-says .good", "1 field differs")
	b.axe("an edit that can be sent")
}
