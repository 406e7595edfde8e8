package page_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// People sign in to a running service at a certified provider, with the role of their groups, and sign out.
func TestSigningInAtAProvider(t *testing.T) {
	ports, err := subprocess.Ports(2)
	must(t, err)
	provider, listen := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	startProvider(t, ports[0], "http://"+listen+"/signin/oidc")

	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("secret\n"), 0o600))
	access, err := config.Parse("test.yaml", fmt.Appendf(nil, `{notify: {page: "http://%s"}, auth: {oidc: {issuer: %q,
		client_id: redrive, client_secret_file: %q, name: Example, scopes: [profile, groups],
		roles: {on-call: {role: operator, queues: ["orders.*"]}}, contact: ops@example.com}}}`, listen, provider, secret))
	must(t, err)
	s := newStoppedService(t)
	s.config.Access, s.config.Notify.Page, s.config.Listen = access.Access, access.Notify.Page, listen
	s.start()

	b := newTab(t, s.base)
	b.expect("a request to elsewhere: "+provider, "401 (Unauthorized)", "403 (Forbidden)")
	enter := func(name, then string) {
		b.open("/queues")
		b.follow(`a[href*="/signin/oidc/start"]`, "#enter")
		b.write("#name", name)
		b.follow("#enter", then)
	}
	enter("bob", "#refused")
	b.says(".signin", "You are signed in at the provider as oidc:bob (bob), and have no role here.")
	b.says(".signin", "Members of these groups have one: on-call. Ask ops@example.com for it.")
	b.shows(fmt.Sprintf(".signin a[href^=%q]", provider))

	// Eve looks at the page when she loses her role.
	b = newTab(t, s.base)
	b.expect("a request to elsewhere: "+provider, "401 (Unauthorized)", "403 (Forbidden)")
	enter("eve", "h1")
	b.says("#live-state", "Live")
	left, err := http.Get(provider + "/eve-leaves")
	must(t, err)
	must(t, left.Body.Close())
	eve := b

	b = newTab(t, s.base)
	b.expect("a request to elsewhere: "+provider, "401 (Unauthorized)")
	enter("ann", "h1")
	b.says("main", "orders.capture")
	if js[bool](b, `document.body.innerText.includes("mail.send")`) {
		t.Error("ann sees a queue that is none of her group's")
	}
	b.says("header", "oidc:ann")
	b.follow(`form[action$="/signout"] button`, `a[href*="/signin/oidc/start"]`)
	b.follow("#sign-out", "#leave")
	b.follow("#leave", "#left")
	b.open("/signin")
	b.follow(`a[href*="/signin/oidc/start"]`, "#enter") // the provider asks again

	// The command line, confirmed in the browser.
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	var said brokertest.Output
	done := make(chan int, 1)
	go func() { done <- cli.Run(t.Context(), []string{"login", s.base}, &said, &said, cli.Build{}) }()
	confirmAt := regexp.MustCompile(`Open (http\S+user_code=[\w-]+)`)
	brokertest.Eventually(t, "it says where to confirm", func() bool { return confirmAt.MatchString(said.String()) })
	b = newTab(t, provider)
	b.open(strings.TrimPrefix(confirmAt.FindStringSubmatch(said.String())[1], provider))
	b.follow("#confirm", "#enter")
	b.write("#name", "ann")
	b.follow("#enter", "#confirmed")
	expect.Equal(t, <-done, 0, "login ends with")
	if !strings.Contains(said.String(), "as oidc:ann (ann) (operator).") {
		t.Error(said.String())
	}

	eve.shows("#disconnected") // with the next renewal
	eve.follow("#disconnected a", `a[href*="/signin/oidc/start"]`)
	eve.follow(`a[href*="/signin/oidc/start"]`, "#refused")
	eve.says(".signin", "Members of these groups have one: on-call.")
}

// People come by a proxy that has signed them in, with the role of the groups that it names.
func TestComingByAProxy(t *testing.T) {
	access, err := config.Parse("test.yaml", []byte(`{auth: {roles: {}, proxies: {addresses: [127.0.0.1],
		user_header: X-Forwarded-User, groups_header: X-Forwarded-Groups, sign_out: /oauth2/sign_out,
		roles: {on-call: {role: operator, queues: ["orders.*"]}}}}}`))
	must(t, err)
	s := newStoppedService(t)
	s.config.Access = access.Access
	s.start()
	to, err := url.Parse(s.base)
	must(t, err)
	by := func(user, groups string) *tab {
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			r.Out.Header.Set("X-Forwarded-User", user)
			r.Out.Header.Set("X-Forwarded-Groups", groups)
		}})
		t.Cleanup(proxy.Close)
		return newTab(t, proxy.URL)
	}

	b := by("ann", "sales,on-call")
	b.open("/queues")
	b.says("header", "proxy:ann operator")
	b.shows(`header a[href="/oauth2/sign_out"]`)
	b.says("main", "orders.capture")
	if js[bool](b, `document.body.innerText.includes("mail.send")`) {
		t.Error("ann sees a queue that is none of her group's")
	}

	b = by("bob", "sales")
	b.expect("403 (Forbidden)")
	b.open("/queues")
	b.says(".signin", "You are signed in at the proxy as proxy:bob, and have no role here.")
	b.says(".signin", "Members of these groups have one: on-call. Ask whoever runs this service for it.")
	if b.has("nav") {
		t.Error("bob sees more than that")
	}
	b.look("who has no role")

	b = newTab(t, s.base)
	b.expect("401 (Unauthorized)")
	b.open("/queues")
	b.says(".signin", "come by its address")
}

// startProvider runs testdata/provider.mjs until the test ends.
func startProvider(t *testing.T, port int, redirect string) {
	t.Helper()
	modules := filepath.Join(subprocess.Installed(), "clients", "node_modules")
	c := exec.Command("node", "testdata/provider.mjs", modules, fmt.Sprint(port), redirect)
	c.Stderr = t.Output()
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("oidc-provider for Node does not start (`make install-node` installs it)")
	}
}
