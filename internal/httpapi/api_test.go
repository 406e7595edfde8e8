package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// scripted is a console that does what a test says: for what a real one does not do
// on command. What the test does not say panics.
type scripted struct {
	operations.Console
	act    func(context.Context, actions.Act) (actions.Acted, error)
	search func(query, after string) (inspect.Page, error)
	export func(context.Context, io.Writer) (int64, error)
	taken  func(io.Reader) (actions.Imported, error)
	watch  func(context.Context) <-chan operations.Tick
}

func (s *scripted) Act(ctx context.Context, _ auth.Caller, a actions.Act) (actions.Acted, error) {
	return s.act(ctx, a)
}

func (s *scripted) Search(_ context.Context, _ auth.Caller, q, after string, _ int) (inspect.Page, error) {
	return s.search(q, after)
}

func (s *scripted) Export(ctx context.Context, _ auth.Caller, _ string, w io.Writer) (int64, error) {
	return s.export(ctx, w)
}

func (s *scripted) Import(_ context.Context, _ auth.Caller, r io.Reader, _ bool) (actions.Imported, error) {
	return s.taken(r)
}

func (s *scripted) Watch(ctx context.Context, _ auth.Caller) <-chan operations.Tick {
	return s.watch(ctx)
}

func (s *scripted) Body(context.Context, auth.Caller, string) ([]byte, error) {
	return []byte("<script>"), nil
}

func (s *scripted) Overview(context.Context, auth.Caller) (inspect.Overview, error) {
	return inspect.Overview{Version: "test"}, nil
}

// believing is a guard that takes everybody for whom the test says they are, an
// admin where it says nothing.
type believing struct{ httpapi.Guard }

func (believing) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := auth.Caller{Name: "ann", How: "token", From: "192.0.2.1", Interface: "api", Role: auth.Admin}
		if as := r.Header.Get("Test-Caller"); as != "" {
			c = auth.Caller{}
			if err := json.Unmarshal([]byte(as), &c); err != nil {
				panic(err)
			}
		}
		next.ServeHTTP(w, r.WithContext(auth.With(r.Context(), c)))
	})
}

func (believing) SignIn(http.ResponseWriter, *http.Request)  {}
func (believing) SignOut(http.ResponseWriter, *http.Request) {}

func as(c auth.Caller) func(*http.Request) {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return header("Test-Caller", string(text))
}

func config(c operations.Console) httpapi.Config {
	d, err := decode.New(decode.Options{})
	if err != nil {
		panic(err)
	}
	none := func() []string { return nil }
	return httpapi.Config{Console: c, Decoder: d, Entries: memstore.New(), Problems: none, Notices: none, Ready: func() bool { return true }, Guard: believing{}, Log: slog.New(slog.DiscardHandler),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "redrive_ready 1") })}
}

// ask sends a request as a program on this machine does, changed by with.
func ask(h http.Handler, method, path, body string, with ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "127.0.0.1:8250", "127.0.0.1:54321"
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

// code is an answer's problem, or "".
func code(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Code < 400 {
		return ""
	}
	var p httpapi.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%d is no problem but %s: %s", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	if p.Status != w.Code || p.Type != "urn:redrive:problem:"+p.Code || p.Detail == "" {
		t.Errorf("%d has the problem %+v", w.Code, p)
	}
	return p.Code
}

func serve(t *testing.T, c httpapi.Config) (httpapi.Client, *httptest.Server) {
	t.Helper()
	a := httpapi.New(c)
	s := httptest.NewUnstartedServer(a)
	s.Config.RegisterOnShutdown(a.EndStreams)
	s.Start()
	t.Cleanup(func() {
		a.EndStreams()
		s.Close()
	})
	return httpapi.Client{Addr: strings.TrimPrefix(s.URL, "http://"), HTTP: s.Client()}, s
}

// soon fails a test that would wait for ever.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// secret is in all that the queue orders has, and in nothing else.
const secret = "s3cr3t"

// orders is a queue that some may not know of.
const orders = "orders-" + secret

// root may do everything.
var root = auth.Caller{Name: "root", How: "local", From: "127.0.0.1", Interface: "api", Role: auth.Admin}

// scene is a service's faces over a store in memory, with something of each kind in
// it: messages of the queues orders and mail in every state, a group, a plan, an
// operation, a token, an export.
type scene struct {
	*httpapi.API
	console *webtest.Shop
	store   *memstore.Store
	book    *inspecttest.AuditLog
	ids     map[store.State]string // of orders
	group   string
	plan    string // of all of orders, not started
	op      string // … started
	export  string
}

// access are the tokens of a matrix, made once: their secrets by the name of the
// role, and "elsewhere" for an admin of the queue mail alone.
type access struct {
	store  *memstore.Store
	tokens *auth.Tokens
	secret map[string]string
}

func newAccess(t testing.TB) *access {
	s := memstore.New()
	a := &access{store: s, tokens: auth.NewTokens(s, &inspecttest.AuditLog{}), secret: map[string]string{}}
	for name, n := range map[string]auth.NewToken{
		"viewer": {Role: "viewer"}, "operator": {Role: "operator"}, "editor": {Role: "editor"}, "admin": {Role: "admin"},
		"elsewhere": {Role: "admin", Queues: []string{"mail"}}, "victim": {Role: "viewer"},
	} {
		n.Name = name
		var err error
		a.secret[name], _, err = a.tokens.Create(t.Context(), root, n)
		must(t, err)
	}
	return a
}

func newScene(t testing.TB, who *access, readOnly bool) *scene {
	t.Helper()
	must := func(err error) {
		t.Helper()
		must(t, err)
	}
	told := &webtest.Told{Others: inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 1}, Problems: []string{"queue " + orders + ": it does not exist"}}
	s := &scene{store: memstore.New(), ids: map[store.State]string{}}
	s.console = webtest.New(s.store, told, inspect.Config{ReadOnly: readOnly})
	s.book = s.console.Book
	s.API = s.console.API(webui.Options{}, auth.Config{Required: true, ReadOnly: readOnly, Tokens: who.tokens})
	for i, state := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		for _, queue := range []string{orders, "mail"} {
			now := time.Now()
			r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: state, Due: now.Add(time.Hour), Failures: i + 1, Reason: "rejected", Error: "timeout of " + queue,
				FirstFailed: now, FailedAt: now, Policy: "default"}
			r.Message.Body, r.Message.ContentType = []byte(`{"n":1}`), "application/json"
			if queue == orders {
				s.ids[state] = r.ID.String()
				r.Error, r.Message.Body = secret, []byte(`{"card":"`+secret+`"}`)
			}
			must(s.store.Add(t.Context(), []*store.Record{r}))
		}
	}
	groups, err := s.console.Groups(t.Context(), root, "queue:"+orders, "", 0)
	must(err)
	s.group = groups.Groups[0].ID
	for _, id := range []*string{&s.plan, &s.op} {
		p, err := s.console.Plan(t.Context(), root, operations.PlanRequest{Verb: actions.Replay, Query: "queue:" + orders, Reason: secret})
		must(err)
		*id = p.ID
	}
	_, err = s.console.Start(t.Context(), root, s.op, operations.Start{})
	must(err)
	var out bytes.Buffer
	_, err = s.console.Export(t.Context(), root, "queue:"+orders+" state:parked", &out)
	must(err)
	s.export = out.String()
	return s
}

// state is all that the store holds but what belongs to the API itself.
func (s *scene) state(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, state := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		err := s.store.Scan(context.Background(), store.Range{State: state, Body: true}, func(l store.Listed) (bool, error) {
			text, err := json.Marshal(l)
			fmt.Fprintf(&all, "%s\n", text)
			return true, err
		})
		must(t, err)
	}
	err := s.store.Entries(context.Background(), "", "", func(e store.Entry) (bool, error) {
		if !strings.HasPrefix(e.Name, "idempotency/") {
			fmt.Fprintf(&all, "%s %s\n", e.Name, e.Value)
		}
		return true, nil
	})
	must(t, err)
	return all.String()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
