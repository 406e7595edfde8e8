package page_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// state is one that pages are designed for. Every page is looked at in every state,
// but for those that it can never be in.
type state uint

const (
	normal    state = 1 << iota // in the light, in the dark, and at 400 % zoom
	empty                       // nothing failed yet
	readOnly                    // the service changes nothing
	fewQueues                   // the caller sees few of the queues
	used                        // it says what was done, all unfolds, its keys are shown, its updates are paused, its stream of events ends
	signedOut                   // the session ends; whatever comes next asks to sign in
	loading                     // its content takes long
	bounded                     // not all was looked at
	failed                      // its content cannot be read
)

// place is where a route of the page leads.
type place struct {
	// paths of the page: the first is looked at in every state, the others only when
	// all is well. What is in braces is of the shop: see stocked.at.
	paths []string
	// reach gets there where a page is the answer to a form.
	reach func(b *tab, s *stocked)
	never state
	// part says what it is where it is no page.
	part string
}

// answers is what no page can be that a form was answered with: nothing leads there
// but the form, whose own page is what is empty, slow, or not offered.
const answers = empty | readOnly | fewQueues | signedOut | loading | bounded | failed

// places are those of all routes: TestEachRouteHasItsPlace finds a route without.
var places = map[string]place{
	"GET /{$}": {paths: []string{"/"}, never: bounded},
	"GET /messages": {paths: []string{"/messages", "/messages?q=state:waiting", "/messages?q=state:retried", "/messages?q=state:discarded", "/messages?q=",
		"/messages?q=queue%3Aorders+state%3Anonsense", "/messages?q=queue%3Anowhere", "/messages?q=&cols=body.customer%2Ckey%2Cnowhere"}},
	"GET /messages/{id}":      {paths: []string{"/messages/{order}", "/messages/{waiting}", "/messages/nothing"}, never: empty | bounded},
	"GET /messages/{id}/edit": {paths: []string{"/messages/{order}/edit"}, never: empty | bounded},
	"GET /errors":             {paths: []string{"/errors", "/errors?q=queue%3Anowhere", "/errors?q=staat%3Ax", "/errors?sort=last"}, never: bounded},
	"GET /queues":             {paths: []string{"/queues", "/queues?name=orders.*&sort=waiting&desc=1", "/queues?name=nowhere"}, never: bounded},
	"GET /queues/{queue}":     {paths: []string{"/queues/mail.send", "/queues/webhooks", "/queues/nowhere"}, never: empty | bounded},
	"GET /operations":         {paths: []string{"/operations"}, never: bounded},
	"GET /operations/{id}":    {paths: []string{"/operations/{running}", "/operations/{paused}"}, never: empty | bounded},
	"GET /plans/{id}":         {paths: []string{"/plans/{plan}", "/plans/{blocked}"}, never: empty | bounded},
	"GET /policies":           {paths: []string{"/policies", "/policies?queue=orders.capture"}, never: bounded},
	"GET /audit":              {paths: []string{"/audit"}, never: bounded},
	"GET /health":             {paths: []string{"/health"}, never: bounded},
	"GET /help":               {paths: []string{"/help"}, never: empty | loading | bounded | failed},    // asks nothing of anyone
	"GET /":                   {paths: []string{"/nowhere"}, never: empty | loading | bounded | failed}, // no such page
	// Knows no caller and shows nothing live; its keys are for writing.
	"GET /signin": {paths: []string{"/signin", "/signin?error=refused", "/signin?error=expired"}, never: ^normal},

	"POST /messages/act": {never: answers, reach: func(b *tab, s *stocked) {
		b.open("/messages")
		b.keys("jxjx")
		b.follow(`#actions button[value="discard"]`, "#confirm-button")
	}},
	"POST /messages/{id}/edit": {never: answers, reach: func(b *tab, s *stocked) {
		b.open("/messages/" + s.order + "/edit")
		b.write(`input[name="value.1"]`, "globex")
		b.follow("#preview", "#diff")
	}},

	"POST /messages/plan":           {part: "leads to the plan"},
	"POST /health/doctor":           {part: "leads back to the page of health"},
	"GET /groups":                   {part: "leads to the errors"},
	"POST /errors/plan":             {part: "leads to the plan"},
	"POST /errors/{id}/note":        {part: "leads back to the errors"},
	"POST /operations/{id}/rest":    {part: "leads to the plan"},
	"GET /messages/complete":        {part: "of the query's field: TestCompletion"},
	"POST /queues/pause":            {part: "leads back to the queues"},
	"POST /queues/breaker":          {part: "leads back to the queues"},
	"POST /queues/resume":           {part: "leads back to the queues"},
	"POST /operations/{id}/{order}": {part: "leads back to the operation"},
	"POST /plans/{id}/start":        {part: "leads to the operation"},
	"GET /messages/new":             {part: "of the list: TestThePageLives"},
	"GET /messages/count":           {part: "of the list's tabs"},
	"GET /messages/check":           {part: "of the query's field: TestAWalk"},
	"GET /messages/{id}/body":       {part: "a download"},
	"GET /messages/export":          {part: "a download"},
	"GET /assets/{version}/{name}":  {part: "scripts and style sheets"},
}

func TestEachRouteHasItsPlace(t *testing.T) {
	routes := webui.Routes(webtest.New(time.Now()), webui.Options{})
	for route := range routes {
		if p := places[route]; (p.part != "") == (len(p.paths) > 0 || p.reach != nil) {
			t.Errorf("%s has no place in the table of places, so its page is never visited", route)
		}
	}
	for route := range places {
		if routes[route] == nil {
			t.Errorf("the table of places has %s, which is no route", route)
		}
	}
}

// each goes to every page that can be in a state, and does there what looks at it.
func (b *tab) each(is state, s *stocked, do func(page string)) {
	b.t.Helper()
	for _, route := range slices.Sorted(maps.Keys(places)) {
		switch p := places[route]; {
		case p.never&is != 0 || p.part != "":
		case p.reach != nil:
			p.reach(b, s)
			do(route)
		default:
			b.open(s.at(p.paths[0]))
			do(p.paths[0])
		}
	}
}

// at is a path of the table in this shop.
func (s *stocked) at(path string) string {
	return strings.NewReplacer("{order}", s.order, "{waiting}", s.waiting, "{running}", s.running, "{paused}", s.paused, "{plan}", s.plan, "{blocked}", s.blocked).Replace(path)
}
