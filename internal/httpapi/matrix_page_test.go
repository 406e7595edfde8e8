package httpapi_test

import (
	"maps"
	"net/url"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

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
	"GET /groups":                  {ask: path("/groups?wait=1"), least: auth.Viewer, ok: 303},
	"GET /errors":                  {ask: path("/errors?wait=1"), least: auth.Viewer, ok: 200},
	"GET /messages/complete":       {ask: path("/messages/complete?q=queue:"), least: auth.Viewer, ok: 200},
	"GET /queues":                  {ask: path("/queues?wait=1"), least: auth.Viewer, ok: 200},
	"GET /queues/{queue}":          {ask: path("/queues/" + orders + "?wait=1"), least: auth.Viewer, ok: 200, elsewhere: 404},
	"POST /health/doctor":          {ask: path("/health/doctor"), kind: typeForm, least: auth.Operator, ok: 409, elsewhere: 403}, // the scene has no doctor
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
	"POST /errors/{id}/note": {ask: form(func(s *scene) string { return "/errors/" + s.group + "/note" }, with("note", "known")), kind: typeForm,
		least: auth.Operator, changes: true, audited: true, ok: 303, elsewhere: 404},
	"POST /errors/plan": {ask: form(at("/errors/plan"), func(s *scene) url.Values { return url.Values{"verb": {"discard"}, "id": {s.group}} }), kind: typeForm,
		least: auth.Operator, changes: true, ok: 303},
	"POST /operations/{id}/rest": {ask: form(func(s *scene) string { return "/operations/" + s.op + "/rest" }, with()), kind: typeForm,
		least: auth.Operator, changes: true, ok: 409, elsewhere: 404},
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
