package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// A name that points at 127.0.0.1 must not make a browser hand out messages where
// no one signs in.
func TestOnlyALoopbackNameIsAnsweredWithoutSignIn(t *testing.T) {
	c := config(&scripted{})
	signIn := httpapi.New(c)
	c.Guard = auth.NewGuard(auth.Config{Public: httpapi.Public})
	local := httpapi.New(c)
	for name, want := range map[string]int{
		"127.0.0.1:8250": 200, "127.0.0.1": 200, "127.8.8.8:8250": 200, "localhost:8250": 200, "localhost": 200, "[::1]:8250": 200, "[::1]": 200,
		"evil.example": 403, "evil.example:8250": 403, "127.0.0.1.evil.example:8250": 403, "localhost.evil.example": 403,
		"10.0.0.1:8250": 403, "0.0.0.0:8250": 403, "[::]:8250": 403, "169.254.169.254": 403, "": 403, ":8250": 403,
	} {
		for _, path := range []string{"/api/v1/overview", "/metrics", "/api/v1/openapi.json"} {
			if w := ask(local, "GET", path, "", host(name)); w.Code != want {
				t.Errorf("host %q: GET %s gives %d, want %d", name, path, w.Code, want)
			}
			if w := ask(signIn, "GET", path, "", host(name)); w.Code != 200 {
				t.Errorf("with sign-in, host %q: GET %s gives %d", name, path, w.Code)
			}
		}
	}
}

// A link of another site leads to pages, never to a download, of which the audit log
// would have a line.
func TestALinkOfAnotherSiteDownloadsNothing(t *testing.T) {
	who := newAccess(t)
	s := newScene(t, who, false)
	link := []func(*http.Request){header("Authorization", "Bearer "+who.secret["admin"]), header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Dest", "document"), header("Sec-Fetch-Mode", "navigate")}
	before := len(s.book.Entries())
	for path, want := range map[string]int{"/messages/export": 403, "/api/v1/export": 403, "/api/v1/messages": 403, "/messages": 200} {
		if w := ask(s, "GET", path, "", link...); w.Code != want {
			t.Errorf("%s gives %d, want %d", path, w.Code, want)
		}
	}
	if len(s.book.Entries()) != before {
		t.Errorf("the audit log has %v", s.book.Entries()[before:])
	}
}

// Whatever is answered, a browser takes it for nothing else.
func TestEveryAnswerSaysWhatItIs(t *testing.T) {
	s := newScene(t, newAccess(t), false)
	for _, path := range []string{"/", "/healthz", "/readyz", "/metrics", "/nothing", "/signin", "/api/v1/me", "/api/v1/openapi.json", "/api/v1/nothing"} {
		for _, token := range []string{"", "redrive_wrong"} {
			h := s.as(token, "GET", path, "", "").Header()
			expect.Equal(t, h.Get("Access-Control-Allow-Origin"), "", "%s: Access-Control-Allow-Origin", path)
			for _, name := range []string{"Content-Security-Policy", "X-Frame-Options", "Cross-Origin-Resource-Policy"} {
				if h.Get(name) == "" {
					t.Errorf("%s has no %s", path, name)
				}
			}
			if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") == "" {
				t.Errorf("%s: %v", path, h)
			}
		}
	}
}

func TestHealthNeedsNobody(t *testing.T) {
	well, ill := config(&scripted{}), config(&scripted{})
	gone := condition.Condition{Kind: condition.Unreachable, Queue: "orders", Text: "gone"}
	ill.Conditions = func() []condition.Condition {
		return []condition.Condition{{Kind: condition.Intake, Text: "not connected"}, gone}
	}
	ill.Notices = func() []string { return []string{"look at this"} }
	ill.Ready = func() bool { return false }
	queue := config(&scripted{})
	queue.Conditions = func() []condition.Condition { return []condition.Condition{gone} }
	nobody, limited, viewer := auth.Caller{}, auth.Caller{Role: auth.Admin, Queues: []string{"mail"}}, auth.Caller{Role: auth.Viewer}
	for _, want := range []struct {
		config httpapi.Config
		path   string
		caller auth.Caller
		status int
		body   string
	}{
		{well, "/healthz", nobody, 200, "ok\n"},
		{ill, "/healthz", nobody, 200, "ok\n"}, // or the process would be restarted for it
		{well, "/readyz", nobody, 200, "ready\n"},
		{well, "/readyz", viewer, 200, "ready\n"},
		{ill, "/readyz", nobody, 503, "not ready: who signs in sees why\n"},
		{ill, "/readyz", limited, 503, "not ready: who signs in sees why\n"},
		{ill, "/readyz", viewer, 503, "intake: not connected\nqueue orders: gone\nlook at this\n"},
		{queue, "/readyz", nobody, 200, "ready\n"},
		{queue, "/readyz", viewer, 200, "ready\nqueue orders: gone\n"},
		{ill, "/metrics", viewer, 200, "redrive_ready 1\n"},
	} {
		if w := ask(httpapi.New(want.config), "GET", want.path, "", as(want.caller)); w.Code != want.status || w.Body.String() != want.body {
			t.Errorf("%s for %s gives %d %q, want %d %q", want.path, want.caller.Role, w.Code, w.Body, want.status, want.body)
		}
	}
	if w := ask(httpapi.New(well), "GET", "/metrics", "", as(limited)); w.Code != 403 {
		t.Errorf("the metrics of all queues are shown to who is limited to some: %d", w.Code)
	}
}

// What makes no sense is refused before the console is asked, and what was sent is
// not replayed.
func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	a := httpapi.New(config(&scripted{}))
	const ids = `"0198f0a0-0000-7000-8000-000000000001"`
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"GET", "/api/v1/messages?limit=0", "", 422, "invalid"},
		{"GET", "/api/v1/messages?limit=-1", "", 422, "invalid"},
		{"GET", "/api/v1/messages?limit=1001", "", 422, "invalid"},
		{"GET", "/api/v1/messages?limit=many", "", 422, "invalid"},
		{"GET", "/api/v1/messages?q=" + strings.Repeat("a", 5000), "", 422, "invalid"},
		{"GET", "/api/v1/messages?q=" + strings.Repeat("a", 20_000), "", 414, "too_large"},
		{"GET", "/api/v1/messages?after=" + strings.Repeat("a", 2000), "", 422, "invalid"},
		{"GET", "/api/v1/messages/" + strings.Repeat("a", 300), "", 422, "invalid"},
		{"GET", "/api/v1/export?format=xlsx", "", 422, "invalid"},
		{"GET", "/api/v1/nothing", "", 404, "not_found"},
		{"GET", "/api/", "", 404, "not_found"},
		{"GET", "/api/v1/act", "", 405, "method"},
		{"DELETE", "/api/v1/messages", "", 405, "method"},
		{"POST", "/api/v1/act", "", 400, "malformed"},
		{"POST", "/api/v1/act", `{"verb":`, 400, "malformed"},
		{"POST", "/api/v1/act", `[]`, 422, "invalid"},
		{"POST", "/api/v1/act", `{"verb":"replay","ids":[]}`, 422, "invalid"},
		{"POST", "/api/v1/act", `{"verb":"explode","ids":[` + ids + `]}`, 422, "invalid"},
		{"POST", "/api/v1/act", `{"verb":"replay","ids":[` + ids + `],"qeue":"x"}`, 422, "invalid"},
		{"POST", "/api/v1/act", `{"verb":"replay","ids":[` + strings.Repeat(ids+",", 1000) + ids + `]}`, 422, "invalid"},
		{"POST", "/api/v1/act", `{"verb":"replay","ids":["` + strings.Repeat("a", 2<<20) + `"]}`, 413, "too_large"},
		{"POST", "/api/v1/operations/7/explode", ``, 422, "invalid"},
		{"POST", "/api/v1/import", `{}`, 415, "content_type"},
	} {
		w := ask(a, c.method, c.path, c.body)
		if got := code(t, w); w.Code != c.status || got != c.code {
			t.Errorf("%s %.60s %.60s gives %d %s, want %d %s: %.300s", c.method, c.path, c.body, w.Code, got, c.status, c.code, w.Body)
		}
		if w.Body.Len() > 4000 {
			t.Errorf("%s %.60s: the refusal has %d bytes", c.method, c.path, w.Body.Len())
		}
	}
	if w := ask(a, "POST", "/api/v1/act", "verb=replay", header("Content-Type", "application/x-www-form-urlencoded")); w.Code != 415 || code(t, w) != "content_type" {
		t.Errorf("a form gives %d: %s", w.Code, w.Body)
	}
}

// unread is the answer of a client that reads nothing until it is closed.
type unread struct {
	*httptest.ResponseRecorder
	closed chan struct{}
}

func (u unread) Write(b []byte) (int, error) {
	if u.Code < 400 {
		<-u.closed
	}
	return u.ResponseRecorder.Write(b)
}

// What clients are answered, and what they send, is in memory: of one caller, and of all, only so
// much is at once, and then the places are free again.
func TestEachRouteServesOnlySoManyAtOnce(t *testing.T) {
	s := &scripted{search: func(string, string) (inspect.Page, error) { return inspect.Page{Messages: []inspect.Message{}}, nil },
		export: func(_ context.Context, w io.Writer) (int64, error) { _, err := w.Write([]byte("{}\n")); return 1, err },
		taken:  func(io.Reader) (actions.Imported, error) { return actions.Imported{}, nil }}
	for route, most := range map[string]struct{ own, all int }{
		"GET /api/v1/messages": {4, 12}, "GET /api/v1/messages/x/body": {2, 4}, "GET /api/v1/export": {2, 6}, "POST /api/v1/import": {2, 4}, "POST /api/v1/decode": {1, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, closed := httpapi.New(config(s)), make(chan struct{})
			var asking sync.WaitGroup
			refused := 0
			ask := func(times int, name string) {
				for range times {
					w := unread{httptest.NewRecorder(), closed}
					method, path, _ := strings.Cut(route, " ")
					r := httptest.NewRequest(method, path, strings.NewReader(`{"body":"e30="}`))
					r.Header.Set("Content-Type", "application/json")
					if strings.HasSuffix(path, "import") {
						r.Header.Set("Content-Type", "application/jsonl")
					}
					as(auth.Caller{Name: name, How: "token", Role: auth.Editor})(r)
					asking.Go(func() {
						if a.ServeHTTP(w, r); w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "" {
							refused++
						} else if w.Code != http.StatusOK {
							t.Errorf("%s gives %d: %s", route, w.Code, w.Body)
						}
					})
					time.Sleep(time.Minute) // of the bubble's time: no one waits longer than that for a place
				}
			}
			if ask(most.own+3, "one"); refused != 3 {
				t.Errorf("%s: %d of one caller's %d are refused", route, refused, most.own+3)
			}
			for i := range most.all - most.own + 3 {
				ask(1, fmt.Sprint("other ", i))
			}
			expect.Equal(t, refused, 6, "%s: refused", route)
			close(closed)
			asking.Wait()
			if ask(1, "one"); refused != 6 {
				t.Errorf("%s: after them one is refused", route)
			}
			asking.Wait()
		})
	}
}

func TestARouteSaysWhatItHolds(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a route is taken that has no load")
		}
	}()
	httpapi.New(config(&scripted{})).Handle("GET /new", http.NotFoundHandler())
}

// Who reads so slowly that an answer stays in memory for long is cut off.
func TestSipBySip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		server := httptest.NewUnstartedServer(httpapi.New(config(&scripted{export: func(_ context.Context, w io.Writer) (int64, error) {
			_, err := w.Write(make([]byte, 16<<20))
			ended <- err
			return 1, err
		}})))
		_ = server.Listener.Close()
		here, there := net.Pipe()
		listener := &one{conns: make(chan net.Conn, 1)}
		listener.conns <- there
		server.Listener = listener
		server.Start()
		defer server.Close()
		_, err := io.WriteString(here, "GET /api/v1/export HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		sip := make([]byte, 8<<10)
		for err == nil {
			time.Sleep(time.Second)
			_, err = here.Read(sip)
		}
		expect.Err(t, <-ended, os.ErrDeadlineExceeded, "it ends with")
	})
}

func TestARawBodyIsOnlyADownload(t *testing.T) {
	w := ask(httpapi.New(config(&scripted{})), "GET", `/api/v1/messages/a%22;%0d%0aevil=.html/body`, "")
	h := w.Header()
	if w.Code != 200 || w.Body.String() != "<script>" || h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" ||
		h.Get("Content-Disposition") != `attachment; filename="message-aevilhtml.bin"` || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("%d %v: %s", w.Code, h, w.Body)
	}
}

// Whatever a virtual host is named, what is under its base sees paths as if it were
// alone, and gets no others.
func TestUnderTheBaseOfAVirtualHost(t *testing.T) {
	for _, name := range []string{"shop", "/", "a/b", "a//b", "ä", "%2F", "%", "..", ".", "a b", "a+b", "a:b@c", "?x#y", "{$}", `"><i>`, "v"} {
		mux := http.NewServeMux()
		saw := func(what string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, "%s %s|%s|%s|%s", what, r.PathValue("id"), r.URL.Path, r.URL.EscapedPath(), r.URL.RawQuery)
			}
		}
		mux.HandleFunc("GET /{$}", saw("first"))
		mux.HandleFunc("GET /messages/{id}", saw("message"))
		mux.HandleFunc("GET /", saw("other"))
		base := httpapi.Base(name)
		plain, err := url.PathUnescape(base)
		must(t, err)
		outer := http.NewServeMux() // as where there are several
		outer.Handle(base, httpapi.Under(base, mux))
		outer.Handle(base+"/", httpapi.Under(base, mux))
		server := httptest.NewServer(outer)
		t.Cleanup(server.Close)
		ask := func(path string) (status int, text string) {
			t.Helper()
			c := server.Client()
			c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp, err := c.Get(server.URL + path)
			must(t, err)
			defer resp.Body.Close()
			if to := resp.Header.Get("Location"); to != "" {
				return resp.StatusCode, to
			}
			said, err := io.ReadAll(resp.Body)
			must(t, err)
			return resp.StatusCode, string(said)
		}
		for path, want := range map[string]string{
			base + "/":                         "first |/|/|",
			base + "/?q=a%2Fb":                 "first |/|/|q=a%2Fb",
			base + "/messages/x":               "message x|/messages/x|/messages/x|",
			base + "/messages/a%2Fb%20c":       "message a/b c|/messages/a/b c|/messages/a%2Fb%20c|",
			base + "/messages/a%2fb":           "message a/b|/messages/a/b|/messages/a%2fb|",
			base + "/messages/%2E%2E":          "message ..|/messages/..|/messages/%2E%2E|",
			base + base + "/":                  "other |" + plain + "/|" + base + "/|",
			base + "/messages/" + "%C3%A4%25a": "message ä%a|/messages/ä%a|/messages/%C3%A4%25a|",
		} {
			if status, text := ask(path); status != 200 || text != want {
				t.Errorf("%q: %s gives %d %q, want %q", name, path, status, text, want)
			}
		}
		for path, want := range map[string]string{
			base:                             base + "/",
			base + "?q=1":                    base + "/?q=1",
			base + "//messages?q=%2F":        base + "/messages?q=%2F",
			base + "//evil.example/":         base + "/evil.example/",
			base + "/messages//x":            base + "/messages/x",
			base + "/messages/..":            base + "/",
			base + "/messages/../messages/x": base + "/messages/x",
			base + "/messages/./a%2Fb/":      base + "/messages/a%2Fb/",
		} {
			w := httptest.NewRecorder()
			httpapi.Under(base, mux).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if to := w.Header().Get("Location"); w.Code != http.StatusTemporaryRedirect || to != want {
				t.Errorf("%q: %s leads to %d %q, want %q", name, path, w.Code, to, want)
			}
		}
		for _, path := range []string{"/", "/messages/x", "/v", "/v/", base + "x/", base + "%20/messages/x", "/v//messages/x", "/V" + base[2:] + "/"} {
			w := httptest.NewRecorder()
			httpapi.Under(base, mux).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			expect.Equal(t, w.Code, http.StatusNotFound, "%q: %s gives … %s", name, path, w.Body)
		}
	}
	// Programs escape what they need not, and in small letters.
	seen := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	for path, base := range map[string]string{"/v/a%3Ab%40c/x": httpapi.Base("a:b@c"), "/v/%c3%a4/x": httpapi.Base("ä"), "/v/%73hop/x": httpapi.Base("shop"), "/%76/a%2fb/x": httpapi.Base("a/b"), "/x": ""} {
		w := httptest.NewRecorder()
		httpapi.Under(base, seen).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Body.String() != "/x" {
			t.Errorf("%s under %s gives %d %s", path, base, w.Code, w.Body)
		}
	}
}

// tenants serves a service at / and one for each of these virtual hosts, with a token
// of the name of each.
func tenants(t *testing.T, secure bool, vhosts ...string) (server *httptest.Server, secrets map[string]string) {
	t.Helper()
	mux := http.NewServeMux()
	secrets = map[string]string{}
	for _, vhost := range append(vhosts, "") {
		kept, base := memstore.NewReplicas().Join(), ""
		tokens := auth.NewTokens(kept, &inspecttest.AuditLog{})
		var err error
		secrets[vhost], _, err = tokens.Create(t.Context(), root, auth.NewToken{Name: owner(vhost), Role: "viewer"})
		must(t, err)
		if vhost != "" {
			base = httpapi.Base(vhost)
		}
		c := config(&scripted{})
		c.Base, c.Tokens = base, tokens
		c.Guard = auth.NewGuard(auth.Config{Required: true, Tokens: tokens, Secure: secure, Sessions: kept, SignInPage: auth.SignInPath, Base: base, Public: httpapi.Public, Log: c.Log})
		a := httpapi.New(c)
		mux.Handle(base+"/", httpapi.Under(base, a))
		if base != "" {
			mux.Handle(base, httpapi.Under(base, a))
		}
		t.Cleanup(a.EndStreams)
	}
	server = httptest.NewUnstartedServer(mux)
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server, secrets
}

// owner is the name of a virtual host's token.
func owner(vhost string) string { return "of-" + strings.ReplaceAll(vhost, "/", "-") }

func TestTheClientOfOneVirtualHostOfSeveral(t *testing.T) {
	server, secrets := tenants(t, false, "shop/eu", "shop")
	for vhost := range secrets {
		c := httpapi.Client{Addr: server.URL, HTTP: server.Client()}
		if vhost != "" {
			c.Addr += httpapi.Base(vhost)
		}
		for of, secret := range secrets {
			c.Token = secret
			me, err := c.Me(soon(t))
			if of == vhost && (err != nil || me.Name != owner(vhost)) || of != vhost && !errors.Is(err, auth.ErrSignIn) {
				t.Errorf("at %q, with the token of %q: %+v %v", vhost, of, me, err)
			}
		}
		if at, err := c.URL(); err != nil || at != c.Addr {
			t.Errorf("%q is at %s: %v", vhost, at, err)
		}
	}
}

// What the API says of where things are is right under a base.
func TestWhatTheAPISaysOfItsBase(t *testing.T) {
	for _, base := range []string{"", httpapi.Base("a/b")} {
		c := config(&scripted{})
		c.Base = base
		h := httpapi.Under(base, httpapi.New(c))
		w := ask(h, "GET", base+"/api/v1/openapi.json", "")
		var doc struct {
			Servers    []struct{ URL string }
			Components struct {
				SecuritySchemes struct{ Session struct{ Name string } }
			}
		}
		must(t, json.Unmarshal(w.Body.Bytes(), &doc))
		if (base == "") != (doc.Servers == nil) || base != "" && (doc.Servers[0].URL != base || doc.Components.SecuritySchemes.Session.Name != "redrive-vhost") {
			t.Errorf("under %q: %+v", base, doc)
		}
		if w := ask(h, "GET", base+"/api/v1/nothing", ""); w.Code != 404 || !strings.Contains(w.Body.String(), " "+base+"/api/v1/openapi.json lists") {
			t.Errorf("under %q: %s", base, w.Body)
		}
	}
}

// Who signs in at one virtual host is signed in there alone, whatever cookies a browser
// sends, and signs out there alone.
func TestASessionIsOfOneVirtualHost(t *testing.T) {
	for _, secure := range []bool{false, true} {
		server, secrets := tenants(t, secure, "shopping", "shop")
		jar, err := cookiejar.New(nil) // as a browser's, but for paths that are escaped: test/page has one
		must(t, err)
		browser := server.Client()
		browser.Jar, browser.CheckRedirect = jar, func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		base := func(vhost string) string {
			if vhost == "" {
				return ""
			}
			return httpapi.Base(vhost)
		}
		ask := func(method, path string, form url.Values, cookies ...*http.Cookie) *http.Response {
			t.Helper()
			r, err := http.NewRequest(method, server.URL+path, strings.NewReader(form.Encode()))
			must(t, err)
			r.Header.Set("Accept", "text/html,*/*")
			if form != nil {
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			for _, c := range cookies {
				r.AddCookie(c)
			}
			resp, err := browser.Do(r)
			must(t, err)
			defer resp.Body.Close()
			var me struct{ Name string }
			if resp.StatusCode == 200 && json.NewDecoder(resp.Body).Decode(&me) == nil {
				resp.Status = me.Name
			}
			return resp
		}
		is := func(vhost, want string, cookies ...*http.Cookie) {
			t.Helper()
			resp := ask("GET", base(vhost)+"/api/v1/me", nil, cookies...)
			if got := resp.Status; want != "" && got != want || want == "" && resp.StatusCode != 303 {
				t.Errorf("secure %v: at %q it is %s, want %q", secure, vhost, got, want)
			}
		}
		signIn := func(vhost string) *http.Cookie {
			t.Helper()
			resp := ask("POST", base(vhost)+"/signin", url.Values{"token": {secrets[vhost]}, "next": {"/messages?q=a%2Fb"}})
			if to := resp.Header.Get("Location"); resp.StatusCode != 303 || to != base(vhost)+"/messages?q=a%2Fb" || len(resp.Cookies()) != 1 {
				t.Fatalf("at %q signing in leads to %s %s, %v", vhost, resp.Status, to, resp.Cookies())
			}
			return resp.Cookies()[0]
		}

		first := signIn("")
		is("", owner(""))
		is("shop", "") // to which the browser sends it too
		if to := ask("GET", base("shopping")+"/messages?q=a", nil).Header.Get("Location"); to != "/v/shopping/signin?next=%2Fmessages%3Fq%3Da" {
			t.Errorf("who is signed in elsewhere is led to %s", to)
		}
		shop, shopping := signIn("shop"), signIn("shopping")
		for vhost, c := range map[string]*http.Cookie{"": first, "shop": shop, "shopping": shopping} {
			is(vhost, owner(vhost))
			host, held := strings.HasPrefix(c.Name, "__Host-"), strings.HasPrefix(c.Name, "__Secure-")
			if c.Path != base(vhost)+"/" || host && c.Path != "/" || (host || held) != secure || c.Secure != secure || c.Domain != "" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
				t.Errorf("secure %v: the cookie of %q is %s", secure, vhost, c)
			}
		}
		// Nor is one taken under another's name.
		for _, other := range []*http.Cookie{first, shopping} {
			given := func(value string) *http.Cookie { return &http.Cookie{Name: shop.Name, Value: value} }
			browser.Jar = nil
			is("shop", "", given(other.Value))
			is("shop", owner("shop"), given(other.Value), given("nonsense"), given(shop.Value))
			browser.Jar = jar
		}

		resp := ask("POST", base("shop")+"/signout", url.Values{})
		if c := resp.Cookies(); resp.StatusCode != 303 || resp.Header.Get("Location") != "/v/shop/signin" || len(c) != 1 || c[0].Path != "/v/shop/" || c[0].MaxAge >= 0 {
			t.Errorf("signing out: %v %v", resp.Header, c)
		}
		is("shop", "")
		is("shop", "", shop) // the session itself has ended
		is("shopping", owner("shopping"))
		is("", owner(""))
		if to := ask("GET", base("shop")+"/x", nil, shop).Header.Get("Location"); to != "/v/shop/signin?error=expired&next=%2Fx" {
			t.Errorf("whose session has ended is led to %s", to)
		}
		for next, want := range map[string]string{"/../../x": "/v/shop/", "//evil.example": "/v/shop/", "": "/v/shop/", "/messages/%2E%2E": "/v/shop/"} {
			resp := ask("POST", base("shop")+"/signin", url.Values{"token": {secrets["shop"]}, "next": {next}})
			expect.Equal(t, resp.Header.Get("Location"), want, "after signing in, %q leads to", next)
		}
	}
}
