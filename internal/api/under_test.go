package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/redrive-mq/redrive/internal/api"
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
		base := api.Base(name)
		outer := http.NewServeMux() // as where there are several
		outer.Handle(base, api.Under(base, mux))
		outer.Handle(base+"/", api.Under(base, mux))
		server := httptest.NewServer(outer)
		t.Cleanup(server.Close)
		ask := func(path string) (status int, text string) {
			t.Helper()
			c := server.Client()
			c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp, err := c.Get(server.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if to := resp.Header.Get("Location"); to != "" {
				return resp.StatusCode, to
			}
			said, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
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
			api.Under(base, mux).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if to := w.Header().Get("Location"); w.Code != http.StatusTemporaryRedirect || to != want {
				t.Errorf("%q: %s leads to %d %q, want %q", name, path, w.Code, to, want)
			}
		}
		for _, path := range []string{"/", "/messages/x", "/v", "/v/", base + "x/", base + "%20/messages/x", "/v//messages/x", "/V" + base[2:] + "/"} {
			w := httptest.NewRecorder()
			api.Under(base, mux).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if w.Code != http.StatusNotFound {
				t.Errorf("%q: %s gives %d %s", name, path, w.Code, w.Body)
			}
		}
	}
	// Programs escape what they need not, and in small letters.
	seen := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	for path, base := range map[string]string{"/v/a%3Ab%40c/x": api.Base("a:b@c"), "/v/%c3%a4/x": api.Base("ä"), "/v/%73hop/x": api.Base("shop"), "/%76/a%2fb/x": api.Base("a/b"), "/x": ""} {
		w := httptest.NewRecorder()
		api.Under(base, seen).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Body.String() != "/x" {
			t.Errorf("%s under %s gives %d %s", path, base, w.Code, w.Body)
		}
	}
}

func unescaped(t *testing.T, path string) string {
	t.Helper()
	plain, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}
