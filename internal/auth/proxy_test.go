package auth

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

func set(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Add(pairs[i], pairs[i+1])
		}
	}
}

// A proxy's word is believed from its address alone, and only where it can be read in one way.
func TestPeopleWhomAProxyNames(t *testing.T) {
	proxy := ProxyConfig{UserHeader: "x-forwarded-user", GroupsHeader: "X-Forwarded-Groups", Contact: "ops@example.com",
		Groups: map[string]Grant{"on-call": {Operator, []string{"orders.*"}}, "readers": {Role: Viewer}}, SignOut: "/out"}
	g, h, secret := guarded(t, Config{Proxy: proxy,
		Proxies: Proxies{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/8")}})
	const user, groups, ann = "X-Forwarded-User", "X-Forwarded-Groups", "proxy:ann proxy operator "
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		code   int
		want   string
	}{
		{"a proxy", set(user, "ann", groups, "staff,on-call"), 200, ann + "api 127.0.0.1 false"},
		{"a group after a space", set(user, "ann", groups, "staff, on-call"), 200, ann},
		{"a page by a proxy", set(user, "ann", groups, "on-call", "Sec-Fetch-Site", "same-origin"), 200, ann + "page"},
		{"who came by it", set(user, "ann", groups, "on-call", "X-Forwarded-For", "192.0.2.7"), 200, ann + "api 192.0.2.7"},
		{"a name with é", set(user, "Zoé B", groups, "readers"), 200, "proxy:Zoé B proxy viewer"},
		{"with the proxy's own token", set(user, "ann", groups, "on-call", "Authorization", "Bearer x.y.z"), 200, ann},
		{"with the proxy's own password", set(user, "ann", groups, "on-call", "Authorization", "Basic YTpi"), 200, ann},
		{"with a token of ours", set(user, "ann", groups, "on-call", "Authorization", "Bearer "+secret), 200, "ci token"},
		{"with a wrong token of ours", set(user, "ann", groups, "on-call", "Authorization", "Bearer "+secret+"x"), 401, "not valid"},

		{"another address", func(r *http.Request) {
			set(user, "ann", groups, "on-call", "X-Forwarded-For", "127.0.0.1", "X-Real-IP", "127.0.0.1")(r)
			r.RemoteAddr = "127.0.0.2:4242"
		}, 401, "sign in first"},
		{"an unknown address", func(r *http.Request) { set(user, "ann", groups, "on-call")(r); r.RemoteAddr = "@" }, 401, "sign in first"},
		{"nobody", set(groups, "on-call"), 401, "sign in first"},
		{"an empty user", set(user, "", groups, "on-call"), 401, "sign in first"},
		{"a blank user", set(user, " \u00a0", groups, "on-call"), 401, "sign in first"},
		{"underscores", set("X_Forwarded_User", "ann", groups, "on-call"), 401, "sign in first"},
		{"underscores too", set(user, "ann", groups, "readers", "X_Forwarded_User", "eve", "X_Forwarded_Groups", "on-call"), 200, "proxy:ann proxy viewer"},
		{"underscored groups", set(user, "ann", "X_Forwarded_Groups", "on-call"), 403, "no group that has a role"},

		{"no groups", set(user, "ann"), 403, "no group that has a role"},
		{"no role", set(user, "ann", groups, "staff"), 403, "proxy:ann is in no group that has a role (on-call, readers); ask ops@example.com"},
		{"groups in another case", set(user, "ann", groups, "On-Call"), 403, "no group"},
		{"two users", set(user, "ann", user, "eve", groups, "on-call"), 403, "x-forwarded-user came more than once"},
		{"a user and none", set(user, "", user, "eve", groups, "on-call"), 403, "came more than once"},
		{"two users in one", set(user, "eve, ann", groups, "on-call"), 403, "has a comma"},
		{"groups twice", set(user, "ann", groups, "staff", groups, "on-call"), 403, "X-Forwarded-Groups came more than once"},
		{"a line", set(user, "ann\nrole=admin", groups, "on-call"), 403, "cannot be shown"},
		{"a turned text", set(user, "ann\u202e", groups, "on-call"), 403, "cannot be shown"},
		{"no UTF-8", set(user, "ann\xff", groups, "on-call"), 403, "cannot be shown"},
		{"groups with a tab", set(user, "ann", groups, "staff,\ton-call"), 403, "cannot be shown"},
		{"a long user", set(user, strings.Repeat("a", maxName+1), groups, "on-call"), 403, "has more than 255 bytes"},
		{"long groups", set(user, "ann", groups, "on-call,"+strings.Repeat("a", maxGroups)), 403, "has more than 16384 bytes"},

		{"another site's page", set(user, "ann", groups, "on-call", "Sec-Fetch-Site", "cross-site"), 403, "page of another site"},
		{"another site's post", func(r *http.Request) {
			set(user, "ann", groups, "on-call", "Origin", "https://evil.example")(r)
			r.Method = "POST"
		}, 403, ""},
		{"no role, in a browser", set(user, "ann", "Accept", "text/html"), 303, "/signin?next=%2F"},
	} {
		w := request(h, "GET", "/", c.change)
		if said := w.Body.String() + w.Header().Get("Location"); w.Code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.name, w.Code, said, c.code, c.want)
		}
		if len(w.Result().Cookies()) > 0 || strings.Contains(w.Body.String(), "evil") {
			t.Errorf("%s: %v %s", c.name, w.Header(), w.Body)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	set(user, "ann", groups, "on-call")(r)
	r.RemoteAddr = "10.0.0.7:5"
	c, err := g.caller(r)
	if err != nil || !slices.Equal(c.Queues, []string{"orders.*"}) || c.SignedIn() || g.SignOutAt(c) != "/out" || g.SignOutAt(root) != "" {
		t.Errorf("%+v, %v", c, err)
	}
	expect.Equal(t, g.NoRole(r), nil, "who has a role")
	r.Header.Del(groups)
	if none := g.NoRole(r); none == nil || !none.Proxied || none.SignOut != "/out" || !errors.Is(none, ErrForbidden) {
		t.Errorf("who has none: %+v", none)
	}
	r.RemoteAddr = "192.0.2.1:5"
	expect.Equal(t, g.NoRole(r), nil, "another address")
	_, h, _ = guarded(t, Config{Proxies: Proxies{netip.MustParsePrefix("127.0.0.1/32")}})
	expect.Equal(t, request(h, "GET", "/", set(user, "ann", groups, "on-call")).Code, 401, "a proxy that is not asked for names")
}

// oauth2-proxy signs people in at the provider, and names them by two of its headers.
func TestOAuth2Proxy(t *testing.T) {
	t.Parallel() // Go compiles it for a minute, once
	dir := t.TempDir()
	build := exec.Command("go", "install", "github.com/oauth2-proxy/oauth2-proxy/v7@v7.15.6")
	build.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-trimpath", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building oauth2-proxy: %v\n%s", err, out)
	}
	p := newProvider(t)
	provider := httptest.NewServer(p)
	defer provider.Close()
	p.claims["iss"] = provider.URL
	_, h, _ := guarded(t, Config{Proxies: Proxies{netip.MustParsePrefix("127.0.0.1/32")}, Proxy: ProxyConfig{
		UserHeader: "X-Forwarded-Email", GroupsHeader: "X-Forwarded-Groups",
		Groups: map[string]Grant{"on-call": {Role: Operator}, "platform": {Role: Admin}}}})
	service := httptest.NewServer(h)
	defer service.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	front := "http://" + l.Addr().String()
	socket, err := l.(*net.TCPListener).File()
	must(t, err)
	must(t, l.Close())
	ctx, stop := context.WithCancel(t.Context())
	// It takes an open listener, so that nothing waits for it to listen.
	c := exec.CommandContext(ctx, "sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"`, filepath.Join(dir, "oauth2-proxy"), "--http-address=fd:3", "--upstream="+service.URL,
		"--provider=oidc", "--oidc-issuer-url="+provider.URL, "--client-id="+client, "--client-secret=s3cret",
		"--code-challenge-method=S256", "--redirect-url="+front+"/oauth2/callback", "--email-domain=*",
		"--cookie-secret="+rand.Text()[:16], "--cookie-secure=false", "--skip-provider-button")
	var out bytes.Buffer
	c.Stdout, c.Stderr, c.ExtraFiles = &out, &out, []*os.File{socket}
	must(t, c.Start())
	must(t, socket.Close())
	defer func() {
		stop()
		_ = c.Wait()
		if t.Failed() {
			t.Log(&out)
		}
	}()
	jar, err := cookiejar.New(nil)
	must(t, err)
	browser := &http.Client{Jar: jar}
	get := func(headers ...string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, "GET", front+"/", nil)
		must(t, err)
		set(headers...)(r)
		resp, err := browser.Do(r)
		must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(text)
	}
	const ann = "proxy:ann@example.com proxy operator page 127.0.0.1 false"
	for range 2 { // signing in, and then with its cookie
		code, text := get("X-Forwarded-Email", "eve", "X-Forwarded-Groups", "platform", "Sec-Fetch-Site", "same-origin")
		if code != 200 || text != ann {
			t.Errorf("%d %s", code, text)
		}
	}
	p.claims["groups"] = []string{"staff"}
	browser.Jar, err = cookiejar.New(nil)
	must(t, err)
	if code, text := get(); code != 403 || !strings.Contains(text, "is in no group that has a role (on-call, platform)") {
		t.Errorf("without a role: %d %s", code, text)
	}
}
