package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

const replayX = `{"verb":"replay","ids":["x"]}`

// counting is a console that counts what it is asked to do, and what it answers with.
type counting struct {
	n   int
	err error
}

func (c *counting) console() *scripted {
	return &scripted{act: func(context.Context, actions.Act) (actions.Acted, error) {
		c.n++
		return actions.Acted{Done: c.n, Outcomes: []actions.Outcome{}}, c.err
	}}
}

func key(k string) func(*http.Request) { return header("Idempotency-Key", k) }

func TestARequestThatComesTwiceIsDoneOnce(t *testing.T) {
	done := &counting{}
	c := config(done.console())
	now := time.Unix(1_700_000_000, 0)
	c.Now = func() time.Time { return now }
	a := httpapi.New(c)
	first := ask(a, "POST", "/api/v1/act", replayX, key("k"))
	if first.Code != 200 || done.n != 1 {
		t.Fatalf("%d, done %d times: %s", first.Code, done.n, first.Body)
	}
	again := func(what string, h http.Handler, times int, with ...func(*http.Request)) {
		t.Helper()
		w := ask(h, "POST", "/api/v1/act", replayX, append(with, key("k"))...)
		if w.Code != 200 || done.n != times {
			t.Errorf("%s: %d, done %d times, want %d: %s", what, w.Code, done.n, times, w.Body)
		}
		if same := w.Body.String() == first.Body.String() && w.Header().Get("Content-Type") == first.Header().Get("Content-Type"); same != (times == 1) {
			t.Errorf("%s: the answer is %s", what, w.Body)
		}
	}
	again("at once", a, 1)
	again("after a restart", httpapi.New(c), 1)
	now = now.Add(24*time.Hour - time.Second)
	again("a day later", a, 1)
	for what, body := range map[string]string{"other messages": `{"verb":"replay","ids":["y"]}`, "another verb": `{"verb":"discard","ids":["x"]}`} {
		if w := ask(a, "POST", "/api/v1/act", body, key("k")); w.Code != 422 || code(t, w) != "key_reused" {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	if w := ask(a, "PUT", "/api/v1/queues/orders/pause", replayX, key("k")); w.Code != 422 || code(t, w) != "key_reused" {
		t.Errorf("another route: %d %s", w.Code, w.Body)
	}
	again("of somebody else", a, 2, as(auth.Caller{Name: "bob", How: "token", Role: auth.Operator}))
	now = now.Add(2 * time.Second)
	again("after more than a day", a, 3)
	n := 0
	now = now.Add(25 * time.Hour)
	again("after another", a, 4)
	err := c.Entries.Entries(t.Context(), "", "", func(store.Entry) (bool, error) { n++; return true, nil })
	if err != nil || n != 1 {
		t.Errorf("%d answers are remembered for ever, %v", n, err)
	}
}

func TestAKeyMeansNothingWhereNothingWasDone(t *testing.T) {
	for _, err := range []error{inspect.ErrPrecondition, actions.ErrNoAudit, store.ErrFull, auth.ErrForbidden, inspect.ErrNotFound} {
		done := &counting{err: fmt.Errorf("%w: for the test", err)}
		a := httpapi.New(config(done.console()))
		if w := ask(a, "POST", "/api/v1/act", replayX, key("k")); w.Code < 400 {
			t.Fatalf("%v: %d", err, w.Code)
		}
		done.err = nil
		if w := ask(a, "POST", "/api/v1/act", replayX, key("k")); w.Code != 200 || done.n != 2 {
			t.Errorf("after %v: %d, done %d times", err, w.Code, done.n)
		}
	}
	done := &counting{}
	c := config(done.console())
	for _, with := range [][]func(*http.Request){{key(strings.Repeat("k", 256))}, {key("k"), as(auth.Caller{Name: "v", Role: auth.Viewer})}, {key("k"), as(auth.Caller{})}} {
		ask(httpapi.New(c), "POST", "/api/v1/act", replayX, with...)
	}
	if err := c.Entries.Entries(t.Context(), "", "", func(e store.Entry) (bool, error) { return false, errors.New(e.Name) }); err != nil {
		t.Errorf("who may do nothing left behind %v", err)
	}
}

// What is not known to be done or not is never done again by itself.
func TestAKeyOfWhatWasInterrupted(t *testing.T) {
	c := config(&scripted{act: func(context.Context, actions.Act) (actions.Acted, error) { panic(http.ErrAbortHandler) }})
	func() {
		defer func() { _ = recover() }()
		ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("k"))
	}()
	done := &counting{}
	c.Console = done.console()
	if w := ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("k")); w.Code != 409 || code(t, w) != "interrupted" || done.n != 0 {
		t.Errorf("%d, done %d times: %s", w.Code, done.n, w.Body)
	}
	large := &scripted{act: func(context.Context, actions.Act) (actions.Acted, error) {
		return actions.Acted{Done: 1, Outcomes: []actions.Outcome{{Why: strings.Repeat("x", 4<<20)}}}, nil
	}}
	c.Console = large
	if w := ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("large")); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	c.Console = done.console()
	if w := ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("large")); w.Code != 409 || code(t, w) != "interrupted" || done.n != 0 {
		t.Errorf("after an answer too large to be kept: %d, done %d times", w.Code, done.n)
	}
	done.err = errors.New("the disk is gone")
	if w := ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("l")); w.Code != 500 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("l")); w.Code != 409 || code(t, w) != "interrupted" || done.n != 1 {
		t.Errorf("%d, done %d times: %s", w.Code, done.n, w.Body)
	}
}

func TestTwoAtOnceWithOneKey(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	a := httpapi.New(config(&scripted{act: func(context.Context, actions.Act) (actions.Acted, error) {
		close(begun)
		<-finish
		return actions.Acted{}, nil
	}}))
	var first sync.WaitGroup
	first.Go(func() {
		if w := ask(a, "POST", "/api/v1/act", replayX, key("k")); w.Code != 200 {
			t.Errorf("the first: %d", w.Code)
		}
	})
	<-begun
	if w := ask(a, "POST", "/api/v1/act", replayX, key("k")); w.Code != 409 || code(t, w) != "in_progress" {
		t.Errorf("the second: %d %s", w.Code, w.Body)
	}
	close(finish)
	first.Wait()
	if w := ask(a, "POST", "/api/v1/act", replayX, key("k")); w.Code != 200 {
		t.Errorf("afterwards: %d %s", w.Code, w.Body)
	}
}

// Nothing is done whose doing could not be remembered.
func TestNothingIsDoneWhenTheKeyCannotBeKept(t *testing.T) {
	done := &counting{}
	c := config(done.console())
	s := memstore.New()
	c.Entries = s
	_ = s.Close()
	if w := ask(httpapi.New(c), "POST", "/api/v1/act", replayX, key("k")); w.Code != 503 || code(t, w) != "stopping" || done.n != 0 {
		t.Errorf("%d, done %d times: %s", w.Code, done.n, w.Body)
	}
}

// An import is streamed, so its hash is only known at its end.
func TestAnImportThatComesTwiceIsDoneOnce(t *testing.T) {
	var got []string
	c, _ := serve(t, config(&scripted{taken: func(r io.Reader) (actions.Imported, error) {
		data, err := io.ReadAll(r)
		got = append(got, string(data))
		return actions.Imported{Count: 7}, err
	}}))
	send := func(body string) (actions.Imported, error) {
		c.HTTP.Transport = withKey{http.DefaultTransport}
		return c.Import(soon(t), strings.NewReader(body), false)
	}
	lines := strings.Repeat("{}\n", 100_000)
	for range 2 {
		if done, err := send(lines); err != nil || done.Count != 7 {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	if _, err := send(lines + "{}"); !errors.Is(err, httpapi.ErrKeyReused) {
		t.Errorf("a longer one: %v", err)
	}
	if len(got) != 1 || got[0] != lines {
		t.Errorf("%d imports were done", len(got))
	}
}

type withKey struct{ http.RoundTripper }

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Idempotency-Key", "one")
	return k.RoundTripper.RoundTrip(r)
}
