package webui

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// endless is a console whose searches end with their context.
type endless struct{ operations.Console }

func (endless) Search(ctx context.Context, _ auth.Caller, _, _ string, _ int, _ ...string) (inspect.Page, error) {
	<-ctx.Done()
	return inspect.Page{}, ctx.Err()
}

// Whoever may look can make no search go on for ever: first the page says that it is
// being read, then that it takes too long.
func TestASearchThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Handler(endless{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }})
		for target, want := range map[string]struct {
			status int
			takes  time.Duration
			text   string
		}{
			"/messages?q=text:a":        {200, firstWait, `hx-get="/messages?q=text%3Aa&amp;wait=1"`},
			"/messages?q=text:a&wait=1": {504, maxWait, "That takes too long"},
		} {
			began, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
			if w.Code != want.status || time.Since(began) != want.takes || !strings.Contains(w.Body.String(), want.text) {
				t.Errorf("%s: %d after %s: %s", target, w.Code, time.Since(began), w.Body)
			}
		}
	})
}

// uncounted is a console that counts nothing without a search.
type uncounted struct{ operations.Console }

func (uncounted) CountStates(context.Context, auth.Caller, string) (inspect.StateCounts, bool, error) {
	return inspect.StateCounts{}, false, nil
}

// far is a console whose search finds its only message on the third page.
type far struct{ uncounted }

func (far) Search(_ context.Context, _ auth.Caller, _, after string, _ int, _ ...string) (inspect.Page, error) {
	switch after {
	case "":
		return inspect.Page{Looked: 40_000, After: "b"}, nil
	case "b":
		return inspect.Page{Looked: 2_500, After: "c"}, nil
	}
	return inspect.Page{Looked: 10}, nil
}

// A search that runs out of time says how far it looked, goes on by itself and can be stopped. It says that
// nothing matches only at its end.
func TestASearchGoesOn(t *testing.T) {
	h := Handler(far{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Role: auth.Viewer} }})
	for _, c := range []struct {
		target, says, loads, not string
	}{
		{"/messages?q=text:a", "None of the first 40,000 messages matches.",
			`hx-get="/messages?after=b&amp;looked=40000&amp;q=text%3Aa" hx-trigger="load"`, "finds nothing"},
		{"/messages?q=text:a&after=b&looked=40000", "None of the first 42,500 messages matches.",
			`href="/messages?after=c&amp;looked=42500&amp;q=text%3Aa&amp;stop=1"`, "finds nothing"},
		{"/messages?q=text:a&after=b&looked=40000&stop=1", "Stopped", `>Search on</a>`, `hx-get="/messages?after`},
		{"/messages?q=text:a&after=c&looked=42500", "No message matches", "", "None of the first"},
		{"/messages?q=text:a&after=c", "No more messages", `<a href="/messages?q=text%3Aa">First page</a>`, "None of the first"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", c.target, nil))
		if body := w.Body.String(); !strings.Contains(body, c.says) || !strings.Contains(body, c.loads) ||
			strings.Contains(body, c.not) {
			t.Errorf("%s: %s", c.target, body)
		}
	}
}

// A form is read into memory, whoever sends it.
func TestAFormIsBounded(t *testing.T) {
	h := Handler(endless{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }})
	r := httptest.NewRequest("POST", "/messages/act", strings.NewReader("id="+strings.Repeat("x", 9<<20)))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "too large") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// one is a console with one message.
type one struct{ uncounted }

func (one) Search(context.Context, auth.Caller, string, string, int, ...string) (inspect.Page, error) {
	return inspect.Page{Messages: []inspect.Message{{ID: "a&b", State: inspect.Parked}}}, nil
}

// What a page asks for by itself is about the query that it shows, whatever is in it.
func TestWhatAPageAsksForByItself(t *testing.T) {
	h := Handler(one{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }})
	const query = `text:"a&q=b+c%26 d#"`
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/messages?"+url.Values{"q": {query}}.Encode(), nil))
	asks := regexp.MustCompile(`hx-get="(/messages/(?:count|new)[^"]*)"`).FindAllStringSubmatch(w.Body.String(), -1)
	if len(asks) != 2 {
		t.Fatalf("it asks for %q: %s", asks, w.Body)
	}
	for _, ask := range asks {
		u, err := url.Parse(html.UnescapeString(ask[1]))
		if err != nil || u.Query().Get("q") != query || len(u.Query()["q"]) != 1 || strings.HasSuffix(u.Path, "new") && u.Query().Get("above") != "a&b" {
			t.Errorf("it asks for %s: %v", ask[1], err)
		}
	}
}

// acting is a console that keeps what it was asked to do.
type acting struct {
	one
	asked *[]actions.Act
}

func (a acting) Act(_ context.Context, _ auth.Caller, act actions.Act) (actions.Acted, error) {
	*a.asked = append(*a.asked, act)
	return actions.Acted{Warnings: []string{"<i>idle"}}, nil
}

// The first form only shows what it would do, and who is not signed in reaches no console.
func TestAFormActsOnceItIsConfirmed(t *testing.T) {
	for _, c := range []struct {
		role   auth.Role
		form   string
		status int
		asked  []bool // of each action: whether it was a dry run
	}{
		{auth.Operator, "verb=replay&id=a", http.StatusOK, []bool{true}},
		{auth.Operator, "verb=replay&id=a&confirmed=1", http.StatusSeeOther, []bool{false}},
		{auth.NoRole, "verb=replay&id=a&confirmed=1", http.StatusSeeOther, nil},
	} {
		var asked []actions.Act
		h := Handler(acting{asked: &asked}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: c.role} }})
		r := httptest.NewRequest("POST", "/messages/act", strings.NewReader(c.form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var dry []bool
		for _, a := range asked {
			dry = append(dry, a.DryRun)
		}
		if w.Code != c.status || !slices.Equal(dry, c.asked) {
			t.Errorf("role %d, %s: %d, dry runs %v", c.role, c.form, w.Code, dry)
		}
		warns := strings.Contains(w.Body.String(), "<li><bdi>&lt;i&gt;idle</bdi></li>")
		if warns != slices.Contains(c.asked, true) {
			t.Errorf("%s: it warns: %t", c.form, warns)
		}
		if to := w.Header().Get("Location"); c.role == auth.NoRole && !strings.HasPrefix(to, auth.SignInPath) {
			t.Errorf("who is not signed in is led to %q", to)
		}
	}
}

// refusing refuses with a remedy.
type refusing struct{ operations.Console }

func (refusing) Search(context.Context, auth.Caller, string, string, int, ...string) (inspect.Page, error) {
	return inspect.Page{}, hint.Errorf("set <b>, or stop", "it is <i>locked")
}

// The remedy of an error is apart from what went wrong.
func TestThePageOfAnErrorHasTheHint(t *testing.T) {
	h := Handler(refusing{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/messages?q=state:parked", nil))
	for _, part := range []string{`<p role="alert"><bdi>it is &lt;i&gt;locked</bdi></p>`, `<p class="hint"><bdi>set &lt;b&gt;, or stop</bdi></p>`} {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("the page lacks %s:\n%s", part, w.Body)
		}
	}
}

// A tab finds what its query finds, in another state.
func TestTabsKeepTheMeaningOfAQuery(t *testing.T) {
	for query, want := range map[string]struct{ state, waiting, all string }{
		"":                                  {"", "state:waiting", ""},
		"state:parked":                      {"parked", "state:waiting", ""},
		"queue:a state:waiting due:<10m":    {"waiting", "state:waiting queue:a", "queue:a"},
		"queue:a NOT due:<10m":              {"", "state:waiting queue:a NOT due:<10m", "queue:a NOT due:<10m"},
		"queue:a state:parked":              {"parked", "state:waiting queue:a", "queue:a"},
		`text:"state:parked" x`:             {"", `state:waiting text:"state:parked" x`, `text:"state:parked" x`},
		"text:a OR text:b":                  {"", "state:waiting (text:a OR text:b)", "text:a OR text:b"},
		"state:parked (text:a OR text:b)":   {"parked", "state:waiting (text:a OR text:b)", "(text:a OR text:b)"},
		"state:parked OR queue:x":           {"", "state:waiting (state:parked OR queue:x)", "state:parked OR queue:x"},
		"(state:parked OR queue:x) queue:y": {"", "state:waiting (state:parked OR queue:x) queue:y", "(state:parked OR queue:x) queue:y"},
		"queue:x NOT state:parked":          {"", "state:waiting queue:x NOT state:parked", "queue:x NOT state:parked"},
		`text:"a \" OR (" OR b`:             {"", `state:waiting (text:"a \" OR (" OR b)`, `text:"a \" OR (" OR b`},
	} {
		all, state := tabs(query)
		if state != want.state || all[0].Query != want.waiting || all[4].Query != want.all {
			t.Errorf("%s: of state %q; waiting %q, all %q", query, state, all[0].Query, all[4].Query)
		}
		if again, state := tabs(all[5].Query); state != "waiting" || !again[5].Current || again[0].Current ||
			again[5].Query != all[5].Query {
			t.Errorf("%s: its tab of what is due soon leads to %+v, of state %q", query, again, state)
		}
		if again, state := tabs(all[0].Query); state != "waiting" || again[0].Query != all[0].Query {
			t.Errorf("%s: its tab of what waits leads to %q, of state %q", query, again[0].Query, state)
		}
	}
}

// The link of a queue finds that queue, and no others that its name is a pattern of.
func TestALinkFindsWhatItNames(t *testing.T) {
	for name, want := range map[string]string{
		"a.b_c-1/d": "a.b_c-1/d", "": "", "a.*": `"a.*"`, "a?": `"a?"`, "a b": `"a b"`, `a"\`: `"a\"\\"`, "é": `"é"`,
	} {
		if want != "" {
			want = "queue:" + want
		}
		expect.Equal(t, queryOf("queue", name), want, "%s", name)
	}
}

// What was done is said as it is; a count only of messages.
func TestAChosenColumnIsOnlyText(t *testing.T) {
	for v, want := range map[any]string{"<b>\x1b[2J": "<bdi>&lt;b&gt;", 1204: "1,204"} {
		if got := fmt.Sprint(shown(v)); !strings.HasPrefix(got, want) || strings.Contains(got, "\x1b") {
			t.Errorf("%v is %s", v, got)
		}
	}
}

func TestWhatWasDoneIsSaid(t *testing.T) {
	for link, want := range map[string]string{
		"did=pause&n=1": "retries paused, until a person resumes them", "did=note": "note saved", "did=replay&n=1": "1 message will be retried", "did=nothing&n=1": "", "did=replay": "",
	} {
		q, err := url.ParseQuery(link)
		expect.NoError(t, err)
		expect.Equal(t, did(q), want, "%s", link)
	}
}

// The command under a plan makes the same plan.
func TestTheCommandOfAPlan(t *testing.T) {
	expect.Equal(t, planCommand(operations.Plan{Verb: actions.Adopt, From: "old queue", Format: "rascal",
		WorkQueues: []string{"orders", "mail"}}),
		"redrive adopt 'old queue' --queue orders --queue mail --from rascal --dry-run", "is under the plan")
	expect.Equal(t, planCommand(operations.Plan{Verb: actions.Restore, DiscardedBy: "x", Query: "queue:a"}),
		"redrive restore --discarded-by x --dry-run", "is under the plan of what a discard took")
}

// The page to sign in shows what is on, and keeps a name that was not right; who has no role sees what would give one.
func TestTheSignInPage(t *testing.T) {
	h := func(name string) http.Handler {
		return Handler(nil, Options{Guard: auth.NewGuard(auth.Config{Users: &auth.Users{}, OIDC: &auth.OIDC{OIDCConfig: auth.OIDCConfig{Name: name}}})})
	}
	get := func(h http.Handler, path string, cookie ...*http.Cookie) string {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		for _, c := range cookie {
			r.AddCookie(c)
		}
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
	is := get(h("<b>Example"), "/signin?next=/messages%3Fq%3Dx&error=silent")
	for _, want := range []string{`href="/signin/oidc/start?next=%2fmessages%3fq%3dx">Sign in with &lt;b&gt;Example</a>`, "provider does not answer", `name="password"`, `name="token"`} {
		if !strings.Contains(is, want) {
			t.Errorf("no %s: %s", want, is)
		}
	}
	if is := get(h(""), "/signin?error=guest"); !strings.Contains(is, "user guest cannot sign in here: make a user") {
		t.Errorf("who tried as guest is told %s", is)
	}
	for _, h := range []http.Handler{h(""), Handler(nil, Options{})} {
		if is := get(h, "/signin"); strings.Contains(is, "oidc") || !strings.Contains(is, `value="" autofocus`) {
			t.Errorf("without a provider: %s", is)
		}
		if is := get(h, auth.OIDCPath) + get(h, auth.OIDCStartPath); strings.Count(is, "/signin?next=") != 2 {
			t.Errorf("without a provider its answer leads to %s", is)
		}
	}
	for how, want := range map[string]bool{"oidc": true, "local": false, "proxy": false} {
		h := Handler(nil, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", How: how, Role: auth.Viewer} }})
		expect.Equal(t, strings.Contains(get(h, "/help"), `action="/signout?everywhere=1"`), want, "the page Help offers to sign out everywhere, %s", how)
	}
	if is := get(Handler(nil, Options{Guard: auth.NewGuard(auth.Config{})}), "/signin"); strings.Contains(is, `name="user"`) || !strings.Contains(is, `name="token"`) || strings.Contains(is, "proxy") {
		t.Errorf("without users of RabbitMQ's: %s", is)
	} else if strings.Contains(is, `href="/help"`) {
		t.Error("it leads to pages that need a sign-in")
	}
	if is := get(h(""), "/signin", &http.Cookie{Name: "redrive-tried", Value: "YW5uIj4"}); !strings.Contains(is, `value="ann&#34;&gt;">`) || !strings.Contains(is, `type="password" autocomplete="current-password" required autofocus`) {
		t.Errorf("the name is not kept: %s", is)
	}
	s := &server{Options: Options{VHosts: func() []VHost { return nil }, Conditions: func(auth.Caller) []condition.Condition { return nil }}}
	s.pages = s.parse()
	w := httptest.NewRecorder()
	s.noRole(w, httptest.NewRequest("GET", auth.OIDCPath, nil), &auth.NoRoleError{Name: "oidc:<ann>", Groups: []string{"on-call", "<b>"}})
	if is := w.Body.String(); w.Code != 403 || !strings.Contains(is, "as oidc:&lt;ann&gt;,") || !strings.Contains(is, "<b>on-call</b>, <b>&lt;b&gt;</b>.\nAsk whoever runs this service") || strings.Contains(is, `method="post"`) {
		t.Errorf("%d %s", w.Code, is)
	}
}

// Who comes by a proxy that names people signs out there, and sees what would give a role.
func TestThePageByAProxy(t *testing.T) {
	g := auth.NewGuard(auth.Config{Required: true, SignInPage: auth.SignInPath, Proxies: auth.Proxies{netip.MustParsePrefix("192.0.2.1/32")},
		Proxy: auth.ProxyConfig{UserHeader: "X-User", GroupsHeader: "X-Groups", Groups: map[string]auth.Grant{"<b>": {Role: auth.Viewer}}, SignOut: "/out?<b>"}})
	h := g.Handler(Handler(nil, Options{Guard: g, Caller: func(r *http.Request) auth.Caller { return auth.From(r.Context()) }}))
	for _, c := range []struct {
		path, from, groups string
		code               int
		has, not           string
	}{
		{"/help", "192.0.2.1:5", "<b>", 200, `<a class="button quiet" href="/out?%3cb%3e">Sign out</a>`, "/signout"},
		{"/signin?next=/help", "192.0.2.1:5", "<b>", 303, `/help`, `method="post"`},
		{"/signin", "192.0.2.1:5", "", 403, "at the proxy as proxy:&lt;ann&gt;, and", `method="post"`},
		{"/signin", "192.0.2.1:5", "", 403, `<p><a href="/out?%3cb%3e">Sign out</a></p>`, "somebody else"},
		{"/signin", "192.0.2.1:5", "", 403, `<b>&lt;b&gt;</b>`, `method="post"`},
		{"/signin", "192.0.2.2:5", "<b>", 200, "A proxy in front of this service signs people in", "ann&gt;"},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", c.path, nil)
		r.RemoteAddr = c.from
		r.Header.Set("X-User", "<ann>")
		r.Header.Set("X-Groups", c.groups)
		h.ServeHTTP(w, r)
		if is := w.Body.String(); w.Code != c.code || !strings.Contains(is, c.has) || strings.Contains(is, c.not) {
			t.Errorf("%s from %s in %q: %d, want %d with %s and without %s: %s", c.path, c.from, c.groups, w.Code, c.code, c.has, c.not, is)
		}
	}
}

// The documentation's Markdown brings no HTML of its own, and its headings have the ids that GitHub gives them.
func TestTheHTMLOfADocument(t *testing.T) {
	s := &server{Options: Options{Base: "/v/a%2Fb"}}
	for _, c := range []struct{ source, want string }{
		{"<script>alert(1)</script>\n\na <b onclick=\"x\">b</b> <!-- c --> &lt;i>", "<p>a b  &lt;i&gt;</p>\n"},
		{"<!-- a -->\n", ""},
		{"[a](javascript:alert(1)) `<b>`", `<p><a href="">a</a> <code>&lt;b&gt;</code></p>` + "\n"},
		{"# A `b_c` & [d](../../LICENSE): it's 2.0", `<h1 id="a-b_c--d-its-20">A <code>b_c</code> &amp; d (LICENSE): it's 2.0</h1>` + "\n"},
		{"## Ä b\n## Ä b", `<h2 id="ä-b">Ä b</h2>` + "\n" + `<h2 id="ä-b-1">Ä b</h2>` + "\n"},
		{"[a](alerts.md#all-metrics) [b](#c) [d](../README.md)", `<p><a href="/v/a%2Fb/docs/how-to/alerts.md#all-metrics">a</a> ` +
			`<a href="#c">b</a> <a href="/v/a%2Fb/docs/README.md">d</a></p>` + "\n"},
		{"[*a*](../../README.md#b) [b](../docs.go) [c](../../..//etc/passwd) [README.md](../../README.md)",
			"<p><em>a</em> (README.md) b (docs/docs.go) c (../etc/passwd) README.md</p>\n"},
		{"![a\"<](../images/message.png)", `<p><img src="/v/a%2Fb/docs/images/message.png" alt="a&quot;&lt;"></p>` + "\n"},
		{"```sh\na <b>\n```", `<pre class="content" tabindex="0"><code>a &lt;b&gt;` + "\n</code></pre>\n"},
		{"# T\n\n| a |\n|--:|\n| `b` |", `<h1 id="t">T</h1>` + "\n" + `<div class="scroll" role="group" aria-labelledby="t" tabindex="0"><table>` +
			"\n<thead>\n<tr>\n<th align=\"right\">a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td align=\"right\"><code>b</code></td>\n</tr>\n</tbody>\n</table></div>\n"},
	} {
		d, err := s.document("how-to/x.md", []byte(c.source))
		expect.NoError(t, err)
		expect.Equal(t, string(d.HTML), c.want, "%s", c.source)
	}
}

// An earlier time never looks later than another.
func TestRelativeTimesAreMonotone(t *testing.T) {
	now := time.Now()
	for ago, want := range map[time.Duration]string{time.Second: "now", 119 * time.Second: "119 s ago", 2 * time.Minute: "2 min ago",
		119 * time.Minute: "119 min ago", 2 * time.Hour: "2 h ago", 47 * time.Hour: "47 h ago", 48 * time.Hour: "2 d ago"} {
		expect.Equal(t, relative(now.Add(-ago), now), want, "%s ago", ago)
	}
}
