package webui_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	htmlpkg "html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// scene is the page in one of its states.
type scene struct {
	name   string
	shop   *webtest.Shop
	caller auth.Caller
	status int // of pages that show what is kept
}

func scenes() []scene {
	readOnly, viewer := webtest.Root, webtest.Root
	readOnly.ReadOnly, viewer.Role = true, auth.Viewer
	stocked := func() *webtest.Shop { return webtest.Stocked(inspect.Config{}) }
	failing := stocked()
	failing.Fails = errors.New("the store cannot be read")
	return []scene{
		{"normal", stocked(), webtest.Root, 200},
		{"read-only", stocked(), readOnly, 200},
		{"viewer", stocked(), viewer, 200},
		{"empty", webtest.New(memstore.New(), nil, inspect.Config{}), webtest.Root, 200},
		{"failing", failing, webtest.Root, 500},
	}
}

// shown is a page of a console for a viewer.
func shown(c operations.Console, target string) string {
	return get(webui.Handler(c, webui.Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }}), target).Body.String()
}

// replaying is a console with a replay of which some messages failed again.
type replaying struct{ operations.Console }

func (replaying) Operation(context.Context, auth.Caller, string) (operations.Operation, error) {
	return operations.Operation{
		Plan: operations.Plan{ID: "x", Verb: actions.Replay, Count: 10, Query: "group:96d8e04626528643",
			About: "no <b>stock</b> of # (2 groups)"}, State: operations.Canceled, Done: 7, SkippedN: 2,
		Ended: &time.Time{},
		Replayed: &operations.Replayed{
			Sent: 9, FailedAgain: 4, NotSeenSince: 5, StillHere: 1, OtherErrors: 1,
			Errors: []operations.AgainError{
				{Group: "96d8e04626528643", Queue: "orders", Error: "no <b>stock</b> of #", Count: 2},
				{Queue: "orders", Error: "its queue is gone", Count: 1},
			},
		},
	}, nil
}

func (replaying) Outcomes(context.Context, auth.Caller, string, string, int) (operations.Outcomes, error) {
	return operations.Outcomes{Outcomes: []actions.Outcome{{Outcome: actions.Done, Became: actions.MadeDue},
		{Outcome: actions.Done, Became: actions.Sent}, {Outcome: actions.Done, Became: actions.FailedAgain},
		{Outcome: actions.Skipped}}}, nil
}

func TestAReplayShowsWhatFailedAgain(t *testing.T) {
	page := get(webui.Handler(replaying{}, webui.Options{Caller: func(*http.Request) auth.Caller {
		return auth.Caller{Name: "ann", Role: auth.Operator}
	}}), "/operations/x").Body.String()
	for _, want := range []string{
		`<p><b><bdi>no &lt;b&gt;stock&lt;/b&gt; of # (2 groups)</bdi></b></p><details class="subject"><summary>Query</summary>` +
			`<code class="q"><bdi>group:96d8e04626528643</bdi></code></details>`,
		"<b>7 of 10</b> made due, <b>2</b> skipped: not there any more.", "without a rate limit",
		"<dt>Sent</dt><dd>9</dd>", "<dt>Failed again</dt><dd>4</dd>", "<dt>Not seen since</dt><dd>5</dd>",
		"<dt>Still here</dt><dd>1</dd>", "counting continues until they are sent", "<li><b>1</b> other errors</li>",
		`<li><b>2</b> <a href="/messages?q=group%3A96d8e04626528643"><bdi>no &lt;b&gt;stock&lt;/b&gt; of #</bdi></a>`,
		`<li><b>1</b> <bdi>its queue is gone</bdi>`,
		`<input type="hidden" name="rest_of" value="x"><button>Replay the rest…</button>`,
		`"state out-made due">made due<`, `"state out-sent">sent<`, `"state out-failed again">failed again<`,
		`"state out-skipped">skipped<`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

// A discard that has ended offers Restore until its messages are forgotten.
func TestADiscardOffersToTakeItBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := time.Now()
		for age, kept := range map[time.Duration]bool{0: true, 31 * 24 * time.Hour: false} {
			at := ended.Add(-age)
			o := operations.Operation{Plan: operations.Plan{ID: "x", Verb: actions.Discard, Count: 1}, Done: 1,
				State: operations.Finished, Started: at, Ended: &at}
			page := get(webui.Handler(discarded{replaying{}, o}, webui.Options{Restorable: 30 * 24 * time.Hour,
				Caller: func(*http.Request) auth.Caller { return webtest.Root }}), "/operations/x").Body.String()
			has := strings.Contains(page, `<input type="hidden" name="discarded_by" value="x"><button>Restore these…</button>`)
			expect.Equal(t, has, kept, "ended %s ago: %s", age, page)
			expect.Equal(t, strings.Contains(page, ">in 30 d<"), kept, "ended %s ago, until when: %s", age, page)
		}
	})
}

type discarded struct {
	replaying
	is operations.Operation
}

func (d discarded) Operation(context.Context, auth.Caller, string) (operations.Operation, error) {
	return d.is, nil
}

func (s scene) handler() http.Handler {
	return webui.Handler(s.shop, webui.Options{Caller: func(*http.Request) auth.Caller { return s.caller }, Version: "1.4.0"})
}

func get(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

// send is a form as a browser sends it.
func send(h http.Handler, target string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func parse(t *testing.T, w *httptest.ResponseRecorder) *html.Node {
	t.Helper()
	doc, err := html.Parse(w.Body)
	expect.NoError(t, err)
	return doc
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// pages are those of a scene.
func (s scene) pages() []string {
	all := []string{"/", "/messages", "/messages?q=state%3Aparked", "/messages?q=-queue%3Aa", "/groups", "/queues", "/queues/orders.capture", "/operations", "/policies", "/audit", "/health"}
	for _, id := range s.shop.Has.IDs {
		all = append(all, "/messages/"+id, "/messages/"+id+"/edit")
	}
	if s.shop.Has.Plan != "" {
		all = append(all, "/groups/"+s.shop.Has.Group, "/operations/"+s.shop.Has.Running, "/operations/"+s.shop.Has.Paused, "/plans/"+s.shop.Has.Plan, "/plans/"+s.shop.Has.Blocked)
	}
	return all
}

// endlessly is a shop whose lists all have a next page.
type endlessly struct{ *webtest.Shop }

func (e endlessly) Search(ctx context.Context, c auth.Caller, q, after string, limit int, columns ...string) (inspect.Page, error) {
	p, err := e.Shop.Search(ctx, c, q, after, limit, columns...)
	p.After = "x"
	return p, err
}

func (e endlessly) AuditLog(
	ctx context.Context, c auth.Caller, f inspect.AuditFilter, after string, limit int,
) ([]audit.Entry, string, error) {
	all, _, err := e.Shop.AuditLog(ctx, c, f, after, limit)
	return all, "x", err
}

func (e endlessly) Outcomes(ctx context.Context, c auth.Caller, id, after string, limit int) (operations.Outcomes, error) {
	o, err := e.Shop.Outcomes(ctx, c, id, after, limit)
	o.After = "x"
	return o, err
}

// tenant serves a scene as the service serves one of several virtual hosts, to who is
// signed in: everybody but those who send a wrong token.
func (s scene) tenant(vhost string) (base string, h http.Handler) {
	base = httpapi.Base(vhost)
	return base, httpapi.Under(base, webui.Handler(endlessly{s.shop}, webui.Options{
		Caller: func(r *http.Request) auth.Caller {
			if r.Header.Get("Nobody") != "" {
				return auth.Caller{}
			}
			return s.caller
		},
		Conditions: func(auth.Caller) []condition.Condition {
			return []condition.Condition{{Kind: condition.Store, Text: "full"}}
		}, Version: "1.4.0", Restorable: 30 * 24 * time.Hour, Base: base, VHost: vhost,
		VHosts: func() []webui.VHost { return webtest.VHosts("/", vhost, hostile) },
	}))
}

// hostile is a name that a virtual host can have.
const hostile = "\"><script>alert(1)</script>\u202e//evil.example"

// vhosts are names that mean something in a path, in HTML, in a shell.
var vhosts = []string{"shop", "a/b", "/", "%2F", `&amp="x' $(id)`, hostile}

// Each page in each state is whole, says what the browser may do with it, and brings no script or style
// within. A browser that loads it, or follows anything on it, stays under the page's base, where there is
// something: but for what leads to the other virtual hosts.
func TestEachPageInEachState(t *testing.T) {
	for i, s := range scenes() {
		synctest.Test(t, func(t *testing.T) { // the pages that are slow take no time
			base, h := s.tenant(vhosts[i%len(vhosts)])
			led := map[string]bool{}
			look := func(what string, w *httptest.ResponseRecorder) {
				t.Helper()
				wrong := func(format string, args ...any) {
					t.Helper()
					t.Errorf("%s, %s: %s", s.name, what, fmt.Sprintf(format, args...))
				}
				if kind := w.Header().Get("Content-Type"); w.Code/100 == 3 || !strings.HasPrefix(kind, "text/html") {
					wrong("%d %s %s", w.Code, kind, w.Header().Get("Location"))
					return
				}
				if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") {
					wrong("the policy is %q", policy)
				}
				doc, mains := parse(t, w), 0
				for n := range doc.Descendants() {
					if n.Data == "main" {
						mains++
					}
					if n.Data == "style" || n.Data == "script" && n.FirstChild != nil && attribute(n, "type") == "" {
						wrong("a %s within", n.Data)
					}
					if n.Data == "form" && attribute(n, "method") == "post" && s.caller.ReadOnly && slices.Contains(s.pages(), what) {
						wrong("offers %s, which would be refused", attribute(n, "action"))
					}
					if n.Data == "tr" && opens(n) != within(n, "data-rows") {
						wrong("keys do not step through the rows of %s", attribute(n.Parent.Parent, "id"))
					}
					for _, a := range n.Attr {
						if a.Key == "style" || strings.HasPrefix(a.Key, "on") {
							wrong("<%s %s>", n.Data, a.Key)
						}
					}
					for _, to := range leadsTo(n) {
						if strings.HasPrefix(to, "#") || inside(n, "vhosts") {
							continue
						}
						if !strings.HasPrefix(to, base+"/") || strings.HasPrefix(to, base+"//") || strings.HasPrefix(to, base+base) {
							wrong("<%s> leads to %q, which is not under %s", n.Data, to, base)
						}
						if to, _, _ = strings.Cut(to, "#"); attribute(n, "href")+attribute(n, "src") != "" && !elsewhere.MatchString(to) {
							led[to] = true
						}
					}
				}
				if root := doc.FirstChild.NextSibling; strings.HasPrefix(what, "/") && (mains != 1 || attribute(root, "data-base") != base) {
					wrong("%d main parts, and the script is told %q", mains, attribute(root, "data-base"))
				}
			}
			for _, target := range s.pages() {
				w := get(h, base+target)
				forbidden := w.Code == http.StatusForbidden && (strings.HasSuffix(target, "/edit") || target == "/audit" && s.caller.Role < auth.Admin)
				if w.Code != s.status && !forbidden {
					t.Errorf("%s, %s: %d", s.name, target, w.Code)
				}
				look(target, w)
			}
			if len(led) < 20 {
				t.Errorf("%s: only %d links were seen", s.name, len(led))
			}
			for target := range led {
				if w := get(h, target); w.Code == http.StatusNotFound {
					t.Errorf("%s: a link leads to %s, which is not there", s.name, target)
				}
			}
			for _, target := range []string{"/messages?q=", "/messages?q=state%3Aparked&after=x", "/messages?q=staat%3Ax", "/messages?q=queue%3Anowhere", "/groups?q=staat%3Ax", "/groups?q=queue%3Anowhere",
				"/messages/nothing", "/plans/nothing", "/nowhere", "/help", "/docs/", "/docs/how-to/adopt.md", "/docs/nothing", "/signin", "/signin?error=refused&next=%2Fmessages%2Fx"} {
				look(target, get(h, base+target))
			}
			for _, part := range []string{"/messages/count?q=", "/messages/new?q=&above=x", "/messages/check?q=staat%3Ax"} {
				look("part "+part, get(h, base+part))
			}
			s.shop.Slow = true
			for _, target := range append(s.pages(), "/messages?q=text%3Aa") {
				wait := map[bool]string{true: "&wait=1", false: "?wait=1"}[strings.Contains(target, "?")]
				look("slow "+target, get(h, base+target))
				look("endless "+target, get(h, base+target+wait))
			}
			s.shop.Slow = false
			id := "nothing"
			if len(s.shop.Has.IDs) > 0 {
				id = s.shop.Has.IDs[0]
			}
			for _, form := range []url.Values{{"verb": {"discard"}, "id": {id}}, {"verb": {"copy"}, "id": {id}}, {"verb": {"replay"}, "id": {id}, "one": {"1"}}, {"verb": {"restore"}, "id": {id, "x"}, "confirmed": {"1"}, "q": {"state:parked"}}, {}} {
				look("form "+form.Encode(), send(h, base+"/messages/act", form))
			}
			look("edit", send(h, base+"/messages/"+id+"/edit", url.Values{"new.name": {"a"}, "new.value": {"b"}}))
			look("no edit", send(h, base+"/messages/"+id+"/edit", url.Values{"at": {"nonsense"}}))
		})
	}
}

// opens reports whether a row leads to a message, or has a link that Enter opens. The audit log leads to anything.
func opens(row *html.Node) bool {
	if row.Parent.Data == "thead" {
		return within(row, "data-rows")
	}
	for n := range row.Descendants() {
		if slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == "data-open" }) || message.MatchString(attribute(n, "href")) && attribute(row.Parent.Parent, "id") != "audit" {
			return true
		}
	}
	return false
}

var message = regexp.MustCompile(`/messages/[0-9a-f-]{36}$`)

func within(n *html.Node, key string) bool {
	for ; n != nil; n = n.Parent {
		if slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == key }) {
			return true
		}
	}
	return false
}

// elsewhere is what the service has besides the page.
var elsewhere = regexp.MustCompile(`/(healthz|readyz|metrics|api/v1/.*)$`)

// leadsTo is all that an element makes a browser ask for, at once or when it is used.
func leadsTo(n *html.Node) (all []string) {
	for _, a := range n.Attr {
		switch {
		case slices.Contains([]string{"hx-trigger", "hx-target", "hx-swap", "hx-sync", "hx-select"}, a.Key):
		case slices.Contains([]string{"href", "src", "srcset", "action", "formaction", "poster", "data-url"}, a.Key), strings.HasPrefix(a.Key, "hx-"):
			all = append(all, a.Val)
		case a.Key == "content" && attribute(n, "http-equiv") == "refresh":
			_, to, _ := strings.Cut(a.Val, "url=")
			all = append(all, to)
		}
	}
	if n.Data == "noscript" && n.FirstChild != nil { // is text to a browser with scripts, and to the parser
		if inner, err := html.Parse(strings.NewReader(n.FirstChild.Data)); err == nil {
			for m := range inner.Descendants() {
				all = append(all, leadsTo(m)...)
			}
		}
	}
	return all
}

func inside(n *html.Node, class string) bool {
	for ; n != nil; n = n.Parent {
		if attribute(n, "class") == class {
			return true
		}
	}
	return false
}

// What no scene shows is found in the templates themselves.
func TestNoTemplateForgetsTheBase(t *testing.T) {
	files, err := filepath.Glob("templates/*.html")
	if err != nil || len(files) < 15 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		expect.NoError(t, err)
		for _, found := range regexp.MustCompile(`[\w-]+=["']?/[^"'/].*?["']`).FindAllString(string(text), -1) {
			t.Errorf(`%s has %s: it must be "{{at …}}", or it leads to another virtual host's page`, file, found)
		}
	}
}

// What is done under a base leads to a page under it, and so does signing in.
func TestFormsLeadToPagesUnderTheBase(t *testing.T) {
	s := scenes()[0]
	base, h := s.tenant("a/b")
	leads := func(path string, form url.Values, want string) string {
		t.Helper()
		w := send(h, base+path, form)
		to, under := strings.CutPrefix(w.Header().Get("Location"), base)
		if w.Code != http.StatusSeeOther || !under || !strings.HasPrefix(to, want) {
			t.Errorf("%s leads to %d %q, want %s", path, w.Code, w.Header().Get("Location"), base+want)
		} else if got := get(h, base+to); got.Code != 200 {
			t.Errorf("%s leads to %s, which is %d", path, to, got.Code)
		}
		return to
	}
	has := s.shop.Has
	asks := send(h, base+"/messages/act", url.Values{"verb": {"discard"}, "id": {has.Order}}).Body.String()
	if strings.Contains(asks, ">done<") || strings.Contains(asks, "Left out") {
		t.Error("before it is confirmed, a message is called done or left out")
	}
	expect.Contains(t, asks, "the confirmation", "can be restored for 30d.")
	plan := leads("/messages/plan", url.Values{"verb": {"discard"}, "q": {"queue:stock.sync"}}, "/plans/")
	expect.Contains(t, get(h, base+plan).Body.String(), "the plan of a discard", "can be restored for 30d.", "Where they are")
	leads("/messages/act", url.Values{"verb": {"discard"}, "id": {has.Order}, "confirmed": {"1"}, "q": {"queue:a"}}, "/messages?q=queue%3Aa&did=discard&n=1")
	leads("/queues/pause", url.Values{"queue": {"stock.sync"}}, "/queues?did=pause&n=1")
	leads("/queues/resume", url.Values{"queue": {"stock.sync"}}, "/queues?did=resume&n=1")
	leads("/queues/breaker", url.Values{"queue": {"mail.send"}, "to": {"open"}}, "/queues?did=open&n=1")
	leads("/queues/breaker", url.Values{"queue": {"mail.send"}, "to": {"auto"}}, "/queues?did=auto&n=1")
	leads("/follow", url.Values{"from": {"orders.dlq"}, "then": {"park"}}, "/?did=follow&n=1")
	leads("/follow", url.Values{"from": {"orders.dlq"}, "stop": {"1"}}, "/?did=unfollow&n=1")
	leads("/groups/"+has.Group+"/note", url.Values{"note": {"x"}, "q": {""}, "state": {"all"}, "sort": {"-last"}}, "/groups?did=note&n=1&sort=-last&state=all")
	leads("/groups/"+has.Group+"/state", url.Values{"state": {"ignored"}, "note": {"x"}}, "/groups/"+has.Group+"?did=state&n=1")
	leads("/operations/"+has.Running+"/pause", nil, "/operations/"+has.Running)
	form := fields(t, get(h, base+"/messages/"+has.Mail+"/edit").Body.String())
	form["new.name"], form["new.value"], form["send"] = []string{"ticket"}, []string{"7"}, []string{"1"}
	leads("/messages/"+has.Mail+"/edit", form, "/messages/")
	plan = leads("/messages/plan", url.Values{"verb": {"replay"}, "q": {"queue:stock.sync"}}, "/plans/")
	planned, err := s.shop.GetPlan(t.Context(), webtest.Root, strings.TrimPrefix(plan, "/plans/"))
	if err != nil || planned.Count == 0 {
		t.Fatal(planned, err)
	}
	leads(plan+"/start", url.Values{"expect_count": {fmt.Sprint(planned.Count)}}, "/operations/")
	groups, err := s.shop.Groups(t.Context(), webtest.Root, "state:parked", "", "", 2)
	if err != nil || len(groups.Groups) != 2 {
		t.Fatal(groups, err)
	}
	a, b := groups.Groups[0], groups.Groups[1]
	expect.Contains(t, get(h, base+"/groups").Body.String(), "the list of groups", `name="group" form="list" value="`+b.ID+`"`)
	plan = leads("/messages/plan", url.Values{"verb": {"discard"}, "group": {a.ID, b.ID}}, "/plans/")
	planned, err = s.shop.GetPlan(t.Context(), webtest.Root, strings.TrimPrefix(plan, "/plans/"))
	expect.NoError(t, err)
	expect.Equal(t, int64(planned.Count), a.Parked+b.Parked, "messages of two groups")
	plan = leads("/messages/plan", url.Values{"verb": {"discard"}, "q": {"queue:*"}}, "/plans/")
	planned, err = s.shop.GetPlan(t.Context(), webtest.Root, strings.TrimPrefix(plan, "/plans/"))
	if err != nil || planned.Count <= 50 {
		t.Fatal(planned.Count, err)
	}
	expect.Contains(t, get(h, base+plan).Body.String(), "the plan",
		fmt.Sprintf("At 10 a second %d take about %s, at 100 a second about %s.",
			planned.Count, planned.Takes(10), planned.Takes(100)))

	r := httptest.NewRequest("GET", base+"/messages?q=a%2Fb", nil)
	r.Header.Set("Nobody", "1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	expect.Equal(t, w.Header().Get("Location"), base+"/signin?next=%2Fmessages%3Fq%3Da%252Fb",
		"who is not signed in is led to")
}

// commands are those that a page shows.
func commands(t *testing.T, h http.Handler, target string) (all []string) {
	for n := range parse(t, get(h, target)).Descendants() {
		if n.Data == "code" && n.FirstChild != nil && strings.HasPrefix(n.FirstChild.Data, "redrive ") {
			all = append(all, n.FirstChild.Data)
		}
	}
	return all
}

// Each command that a page shows names the virtual host, so that no one pastes what
// acts on another's messages; where there is but one, none does.
func TestCommandsReachTheVirtualHost(t *testing.T) {
	s := scenes()[0]
	for _, vhost := range append(vhosts, "") {
		base, h := "", s.handler()
		if vhost != "" {
			base, h = s.tenant(vhost)
		}
		want := map[string]string{"shop": "redrive --vhost shop ", "/": "redrive --vhost / ", `&amp="x' $(id)`: `redrive --vhost '&amp="x'\'' $(id)' `}[vhost]
		n := 0
		for _, target := range append(s.pages(), "/signin", "/messages?q=queue%3Anowhere") {
			for _, text := range commands(t, h, base+target) {
				n++
				if strings.Contains(text, "--vhost") != (vhost != "") || !strings.HasPrefix(text, want) || strings.Contains(text, "\u202e") {
					t.Errorf("for %q, %s shows %q", vhost, target, text)
				}
			}
		}
		if n < 20 {
			t.Errorf("only %d commands are shown", n)
		}
	}
}

// Each page leads to the other virtual hosts, and says which of them cannot show much;
// where there is one, or no one is signed in, it says nothing of any.
func TestTheVirtualHostsOnAPage(t *testing.T) {
	s := scenes()[0]
	base, h := s.tenant("a/b")
	for _, target := range append(s.pages(), "/help", "/nowhere", "/messages?q=staat%3Ax") {
		var shown []string
		for n := range parse(t, get(h, base+target)).Descendants() {
			if n.Data == "title" && n.Parent.Data == "head" && !strings.HasSuffix(n.FirstChild.Data, " · a/b · Redrive") {
				t.Errorf("%s is called %q: a tab must tell the virtual hosts apart", target, n.FirstChild.Data)
			}
			if n.Data == "a" && inside(n, "vhosts") {
				text := ""
				for m := range n.Descendants() {
					if m.Type == html.TextNode {
						text += m.Data
					}
				}
				shown = append(shown, attribute(n, "href")+" "+text+" "+attribute(n, "aria-current"))
			}
		}
		if want := []string{"/ / ", base + "/ a/b true", httpapi.Base(hostile) + `/ "><script>alert(1)</script>\u{202e}//evil.example not ready `}; !slices.Equal(shown, want) {
			t.Errorf("%s shows %q, want %q", target, shown, want)
		}
	}
	one := webui.Handler(s.shop, webui.Options{Caller: func(*http.Request) auth.Caller { return s.caller }, VHosts: func() []webui.VHost { return []webui.VHost{{Name: "/", URL: "/", Ready: true, Here: true}} }})
	for what, w := range map[string]*httptest.ResponseRecorder{"of one": get(one, "/"), "of none": get(s.handler(), "/"), "to sign in": get(h, base+"/signin"), "part": get(h, base+"/messages/count?q=")} {
		if strings.Contains(w.Body.String(), "vhosts") || w.Code != 200 {
			t.Errorf("the page %s: %d %s", what, w.Code, w.Body)
		}
	}
}

// The first paint takes the page itself and what its head names: under 100 kB as they
// are sent.
func TestTheFirstPaintIsSmall(t *testing.T) {
	h := scenes()[0].handler()
	first := get(h, "/")
	sum := compressed(t, first.Body.Bytes())
	loaded := 0
	for n := range parse(t, first).Descendants() {
		target := ""
		switch n.Data {
		case "script":
			target = attribute(n, "src")
		case "link":
			target = attribute(n, "href")
		}
		if target == "" {
			continue
		}
		w := get(h, target)
		expect.Equal(t, w.Code, 200, "%s", target)
		loaded++
		sum += compressed(t, w.Body.Bytes())
	}
	if loaded < 3 || sum >= 100_000 {
		t.Errorf("%d files and the page are %d bytes", loaded, sum)
	}
	t.Logf("%d bytes", sum)
}

func compressed(t *testing.T, data []byte) int {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	expect.NoError(t, expect.ErrOf(z.Write(data)))
	expect.NoError(t, z.Close())
	return b.Len()
}

// The commands that pages offer are ones there are, with flags that they have.
func TestTheCommandsAreThere(t *testing.T) {
	flag := regexp.MustCompile(`--[a-z-]+`)
	seen := map[string]bool{}
	s := scenes()[0]
	for _, target := range s.pages() {
		for _, command := range commands(t, s.handler(), target) {
			words := strings.Fields(command)[1:]
			c, rest, err := cli.Commands().Find(words)
			if err != nil || !c.HasParent() || c.HasSubCommands() && c.ValidateArgs(rest) != nil {
				t.Errorf("%s offers %q (%v)", target, command, err)
				continue
			}
			for _, f := range flag.FindAllString(command, -1) {
				if c.Flag(f[2:]) == nil {
					t.Errorf("%s offers %q, which has no %s", target, command, f)
				}
			}
			seen[words[0]] = true
		}
	}
	if len(seen) < 6 {
		t.Errorf("only %v are offered", seen)
	}
}

// fields are what a browser sends of the page's edit form, but for its buttons.
func fields(t *testing.T, page string) url.Values {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	expect.NoError(t, err)
	form := url.Values{}
	for n := range doc.Descendants() {
		attr := map[string]string{}
		for _, a := range n.Attr {
			attr[a.Key] = a.Val
		}
		switch {
		case attr["name"] == "" || attr["type"] == "checkbox" || attr["type"] == "radio":
		case n.Data == "input":
			form.Add(attr["name"], attr["value"])
		case n.Data == "textarea" && n.FirstChild != nil:
			form.Add(attr["name"], strings.TrimPrefix(n.FirstChild.Data, "\n"))
		}
	}
	return form
}

// What the preview shows is what is sent: also headers that the form adds.
func TestHeadersAddedInTheFormAreSent(t *testing.T) {
	s := scenes()[0]
	h, edit := s.handler(), "/messages/"+s.shop.Has.Mail+"/edit"
	form := fields(t, get(h, edit).Body.String())
	form["new.name"], form["new.value"] = []string{"retried-by"}, []string{"dana"}
	for range 2 { // one more each time that the difference is shown
		form = fields(t, send(h, edit, form).Body.String())
		form["new.name"][len(form["new.name"])-1], form["new.value"][len(form["new.value"])-1] = "ticket", "7"
	}
	form.Set("send", "1")
	w := send(h, edit, form)
	id, err := uuid.Parse(strings.TrimPrefix(w.Header().Get("Location"), "/messages/"))
	if w.Code != 303 || err != nil {
		t.Fatalf("%d %v %s", w.Code, err, w.Body)
	}
	sent := inspecttest.Kept(t, s.shop.Store, id.String()).Message.Headers
	if sent["retried-by"] != "dana" || sent["ticket"] != "7" || sent["tenant"] != "acme" {
		t.Errorf("sent: %v", sent)
	}
	if page := get(h, "/messages/"+id.String()).Body.String(); !strings.Contains(page, "<dt>Replays</dt><dd>1</dd>") {
		t.Error("its page does not say that it was replayed")
	}
}

// listing is a console that has these queues.
type listing struct {
	*webtest.Shop
	queues []inspect.Queue
	holds  []condition.Condition
}

func list(all ...inspect.Queue) listing {
	return listing{webtest.New(memstore.New(), nil, inspect.Config{}), all, nil}
}

func (l listing) Queues(context.Context, auth.Caller, string, int) ([]inspect.Queue, string, error) {
	return slices.Clone(l.queues), "", nil
}

func (l listing) Overview(context.Context, auth.Caller) (inspect.Overview, error) {
	return inspect.Overview{Now: time.Now(), Ready: true, Hour: make([]inspect.Flow, 60), Queues: l.queues,
		Conditions: slices.Clone(l.holds)}, nil
}

// A queue that waits looks as if it worked, unless the page says why.
func TestThePageShowsEachWaitReason(t *testing.T) {
	named := map[throttle.WaitReason]string{
		throttle.WhyPerson: `<span class="state paused">paused</span>`, throttle.WhyBreaker: "breaker open", throttle.WhyNoConsumer: "no consumers",
		throttle.WhyUnreachable: "the queue is full",
	}
	for _, why := range throttle.WaitReasons {
		page := shown(list(inspecttest.WaitingQueue(why, time.Now())), "/queues")
		want := named[why]
		if why.IsLimit() {
			want = "limited by " + string(why)
		}
		if want == "" || !strings.Contains(page, want) || strings.Contains(page, "as due") {
			t.Errorf("%s: the page of the queues does not show %q", why, want)
		}
	}
}

// What only the management API knows is not shown as none.
func TestThePageShowsWhatIsNotKnown(t *testing.T) {
	unacked := 0
	for want, at := range map[string]*inspect.AtBroker{
		`data-label="Ready">5</td><td class="n" data-label="Unacked">0</td>`:                                  {Exists: true, Kind: "quorum", Consumers: 2, Ready: 5, Unacked: &unacked},
		`data-label="Ready">5</td><td class="n" data-label="Unacked"><span class="dim">not known</span></td>`: {Exists: true, Consumers: 2, Ready: 5},
	} {
		if page := shown(list(inspect.Queue{Name: "orders", Broker: at}), "/queues"); !strings.Contains(page, want) {
			t.Errorf("the page of the queues does not show %q", want)
		}
	}
}

type oneLine struct{ listing }

func (oneLine) Ledger(context.Context, auth.Caller, bool, string, int) (inspect.Ledger, error) {
	return inspect.Ledger{Queues: []inspect.LedgerLine{{Queue: "orders", In: 1, Retried: 2, Forwarded: 3, Waiting: 4, Parked: 5,
		Discarded: 6, Forgotten: 7, Delayed: 8, Dropped: 9, Moved: 10, Off: -11}}}, nil
}

// Each number of a line stands under its heading, and what is forgotten counts as discarded.
func TestThePageShowsTheLedger(t *testing.T) {
	page := shown(oneLine{list()}, "/health")
	_, table, _ := strings.Cut(page, `id="ledger"`)
	table, _, _ = strings.Cut(table, "</table>")
	got := strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(strings.NewReplacer("</th>", " ", "</td>", " ").Replace(table), ""))
	want := "Queue In Retried Forwarded Waiting Parked Discarded In RabbitMQ Dropped Unaccounted orders 1 2 3 4 5 13 8 9 -11"
	if !strings.HasSuffix(strings.Join(got, " "), want) {
		t.Errorf("the ledger is %q, want %s", got, want)
	}
}

// A queue's page has what doctor found about it, and Health leads there; a caller of some queues learns only what was
// checked of these.
func TestThePageShowsWhatDoctorFound(t *testing.T) {
	at := time.Now().Add(-time.Minute)
	found := inspect.Checkup{At: &at, Looked: map[string]bool{"stock.sync": true}, Findings: []inspect.Finding{
		{Check: "overflow", Status: "wrong", Queue: "mail.send", Title: "no overflow", What: "it drops"},
		{Check: "dead-lettering", Status: "wrong", Queue: "orders.capture", Title: "it dead-letters",
			What:   "to <secret>",
			Remedy: "Enrol it:", Commands: []string{"redrive enroll orders.capture"}}}}
	s := webtest.Stocked(inspect.Config{Checkup: func(string) inspect.Checkup { return found }})
	as := func(target string, queues ...string) string {
		c := webtest.Root
		c.Role, c.Queues = auth.Viewer, queues
		h := webui.Handler(s, webui.Options{Caller: func(*http.Request) auth.Caller { return c }})
		_, part, _ := strings.Cut(get(h, target).Body.String(), `id="checkup"`)
		part, _, _ = strings.Cut(part, "</section>")
		return part
	}
	page := as("/queues/orders.capture")
	expect.Contains(t, page, "the page of the queue", "to &lt;secret&gt;", "Enrol it:",
		"to &lt;secret&gt;</bdi>.", "<code>redrive enroll orders.capture</code>", "Checked")
	expect.Equal(t, strings.Contains(page, "it drops"), false, "it has what was found about another")
	expect.Contains(t, as("/health"), "Health", `<a href="/queues/orders.capture">`,
		`wrong</span> <bdi>it drops</bdi>: <a href="/queues/mail.send">`, "Checked")
	page = as("/queues/orders.capture", "orders.*")
	expect.Contains(t, page, "the page of a limited caller", "it dead-letters", "Checked")
	expect.Equal(t, strings.Contains(page, "secret") || strings.Contains(page, "Enrol it"), false,
		"it has what may name others")
	expect.Equal(t, strings.Contains(as("/health", "orders.*"), "mail.send"), false,
		"Health names a queue that is not seen")
	for i := range 13 {
		found.Findings = append(found.Findings, inspect.Finding{Check: "consumers", Status: "warning",
			Queue: fmt.Sprint("orders.", i), What: "no <b>consumer"})
	}
	expect.Contains(t, as("/health"), "Health, once for many queues",
		`warning</span> <bdi>no &lt;b&gt;consumer</bdi>: <a href="/queues/orders.0">`, "</a> and 8 more</li>")
	expect.Contains(t, as("/queues/stock.sync"), "a queue without findings", "No setup problems.", "Checked")
	found.Looked = map[string]bool{"stock.sync": true, "a": false, "b": false, "orders.x": false, "orders.dlq": false}
	all := func(queues ...string) string {
		c := webtest.Root
		c.Queues = queues
		return get(webui.Handler(s, webui.Options{Caller: func(*http.Request) auth.Caller { return c }}),
			"/queues").Body.String()
	}
	expect.Contains(t, all(), "the list of queues", `id="adopt"`,
		`3 queues are not enrolled, so dead letters do not come here: <a href="/queues/a"><bdi>a</bdi></a>, <a `)
	expect.Contains(t, all("orders.*"), "the list for a caller of some queues",
		`1 queue is not enrolled, so dead letters do not come here: <a href="/queues/orders.x">`)
	found.Forgotten = []string{"<a>", "b", "c", "d", "e"}
	const forgotten = `5 queues that are not enrolled hold messages and have no consumer: ` +
		`<a href="/queues/%3Ca%3E"><bdi>&lt;a&gt;</bdi></a>,`
	expect.Contains(t, all(), "the list of queues", forgotten, "<bdi>c</bdi></a> and 2 more.")
	expect.Contains(t, shown(s, "/"), "the overview", "<li>"+forgotten)
	expect.Equal(t, strings.Contains(all("orders.*"), `id="forgotten"`), false, "it names queues that the caller does not see")
	found.Forgotten = nil
	found.Checking = true
	expect.Contains(t, as("/queues/orders.capture"), "the page of an old checkup", "Enrol it:", "Checked")
	found.Findings = nil
	for _, target := range []string{"/queues/stock.sync", "/queues/orders.capture", "/health"} {
		page := as(target)
		expect.Contains(t, page, target+" while it is checked", "Being checked")
		expect.Equal(t, strings.Contains(page, "No setup problems") || strings.Contains(page, "None."), false,
			"%s calls it well", target)
	}
	found.Checking = false
	page = as("/queues/orders.capture")
	expect.Contains(t, page, "the page of a queue that was not looked at", "Check its setup:")
	expect.Contains(t, as("/health"), "Health", "None.")
	found = inspect.Checkup{}
	expect.Contains(t, as("/queues/orders.capture"), "the page before a checkup", "Check its setup:")
}

// The page of a queue that does not dead-letter to Redrive says that nothing is retried.
func TestThePageOfAQueueThatIsNotEnrolled(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	s.Told.At = map[string]inspect.AtBroker{"old.reports": {Exists: true, DeadLetters: inspect.Nowhere}}
	page := shown(s, "/queues/old.reports")
	expect.Contains(t, page, "the page", "Retries: no: not enrolled, what consumers reject is gone. Enroll it:",
		"<code>redrive enroll old.reports</code>")
	expect.Equal(t, strings.Contains(page, "retries work"), false, "it says that it is retried")
	s.Told.At["alone"] = inspect.AtBroker{Exists: true, DeadLetters: inspect.Alone}
	expect.Contains(t, shown(s, "/queues/alone"), "the page of one that RabbitMQ retries", "Retries: by RabbitMQ alone,")
	expect.Contains(t, shown(s, "/queues/orders.capture"), "the page of another", "Retries: <")
	s.Told.At["unnamed"], s.Inspector.Config.Policies = inspect.AtBroker{Exists: true}, nil
	expect.Contains(t, shown(s, "/queues/unnamed"), "the page of one that no policy names", "no: no policy names it",
		"No policy names this queue: what fails is parked, and a replay is refused.")
}

// A queue's page has the same picture of its last hour and of its last day, up to now; the unfinished part is marked.
func TestAQueuesPageHasItsLastDay(t *testing.T) {
	page := shown(webtest.Stocked(inspect.Config{}), "/queues/orders.capture")
	for over, each := range map[string]string{"hour": "60 minutes", "day": "48 half hours"} {
		_, part, _ := strings.Cut(page, `id="flow-`+over+`"`)
		part, _, _ = strings.Cut(part, "</section>")
		n, _, _ := strings.Cut(each, " ")
		expect.Contains(t, part, "the chart of the "+over, "in each of the last "+each)
		expect.Equal(t, fmt.Sprint(strings.Count(part, "<tr><td>")), n, "numbers of the %s", over)
		_, line, _ := strings.Cut(part, `<path class="failed" d="M`)
		line, _, _ = strings.Cut(line, `"`)
		expect.Equal(t, fmt.Sprint(strings.Count(line, "L")+1), n, "points of the line of the %s", over)
		before := regexp.MustCompile(`([\d.]+),[\d.]+L600.0,[\d.]+$`).FindStringSubmatch(line)[1]
		expect.Contains(t, part, "the mark of what is not over", `class="so-far" x="`+before+`"`,
			`<title>So far: this `+strings.TrimSuffix(each[3:], "s")+` is not over`)
		expect.Equal(t, strings.Count(part, ">so far</span>"), 1, "numbers so far")
	}
}

// An error has a page of its own, that lists and its messages lead to.
func TestAGroupHasAPage(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	id := s.Has.Group
	as := func(role auth.Role) string {
		c := webtest.Root
		c.Role = role
		return get(webui.Handler(s, webui.Options{Caller: func(*http.Request) auth.Caller { return c }}), "/groups/"+id).Body.String()
	}
	parked, err := s.Search(t.Context(), webtest.Root, "state:parked group:"+id, "", 1)
	expect.NoError(t, err)
	_, err = s.Act(t.Context(), webtest.Root, actions.Act{Verb: actions.Replay, IDs: []string{parked.Messages[0].ID}})
	expect.NoError(t, err)
	g, err := s.Group(t.Context(), webtest.Root, id)
	if err != nil || g.Newest == nil {
		t.Fatal(g, err)
	}
	page, most := as(auth.Operator), g.Attempts[0]
	for _, want := range []string{
		fmt.Sprintf("<dt>Failures</dt><dd>%d messages %s times", most.Count, most.Value), "1 message not since a replay",
		`<b>Note:</b> <bdi>gateway incident INC-2231`, html.EscapeString(g.Rule),
		fmt.Sprintf(`<dt>Type</dt><dd><bdi>%s</bdi> <span class="dim">%d messages</span>`, g.Types[0].Value, g.Types[0].Count),
		"<pre class=\"content\" tabindex=\"0\" role=\"group\" aria-label=\"Newest error\">" + html.EscapeString(g.Newest.Error),
		`<h1><span class="error"><bdi>` + html.EscapeString(g.Error) + `</bdi></span></h1>`, // which no failure changes
		html.EscapeString(g.Sample.Text[:20]), `<a data-open href="/messages/` + g.Recent[1].Key + `">`, `<a href="/queues/` + g.Queue + `">`, `href="/messages?q=state%3Aparked&#43;group%3A` + id + `"`,
		`<a href="/messages/` + g.Newest.Key + `">`, `<a href="/messages/` + g.Oldest.Key + `">`,
		`<button name="verb" value="replay">`, "Discard what waits…", `datetime="` + g.Last.UTC().Format("2006-01-02T15:04:05"), "redrive groups " + id,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of a group has no %s", want)
		}
	}
	for query, waits := range map[string]bool{"state:parked group:" + id: true, "group:" + id: false} {
		p, err := s.Plan(t.Context(), webtest.Root, operations.PlanRequest{Verb: actions.Discard, Query: query})
		expect.NoError(t, err)
		page := shown(s, "/plans/"+p.ID)
		if !regexp.MustCompile(`They failed between [\d-]{10} [\d:]{8} and [\d-]{0,10} ?[\d:]{8} UTC\.`).MatchString(page) {
			t.Errorf("the plan does not say when they failed: %s", page)
		}
		says := strings.Contains(page, `<a href="/messages?q=state%3Awaiting&#43;group%3A`+id+
			fmt.Sprintf(`">%d more wait`, g.Waiting))
		expect.Equal(t, says, waits, "the plan of %s says what waits", query)
	}
	if !strings.Contains(shown(s, "/messages/"+g.Newest.Key), "<bdi>gateway incident INC-2231, Pavel is on it</bdi>") {
		t.Error("the page of a message has no note on its error")
	}
	if strings.Contains(as(auth.Viewer), "<button name=\"verb\"") {
		t.Error("a viewer is offered what only an operator may do")
	}
	for state, path := range map[string]string{"acknowledged": "/groups", "ignored": "/groups?state=ignored", "": "/groups?state=all"} {
		if state != "" {
			if err := s.SetGroupState(t.Context(), webtest.Root, id, state, "INC-<7>"); err != nil {
				t.Fatal(err)
			}
			page := as(auth.Operator)
			for _, want := range []string{`<span class="tag">` + state + `</span> by <bdi>`, "<bdi>INC-&lt;7&gt;</bdi>", `value="open">Reopen`} {
				if !strings.Contains(page, want) {
					t.Errorf("the page of an %s group has no %s", state, want)
				}
			}
		}
		if !strings.Contains(shown(s, path), `id="g-`+id+`"`) {
			t.Errorf("%s does not list what is %s", path, state)
		}
	}
	if err := s.SetGroupState(t.Context(), webtest.Root, id, "ignored", ""); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/groups", "/groups?state=open"} {
		if strings.Contains(shown(s, path), `id="g-`+id+`"`) {
			t.Errorf("%s lists what is ignored", path)
		}
	}
	tabs := regexp.MustCompile(`>(\w+) <span class="total">([\d,]+)</span>`)
	var counts []string
	for _, m := range tabs.FindAllStringSubmatch(shown(s, "/groups?state=resolved"), -1) {
		counts = append(counts, m[1]+" "+m[2])
	}
	expect.Equal(t, strings.Join(counts, ", "), "Unresolved 5, Open 5, Acknowledged 0, Ignored 1, Resolved 0, All 6",
		"groups behind each tab")
	if err := s.SetGroupState(t.Context(), webtest.Root, id, "open", ""); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"/", "/groups", "/queues/" + g.Queue, "/messages/" + g.Newest.Key} {
		if !strings.Contains(shown(s, from), `href="/groups/`+id+`"`) {
			t.Errorf("%s does not lead to the group's page", from)
		}
	}
}

// One error in several queues is one row, whose page shows each queue and acts on all.
func TestAnErrorOfSeveralQueuesHasOneRowAndAPage(t *testing.T) {
	kept, now := memstore.New(), time.Now()
	s := webtest.New(kept, &webtest.Told{}, inspect.Config{})
	h := webui.Handler(s, webui.Options{Caller: func(*http.Request) auth.Caller { return webtest.Root }})
	page := func(path string) string { return get(h, path).Body.String() }
	add := func(queue, text string) {
		r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Parked, Due: now, Failures: 1,
			FirstFailed: now, FailedAt: now, Reason: "rejected", Error: text}
		expect.NoError(t, kept.Add(t.Context(), []*store.Record{r}))
	}
	for i := range 13 {
		add(fmt.Sprintf("orders.%d", 1+i), "no <stock>")
	}
	add("orders.1", "no <stock>")
	for i := range 60 {
		add("mail", "error "+string(rune('a'+i%26))+string(rune('a'+i/26)))
	}
	all, err := s.Errors(t.Context(), webtest.Root, "stock", "", "", 0)
	expect.NoError(t, err)
	id, one := all.Groups[0].ErrorID, all.Groups[0].ID
	const name = "<bdi>no &lt;stock&gt;</bdi>"
	row := `<a data-open href="/groups/` + id + `">` + name
	for _, path := range []string{"/", "/groups"} {
		list := page(path)
		expect.Contains(t, list, path, row, `<a href="/groups/`+id+`#queues"><bdi>orders.1 and 12 more</bdi></a>`,
			`<a href="/messages?q=state%3Aparked&#43;group%3A`+id+`">14</a>`)
		expect.Equal(t, strings.Count(list, name), 1, "rows of the error on %s", path)
	}
	expect.Contains(t, page("/groups"), "the first page", "50 of 61 groups on this page", `id="next" rel="next" href="/groups?after=`, `Unresolved <span class="total">61</span>`, `value="`+id+`"`)
	next, _, _ := strings.Cut(page("/groups"), `">Next page`)
	last := page(html.UnescapeString(next[strings.LastIndex(next, `href="`)+len(`href="`):]))
	expect.Contains(t, last, "the last page", "11 of 61 groups on this page", `<a class="button" id="first" href="/groups?">First page`)
	expect.NoError(t, s.SetGroupState(t.Context(), webtest.Root, one, "ignored", ""))
	whole := page("/groups/" + id)
	expect.Contains(t, whole, "the error's page", `<h1><span class="error">`+name+"</span></h1>", `and <a href="#queues">12 more queues</a>`, `<span class="tag">open in 12, ignored in 1</span>`,
		`<a data-open href="/groups/`+one+`"><bdi>orders.1</bdi></a>`, `value="state:parked group:`+id+`"><button name="verb" value="replay">`,
		`action="/groups/`+id+`/state"`, `<td data-label="Queue"><bdi>orders.`, `value="acknowledged">Acknowledge`, `value="open">Reopen`, "redrive groups "+id)
	expect.Equal(t, strings.Count(whole, `class="tag">open</span>`), 12, "queues in which it is open")
	expect.Contains(t, page("/groups/"+one), "a queue's page", `and <a href="/groups/`+id+`">other queues</a>, not counted here`)
	rest, err := s.Errors(t.Context(), webtest.Root, "stock", "", "", 0)
	expect.NoError(t, err)
	w := send(h, "/messages/plan", url.Values{"verb": {"discard"}, "group": {rest.Groups[0].Keys()}})
	p, err := s.GetPlan(t.Context(), webtest.Root, strings.TrimPrefix(w.Header().Get("Location"), "/plans/"))
	expect.NoError(t, err)
	expect.Equal(t, p.Count, 12, "messages of the row without the queue in which it is ignored")
}

// The overview says what is overdue and held back, in the words of the command line.
func TestTheOverviewSaysWhatIsDue(t *testing.T) {
	page := shown(due{list()}, "/")
	for _, want := range []string{"<dd class=\"sub\">3 overdue, 4 held back</dd>", `<span class="state stopped">overdue</span> 3 since`, `<span class="state paused">held back</span> 4`} {
		if !strings.Contains(page, want) {
			t.Errorf("the overview does not say %s", want)
		}
	}
}

type parts struct{ listing }

func (parts) Overview(context.Context, auth.Caller) (inspect.Overview, error) {
	return inspect.Overview{Parts: []inspect.Part{{Name: "Store", Text: "full <b>"}, {Name: "Ledger", Text: "adds up", Well: true}},
		HeldAll: "RabbitMQ <i>", Ready: true, Verdict: "1 thing is wrong", Conditions: []condition.Condition{{Kind: condition.Store, Text: "full"}}}, nil
}

func (parts) Ledger(context.Context, auth.Caller, bool, string, int) (inspect.Ledger, error) {
	return inspect.Ledger{}, nil
}

func TestHealthShowsEachPart(t *testing.T) {
	page := shown(parts{list()}, "/health")
	for _, want := range []string{`<dt>Store</dt><dd><span class="state stopped">wrong</span> <bdi>full &lt;b&gt;</bdi>`, `<dt>Ledger</dt><dd><bdi>adds up</bdi>`,
		`<b>Ready.</b> But 1 thing is wrong:</h2><ul><li>`, `<p>All: <bdi>RabbitMQ &lt;i&gt;</bdi>.</p>`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of health does not have %s", want)
		}
	}
	expect.Equal(t, strings.Contains(page, "retries work"), false, "it says that retries work")
}

// A silent management API is a warning in the verdict of each page.
func TestThePagesWarnOfASilentManagementAPI(t *testing.T) {
	l := list()
	l.holds = []condition.Condition{{Kind: condition.Management, Text: "it does not answer"}}
	for _, target := range []string{"/", "/health"} {
		page := shown(l, target)
		expect.Contains(t, page, target, `<p class="wrong warn"><b>Ready.</b> But the management API does not answer.`)
		expect.Equal(t, strings.Contains(page, "wrong bad") || strings.Contains(page, "othing is wrong"), false,
			"%s has another verdict", target)
	}
}

type well struct {
	listing
	parked int64
}

func (w well) Overview(context.Context, auth.Caller) (inspect.Overview, error) {
	return inspect.Overview{Ready: true, Well: true, Verdict: "nothing is wrong, as told", Parked: w.parked, Queues: w.queues,
		MoreQueues: 11}, nil
}

func (well) Ledger(context.Context, auth.Caller, bool, string, int) (inspect.Ledger, error) {
	return inspect.Ledger{}, nil
}

// Pages show the verdict as it is given, and no all-clear while messages are parked.
func TestThePagesSayTheVerdict(t *testing.T) {
	for parked, class := range map[int64]string{0: "good", 7: "info"} {
		for target, begins := range map[string]string{"/": "<b>Nothing", "/health": "<b>Ready.</b> Nothing"} {
			page := shown(well{list(inspect.Queue{Name: "a", Failed: 1}, inspect.Queue{Name: "b"}), parked}, target)
			expect.Contains(t, page, target, `<p class="wrong `+class+`">`+begins+" is wrong, as told.")
			expect.Equal(t, strings.Contains(page, `<p><a href="/queues">All 13 queues</a></p>`), target == "/", "%s leads to all queues", target)
		}
	}
}

// A queue without consumers stands out on its own page as in the list.
func TestAQueuesPageMarksThatItHasNoConsumers(t *testing.T) {
	expect.Contains(t, shown(webtest.Stocked(inspect.Config{}), "/queues/search.index"), "the page",
		`<dt>Consumers</dt><dd><span class="state stopped">none</span></dd>`)
}

type endless struct{ listing }

func (endless) Policies(ctx context.Context, _ auth.Caller) ([]inspect.PolicyInForce, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

type ladders struct {
	listing
	all []inspect.PolicyInForce
}

func (l ladders) Policies(context.Context, auth.Caller) ([]inspect.PolicyInForce, error) {
	return l.all, nil
}

// Neighbouring policies that differ only in name and queues are drawn once, and waits that stay the same not at all.
func TestEqualPoliciesAreDrawnOnce(t *testing.T) {
	var l ladders
	for i := range 13 {
		i = 12 - i
		p := inspect.PolicyInForce{Name: fmt.Sprint("p", i), Queues: []string{fmt.Sprint("queue.", i)}, Attempts: 1_000_000,
			Jitter: "none", Settled: 3, Total: "115d 17h", Failures: int64(i)}
		for n := range 100 {
			p.Waits = append(p.Waits, inspect.Wait{Attempt: n + 1, Least: "10s", Most: "10s"})
		}
		l.all = append(l.all, p)
	}
	page := shown(l, "/policies")
	expect.Equal(t, strings.Count(page, `class="card policy"`), 1, "cards")
	expect.Equal(t, strings.Count(page, `class="most"`), 10, "bars")
	expect.Contains(t, page, "the policies", `<bdi>p0</bdi>, <bdi>p1</bdi>, <bdi>p2</bdi>`, `<bdi>p9</bdi> and 3 more</h2>`,
		`queue.9</bdi></code> <details><summary>3 more</summary><code><bdi>queue.10</bdi></code> <code><bdi>queue.11</bdi></code>`,
		"; 115d 17h in all</caption>", "and 999,989 waits more, like the last")
	for i := range l.all {
		l.all[i].Settled = 100
	}
	l.all[5].Attempts = 7
	page = shown(l, "/policies")
	expect.Equal(t, strings.Count(page, `class="card policy"`), 3, "cards where the sixth is another")
	expect.Equal(t, strings.Count(page, `class="most"`), 300, "bars where all waits differ")
}

// A page that still loads is marked in the navigation.
func TestALoadingPageKeepsItsTab(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := shown(endless{list()}, "/policies?outage=x")
		expect.Contains(t, page, "the page", `id="loading"`, `<a href="/policies" aria-current="page">`)
		expect.Equal(t, strings.Contains(page, "messages are searched"), false, "it speaks of messages")
	})
}

// The banner has a line per kind of problem, and is the same on all pages.
func TestTheBannerSaysOnceWhatIsWrong(t *testing.T) {
	var holds []condition.Condition
	h := webui.Handler(webtest.Stocked(inspect.Config{}), webui.Options{
		Caller:     func(*http.Request) auth.Caller { return webtest.Root },
		Conditions: func(auth.Caller) []condition.Condition { return holds }})
	for _, c := range []struct{ target, queues, more, want string }{
		{"/queues", "mail.send <b>", "", "2 queues' breakers hold retries back: mail.send, <b>"},
		{"/queues", "a b c d e", "", "5 queues' breakers hold retries back: a, b, c and 2 more"},
		{"/queues", "a", "", "breaker of queue a: open"},
		{"/queues/mail.send", "mail.send a", "", "2 queues' breakers hold retries back: mail.send, a"},
		{"/queues/mail.send", "mail.send", "", "breaker of queue mail.send: open"},
		{"/queues", "a b c+ d+", "", "2 queues' breakers hold retries back: a, b; " +
			"2 queues are paused, and their breakers are not closed: c, d"},
		{"/queues", "c+", "", "breaker of queue c: half-open; no probe is sent while it is paused"},
		{"/messages", "a b", condition.Silent + ": refused",
			"2 queues' breakers hold retries back: a, b; RabbitMQ does not answer"},
		{"/messages", "", "a; lost", "connections: a; lost"},
	} {
		holds = nil
		for _, q := range strings.Fields(c.queues) {
			q, paused := strings.CutSuffix(q, "+")
			text := "open"
			if paused {
				text = condition.WhilePaused("half-open", "3 probes are sent")
			}
			holds = append(holds, condition.Condition{Kind: condition.Breaker, Queue: q, Text: text})
		}
		if c.more != "" {
			holds = append(holds, condition.Condition{Kind: condition.Connections, Text: c.more})
		}
		_, got, _ := strings.Cut(get(h, c.target).Body.String(), "<b>Wrong now:</b>")
		got, _, _ = strings.Cut(got, "<a href")
		got = html.UnescapeString(strings.NewReplacer("<bdi>", "", "</bdi>", "").Replace(got))
		expect.Equal(t, strings.TrimSpace(got), c.want, "the banner of %s with %s", c.target, c.queues)
	}
}

// Where nothing waits, the overview says so instead of slots without messages.
func TestTheOverviewSaysThatNothingWaits(t *testing.T) {
	held := webtest.New(memstore.New(), &webtest.Told{Returns: map[string]string{"orders": "gone"}}, inspect.Config{})
	inspecttest.Add(t, held.Store, inspecttest.Record("orders", store.Waiting, "x"))
	page := shown(held, "/")
	_, upcoming, _ := strings.Cut(page, `id="calendar"`)
	upcoming, _, _ = strings.Cut(upcoming, "</section>")
	if !strings.Contains(upcoming, "held back</span> 1") || strings.Contains(upcoming, "<table") || strings.Contains(upcoming, "Nothing waits") {
		t.Errorf("where all is held back, the upcoming retries are %s", upcoming)
	}
	shop := webtest.New(memstore.New(), nil, inspect.Config{})
	if page := shown(shop, "/"); !strings.Contains(page, "Nothing waits, so nothing is due.") {
		t.Error("the overview of an empty shop does not say that nothing waits")
	} else if !strings.Contains(shown(shop, "/queues"), "Followed: what comes is retried") {
		t.Error("the list of queues has no other dead-letter queues")
	} else if _, after, _ := strings.Cut(page, `id="failing-title"`); !strings.Contains(after, "Followed: what comes is retried") {
		t.Error("other dead-letter queues are not at the end, with what is done to them")
	}
}

// The help has an example of each field that a query can have.
func TestTheHelpHasEachField(t *testing.T) {
	page := htmlpkg.UnescapeString(shown(list(), "/help"))
	for _, f := range query.Fields() {
		if !strings.Contains(page, "<code>"+f.Example+"</code>") {
			t.Errorf("the help does not have %s", f.Example)
		}
	}
}

type due struct{ listing }

func (due) Overview(context.Context, auth.Caller) (inspect.Overview, error) {
	return inspect.Overview{Waiting: 7, Stopped: 4, Overdue: inspect.Slot{From: time.Now().Add(-time.Hour), Count: 3}}, nil
}

// Each tab says how many messages are behind it, as the caller sees them, where no search is needed for that.
func TestATabSaysHowManyAreBehindIt(t *testing.T) {
	shop := list().Shop
	expect.NoError(t, shop.Store.Add(t.Context(), slices.Concat(inspecttest.Parked("orders", 3), inspecttest.Parked("mail", 2))))
	counts := regexp.MustCompile(`>(\w+) <span class="total">([\d,]+)</span>`)
	for _, c := range []struct {
		sees  []string
		query string
		want  string
	}{
		{nil, "state:waiting", "[Waiting 0] [Parked 5] [Discarded 0]"},
		{nil, "state:waiting queue:orders", "[Waiting 0] [Parked 3] [Discarded 0]"},
		{[]string{"mail"}, "state:waiting", "[Waiting 0] [Parked 2] [Discarded 0]"},
		{nil, "text:x", ""},
	} {
		h := webui.Handler(shop, webui.Options{Caller: func(*http.Request) auth.Caller {
			return auth.Caller{Name: "ann", Role: auth.Viewer, Queues: c.sees}
		}})
		var got []string
		for _, m := range counts.FindAllStringSubmatch(get(h, "/messages?q="+url.QueryEscape(c.query)).Body.String(), -1) {
			got = append(got, fmt.Sprint(m[1:]))
		}
		expect.Equal(t, strings.Join(got, " "), c.want, "%s for %v", c.query, c.sees)
	}
}

// The columns of one's choice are in each link of the page, in its form of actions, and in its command.
func TestTheColumnsOfChoice(t *testing.T) {
	s := scenes()[0]
	h := webui.Handler(endlessly{s.shop}, webui.Options{Caller: func(*http.Request) auth.Caller { return s.caller }})
	page := get(h, "/messages?q=state%3Aparked+queue%3Amail.send&columns=queue,header.tenant,failed,body.order.customer").Body.String()
	for _, want := range []string{
		`&amp;sort=header.tenant" title="Sort this page by this">header.tenant</a></th>`, `<td data-label="header.tenant"><bdi>acme</bdi></td>`, `"><bdi>mail.send</bdi></a></td>`,
		`<td data-label="failed"><time`, `<td data-label="body.order.customer"><bdi>Zoë Křížová</bdi></td>`, `redrive messages list --columns queue,header.tenant,failed,body.order.customer `,
		`<input type="hidden" name="columns" value="queue,header.tenant,failed,body.order.customer">`, `href="/messages?columns=queue%2Cheader.tenant%2Cfailed%2Cbody.order.customer&amp;q=`,
		`href="/messages?after=x&amp;columns=queue%2Cheader.tenant%2Cfailed%2Cbody.order.customer&amp;q=`, `&amp;columns=queue%2Cheader.tenant%2Cfailed%2Cbody.order.customer" hx-trigger="tick"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	expect.Equal(t, strings.Contains(page, "What went wrong"), false, "the usual columns too")
	expect.Equal(t, strings.Contains(get(h, "/messages?q=a").Body.String(), "redrive messages list &#39;a state:*&#39;"), true, "the command finds what the page does")
	id := s.shop.Has.Order
	form := fields(t, send(h, "/messages/act", url.Values{"verb": {"discard"}, "id": {id}, "q": {"a"}, "columns": {"queue"}}).Body.String())
	form.Set("confirmed", "1")
	expect.Equal(t, send(h, "/messages/act", form).Header().Get("Location"), "/messages?columns=queue&q=a&did=discard&n=1", "what was done leads back")

	second := send(h, "/messages/act", form) // of two who had the form open
	if body := second.Body.String(); !strings.Contains(body, "it is discarded already") {
		t.Errorf("%d %s", second.Code, body)
	}

	wrong := get(h, "/messages?q=&columns=qeue%3Cb%3E,error")
	if body := wrong.Body.String(); wrong.Code != 422 || !strings.Contains(body, "there is no column &#34;qeue&lt;b&gt;&#34;") ||
		!strings.Contains(get(h, "/messages?columns=qeue").Body.String(), "did you mean &#34;queue&#34;?") || !strings.Contains(body, "What went wrong") {
		t.Errorf("%d %s", wrong.Code, body)
	}
}

// What is refused to those who see bodies masked is not offered to them.
func TestAnExportIsOfferedToThoseWhoSeeBodies(t *testing.T) {
	rules := mask.New(nil, mask.DefaultBodies())
	shop := webtest.New(memstore.New(), nil, inspect.Config{Mask: func() *mask.Rules { return rules }})
	expect.NoError(t, shop.Store.Add(t.Context(), inspecttest.Parked("orders", 1)))
	for role, want := range map[auth.Role]bool{auth.Viewer: false, auth.Editor: false, auth.Admin: true} {
		h := scene{shop: shop, caller: inspecttest.Caller(role)}.handler()
		expect.Equal(t, strings.Contains(get(h, "/messages").Body.String(), "/messages/export?q="), want, "%s is offered an export", role)
		expect.Equal(t, get(h, "/messages/export?q=state:parked").Code == 200, want, "%s gets an export", role)
	}
}

// A masked message is shown to whoever may see it, as the answer to a form that asks for a reason.
func TestAMaskedMessageIsShown(t *testing.T) {
	rules := mask.New([]mask.Entry{{Patterns: []string{"/s3cret/"}}}, mask.DefaultBodies(), auth.Operator)
	shop := webtest.New(memstore.New(), nil, inspect.Config{Mask: func() *mask.Rules { return rules }})
	r := inspecttest.Record("orders", store.Parked, `"s3cret `+strings.Repeat("x", 70_000)+`s3cret"`)
	r.Error = "s3cret"
	inspecttest.Add(t, shop.Store, r)
	page, why := "/messages/"+r.ID.String(), url.Values{"reason": {" <ticket> 7"}}
	for role, status := range map[auth.Role]int{auth.Viewer: 403, auth.Operator: 200, auth.Editor: 403, auth.Admin: 200} {
		h := scene{shop: shop, caller: inspecttest.Caller(role)}.handler()
		masked, shown := get(h, page), send(h, page, why)
		expect.Equal(t, strings.Contains(masked.Body.String(), `<form method="post" action="`+page+`">`), role == auth.Operator, "%s is offered it", role)
		expect.Equal(t, strings.Contains(masked.Body.String(), "s3cret"), role == auth.Admin, "%s sees it without a reason", role)
		expect.Equal(t, shown.Code, status, "%s gets", role)
		text := shown.Body.String()
		if strings.Contains(text, "s3cret") != (status == 200) || strings.Contains(text, "xs3cret") != (status == 200) || strings.Contains(text, page+"/body") ||
			shown.Header().Get("Cache-Control") != "no-store" || status == 200 && !strings.Contains(text, "<bdi>&lt;ticket&gt; 7</bdi>") {
			t.Errorf("%s is shown %d %v %.9000s", role, shown.Code, shown.Header(), text)
		}
		expect.Equal(t, send(h, page, nil).Code, map[int]int{200: 422, 403: 403}[status], "%s gets without a reason", role)
	}
}

// Before an action is confirmed, each message is shown as the list shows it to that caller.
func TestAConfirmationShowsWhatIsChosen(t *testing.T) {
	rules := mask.New([]mask.Entry{{Patterns: []string{"/ann/"}}}, mask.DefaultBodies())
	shop := webtest.New(memstore.New(), nil, inspect.Config{Mask: func() *mask.Rules { return rules }})
	failed, expired := inspecttest.Record("orders", store.Parked, "x"), inspecttest.Record("mail", store.Parked, "y")
	failed.Error, failed.Message.Type, expired.Error, expired.Reason = "<ann> has no account", "order.paid", "", "expired"
	inspecttest.Add(t, shop.Store, failed, expired)
	form := url.Values{"verb": {"discard"}, "id": {failed.ID.String(), expired.ID.String(), "gone"}}
	for role, sees := range map[auth.Role]string{auth.Operator: "&lt;[masked]&gt;", auth.Admin: "&lt;ann&gt;"} {
		h := scene{shop: shop, caller: inspecttest.Caller(role)}.handler()
		page := send(h, "/messages/act", form).Body.String()
		for _, want := range []string{
			`"><bdi>` + sees + ` has no account</bdi></a> <span class="tag"><bdi>order.paid</bdi></span></td><td class="queue" data-label="Queue"><bdi>orders</bdi>`,
			`">expired</a></td><td class="queue" data-label="Queue"><bdi>mail</bdi>`,
			`">gone</a></td><td class="queue" data-label="Queue"><bdi></bdi></td><td data-label="Left out because"><span class="state out-skipped">left out</span> <bdi>there is no such message any more</bdi>`,
		} {
			if !strings.Contains(page, want) {
				t.Errorf("%s is asked without %s: %s", role, want, page)
			}
		}
	}
}

// opened are the names of the rows of a page, in their order.
func opened(page string) string {
	var all []string
	for _, m := range regexp.MustCompile(`data-open href="[^"]*">(?:<bdi>)?([^<]*)`).FindAllStringSubmatch(page, -1) {
		all = append(all, m[1])
	}
	return strings.Join(all, " ")
}

// The list of queues tells what is due from what will be, and names a way only where it is RabbitMQ's.
func TestTheQueuesSayWhatIsDue(t *testing.T) {
	past, ahead := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	page := shown(list(inspect.Queue{Name: "a", Policy: "p", Way: "redis", NextDue: &past},
		inspect.Queue{Name: "b", Policy: "p", Way: "native", NextDue: &ahead}), "/queues")
	expect.Contains(t, page, "the page", `due since</span> <time data-when datetime="`+past.UTC().Format("2006-01-02T15:04"),
		`next due</span> <time data-when datetime="`+ahead.UTC().Format("2006-01-02T15:04"), "waits in RabbitMQ (native)")
	expect.Equal(t, strings.Contains(page, "redis"), false, "it names the store's way")
}

// A heading sorts the rows of a page by what is in its column, and again the other way round; what is not known is least.
func TestAHeadingSortsAPage(t *testing.T) {
	at := func(n int) *inspect.AtBroker { return &inspect.AtBroker{Exists: true, Ready: n, Unacked: &n} }
	queues := list(inspect.Queue{Name: "a", Waiting: 2, Broker: at(9)}, inspect.Queue{Name: "b", Waiting: 10}, inspect.Queue{Name: "c", Waiting: 2, Broker: at(0)})
	s := webtest.Stocked(inspect.Config{})
	h := webui.Handler(endlessly{s}, webui.Options{Caller: func(*http.Request) auth.Caller { return webtest.Root }})
	sizes := func(target string) (all []int) {
		for _, m := range regexp.MustCompile(`data-label="Fails">(\d+)`).FindAllStringSubmatch(get(h, target).Body.String(), -1) {
			n, _ := strconv.Atoi(m[1])
			all = append(all, n)
		}
		return all
	}
	for sort, want := range map[string]string{"": "a b c", "name": "a b c", "-name": "c b a", "waiting": "a c b", "-waiting": "b a c",
		"unacked": "b c a", "-ready": "a c b", "nonsense": "a b c", "-": "a b c"} {
		expect.Equal(t, opened(shown(queues, "/queues?sort="+sort)), want, "queues sorted by %q", sort)
	}
	if up := sizes("/messages?q=&sort=attempt"); len(up) < 10 || !slices.IsSorted(up) || slices.IsSorted(sizes("/messages?q=")) {
		t.Errorf("messages sorted by their failures: %v", up)
	}
	for _, c := range []struct{ page, want string }{
		{shown(queues, "/queues"), `<th scope="col" aria-sort="ascending"><a href="/queues?sort=-name" title="Sort by this">Queue</a></th>`},
		{shown(queues, "/queues"), `<th scope="col" class="n"><a href="/queues?sort=-waiting" title="Sort by this">Waiting</a></th>`},
		{shown(queues, "/queues?sort=-waiting&did=x"), `<th scope="col" class="n" aria-sort="descending"><a href="/queues?sort=waiting" title="Sort by this">Waiting</a></th>`},
		{shown(queues, "/queues?sort=-name"), `<a href="/queues?" title="Sort by this">Queue`},
		{shown(queues, "/queues?after=x"), `<a href="/queues?after=x&amp;sort=-waiting" title="Sort this page by this">`},
		{shown(queues, "/queues?after=x&sort=-ready"), `</span>Sorted within this page.</caption>`},
		{shown(s, "/groups?state=all&q=queue:*&sort=-last"), `<a href="/groups?q=queue%3A%2A&amp;sort=-parked&amp;state=all" title`},
		{shown(s, "/groups?state=all&q=queue:*&sort=-last"), `<a href="/groups?q=queue%3A%2A&amp;sort=-last&amp;state=ignored">Ignored <span class="total">0</span></a>`},
		{shown(s, "/groups?state=all&q=queue:*&sort=-last"), `<input type="hidden" name="sort" value="-last">`},
		{shown(s, "/messages?q=state:parked"), `aria-sort="descending"><a href="/messages?q=state%3Aparked&amp;sort=next" title="Sort by this">Parked</a>`},
		{shown(s, "/messages?q=state:waiting"), `aria-sort="ascending"><a href="/messages?q=state%3Awaiting&amp;sort=-next" title="Sort by this">Due</a>`},
		{shown(s, "/messages?q=state:waiting+due:<9h"), `aria-sort="ascending"><a href="/messages?q=state%3Awaiting+due%3A%3C9h&amp;sort=-next" title="Sort by this">Due</a>`},
		{shown(s, "/messages?q=state:waiting+due:<9h&columns=queue"), "<caption>Messages that the query finds, soonest first<"},
		{shown(s, "/groups"), "<caption>Groups of failures, those with the most messages first<"},
		{shown(s, "/messages?q="), `>State</a>`},
	} {
		if !strings.Contains(c.page, c.want) {
			t.Errorf("the page has no %s: %s", c.want, c.page)
		}
	}
	expect.Equal(t, strings.Contains(shown(s, "/messages?q=due:<9h"), `id="newer"`), false, "a list that starts with what leaves it says what is new above")
	expect.Equal(t, strings.Contains(shown(s, "/messages?q=state:parked"), ">State</a>"), false, "a list of one state names it in each row")
	expect.Equal(t, strings.Contains(shown(s, "/messages?q=header.tenant:acme+queue:orders.*"), "among the first"), false,
		"a list says how many were looked at")
	top, err := s.Search(t.Context(), webtest.Root, "queue:*", "", 1)
	expect.NoError(t, err)
	second := shown(s, "/messages?q=queue:*&columns=queue,size&sort=-size&after="+url.QueryEscape(top.After))
	expect.Contains(t, second, "the second page", `id="first" href="/messages?columns=queue%2Csize&amp;q=queue%3A%2A&amp;sort=-size">First page`)
	page := get(h, "/messages?q=queue:*&columns=queue,size&after=0.x&sort=-size").Body.String()
	page += get(h, "/messages?q=queue:*&columns=queue,size&sort=-size").Body.String()
	for _, want := range []string{
		`<input type="hidden" name="sort" value="-size">`, `href="/messages?after=x&amp;columns=queue%2Csize&amp;q=queue%3A%2A&amp;sort=-size">Next page`,
		`<a href="/messages?columns=queue%2Csize&amp;q=queue%3A%2A&amp;sort=size" title="Sort this page by this">size`, `aria-sort="descending"`,
		`<a href="/messages?columns=queue%2Csize&amp;q=state%3Awaiting&#43;queue%3A%2A&amp;sort=-size"`, `&amp;sort=-size" hx-trigger="tick"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the list of messages has no %s", want)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
	form := fields(t, send(h, "/messages/act", url.Values{"verb": {"discard"}, "id": {s.Has.Order}, "q": {"a"}, "sort": {"-size"}}).Body.String())
	form.Set("confirmed", "1")
	expect.Equal(t, send(h, "/messages/act", form).Header().Get("Location"), "/messages?q=a&sort=-size&did=discard&n=1", "what was done leads back")
}

// The order of a page tells nothing of what its caller does not see.
func TestAPageIsNotSortedByWhatIsMasked(t *testing.T) {
	rules := mask.New([]mask.Entry{{Patterns: []string{"/ann|bob/"}, Paths: []string{"header.user", "body.user"}}}, mask.DefaultBodies())
	shop := webtest.New(memstore.New(), nil, inspect.Config{Mask: func() *mask.Rules { return rules }})
	for i, name := range []string{"bob", "ann", "bob"} {
		r := inspecttest.Record("orders", store.Parked, fmt.Sprintf(`{"user": "%s"}`, name))
		r.Due, r.Error, r.Fingerprint = r.Due.Add(-time.Duration(i)*time.Second), name+" has no account", [16]byte{byte(i)}
		r.Message.Headers, r.Message.ContentType = amqp.Table{"user": name}, "application/json"
		inspecttest.Add(t, shop.Store, r)
	}
	ids := regexp.MustCompile(`<tr id="([mg]-[^"]*)"`)
	for role, tells := range map[auth.Role]bool{auth.Operator: false, auth.Admin: true} {
		h := scene{shop: shop, caller: inspecttest.Caller(role)}.handler()
		for _, c := range [][2]string{{"/messages?q=", "error"}, {"/messages?q=&columns=header.user", "header.user"}, {"/messages?q=&columns=body.user", "body.user"}} {
			order := func(sort string) string {
				return fmt.Sprint(ids.FindAllStringSubmatch(get(h, c[0]+"&sort="+sort).Body.String(), -1))
			}
			stored := order("")
			expect.Equal(t, strings.Count(stored, "m-") > 0, true, "messages are listed")
			expect.Equal(t, order(c[1]) != stored, tells, "to %s the order by %s tells something", role, c[1])
			expect.Equal(t, order("-"+c[1]) != stored, tells, "to %s the order by -%s tells something", role, c[1])
		}
		up, down := ids.FindAllString(get(h, "/groups?sort=error").Body.String(), -1), ids.FindAllString(get(h, "/groups?sort=-error").Body.String(), -1)
		expect.Equal(t, slices.Equal(up, down), !tells, "to %s the order of %d groups tells something", role, len(up))
	}
}

// What a box of queries suggests can be asked there, and what cannot is said while it is written.
func TestABoxSuggestsWhatItTakes(t *testing.T) {
	for _, page := range []string{"/messages", "/groups"} {
		_, suggests, _ := strings.Cut(shown(list(), page), `placeholder="`)
		suggests, _, _ = strings.Cut(suggests, `"`)
		q := url.QueryEscape(htmlpkg.UnescapeString(suggests))
		if says := shown(list(), page+"?q="+q); suggests == "" || strings.Contains(says, "query-fault") {
			t.Errorf("%s suggests %s, and refuses it", page, suggests)
		}
	}
	for check, fault := range map[string]bool{"q=attempt:3": false, "q=attempt:3&groups=1": true, "q=error:x&groups=1": false} {
		if says := shown(list(), "/messages/check?"+check); strings.Contains(says, "query-fault") != fault {
			t.Errorf("the check of %s says %q", check, says)
		}
	}
	if !strings.Contains(shown(list(), "/groups"), `hx-get="/messages/check?groups=1"`) {
		t.Error("the box of the groups is checked as one of messages")
	}
}

// A count leads to the messages that it counts, on both pages.
func TestACountLeadsToWhatItCounts(t *testing.T) {
	console := list(inspect.Queue{Name: "a b", Waiting: 3, Parked: 4})
	for _, target := range []string{"/", "/queues"} {
		page := shown(console, target)
		for state, n := range map[string]int{"waiting": 3, "parked": 4} {
			want := fmt.Sprintf(`<a href="/messages?q=state%%3A%s&#43;queue%%3A%%22a&#43;b%%22">%d</a>`, state, n)
			if !strings.Contains(page, want) {
				t.Errorf("the page %s has no %s", target, want)
			}
		}
	}
}

// The size of a compressed page would tell other sites what it says.
func TestAPageIsNotCompressedForOtherSites(t *testing.T) {
	for site, want := range map[string]string{"": "gzip", "same-origin": "gzip", "cross-site": ""} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("Sec-Fetch-Site", site)
		w := httptest.NewRecorder()
		scenes()[0].handler().ServeHTTP(w, r)
		if got := w.Header().Get("Content-Encoding"); w.Code != 200 || got != want {
			t.Errorf("%q: %d, encoded as %q, want %q", site, w.Code, got, want)
		}
	}
}

// The overview names the queues whose breaker keeps retries back, and not one that a person has closed.
func TestTheOverviewNamesWhatIsPaused(t *testing.T) {
	for to, named := range map[string]bool{"closed": false, "open": true} {
		queue := inspect.Queue{Name: "orders", Throttle: &inspect.ThrottleView{State: to, Forced: &inspect.Forced{To: to, By: "dana"}}}
		console := list(queue)
		console.holds = []condition.Condition{{Kind: condition.Breaker, Queue: "orders", Text: "once"}, {Kind: condition.Breaker, Queue: "mail", Text: "open"}}
		page := shown(console, "/")
		if strings.Contains(page, "Retries held back") != named {
			t.Errorf("with a breaker set to %s the overview says that retries are paused: %t", to, !named)
		}
		if strings.Contains(page, "breaker of queue orders") == named || !strings.Contains(page, "breaker of queue mail") {
			t.Errorf("with a breaker set to %s the overview names it twice, or not that of a queue that it does not list", to)
		}
		page = shown(console, "/health")
		if strings.Contains(page, "retries work for all queues") == named {
			t.Errorf("with a breaker set to %s the page of health says that all retries work: %t", to, named)
		}
		if strings.Contains(page, "breaker of queue orders") == named || !strings.Contains(page, "breaker of queue mail") ||
			strings.Contains(page, "<li>1 more: see <a href=\"#stopped-title\">") != named {
			t.Errorf("with a breaker set to %s Health says it twice, or not at all: %s", to, page)
		}
	}
}

// Of many queues that are held back the overview names those with the most messages waiting.
func TestTheOverviewNamesFewQueues(t *testing.T) {
	var all []inspect.Queue
	for i := range 13 {
		all = append(all, inspect.Queue{Name: fmt.Sprint("q", i), Waiting: int64(i), Unreachable: "gone"})
	}
	_, page, _ := strings.Cut(shown(list(all...), "/"), `id="storms"`)
	page, _, _ = strings.Cut(page, "</div>")
	expect.Contains(t, page, "those that are held back", "<bdi>q12</bdi>", "<bdi>q8</bdi>", `<a href="/health#stopped-title">8 more</a>`)
	expect.Equal(t, strings.Count(page, "<li>"), 6, "lines")
}

// Two tiles of one name mean two things, and a number that is refreshed alone may not fit what is said below it.
func TestTheOverviewsNumbers(t *testing.T) {
	page := shown(list(), "/")
	expect.Contains(t, page, "the overview", "</i>Parked/min</dt>")
	expect.Equal(t, strings.Contains(page, `data-live="waiting"`), false, "what waits is refreshed without what of it is held back")
}

// The overview shows how far the operations are that have not ended, and no empty part where none runs.
func TestTheOverviewShowsWhatIsUnderWay(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	_, err := s.Order(t.Context(), webtest.Root, s.Has.Running, operations.Cancel)
	expect.NoError(t, err)
	page := shown(s, "/")
	line := regexp.MustCompile(`<a href="/operations/` + s.Has.Paused +
		`">Replay 8 messages</a> <span class="state op-paused">paused</span> <svg .*</svg> 0 % .*state:parked queue:search.index`)
	expect.Equal(t, line.MatchString(page), true, "the paused one is shown: %s", page)
	expect.Equal(t, strings.Contains(page, s.Has.Running), false, "the canceled one is shown")
	few := webtest.Root
	few.Queues = []string{"orders.capture"}
	expect.Equal(t, strings.Contains(get(scene{shop: s, caller: few}.handler(), "/").Body.String(), s.Has.Paused), false,
		"who does not see its queue is shown it")
	expect.Equal(t, strings.Contains(shown(list(), "/"), "under-way-title"), false, "there is an empty part")
}

// ran is a console with these operations.
type ran struct {
	listing
	all []operations.Operation
}

func (r ran) Operations(context.Context, auth.Caller) ([]operations.Operation, error) {
	return r.all, nil
}
func (r ran) Operation(context.Context, auth.Caller, string) (operations.Operation, error) {
	return r.all[0], nil
}
func (ran) Outcomes(context.Context, auth.Caller, string, string, int) (operations.Outcomes, error) {
	return operations.Outcomes{}, nil
}

// The watch of a canary says how long it still takes, and one that failed leads to its message.
func TestACanaryIsWatched(t *testing.T) {
	until := time.Now().Add(time.Hour)
	o := operations.Operation{Plan: operations.Plan{ID: "x", Verb: actions.Replay, Count: 30, Query: "group:1", About: "no <b>stock</b>"},
		State: operations.Watching, Done: 5, CanarySent: 5, CanaryUntil: &until, Left: "59m"}
	const named = "no &lt;b&gt;stock&lt;/b&gt;"
	watched := ran{list(), []operations.Operation{o}}
	for _, target := range []string{"/", "/operations"} {
		expect.Contains(t, shown(watched, target), target, "watched for 59m more", "<bdi>"+named)
	}
	expect.Contains(t, shown(watched, "/operations/x"), "the operation", "5 of the first 5 sent; the watch ends <time")
	const id = "01a22365-e32b-729a-a5bd-758fa22a3c32"
	o.State, o.Ended, o.Left = operations.Stopped, &until, ""
	o.Why = "the canary failed again (message " + id + ": <i>); what is left is as it was"
	stopped := ran{list(), []operations.Operation{o}}
	expect.Contains(t, shown(stopped, "/operations/x"), "the operation",
		`again (message <a href="/messages/`+id+`">`+id+`</a>: &lt;i&gt;); what is left`)
	expect.Contains(t, shown(stopped, "/operations"), "the operations", "the canary failed again (message "+id+": &lt;i&gt;)")
}

// A refused form links back to its page.
func TestARefusedFormLeadsBack(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	_, err := s.Order(t.Context(), webtest.Root, s.Has.Running, operations.Cancel)
	expect.NoError(t, err)
	h := scene{shop: s, caller: webtest.Root}.handler()
	for at, back := range map[string]string{"/operations/" + s.Has.Running + "/pause": "/operations/" + s.Has.Running,
		"/plans/" + s.Has.Blocked + "/start": "/plans/" + s.Has.Blocked} {
		w := send(h, at, url.Values{"expect_count": {"1"}})
		expect.Equal(t, w.Code, 409, "%s", at)
		expect.Equal(t, strings.Contains(w.Body.String(), `<a class="button" href="`+back+`">Back</a>`), true, "%s", w.Body)
	}
	w := send(h, "/operations/"+uuid.NewString()+"/pause", nil)
	expect.Equal(t, w.Code, 404, "none such")
	expect.Equal(t, strings.Contains(w.Body.String(), "Back"), false, "%s", w.Body)
}

// An outcome is named by its message's error, as the caller sees it.
func TestAnOutcomeIsNamedByItsError(t *testing.T) {
	rules := mask.New([]mask.Entry{{Patterns: []string{"/ann/"}}}, mask.DefaultBodies())
	shop := webtest.New(memstore.New(), nil, inspect.Config{Mask: func() *mask.Rules { return rules }})
	r := inspecttest.Record("orders", store.Parked, "x")
	r.Error = "<ann> has no account"
	inspecttest.Add(t, shop.Store, r)
	all := operations.Outcomes{Outcomes: []actions.Outcome{{ID: r.ID.String(), Queue: "orders"}, {ID: uuid.NewString()}}}
	for role, want := range map[auth.Role]string{auth.Operator: "&lt;[masked]&gt;", auth.Admin: "&lt;ann&gt;"} {
		h := scene{caller: inspecttest.Caller(role)}
		page := get(webui.Handler(came{shop, all}, webui.Options{Caller: func(*http.Request) auth.Caller { return h.caller }}),
			"/operations/x").Body.String()
		for _, want := range []string{`"><bdi>` + want + ` has no account</bdi></a>`, `">` + all.Outcomes[1].ID + `</a>`} {
			expect.Equal(t, strings.Contains(page, want), true, "%s sees %s in %s", role, want, page)
		}
	}
}

// came returns a shop whose operation has these results.
type came struct {
	*webtest.Shop
	all operations.Outcomes
}

func (came) Operation(context.Context, auth.Caller, string) (operations.Operation, error) {
	return operations.Operation{Plan: operations.Plan{ID: "x", Verb: actions.Discard, Count: 2}, State: operations.Running}, nil
}

func (c came) Outcomes(context.Context, auth.Caller, string, string, int) (operations.Outcomes, error) {
	return operations.Outcomes{Outcomes: slices.Clone(c.all.Outcomes)}, nil
}

// Why messages were parked is said once where it is the same for all on the page.
func TestWhatAllWereParkedForIsSaidOnce(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	const why = "its attempts are used up (5 of 5)"
	page := shown(s, "/messages?q=state:parked")
	expect.Equal(t, strings.Count(page, why), 1, "it is said")
	expect.Contains(t, page, "the page", "on this page, each parked: <bdi>"+why)
	if page := shown(s, "/messages?q="); strings.Count(page, why) < 10 || strings.Contains(page, "each parked") {
		t.Error("where some wait, rows do not say why they were parked")
	}
}

// Enter confirms what can be undone by waiting, and discards nothing by itself.
func TestNoButtonThatDiscardsHasTheFocus(t *testing.T) {
	s := scenes()[0]
	for verb, focus := range map[string]bool{"replay": true, "discard": false} {
		page := send(s.handler(), "/messages/act", url.Values{"verb": {verb}, "id": {s.shop.Has.Order}}).Body.String()
		expect.Contains(t, page, verb, "confirm-button")
		expect.Equal(t, strings.Contains(page, "autofocus"), focus, "%s has the focus", verb)
	}
}

// What happened to a message has an error once, as long as it stays the same.
func TestAMessageRepeatsNoError(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	page := shown(s, "/messages/"+s.Has.Order)
	expect.Equal(t, fmt.Sprint(strings.Count(page, `<p class="error">`), strings.Count(page, `<p class="dim">the same error`)), "1 4",
		"attempts with the error, and with the same one")
	expect.Contains(t, page, "the page", "waited <b>10s</b>")
	expect.Contains(t, get(scene{shop: s, caller: webtest.Root}.handler(), "/messages/"+s.Has.Order+"/edit").Body.String(),
		"the form that repairs it", `<p id="repaired"><b>Its error:</b> <bdi>payment gateway: timeout after`)
}

// A message's page begins with what happened to it, and folds the headers that Redrive has shown as words.
func TestAMessageBeginsWithWhatHappened(t *testing.T) {
	shop := webtest.New(memstore.New(), nil, inspect.Config{})
	r := inspecttest.Record("orders", store.Parked, "x")
	r.Message.Headers = amqp.Table{"tenant": "acme", "x-redrive-id": r.ID.String(), "x-redrive-queue": "orders"}
	inspecttest.Add(t, shop.Store, r)
	page := shown(shop, "/messages/"+r.ID.String())
	at := func(text string) int { return strings.Index(page, text) }
	places := []int{0, at(`id="timeline"`), at(`id="body"`), at(`<bdi>tenant</bdi>`), at(`<details><summary>2 x-redrive headers</summary>`),
		at(`<bdi>x-redrive-id</bdi>`), at(`id="facts"`)}
	if !slices.IsSorted(places) {
		t.Errorf("its parts are at %d of\n%s", places, page)
	}
}

// Live updates and retries are paused on one page, by controls of different names.
func TestPausesAreNamedApart(t *testing.T) {
	s := webtest.Stocked(inspect.Config{})
	page := get(scene{shop: s, caller: webtest.Root}.handler(), "/queues").Body.String()
	for _, name := range []string{"Pause updates</button>", "Resume updates</button>", "Pause retries</summary>", "Resume retries</button>"} {
		expect.Contains(t, page, "the queues", ">"+name)
	}
	for _, name := range []string{">Pause<", ">Resume<"} {
		expect.Equal(t, strings.Contains(page, name), false, "a control is named %s", name)
	}
	expect.Equal(t, regexp.MustCompile(`no consumers</span> <span class="dim">since</span> <time .*>: retries wait until one starts`).
		MatchString(page), true, "it says what a queue without consumers waits for")
}

// A count that takes too long is not made up.
func TestACountThatIsLate(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	r := httptest.NewRequest("GET", "/messages/count?q=text:x", nil).WithContext(late)
	w := httptest.NewRecorder()
	scenes()[0].handler().ServeHTTP(w, r)
	expect.Equal(t, w.Body.String(), `<span class="total">not counted in time</span>`, "of a tab")
}

// Where no error was reported, the page says so, and how to report one.
func TestAMessageWithoutAnError(t *testing.T) {
	shop := webtest.New(memstore.New(), nil, inspect.Config{})
	for reason, want := range map[string]string{
		"":         "No error was reported",
		"rejected": "No error was reported",
		"expired":  "Failed: expired",
	} {
		r := inspecttest.Record("orders", store.Parked, "x")
		r.Error, r.Reason = "", reason
		inspecttest.Add(t, shop.Store, r)
		page := shown(shop, "/messages/"+r.ID.String())
		expect.Contains(t, page, "its page", `<h1><span class="error"><bdi>`+want+"</bdi></span></h1>")
		expect.Equal(t, strings.Contains(page, `<a href="/docs/how-to/consumers.md">How`), reason != "expired", "the hint of %q", reason)
		expect.Equal(t, strings.Contains(page, "Reason: rejected."), reason == "rejected", "the reason of %q", reason)
		if reason == "" {
			expect.Contains(t, shown(shop, "/messages?q=id:"+r.ID.String()), "the list", ">no error was reported</a>")
		}
	}
}

// A retried message is not shown as empty or as one that never failed.
func TestARetriedMessageSaysWhereItIs(t *testing.T) {
	for _, is := range []struct {
		at                  inspect.AtBroker
		failures            int
		away, shown, listed string
	}{
		{inspect.AtBroker{Exists: true, Ready: 1}, 0, ": it lies in orders&lt;, which nothing consumes",
			"at least 1, before its replay", "–"},
		{inspect.AtBroker{Exists: true, Ready: 1, Consumers: 1}, 3, ": it is in RabbitMQ, or consumed", "3", "3"},
		{inspect.AtBroker{Exists: true}, 3, ": it is in RabbitMQ, or consumed", "3", "3"},
	} {
		shop := webtest.New(memstore.New(), &webtest.Told{Others: is.at}, inspect.Config{})
		r := inspecttest.Record("orders<", store.Waiting, "x")
		r.Failures = is.failures
		inspecttest.Add(t, shop.Store, r)
		inspecttest.RetryDue(t, shop.Store, r.Queue, time.Now().Add(24*time.Hour))
		h := scene{shop: shop, caller: inspecttest.Caller(auth.Viewer)}.handler()
		page := get(h, "/messages/"+r.ID.String()).Body.String()
		for _, want := range []string{`<p class="empty"><bdi>Its body and headers are not kept` + is.away + "</bdi>.</p>",
			"<dt>Failures</dt><dd>" + is.shown + "</dd>", `Body and headers <span class="dim">–</span>`} {
			expect.Contains(t, page, "the page", want)
		}
		if strings.Contains(page, "no headers") {
			t.Error("the page says that it had no headers")
		}
		list := get(h, "/messages?q=state:retried").Body.String()
		for _, want := range []string{`data-label="Fails">` + is.listed + "</td>", `data-label="Size">–</td>`} {
			expect.Contains(t, list, "the list", want)
		}
		expect.Contains(t, get(h, "/messages?q=state:retried&columns=error,size").Body.String(), "the list", `data-label="size"><bdi></bdi></td>`)
	}
}

// The page of a waiting message says what holds it back, and how late its retries were.
func TestAMessageSaysWhatHoldsItBack(t *testing.T) {
	now := time.Now()
	shop := webtest.New(memstore.New(), &webtest.Told{Throttles: map[string]*inspect.ThrottleView{
		"orders": {State: "open", Why: "9 of 10 failed", Until: &now}}}, inspect.Config{})
	r := inspecttest.Record("orders", store.Waiting, "x")
	r.Due = now.Add(-90*time.Minute - time.Second/2)
	inspecttest.Add(t, shop.Store, r)
	inspecttest.RetryDue(t, shop.Store, "orders", now)
	h := scene{shop: shop, caller: inspecttest.Caller(auth.Viewer)}.handler()
	r.Failures++
	inspecttest.Add(t, shop.Store, r)
	paused := inspect.Stop{Why: "paused by <bo>", Since: now.Add(-time.Hour), Until: now}
	if err := shop.Store.PutEntries(t.Context(), []store.Entry{paused.Entry("orders")}); err != nil {
		t.Fatal(err)
	}
	page := get(h, "/messages/"+r.ID.String()).Body.String()
	const badge = `<span class="state stopped">breaker open</span> `
	for _, want := range []string{`waiting</span> <span class="dim">due</span> <time`, `ago</time>, ` + badge, `<b>Held back</b>: ` + badge + `next probe <time`,
		`<p class="ended">retried <time data-when="past"`, ">just now</time>", `<li><bdi>breaker open: 9 of 10 failed</bdi><span class="dim">; next probe</span> <time`, " after it was due",
		`<li><bdi>paused by &lt;bo&gt;</bdi> <span class="dim">since</span> <time`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for _, target := range []string{"/messages?q=state:waiting", "/messages?q=", "/queues/orders"} {
		expect.Contains(t, get(h, target).Body.String(), target, `ago</time>, `+badge)
	}
	expect.Contains(t, get(h, "/messages?q=due:<10m").Body.String(), "due soon", "; 1 held back, even once due: 1 breaker open.</p>")
	parked := inspecttest.Record("orders", store.Parked, "x")
	inspecttest.Add(t, shop.Store, parked)
	if err := shop.PauseQueue(t.Context(), webtest.Root, "orders", "a <leak>"); err != nil {
		t.Fatal(err)
	}
	root, at := scene{shop: shop, caller: webtest.Root}.handler(), "/messages/"+parked.ID.String()
	for _, target := range []string{at, at + "/edit"} {
		expect.Contains(t, get(root, target).Body.String(), target, `Replayed now, it waits:`, `: a &lt;leak&gt;</bdi> <span class="dim">since</span> <time`,
			`its breaker is open: 9 of 10 failed; no probe is sent while it is paused`)
	}
	for _, target := range []string{"/queues/orders", "/health", "/", "/queues"} {
		expect.Contains(t, get(root, target).Body.String(), target, `<bdi>a &lt;leak&gt;</bdi>; <bdi>its breaker is open: 9 of 10 failed; no probe is sent while`)
	}
	if err := shop.ResumeQueue(t.Context(), webtest.Root, "orders", ""); err != nil {
		t.Fatal(err)
	}
	expect.Contains(t, get(h, "/queues").Body.String(), "/queues", `9 of 10 failed</bdi><span class="dim">; next probe</span> <time`)
}

// The audit page filters: by a form that needs no script, by a click on a person or an action, and on the next
// page too.
func TestTheAuditPageFilters(t *testing.T) {
	s := newAuditScene(t)
	show := func(target string) string { return get(s.handler(), target).Body.String() }
	all := show("/audit")
	for _, want := range []string{`href="/audit?who=ann"`, `href="/audit?did=pause"`, `<form method="get" action="/audit"`, "mail.new"} {
		if !strings.Contains(all, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	some := show("/audit?who=ann&on=orders&since=2h")
	for want, has := range map[string]bool{"mail.new": false, `id="audit"`: true, `name="who" size="12" maxlength="256" value="ann"`: true,
		"redrive audit --who ann --on orders --since 2h": true, `href="/audit?did=pause&amp;on=orders&amp;since=2h&amp;who=ann"`: true} {
		expect.Equal(t, strings.Contains(some, want), has, "a page with a filter has %q", want)
	}
	yesterday := regexp.MustCompile(`href="/audit\?since=([\d-]{10})&amp;until=([\d-]{10})&amp;who=ann">Yesterday`).FindStringSubmatch(show("/audit?who=ann&until=2h"))
	if len(yesterday) == 0 {
		t.Fatal("the page does not lead to what ann did yesterday")
	}
	from, _ := time.Parse(time.DateOnly, yesterday[1])
	expect.Equal(t, from.AddDate(0, 0, 1).Format(time.DateOnly), yesterday[2], "yesterday ends")
	if none := show("/audit?who=nobody"); !strings.Contains(none, "Nothing matches") {
		t.Error("nothing is found, and the page does not say so")
	}
	if w := get(s.handler(), "/audit?since=soon"); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "since is &#34;soon&#34;") {
		t.Errorf("since soon: %d %s", w.Code, w.Body)
	}
	for i := range 200 {
		_, err := s.shop.Book.Begin(audit.Entry{Who: "ann", Did: "resume", On: fmt.Sprint("q", i)})
		expect.NoError(t, err)
	}
	if next := show("/audit?who=ann&did=resume"); !regexp.MustCompile(`rel="next" href="/audit\?after=\d+&amp;did=resume&amp;who=ann"`).MatchString(next) {
		t.Error("the link of the next page forgets the filter")
	}
}

// What an entry names leads to its page, whatever the names are.
func TestTheAuditPageLeadsToWhatItNames(t *testing.T) {
	const one, other = "01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8058.7"
	link := func(url, text string) string { return `<a href="` + url + `">` + text + `</a>` }
	first, second := link("/messages/"+one, one), link("/messages/"+other, other)
	for _, c := range []struct{ did, on, want string }{
		{"operation.end", one + ": replay (group:5a1f0c2b9e3d4a76 OR group:5a1f0c2b9e3d4a77) in a",
			`<a href="/operations/` + one + `" title="` + one + `">replay no &lt;stock&gt; (2 groups)</a>`},
		{"pause", "a/b <i>&", link("/queues/a%2Fb%20%3Ci%3E&amp;", "a/b &lt;i&gt;&amp;")},
		{"breaker open", "a\u202e\nb", link("/queues/a%E2%80%AE%0Ab", "a\\u{202e}\nb")},
		{"operation.start", one + ": replay queue:<a>", `<a href="/operations/` + one + `" title="` + one + `">replay queue:&lt;a&gt;</a>`},
		{"operation.pause", one, `<a href="/operations/` + one + `" title="` + one + `">01890a5d-ac96…</a>`},
		{"operation.pause", "../a\"", "../a&#34;"},
		{"note", "group 5a1f0c2b9e3d4a76 of a b", "group " + link("/groups/5a1f0c2b9e3d4a76", "5a1f0c2b9e3d4a76") + " of " + link("/queues/a%20b", "a b")},
		{"group ignored", "group 5a1f0c2b9e3d4a76 of a b", "group " + link("/groups/5a1f0c2b9e3d4a76", "5a1f0c2b9e3d4a76") + " of " + link("/queues/a%20b", "a b")},
		{"edit", "a: b: " + one, link("/queues/a:%20b", "a: b") + ": " + first},
		{"copy", "a, b: " + one + " " + other + " to c", link("/queues/a", "a") + ", " + link("/queues/b", "b") + ": " + first + " " + second + " to " + link("/queues/c", "c")},
		{"discard", "a: " + strings.Repeat(one+" ", 10), link("/queues/a", "a") + ": " + strings.Repeat(first+" ", 5) + link("/messages/"+one, one[:12]+"…")},
		{"reported.enroll", "a, b", link("/queues/a", "a") + ", " + link("/queues/b", "b")},
		{"reported.move", "a to b", link("/queues/a", "a") + " to " + link("/queues/b", "b")},
		{"replay", "3 messages to a", "3 messages to a"},
		{"export", "queue:a", "queue:a"},
		{"token.create", "javascript:x (admin)", "javascript:x (admin)"},
	} {
		shop := webtest.New(memstore.New(), &webtest.Told{}, inspect.Config{})
		e := audit.Entry{Who: "ann", Did: c.did, On: c.on}
		if strings.Contains(c.on, " OR ") {
			e.About = "no <stock> (2 groups)"
		}
		_, err := shop.Book.Begin(e)
		expect.NoError(t, err)
		s := scene{shop: shop, caller: auth.Caller{Name: "ann", Role: auth.Admin}}
		if page := get(s.handler(), "/audit").Body.String(); !strings.Contains(page, `<td class="q" data-label="On"><bdi>`+c.want+`</bdi>`) {
			_, cell, _ := strings.Cut(page, `<td class="q"`)
			t.Errorf("%s on %q is %.900s, want %s", c.did, c.on, cell, c.want)
		} else if did := `" title="` + c.did + `">` + inspect.Does(audit.Entry{Did: c.did, On: c.on}) + `</a>`; !strings.Contains(page, did) {
			t.Errorf("the page does not have %q", did)
		}
	}
}

type started struct{ listing }

func (started) AuditLog(context.Context, auth.Caller, inspect.AuditFilter, string, int) ([]audit.Entry, string, error) {
	return []audit.Entry{{Did: "operation.start", Outcome: "done"}, {Did: "pause", Outcome: "done"}}, "", nil
}

// Of an operation that was started the log does not say that it is done.
func TestAStartedOperationHasOnlyBegun(t *testing.T) {
	page := shown(started{list()}, "/audit")
	expect.Contains(t, page, "the log", "<bdi>begun</bdi>")
	expect.Equal(t, strings.Count(page, "<bdi>done</bdi>"), 1, "entries that are done")
}

func newAuditScene(t *testing.T) scene {
	shop := webtest.New(memstore.New(), &webtest.Told{}, inspect.Config{})
	for _, e := range []audit.Entry{{Who: "ann", Did: "pause", On: "orders"}, {Who: "bob", Did: "pause", On: "mail.new"}} {
		_, err := shop.Book.Begin(e)
		expect.NoError(t, err)
	}
	return scene{shop: shop, caller: auth.Caller{Name: "ann", Role: auth.Admin}}
}
