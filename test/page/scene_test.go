package page_test

import (
	"context"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/policy"
)

// console is all that page and API call.
type console struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
}

// scene is the page as the service has it, over a store in memory: the console, the
// API and the guard are real, only RabbitMQ and its traffic are made up. Tests that
// need those run a whole service: see service_test.go.
type scene struct {
	console
	options
	store  *memstore.Store
	base   string // URL, with the path that it is under
	token  string // an admin's, where callers must sign in
	tokens *auth.Tokens
	audit  *audit.Log
	server *httptest.Server
	gone   atomic.Bool
	hung   atomic.Bool // it answers nothing, and its connections stay open
}

// leaves cuts all connections and answers no more, as a service that is restarted
// behind a proxy, until it comes back.
func (s *scene) leaves() {
	s.gone.Store(true)
	s.server.CloseClientConnections()
}

func (s *scene) comesBack() { s.gone.Store(false) }

// options of a scene.
type options struct {
	readOnly, signIn bool
	told             *told // nil: all is quiet
	// vhosts, when there are several, are what the service serves: the scene is the one
	// that says so.
	vhosts []webui.VHost
}

// here is the virtual host that the scene is, and the path that it is under.
func (o options) here() (vhost, base string) {
	for _, v := range o.vhosts {
		if v.Here {
			return v.Name, strings.TrimSuffix(v.URL, "/")
		}
	}
	return "", ""
}

// root may do everything.
var root = auth.Caller{Name: "dana", How: "local", From: "127.0.0.1", Interface: "page", Role: auth.Admin}

// told is what RabbitMQ and the traffic would tell.
type told struct {
	queues            map[string]inspect.AtBroker
	returns           map[string]string
	minutes           map[string]inspect.Flow
	hour              []inspect.Flow
	problems, notices []string
	enrolled          []string // ordered
	findings          []inspect.Finding
	silent            bool // RabbitMQ's management API does not answer
}

func (t *told) Queue(_ context.Context, name string) (inspect.AtBroker, error) {
	if t.silent {
		return inspect.AtBroker{}, errors.New("RabbitMQ's management API does not answer")
	}
	return t.queues[name], nil
}

func (t *told) Minute(queue string, _ time.Time) inspect.Flow { return t.minutes[queue] }
func (t *told) Failed(func(string) bool) int64                { return 0 }
func (t *told) Queues() (all []string) {
	for q := range t.minutes {
		all = append(all, q)
	}
	return all
}

func (t *told) Hour(time.Time, func(string) bool) []inspect.Flow {
	if t.hour == nil {
		return make([]inspect.Flow, 60)
	}
	return t.hour
}

var policies = sync.OnceValue(func() policy.Set {
	return policy.Set{
		{Name: "orders", Queues: []string{"orders.*"}, Attempts: 5, Backoff: policy.Exponential(10*time.Second, 3, time.Hour)},
		{Name: "mail", Queues: []string{"mail.*"}, Attempts: 5, Backoff: policy.Linear(30*time.Second, 30*time.Second, 5*time.Minute)},
		{Name: "webhooks", Queues: []string{"webhooks"}, Attempts: 1},
		{Name: "rest", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Minute)},
	}
})

// storm is the picture that the Policies page has of each policy, as the service draws
// it; of all the same.
func storm(context.Context, string) template.HTML { return drawn() }

var drawn = sync.OnceValue(func() template.HTML {
	b := throttle.DefaultBreaker()
	r, err := simulate.Run(context.Background(), simulate.Brief(policies()[0], throttle.Rules{Rate: 200, Breaker: &b}))
	if err != nil {
		panic(err)
	}
	return template.HTML(r.SVG())
})

// protobuf is how the shop's orders are read: the example's types.
func protobuf(t testing.TB) decode.Options {
	t.Helper()
	folder, err := filepath.Abs("../../examples/proto")
	if err != nil {
		t.Fatal(err)
	}
	return decode.Options{Protobuf: decode.Protobuf{Files: []string{filepath.Join(folder, "shop/order.proto")}, ImportPaths: []string{folder},
		Queues: []decode.QueueType{{Queues: []string{"orders.*"}, Message: "shop.Order"}}}}
}

func newScene(t testing.TB, o options) *scene {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if o.told == nil {
		o.told = &told{}
	}
	s := &scene{store: memstore.New(), options: o}
	decoder, err := decode.New(protobuf(t))
	must(err)
	log := slog.New(slog.DiscardHandler)
	s.audit, err = audit.Open(t.TempDir(), audit.Options{Log: log})
	must(err)
	problems, notices := func() []string { return o.told.problems }, func() []string { return o.told.notices }
	s.Inspector = inspect.New(inspect.Config{Store: s.store, Broker: o.told, Audit: s.audit, Log: log, Activity: o.told, ReadOnly: o.readOnly,
		Version: "1.4.0", Since: time.Now().Add(-51 * time.Hour), BrokerURL: func() string { return "amqp://redrive@rabbit-1.shop.example:5672/shop" },
		Enrolled: func() ([]string, error) { return o.told.enrolled, nil }, Examine: func(context.Context) ([]inspect.Finding, error) { return o.told.findings, nil },
		Policies: policies, Problems: problems, Notices: notices, Decoder: decoder, Unreachable: func(q string) string { return o.told.returns[q] }})
	s.Actions = actions.New(actions.Config{Inspect: s.Inspector, Store: s.store, Audit: s.audit, Restorable: 30 * 24 * time.Hour})
	s.Runner = operations.New(operations.Config{Inspect: s.Inspector, Actions: s.Actions, Store: s.store})
	s.tokens = auth.NewTokens(s.store, s.audit)
	s.token, _, err = s.tokens.Create(t.Context(), root, auth.NewToken{Name: "dana", Role: "admin"})
	must(err)
	vhost, base := o.here()
	guard := auth.NewGuard(auth.Config{Base: base, Required: o.signIn, ReadOnly: o.readOnly, Tokens: s.tokens, Log: log, SignInPage: auth.SignInPath,
		Public: func(r *http.Request) bool { return httpapi.Public(r) || strings.HasPrefix(r.URL.Path, "/assets/") }})
	a := httpapi.New(httpapi.Config{Base: base, Console: s.console, Decoder: decoder, Entries: s.store, Problems: problems, Notices: notices, Guard: guard, Tokens: s.tokens, Log: log,
		Metrics: http.NotFoundHandler()})
	for pattern, h := range webui.Routes(s.console, webui.Options{Base: base, VHost: vhost, VHosts: func() []webui.VHost { return o.vhosts }, Caller: func(r *http.Request) auth.Caller { return auth.From(r.Context()) }, Simulation: storm, Version: "1.4.0", Log: log}) {
		a.Handle(pattern, h)
	}
	whole := httpapi.Under(base, a)
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.gone.Load() {
			http.Error(w, "the service is restarted", http.StatusServiceUnavailable)
			return
		}
		if s.hung.Load() {
			<-r.Context().Done()
			return
		}
		whole.ServeHTTP(w, r)
	}))
	s.base = s.server.URL + base
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Inspector.Run(ctx) })
	running.Go(func() { s.Runner.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		a.EndStreams()
		s.server.CloseClientConnections()
		s.server.Close()
		must(s.audit.Close())
	})
	return s
}

// add keeps records.
func (s *scene) add(t testing.TB, records ...*store.Record) {
	t.Helper()
	if err := s.store.Add(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

// pictures is where screenshots are kept.
func pictures(t testing.TB) string {
	t.Helper()
	folder := os.Getenv("REDRIVE_SCREENSHOTS")
	if folder == "" {
		folder = "screenshots"
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}
