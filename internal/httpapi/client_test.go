package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// visit serves a scene and gives a client of it with a token.
func visit(t *testing.T, s *scene, token string) httpapi.Client {
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		s.EndStreams()
		server.Close()
	})
	return httpapi.Client{Addr: strings.TrimPrefix(server.URL, "http://"), Token: token, HTTP: server.Client()}
}

// Everything that a person can do, by the client, over a service.
func TestTheClientDoesAllOfIt(t *testing.T) {
	who := newAccess(t)
	s := newScene(t, who, false)
	c, ctx := visit(t, s, who.secret["admin"]), soon(t)
	check := func(what string, ok bool, err error, got any) {
		t.Helper()
		if err != nil || !ok {
			t.Errorf("%s: %v, %+v", what, err, got)
		}
	}
	me, err := c.Me(ctx)
	check("me", me.Name == "admin" && me.How == "token" && me.Role == "admin", err, me)
	o, err := c.Overview(ctx)
	check("overview", o.Waiting == 2 && o.Parked == 2 && o.Discarded == 2, err, o)
	n, err := c.Count(ctx, "queue:"+orders)
	check("count", n == httpapi.Count{Count: 3, Exact: true}, err, n)
	m, err := c.Message(ctx, s.ids[store.Parked])
	check("message", m.Queue == orders && m.Body != nil && m.Body.Format == "json", err, m)
	m, err = c.Show(ctx, s.ids[store.Parked], "ticket 7")
	check("show", m.Queue == orders && m.Body.Format == "json", err, m)
	body, err := c.Body(ctx, s.ids[store.Parked])
	must(t, err)
	data, err := io.ReadAll(body)
	_ = body.Close()
	check("body", string(data) == `{"card":"`+secret+`"}`, err, data)
	g, err := c.Groups(ctx, "queue:"+orders, "")
	check("groups", len(g.Groups) == 1, err, g)
	check("note", true, c.NoteGroup(ctx, g.Groups[0].ID, "known é"), nil)
	g, err = c.Groups(ctx, "queue:"+orders, "")
	check("groups", g.Groups[0].Note == "known é", err, g)
	check("a group's state", true, c.SetGroupState(ctx, g.Groups[0].ID, inspect.Resolved, "ticket é"), nil)
	g, err = c.Groups(ctx, "queue:"+orders, "")
	check("groups to see to", len(g.Groups) == 0, err, g)
	g, err = c.Groups(ctx, "queue:"+orders, inspect.Resolved)
	check("groups that are resolved", len(g.Groups) == 1 && g.Groups[0].StateNote == "ticket é", err, g)
	g, err = c.FirstGroups(ctx, "", inspect.AllStates, "error", 1)
	check("the first groups", len(g.Groups) == 1 && g.Total == 2, err, g)
	g, err = c.Groups(ctx, "queue:"+orders, inspect.AllStates)
	check("groups in any state", len(g.Groups) == 1, err, g)
	oneGroup, err := c.Group(ctx, g.Groups[0].ID)
	check("a group", oneGroup.Note == "known é" && oneGroup.Newest != nil, err, oneGroup)
	check("pause", true, c.PauseQueue(ctx, orders, "down"), nil)
	one, err := c.Queue(ctx, orders)
	check("a queue", one.Name == orders && one.Pause != nil, err, one)
	q, err := c.Queues(ctx)
	i := slices.IndexFunc(q.Queues, func(q inspect.Queue) bool { return q.Name == orders })
	check("queues", i >= 0 && q.Queues[i].Pause != nil && q.Queues[i].Pause.By == "admin" && q.Queues[i].Pause.Reason == "down", err, q)
	l, err := c.Ledger(ctx, true)
	i = slices.IndexFunc(l.Queues, func(l inspect.LedgerLine) bool { return l.Queue == orders })
	check("ledger", i >= 0 && l.Queues[i].In > 0 && l.Queues[i].Off == 0 && l.Recounted != nil, err, l)
	check("resume", true, c.ResumeQueue(ctx, orders, "up"), nil)
	check("breaker", true, c.Breaker(ctx, orders, "open", "down"), nil)
	check("breaker", true, c.Breaker(ctx, orders, "auto", "up"), nil)
	p, err := c.Policies(ctx)
	check("policies", len(p.Policies) == 4 && len(p.Policies[0].Waits) == 4, err, p)

	var out bytes.Buffer
	exported, err := c.Export(ctx, "", "jsonl", &out)
	check("export", exported == 6 && bytes.Count(out.Bytes(), []byte("\n")) == 6, err, exported)
	done, err := c.Import(ctx, bytes.NewReader(out.Bytes()), actions.ImportOptions{DryRun: true, EvenIfKept: true})
	check("import, dry", done.Count == 6, err, done)
	done, err = c.Import(ctx, &out, actions.ImportOptions{EvenIfKept: true})
	check("import", done.Count == 6 && done.Queues[orders] == 3, err, done)
	exported, err = c.Export(ctx, "state:waiting", "csv", &out)
	check("export as csv", exported == 2, err, out.String())

	edited, err := c.Edit(ctx, actions.EditRequest{ID: s.ids[store.Parked], Document: ptr(`{"card":"none"}`), DryRun: true})
	check("edit", edited.New == "" && len(edited.Fields) == 1, err, edited)
	acted, err := c.Act(ctx, actions.Act{Verb: actions.Discard, IDs: []string{s.ids[store.Parked], "nothing"}, Reason: "test"})
	check("act", acted.Done == 1 && len(acted.Outcomes) == 2 && acted.Outcomes[1].Outcome == "skipped", err, acted)
	plan, err := c.Plan(ctx, operations.PlanRequest{Verb: actions.Restore, Query: "state:discarded"})
	check("plan", plan.Count == 3, err, plan)
	again, err := c.GetPlan(ctx, plan.ID)
	check("plan again", again.Count == 3, err, again)
	expect.Err(t, errOf(c.Start(ctx, plan.ID, operations.Start{ExpectCount: ptr(int64(4))})), inspect.ErrPrecondition,
		"another count is expected")
	op, err := c.Start(ctx, plan.ID, operations.Start{ExpectCount: ptr(int64(3)), Rate: 7})
	check("start", op.State == "running" && op.Rate == 7, err, op)
	op, err = c.Order(ctx, plan.ID, operations.Pause)
	check("pause", op.State == "paused", err, op)
	ops, err := c.Operations(ctx)
	check("operations", len(ops.Operations) == 2, err, ops)
	op, err = c.Operation(ctx, plan.ID)
	check("operation", op.State == "paused", err, op)
	outcomes, err := c.Outcomes(ctx, plan.ID, "", 10)
	check("outcomes", len(outcomes.Outcomes) == 0, err, outcomes)
	log, err := c.Audit(ctx, inspect.AuditFilter{}, "", 2)
	check("audit", len(log.Entries) == 2 && log.After != "" && log.Entries[0].Did == "operation.pause" && log.Entries[0].Who == "admin" && log.Entries[0].Interface == "cli", err, log)
	older, err := c.Audit(ctx, inspect.AuditFilter{}, log.After, 2)
	check("older audit", len(older.Entries) == 2 && older.Entries[0].N < log.Entries[1].N, err, older)
	must(t, c.Report(ctx, actions.Report{Action: actions.Move, Queues: []string{"billing", "billing.v2"}}))
	for what, f := range map[string]inspect.AuditFilter{"who": {Who: "admin", Did: "reported.*"}, "did": {Did: "reported.move"}, "from": {On: "billing"}, "to": {On: "billing.v2"}} {
		log, err := c.Audit(ctx, f, "", 9)
		check("a report by "+what, len(log.Entries) == 1 && log.Entries[0].On == "billing to billing.v2", err, log)
	}
	r, err := c.Decode(ctx, httpapi.DecodeRequest{Body: []byte("aGVsbG8gd29ybGQhIGhlbGxvIQ==")})
	check("decode", r.Text == "hello world! hello!", err, r)

	expires := time.Now().Add(time.Hour)
	made, err := c.CreateToken(ctx, httpapi.NewToken{Name: "ci", Role: "viewer", Queues: []string{"mail"}, Expires: &expires})
	check("token", strings.HasPrefix(made.Secret, "redrive_") && made.By == "admin" && made.Expires.Sub(expires).Abs() < time.Minute, err, made.Name)
	ci := c
	ci.Token = made.Secret
	if me, err := ci.Me(ctx); err != nil || !slices.Equal(me.Queues, []string{"mail"}) {
		t.Errorf("the token is %+v, %v", me, err)
	}
	tokens, err := c.Tokens(ctx)
	check("tokens", len(tokens.Tokens) == 7, err, tokens)
	check("revoke", true, c.RevokeToken(ctx, "ci"), nil)
	expect.Err(t, errOf(ci.Me(ctx)), auth.ErrSignIn, "the token is revoked")
}

func ptr[T any](v T) *T { return &v }

// What the service refuses is the error that it stands for, in the client too.
func TestRefusalsInTheClient(t *testing.T) {
	who := newAccess(t)
	s := newScene(t, who, false)
	viewer, admin, ctx := visit(t, s, who.secret["viewer"]), visit(t, s, who.secret["admin"]), soon(t)
	nobody, wrong := viewer, viewer
	nobody.Token, wrong.Token = "", "redrive_wrong"
	readOnly := visit(t, newScene(t, who, true), who.secret["admin"])
	act := actions.Act{Verb: actions.Replay, IDs: []string{s.ids[store.Parked]}}
	for what, c := range map[string]struct{ err, want error }{
		"nobody":                {errOf(nobody.Overview(ctx)), auth.ErrSignIn},
		"a wrong token":         {errOf(wrong.Overview(ctx)), auth.ErrSignIn},
		"a viewer acts":         {errOf(viewer.Act(ctx, act)), auth.ErrForbidden},
		"read-only":             {errOf(readOnly.Act(ctx, act)), auth.ErrReadOnly},
		"no such message":       {errOf(admin.Message(ctx, "0198f0a0-0000-7000-8000-000000000001")), inspect.ErrNotFound},
		"shown for no reason":   {errOf(admin.Show(ctx, s.ids[store.Parked], "")), inspect.ErrInvalid},
		"its body":              {errOf(admin.Body(ctx, "nothing")), inspect.ErrNotFound},
		"no such plan":          {errOf(admin.GetPlan(ctx, "../..")), inspect.ErrNotFound},
		"a plan of everything":  {errOf(admin.Plan(ctx, operations.PlanRequest{Verb: actions.Discard})), inspect.ErrInvalid},
		"not paused":            {admin.ResumeQueue(ctx, "mail", ""), inspect.ErrPrecondition},
		"a token twice":         {errOf(admin.CreateToken(ctx, httpapi.NewToken{Name: "victim", Role: "viewer"})), auth.ErrTaken},
		"a token with no role":  {errOf(admin.CreateToken(ctx, httpapi.NewToken{Name: "x", Role: "king"})), inspect.ErrInvalid},
		"no such token":         {admin.RevokeToken(ctx, "x"), auth.ErrNoToken},
		"an import of nonsense": {errOf(admin.Import(ctx, strings.NewReader("nonsense\n"), actions.ImportOptions{})), inspect.ErrInvalid},
		"a cursor":              {errOf(admin.Messages(ctx, "", "nonsense", 10)), inspect.ErrInvalid},
		"a cursor of outcomes":  {errOf(admin.Outcomes(ctx, s.op, "nonsense", 10)), inspect.ErrInvalid},
		"a forged report":       {admin.Report(ctx, actions.Report{Action: "replay", Queues: []string{"orders"}}), inspect.ErrInvalid},
		"a cursor of the log":   {errOf(admin.Audit(ctx, inspect.AuditFilter{}, "nonsense", 10)), inspect.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", what, c.err, c.want)
		}
		if errors.Is(c.err, httpapi.ErrUnreachable) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	for what, err := range map[string]error{
		"messages": errOf(admin.Messages(ctx, "état:x", "", 0)), "count": errOf(admin.Count(ctx, "é staat:parked")),
		"groups": errOf(admin.Groups(ctx, "é staat:parked", "")), "export": errOf(admin.Export(ctx, "é staat:parked", "jsonl", io.Discard)),
		"export as csv": errOf(admin.Export(ctx, "é staat:parked", "csv", io.Discard)),
		"plan":          errOf(admin.Plan(ctx, operations.PlanRequest{Verb: actions.Discard, Query: "é staat:parked"})),
	} {
		var p *httpapi.Problem
		at := 2
		if what == "messages" {
			at = 0
		}
		if !errors.As(err, &p) || !errors.Is(err, httpapi.ErrQuery) || p.Status != 422 || p.At == nil || *p.At != at {
			t.Errorf("%s: %v (%+v)", what, err, p)
		}
	}
}

// The remedy of an error is a field of its own, in the answer and in the client's error.
func TestAProblemHasTheHint(t *testing.T) {
	refused := fmt.Errorf("replay: %w", hint.Errorf("give it more maxmemory", "%w: Redis has 1 of 64 MiB free", store.ErrFull))
	c, _ := serve(t, config(&scripted{act: func(context.Context, actions.Act) (actions.Acted, error) { return actions.Acted{}, refused }}))
	_, err := c.Act(soon(t), actions.Act{Verb: actions.Replay, IDs: []string{"x"}})
	var p *httpapi.Problem
	if !errors.As(err, &p) || p.Code != "full" || p.Detail != "replay: "+store.ErrFull.Error()+": Redis has 1 of 64 MiB free" ||
		p.Hint != "give it more maxmemory" || hint.Of(p) != p.Hint || hint.Text(p) != p.Detail || p.Error() != refused.Error() {
		t.Errorf("%+v", err)
	}
}

func TestTheClientSaysWhenNoServiceAnswers(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	c := httpapi.Client{Addr: strings.TrimPrefix(s.URL, "http://")}
	for what, err := range map[string]error{
		"overview": func() error { _, err := c.Overview(t.Context()); return err }(),
		"import": func() error {
			return errOf(c.Import(t.Context(), strings.NewReader("{}"), actions.ImportOptions{}))
		}(),
		"live": c.Live(t.Context(), nil),
	} {
		if !errors.Is(err, httpapi.ErrUnreachable) || !strings.Contains(err.Error(), "redrive serve") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A proxy that decodes %2F leads from one queue to another: the service says so, and pauses neither.
func TestAProxyThatDecodesSlashesLeadsNowhere(t *testing.T) {
	who := newAccess(t)
	c := visit(t, newScene(t, who, false), who.secret["admin"])
	to, err := url.Parse("http://" + strings.TrimPrefix(c.Addr, "http://"))
	must(t, err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.URL.Path, r.Out.URL.RawPath = strings.ReplaceAll(r.In.URL.Path, "//", "/"), ""
	}})
	defer proxy.Close()
	through := c
	through.Addr = proxy.URL
	for _, queue := range []string{"/" + orders, orders + "/x"} {
		if err := through.PauseQueue(t.Context(), queue, "test"); err == nil || !strings.Contains(err.Error(), "proxy") {
			t.Errorf("%q was paused: %v", queue, err)
		}
	}
	all, err := c.Queues(t.Context())
	must(t, err)
	for _, q := range all.Queues {
		if q.Pause != nil {
			t.Errorf("queue %q is paused", q.Name)
		}
	}
	expect.Err(t, c.PauseQueue(t.Context(), "/"+orders, "test"), nil, "without the proxy")
}

// A client that was pointed at some other web server must not take its answer for an
// empty one, nor follow it elsewhere with a token.
func TestTheClientRefusesAnotherServersAnswer(t *testing.T) {
	for what, h := range map[string]http.HandlerFunc{
		"a page":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"not found":  http.NotFound,
		"nothing":    func(http.ResponseWriter, *http.Request) {},
		"an array":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") },
	} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++; h(w, r) }))
		c := httpapi.Client{Addr: strings.TrimPrefix(s.URL, "http://"), Token: "t"}
		_, err := c.Overview(t.Context())
		_, exported := c.Export(t.Context(), "", "jsonl", io.Discard)
		if err == nil || exported == nil || asked != 2 {
			t.Errorf("%s: %v, %v, asked %d times", what, err, exported, asked)
		}
		s.Close()
	}
}

// A token goes over no network in the clear unless somebody says that it may.
func TestATokenIsNotSentInTheClear(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:8250": true, "localhost:8250": true, "[::1]:8250": true, "http://127.0.0.1:8250": true,
		"redrive.invalid:8250": false, "http://redrive.invalid:8250": false, "10.255.255.1:8250": false, "127.0.0.1.invalid:1": false,
		"ftp://127.0.0.1": false, "": false, "://": false,
	} {
		c := httpapi.Client{Addr: addr, Token: "t", HTTP: &http.Client{Transport: refusing{}}}
		_, err := c.Me(t.Context())
		expect.Equal(t, errors.Is(err, httpapi.ErrUnreachable), want, "%q: sent is …: %v", addr, err)
	}
	c := httpapi.Client{Addr: "redrive.invalid:8250", Token: "t", Insecure: true, HTTP: &http.Client{Transport: refusing{}}}
	expect.Err(t, errOf(c.Me(t.Context())), httpapi.ErrUnreachable, "where it may")
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }

func TestAClientOfTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte("redrive_x\n"), 0o600))
	env := map[string]string{"REDRIVE_TOKEN_FILE": file, "REDRIVE_USER": "ann", "REDRIVE_PASSWORD": "pw"}
	c, err := httpapi.NewClient("https://x:1", func(k string) string { return env[k] })
	if err != nil || c.Token != "redrive_x" || c.User != "ann" || c.Password != "pw" || c.Insecure {
		t.Errorf("%+v, %v", c, err)
	}
	for name, file := range map[string]string{"REDRIVE_TOKEN_FILE": "/nowhere", "REDRIVE_CA_FILE": file} {
		_, err := httpapi.NewClient("x:1", func(k string) string { return map[string]string{name: file}[k] })
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(fmt.Sprint(err), "redrive_x") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var update = flag.Bool("update", false, "write docs/reference/openapi.json again")

const document = "../../docs/reference/openapi.json"

// What is documented is what is served.
func TestTheDocumentInDocsIsTheOneServed(t *testing.T) {
	w := ask(httpapi.New(config(&scripted{})), "GET", "/api/v1/openapi.json", "", as(auth.Caller{}))
	if w.Code != 200 || !strings.Contains(w.Header().Get("Content-Type"), "json") {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	served := append(w.Body.Bytes(), '\n')
	if *update {
		must(t, os.WriteFile(document, served, 0o644))
	}
	kept, err := os.ReadFile(document)
	must(t, err)
	if string(kept) != string(served) {
		t.Errorf("docs/reference/openapi.json is not what is served: go test ./internal/httpapi -run %s -update", t.Name())
	}
}

// Every route of the API is in the document, each reference leads somewhere, and no
// operation is without words.
func TestTheDocumentIsWhole(t *testing.T) {
	a := httpapi.New(config(&scripted{}))
	w := ask(a, "GET", "/api/v1/openapi.json", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID, Summary string
			Responses            map[string]struct{ Content map[string]any }
		}
		Components struct{ Schemas, SecuritySchemes map[string]any }
		Security   []map[string]any
	}
	must(t, json.Unmarshal(w.Body.Bytes(), &doc))
	if !strings.HasPrefix(doc.OpenAPI, "3.1") || len(doc.Security) != 3 || len(doc.Components.SecuritySchemes) != 3 {
		t.Errorf("version %q, security %v", doc.OpenAPI, doc.Security)
	}
	var ids []string
	documented := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			documented[strings.ToUpper(method)+" "+path] = true
			if op.Summary == "" || op.OperationID == "" || slices.Contains(ids, op.OperationID) {
				t.Errorf("%s %s: summary %q, id %q", method, path, op.Summary, op.OperationID)
			}
			ids = append(ids, op.OperationID)
			if op.Responses["default"].Content["application/problem+json"] == nil {
				t.Errorf("%s %s does not say how errors look", method, path)
			}
		}
	}
	plain := []string{"GET /healthz", "GET /readyz", "GET /metrics", "GET /api/v1/openapi.json", "POST " + auth.SignInPath, "POST " + auth.SignOutPath, "POST " + auth.OIDCDevicePath}
	for _, route := range a.Routes() {
		if !documented[route] && !slices.Contains(plain, route) {
			t.Errorf("%s is not in the document", route)
		}
	}
	for _, ref := range regexp.MustCompile(`#/components/schemas/(\w+)`).FindAllStringSubmatch(w.Body.String(), -1) {
		if doc.Components.Schemas[ref[1]] == nil {
			t.Errorf("%s leads nowhere", ref[0])
		}
	}
}
