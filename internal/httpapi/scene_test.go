package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/policy"
)

// secret is in all that the queue orders has, and in nothing else.
const secret = "s3cr3t"

// orders is a queue that some may not know of.
const orders = "orders-" + secret

// root may do everything.
var root = auth.Caller{Name: "root", How: "local", From: "127.0.0.1", Interface: "api", Role: auth.Admin}

// book is an audit log in memory.
type book struct {
	mu      sync.Mutex
	entries []audit.Entry
}

func (b *book) Begin(e audit.Entry) (func(string, int64), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.N = int64(len(b.entries) + 1)
	b.entries = append(b.entries, e)
	return func(string, int64) {}, nil
}

func (b *book) Before(_ context.Context, n int64, visit func(audit.Entry) (bool, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := min(n-1, int64(len(b.entries))) - 1; i >= 0; i-- {
		if more, err := visit(b.entries[i]); !more || err != nil {
			return err
		}
	}
	return nil
}

// everyQueue says of every queue that it is there and has a consumer.
type everyQueue struct{}

func (everyQueue) Queue(context.Context, string) (inspect.AtBroker, error) {
	return inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 1}, nil
}

type quiet struct{}

func (quiet) Minute(string, time.Time) inspect.Flow { return inspect.Flow{} }
func (quiet) Queues() []string                      { return nil }
func (quiet) Failed(func(string) bool) int64        { return 0 }

func (quiet) Hour(time.Time, func(string) bool) []inspect.Flow { return make([]inspect.Flow, 60) }

// console is all that page and API call.
type console struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
}

func newConsole(s store.Store, log *book, c inspect.Config) console {
	c.Store, c.Broker, c.Audit, c.Activity = s, everyQueue{}, log, quiet{}
	c.Policies = func() policy.Set { return policy.Set{policy.Default()} }
	in := inspect.New(c)
	does := actions.New(actions.Config{Inspect: in, Store: s, Audit: log, Restorable: time.Hour})
	return console{in, does, operations.New(operations.Config{Inspect: in, Actions: does, Store: s})}
}

// scene is a service's faces over a store in memory, with something of each kind in
// it: messages of the queues orders and mail in every state, a group, a plan, an
// operation, a token, an export.
type scene struct {
	*httpapi.API
	console console
	store   *memstore.Store
	book    *book
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
	a := &access{store: s, tokens: auth.NewTokens(s, &book{}), secret: map[string]string{}}
	for name, n := range map[string]auth.NewToken{
		"viewer": {Role: "viewer"}, "operator": {Role: "operator"}, "editor": {Role: "editor"}, "admin": {Role: "admin"},
		"elsewhere": {Role: "admin", Queues: []string{"mail"}}, "victim": {Role: "viewer"},
	} {
		n.Name = name
		var err error
		if a.secret[name], _, err = a.tokens.Create(t.Context(), root, n); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func newScene(t testing.TB, who *access, readOnly bool) *scene {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &scene{store: memstore.New(), book: &book{}, ids: map[store.State]string{}}
	decoder, err := decode.New(decode.Options{})
	must(err)
	log := slog.New(slog.DiscardHandler)
	none := func() []string { return nil }
	problems := func() []string { return []string{"queue " + orders + ": it does not exist"} }
	s.console = newConsole(s.store, s.book, inspect.Config{Log: log, ReadOnly: readOnly, Problems: problems, Notices: none, Decoder: decoder, Unreachable: func(string) string { return "" }})
	guard := auth.NewGuard(auth.Config{Required: true, ReadOnly: readOnly, Tokens: who.tokens, Log: log,
		Public: func(r *http.Request) bool { return httpapi.Public(r) || strings.HasPrefix(r.URL.Path, "/assets/") }})
	s.API = httpapi.New(httpapi.Config{Console: s.console, Decoder: decoder, Entries: s.store, Problems: problems, Notices: none, Ready: func() bool { return false }, Guard: guard, Tokens: who.tokens, Log: log,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "redrive_ready 1") })})

	for pattern, h := range webui.Routes(s.console, webui.Options{Caller: func(r *http.Request) auth.Caller { return auth.From(r.Context()) }}) {
		s.API.Handle(pattern, h)
	}

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
		if err != nil {
			t.Fatal(err)
		}
	}
	err := s.store.Entries(context.Background(), "", "", func(e store.Entry) (bool, error) {
		if !strings.HasPrefix(e.Name, "idempotency/") {
			fmt.Fprintf(&all, "%s %s\n", e.Name, e.Value)
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
