package httpapi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
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

func (s *scripted) Search(_ context.Context, _ auth.Caller, q, after string, _ int, _ ...string) (inspect.Page, error) {
	return s.search(q, after)
}

func (s *scripted) Export(ctx context.Context, _ auth.Caller, _ string, w io.Writer) (int64, error) {
	return s.export(ctx, w)
}

func (s *scripted) Import(_ context.Context, _ auth.Caller, r io.Reader, _ actions.ImportOptions) (actions.Imported, error) {
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

func (believing) SignIn(http.ResponseWriter, *http.Request)       {}
func (believing) SignOut(http.ResponseWriter, *http.Request)      {}
func (believing) SignInDevice(http.ResponseWriter, *http.Request) {}

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
	return httpapi.Config{Console: c, Decoder: d, Conditions: func() []condition.Condition { return nil }, Notices: none, Ready: func() bool { return true }, Guard: believing{}, Log: slog.New(slog.DiscardHandler),
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

func newScene(t testing.TB, who *access, readOnly bool, masked ...mask.Entry) *scene {
	t.Helper()
	reason, rules := secret, (*mask.Rules)(nil)
	if masked != nil {
		reason, rules = "", mask.New(masked, mask.Bodies{auth.Operator: mask.Masked, auth.Editor: mask.Masked, auth.Admin: mask.All}, auth.Operator)
	}
	must := func(err error) {
		t.Helper()
		must(t, err)
	}
	told := &webtest.Told{Others: inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 1}, Conditions: []condition.Condition{{Kind: condition.Unreachable, Queue: orders, Text: "it does not exist"}}}
	s := &scene{store: memstore.New(), ids: map[store.State]string{}}
	s.console = webtest.New(s.store, told, inspect.Config{ReadOnly: readOnly, Mask: func() *mask.Rules { return rules }})
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
				if masked != nil {
					r.Error, r.Message.Body = marked, []byte(`{"card":"`+marked+`"}`)
					r.Message.Headers = amqp.Table{"token": marked}
					r.Message.CorrelationID, r.ParkedFor, r.Notes = marked, marked, []string{marked}
				}
				if masked != nil && masked[0].Patterns == nil { // errors and properties have no paths
					r.Error, r.Message.CorrelationID, r.ParkedFor, r.Notes = "down", "", "", nil
				}
			}
			must(s.store.Add(t.Context(), []*store.Record{r}))
		}
	}
	groups, err := s.console.Groups(t.Context(), root, "queue:"+orders, "", "", 0)
	must(err)
	s.group = groups.Groups[0].ID
	for _, id := range []*string{&s.plan, &s.op} {
		p, err := s.console.Plan(t.Context(), root, operations.PlanRequest{Verb: actions.Replay, Query: "queue:" + orders, Reason: reason})
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

// state is all that the store holds.
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
		fmt.Fprintf(&all, "%s %s\n", e.Name, e.Value)
		return true, nil
	})
	must(t, err)
	return all.String() + fmt.Sprint(s.console.Told.Allowed)
}

var must, errOf = expect.NoError, expect.ErrOf

// content is what a route shows of messages.
type content uint8

const (
	undecided    content = iota
	nothing              // that could be masked, to whomever
	masked               // but for administrators
	maskedForAll         // administrators too
	refused              // but to administrators, who see it as it is
	onRequest            // as it is to administrators and to roles in auth.show
)

// rule is who can ask for a route, and what for.
type rule struct {
	shows content
	// ask makes the request: its path, and its body if it has one.
	ask func(s *scene) (path, body string)
	// tries asks what it would do; nil: it does not say.
	tries func(s *scene) (path, body string)
	// least is the role it needs; the lowest: it is public.
	least auth.Role
	// changes: a service that is read-only refuses it, whoever asks.
	changes bool
	// offers: it is the form of what changes, refused alike, and changes nothing itself.
	offers bool
	// audited: the audit log has a line of it.
	audited bool
	ok      int // to callers with that role
	// elsewhere is the answer to an admin of other queues, whose answers besides
	// never tell of the queue orders; 0: as to callers with that role.
	elsewhere int
	// looks: what is to be changed is looked for first, also where it is read-only.
	looks bool
	kind  string // of the body; "": JSON
}

func path(format string, args ...any) func(*scene) (string, string) {
	return func(*scene) (string, string) { return fmt.Sprintf(format, args...), "" }
}

const v1 = "/api/v1"

// rules has an entry for each route.
var rules = map[string]rule{
	"GET /healthz":                   {shows: nothing, ask: path("/healthz"), ok: 200},
	"GET /readyz":                    {shows: nothing, ask: path("/readyz"), ok: 503},
	"GET /metrics":                   {shows: nothing, ask: path("/metrics"), least: auth.Viewer, ok: 200, elsewhere: 403},
	"GET /api/v1/openapi.json":       {shows: nothing, ask: path(v1 + "/openapi.json"), ok: 200},
	"POST " + auth.SignInPath:        {shows: nothing, ask: func(*scene) (string, string) { return auth.SignInPath, `{"token":"redrive_wrong"}` }, ok: 401},
	"POST " + auth.SignOutPath:       {shows: nothing, ask: path(auth.SignOutPath), ok: 303},
	"POST " + auth.OIDCDevicePath:    {shows: nothing, ask: func(*scene) (string, string) { return auth.OIDCDevicePath, "{}" }, ok: 404},
	"GET /api/v1/me":                 {shows: nothing, ask: path(v1 + "/me"), least: auth.Viewer, ok: 200},
	"GET /api/v1/overview":           {shows: masked, ask: path(v1 + "/overview"), least: auth.Viewer, ok: 200},
	"GET /api/v1/messages":           {shows: masked, ask: path(v1 + "/messages?q=state:parked"), least: auth.Viewer, ok: 200},
	"GET /api/v1/count":              {shows: nothing, ask: path(v1 + "/count"), least: auth.Viewer, ok: 200},
	"GET /api/v1/groups":             {shows: masked, ask: path(v1 + "/groups"), least: auth.Viewer, ok: 200},
	"GET /api/v1/groups/{id}":        {shows: masked, ask: func(s *scene) (string, string) { return v1 + "/groups/" + s.group, "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/queues":             {shows: nothing, ask: path(v1 + "/queues"), least: auth.Viewer, ok: 200},
	"GET /api/v1/queues/{queue}":     {shows: masked, ask: path(v1 + "/queues/" + orders), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/ledger":             {shows: nothing, ask: path(v1 + "/ledger?recount=true"), least: auth.Viewer, ok: 200},
	"GET /api/v1/policies":           {shows: nothing, ask: path(v1 + "/policies"), least: auth.Viewer, ok: 200},
	"GET /api/v1/operations":         {shows: maskedForAll, ask: path(v1 + "/operations"), least: auth.Viewer, ok: 200},
	"GET /api/v1/dead-letter-queues": {shows: nothing, ask: path(v1 + "/dead-letter-queues"), least: auth.Viewer, ok: 200},
	"GET /api/v1/live":               {shows: nothing, ask: path(v1 + "/live"), least: auth.Viewer, ok: 200},
	"GET /api/v1/export":             {shows: refused, ask: path(v1 + "/export"), least: auth.Viewer, ok: 200, audited: true},
	"GET /api/v1/audit":              {shows: nothing, ask: path(v1 + "/audit"), least: auth.Admin, ok: 200, elsewhere: 403},
	"POST /api/v1/audit": {shows: nothing, ask: func(*scene) (string, string) {
		return v1 + "/audit", `{"action":"enroll","queues":["` + orders + `"],"cluster":"","vhost":""}`
	}, least: auth.Admin, audited: true, ok: 204, elsewhere: 403},
	"GET /api/v1/tokens":        {shows: nothing, ask: path(v1 + "/tokens"), least: auth.Admin, ok: 200},
	"GET /api/v1/messages/{id}": {shows: masked, ask: aMessage(""), least: auth.Viewer, ok: 200, elsewhere: 404},
	"POST /api/v1/messages/{id}/show": {shows: onRequest, ask: func(s *scene) (string, string) {
		return v1 + "/messages/" + s.ids[store.Parked] + "/show", `{"reason":"ticket 7"}`
	}, least: auth.Viewer, audited: true, ok: 200, elsewhere: 404},
	"GET /api/v1/plans/{id}":         {shows: maskedForAll, ask: func(s *scene) (string, string) { return v1 + "/plans/" + s.plan, "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/operations/{id}":    {shows: maskedForAll, ask: func(s *scene) (string, string) { return v1 + "/operations/" + s.op, "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/messages/{id}/body": {shows: refused, ask: aMessage("/body"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/operations/{id}/outcomes": {shows: maskedForAll, ask: func(s *scene) (string, string) { return v1 + "/operations/" + s.op + "/outcomes", "" },
		least: auth.Viewer, ok: 200, elsewhere: 404},
	"POST /api/v1/decode": {shows: nothing, ask: func(*scene) (string, string) {
		return v1 + "/decode", `{"body":"eyJuIjoxfQ==","queue":"` + orders + `"}`
	}, least: auth.Viewer, ok: 200, elsewhere: 404},

	"POST /api/v1/act": {shows: masked, ask: func(s *scene) (string, string) {
		return v1 + "/act", `{"verb":"replay","ids":["` + s.ids[store.Parked] + `"]}`
	}, tries: func(s *scene) (string, string) {
		return v1 + "/act", `{"verb":"replay","dry_run":true,"ids":["` + s.ids[store.Parked] + `"]}`
	}, least: auth.Operator, changes: true, audited: true, ok: 200},
	"PUT /api/v1/groups/{id}/note": {shows: nothing, ask: func(s *scene) (string, string) { return v1 + "/groups/" + s.group + "/note", `{"note":"known"}` },
		least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 404},
	"POST /api/v1/groups/{id}/state": {shows: nothing, ask: func(s *scene) (string, string) { return v1 + "/groups/" + s.group + "/state", `{"state":"ignored"}` },
		least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 404},
	"PUT /api/v1/queues/{queue}/pause": {shows: nothing, ask: func(*scene) (string, string) { return v1 + "/queues/" + orders + "/pause", `{"reason":"down"}` },
		least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 403},
	"DELETE /api/v1/queues/{queue}/pause": {shows: nothing, ask: func(s *scene) (string, string) { return v1 + "/queues/" + orders + "/pause?reason=up", "" },
		least: auth.Operator, changes: true, ok: 412, elsewhere: 403},
	"PUT /api/v1/queues/{queue}/replays": {shows: nothing, ask: func(*scene) (string, string) { return v1 + "/queues/" + orders + "/replays", `{}` },
		least: auth.Admin, changes: true, audited: true, ok: 204, elsewhere: 403},
	"PUT /api/v1/dead-letter-queues/{queue}/follow": {shows: nothing, ask: func(*scene) (string, string) {
		return v1 + "/dead-letter-queues/" + orders + "/follow", `{"then":"park"}`
	}, least: auth.Admin, changes: true, audited: true, ok: 204, elsewhere: 403},
	"DELETE /api/v1/dead-letter-queues/{queue}/follow": {shows: nothing, ask: func(*scene) (string, string) {
		return v1 + "/dead-letter-queues/" + orders + "/follow", ""
	}, least: auth.Admin, changes: true, ok: 412, elsewhere: 403},
	"PUT /api/v1/queues/{queue}/breaker": {shows: nothing, ask: func(*scene) (string, string) {
		return v1 + "/queues/" + orders + "/breaker", `{"force":"open","reason":"down"}`
	}, least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 403},
	"POST /api/v1/plans": {shows: maskedForAll, ask: func(*scene) (string, string) {
		return v1 + "/plans", `{"verb":"discard","query":"queue:` + orders + `"}`
	},
		least: auth.Operator, changes: true, ok: 200},
	"POST /api/v1/plans/{id}/start": {shows: maskedForAll, ask: func(s *scene) (string, string) { return v1 + "/plans/" + s.plan + "/start", `{}` },
		least: auth.Operator, changes: true, audited: true, ok: 200, elsewhere: 404},
	"POST /api/v1/operations/{id}/{order}": {shows: maskedForAll, ask: func(s *scene) (string, string) { return v1 + "/operations/" + s.op + "/pause", "" },
		least: auth.Operator, changes: true, audited: true, ok: 200, elsewhere: 404},
	"POST /api/v1/edit": {shows: masked, ask: func(s *scene) (string, string) {
		return v1 + "/edit", `{"id":"` + s.ids[store.Parked] + `","document":"{\"card\":2}"}`
	}, least: auth.Editor, changes: true, audited: true, ok: 200, elsewhere: 404},
	"POST /api/v1/import": {shows: nothing, ask: func(s *scene) (string, string) { return v1 + "/import?even_if_kept=true", s.export }, kind: "application/jsonl",
		least: auth.Editor, changes: true, audited: true, ok: 200, elsewhere: 403},
	"POST /api/v1/snapshot": {shows: nothing, ask: func(*scene) (string, string) { return v1 + "/snapshot", `{"folder":"/backup"}` }, // the scene's store is not on disk
		least: auth.Admin, changes: true, ok: 412, elsewhere: 403},
	"POST /api/v1/tokens":        {shows: nothing, ask: func(*scene) (string, string) { return v1 + "/tokens", `{"name":"new","role":"viewer"}` }, least: auth.Admin, changes: true, ok: 200},
	"DELETE /api/v1/tokens/{id}": {shows: nothing, ask: path(v1 + "/tokens/victim"), least: auth.Admin, changes: true, ok: 204, elsewhere: 404},
}

func aMessage(suffix string) func(*scene) (string, string) {
	return func(s *scene) (string, string) { return v1 + "/messages/" + s.ids[store.Parked] + suffix, "" }
}

// answer is the status that a caller is to get.
func (r rule) answer(caller string, readOnly bool) int {
	role := auth.Admin
	switch caller {
	case "nobody":
		role = auth.NoRole
	case "elsewhere":
	default:
		role, _ = auth.ParseRole(caller)
	}
	switch {
	case r.least == auth.NoRole:
		return r.ok
	case role == auth.NoRole:
		return 401
	case caller == "elsewhere" && r.looks:
		return r.elsewhere
	case (r.changes || r.offers) && readOnly, role < r.least:
		return 403
	case caller == "elsewhere" && r.elsewhere != 0:
		return r.elsewhere
	}
	return r.ok
}

// Every route, for every role, on a service that is read-only and on one that is
// not: a caller with permission gets an answer, one without changes nothing.
func TestWhoMayAskForWhat(t *testing.T) {
	who := newAccess(t)
	for _, route := range newScene(t, who, false).Routes() {
		r, ok := rules[route]
		if !ok {
			t.Errorf("%s has no rule: who may ask for it?", route)
			continue
		}
		t.Run(route, func(t *testing.T) {
			for _, readOnly := range []bool{false, true} {
				var s *scene // made again only where it was changed
				for _, caller := range []string{"nobody", "viewer", "operator", "editor", "admin", "elsewhere"} {
					t.Run(fmt.Sprintf("%s read-only=%v", caller, readOnly), func(t *testing.T) {
						if s == nil {
							s = newScene(t, who, readOnly)
						}
						if r.check(t, route, s, who, caller, readOnly) {
							if s = nil; strings.Contains(route, "/tokens") {
								who = newAccess(t)
							}
						}
					})
				}
			}
		})
	}
	for route := range rules {
		if !slices.Contains(newScene(t, who, false).Routes(), route) {
			t.Errorf("there is a rule for %s, and no such route", route)
		}
	}
}

// marked is in messages, where it is to be masked.
const marked = "marked value of a person"

// Each route shows as much of a message as its rule says, to each role and with each kind of mask, and never a masked
// value. Viewers see no body, and operators can ask for single messages.
func TestNoRouteShowsWhatIsMasked(t *testing.T) {
	who := newAccess(t)
	forms := []string{marked, hex.EncodeToString([]byte(marked)), fmt.Sprintf("% x", marked)}
	for i := range 3 { // wherever it is in base64
		forms = append(forms, base64.StdEncoding.EncodeToString([]byte(marked)[i:])[:8])
	}
	for _, entry := range []mask.Entry{
		{Paths: []string{"body.card", "header.token"}},
		{Patterns: []string{"/" + marked + "/"}},
		{Paths: []string{"header.token"}}, // so the body is hidden
	} {
		s := newScene(t, who, false, entry)
		s.EndStreams()
		for _, route := range s.Routes() {
			r := rules[route]
			for _, caller := range []string{"viewer", "operator", "editor", "admin"} {
				method, _, _ := strings.Cut(route, " ")
				ask := r.ask
				if r.tries != nil {
					ask = r.tries
				}
				target, body := ask(s)
				w := s.as(who.secret[caller], method, target, body, r.kind)
				text := fmt.Sprint(w.Header()) + w.Body.String()
				sees := slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) })
				whole := caller == "admin" || caller == "operator" && r.shows == onRequest
				fault, want := "", r.answer(caller, false)
				switch {
				case r.shows == undecided:
					fault = "has no rule of what it shows"
				case sees && (!whole || r.shows <= nothing || r.shows == maskedForAll):
					fault = "shows what is masked"
				case r.shows >= refused && !whole:
					want = http.StatusForbidden
				case entry.Patterns == nil || w.Code >= 300: // errors have no paths
				case !sees && whole && r.shows != nothing && r.shows != maskedForAll:
					fault = "shows nothing of messages"
				case r.shows != maskedForAll && strings.Contains(text, mask.Hidden[:7]) != (r.shows == masked && !whole):
					fault = "masks as its rule does not say"
				}
				if method == "GET" && w.Code != want || r.shows >= refused && !whole && w.Code != want {
					fault += " answers"
				}
				if fault != "" {
					t.Errorf("%s %s to %s, masked by %v: %d, want %d %.2000s", route, fault, caller, entry, w.Code, want, text)
				}
				if r.changes {
					s = newScene(t, who, false, entry)
					s.EndStreams()
				}
			}
		}
		for _, list := range []string{v1 + "/messages?q=", "/messages?wait=1&q="} {
			w := s.as(who.secret["viewer"], "GET", list+"&columns=queue,body.card,header.token,error,correlation_id", "", "")
			if w.Code != 200 || strings.Contains(w.Body.String(), marked) {
				t.Errorf("%s with columns, masked by %v: %d %s", list, entry, w.Code, w.Body)
			}
		}
		for _, query := range []string{"body.card:x*", "header.token:x*", "text:" + marked[7:12], "error:" + marked[7:12],
			"correlation_id:" + marked[:6] + "*", "why:" + marked[7:12]} {
			w := s.as(who.secret["viewer"], "GET", v1+"/count?q="+url.QueryEscape(query), "", "")
			if refused := strings.HasPrefix(query, "header.") && entry.Paths != nil; refused && w.Code != 403 ||
				w.Code != 403 && !strings.Contains(w.Body.String(), `"count":0`) {
				t.Errorf("%s, masked by %v: %d %s", query, entry, w.Code, w.Body)
			}
		}
	}
}

// firstTick ends the streams of an API once a tick is written.
type firstTick struct {
	*httptest.ResponseRecorder
	end func()
}

func (w firstTick) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("event: tick")) {
		w.end()
	}
	return w.ResponseRecorder.Write(b)
}

// Operations under way are in the live stream, with masked samples; TestNoRouteShowsWhatIsMasked ends it before a tick.
func TestTheLiveStreamMasks(t *testing.T) {
	who := newAccess(t)
	for _, caller := range []string{"viewer", "admin"} {
		s := newScene(t, who, false, mask.Entry{Patterns: []string{"/" + marked + "/"}})
		w := httptest.NewRecorder()
		ask(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { s.ServeHTTP(firstTick{w, s.EndStreams}, r) }),
			"GET", v1+"/live", "", header("Authorization", "Bearer "+who.secret[caller]))
		if text := w.Body.String(); strings.Contains(text, marked) || !strings.Contains(text, mask.Hidden) {
			t.Errorf("to %s: %d %s", caller, w.Code, text)
		}
	}
}

// Visitors may ask for what a viewer of a read-only service may, also with an admin's token.
func TestWhatVisitorsMayAskFor(t *testing.T) {
	who := newAccess(t)
	who.secret["viewer"] = who.secret["admin"]
	s := newScene(t, who, true)
	for route, r := range rules {
		t.Run(route, func(t *testing.T) {
			s.API = s.console.API(webui.Options{}, auth.Config{Visitors: true, Tokens: who.tokens})
			r.check(t, route, s, who, "viewer", true)
		})
	}
	s.API = s.console.API(webui.Options{}, auth.Config{Visitors: true})
	for range auth.VisitorBurst {
		expect.Equal(t, ask(s, "GET", v1+"/me", "").Code, 200, "of what is allowed")
	}
	w := ask(s, "GET", v1+"/me", "")
	if w.Code != 429 || code(t, w) != "too_many" || w.Header().Get("Retry-After") != "1" ||
		w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("of too many: %d %v %s", w.Code, w.Header(), w.Body)
	}
	s.API = s.console.API(webui.Options{}, auth.Config{Visitors: true})
	page := ask(s, "GET", "/?wait=1", "").Body.String()
	if !strings.Contains(page, ">visitor<") || strings.Contains(page, "/signout") {
		t.Errorf("the page offers visitors to sign out: %s", page)
	}
}

// check asks once, and reports whether that has changed anything.
func (r rule) check(t *testing.T, route string, s *scene, who *access, caller string, readOnly bool) (changed bool) {
	method, _, _ := strings.Cut(route, " ")
	target, body := r.ask(s)
	before, entries := s.state(t)+tokensOf(t, who), len(s.book.Entries())
	s.EndStreams() // a stream ends at once
	w := s.as(who.secret[caller], method, target, body, r.kind)
	want := r.answer(caller, readOnly)
	if w.Code != want {
		t.Fatalf("gives %d, want %d: %.500s", w.Code, want, w.Body)
	}
	changed = s.state(t)+tokensOf(t, who) != before
	done := w.Code < 300 || w.Code == 303 // what the page has done it tells on another page
	if changed && (!done || !r.changes) {
		t.Errorf("%d, and something has changed", w.Code)
	}
	if r.changes && done && !changed && caller != "elsewhere" {
		t.Errorf("%d, and nothing has changed", w.Code)
	}
	if done && r.audited && caller != "elsewhere" && len(s.book.Entries()) == entries {
		t.Error("the audit log does not know of it")
	}
	if (caller == "elsewhere" || caller == "nobody") && strings.Contains(w.Body.String(), secret) && !strings.Contains(target+body, secret) {
		t.Errorf("%s sees: %s", caller, w.Body)
	}
	if strings.HasPrefix(target, "/api/") {
		code(t, w) // what is refused is a problem
	}
	if strings.HasPrefix(target, "/api/") && w.Code != 204 && w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Error("a browser may guess what it is")
	}
	return changed
}

func tokensOf(t *testing.T, who *access) string {
	all, err := who.tokens.List(t.Context(), root)
	must(t, err)
	return fmt.Sprint(all)
}

// as asks with a token, or as no one.
func (s *scene) as(token, method, path, body, kind string) *httptest.ResponseRecorder {
	return ask(s, method, path, body, func(r *http.Request) {
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
	})
}

const typeForm = "application/x-www-form-urlencoded"

// form is a post of the page's.
func form(target func(*scene) string, fields func(*scene) url.Values) func(*scene) (string, string) {
	return func(s *scene) (string, string) { return target(s), fields(s).Encode() }
}

func at(path string) func(*scene) string { return func(*scene) string { return path } }

func with(pairs ...string) func(*scene) url.Values {
	return func(*scene) url.Values {
		v := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			v.Set(pairs[i], pairs[i+1])
		}
		return v
	}
}

func init() { maps.Copy(rules, pageRules) }

// pageRules are those of the page. Who is not signed in is sent to where they can,
// or refused by the guard before; where an action is not allowed the page says so.
var pageRules = map[string]rule{
	"GET /signin":                  {shows: nothing, ask: path("/signin"), ok: 200},
	"GET " + auth.OIDCPath:         {shows: nothing, ask: path(auth.OIDCPath + "?code=x&state=x"), ok: 303},
	"GET " + auth.OIDCStartPath:    {shows: nothing, ask: path(auth.OIDCStartPath), ok: 303},
	"GET /assets/{version}/{name}": {shows: nothing, ask: path("/assets/0/none.js"), ok: 404},
	"GET /{$}":                     {shows: masked, ask: path("/"), least: auth.Viewer, ok: 200},
	"GET /docs":                    {shows: nothing, ask: path("/docs"), least: auth.Viewer, ok: 200},
	"GET /docs/{page...}":          {shows: nothing, ask: path("/docs/"), least: auth.Viewer, ok: 200},
	"GET /docs/images/{name}":      {shows: nothing, ask: path("/docs/images/adopt-plan.png"), least: auth.Viewer, ok: 200},
	"GET /":                        {shows: nothing, ask: path("/nothing"), least: auth.Viewer, ok: 404},
	"GET /messages":                {shows: masked, ask: path("/messages?wait=1&q=state:parked"), least: auth.Viewer, ok: 200},
	"GET /messages/new":            {shows: nothing, ask: path("/messages/new?wait=1"), least: auth.Viewer, ok: 200},
	"GET /messages/count":          {shows: nothing, ask: path("/messages/count?wait=1"), least: auth.Viewer, ok: 200},
	"GET /messages/check":          {shows: nothing, ask: path("/messages/check?q=state:parked"), least: auth.Viewer, ok: 200},
	"GET /messages/export":         {shows: refused, ask: path("/messages/export"), least: auth.Viewer, ok: 200, audited: true},
	"GET /messages/{id}":           {shows: masked, ask: onPage("/messages/", store.Parked, "?wait=1"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"POST /messages/{id}": {shows: onRequest, ask: form(func(s *scene) string { return "/messages/" + s.ids[store.Parked] }, with("reason", "ticket 7")), kind: typeForm,
		least: auth.Viewer, audited: true, ok: 200, elsewhere: 404},
	"GET /messages/{id}/edit": {shows: masked, ask: onPage("/messages/", store.Parked, "/edit?wait=1"), least: auth.Editor, offers: true, ok: 200, elsewhere: 404, looks: true},
	"GET /messages/{id}/body": {shows: refused, ask: onPage("/messages/", store.Parked, "/body"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /groups":             {shows: masked, ask: path("/groups?wait=1"), least: auth.Viewer, ok: 200},
	"GET /groups/{id}":        {shows: masked, ask: func(s *scene) (string, string) { return "/groups/" + s.group + "?wait=1", "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /queues":             {shows: nothing, ask: path("/queues?wait=1"), least: auth.Viewer, ok: 200},
	"GET /queues/{queue}":     {shows: masked, ask: path("/queues/" + orders + "?wait=1"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /operations":         {shows: maskedForAll, ask: path("/operations?wait=1"), least: auth.Viewer, ok: 200},
	"GET /operations/{id}":    {shows: maskedForAll, ask: func(s *scene) (string, string) { return "/operations/" + s.op + "?wait=1", "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /plans/{id}":         {shows: maskedForAll, ask: func(s *scene) (string, string) { return "/plans/" + s.plan + "?wait=1", "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /policies":           {shows: nothing, ask: path("/policies?wait=1"), least: auth.Viewer, ok: 200},
	"GET /audit":              {shows: nothing, ask: path("/audit?wait=1"), least: auth.Admin, ok: 200, elsewhere: 403},
	"GET /health":             {shows: nothing, ask: path("/health?wait=1"), least: auth.Viewer, ok: 200},
	"GET /help":               {shows: nothing, ask: path("/help"), least: auth.Viewer, ok: 200},
	"POST /messages/act": {shows: masked, ask: form(at("/messages/act"), func(s *scene) url.Values {
		return url.Values{"verb": {"replay"}, "id": {s.ids[store.Parked]}, "confirmed": {"1"}}
	}), tries: form(at("/messages/act"), func(s *scene) url.Values { return url.Values{"verb": {"replay"}, "id": {s.ids[store.Parked]}} }), kind: typeForm, least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 200},
	"POST /messages/plan": {shows: nothing, ask: form(at("/messages/plan"), with("verb", "discard", "q", "queue:"+orders)), kind: typeForm,
		least: auth.Operator, changes: true, ok: 303},
	"POST /messages/{id}/edit": {shows: nothing, ask: form(func(s *scene) string { return "/messages/" + s.ids[store.Parked] + "/edit" }, with("content", `{"card":2}`, "send", "1")), kind: typeForm,
		least: auth.Editor, changes: true, audited: true, ok: 303, elsewhere: 404, looks: true},
	"POST /groups/{id}/note": {shows: nothing, ask: form(func(s *scene) string { return "/groups/" + s.group + "/note" }, with("note", "known")), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
	"POST /groups/{id}/state": {shows: nothing, ask: form(func(s *scene) string { return "/groups/" + s.group + "/state" }, with("state", "acknowledged")), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
	"POST /queues/pause": {shows: nothing, ask: form(at("/queues/pause"), with("queue", orders)), kind: typeForm, least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 403},
	"POST /follow": {shows: nothing, ask: form(at("/follow"), with("from", orders)), kind: typeForm,
		least: auth.Admin, changes: true, audited: true, ok: 303, elsewhere: 403},
	"POST /queues/breaker": {shows: nothing, ask: form(at("/queues/breaker"), with("queue", orders, "to", "open")), kind: typeForm, least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 403},
	"POST /queues/resume":  {shows: nothing, ask: form(at("/queues/resume"), with("queue", orders)), kind: typeForm, least: auth.Operator, changes: true, ok: 409, elsewhere: 403},
	"POST /plans/{id}/start": {shows: nothing, ask: form(func(s *scene) string { return "/plans/" + s.plan + "/start" }, with("expect_count", "2")), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
	"POST /operations/{id}/{order}": {shows: nothing, ask: form(func(s *scene) string { return "/operations/" + s.op + "/pause" }, with()), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
}

func onPage(before string, state store.State, after string) func(*scene) (string, string) {
	return func(s *scene) (string, string) { return before + s.ids[state] + after, "" }
}

// asked counts what is asked of a store about all queues, or about each of many.
type asked struct {
	*memstore.Store
	counts, due int
}

func (a *asked) Counts(ctx context.Context) ([]store.QueueCount, error) {
	a.counts++
	time.Sleep(time.Second) // of the bubble's time, in which nothing else takes any
	return a.Store.Counts(ctx)
}

func (a *asked) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	a.due += len(queues)
	return a.Store.CountDue(ctx, queues, edges, most)
}

// However many queues there are, a look shows a page of them, with sums of all, and the
// store counts them once for several looks.
func TestLooksArePaged(t *testing.T) { synctest.Test(t, testLooksArePaged) }

func testLooksArePaged(t *testing.T) {
	const queues, most = 5000, 256 << 10
	s := &asked{Store: memstore.New()}
	fillQueues(t, s.Store, queues, store.Waiting)
	service := looking(t, s)
	for _, path := range looks {
		body := lookAt(t, service, path)
		if path != "/metrics" && len(body) > most {
			t.Errorf("%s: %d bytes", path, len(body))
		}
		if rows := strings.Count(body, "<tr"); rows > 101+61 { // the overview's chart has 61
			t.Errorf("%s: %d rows", path, rows)
		}
	}
	// Searches and scrapes count for themselves, each look besides shares one count.
	if want := 1 + 3; s.counts > want {
		t.Errorf("the store counted all queues %d times for %d looks, want %d", s.counts, len(looks), want)
	}
	if s.due > 500 {
		t.Errorf("what is due was counted of %d queues", s.due)
	}
	var o inspect.Overview
	decodeInto(t, lookAt(t, service, "/api/v1/overview"), &o)
	due := o.Overdue.Count
	for _, slot := range o.Calendar {
		due += slot.Count
	}
	if len(o.Queues) != 100 || o.MoreQueues != queues-100 || o.Waiting != queues || due != queues {
		t.Errorf("the overview shows %d queues and %d more, %d waiting, %d due", len(o.Queues), o.MoreQueues, o.Waiting, due)
	}
	var g inspect.GroupPage
	decodeInto(t, lookAt(t, service, "/api/v1/groups"), &g)
	if len(g.Groups) != 100 || g.After == "" {
		t.Errorf("%d groups of %d, and then %q", len(g.Groups), g.Total, g.After)
	}
	var l inspect.Ledger
	decodeInto(t, lookAt(t, service, "/api/v1/ledger"), &l)
	if len(l.Queues) != 100 || l.After == "" || l.Total.In != queues || l.Total.Waiting != queues {
		t.Errorf("%d lines of the ledger, and then %q; in all %+v", len(l.Queues), l.After, l.Total)
	}
}

// Each group and each line of the ledger is on one page. (Queues: see package inspect.)
func TestPagesHaveEachOnce(t *testing.T) {
	const queues = 250
	s := memstore.New()
	fillQueues(t, s, queues, store.Parked)
	service := looking(t, s)
	for _, path := range []string{"/api/v1/groups", "/api/v1/ledger"} {
		seen, after, pages := map[string]int{}, "", 0
		for first := true; first || after != ""; first = false {
			var p struct {
				After          string
				Total          json.RawMessage
				Groups, Queues []struct{ Queue string }
			}
			decodeInto(t, lookAt(t, service, path+"?limit=100&after="+after), &p)
			if p.Groups != nil && string(p.Total) != fmt.Sprint(queues) {
				t.Errorf("%s groups in all", p.Total)
			}
			for _, row := range append(p.Groups, p.Queues...) {
				if seen[row.Queue]++; seen[row.Queue] > 1 {
					t.Errorf("%s has %s %d times", path, row.Queue, seen[row.Queue])
				}
			}
			after = p.After
			pages++
		}
		if len(seen) != queues || pages != 3 {
			t.Errorf("%s has %d on %d pages", path, len(seen), pages)
		}
	}
	var p inspect.GroupPage
	decodeInto(t, lookAt(t, service, "/api/v1/groups?by=error"), &p)
	if p.Total != 1 || p.After != "" || len(p.Groups[0].Same) != queues-1 || p.Groups[0].Partial {
		t.Errorf("by error there are %d, and then %q: %+v", p.Total, p.After, p.Groups)
	}
}

// A queue with blocked retries is in the overview, however many others there are.
func TestTheOverviewShowsStoppedQueuesFirst(t *testing.T) {
	const queues = 3000
	s := memstore.New()
	fillQueues(t, s, queues, store.Parked)
	last := "tenant.002999.orders"
	c := webtest.New(s, &webtest.Told{Returns: map[string]string{last: "it does not exist"}}, inspect.Config{})
	o, err := c.Overview(t.Context(), auth.Caller{Name: "ann", Role: auth.Viewer})
	if err != nil || len(o.Queues) != 100 || o.Queues[99].Name != last || o.Queues[99].Unreachable == "" {
		t.Errorf("the overview shows %d queues: %v", len(o.Queues), err)
	}
}

func decodeInto(t *testing.T, body string, v any) {
	t.Helper()
	must(t, json.Unmarshal([]byte(body), v))
}

// looks are what people, Prometheus and health checks ask for.
var looks = []string{"/api/v1/overview", "/api/v1/queues", "/api/v1/groups", "/api/v1/ledger", "/api/v1/messages", "/metrics", "/readyz", "/", "/queues", "/groups", "/health", "/messages"}

// fillQueues keeps a message for each of n queues.
func fillQueues(t *testing.T, s store.Store, n int, state store.State) {
	t.Helper()
	for at := 0; at < n; at += 1000 {
		var all []*store.Record
		for i := at; i < min(n, at+1000); i++ {
			now := time.Now()
			r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: fmt.Sprintf("tenant.%06d.orders", i), State: state, Due: now.Add(time.Hour), Failures: 1, Reason: "rejected",
				Error: "timeout", FirstFailed: now, FailedAt: now, Policy: "default"}
			r.Message.Body = []byte(`{"n":1}`)
			all = append(all, r)
		}
		must(t, s.Add(context.Background(), all))
	}
}

// looking is page, API and metrics over a store.
func looking(t *testing.T, s store.Store) http.Handler {
	m := metrics.New(s, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	mux := http.NewServeMux()
	mux.Handle("/", webtest.New(s, nil, inspect.Config{}).API(webui.Options{}, auth.Config{}))
	mux.Handle("/metrics", m.Handler())
	return mux
}

func lookAt(t *testing.T, service http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://localhost"+path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	service.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", path, w.Code, strings.TrimSpace(w.Body.String()))
	}
	return w.Body.String()
}
