package auth

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// request is one to the guard; change makes it what a test is about.
func request(g http.Handler, method, path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:4242", "127.0.0.1:8250"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func peerAt(addr string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = addr }
}

// says shows who the guard says calls.
var says = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	c := From(r.Context())
	fmt.Fprintf(w, "%s %s %s %s %s %v", c.Name, c.How, c.Role, c.Interface, c.From, c.ReadOnly)
})

func TestWhereNobodySignsInOnlyThisMachineIsAnswered(t *testing.T) {
	h := NewGuard(Config{Log: quiet}).Handler(says)
	if w := request(h, "GET", "/"); w.Code != 200 || w.Body.String() != "local local admin api 127.0.0.1 false" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := request(h, "GET", "/", header(InterfaceHeader, "cli")); !strings.Contains(w.Body.String(), " cli ") {
		t.Errorf("the command line: %s", w.Body)
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	posts := func(headers ...string) func(*http.Request) {
		return func(r *http.Request) {
			r.Method = "POST"
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		code   int
	}{
		"localhost":              {host("localhost:8250"), 200},
		"::1":                    {host("[::1]:8250"), 200},
		"::1 without a port":     {host("[::1]"), 200},
		"another name":           {host("evil.example:8250"), 403},
		"a name that begins so":  {host("127.0.0.1.evil.example"), 403},
		"no name":                {host(""), 403},
		"another machine":        {peerAt("10.0.0.7:4242"), 403},
		"an unknown peer":        {peerAt("@"), 403},
		"a proxy":                {header("X-Forwarded-For", "10.0.0.7"), 403},
		"a proxy, new style":     {header("Forwarded", "for=10.0.0.7"), 403},
		"a proxy that hides":     {header("X-Real-IP", "10.0.0.7"), 403},
		"a proxy's other header": {header("X-Forwarded-Proto", "https"), 403},
		"nginx, as it comes":     {func(r *http.Request) { r.Proto, r.ProtoMinor = "HTTP/1.0", 0 }, 403},
		"an image of a page":     {header("Sec-Fetch-Site", "cross-site"), 403},
		"a page on a port here":  {header("Sec-Fetch-Site", "same-site"), 403},
		"a frame": {func(r *http.Request) {
			header("Sec-Fetch-Site", "cross-site")(r)
			header("Sec-Fetch-Dest", "iframe")(r)
		}, 403},
		"a link": {func(r *http.Request) {
			header("Sec-Fetch-Site", "cross-site")(r)
			header("Sec-Fetch-Dest", "document")(r)
		}, 200},
		"a wrong token": {header("Authorization", "Bearer redrive_x"), 401},
		// A web page of somebody else's does not act through the browser of the person on call.
		"a program":            {posts(), 200},
		"our own page":         {posts("Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:8250"), 200},
		"another site's page":  {posts("Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"), 403},
		"another port here":    {posts("Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:9999"), 403},
		"an old browser's":     {posts("Origin", "https://evil.example"), 403},
		"a sandboxed frame":    {posts("Origin", "null"), 403},
		"a form as plain text": {posts("Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"), 403},
	} {
		if w := request(h, "GET", "/", c.change); w.Code != c.code {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.code)
		}
	}
}

// Who follows a link of another site is signed in still: the browser sends the cookie
// when our own page leads there.
func TestVisitors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		tokens := NewTokens(s, &logbook{})
		h := NewGuard(Config{Visitors: true, Proxies: Proxies{netip.MustParsePrefix("10.0.0.0/8")}, Log: quiet,
			Tokens: tokens, Sessions: s}).Handler(says)
		from := func(addr string) *httptest.ResponseRecorder {
			return request(h, "GET", "/", peerAt("10.0.0.7:4242"), header("X-Forwarded-For", addr),
				header("Authorization", "Bearer redrive_x"))
		}
		for range VisitorBurst {
			w := from("2001:db8::1")
			expect.Equal(t, w.Body.String(), "visitor visitor viewer api 2001:db8::1 true", "who calls")
		}
		if w := from("2001:db8::2"); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("of too many: %d %v", w.Code, w.Header())
		}
		expect.Equal(t, from("192.0.2.1").Code, 200, "another address")
		time.Sleep(time.Second)
		for range visitorRate {
			expect.Equal(t, from("2001:db8::1").Code, 200, "a second later")
		}
		expect.Equal(t, from("2001:db8::1").Code, 429, "and no more than that")
	})
	a, b := Caller{How: "visitor", From: "192.0.2.1"}, Caller{How: "visitor", From: "192.0.2.2"}
	if a.ID() == b.ID() {
		t.Error("two visitors share what one caller may have at once")
	}
}

func TestALinkOfAnotherSite(t *testing.T) {
	_, h, _ := guarded(t, Config{})
	from := func(site string) *httptest.ResponseRecorder {
		return request(h, "GET", "/messages?q=x", header("Accept", "text/html"), header("Sec-Fetch-Site", site), header("Sec-Fetch-Dest", "document"))
	}
	if w := from("cross-site"); w.Code != 200 || w.Header().Get("Refresh") != "0" || !strings.Contains(w.Body.String(), "Go on") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := from("same-origin"); w.Code != 303 || w.Header().Get("Refresh") != "" {
		t.Errorf("and then, who is not signed in: %d %v", w.Code, w.Header())
	}
}

// guarded is a service where people sign in, with a token of an operator's.
func guarded(t *testing.T, c Config) (g *Guard, h http.Handler, secret string) {
	t.Helper()
	if c.Log == nil {
		c.Log = quiet
	}
	kept := shelf{}
	c.Required, c.Tokens, c.Sessions, c.SignInPage = true, NewTokens(kept, &logbook{}), kept, SignInPath
	c.Public = func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/healthz") }
	g = NewGuard(c)
	mux := http.NewServeMux()
	mux.Handle("/", says)
	mux.HandleFunc("POST "+SignInPath, g.SignIn)
	mux.HandleFunc("POST "+SignOutPath, g.SignOut)
	secret, _, err := g.Tokens.Create(t.Context(), root, NewToken{Name: "ci", Role: "operator", Queues: []string{"orders"}})
	must(t, err)
	return g, g.Handler(mux), secret
}

func TestNothingIsServedToWhoIsNotSignedIn(t *testing.T) {
	_, h, secret := guarded(t, Config{ReadOnly: true})
	html := header("Accept", "text/html,*/*")
	for _, c := range []struct {
		path   string
		change func(*http.Request)
		code   int
		want   string
	}{
		{"/healthz", func(*http.Request) {}, 200, "  nobody"},
		{"/healthz", header("Authorization", "Bearer redrive_wrong"), 200, "  nobody"},
		{"/", func(*http.Request) {}, 401, "sign in first"},
		{"/healthz/", func(*http.Request) {}, 401, "sign in first"},
		{"/healthz/../metrics", func(*http.Request) {}, 401, "sign in first"},
		{"/healthz/%2e%2e/metrics", func(*http.Request) {}, 401, "sign in first"},
		{"/metrics", func(*http.Request) {}, 401, "sign in first"},
		{"/messages?q=a%20b", html, 303, "/signin?next=%2Fmessages%3Fq%3Da%2520b"},
		{"/messages/act", func(r *http.Request) {
			r.Method = "POST"
			html(r)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}, 303, "/signin?error=undone&next=%2F"},
		{"/api/v1/messages", func(r *http.Request) { r.Method = "POST"; html(r) }, 401, "sign in first"},
		{"/", header("Authorization", "Bearer "+secret), 200, "ci token operator api 127.0.0.1 true"},
		{"/", header("Authorization", "bearer "+secret), 200, "ci token operator"},
		{"/", header("Authorization", "Bearer "+secret+"x"), 401, "not valid"},
		{"/", header("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("ann:"+secret))), 401, "sign in first"},
		{"/", header("Authorization", "Negotiate x"), 401, "sign in first"},
		{"/", header("Authorization", secret), 401, "sign in first"},
		{"/?token=" + secret, func(*http.Request) {}, 401, "sign in first"},
		{"/", header("Cookie", "redrive="+secret), 401, "sign in first"},
		{"/", header("Cookie", "redrive="), 401, "sign in first"},
	} {
		w := request(h, "GET", c.path, c.change)
		said := w.Body.String()
		if c.code == 303 {
			said = w.Header().Get("Location")
		}
		if w.Code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.path, w.Code, said, c.code, c.want)
		}
		if c.code == 401 && w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: refused as %s", c.path, w.Header().Get("Content-Type"))
		}
	}
}

func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, secure := range []bool{false, true} {
			g, h, secret := guarded(t, Config{Secure: secure})
			form := func(values url.Values) func(*http.Request) {
				return func(r *http.Request) {
					body := httptest.NewRequest("POST", "/", strings.NewReader(values.Encode()))
					r.Body, r.ContentLength = body.Body, body.ContentLength
					r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				}
			}
			signIn := func() *http.Cookie {
				t.Helper()
				w := request(h, "POST", SignInPath, form(url.Values{"token": {" " + secret + "\n"}, "next": {"/messages?q=x"}}))
				cookies := w.Result().Cookies()
				if w.Code != 303 || w.Header().Get("Location") != "/messages?q=x" || len(cookies) != 1 {
					t.Fatalf("%d %s %v", w.Code, w.Header(), cookies)
				}
				return cookies[0]
			}
			with := func(c *http.Cookie) func(*http.Request) { return func(r *http.Request) { r.AddCookie(c) } }
			c := signIn()
			if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != secure || c.Path != "/" || strings.HasPrefix(c.Name, "__Host-") != secure {
				t.Errorf("the cookie is %+v", c)
			}
			get := func(c *http.Cookie) int { return request(h, "GET", "/", with(c)).Code }
			if w := request(h, "GET", "/", with(c)); w.Code != 200 || !strings.HasPrefix(w.Body.String(), "ci token operator page") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if w := request(h, "POST", "/", with(c), header("Sec-Fetch-Site", "cross-site")); w.Code != 403 {
				t.Errorf("a page of another site: %d", w.Code)
			}
			// It lasts 12 h without a request, and 24 h in all.
			time.Sleep(11 * time.Hour)
			expect.Equal(t, get(c), 200, "it ended within 12 h")
			time.Sleep(11 * time.Hour)
			expect.Equal(t, get(c), 200, "it ended though it was in use")
			time.Sleep(2 * time.Hour)
			expect.Equal(t, get(c), 401, "it lasts longer than 24 h")
			if w := request(h, "GET", "/x", with(c), header("Accept", "text/html")); w.Header().Get("Location") != "/signin?error=expired&next=%2Fx" {
				t.Errorf("a session that is over leads to %s", w.Header().Get("Location"))
			}
			c = signIn()
			time.Sleep(12 * time.Hour)
			expect.Equal(t, get(c), 401, "it lasts longer than 12 h without a request")
			// Signing in again, or out, ends it; so does revoking its token.
			c = signIn()
			request(h, "POST", SignInPath, with(c), form(url.Values{"token": {secret}}))
			expect.Equal(t, get(c), 401, "the old one is still good after signing in again")
			c = signIn()
			if w := request(h, "GET", SignOutPath, with(c)); w.Code != 405 && w.Code != 200 || get(c) != 200 {
				t.Errorf("a link signs out: %d", w.Code)
			}
			if w := request(h, "POST", SignOutPath, with(c)); w.Code != 303 || w.Result().Cookies()[0].MaxAge >= 0 || get(c) != 401 {
				t.Errorf("signing out: %d %v", w.Code, w.Result().Cookies())
			}
			c = signIn()
			if err := g.Tokens.Revoke(t.Context(), root, "ci"); err != nil || get(c) != 401 {
				t.Error("it is good though its token was revoked:", err)
			}
			w := request(h, "POST", SignInPath, form(url.Values{"token": {secret}, "next": {"/x"}}))
			if w.Code != 303 || w.Header().Get("Location") != "/signin?error=refused&next=%2Fx" || len(w.Result().Cookies()) != 0 {
				t.Errorf("signing in with what is not valid: %d %v", w.Code, w.Header())
			}
			w = request(h, "POST", SignInPath, form(url.Values{"user": {"ann"}, "password": {"x"}}))
			tried := httptest.NewRequest("GET", SignInPath, nil)
			for _, c := range w.Result().Cookies() {
				if tried.AddCookie(c); !c.HttpOnly || c.Secure != secure || c.Path != SignInPath {
					t.Errorf("the cookie of the name is %+v", c)
				}
			}
			if got := TriedUser(tried); got != "ann" || strings.Contains(w.Header().Get("Location"), "ann") {
				t.Errorf("the name is kept as %q: %v", got, w.Header())
			}
			if w := request(h, "POST", SignInPath, form(url.Values{"user": {secret}, "password": {"x"}})); len(w.Result().Cookies()) != 0 {
				t.Error("a token that is typed as a name is kept")
			}
			json := func(body string) func(*http.Request) {
				return func(r *http.Request) {
					r.Body = httptest.NewRequest("POST", "/", strings.NewReader(body)).Body
					r.Header.Set("Content-Type", "application/json")
				}
			}
			for body, code := range map[string]int{`{"user":"ann","password":"x"}`: 401, `{`: 400, `{"token":"` + strings.Repeat("x", 70_000) + `"}`: 400} {
				if w := request(h, "POST", SignInPath, json(body)); w.Code != code {
					t.Errorf("%.40s gives %d: %s", body, w.Code, w.Body)
				}
			}
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	kept := memstore.NewReplicas().Join()
	s := sessions{kept: kept}
	for range maxSessions + 10 {
		must(t, errOf(s.begin(t.Context(), session{}, "")))
	}
	last, err := s.begin(t.Context(), session{Caller: root}, "")
	must(t, err)
	n := entries(t, kept, sessionPrefix)
	if v, ok, _ := s.get(t.Context(), last); n > maxSessions || !ok || v.Caller.Name != "root" {
		t.Errorf("%d sessions are kept, the last one: %v", n, ok)
	}
}

// No one can make the page to sign in send people elsewhere.
func TestOnlyALocalPathIsGoneOnTo(t *testing.T) {
	for to, want := range map[string]string{
		"/": "/", "/messages?q=a#b": "/messages?q=a#b", "": "/", "messages": "/", "//evil.example": "/", "/\\evil.example": "/",
		"https://evil.example/": "/", "javascript:alert(1)": "/", "/\t/evil.example": "/", "/\n": "/", "/%0d%0a": "/%0d%0a", "///evil.example": "/",
		"/../x": "/", "/messages/%2e%2E/../x": "/", "/messages/..?q=..": "/", "/messages/..x?q=../..": "/messages/..x?q=../..",
	} {
		expect.Equal(t, LocalPath(to), want, "%q leads to", to)
	}
}

func TestWhereARequestCameFrom(t *testing.T) {
	proxies := Proxies{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for _, c := range []struct{ peer, said, want string }{
		{"192.0.2.1:5", "", "192.0.2.1"},
		{"192.0.2.1:5", "198.51.100.7", "192.0.2.1"}, // no proxy of ours
		{"10.1.1.1:5", "198.51.100.7", "198.51.100.7"},
		{"10.1.1.1:5", "1.1.1.1, 198.51.100.7", "198.51.100.7"}, // the first is invented
		{"10.1.1.1:5", "1.1.1.1, 198.51.100.7, 10.2.2.2", "198.51.100.7"},
		{"10.1.1.1:5", "10.3.3.3", "10.3.3.3"},
		{"10.1.1.1:5", "", "10.1.1.1"},
		{"10.1.1.1:5", "nonsense", "10.1.1.1"},
		{"[::1]:5", "2001:db8::1", "2001:db8::1"},
		{"[::ffff:10.1.1.1]:5", "::ffff:198.51.100.7", "198.51.100.7"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.peer
		if c.said != "" {
			r.Header.Set("X-Forwarded-For", c.said)
		}
		expect.Equal(t, proxies.client(r).String(), c.want, "%s saying %q", c.peer, c.said)
	}
	if limited(netip.MustParseAddr("2001:db8::1")) != limited(netip.MustParseAddr("2001:db8::ffff:1")) || limited(netip.MustParseAddr("192.0.2.1")) == limited(netip.MustParseAddr("192.0.2.2")) {
		t.Error("a customer's network counts as many, or two machines as one")
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:8250": true, "127.9.9.9:1": true, "[::1]:8250": true, "localhost:1": true, "localhost": true, "[::1]": true, "localhost.evil.example:1": false,
		"0.0.0.0:8250": false, "[::]:8250": false, "10.0.0.1:8250": false, ":8250": false, "": false,
	} {
		if Loopback(addr) != want {
			t.Errorf("%q: %v", addr, !want)
		}
	}
}

var must, errOf = expect.NoError, expect.ErrOf

// Who signs in as guest learns why that cannot be, whatever the password was.
func TestGuestIsRefusedWithTheReason(t *testing.T) {
	_, h, _ := guarded(t, Config{Users: &Users{}})
	r := httptest.NewRequest("POST", SignInPath, strings.NewReader("user=guest&password=x"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := request(h, "POST", SignInPath, func(is *http.Request) { is.Body, is.Header = r.Body, r.Header })
	expect.Equal(t, w.Header().Get("Location"), "/signin?error=guest&next=%2F", "it leads to")
}
