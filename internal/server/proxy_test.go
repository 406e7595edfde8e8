package server

import (
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
)

// A proxy in front of the service signs people in; no one else can say who they are.
func TestPeopleComeByAProxy(t *testing.T) {
	c := testConfig(t)
	a := &c.Access
	a.SignIn, a.Roles, a.Proxies = true, nil, auth.Proxies{netip.MustParsePrefix("127.0.0.1/32")}
	a.Proxy = auth.ProxyConfig{UserHeader: "X-Forwarded-User", GroupsHeader: "X-Forwarded-Groups",
		Groups: map[string]auth.Grant{"on-call": {Role: auth.Editor}}, Contact: "ops@example.com"}
	c.Listen, a.BehindProxy = "0.0.0.0:0", true
	_ = refuses(t, c, "which others than the proxies can reach")
	c.Listen = "127.0.0.1:0"
	s := opened(t, c)
	server, served, ended := s.server(), make(chan struct{}), make(chan struct{}, 100)
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			ended <- struct{}{}
		}
	}
	go func() { defer close(served); s.serve(server) }()
	defer func() { server.Close(); <-served }()
	at := &url.URL{Scheme: "http", Host: s.Addr()}
	front := httptest.NewServer(&httputil.ReverseProxy{Transport: &http.Transport{DisableKeepAlives: true}, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(at)
			r.SetXForwarded()
			r.Out.Host = r.In.Host
			user, groups, _ := strings.Cut(r.In.Header.Get("Session"), " ")
			r.Out.Header.Set("X-Forwarded-User", user)
			r.Out.Header.Set("X-Forwarded-Groups", groups)
		}})
	defer front.Close()
	from := func(addr string) *http.Client {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
		return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	}
	for _, c := range []struct {
		name, from, method, at string
		headers                []string
		code                   int
		want                   string
	}{
		{"by the proxy", "127.0.0.3", "GET", front.URL + "/api/v1/me", []string{"Session", "ann on-call"}, 200, `"name":"proxy:ann","how":"proxy","role":"editor"`},
		{"forged by the proxy", "127.0.0.3", "GET", front.URL + "/api/v1/me",
			[]string{"Session", "ann on-call", "X-Forwarded-User", "eve", "X-Forwarded-For", "192.0.2.7"}, 200, `"name":"proxy:ann"`},
		{"signed in nowhere", "127.0.0.3", "GET", front.URL + "/api/v1/me", []string{"X-Forwarded-User", "eve", "X-Forwarded-Groups", "on-call"}, 401, "sign in first"},
		{"past the proxy", "127.0.0.2", "GET", at.String() + "/api/v1/me", []string{"X-Forwarded-User", "eve", "X-Forwarded-Groups", "on-call"}, 401, "sign in first"},
		{"past the proxy in its name", "127.0.0.2", "GET", at.String() + "/api/v1/me",
			[]string{"X-Forwarded-User", "eve", "X-Forwarded-Groups", "on-call", "X-Forwarded-For", "127.0.0.1", "Forwarded", "for=127.0.0.1"}, 401, "sign in first"},
		{"without a role", "127.0.0.3", "GET", front.URL + "/api/v1/queues", []string{"Session", "bob staff"}, 403, "proxy:bob is in no group that has a role (on-call); ask ops@example.com"},
		{"without a role, in a browser", "127.0.0.3", "GET", front.URL + "/queues", []string{"Session", "bob staff", "Accept", "text/html"}, 403, "Members of these groups have one: <b>on-call</b>."},
		{"more than the role", "127.0.0.3", "GET", front.URL + "/api/v1/audit", []string{"Session", "ann on-call"}, 403, "proxy:ann is editor, and this needs admin"},
		{"another site's page", "127.0.0.3", "POST", front.URL + "/api/v1/import", []string{"Session", "ann on-call", "Sec-Fetch-Site", "cross-site", "Content-Type", "application/jsonl"}, 403, ""},
		{"an old browser", "127.0.0.3", "POST", front.URL + "/api/v1/import", []string{"Session", "ann on-call", "Origin", "http://evil.example", "Content-Type", "application/jsonl"}, 403, ""},
		{"the page", "127.0.0.3", "POST", front.URL + "/api/v1/import", []string{"Session", "ann on-call", "Sec-Fetch-Site", "same-origin", "Origin", front.URL, "Content-Type", "application/jsonl"}, 200, ""},
	} {
		r, err := http.NewRequest(c.method, c.at, strings.NewReader(""))
		must(t, err)
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		resp, err := from(c.from).Do(r)
		must(t, err)
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		must(t, resp.Body.Close())
		for at := resp; at != nil; at = at.Request.Response { // where it was led from
			<-ended
		}
		if resp.StatusCode != c.code || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %d, want %d %s: %.2000s", c.name, resp.StatusCode, c.code, c.want, text)
		}
	}
	var did []string
	must(t, s.vhosts[0].audit.Before(t.Context(), math.MaxInt64, func(e audit.Entry) (bool, error) {
		did = append(did, strings.Join([]string{e.Who, e.How, e.From, e.Interface, e.Did}, " "))
		return true, nil
	}))
	if len(did) != 1 || did[0] != "proxy:ann proxy 127.0.0.3 page import" {
		t.Errorf("the audit log has %q", did)
	}
	// A stream ends when the proxy's connection does.
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", front.URL+"/api/v1/live", nil)
	must(t, err)
	r.Header.Set("Session", "ann on-call")
	live, err := from("127.0.0.3").Do(r)
	must(t, err)
	must(t, errOf(live.Body.Read(make([]byte, 1))))
	leave()
	<-ended
	_ = live.Body.Close()
}
