package page_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

func TestEachPageIsForEverybody(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.expect("422", "404", "409") // the states of errors answer with them
	b.each(normal, s, func(page string) {
		b.look(page)
	})
	for _, p := range places {
		for _, path := range p.paths[min(1, len(p.paths)):] {
			b.open(s.at(path))
			b.look(path)
		}
	}
}

func TestEmptyPagesAreForEverybody(t *testing.T) {
	t.Parallel()
	s := &stocked{scene: newScene(t, options{})}
	b := newTab(t, s.base)
	b.each(empty, s, func(page string) {
		b.axe("empty " + page)
	})
}

func TestReadOnlyPagesOfferNoActions(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{readOnly: true})
	b := newTab(t, s.base)
	b.expect("403", "404")
	b.each(readOnly, s, func(page string) {
		b.axe("read-only " + page)
		b.says("#read-only", "Read-only")
		if offered := js[string](b, `[...document.querySelectorAll("form[method=post]")].map(f => f.action).join(" ")`); offered != "" {
			t.Errorf("%s offers %s", page, offered)
		}
	})
}

func TestPagesOfLimitedCallersAreForEverybody(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true})
	token, _, err := s.tokens.Create(t.Context(), root, auth.NewToken{Name: "mail-team", Role: "operator", Queues: []string{"mail.*"}})
	if err != nil {
		t.Fatal(err)
	}
	b := newTab(t, s.base)
	b.expect("403", "404")
	b.signIn(token)
	b.each(fewQueues, s, func(page string) {
		b.axe("limited " + page)
		if told := js[string](b, `document.querySelector("main").innerText`); strings.Contains(told, "orders.capture") {
			t.Errorf("%s tells of another team's queue:\n%s", page, told)
		}
	})
}

// signIn signs in with a token, and waits for the overview.
func (b *tab) signIn(token string) {
	b.t.Helper()
	b.open("/")
	b.write("input[name=token]", token)
	b.leave(func() { b.keys("\r") }, "#numbers")
}

// What a page becomes while somebody looks at it.
func TestPagesThatAreUsedAreForEverybody(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.expect("404", "503", "ERR_") // a page that is not there, and a service
	b.each(used, s, func(page string) {
		if here := js[string](b, `location.pathname`); strings.HasPrefix(page, "/") {
			b.open(here + "?did=replay&n=3")
			b.says("#did", "3 messages are retried")
		}
		b.says("#live-state", "Live")
		if b.has("#all") {
			b.click("#all")
			b.says("#selected", "selected")
		}
		js[bool](b, `document.querySelectorAll("main details").forEach(d => d.open = true) || true`)
		b.axe("did, unfolded " + page)

		js[bool](b, `document.activeElement.blur() || true`)
		b.keys("?")
		b.shows("#keys")
		b.axe("keys " + page)
		b.click("#keys button")

		b.click("#live-pause")
		b.shows("#stale")
		b.frameAgain("paused " + page)
		b.click("#live-resume")
		b.says("#live-state", "Live")

		s.leaves()
		b.shows("#disconnected")
		b.frameAgain("disconnected " + page)
		s.comesBack()
	})
}

// A session ends while its pages are open: whatever is done next asks to sign in, and
// then leads on.
func TestSignedOutInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true})
	b := newTab(t, s.base)
	b.expect("401", "404")
	b.signIn(s.token)
	session := call(b, network.GetCookies, network.GetCookiesParams{}).Cookies[0]
	in := func() {
		call(b, network.SetCookie, network.SetCookieParams{Name: session.Name, Value: session.Value, URL: s.base})
	}
	out := func() { call(b, network.ClearBrowserCookies, cdp.Empty{}) }
	b.each(signedOut, s, func(page string) {
		here := js[string](b, `location.pathname`)
		out()
		b.leave(func() { js[bool](b, `location.reload() || true`) }, "input[name=token]")
		if next := js[string](b, `document.querySelector("input[name=next]").value`); next != here {
			t.Errorf("after a sign-in, %s leads to %s", here, next)
		}
		b.axe("signed out " + page)
		in()
	})
	b.open("/messages/" + s.order)
	out()
	b.follow("#replay", "input[name=token]")
	b.says("#refused", "nothing was done")
	b.axe("signed out by a form")
}

// troubled serves a made-up shop, whose streams of events go on and tell nothing.
func troubled(t *testing.T, handler http.Handler) *tab {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/live":
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		case "/healthz": // which the page asks when the stream is silent
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return newTab(t, server.URL)
}

// madeUp is a shop that can be slow, and fail, and its page; its things have no names
// but those that are asked for.
func madeUp() (*webtest.Shop, http.Handler, *stocked) {
	shop := webtest.New(time.Now())
	names := &stocked{order: "x", waiting: "x", running: "x", paused: "x", plan: "x", blocked: "x"}
	return shop, webui.Handler(shop, webui.Options{Caller: func(*http.Request) auth.Caller { return root }, Version: "1.4.0"}), names
}

func TestPagesThatTakeLongAreForEverybody(t *testing.T) {
	t.Parallel()
	shop, handler, names := madeUp()
	shop.Slow = true
	// Each takes as long as the page's pageTimeout: all are asked for at once.
	answers := map[string]*httptest.ResponseRecorder{}
	var asked sync.WaitGroup
	for _, p := range places {
		if p.never&loading == 0 && p.part == "" {
			path, answer := names.at(p.paths[0]), httptest.NewRecorder()
			answers[path] = answer
			asked.Go(func() { handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil)) })
		}
	}
	asked.Wait()
	shop.Slow = false
	read := make(chan struct{})
	b := troubled(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch answer := answers[r.URL.Path]; {
		case r.URL.Query().Has("wait"): // of the page that says that it is being read
			select {
			case <-read:
				handler.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		case answer != nil:
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	b.each(loading, names, func(page string) {
		b.shows("#loading")
		b.axe("loading " + page)
	})
	b.open("/messages")
	b.shows("#loading")
	b.look("loading")
	close(read)
	b.shows("#messages")
}

func TestTroubledPagesAreForEverybody(t *testing.T) {
	t.Parallel()
	shop, handler, names := madeUp()
	b := troubled(t, handler)
	b.expect("500")
	shop.Bounded = "only the latest 100,000 of 1,204,332 messages, since bodies have to be decoded for this query"
	b.each(bounded, names, func(page string) {
		b.shows("#bounded")
		b.look("bounded " + page)
	})
	shop.Bounded, shop.Fails = "", errors.New("the store cannot be read: redrive-data/000214.sst: input/output error")
	b.each(failed, names, func(page string) {
		b.says("#failed", "input/output error")
		b.axe("failed " + page)
	})
	b.open("/messages")
	b.look("failed")
}
