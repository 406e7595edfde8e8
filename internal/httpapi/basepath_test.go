package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

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
			base + base + "/":                  "other |" + unescaped(t, base) + "/|" + base + "/|",
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
			if w.Code != http.StatusNotFound {
				t.Errorf("%q: %s gives %d %s", name, path, w.Code, w.Body)
			}
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

func unescaped(t *testing.T, path string) string {
	t.Helper()
	plain, err := url.PathUnescape(path)
	must(t, err)
	return plain
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
			if to := resp.Header.Get("Location"); to != want {
				t.Errorf("after signing in, %q leads to %s", next, to)
			}
		}
	}
}
