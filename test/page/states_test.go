package page_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// places are those of all routes: TestEachRouteHasItsPlace finds a route without. What is in braces is of
// the shop: see at.
var places = map[string][]string{
	"GET /{$}": {"/"},
	"GET /messages": {"/messages", "/messages?q=state:waiting", "/messages?q=state:retried", "/messages?q=state:discarded", "/messages?q=",
		"/messages?q=queue%3Aorders+state%3Anonsense", "/messages?q=queue%3Anowhere"},
	"GET /messages/{id}":      {"/messages/{order}", "/messages/{waiting}", "/messages/nothing"},
	"GET /messages/{id}/edit": {"/messages/{order}/edit"},
	"GET /groups":             {"/groups", "/groups?q=queue%3Anowhere", "/groups?q=staat%3Ax"},
	"GET /queues":             {"/queues"},
	"GET /queues/{queue}":     {"/queues/orders.capture", "/queues/stock.sync", "/queues/nothing"},
	"GET /operations":         {"/operations"},
	"GET /operations/{id}":    {"/operations/{running}", "/operations/{paused}"},
	"GET /plans/{id}":         {"/plans/{plan}", "/plans/{blocked}"},
	"GET /policies":           {"/policies"},
	"GET /audit":              {"/audit"},
	"GET /health":             {"/health"},
	"GET /help":               {"/help"},
	"GET /":                   {"/nowhere"},
	"GET /signin":             {"/signin", "/signin?error=refused", "/signin?error=expired"},
}

// parts have no page of their own, or one that a form is answered with: TestEachPageIsForEverybody fills
// in two of them, the others lead to pages that have a place.
var parts = strings.Fields(`POST/messages/act POST/messages/{id}/edit POST/messages/plan POST/groups/{id}/note POST/queues/pause
	POST/queues/breaker POST/queues/resume POST/follow POST/operations/{id}/{order} POST/plans/{id}/start GET/messages/new GET/messages/count
	GET/messages/check GET/messages/{id}/body GET/messages/export GET/assets/{version}/{name}`)

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
	at := strings.NewReplacer("{order}", s.Has.Order, "{waiting}", s.Has.Waiting, "{running}", s.Has.Running, "{paused}", s.Has.Paused, "{plan}", s.Has.Plan, "{blocked}", s.Has.Blocked)
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

func TestEmptyPagesAreForEverybody(t *testing.T) {
	t.Parallel()
	b := newTab(t, newEmpty(t, nil).base)
	for _, path := range []string{"/", "/messages", "/groups", "/queues", "/operations", "/policies", "/audit", "/health"} {
		b.open(path)
		b.axe("empty " + path)
	}
}

// troubled serves a made-up shop, whose streams of events go on and tell nothing. What the page asks for
// while it says that it is being read waits for read to be closed.
func troubled(t *testing.T, shop *webtest.Shop, read chan struct{}) *tab {
	t.Helper()
	handler := webui.Handler(shop, webui.Options{Caller: func(*http.Request) auth.Caller { return webtest.Root }, Version: "1.4.0"})
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

// What a policy does in an outage is unfolded, says it in words too, and is for
// everybody, in the light and in the dark. axe-core does not judge the colours of what
// is drawn, so that is done here, as WCAG counts: 4.5 for text, 3 for lines.
func TestAPolicysStorm(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.open("/policies")
	if b.has(`section:has(#p-webhooks) .storm-of`) {
		t.Error("a policy that retries nothing has a picture of its retries")
	}
	const orders = `section:has(#p-orders) .storm-of`
	b.click(orders + " summary")
	b.shows(orders + " svg")
	b.until("the picture says what it shows", fmt.Sprintf(`/while it is down/.test(document.querySelector(%q).getAttribute("aria-label"))`, orders+" svg"))
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
