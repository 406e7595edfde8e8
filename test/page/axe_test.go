package page_test

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/web"
	"github.com/redrive-mq/redrive/internal/web/webtest"
)

// axe-core, as its npm package has it: see axe.LICENSE.
//
//go:embed testdata/axe.min.js
var axeCore string

// violation is one rule of axe-core that a page breaks.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML           string `json:"html"`
		FailureSummary string `json:"failureSummary"`
	} `json:"nodes"`
}

// axe fails the test for each violation of the page as it is. On a page that was
// looked at already, dark finds what colours do.
func (b *tab) axe(state string, rules ...string) {
	b.t.Helper()
	only := `{type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}`
	if len(rules) > 0 {
		list, _ := json.Marshal(rules)
		only = fmt.Sprintf(`{type: "rule", values: %s}`, list)
	}
	if !js[bool](b, `"axe" in window`) {
		b.run(chromedp.Evaluate[chromedp.Void](axeCore))
	}
	found := js[[]violation](b, `axe.run(document, {resultTypes: ["violations"], runOnly: `+only+`}).then(r => r.violations)`)
	for _, v := range found {
		var where []string
		for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
			where = append(where, fmt.Sprintf("    %.300s\n    %s", n.HTML, strings.ReplaceAll(n.FailureSummary, "\n", "\n    ")))
		}
		b.t.Errorf("%s: axe %s: %s (%d times)\n%s", state, v.ID, v.Help, len(v.Nodes), strings.Join(where, "\n"))
	}
}

// look holds the page, as it is now, to all that each page has to be: for axe-core
// in the light and in the dark, where only colours differ, and without scrolling
// sideways at 400 % zoom of a window of 1280 pixels.
func (b *tab) look(state string) {
	b.t.Helper()
	b.axe(state)
	b.scheme("dark")
	b.axe(state+", dark", "color-contrast")
	b.scheme("light")
	b.size(320, 256)
	js[bool](b, `new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))`)
	if wide := js[int](b, `document.documentElement.scrollWidth`); wide > 320 {
		widest := js[string](b, `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre, .unseen, .skip")).slice(0, 5).map(e => e.outerHTML.slice(0, 160)).join("\n")`)
		b.t.Errorf("%s: at 400 %% zoom the page scrolls sideways: it is %d pixels wide, because of\n%s", state, wide, widest)
	}
	b.size(1280, 900)
}

// lookAt opens a page and looks.
func (b *tab) lookAt(state, path string) {
	b.t.Helper()
	b.open(path)
	b.look(state + " " + path)
}

func TestEachPageIsForEverybody(t *testing.T) {
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.expect("422", "404", "409") // the states of errors answer with them
	for _, path := range []string{"/", "/messages", "/messages?q=state:waiting", "/messages?q=state:returned", "/messages?q=state:discarded", "/messages?q=",
		"/messages/" + s.order, "/messages/" + s.waiting, "/messages/" + s.order + "/edit",
		"/groups", "/queues", "/operations", "/operations/" + s.running, "/operations/" + s.paused, "/plans/" + s.plan, "/plans/" + s.blocked,
		"/policies", "/audit", "/health", "/help"} {
		b.lookAt("normal", path)
	}
	b.lookAt("a wrong query", `/messages?q=queue%3Aorders+state%3Anonsense`)
	b.lookAt("a query that finds nothing", `/messages?q=queue%3Anowhere`)
	b.lookAt("not found", "/messages/nothing")
	b.lookAt("no such page", "/nowhere")
}

func TestEmptyPagesAreForEverybody(t *testing.T) {
	s := newScene(t, options{})
	b := newTab(t, s.base)
	for _, path := range []string{"/", "/messages", "/messages?q=state:waiting", "/groups", "/queues", "/operations", "/policies", "/audit", "/health"} {
		b.lookAt("empty", path)
	}
}

func TestReadOnlyPagesOfferNoActions(t *testing.T) {
	s := newShop(t, options{readOnly: true})
	b := newTab(t, s.base)
	b.expect("403")
	for _, path := range []string{"/", "/messages", "/messages/" + s.order, "/groups", "/queues", "/operations", "/policies", "/audit", "/health"} {
		b.lookAt("read-only", path)
		b.says("#read-only", "Read-only")
		if offered := js[string](b, `[...document.querySelectorAll("form[method=post]")].map(f => f.action).join(" ")`); offered != "" {
			t.Errorf("%s offers %s", path, offered)
		}
	}
	b.lookAt("read-only", "/messages/"+s.order+"/edit")
	b.says("#failed", "read-only")
}

// What fails, and what takes long, is a state too; a made-up shop can be in each.
func TestTroubledPagesAreForEverybody(t *testing.T) {
	shop := webtest.New(time.Now())
	held := make(chan struct{})
	handler := web.Handler(shop, web.Options{Caller: func(*http.Request) auth.Caller { return root }, Version: "1.4.0"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/api/v1/live":
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		case r.URL.Query().Has("wait"): // of the page that says that it is being read
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	b := newTab(t, server.URL)
	b.expect("500", "409", "503")

	shop.Slow = true
	b.open("/messages?q=text%3AACME")
	b.shows("#loading")
	b.look("loading")
	shop.Slow = false
	close(held)
	b.shows("#messages")

	shop.Bounded = "only the newest 100,000 of 1,204,332 messages, since bodies have to be decoded for this query"
	b.lookAt("bounded", "/messages?q=text%3AACME")
	b.shows("#bounded")

	shop.Fails = errors.New("the store cannot be read: redrive-data/000214.sst: input/output error")
	for _, path := range []string{"/", "/messages", "/messages/x", "/groups", "/queues", "/operations", "/policies", "/audit", "/health"} {
		b.lookAt("failed", path)
		b.says("#failed", "input/output error")
	}
}
