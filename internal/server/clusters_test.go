package server

import (
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/store"
)

// twoOfOneName is a configuration of two clusters' virtual hosts shop, without RabbitMQ.
func twoOfOneName(t *testing.T) *config.Config {
	c := testConfig(t)
	c.Broker.URL = "amqp://guest:guest@127.0.0.1:1/shop"
	c.Broker.VHosts = []config.VHost{{Name: "eu", VHost: "shop", URL: "amqp://guest:guest@127.0.0.1:2", Management: "http://guest:guest@127.0.0.1:3"}}
	return c
}

func TestAVirtualHostOfAnotherClusterGoesByItsName(t *testing.T) {
	s, err := New(twoOfOneName(t), quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		path string
		code int
		has  string
	}{
		{"/v/eu/api/v1/overview", 200, `127.0.0.1:2/shop`},
		{"/v/shop/api/v1/overview", 200, `127.0.0.1:1/shop`},
		{"/metrics", 200, `redrive_ready{vhost="eu"} 0`},
		{"/readyz", 503, "virtual host eu: intake: connecting\n"},
		{"/", 200, `<a href="/all">All</a>`},
		{"/all", 200, `<a data-open href="/v/eu/"><bdi>eu</bdi></a> <span class="dim">virtual host <bdi>shop</bdi></span>`},
		{"/all", 200, "intake: connecting"},
		{"/v/eu/", 200, "redrive --vhost eu "},
		{"/api/v1/vhosts", 200, `{"vhosts":[{"name":"shop","vhost":"shop","broker":"amqp://guest:xxxxx@127.0.0.1:1/shop","ready":false,"problem":"intake: connecting","problems":3,`},
		{"/api/v1/vhosts", 200, `{"name":"eu","vhost":"shop","broker":"amqp://guest:xxxxx@127.0.0.1:2/shop",`},
		{"/v/eu/api/v1/vhosts", 200, `[{"name":"eu",`},
		{"/v/eu/all", 404, ""},
	} {
		if code, text := ask(s, c.path); code != c.code || !strings.Contains(text, c.has) {
			t.Errorf("%s: %d, want %d with %q:\n%.3000s", c.path, code, c.code, c.has, text)
		}
	}
	if _, text := ask(s, "/all"); strings.Contains(text, `aria-label="Pages"`) || strings.Contains(text, "/signout") || strings.Contains(text, `id="live"`) {
		t.Errorf("the page about all is one of the first:\n%s", text)
	}
}

// A browser sees on the page about all what it is signed in to, and no cookie of one virtual host
// goes to the paths of another.
func TestThePageAboutAllShowsWhatABrowserIsSignedInTo(t *testing.T) {
	for _, base := range []string{"", "/tools"} {
		t.Run(base, func(t *testing.T) {
			c := several(t)
			c.Access.SignIn, c.BasePath = true, base
			s, err := New(c, quiet())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var secrets []string
			for _, v := range s.vhosts {
				secret, _, err := auth.NewTokens(v.store, v.audit).Create(t.Context(), auth.Caller{Name: "ann", Role: auth.Admin}, auth.NewToken{Name: "page", Role: "viewer"})
				if err != nil {
					t.Fatal(err)
				}
				secrets = append(secrets, secret)
			}
			at := httptest.NewServer(s.server().Handler)
			defer at.Close()
			b := newBrowser(t, at.URL+base)
			sees := func(when string, want ...string) {
				t.Helper()
				_, page := b.get("/all", nil)
				for _, path := range []string{"/", "/v/shop/", "/v/a%2Fb/"} {
					row := strings.Contains(page, `<th scope="row"><a data-open href="`+base+path+`">`)
					wanted := false
					for _, w := range want {
						wanted = wanted || w == path
					}
					if row != wanted {
						t.Errorf("%s: %s is shown: %v, want %v", when, path, row, wanted)
					}
				}
			}
			if resp, text := b.get("/all", nil); resp.StatusCode != 303 || resp.Header.Get("Location") != base+"/signin?next=%2Fall" || strings.Contains(text, "shop") {
				t.Errorf("to no one it answers %d to %s: %s", resp.StatusCode, resp.Header.Get("Location"), text)
			}
			if resp, _ := b.get("/all", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Dest": {"document"}}); resp.Header.Get("Refresh") != "0" {
				t.Errorf("a link of another site leads to %d %v", resp.StatusCode, resp.Header)
			}
			if to := b.post("/signin", url.Values{"token": {secrets[0]}, "next": {"/all"}}); to != base+"/all" {
				t.Errorf("after signing in it leads to %s", to)
			}
			sees("signed in to the first", "/")
			b.post("/v/shop/signin", url.Values{"token": {secrets[1]}})
			sees("signed in to two", "/", "/v/shop/")
			b.post("/v/a%2Fb/signin", url.Values{"token": {secrets[1]}}) // of another
			sees("signed in to two, and refused by the third", "/", "/v/shop/")
			if resp, _ := b.get("/v/a%2Fb/", nil); resp.StatusCode != 303 {
				t.Errorf("the third answers %d", resp.StatusCode)
			}
			for _, c := range b.cookies("/v/shop/") {
				if strings.HasPrefix(c.Name, "redrive-all") {
					t.Errorf("the cookie %s goes to other paths", c.Name)
				}
			}
			if n := len(b.cookies("/all")); n != 3 { // the first's own goes there too
				t.Errorf("%d cookies go to the page about all: %v", n, b.cookies("/all"))
			}
			b.post("/signout", nil)
			sees("signed out of the first", "/v/shop/")
			b.post("/v/shop/signout", nil)
			sees("signed out of both")
		})
	}
}

// browser keeps cookies, and follows no redirects.
type browser struct {
	t    *testing.T
	http http.Client
	base string
}

func newBrowser(t *testing.T, base string) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t: t, base: base, http: http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (b *browser) cookies(path string) []*http.Cookie {
	u, err := url.Parse(b.base + path)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.http.Jar.Cookies(u)
}

func (b *browser) get(path string, header http.Header) (*http.Response, string) {
	b.t.Helper()
	r, err := http.NewRequest("GET", b.base+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Accept", "text/html")
	resp, err := b.http.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, string(text)
}

// post sends a form, and returns where its answer leads.
func (b *browser) post(path string, form url.Values) string {
	b.t.Helper()
	resp, err := b.http.PostForm(b.base+path, form)
	if err != nil {
		b.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.Header.Get("Location")
}

// Two virtual hosts of one name on two clusters were swapped in the config, and their folders not:
// each message would be retried on the other cluster.
func TestStoresOfTwoClustersThatWereSwappedAreRefused(t *testing.T) {
	c := twoOfOneName(t)
	open := func(first, second string) error {
		one := *c
		one.Broker.URL = first + "/shop"
		one.Broker.VHosts = []config.VHost{{Name: "other", VHost: "shop", URL: second}}
		s, err := New(&one, quiet())
		if err == nil {
			err = s.Close()
		}
		return err
	}
	const a, b, moved = "amqp://guest:guest@127.0.0.1:1", "amqp://guest:guest@127.0.0.1:2", "amqp://guest:guest@127.0.0.1:4"
	for _, step := range []struct {
		first, second string
		refused       bool
	}{{a, b, false}, {b, a, true}, {a, b, false}, {b, moved, true}, {a, moved, false}, {a + "/shop," + moved, b, true}, {moved, b, true}} {
		err := open(step.first, step.second)
		if errors.Is(err, store.ErrOwner) != step.refused || err != nil && !step.refused {
			t.Errorf("%+v: %v", step, err)
		}
	}
}
