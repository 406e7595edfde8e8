package server

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// grammar makes requests of callers who have no right to anything. What it names is filled in from its words.
type grammar struct {
	*rand.Rand
	words map[string][]string
}

var placeholder = regexp.MustCompile(`<(\w+)>`)

func (g grammar) say(text string) string {
	for placeholder.MatchString(text) {
		text = placeholder.ReplaceAllStringFunc(text, func(name string) string {
			all := g.words[name[1:len(name)-1]]
			return all[g.IntN(len(all))]
		})
	}
	return text
}

// Whatever a stranger sends, no one is let in, nothing fails, and no answer has a word of a message.
func TestHostileRequestsLetNobodyIn(t *testing.T) {
	const marked = "m4rk3d"
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer refuses.Close()
	c := several(t)
	a := &c.Access
	a.SignIn, a.BehindProxy, a.Show = true, true, []auth.Role{auth.Operator}
	a.Proxies = auth.Proxies{netip.MustParsePrefix("10.0.0.7/32")}
	a.Proxy = auth.ProxyConfig{UserHeader: "X-Forwarded-User", GroupsHeader: "X-Forwarded-Groups", Groups: map[string]auth.Grant{"on-call": {Role: auth.Admin}}}
	a.OIDC.Issuer, a.OIDC.ClientID, a.OIDC.SecretFile = "https://127.0.0.1:1", "redrive", filepath.Join(t.TempDir(), "secret")
	a.OIDC.Groups = a.Proxy.Groups
	must(t, os.WriteFile(a.OIDC.SecretFile, []byte("s3cret"), 0o600))
	c.Notify.Page, c.Broker.Management = "https://redrive.example.com", refuses.URL
	s := opened(t, c)
	h := s.server().Handler
	r := inspecttest.Record("orders", store.Parked, `{"card":"`+marked+`"}`)
	r.Error, r.Message.Headers = marked, amqp.Table{"token": marked}
	var tokens []string
	for _, v := range s.vhosts {
		must(t, v.store.Add(t.Context(), []*store.Record{r}))
		root := auth.Caller{Name: "root", Role: auth.Admin}
		secret, _, err := auth.NewTokens(v.store, v.audit).Create(t.Context(), root, auth.NewToken{Name: "ci", Role: "operator"})
		must(t, err)
		tokens = append(tokens, secret)
	}
	show := "/api/v1/messages/" + r.ID.String() + "/show"
	code, text := send(s, "POST", show, `{"reason":"ticket 7"}`, tokens[0])
	if code != 200 || strings.Count(text, marked) < 3 {
		t.Fatalf("who may see the message is answered %d %s", code, text)
	}
	if code, text = send(s, "GET", strings.TrimSuffix(show, "/show"), "", tokens[0]); code != 200 || strings.Contains(text, `"card"`) || !strings.Contains(text, mask.Hidden[1:7]) {
		t.Errorf("without a reason it is answered %d %s", code, text)
	}
	g := grammar{rand.New(rand.NewPCG(7, 7)), map[string][]string{
		"method":  {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "PROPFIND"},
		"public":  {"/healthz", "/readyz", "/assets", "/signin", "/signin/oidc", "/api/v1/openapi.json"},
		"host":    {"/v/shop", "/v/%2F", "/v/a%2Fb", "/v/a%2fb", "/v/nowhere", "/v/..", "/v/%2e%2e", "/v", "/V/shop"},
		"up":      {"/..", "/%2e%2e", "/.%2E", "/..;", "/%2f..", "/..%2f", "/..%5c", "/.", "//", "/%00", "/%c0%ae%c0%ae"},
		"before":  {"", "", "/", "//", "/.", "<host>", "<host>", "<public><up>", "<host><public><up>", "<up>", "<host><up>", "/%2f"},
		"after":   {"", "", "", "/", "//", "?wait=1", "<up>", "<up><public>", "%00", ";<public>", "?next=<public>", "%23<public>", "%3f<public>", ".json", "%20"},
		"role":    {"admin", "on-call", "administrator", "*"},
		"name":    {"root", "ann", "guest", "ci", "oidc:ann", "proxy:ann", "local", "", "ann%00", "../root"},
		"address": {"127.0.0.1", "10.0.0.7", "::1", "localhost", "unknown", "10.0.0.7, 127.0.0.1", "127.0.0.1:1"},
		"id":      {"a", "0", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "../../session", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.", "%00", "", `{"Role":4}`, "<long>"},
		"long":    {strings.Repeat("A", 70_000)},
		"token": {"redrive_<id>", tokens[0][:len(tokens[0])-1], tokens[0] + "A", strings.ToUpper(tokens[0]), strings.TrimPrefix(tokens[0], "redrive_"),
			"redrive_ci", "null", "<id>", tokens[0][:20] + tokens[1][20:]},
		"cookie": {"redrive", "__Host-redrive", "redrive-vhost", "__Secure-redrive-vhost", "redrive-oidc", "__Host-redrive-oidc"},
		"answer": {"/signin/oidc?code=<id>&state=<id>", "/signin/oidc?state=<id>&nonce=<id>&id_token=<id>", "/signin/oidc?code=a&code=b&state=<id>&iss=https://127.0.0.1:1",
			"/signin/oidc?error=access_denied&state=<id>", "/signin/oidc/start?next=//evil.example", "/signin?next=https://evil.example&error=<id>"},
		"header": {"Authorization: Bearer <token>", "Authorization: Bearer <token>", "Authorization: Basic <id>", "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=", "Authorization: bearer  <token>",
			"Authorization: <long>", "Authorization: Bearer <long>", "authorization: Token <token>", "Authorization: Negotiate <id>",
			"Cookie: <cookie>=<token>", "Cookie: <cookie>=<id>; <cookie>=<token>", "Cookie: <cookie>=\"<id>",
			"X-Forwarded-User: <name>\nX-Forwarded-Groups: <role>", "X-Forwarded-User: ann\nX-Forwarded-Groups: on-call\nX-Forwarded-For: <address>", "X-Forwarded-For: <address>", "X-Real-IP: <address>", "Forwarded: for=<address>;proto=https", "X_Forwarded_User: <name>",
			"X-Forwarded-Email: <name>", "X-Forwarded-Host: 127.0.0.1", "X-Forwarded-Prefix: <host>", "Via: 1.1 <address>",
			"X-HTTP-Method-Override: <method>", "X-Method-Override: <method>", "X-Original-URL: <public>", "X-Rewrite-URL: <public>", "X-Redrive-Path: <public>", "X-Redrive-Face: page",
			"Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none", "Sec-Fetch-Dest: document", "Sec-Fetch-Mode: navigate", "Origin: null", "Accept: text/html", "Accept: text/event-stream",
			"Content-Type: application/x-www-form-urlencoded", "Content-Type: application/jsonl", "Upgrade: websocket", "Connection: Authorization, close"},
		"body": {"", "{}", `{"reason":"why"}`, "reason=why", "token=<id>", "user=<name>&password=<id>", `{"token":"redrive_<id>"}`, `{"user":"root","password":{"$ne":1}}`, "_method=DELETE&confirmed=1", "[", "\x00"},
		"peer": {"192.0.2.1:5", "198.51.100.9:443", "10.0.0.8:5", "127.0.0.1:4242", "[::1]:9", "[2001:db8::7]:5", "@"},
	}}
	g.words["target"] = []string{"<before><route><after>", "<before><route><after>", "<before><route><after>", "<before><answer>"}
	fill := strings.NewReplacer("{id}", r.ID.String(), "{queue}", "orders", "{order}", "cancel", "{version}", "0", "{name}", "page.js", "{$}", "")
	routes := slices.Sorted(slices.Values(s.vhosts[0].api.Routes())) // so that the seed makes the same requests
	statuses := map[int]int{}
	for i := 0; i < 2000; {
		method, route, _ := strings.Cut(routes[g.IntN(len(routes))], " ")
		if route = fill.Replace(route); g.IntN(10) == 0 {
			route = strings.ToUpper(route)
		}
		g.words["route"] = []string{route}
		target := g.say("<target>")
		u, err := url.ParseRequestURI(target)
		if err != nil {
			continue // net/http refuses it
		}
		if g.IntN(4) == 0 {
			method = g.say("<method>")
		}
		r := httptest.NewRequest("GET", "/", strings.NewReader(g.say("<body>")))
		r.Method, r.URL, r.RequestURI, r.RemoteAddr = method, u, target, g.say("<peer>")
		r.Host = []string{"redrive.example.com", "127.0.0.1:8250", "evil.example"}[g.IntN(3)]
		for range g.IntN(6) {
			for line := range strings.SplitSeq(g.say("<header>"), "\n") {
				name, value, _ := strings.Cut(line, ": ")
				r.Header.Add(name, value)
			}
		}
		inner := r.URL.Path
		for _, v := range s.vhosts {
			httpapi.Under(httpapi.Base(v.config.VHost()), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { inner = r.URL.Path })).
				ServeHTTP(httptest.NewRecorder(), r.Clone(t.Context()))
		}
		asked := &http.Request{URL: &url.URL{Path: inner}}
		public := inner == path.Clean(inner) && httpapi.Public(asked) || inner == auth.SignInPath || strings.HasPrefix(inner, "/assets/")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if all := fmt.Sprint(w.Header()) + w.Body.String(); w.Code < 300 && !public || w.Code >= 500 && !strings.HasSuffix(inner, "/readyz") || strings.Contains(all, marked) {
			t.Errorf("%d: %s %s from %s with %.500v is answered %d %.500s", i, r.Method, target, r.RemoteAddr, r.Header, w.Code, all)
		}
		for _, cookie := range w.Result().Cookies() {
			if slices.Contains(g.words["cookie"][:4], cookie.Name) && cookie.MaxAge >= 0 {
				t.Errorf("%d: %s %s with %.500v begins a session: %v", i, r.Method, target, r.Header, cookie)
			}
		}
		statuses[w.Code]++
		i++
	}
	if statuses[401] < 1000 || statuses[200] == 0 {
		t.Errorf("it is answered %v", statuses)
	}
	for _, v := range s.vhosts {
		expect.Equal(t, inspecttest.Kept(t, v.store, r.ID.String()).State, store.Parked, "the message is then")
	}
}
