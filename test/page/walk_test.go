package page_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// What the person on call does, on a whole service and a real broker. The steps
// build on one another.
func TestAWalk(t *testing.T) {
	t.Parallel()
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
		at := js[string](b, `document.querySelector("#query-fault mark").textContent`)
		if !strings.HasPrefix("many", at) || at == "" {
			t.Errorf("the mark is under %q", at)
		}
	})
	step("a message is found by a query", func() {
		b.open("/messages")
		b.keys("/")
		call(b, input.InsertText, input.InsertTextParams{Text: `queue:orders.* error:"timeout" header.tenant:acme body.customer:"Katherine Johnson"`})
		b.leave(func() { b.keys("\r") }, "#messages")
		expect.Equal(t, js[int](b, `document.querySelectorAll("#messages tbody tr").length`), len(s.parked),
			"messages that it finds")
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
		expect.Equal(t, js[string](b, `navigator.clipboard.readText()`), "redrive messages show "+id, "what is copied")
	})
	newest := s.parked[len(s.parked)-1]
	step("it is replayed by keyboard", func() {
		b.leave(func() { b.keys("r") }, "#confirm-button")
		if d, ok, err := s.ch.Get("orders.capture", true); ok || err != nil {
			t.Errorf("it was not confirmed, and is in its queue: %v %v", d.MessageId, err)
		}
		b.until("the button has the focus", `document.activeElement.id == "confirm-button"`)
		b.leave(func() { b.keys("\r") }, "#did")
		d := s.arrives("orders.capture")
		if d.MessageId != newest.Message.MessageID || !bytes.Equal(d.Body, newest.Message.Body) ||
			d.Headers["tenant"] != "acme" {
			t.Errorf("what arrives: %s %q %v", d.MessageId, d.Body, d.Headers)
		}
		b.open("/messages/" + newest.ID.String())
		b.says("main", "not seen again")
	})
	step("another is edited, with the difference", func() {
		next := s.parked[len(s.parked)-2]
		b.open("/messages/" + next.ID.String())
		b.leave(func() { b.keys("e") }, "#content")
		edited := strings.Replace(js[string](b, `document.querySelector("#content").value`), "Katherine Johnson",
			"K. Johnson", 1)
		b.write("#content", "{ no JSON")
		b.follow("#preview", "#edit-problem")
		b.write("#content", edited)
		b.follow("#preview", "#diff")
		b.says("#diff", "Katherine Johnson")
		b.says("#diff ins", "K. Johnson")
		b.leave(func() { b.click("#send") }, "main h1")
		body, err := base64.StdEncoding.DecodeString(string(s.arrives("orders.capture").Body))
		want := webtest.Body(9007199254740993+6, "K. Johnson", 129900+6)
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
		expect.Equal(t, len(rows()), len(before)-2, "messages are left")
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
		brokertest.Eventually(t, "it is parked", func() bool {
			return strings.Contains(s.counts("state:parked queue:webhooks"), ">1<")
		})
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
		expect.Equal(t, js[int](b, `document.querySelectorAll("#outcomes tbody tr").length`), left, "outcomes")
		b.open("/messages?q=state%3Aparked")
		expect.Equal(t, len(rows()), 1, "are parked still")
	})
	step("an operation is paused, resumed and cancelled while its canary is watched", func() {
		s.fail("webhooks", `{"to": "globex"}`)
		brokertest.Eventually(t, "it is parked", func() bool {
			return strings.Contains(s.counts("state:parked"), ">2<")
		})
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
		expect.Equal(t, b.path(), here, "it leads to")
		if after := due(); after <= before {
			t.Errorf("it is due at %s, before at %s", after, before)
		}
		b.says("p.now", "waiting")
	})
	step("a queue is paused and resumed", func() {
		b.open("/queues")
		b.click(`#queues summary[aria-label="Pause retries of mail.send"]`)
		b.write(`input[aria-label="Reason to pause mail.send"]`, "the provider blocks us")
		b.follow(`#queues details[open] form[action="/queues/pause"] button:not([type])`, "#queues")
		b.says("#queues", "the provider blocks us")
		b.follow(`button[aria-label="Resume retries of mail.send"]`, "#queues")
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
	must(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(s.t, err)
	return string(text)
}

// path is the tab's, without the host.
func (b *tab) path() string { return js[string](b, `location.pathname`) }

// pasteable lets the test read what was copied.
func (b *tab) pasteable() {
	b.t.Helper()
	_, err := chromedp.CallBrowser(b.ctx, browser.SetPermission, browser.SetPermissionParams{Origin: b.base,
		BrowserContextID: chromedp.FromContext(b.ctx).BrowserContextID,
		Permission:       &browser.PermissionDescriptor{Name: "clipboard-read"}, Setting: "granted"})
	must(b.t, err)
}

// What happens while somebody looks.
func TestThePageLives(t *testing.T) {
	t.Parallel()
	s := newService(t)
	b := newTab(t, s.base)
	step := steps(t)
	parked := int64(len(s.parked))
	fails := func() {
		t.Helper()
		s.fail("webhooks", `{"to": "acme"}`)
		parked++
		brokertest.Eventually(t, "it is parked", func() bool {
			return strings.Contains(s.counts("state:parked"), fmt.Sprintf(">%d<", parked))
		})
	}
	const under = `document.elementFromPoint(200, at.y)?.closest("tr")?.id`

	step("what is new waits, and no row moves under the cursor", func() {
		b.open("/messages?q=state%3Aparked")
		b.says("#live-state", "Live")
		js[bool](b, `{ const r = document.querySelectorAll("#messages tbody tr")[2].getBoundingClientRect(); globalThis.at = { y: r.top + r.height / 2 }; true }`)
		row := js[string](b, under)
		b.run(chromedp.MouseEvent("mouseMoved", 200, js[float64](b, `at.y`)))
		fails()
		b.says("#newer", "1 new")
		expect.Equal(t, js[string](b, under), row, "under the cursor is")
		expect.Equal(t, js[int64](b, `document.querySelectorAll("#messages tbody tr").length`), parked-1,
			"the list has … rows")
		b.look("new ones wait")
		b.follow("#newer a", "#messages")
		b.says("#messages tbody tr", "webhooks")
	})
	step("the numbers follow, and stand still on a pause", func() {
		b.open("/")
		parkedIs := func() string { return js[string](b, `document.querySelector('[data-live="parked"]').textContent`) }
		b.says("#live-state", "Live")
		fails()
		b.says(`[data-live="parked"]`, fmt.Sprint(parked))
		b.click("#live-pause")
		b.shows("#stale")
		b.look("paused")
		fails()
		expect.Equal(t, parkedIs(), fmt.Sprint(parked-1), "while it is paused it says")
		b.click("#live-resume")
		b.says(`[data-live="parked"]`, fmt.Sprint(parked))
	})
	step("it tells when the service is gone, and when it is back", func() {
		b.expect("ERR_", "Failed to load")
		s.stop()
		b.shows("#disconnected")
		b.says("#live-state", "Disconnected")
		b.look("disconnected")
		s.start()
		b.until("it is connected again",
			`document.getElementById("disconnected").hidden && document.getElementById("live-state").textContent == "Live"`)
	})
}

// An operation's buttons follow its state, but do not change under the cursor.
func TestAnOperationEndsWhileItIsWatched(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	_, err := s.Order(t.Context(), webtest.Root, s.Has.Running, operations.Pause)
	must(t, err)
	b := newTab(t, s.base)
	b.open("/operations/" + s.Has.Paused)
	b.says("#live-state", "Live")
	const button = `document.querySelector('#orders form[action$="/cancel"] button').getBoundingClientRect()`
	b.run(chromedp.MouseEvent("mouseMoved", js[float64](b, button+".x")+3, js[float64](b, button+".y")+3))
	_, err = s.Order(t.Context(), webtest.Root, s.Has.Paused, operations.Cancel)
	must(t, err)
	b.says("#progress h2", "canceled")
	expect.Equal(t, b.has("#orders"), true, "the buttons are there while the cursor is on one")
	b.run(chromedp.MouseEvent("mouseMoved", 1, 1))
	b.shows("#rest")
	expect.Equal(t, b.has("#orders"), false, "the buttons are there")
}

// A name, or a heading, is never broken within a word.
func TestListsBreakNoWord(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	by := webtest.Root
	by.Name = "anneliese.vanderbilt@shop.example"
	p, err := s.Plan(t.Context(), by, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders.*"})
	must(t, err)
	_, err = s.Start(t.Context(), by, p.ID, operations.Start{CanarySize: 1, CanaryWait: "1h"})
	must(t, err)
	end, err := s.Book.Begin(audit.Entry{Who: by.Name, How: "rabbitmq", Interface: "page", From: "192.168.100.100", Did: "operation.cancel",
		On: p.ID + ": unadopt", Why: "INC-2231: reconciliation"})
	must(t, err)
	end("stopped: the canary failed again (message "+s.Has.Order+": unauthorized)", 12345)
	b := newTab(t, s.base)
	for _, table := range []string{"operations", "audit"} {
		breaksNoWord(t, b, table)
	}
}

func breaksNoWord(t *testing.T, b *tab, name string) {
	t.Helper()
	b.open("/" + name)
	for _, width := range []int64{390, 1024, 1440} {
		b.size(width, 900)
		broken := js[[]string](b, strings.ReplaceAll(`[...document.querySelectorAll("#table tr > :not(.q) , #table th")].flatMap(cell => {
			const bad = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
			for (let text; text = texts.nextNode();) for (const word of text.data.matchAll(/[^\s-]+/g)) {
				const range = new Range();
				range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
				if (new Set([...range.getClientRects()].map(r => r.top)).size > 1) bad.push(word[0]);
			}
			return bad;
		})`, "#table", "#"+name))
		expect.Equal(t, strings.Join(broken, " "), "", "at %d pixels these are broken in %s", width, name)
		table := `document.querySelector("#` + name + `").parentElement`
		expect.Equal(t, js[bool](b, table+".scrollWidth > "+table+".clientWidth"), false, "at %d pixels %s scrolls sideways", width, name)
	}
}

// On a phone the filters are folded, so that the log is seen at once.
func TestTheAuditsFiltersFoldOnAPhone(t *testing.T) {
	t.Parallel()
	b := newTab(t, newShop(t, options{}).base)
	b.open("/audit")
	b.shows("#filter input[name=who]")
	b.size(390, 900)
	expect.Equal(t, js[float64](b, `document.querySelector("#audit tbody tr").getBoundingClientRect().top`) < 450, true,
		"the first entry is in the upper half")
	b.click("details.narrow > summary")
	b.shows("#filter input[name=who]")
}

// Forms and links do without scripts; what does not is left out.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.open("/messages")
	b.write("#q", `state:waiting queue:orders.* error:stock`)
	b.follow(".query button", "#messages")
	b.click("#messages tbody tr:first-child input")
	b.follow(`#actions button[value="replay"]`, "#confirm-button")
	b.follow("#confirm-button", "#did")
	b.open("/messages/" + s.Has.Order)
	b.follow("#edit", "#content")
	b.write(`input[name="value.1"]`, "globex")
	b.follow("#preview", "#diff")
	b.open("/messages?q=state:parked+queue:mail.send")
	b.follow(`#matching button[value="discard"]`, "#start-button")
	b.follow("#start-button", "#progress")
	for _, script := range []string{"#live", "button[data-copy]", "#all"} {
		b.open("/messages")
		if js[bool](b, `!!document.querySelector("`+script+`")?.checkVisibility()`) {
			t.Errorf("without scripts, %s is shown and does nothing", script)
		}
	}
	n := 0
	if err := s.Store.Scan(t.Context(), store.Range{State: store.Discarded}, func(store.Listed) (bool, error) {
		n++
		return true, nil
	}); err != nil || n <= 6 {
		t.Errorf("%d are discarded: %v", n, err)
	}
}

// Where a time is shown as the reader's own or as how long ago, UTC is in its title, and on a page of one thing
// where nothing can hover, beside it.
func TestTimesHaveUTCBesideThem(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"})
	const wrong = `[...document.querySelectorAll("time[datetime]")].filter(e => !e.title.includes("GMT+9 · ") ||
		!e.title.endsWith(" · " + e.dateTime.slice(0, 19).replace("T", " ") + " UTC")).map(e => e.outerHTML).join()`
	message, queue := "/messages/"+s.Has.Order, "/queues/orders.capture"
	for _, path := range []string{"/", "/messages", message, queue, "/operations/" + s.Has.Running} {
		b.open(path)
		if bad := js[string](b, wrong); bad != "" || !js[bool](b, `document.querySelectorAll("main time").length > 0`) {
			t.Errorf("%s has times without UTC: %.500s", path, bad)
		}
	}
	call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	b.open(message)
	if twice := js[string](b, `[...document.querySelectorAll("time[data-when]")].map(e => e.title).filter(t => t.includes("·")).join()`); twice != "" {
		t.Errorf("where the reader's own time is UTC, times are said twice: %.200s", twice)
	}
	call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"})
	b.open(queue)
	b.says("#live-state", "Live")
	b.click("#live-pause")
	b.shows("#stale-since")
	expect.Equal(t, js[string](b, wrong), "", "paused, it has times without UTC")
	call(b, emulation.SetTouchEmulationEnabled, emulation.SetTouchEmulationEnabledParams{Enabled: true})
	for path, selector := range map[string]string{message: ".timeline time", queue: ".tiles time",
		"/operations/" + s.Has.Running: "#progress time"} {
		b.open(path)
		beside := js[string](b, fmt.Sprintf(`getComputedStyle(document.querySelector(%q), "::after").content`, selector))
		if !strings.Contains(beside, " UTC)") {
			t.Errorf("beside %s of %s is %s", selector, path, beside)
		}
	}
	b.size(390, 844)
	b.open(message)
	b.look("a message where nothing can hover")
}

// A virtual host's page works under its base as one that is alone does: signing in, each
// page with its stream of events, keys, signing out. The tab complains about whatever
// is asked for beside the base.
func TestTheVirtualHostsPage(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true, vhosts: webtest.VHosts("/", "shop/eu", "billing")})
	b := newTab(t, s.base)
	b.expect("422", "404", "409")
	step := steps(t)
	step("who signs in goes on where they wanted to", func() {
		b.open("/messages/" + s.Has.Order)
		b.shows("input[name=token]")
		b.look("signed out")
		if b.has(".vhosts") {
			t.Error("who is not signed in is told of the virtual hosts")
		}
		b.write("input[name=token]", "rd_wrong")
		b.leave(func() { b.keys("\r") }, "#refused")
		b.look("refused")
		b.write("input[name=token]", s.token)
		b.leave(func() { b.keys("\r") }, "#body pre")
		expect.Equal(t, b.path(), "/v/shop%2Feu/messages/"+s.Has.Order, "they are at")
		b.says(".who", "dana")
	})
	step("the script counts what a query finds, and checks one that is written", func() {
		b.open("/messages?q=")
		b.until("they are counted", `/[0-9]/.test(document.querySelector(".tabs .total")?.innerText)`)
		b.write("#q", "staat:x")
		b.says("#query-says", "Character 1")
	})
	step("the key / leads to the messages", func() {
		b.open("/health")
		b.leave(func() { b.keys("/") }, "#messages")
		expect.Equal(t, b.path(), "/v/shop%2Feu/messages", "it leads to")
	})
	step("the others are reached by Tab, and without scripts", func() {
		call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		b.open("/queues")
		b.expect("a request to elsewhere")
		b.leave(func() {
			for !js[bool](b, `document.activeElement.matches(".vhosts a:not([aria-current])")`) {
				b.keys("\t")
			}
			b.keys("\r")
		}, "body")
		expect.Equal(t, b.path(), "/", "the first of them is at")
		b.open("/")
		b.follow(".who button", "input[name=token]")
		expect.Equal(t, b.path(), "/v/shop%2Feu/signin", "signing out leads to")
	})
}

// A virtual host can have any name.
func TestVirtualHostsOfAnyName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a-very-long-name-", 15)[:255]
	s := newShop(t, options{vhosts: webtest.VHosts(long, "\"><img src=x onerror=alert(1)>\u202e", "{{.}}' $(id)")})
	b := newTab(t, s.base)
	b.open("/messages")
	b.says("#live-state", "Live")
	b.look("odd virtual hosts")
	if b.has("img") || !js[bool](b,
		`document.querySelector(".vhosts [aria-current]").innerText.includes("\\u{202e}")`) {
		t.Error("a name is more than text")
	}
	b.says("#command", "redrive --vhost $'")
}

// places are those of all routes: TestEachRouteHasItsPlace finds a route without. What is in braces is of
// the shop: see at.
var places = map[string][]string{
	"GET /{$}": {"/"},
	"GET /messages": {"/messages", "/messages?q=state:waiting", "/messages?q=state:retried",
		"/messages?q=state:discarded", "/messages?q=",
		"/messages?q=queue%3Aorders+state%3Anonsense", "/messages?q=queue%3Anowhere"},
	"GET /messages/{id}":      {"/messages/{order}", "/messages/{waiting}", "/messages/nothing"},
	"GET /messages/{id}/edit": {"/messages/{order}/edit"},
	"GET /groups":             {"/groups", "/groups?q=queue%3Anowhere", "/groups?q=staat%3Ax", "/groups?state=ignored"},
	"GET /groups/{id}":        {"/groups/{group}", "/groups/nothing"},
	"GET /queues":             {"/queues"},
	"GET /queues/{queue}":     {"/queues/orders.capture", "/queues/stock.sync", "/queues/nothing"},
	"GET /operations":         {"/operations"},
	"GET /operations/{id}":    {"/operations/{running}", "/operations/{paused}"},
	"GET /plans/{id}":         {"/plans/{plan}", "/plans/{blocked}"},
	"GET /policies":           {"/policies"},
	"GET /audit":              {"/audit"},
	"GET /health":             {"/health"},
	"GET /help":               {"/help"},
	"GET /docs":               {"/docs"},
	"GET /docs/{page...}":     {"/docs/", "/docs/how-to/adopt.md", "/docs/reference/query.md", "/docs/nothing"},
	"GET /":                   {"/nowhere"},
	"GET /signin":             {"/signin", "/signin?error=refused", "/signin?error=expired", "/signin?error=silent"},
}

// parts have no page of their own, or one that a form is answered with: TestEachPageIsForEverybody fills
// in two of them, the others lead to pages that have a place.
var parts = strings.Fields(`POST/messages/act POST/messages/{id} POST/messages/{id}/edit POST/messages/plan POST/groups/{id}/note POST/groups/{id}/state POST/queues/pause
	POST/queues/breaker POST/queues/resume POST/follow POST/operations/{id}/{order} POST/plans/{id}/start GET/messages/new GET/messages/count
	GET/messages/check GET/messages/{id}/body GET/signin/oidc GET/signin/oidc/start GET/messages/export GET/docs/images/{name} GET/assets/{version}/{name}`)

func TestEachRouteHasItsPlace(t *testing.T) {
	known := map[string]bool{}
	for _, part := range parts {
		known[strings.Replace(part, "/", " /", 1)] = true
	}
	for route := range places {
		known[route] = true
	}
	routes := webui.Routes(webtest.Stocked(inspect.Config{}), webui.Options{})
	for route := range routes {
		if !known[route] {
			t.Errorf("%s has no place in the table of places, so its page is never visited", route)
		}
	}
	for route := range known {
		if routes[route] == nil {
			t.Errorf("the table of places has %s, which is no route", route)
		}
	}
}

// paths are all places in a shop.
func paths(s *scene) (all []string) {
	at := strings.NewReplacer("{order}", s.Has.Order, "{group}", s.Has.Group, "{waiting}", s.Has.Waiting, "{running}", s.Has.Running,
		"{paused}", s.Has.Paused, "{plan}", s.Has.Plan, "{blocked}", s.Has.Blocked)
	for _, of := range places {
		for _, path := range of {
			all = append(all, at.Replace(path))
		}
	}
	return all
}

// Each page is looked at once, with all that it can show at the same time: several virtual hosts, what was
// done, each row selected, all unfolded.
func TestEachPageIsForEverybody(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{vhosts: webtest.VHosts("/", "shop/eu", "billing")})
	b := newTab(t, s.base)
	b.expect("422", "404", "409") // the states of errors answer with them
	unfolded := func(page string) {
		t.Helper()
		if b.has("#all") {
			b.click("#all")
			b.says("#selected", "selected")
		}
		js[bool](b, `document.querySelectorAll("main details").forEach(d => d.open = true) || true`)
		if says := js[string](b, `(document.querySelector(".vhosts")?.innerText ?? "").replace(/\s+/g, " ")`); says != "Virtual host: / shop/eu billing not ready" && !strings.HasPrefix(page, "/signin") {
			t.Errorf("%s shows the virtual hosts as %q", page, says)
		}
		b.look(page)
	}
	for _, path := range paths(s) {
		if strings.Contains(path, "?") || path == "/signin" {
			b.open(path)
		} else {
			b.open(path + "?did=replay&n=3")
			b.says("#did", "3 messages will be retried")
		}
		unfolded(path)
	}
	b.open("/messages")
	b.keys("jxjx")
	b.follow(`#actions button[value="discard"]`, "#confirm-button")
	unfolded("/messages/act")
	b.open("/messages/" + s.Has.Order + "/edit")
	b.write(`input[name="value.1"]`, "globex")
	b.follow("#preview", "#diff")
	unfolded("the preview of an edit")
}

// What is the same on each page is looked at on one.
func TestTheFrameIsForEverybody(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true, readOnly: true})
	b := newTab(t, s.base)
	b.expect("401", "503", "ERR_")
	b.open("/")
	b.write("input[name=token]", s.token)
	b.leave(func() { b.keys("\r") }, "#numbers")
	b.says("#live-state", "Live")
	b.says("#read-only", "Read-only")
	b.keys("?")
	b.shows("#keys")
	b.look("keys")
	b.click("#keys button")
	b.click("#live-pause")
	b.shows("#stale")
	b.look("paused, read-only")
	b.click("#live-resume")
	b.says("#live-state", "Live")
	s.leaves()
	b.shows("#disconnected")
	b.look("disconnected")
	s.comesBack()
}

// A session that ends while its page is open asks to sign in, and nothing was done.
func TestSignedOutInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true})
	b := newTab(t, s.base)
	b.expect("401")
	b.open("/messages/" + s.Has.Order)
	b.write("input[name=token]", s.token)
	b.leave(func() { b.keys("\r") }, "#replay")
	call(b, network.ClearBrowserCookies, cdp.Empty{})
	b.follow("#replay", "input[name=token]")
	b.says("#refused", "nothing was done")
	b.look("signed out by a form")
}

// With a reason, a masked message is shown whole, once.
func TestShowingWhatIsMasked(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true, masks: mask.New([]mask.Entry{{Paths: []string{"body..customer", "header.user"}}},
		mask.DefaultBodies(), auth.Operator)})
	token, _, err := s.tokens.Create(t.Context(), webtest.Root, auth.NewToken{Name: "olga", Role: "operator"})
	must(t, err)
	b := newTab(t, s.base)
	b.expect("401")
	b.open("/messages/" + s.Has.Order)
	b.write("input[name=token]", token)
	b.leave(func() { b.keys("\r") }, "#show")
	b.look("a masked message")
	b.write("#show input", "ticket 4711")
	b.follow("#show button", "#unmasked")
	b.says("#unmasked", "ticket 4711")
	b.look("an unmasked message")
	b.follow("#unmasked a", "#show")
}

func TestEmptyPagesAreForEverybody(t *testing.T) {
	t.Parallel()
	b := newTab(t, newEmpty(t, nil).base)
	for _, path := range []string{"/", "/messages", "/groups", "/queues", "/operations", "/policies", "/audit",
		"/health"} {
		b.open(path)
		b.axe("empty " + path)
	}
}

// troubled serves a made-up shop, whose streams of events go on and tell nothing. What the page asks for
// while it says that it is being read waits for read to be closed.
func troubled(t *testing.T, shop *webtest.Shop, read chan struct{}) *tab {
	t.Helper()
	handler := webui.Handler(shop, webui.Options{Caller: func(*http.Request) auth.Caller {
		return webtest.Root
	}, Version: "1.4.0"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/live" {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		if r.URL.Query().Has("wait") {
			select {
			case <-read:
			case <-r.Context().Done():
			}
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return newTab(t, server.URL)
}

// A page whose content takes long, was not all looked at, or cannot be read.
func TestTroubledPagesAreForEverybody(t *testing.T) {
	t.Parallel()
	shop, read := webtest.Stocked(inspect.Config{}), make(chan struct{})
	b := troubled(t, shop, read)
	b.expect("500")
	shop.Slow = true
	b.open("/messages")
	b.shows("#loading")
	b.look("loading")
	shop.Slow = false
	close(read)
	b.shows("#messages")
	shop.Bounded = webtest.Bounded
	b.open("/messages")
	b.shows("#bounded")
	b.look("bounded")
	shop.Fails = errors.New("the store cannot be read: redrive-data/000214.sst: input/output error")
	for _, path := range []string{"/", "/messages"} {
		b.open(path)
		b.says("#failed", "input/output error")
		b.look("failed " + path)
	}
}

// Of three replicas one leads, one has trouble, and one is not heard of any more: the
// Health page tells them apart, and says of the silent one no longer that it is ready.
func TestTheHealthPageTellsReplicasApart(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.open("/health")
	rows := js[[][]string](b, `[...document.querySelectorAll("#replicas tbody tr")].map(r => [...r.cells].map(c => c.innerText.trim()))`)
	if len(rows) != 3 {
		t.Fatalf("there are three replicas, and the page has %q", rows)
	}
	for i, want := range []struct{ id, role, state string }{
		{"redrive-0-5f1c9a3e", "leads", "ready"},
		{"redrive-1-5f1c9a3e (this one)", "follows", "ready\n" + s.Told.Conditions[0].String()},
		{"redrive-2-5f1c9a3e", "follows", "not heard of"},
	} {
		if r := rows[i]; r[0] != want.id || r[1] != want.role || r[2] != want.state {
			t.Errorf("of replica %d it says %q, want %+v", i, r, want)
		}
	}
}

// What a policy does in an outage is one click away, says it in words too, and is for
// everybody, in the light and in the dark. axe-core does not judge the colours of what
// is drawn, so that is done here, as WCAG counts: 4.5 for text, 3 for lines.
func TestAPolicysStorm(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.open("/policies")
	if b.has(`section:has(#p-webhooks) a[href*=outage]`) {
		t.Error("a policy that retries nothing has a picture of its retries")
	}
	const orders = `section:has(#p-orders) .storm-of`
	b.click(`section:has(#p-orders) a[href*=outage]`)
	b.shows(orders + " svg")
	b.until("the picture says what it shows",
		fmt.Sprintf(`/while it is down/.test(document.querySelector(%q).getAttribute("aria-label"))`, orders+" svg"))
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, dim := range js[[]string](b, fmt.Sprintf(`(() => {
			const rgb = c => c.match(/[\d.]+/g).slice(0, 3).map(v => v / 255);
			const light = c => rgb(c).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
			const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
			const svg = document.querySelector(%q), bad = [];
			const grounds = [...svg.querySelectorAll("rect.storm-limp, rect.storm-down, rect.storm-paper")].reverse(); // the uppermost first
			const under = e => {
				const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
				return grounds.find(g => { const b = g.getBoundingClientRect(); return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom; });
			};
			const judge = (what, colour, ground, least) => {
				const c = contrast(colour, getComputedStyle(ground).fill);
				if (c < least) bad.push(what + " on " + ground.getAttribute("class") + ": " + c.toFixed(2));
			};
			for (const e of svg.querySelectorAll("text")) judge(e.textContent, getComputedStyle(e).fill, under(e), 4.5);
			for (const e of svg.querySelectorAll("path.storm-requeue, path.storm-fixed, path.storm-backoff, path.storm-redrive"))
				for (const g of grounds) judge("the line " + e.getAttribute("class"), getComputedStyle(e).stroke, g, 3);
			return bad;
		})()`, orders+" svg")) {
			t.Errorf("%s: too little contrast: %s", scheme, dim)
		}
	}
}
