package httpapi_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// rule is who can ask for a route, and what for.
type rule struct {
	// ask makes the request: its path, and its body if it has one.
	ask func(s *scene) (path, body string)
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
	"GET /healthz":                   {ask: path("/healthz"), ok: 200},
	"GET /readyz":                    {ask: path("/readyz"), ok: 503},
	"GET /metrics":                   {ask: path("/metrics"), least: auth.Viewer, ok: 200, elsewhere: 403},
	"GET /api/v1/openapi.json":       {ask: path(v1 + "/openapi.json"), ok: 200},
	"POST " + auth.SignInPath:        {ask: func(*scene) (string, string) { return auth.SignInPath, `{"token":"redrive_wrong"}` }, ok: 401},
	"POST " + auth.SignOutPath:       {ask: path(auth.SignOutPath), ok: 303},
	"GET /api/v1/me":                 {ask: path(v1 + "/me"), least: auth.Viewer, ok: 200},
	"GET /api/v1/overview":           {ask: path(v1 + "/overview"), least: auth.Viewer, ok: 200},
	"GET /api/v1/messages":           {ask: path(v1 + "/messages?q=state:parked"), least: auth.Viewer, ok: 200},
	"GET /api/v1/count":              {ask: path(v1 + "/count"), least: auth.Viewer, ok: 200},
	"GET /api/v1/groups":             {ask: path(v1 + "/groups"), least: auth.Viewer, ok: 200},
	"GET /api/v1/queues":             {ask: path(v1 + "/queues"), least: auth.Viewer, ok: 200},
	"GET /api/v1/ledger":             {ask: path(v1 + "/ledger?recount=true"), least: auth.Viewer, ok: 200},
	"GET /api/v1/policies":           {ask: path(v1 + "/policies"), least: auth.Viewer, ok: 200},
	"GET /api/v1/operations":         {ask: path(v1 + "/operations"), least: auth.Viewer, ok: 200},
	"GET /api/v1/live":               {ask: path(v1 + "/live"), least: auth.Viewer, ok: 200},
	"GET /api/v1/export":             {ask: path(v1 + "/export"), least: auth.Viewer, ok: 200, audited: true},
	"GET /api/v1/audit":              {ask: path(v1 + "/audit"), least: auth.Admin, ok: 200, elsewhere: 403},
	"GET /api/v1/tokens":             {ask: path(v1 + "/tokens"), least: auth.Admin, ok: 200},
	"GET /api/v1/messages/{id}":      {ask: aMessage(""), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/plans/{id}":         {ask: func(s *scene) (string, string) { return v1 + "/plans/" + s.plan, "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/operations/{id}":    {ask: func(s *scene) (string, string) { return v1 + "/operations/" + s.op, "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/messages/{id}/body": {ask: aMessage("/body"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /api/v1/operations/{id}/outcomes": {ask: func(s *scene) (string, string) { return v1 + "/operations/" + s.op + "/outcomes", "" },
		least: auth.Viewer, ok: 200, elsewhere: 404},
	"POST /api/v1/decode": {ask: func(*scene) (string, string) {
		return v1 + "/decode", `{"body":"eyJuIjoxfQ==","queue":"` + orders + `"}`
	}, least: auth.Viewer, ok: 200, elsewhere: 404},

	"POST /api/v1/act": {ask: func(s *scene) (string, string) {
		return v1 + "/act", `{"verb":"replay","ids":["` + s.ids[store.Parked] + `"]}`
	}, least: auth.Operator, changes: true, audited: true, ok: 200},
	"PUT /api/v1/groups/{id}/note": {ask: func(s *scene) (string, string) { return v1 + "/groups/" + s.group + "/note", `{"note":"known"}` },
		least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 404},
	"PUT /api/v1/queues/{queue}/pause": {ask: func(*scene) (string, string) { return v1 + "/queues/" + orders + "/pause", `{"reason":"down"}` },
		least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 403},
	"DELETE /api/v1/queues/{queue}/pause": {ask: func(s *scene) (string, string) { return v1 + "/queues/" + orders + "/pause?reason=up", "" },
		least: auth.Operator, changes: true, ok: 412, elsewhere: 403},
	"PUT /api/v1/queues/{queue}/breaker": {ask: func(*scene) (string, string) {
		return v1 + "/queues/" + orders + "/breaker", `{"force":"open","reason":"down"}`
	}, least: auth.Operator, changes: true, audited: true, ok: 204, elsewhere: 403},
	"POST /api/v1/plans": {ask: func(*scene) (string, string) {
		return v1 + "/plans", `{"verb":"discard","query":"queue:` + orders + `"}`
	},
		least: auth.Operator, changes: true, ok: 200},
	"POST /api/v1/plans/{id}/start": {ask: func(s *scene) (string, string) { return v1 + "/plans/" + s.plan + "/start", `{}` },
		least: auth.Operator, changes: true, audited: true, ok: 200, elsewhere: 404},
	"POST /api/v1/operations/{id}/{order}": {ask: func(s *scene) (string, string) { return v1 + "/operations/" + s.op + "/pause", "" },
		least: auth.Operator, changes: true, audited: true, ok: 200, elsewhere: 404},
	"POST /api/v1/edit": {ask: func(s *scene) (string, string) {
		return v1 + "/edit", `{"id":"` + s.ids[store.Parked] + `","document":"{\"card\":2}"}`
	}, least: auth.Editor, changes: true, audited: true, ok: 200, elsewhere: 404},
	"POST /api/v1/import": {ask: func(s *scene) (string, string) { return v1 + "/import", s.export }, kind: "application/jsonl",
		least: auth.Editor, changes: true, audited: true, ok: 200, elsewhere: 403},
	"POST /api/v1/snapshot": {ask: func(*scene) (string, string) { return v1 + "/snapshot", `{"folder":"/backup"}` }, // the scene's store is not on disk
		least: auth.Admin, changes: true, ok: 412, elsewhere: 403},
	"POST /api/v1/tokens":        {ask: func(*scene) (string, string) { return v1 + "/tokens", `{"name":"new","role":"viewer"}` }, least: auth.Admin, changes: true, ok: 200},
	"DELETE /api/v1/tokens/{id}": {ask: path(v1 + "/tokens/victim"), least: auth.Admin, changes: true, ok: 204, elsewhere: 404},
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

// check asks once, and tells whether that has changed anything.
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
	"GET /signin":                  {ask: path("/signin"), ok: 200},
	"GET /assets/{version}/{name}": {ask: path("/assets/0/none.js"), ok: 404},
	"GET /{$}":                     {ask: path("/"), least: auth.Viewer, ok: 200},
	"GET /":                        {ask: path("/nothing"), least: auth.Viewer, ok: 404},
	"GET /messages":                {ask: path("/messages?wait=1&q=state:parked"), least: auth.Viewer, ok: 200},
	"GET /messages/new":            {ask: path("/messages/new?wait=1"), least: auth.Viewer, ok: 200},
	"GET /messages/count":          {ask: path("/messages/count?wait=1"), least: auth.Viewer, ok: 200},
	"GET /messages/check":          {ask: path("/messages/check?q=state:parked"), least: auth.Viewer, ok: 200},
	"GET /messages/export":         {ask: path("/messages/export"), least: auth.Viewer, ok: 200, audited: true},
	"GET /messages/{id}":           {ask: onPage("/messages/", store.Parked, "?wait=1"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /messages/{id}/edit":      {ask: onPage("/messages/", store.Parked, "/edit?wait=1"), least: auth.Editor, offers: true, ok: 200, elsewhere: 404, looks: true},
	"GET /messages/{id}/body":      {ask: onPage("/messages/", store.Parked, "/body"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /groups":                  {ask: path("/groups?wait=1"), least: auth.Viewer, ok: 200},
	"GET /queues":                  {ask: path("/queues?wait=1"), least: auth.Viewer, ok: 200},
	"GET /operations":              {ask: path("/operations?wait=1"), least: auth.Viewer, ok: 200},
	"GET /operations/{id}":         {ask: func(s *scene) (string, string) { return "/operations/" + s.op + "?wait=1", "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /plans/{id}":              {ask: func(s *scene) (string, string) { return "/plans/" + s.plan + "?wait=1", "" }, least: auth.Viewer, ok: 200, elsewhere: 404},
	"GET /policies":                {ask: path("/policies?wait=1"), least: auth.Viewer, ok: 200},
	"GET /audit":                   {ask: path("/audit?wait=1"), least: auth.Admin, ok: 200, elsewhere: 403},
	"GET /health":                  {ask: path("/health?wait=1"), least: auth.Viewer, ok: 200},
	"GET /help":                    {ask: path("/help"), least: auth.Viewer, ok: 200},
	"POST /messages/act": {ask: form(at("/messages/act"), func(s *scene) url.Values {
		return url.Values{"verb": {"replay"}, "id": {s.ids[store.Parked]}, "confirmed": {"1"}}
	}), kind: typeForm, least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 200},
	"POST /messages/plan": {ask: form(at("/messages/plan"), with("verb", "discard", "q", "queue:"+orders)), kind: typeForm,
		least: auth.Operator, changes: true, ok: 303},
	"POST /messages/{id}/edit": {ask: form(func(s *scene) string { return "/messages/" + s.ids[store.Parked] + "/edit" }, with("content", `{"card":2}`, "send", "1")), kind: typeForm,
		least: auth.Editor, changes: true, audited: true, ok: 303, elsewhere: 404, looks: true},
	"POST /groups/{id}/note": {ask: form(func(s *scene) string { return "/groups/" + s.group + "/note" }, with("note", "known")), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
	"POST /queues/pause":   {ask: form(at("/queues/pause"), with("queue", orders)), kind: typeForm, least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 403},
	"POST /queues/breaker": {ask: form(at("/queues/breaker"), with("queue", orders, "to", "open")), kind: typeForm, least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 403},
	"POST /queues/resume":  {ask: form(at("/queues/resume"), with("queue", orders)), kind: typeForm, least: auth.Operator, changes: true, ok: 409, elsewhere: 403},
	"POST /plans/{id}/start": {ask: form(func(s *scene) string { return "/plans/" + s.plan + "/start" }, with("expect_count", "2")), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
	"POST /operations/{id}/{order}": {ask: form(func(s *scene) string { return "/operations/" + s.op + "/pause" }, with()), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
}

func onPage(before string, state store.State, after string) func(*scene) (string, string) {
	return func(s *scene) (string, string) { return before + s.ids[state] + after, "" }
}
