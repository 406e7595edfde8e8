package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

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
