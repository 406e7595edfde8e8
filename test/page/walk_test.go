package page_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// What the person on call does, on a whole service and a real broker. The steps
// build on one another.
func TestAWalk(t *testing.T) {
	s := newService(t)
	b := newTab(t, s.base)
	step := steps(t)

	step("a query that cannot be read says where", func() {
		b.open("/messages")
		b.keys("/")
		call(b, input.InsertText, input.InsertTextParams{Text: "queue:orders.* attempt:many"})
		b.says("#query-fault", "Character 24")
		b.expect("422")
		b.leave(func() { b.keys("\r") }, "#query-fault")
		if at := js[string](b, `document.querySelector("#query-fault mark").textContent`); !strings.HasPrefix("many", at) || at == "" {
			t.Errorf("the mark is under %q", at)
		}
	})
	step("a message is found by a query", func() {
		b.open("/messages")
		b.keys("/")
		call(b, input.InsertText, input.InsertTextParams{Text: `queue:orders.* error:"timeout" header.tenant:acme body.customer:"Katherine Johnson"`})
		b.leave(func() { b.keys("\r") }, "#messages")
		if n := js[int](b, `document.querySelectorAll("#messages tbody tr").length`); n != len(s.parked) {
			t.Errorf("it finds %d messages of %d", n, len(s.parked))
		}
		b.says("#command", "redrive messages list")
	})
	step("it is opened, and its Protobuf read", func() {
		b.keys("jjk")
		b.leave(func() { b.keys("\r") }, "#body pre")
		b.says("#body", "9007199254740993")
		b.says("#body", "Katherine Johnson")
		b.says("#body .steps", "base64")
		b.says("#body .schema", "shop.Order")
	})
	step("its command is copied", func() {
		b.pasteable()
		b.click("footer button[data-copy]")
		b.says("footer button[data-copy]", "Copied")
		id := s.parked[len(s.parked)-1].ID.String()
		if got := js[string](b, `navigator.clipboard.readText()`); got != "redrive messages show "+id {
			t.Errorf("what is copied: %q", got)
		}
	})
	newest := s.parked[len(s.parked)-1]
	step("it is replayed by keyboard", func() {
		b.leave(func() { b.keys("r") }, "#confirm-button")
		if d, ok, err := s.ch.Get("orders.capture", true); ok || err != nil {
			t.Errorf("it was not confirmed, and is in its queue: %v %v", d.MessageId, err)
		}
		b.leave(func() { b.keys("\r") }, "#did")
		d := s.arrives("orders.capture")
		if d.MessageId != newest.Message.MessageID || !bytes.Equal(d.Body, newest.Message.Body) || d.Headers["tenant"] != "acme" {
			t.Errorf("what arrives: %s %q %v", d.MessageId, d.Body, d.Headers)
		}
		b.open("/messages/" + newest.ID.String())
		b.says("main", "not seen again")
	})
	step("another is edited, with the difference", func() {
		next := s.parked[len(s.parked)-2]
		b.open("/messages/" + next.ID.String())
		b.leave(func() { b.keys("e") }, "#content")
		edited := strings.Replace(js[string](b, `document.querySelector("#content").value`), "Katherine Johnson", "K. Johnson", 1)
		b.write("#content", "{ no JSON")
		b.follow("#preview", "#edit-problem")
		b.write("#content", edited)
		b.follow("#preview", "#diff")
		b.says("#diff", "Katherine Johnson")
		b.says("#diff ins", "K. Johnson")
		b.leave(func() { b.click("#send") }, "main h1")
		body, err := base64.StdEncoding.DecodeString(string(s.arrives("orders.capture").Body))
		want := order(9007199254740993+6, "K. Johnson", 129900+6)
		if err != nil || !bytes.Equal(body, want) {
			t.Errorf("what arrives: %x (%v), not %x", body, err, want)
		}
		b.open("/messages/" + next.ID.String())
		b.says("#facts", "Became")
	})
	rows := func() []string {
		return js[[]string](b, `[...document.querySelectorAll("#messages tbody tr")].map(r => r.id)`)
	}
	const orders = "/messages?q=state%3Aparked+queue%3Aorders.capture"
	step("several are selected by keyboard and discarded, and restored with the mouse", func() {
		b.open(orders)
		before := rows()
		b.keys("jxjx")
		b.says("#selected", "2 selected")
		b.follow(`#actions button[value="discard"]`, "#confirm-button")
		b.write("input[name=reason]", "test orders")
		b.follow("#confirm-button", "#did")
		b.open(orders)
		if now := rows(); len(now) != len(before)-2 {
			t.Errorf("%d of %d are left", len(now), len(before))
		}
		b.open("/messages?q=state%3Adiscarded+error%3Atimeout")
		b.shows("#messages")
		for _, id := range before[:2] {
			b.click("#" + id + " input")
		}
		b.follow(`#actions button[value="restore"]`, "#confirm-button")
		b.follow("#confirm-button", "#did")
		b.open(orders)
		if now := rows(); fmt.Sprint(now) != fmt.Sprint(before) && len(now) != len(before) {
			t.Errorf("restored: %v, before: %v", now, before)
		}
	})
	step("all that match are replayed by a plan, with a canary", func() {
		b.open("/messages?q=state%3Aparked")
		left := len(rows())
		b.follow(`#matching button[value="replay"]`, "#start-button")
		b.says("h1", fmt.Sprintf("Replay %d messages", left))
		b.says("main", "orders.capture")
		s.fail("webhooks", `{"to": "acme"}`) // what fails now is not included
		brokertest.Eventually(t, "it is parked", func() bool { return strings.Contains(s.counts("state:parked queue:webhooks"), ">1<") })
		b.write("input[name=canary]", "2")
		b.write("input[name=canary_wait]", "1s")
		b.write("input[name=rate]", "20")
		b.write("input[name=reason]", "the gateway is back")
		b.follow("#start-button", "#progress")
		for range left {
			s.arrives("orders.capture")
		}
		b.says("#progress h2", "finished") // live
		b.open(b.path())
		if n := js[int](b, `document.querySelectorAll("#outcomes tbody tr").length`); n != left {
			t.Errorf("%d outcomes of %d", n, left)
		}
		b.open("/messages?q=state%3Aparked")
		if now := rows(); len(now) != 1 {
			t.Errorf("parked still: %v", now)
		}
	})
	step("an operation is paused, resumed and cancelled while its canary is watched", func() {
		s.fail("webhooks", `{"to": "globex"}`)
		brokertest.Eventually(t, "it is parked", func() bool { return strings.Contains(s.counts("state:parked"), ">2<") })
		b.open("/messages?q=state%3Aparked")
		b.follow(`#matching button[value="replay"]`, "#start-button")
		b.write("input[name=canary]", "1")
		b.write("input[name=canary_wait]", "1h")
		b.follow("#start-button", "#progress")
		s.arrives("webhooks")
		b.says("#progress h2", "canary")
		b.follow(`#orders form[action$="/pause"] button`, "#progress")
		b.says("#progress h2", "paused")
		b.follow(`#orders form[action$="/resume"] button`, "#progress")
		b.says("#progress h2", "canary")
		b.leave(func() { b.click(`#orders form[action$="/cancel"] button`) }, "#progress")
		b.open(b.path())
		b.says("#progress h2", "canceled")
		b.open("/operations")
		b.says("#operations", "replay 2")
	})
	step("a copy is sent to another queue", func() {
		b.open(orders[:strings.Index(orders, "+")])
		before := rows()
		b.keys("jx")
		b.follow(`#actions button[value="copy"]`, "input[name=to]")
		b.write("input[name=to]", "nowhere")
		b.expect("409")
		b.leave(func() { b.keys("\r") }, "#copy-problem")
		b.axe("no such queue")
		b.write("input[name=to]", "mail.send")
		b.leave(func() { b.keys("\r") }, "#confirm-button")
		b.says("#confirm h1", "to mail.send")
		b.follow("#confirm-button", "#did")
		if d := s.arrives("mail.send"); !strings.HasPrefix(string(d.Body), `{"to": `) {
			t.Errorf("what arrives: %q", d.Body)
		}
		if now := rows(); !slices.Equal(now, before) {
			t.Errorf("parked are %v, before %v", now, before)
		}
	})
	step("a waiting message is made due at another time", func() {
		b.open("/messages?q=state%3Awaiting")
		b.leave(func() { b.keys("j\r") }, "#do")
		here := b.path()
		due := func() string { return js[string](b, `document.querySelector("p.now time").dateTime`) }
		before := due()
		b.click("#do details.later summary")
		b.write("#do input[name=in]", "2h")
		b.follow(`#do details.later button`, "#confirm-button")
		b.says("#confirm h1", "in ")
		b.follow("#confirm-button", "#did")
		if now := b.path(); now != here {
			t.Errorf("from %s it leads to %s", here, now)
		}
		if after := due(); after <= before {
			t.Errorf("it is due at %s, before at %s", after, before)
		}
		b.says("p.now", "waiting")
	})
	step("a queue is paused and resumed", func() {
		b.open("/queues")
		b.click(`#queues summary[aria-label="Pause mail.send"]`)
		b.write(`input[aria-label="Reason to pause mail.send"]`, "the provider blocks us")
		b.follow(`#queues details[open] form[action="/queues/pause"] button:not([type])`, "#queues")
		b.says("#queues", "the provider blocks us")
		b.follow(`button[aria-label="Resume mail.send"]`, "#queues")
		b.says("#did", "")
		if strings.Contains(js[string](b, `document.querySelector("#queues").innerText`), "paused") {
			t.Error("it is still paused")
		}
	})
	step("who did what is in the audit log", func() {
		b.open("/audit")
		for _, did := range []string{"replay", "edit", "discard", "restore", "pause", "resume", "the gateway is back"} {
			b.says("#audit", did)
		}
	})
}

// steps runs the steps of a test; each needs those before it.
func steps(t *testing.T) func(name string, do func()) {
	return func(name string, do func()) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("so far the test came: %s", name)
			}
		}()
		if do(); t.Failed() {
			t.FailNow()
		}
	}
}

// counts tells how many messages a query finds.
func (s *service) counts(query string) string {
	s.t.Helper()
	resp, err := http.Get(s.base + "/messages/count?" + url.Values{"q": {query}}.Encode())
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// path is the tab's, without the host.
func (b *tab) path() string { return js[string](b, `location.pathname`) }

// pasteable lets the test read what was copied.
func (b *tab) pasteable() {
	b.t.Helper()
	_, err := chromedp.CallBrowser(b.ctx, browser.SetPermission, browser.SetPermissionParams{Origin: b.base, BrowserContextID: chromedp.FromContext(b.ctx).BrowserContextID,
		Permission: &browser.PermissionDescriptor{Name: "clipboard-read"}, Setting: "granted"})
	if err != nil {
		b.t.Fatal(err)
	}
}
