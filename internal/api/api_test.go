package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// keeper is a service over a store in memory.
type keeper struct {
	*memstore.Store
	problems []string
}

func (k keeper) Problems() []string { return k.problems }

func (k keeper) Status(context.Context) (api.Status, error) {
	return api.Status{Version: "test", Problems: k.problems, Queues: []api.QueueStatus{}}, nil
}

func (k keeper) Replay(ctx context.Context, sel store.Selection) (int, error) {
	return k.Store.Replay(ctx, sel, time.Now(), nil)
}

// add keeps n messages of a queue and returns their IDs.
func (k keeper) add(t *testing.T, state store.State, queue string, n int) (ids []string) {
	t.Helper()
	due := time.Unix(1_700_000_000, 0)
	var records []*store.Record
	for i := range n {
		r := &store.Record{ID: uuid.New(), Queue: queue, State: state, Due: due.Add(time.Duration(i%7) * time.Second), Attempt: 1, Reason: "rejected"}
		if state == store.Parked {
			r.ParkedFor = "out of attempts"
		}
		r.Message.Body = make([]byte, i)
		records, ids = append(records, r), append(ids, r.ID.String())
	}
	if err := k.Add(t.Context(), records); err != nil {
		t.Fatal(err)
	}
	return ids
}

// parked counts the parked messages of a queue.
func (k keeper) parked(t *testing.T, queue string) (n int64) {
	t.Helper()
	counts, err := k.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counts {
		if c.Queue == queue {
			n += c.Parked
		}
	}
	return n
}

func handler(k keeper, open bool) http.Handler {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "redrive_ready 1") })
	return api.Handler(k, metrics, "test", open)
}

// ask sends a request as a client on this machine does, changed by with.
func ask(h http.Handler, method, path, body string, with ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8250"
	r.Header.Set("Content-Type", "application/json")
	for _, change := range with {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func host(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// A name that points at 127.0.0.1 must not make a browser hand out messages.
func TestOnlyALoopbackNameIsAnswered(t *testing.T) {
	h := handler(keeper{Store: memstore.New()}, true)
	for name, want := range map[string]int{
		"127.0.0.1:8250": 200, "127.0.0.1": 200, "127.8.8.8:8250": 200, "localhost:8250": 200, "localhost": 200, "[::1]:8250": 200,
		"evil.example": 403, "evil.example:8250": 403, "127.0.0.1.evil.example:8250": 403, "localhost.evil.example": 403,
		"10.0.0.1:8250": 403, "0.0.0.0:8250": 403, "[::]:8250": 403, "169.254.169.254": 403, "": 403, ":8250": 403,
	} {
		for _, path := range []string{"/api/v1/status", "/api/v1/messages", "/metrics", "/openapi.json"} {
			if w := ask(h, "GET", path, "", host(name)); w.Code != want {
				t.Errorf("host %q: GET %s gives %d, want %d", name, path, w.Code, want)
			}
		}
	}
}

// A web page of somebody else's must not replay messages through the browser of
// the person on call.
func TestAPageOfAnotherSiteCannotReplay(t *testing.T) {
	for name, c := range map[string]struct {
		with []func(*http.Request)
		want int
	}{
		"a program":             {nil, 200},
		"our own page":          {[]func(*http.Request){header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://127.0.0.1:8250")}, 200},
		"another site":          {[]func(*http.Request){header("Sec-Fetch-Site", "cross-site"), header("Origin", "https://evil.example")}, 403},
		"another port here":     {[]func(*http.Request){header("Sec-Fetch-Site", "same-site"), header("Origin", "http://127.0.0.1:9999")}, 403},
		"an old browser":        {[]func(*http.Request){header("Origin", "https://evil.example")}, 403},
		"a sandboxed frame":     {[]func(*http.Request){header("Origin", "null")}, 403},
		"a form, as plain text": {[]func(*http.Request){header("Sec-Fetch-Site", "cross-site"), header("Content-Type", "text/plain")}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			k := keeper{Store: memstore.New()}
			k.add(t, store.Parked, "orders", 3)
			w := ask(handler(k, true), "POST", "/api/v1/replay", `{"queue":"orders"}`, c.with...)
			if w.Code != c.want {
				t.Errorf("it gives %d, want %d: %s", w.Code, c.want, w.Body)
			}
			want := int64(0)
			if c.want != 200 {
				want = 3
			}
			if got := k.parked(t, "orders"); got != want {
				t.Errorf("%d messages are parked, want %d", got, want)
			}
			if got := w.Header().Get("Access-Control-Allow-Origin"); got != "" {
				t.Errorf("Access-Control-Allow-Origin is %q", got)
			}
		})
	}
}

// Nobody can sign in yet, so beyond this machine no message is shown or moved.
func TestBeyondLoopbackOnlyHealthAndMetricsAreServed(t *testing.T) {
	k := keeper{Store: memstore.New()}
	k.add(t, store.Parked, "orders", 1)
	h := handler(k, false)
	for _, name := range []string{"redrive.example:8250", "127.0.0.1:8250"} { // the Host header is the caller's to write
		for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "redrive_ready 1\n"} {
			if w := ask(h, "GET", path, "", host(name)); w.Code != 200 || w.Body.String() != want {
				t.Errorf("GET %s gives %d: %s", path, w.Code, w.Body)
			}
		}
		for _, path := range []string{"/", "/api/v1/status", "/api/v1/messages", "/openapi.json", "/openapi.yaml", "/docs", "/schemas/Page.json"} {
			if w := ask(h, "GET", path, "", host(name)); w.Code != 404 {
				t.Errorf("GET %s gives %d", path, w.Code)
			}
		}
		if w := ask(h, "POST", "/api/v1/replay", `{"queue":"orders"}`, host(name)); w.Code != 404 {
			t.Errorf("a replay gives %d", w.Code)
		}
	}
	if k.parked(t, "orders") != 1 {
		t.Error("the message was moved")
	}
}

func TestReadyzSaysWhatIsWrong(t *testing.T) {
	for _, open := range []bool{true, false} {
		w := ask(handler(keeper{memstore.New(), []string{"intake: not connected", "store: full"}}, open), "GET", "/readyz", "")
		if w.Code != 503 || w.Body.String() != "intake: not connected\nstore: full\n" {
			t.Errorf("open %v: %d %q", open, w.Code, w.Body)
		}
		if w := ask(handler(keeper{memstore.New(), []string{"store: full"}}, open), "GET", "/healthz", ""); w.Code != 200 {
			t.Errorf("/healthz gives %d while something is wrong: the process would be restarted for it", w.Code)
		}
	}
}

// What the documentation page of the API library loads comes from elsewhere.
func TestNoDocumentationPageIsServed(t *testing.T) {
	if w := ask(handler(keeper{Store: memstore.New()}, true), "GET", "/docs", ""); w.Code != 404 {
		t.Errorf("/docs gives %d", w.Code)
	}
}

func serve(t *testing.T, k keeper) api.Client {
	t.Helper()
	s := httptest.NewServer(handler(k, true))
	t.Cleanup(s.Close)
	return api.Client{Addr: strings.TrimPrefix(s.URL, "http://")}
}

func TestTheClientSaysWhenNoServiceAnswers(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	_, err := api.Client{Addr: strings.TrimPrefix(s.URL, "http://")}.Status(t.Context())
	if !errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "redrive serve") {
		t.Errorf("it says: %v", err)
	}
}

func TestTheClientRepeatsWhatTheServiceSays(t *testing.T) {
	k := keeper{Store: memstore.New()}
	c := serve(t, k)
	if _, err := c.Replay(t.Context(), nil, ""); err == nil || !strings.Contains(err.Error(), "give ids or a queue") {
		t.Errorf("it says: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.Replay(t.Context(), nil, "orders")
	if err == nil || errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), store.ErrClosed.Error()) {
		t.Errorf("it says: %v", err)
	}
}

// A client that was pointed at some other web server must not take its answer
// for an empty one.
func TestTheClientRefusesAnotherServersAnswer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer s.Close()
	if _, err := (api.Client{Addr: strings.TrimPrefix(s.URL, "http://")}).Status(t.Context()); err == nil {
		t.Error("a page of HTML was taken for a status")
	}
}
