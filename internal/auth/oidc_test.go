package auth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

const (
	issuer = "https://login.example.com"
	client = "redrive"
)

// fakeProvider is an OpenID Connect provider of one person, without a network.
type fakeProvider struct {
	t        *testing.T
	key      *ecdsa.PrivateKey // signs
	known    *ecdsa.PrivateKey // is published
	claims   map[string]any    // in place of those of a right ID token; nil leaves one out
	userinfo map[string]any
	down     bool
	refuses  bool                  // refresh tokens
	codes    map[string]url.Values // what was asked for, by the code that it gave
	refresh  string                // the one that is good now
	during   func()                // while it renews
	lasts    int                   // access tokens, in seconds
	devices  map[string]string     // what it says of a device code: an error, or "" when the person has confirmed it
	device   map[string]any        // in place of its answer when a device begins; nil: it has no device flow
	form     bool                  // it takes the client's secret in the form
	insecure bool                  // its endpoint is not https
	ends     string                // its end_session_endpoint
	moved    bool                  // its endpoint leads to another site
	calls    atomic.Int32
	renewals atomic.Int32
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

func newProvider(t *testing.T) *fakeProvider {
	key := newKey(t)
	return &fakeProvider{t: t, key: key, known: key, codes: map[string]url.Values{}, claims: map[string]any{}, during: func() {},
		lasts: 3600, devices: map[string]string{}}
}

func (p *fakeProvider) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.calls.Add(1); r.URL.Host != "login.example.com" {
		p.t.Errorf("the service calls %s", r.URL)
	}
	if p.down {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	say := func(v any) { must(p.t, json.NewEncoder(w).Encode(v)) }
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		found := map[string]any{"issuer": issuer, "authorization_endpoint": issuer + "/authorize", "token_endpoint": issuer + "/token",
			"jwks_uri": issuer + "/keys", "id_token_signing_alg_values_supported": []string{"ES256", "none", "HS256"}}
		if p.form {
			found["token_endpoint_auth_methods_supported"] = []string{"client_secret_basic", "client_secret_post"}
		}
		if p.insecure {
			found["token_endpoint"] = "http://login.example.com/token"
		}
		if p.device != nil {
			found["device_authorization_endpoint"] = issuer + "/device"
		}
		if p.ends != "" {
			found["end_session_endpoint"] = p.ends
		}
		if p.userinfo != nil {
			found["userinfo_endpoint"] = issuer + "/userinfo"
		}
		say(found)
	case "/keys":
		say(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &p.known.PublicKey, KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	case "/userinfo":
		say(p.userinfo)
	case "/device":
		must(p.t, r.ParseForm())
		if id, secret := p.secretOf(r); id != client || secret != "s3cret" || r.PostForm.Get("scope") != "openid profile email" {
			w.WriteHeader(401)
			say(map[string]any{"error": "invalid_client", "error_description": "no <b>" + secret})
			break
		}
		code := rand.Text()
		p.devices[code] = "authorization_pending"
		answer := map[string]any{"device_code": code, "user_code": "WDJB-MJHT", "verification_uri": issuer + "/activate",
			"expires_in": 300, "interval": 7}
		maps.Copy(answer, p.device)
		say(answer)
	case "/token":
		if p.moved {
			http.Redirect(w, r, "https://evil.example/token", http.StatusTemporaryRedirect)
			break
		}
		must(p.t, r.ParseForm())
		id, secret := p.secretOf(r)
		problem := "invalid_grant"
		device := r.PostForm.Get("device_code")
		asked, ok := p.codes[r.PostForm.Get("code")]
		delete(p.codes, r.PostForm.Get("code"))
		sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		switch {
		case id != client || secret != "s3cret":
			ok = false
		case r.PostForm.Get("grant_type") == "refresh_token":
			p.renewals.Add(1)
			p.during()
			ok = !p.refuses && r.PostForm.Get("refresh_token") == p.refresh
		case r.PostForm.Get("grant_type") == "urn:ietf:params:oauth:grant-type:device_code":
			var known bool
			if problem, known = p.devices[device]; !known {
				problem = "invalid_grant"
			}
			if ok = problem == "" && r.PostForm.Get("code") == "" && r.PostForm["redirect_uri"] == nil; ok {
				delete(p.devices, device)
			}
		case asked.Get("redirect_uri") != r.PostForm.Get("redirect_uri") || asked.Get("code_challenge_method") != "S256" ||
			asked.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(sum[:]):
			ok = false
		}
		if !ok {
			w.WriteHeader(400)
			say(map[string]any{"error": problem, "error_description": "no <b>" + secret})
			break
		}
		p.refresh = rand.Text()
		if err := r.Context().Err(); err != nil { // the answer is lost
			return nil, err
		}
		say(map[string]any{"access_token": "a", "token_type": "Bearer", "refresh_token": p.refresh,
			"expires_in": p.lasts, "id_token": p.token(asked.Get("nonce"))})
	default:
		w.WriteHeader(404)
	}
	answer := w.Result()
	answer.Request = r
	return answer, nil
}

// secretOf returns how a client proves itself, in the way that the provider takes.
func (p *fakeProvider) secretOf(r *http.Request) (id, secret string) {
	if p.form {
		return r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	id, secret, _ = r.BasicAuth()
	return id, secret
}

// ServeHTTP is the provider on a network, where a browser too can reach it.
func (p *fakeProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := "http://" + r.Host
	if q := r.URL.Query(); r.URL.Path == "/authorize" {
		http.Redirect(w, r, q.Get("redirect_uri")+strings.TrimPrefix(p.answer(r.URL.String()), OIDCPath), http.StatusSeeOther)
		return
	}
	r.URL.Host = "login.example.com"
	answer, err := p.RoundTrip(r)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	said, err := io.ReadAll(answer.Body)
	must(p.t, err)
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(bytes.ReplaceAll(said, []byte(issuer), []byte(at)))
}

func (p *fakeProvider) token(nonce string) string {
	claims := map[string]any{"iss": issuer, "aud": client, "sub": "42",
		"exp": time.Now().Add(5 * time.Minute).Unix(), "iat": time.Now().Unix(),
		"nonce": nonce, "email": "ann@example.com", "email_verified": true, "groups": []string{"staff", "on-call"}}
	maps.Copy(claims, p.claims)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}, nil)
	must(p.t, err)
	text, err := json.Marshal(claims)
	must(p.t, err)
	signed, err := signer.Sign(text)
	must(p.t, err)
	compact, err := signed.CompactSerialize()
	must(p.t, err)
	return compact
}

// answer is what the provider sends a browser back with that StartOIDC has sent there.
func (p *fakeProvider) answer(to string) string {
	u, err := url.Parse(to)
	must(p.t, err)
	code := rand.Text()
	p.codes[code] = u.Query()
	return OIDCPath + "?" + url.Values{"code": {code}, "state": {u.Query().Get("state")}}.Encode()
}

// browser keeps cookies.
type browser struct {
	h    http.Handler
	kept map[string]*http.Cookie
}

func newBrowser(h http.Handler) *browser { return &browser{h, map[string]*http.Cookie{}} }

func (b *browser) get(path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	w := request(b.h, "GET", path, append(change, func(r *http.Request) {
		for _, c := range b.kept {
			r.AddCookie(c)
		}
	})...)
	for _, c := range w.Result().Cookies() {
		if b.kept[c.Name] = c; c.MaxAge < 0 {
			delete(b.kept, c.Name)
		}
	}
	return w
}

func (b *browser) start(p *fakeProvider) (answer string) {
	return p.answer(b.get(OIDCStartPath + "?next=/messages%3Fq%3Dx").Header().Get("Location"))
}

// provided is a service where people sign in at the provider.
func provided(t *testing.T, p *fakeProvider, c Config) (*Guard, http.Handler) {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("s3cret\n"), 0o600))
	o := DefaultOIDC()
	o.Issuer, o.ClientID, o.SecretFile, o.Name, o.Contact = issuer, client, secret, "Example", "ops@example.com"
	o.Groups = map[string]Grant{"on-call": {Operator, []string{"orders.*"}}, "readers": {Role: Viewer}}
	c.OIDC = newOIDC(o, "https://redrive.example.com/", p)
	g, _, _ := guarded(t, c)
	mux := http.NewServeMux()
	mux.Handle("/", says)
	mux.HandleFunc("POST "+SignInPath, g.SignIn)
	mux.HandleFunc("POST "+SignOutPath, g.SignOut)
	mux.HandleFunc("GET "+OIDCStartPath, g.StartOIDC)
	mux.HandleFunc("POST "+OIDCDevicePath, g.SignInDevice)
	mux.HandleFunc("GET "+OIDCPath, func(w http.ResponseWriter, r *http.Request) {
		if none := g.FinishOIDC(w, r); none != nil {
			w.WriteHeader(403)
			fmt.Fprint(w, none.Name, none.Groups, none.Contact, none.SignOut)
		}
	})
	return g, g.Handler(mux)
}

func TestPeopleSignInWithOpenIDConnect(t *testing.T) {
	for _, secure := range []bool{false, true} {
		p := newProvider(t)
		p.form = secure
		g, h := provided(t, p, Config{Secure: secure})
		b := newBrowser(h)
		w := b.get(OIDCStartPath + "?next=/messages%3Fq%3Dx")
		to, err := url.Parse(w.Header().Get("Location"))
		must(t, err)
		q := to.Query()
		if w.Code != 303 || !strings.HasPrefix(to.String(), issuer+"/authorize?") || q.Get("scope") != "openid profile email" ||
			q.Get("redirect_uri") != "https://redrive.example.com/signin/oidc" || len(q.Get("state")) < 20 || len(q.Get("nonce")) < 20 {
			t.Errorf("%d %s", w.Code, to)
		}
		if c := w.Result().Cookies()[0]; !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Secure != secure || c.Path != "/" ||
			c.MaxAge != 600 || strings.HasPrefix(c.Name, "__Host-") != secure || strings.Contains(to.String(), c.Value) {
			t.Errorf("the cookie is %+v", c)
		}
		expect.Equal(t, b.get("/").Code, 401, "before the provider's answer")
		w = b.get(p.answer(to.String()), header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Dest", "document"))
		if w.Code != 303 || w.Header().Get("Location") != "/messages?q=x" {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
		if w := b.get("/"); w.Code != 200 || w.Body.String() != "oidc:ann@example.com oidc operator page 127.0.0.1 false" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		s := session{}
		for _, v := range g.Config.Sessions.(shelf) {
			_ = json.Unmarshal(v, &s)
			if strings.Contains(string(v), p.refresh) {
				t.Error("the store has the refresh token")
			}
		}
		if !slices.Equal(s.Caller.Queues, []string{"orders.*"}) || len(b.kept) != 1 {
			t.Errorf("%+v, with the cookies %v", s, b.kept)
		}
		log := &logbook{}
		s.Caller.Role, s.Caller.Queues = Admin, nil
		_, _, err = NewTokens(shelf{}, log).Create(t.Context(), s.Caller, NewToken{Name: "ci", Role: "viewer"})
		must(t, err)
		if len(log.lines) == 0 || !strings.HasPrefix(log.lines[0], "oidc:ann@example.com token.create ") {
			t.Errorf("the audit log has %q", log.lines)
		}
	}
}

// nobody fails the test if the provider's answer signs a person in, or if the page does not say why it did not.
func nobody(t *testing.T, what string, b *browser, answer, why string) {
	t.Helper()
	w := b.get(answer)
	to, err := url.Parse(w.Header().Get("Location"))
	if err != nil || w.Code != 303 || to.Path != SignInPath || to.Query().Get("error") != why {
		t.Errorf("%s: %d %s", what, w.Code, to)
	}
	expect.Equal(t, b.get("/").Code, 401, "%s lets somebody in", what)
}

func TestAWrongAnswerLetsNobodyIn(t *testing.T) {
	for what, change := range map[string]func(p *fakeProvider){
		"another audience":     func(p *fakeProvider) { p.claims["aud"] = "shop" },
		"another party":        func(p *fakeProvider) { p.claims["azp"] = "shop" },
		"audiences, no party":  func(p *fakeProvider) { p.claims["aud"] = []string{"shop", client} },
		"another issuer":       func(p *fakeProvider) { p.claims["iss"] = "https://evil.example" },
		"another nonce":        func(p *fakeProvider) { p.claims["nonce"] = rand.Text() },
		"no nonce":             func(p *fakeProvider) { p.claims["nonce"] = nil },
		"another key":          func(p *fakeProvider) { p.key = newKey(p.t) },
		"expired":              func(p *fakeProvider) { p.claims["exp"] = time.Now().Add(-time.Minute - time.Second).Unix() },
		"no end":               func(p *fakeProvider) { p.claims["exp"] = nil },
		"no subject":           func(p *fakeProvider) { p.claims["sub"] = nil },
		"a subject with lines": func(p *fakeProvider) { p.claims["sub"] = "4\n2" },
		"another's userinfo": func(p *fakeProvider) {
			p.claims["groups"] = nil
			p.userinfo = map[string]any{"sub": "43", "groups": []string{"on-call"}}
		},
	} {
		p := newProvider(t)
		change(p)
		_, h := provided(t, p, Config{})
		b := newBrowser(h)
		nobody(t, what, b, b.start(p), "denied")
	}
	p := newProvider(t)
	p.claims["exp"] = time.Now().Add(-50 * time.Second).Unix()
	_, h := provided(t, p, Config{})
	b := newBrowser(h)
	expect.Equal(t, b.get(b.start(p)).Header().Get("Location"), "/messages?q=x", "a clock that is 50 s late")
	newer := newKey(t)
	p.key, p.known = newer, newer
	b = newBrowser(h)
	expect.Equal(t, b.get(b.start(p)).Header().Get("Location"), "/messages?q=x", "the provider has a new key")
}

func TestAnAnswerIsGoodOnceAndForItsBrowser(t *testing.T) {
	p := newProvider(t)
	_, h := provided(t, p, Config{})
	b, other := newBrowser(h), newBrowser(h)
	answer := b.start(p)
	nobody(t, "a browser that began nothing", newBrowser(h), answer, "elsewhere")
	other.start(p)
	nobody(t, "a browser that began another", other, answer, "elsewhere")
	began := maps.Clone(b.kept)
	expect.Equal(t, b.get(answer).Header().Get("Location"), "/messages?q=x", "the browser that began it")
	b.get("/", func(r *http.Request) { r.Method, r.URL.Path = "POST", SignOutPath })
	nobody(t, "the same answer again", b, answer, "elsewhere")
	b.kept = began
	nobody(t, "the same answer and cookie again", b, answer, "denied")
	begin := func(change func(f *flow)) string {
		b = newBrowser(h)
		answer := b.start(p)
		var f flow
		c := b.kept["redrive-oidc"]
		must(t, json.Unmarshal([]byte(decoded(t, c.Value)), &f))
		change(&f)
		value, err := json.Marshal(f)
		must(t, err)
		c.Value = base64.RawURLEncoding.EncodeToString(value)
		return answer
	}
	answer = begin(func(f *flow) { f.Base = "/v/shop" })
	nobody(t, "the cookie of another virtual host's page", b, answer, "elsewhere")
	answer = begin(func(f *flow) { f.Verifier = rand.Text() })
	nobody(t, "another verifier", b, answer, "denied")
	answer = begin(func(*flow) {})
	nobody(t, "another issuer's answer", b, answer+"&iss=https%3A%2F%2Fevil.example", "denied")
	answer = begin(func(f *flow) { f.Next = "//evil.example" })
	expect.Equal(t, b.get(answer).Header().Get("Location"), "/", "a cookie that leads elsewhere")
	b.get(OIDCStartPath + "?next=/" + strings.Repeat("x", maxFlowNext))
	expect.Equal(t, len(b.kept["redrive-oidc"].Value) < 1000, true, "the cookie is short enough for browsers")
}

// The client's secret goes to the provider's endpoints alone.
func TestTheSecretGoesToTheProviderAlone(t *testing.T) {
	p := newProvider(t)
	g, h := provided(t, p, Config{})
	b := newBrowser(h)
	p.moved = true
	nobody(t, "an endpoint that has moved", b, b.start(p), "denied")
	p.moved, p.insecure, g.OIDC.found = false, true, nil
	expect.Equal(t, b.get(OIDCStartPath).Header().Get("Location"), "/signin?error=silent&next=%2F", "an endpoint without TLS")
}

func decoded(t *testing.T, s string) string {
	t.Helper()
	value, err := base64.RawURLEncoding.DecodeString(s)
	must(t, err)
	return string(value)
}

func TestHostileAnswersLetNobodyIn(t *testing.T) {
	p := newProvider(t)
	_, h := provided(t, p, Config{})
	b := newBrowser(h)
	state := func() string {
		u, err := url.Parse(b.start(p))
		must(t, err)
		return u.Query().Get("state")
	}
	for _, q := range []string{"", "code=x", "state=", "code=&state=", "state=x&code=x", "error=x", "error=%3Cb%3E&state=", "code=x&state=%00", "%zz", "state=x&state=" + rand.Text()} {
		state()
		nobody(t, q, b, OIDCPath+"?"+q, "elsewhere")
	}
	for _, q := range []string{"&error=access_denied&error_description=%3Cb%3E", "&code=", "&code=x", "&code=" + strings.Repeat("x", 9000), "&iss=https%3A%2F%2Fevil.example&code=x", ""} {
		nobody(t, q, b, OIDCPath+"?state="+state()+q, "denied")
	}
	for _, cookie := range []string{"x", "e30", base64.RawURLEncoding.EncodeToString([]byte(`{"State":"","Nonce":"x","Verifier":"x"}`))} {
		b.kept = map[string]*http.Cookie{"redrive-oidc": {Name: "redrive-oidc", Value: cookie}}
		nobody(t, cookie, b, OIDCPath+"?code=x", "elsewhere")
	}
	for i := 0; ; i++ { // the log is not filled
		w := b.get(OIDCPath + "?code=x")
		if strings.HasSuffix(w.Header().Get("Location"), "error=slow&next=%2F") {
			break
		}
		if i > 40 {
			t.Fatal("any number of failures is checked")
		}
	}
	if w := request(h, "GET", OIDCStartPath+"?next=//evil.example", peerAt("192.0.2.1:1")); strings.Contains(decoded(t, w.Result().Cookies()[0].Value), "evil") {
		t.Error("a link chooses where people land")
	}
	expect.Equal(t, request(h, "GET", OIDCStartPath, header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Dest", "image")).Code, 403, "an image of another site begins one")
}

func TestRolesOfGroups(t *testing.T) {
	for what, c := range map[string]struct {
		claims, userinfo map[string]any
		want             string
	}{
		"the highest":     {map[string]any{"groups": []string{"readers", "on-call"}}, nil, "oidc:ann@example.com oidc operator"},
		"one, as a text":  {map[string]any{"groups": "readers"}, nil, "oidc:ann@example.com oidc viewer"},
		"of userinfo":     {map[string]any{"groups": nil}, map[string]any{"sub": "42", "email": "eve@example.com", "groups": []string{"readers"}}, "oidc:ann@example.com oidc viewer"},
		"an email of any": {map[string]any{"email_verified": nil}, nil, "oidc:ann@example.com (42) oidc operator"},
		"a chosen name":   {map[string]any{"email": nil, "preferred_username": "bob"}, nil, "oidc:bob (42) oidc operator"},
		"no name":         {map[string]any{"email": nil}, nil, "oidc:42 oidc operator"},
		"a hostile name":  {map[string]any{"email": "a\u202eb@example.com"}, nil, "oidc:42 oidc operator"},
	} {
		p := newProvider(t)
		p.userinfo = c.userinfo
		maps.Copy(p.claims, c.claims)
		_, h := provided(t, p, Config{})
		b := newBrowser(h)
		b.get(b.start(p))
		if w := b.get("/"); !strings.HasPrefix(w.Body.String(), c.want+" ") {
			t.Errorf("%s: %s, want %s", what, w.Body, c.want)
		}
	}
	for _, groups := range []any{nil, []string{}, []string{"staff", "On-call", "on-call*"}, 7, map[string]any{"on-call": true}} {
		p := newProvider(t)
		p.claims["groups"] = groups
		_, h := provided(t, p, Config{})
		b := newBrowser(h)
		if w := b.get(b.start(p)); w.Code != 403 || w.Body.String() != "oidc:ann@example.com[on-call readers]ops@example.com" || len(b.kept) != 0 {
			t.Errorf("in the groups %v: %d %s %v", groups, w.Code, w.Body, b.kept)
		}
		expect.Equal(t, b.get("/").Code, 401, "in the groups %v", groups)
	}
}

func TestGroupsInNestedClaims(t *testing.T) {
	type claims = map[string]any
	readers, onCall := claims{"roles": []string{"readers"}}, claims{"roles": "on-call"}
	for what, c := range map[string]struct {
		path             string
		claims, userinfo claims
		want             string // the role; "": none
	}{
		"Keycloak's realm": {"realm_access.roles", claims{"realm_access": readers}, nil, "viewer"},
		"a text":           {"realm_access.roles", claims{"realm_access": onCall}, nil, "operator"},
		"a client with dots": {"resource_access.my.client.roles",
			claims{"resource_access": claims{"my": readers, "my.client": onCall}}, nil, "operator"},
		"the whole name": {"realm_access.roles", claims{"realm_access.roles": "on-call", "realm_access": readers}, nil, "operator"},
		"a URL":          {"https://example.com/groups", claims{"https://example.com/groups": "readers"}, nil, "viewer"},
		"of userinfo": {"realm_access.roles",
			claims{"realm_access": claims{"x": 1}}, claims{"sub": "42", "realm_access": readers}, "viewer"},
		"no such path":           {"realm_access.roles", claims{"realm_access": claims{"x": readers}}, nil, ""},
		"a text on the way":      {"realm_access.roles", claims{"realm_access": "roles"}, nil, ""},
		"a list on the way":      {"realm_access.roles", claims{"realm_access": []any{readers}}, nil, ""},
		"an object at its end":   {"realm_access", claims{"realm_access": readers}, nil, ""},
		"nothing but the groups": {"realm_access.roles", claims{}, nil, ""},
	} {
		p := newProvider(t)
		p.userinfo = c.userinfo
		maps.Copy(p.claims, c.claims)
		g, h := provided(t, p, Config{})
		g.OIDC.Claim = c.path
		b := newBrowser(h)
		b.get(b.start(p))
		who := strings.Fields(b.get("/").Body.String())
		if c.want != "" && (len(who) < 3 || who[2] != c.want) || c.want == "" && len(b.kept) > 0 {
			t.Errorf("%s: %q, want %q", what, who, c.want)
		}
	}
}

// A session goes on as long as the provider says so, with the role of now.
func TestSessionsAreRenewed(t *testing.T) {
	for what, c := range map[string]struct {
		change func(p *fakeProvider)
		after  time.Duration
		want   string // who calls then; "": no one
	}{
		"nothing changed":        {func(*fakeProvider) {}, renewEvery, "operator"},
		"another role":           {func(p *fakeProvider) { p.claims["groups"] = "readers" }, renewEvery, "viewer"},
		"another role, too soon": {func(p *fakeProvider) { p.claims["groups"] = "readers" }, renewEvery - time.Second, "operator"},
		"no role":                {func(p *fakeProvider) { p.claims["groups"] = "staff" }, renewEvery, ""},
		"the provider says no":   {func(p *fakeProvider) { p.refuses = true }, renewEvery, ""},
		"another person":         {func(p *fakeProvider) { p.claims["sub"] = "43" }, renewEvery, ""},
		"another audience":       {func(p *fakeProvider) { p.claims["aud"] = "shop" }, renewEvery, ""},
		"the provider is down":   {func(p *fakeProvider) { p.down = true }, renewEvery, "operator"},
		"down for an hour":       {func(p *fakeProvider) { p.down = true }, renewGrace, ""},
		"after a day":            {func(*fakeProvider) {}, sessionLasts, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newProvider(t)
			_, h := provided(t, p, Config{})
			b := newBrowser(h)
			b.get(b.start(p))
			expect.Equal(t, b.get("/").Code, 200, "%s: before", what)
			c.change(p)
			time.Sleep(c.after)
			w := b.get("/")
			if who := strings.Fields(w.Body.String()); c.want == "" && w.Code != 401 || c.want != "" && (w.Code != 200 || who[2] != c.want) {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
			n := p.calls.Load()
			b.get("/")
			expect.Equal(t, p.calls.Load(), n, "%s: the provider is asked again at once", what)
			if p.down, p.refuses = false, false; c.want == "" {
				expect.Equal(t, b.get("/").Code, 401, "%s: the session is there again", what)
			}
		})
	}
}

// The provider is asked when its access token ends: every ten seconds at most, every ten minutes at least.
func TestSessionsAreRenewedWithTheirAccessTokens(t *testing.T) {
	for lasts, after := range map[int]time.Duration{0: renewEvery, 1: renewSoonest, 300: 5 * time.Minute, 3600: renewEvery} {
		synctest.Test(t, func(t *testing.T) {
			p := newProvider(t)
			p.lasts = lasts
			_, h := provided(t, p, Config{})
			b := newBrowser(h)
			b.get(b.start(p))
			for i := range 2 {
				time.Sleep(after - time.Second)
				b.get("/")
				expect.Equal(t, p.renewals.Load(), int32(i), "%d s: renewals before %s", lasts, after)
				time.Sleep(time.Second)
				b.get("/")
				expect.Equal(t, p.renewals.Load(), int32(i+1), "%d s: renewals after %s", lasts, after)
			}
		})
	}
}

// Signing out leads to the provider's sign-out.
func TestSigningOutAtTheProvider(t *testing.T) {
	for ends, want := range map[string]string{"": "", issuer + "/end": issuer + "/end?client_id=" + client,
		issuer + "/end?x=1": issuer + "/end?client_id=" + client + "&x=1"} {
		p := newProvider(t)
		p.ends = ends
		g, h := provided(t, p, Config{})
		b := newBrowser(h)
		expect.Equal(t, g.ProviderSignOut(), "", "before anybody has signed in")
		b.get(b.start(p))
		w := b.get(SignOutPath, func(r *http.Request) { r.Method = "POST" })
		expect.Equal(t, w.Header().Get("Location"), "/signin?left", "signed out")
		expect.Equal(t, g.ProviderSignOut(), want, "where one signs out then")
		p.claims["groups"] = "staff"
		if is := b.get(b.start(p)).Body.String(); !strings.HasSuffix(is, "ops@example.com"+want) {
			t.Errorf("who has no role: %s", is)
		}
	}
}

func TestSigningOutEverywhereEndsAllSessionsOfOne(t *testing.T) {
	p := newProvider(t)
	_, h := provided(t, p, Config{})
	b, second, bob := newBrowser(h), newBrowser(h), newBrowser(h)
	b.get(b.start(p))
	second.get(second.start(p))
	p.claims["email"] = "bob@example.com"
	bob.get(bob.start(p))
	everywhere := func(r *http.Request) { r.Method = "POST" }
	newBrowser(h).get(SignOutPath+"?everywhere=1", everywhere)
	expect.Equal(t, second.get("/").Code, 200, "after one who is not signed in signs out")
	expect.Equal(t, b.get(SignOutPath+"?everywhere=1", everywhere).Code, 303, "signing out")
	expect.Equal(t, [3]int{b.get("/").Code, second.get("/").Code, bob.get("/").Code}, [3]int{401, 401, 200}, "afterwards")
}

// Of several requests at once, one uses the refresh token, also if its client has gone.
func TestRequestsAtOnceRenewOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider(t)
		p.during = func() { time.Sleep(time.Second) }
		g, h := provided(t, p, Config{})
		b := newBrowser(h)
		b.get(b.start(p))
		id := b.kept["redrive"].Value
		for range 3 {
			time.Sleep(renewEvery)
			old, _, err := g.sessions.get(t.Context(), id)
			must(t, err)
			n := p.renewals.Load()
			ctx, leave := context.WithCancel(t.Context())
			for range 4 {
				go func() {
					if c, err := g.renewed(ctx, id, old); err != nil || c.Role != Operator {
						t.Errorf("%+v, %v", c, err)
					}
				}()
				synctest.Wait()
			}
			leave()
			time.Sleep(2 * time.Second)
			_, err = g.renewed(t.Context(), id, old) // which has read it before that
			must(t, err)
			expect.Equal(t, p.renewals.Load(), n+1, "renewals")
		}
		time.Sleep(renewEvery)
		p.refuses, p.during = true, func() { // another replica is first
			e, err := renewal{Role: Viewer, Next: time.Now().Add(time.Minute)}.entry(id)
			must(t, err)
			must(t, g.sessions.kept.PutEntries(t.Context(), []store.Entry{e}))
		}
		if w := b.get("/"); w.Code != 200 || !strings.Contains(w.Body.String(), " viewer ") {
			t.Errorf("after a renewal at another replica: %d %s", w.Code, w.Body)
		}
	})
}

// Without the provider others sign in.
func TestAProviderThatIsDownStopsOnlyItsOwn(t *testing.T) {
	p := newProvider(t)
	g, h := provided(t, p, Config{})
	b := newBrowser(h)
	answer := b.start(p)
	p.down = true
	nobody(t, "while it is down", b, answer, "silent")
	g.OIDC.found = nil
	if w := b.get(OIDCStartPath + "?next=/x"); w.Header().Get("Location") != "/signin?error=silent&next=%2Fx" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	secret, _, err := g.Tokens.Create(t.Context(), root, NewToken{Name: "cd", Role: "viewer"})
	must(t, err)
	expect.Equal(t, b.get("/", header("Authorization", "Bearer "+secret)).Code, 200, "a token while it is down")
	p.down = false
	expect.Equal(t, b.get(b.start(p)).Header().Get("Location"), "/messages?q=x", "when it is back")
	g.OIDC = nil
	expect.Equal(t, b.get("/").Code, 401, "with a session of a provider that the config has no more")
}

// post is what the command line sends to sign in, and then signed in.
func (b *browser) post(path, body string) *httptest.ResponseRecorder {
	return b.get(path, header(InterfaceHeader, "cli"), func(r *http.Request) {
		r.Method, r.Body = "POST", io.NopCloser(strings.NewReader(body))
	})
}

// begin begins a sign-in of the command line, which is answered with device's result.
func (b *browser) begin(t *testing.T) (code string) {
	t.Helper()
	var d struct {
		Device  string `json:"device_code"`
		User    string `json:"user_code"`
		URI     string `json:"verification_uri"`
		Lasts   int    `json:"expires_in"`
		Seconds int    `json:"interval"`
	}
	w := b.post(OIDCDevicePath, "{}")
	must(t, json.Unmarshal(w.Body.Bytes(), &d))
	if w.Code != 200 || d.Device == "" || d.User != "WDJB-MJHT" || d.URI != issuer+"/activate" || d.Lasts < 290 || d.Seconds != 7 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return d.Device
}

func (b *browser) device(code string) *httptest.ResponseRecorder {
	return b.post(OIDCDevicePath, `{"device_code":"`+code+`"}`)
}

func TestTheCommandLineSignsInByABrowser(t *testing.T) {
	for _, form := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newProvider(t)
			p.form, p.device = form, map[string]any{}
			_, h := provided(t, p, Config{})
			b := newBrowser(h)
			code := b.begin(t)
			for range 200 { // as often as it likes, as long as it waits in between
				expect.Equal(t, b.device(code).Code, 202, "before anybody has confirmed it")
				time.Sleep(devicePoll)
			}
			p.devices[code] = "slow_down"
			if w := b.device(code); w.Code != 429 || w.Header().Get("Retry-After") != "4" || len(b.kept) != 0 {
				t.Errorf("too often: %d %v %v", w.Code, w.Header(), b.kept)
			}
			time.Sleep(10 * time.Second)
			p.devices[code] = ""
			w := b.device(code)
			if w.Code != 204 || strings.Contains(w.Body.String(), "eyJ") {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			expect.Equal(t, b.get("/", header(InterfaceHeader, "cli")).Body.String(),
				"oidc:ann@example.com oidc operator cli 127.0.0.1 false", "who it is")
			second := newBrowser(h)
			time.Sleep(10 * time.Second)
			expect.Equal(t, [2]int{second.device(code).Code, len(second.kept)}, [2]int{401, 0}, "the code again")
			p.claims["groups"] = "readers"
			time.Sleep(renewEvery)
			expect.Equal(t, strings.Fields(b.get("/").Body.String())[2], "viewer", "the role after a renewal")
			other := newBrowser(h)
			code = other.begin(t)
			p.devices[code] = ""
			expect.Equal(t, other.device(code).Code, 204, "a second command line")
			b.post(SignOutPath+"?everywhere=1", "")
			expect.Equal(t, [2]int{b.get("/").Code, other.get("/").Code}, [2]int{401, 401}, "after signing out everywhere")
		})
	}
}

func TestADeviceLetsNobodyElseIn(t *testing.T) {
	expired := func(p *fakeProvider) { p.claims["exp"] = time.Now().Add(-2 * time.Minute).Unix() }
	for what, c := range map[string]struct {
		change func(p *fakeProvider)
		says   string // of the device code
		code   int
		want   string
	}{
		"refused by the person": {func(*fakeProvider) {}, "access_denied", 401, "the service's log says why"},
		"too late":              {func(*fakeProvider) {}, "expired_token", 401, "not confirmed in time"},
		"another audience":      {func(p *fakeProvider) { p.claims["aud"] = "shop" }, "", 401, "the service's log says why"},
		"another party":         {func(p *fakeProvider) { p.claims["azp"] = "shop" }, "", 401, "the service's log says why"},
		"another issuer":        {func(p *fakeProvider) { p.claims["iss"] = "https://evil.example" }, "", 401, "the service's log says why"},
		"another key":           {func(p *fakeProvider) { p.key = newKey(p.t) }, "", 401, "the service's log says why"},
		"an old ID token":       {expired, "", 401, "the service's log says why"},
		"no role":               {func(p *fakeProvider) { p.claims["groups"] = "staff" }, "", 403, "oidc:ann@example.com is in no group that has a role (on-call, readers); ask ops@example.com"},
		"down":                  {func(p *fakeProvider) { p.down = true }, "", 503, "the OpenID Connect provider does not answer"},
		"moved":                 {func(p *fakeProvider) { p.moved = true }, "", 401, "the service's log says why"},
	} {
		p := newProvider(t)
		p.device = map[string]any{}
		_, h := provided(t, p, Config{})
		b := newBrowser(h)
		code := b.begin(t)
		p.devices[code] = c.says
		c.change(p)
		if w := b.device(code); w.Code != c.code || !strings.Contains(w.Body.String(), c.want) || len(b.kept) != 0 ||
			strings.Contains(w.Body.String(), "s3cret") {
			t.Errorf("%s: %d %s %v", what, w.Code, w.Body, b.kept)
		}
	}
	for what, c := range map[string]struct {
		device map[string]any
		body   string
		code   int
		want   string
	}{
		"a provider without":  {nil, "{}", 404, `"hint":"sign in with a token, or allow the device flow at the provider`},
		"without a code":      {map[string]any{"device_code": ""}, "{}", 401, "the service's log says why"},
		"with a long code":    {map[string]any{"device_code": strings.Repeat("x", maxDeviceCode+1)}, "{}", 401, "log says why"},
		"a long code":         {map[string]any{}, `{"device_code":"` + strings.Repeat("x", maxDeviceCode+1) + `"}`, 400, "malformed"},
		"no JSON":             {map[string]any{}, "device_code=x", 400, "malformed"},
		"one that nobody has": {map[string]any{}, `{"device_code":"x"}`, 401, "log says why"},
	} {
		p := newProvider(t)
		p.device = c.device
		_, h := provided(t, p, Config{})
		if w := newBrowser(h).post(OIDCDevicePath, c.body); w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	p := newProvider(t)
	p.device = map[string]any{}
	g, h := provided(t, p, Config{})
	expect.Equal(t, newBrowser(h).get(OIDCDevicePath, func(r *http.Request) { r.Method = "POST" },
		header("Sec-Fetch-Site", "cross-site")).Code, 403, "a page of another site begins one")
	b := newBrowser(h)
	code := b.begin(t)
	p.calls.Store(0)
	for range 10 {
		b.device(code)
	}
	expect.Equal(t, p.calls.Load(), 2, "how often the provider is asked about a code at once")
	for range 100 {
		b.post(OIDCDevicePath, "{}")
	}
	if n := len(p.devices); n > 31 {
		t.Errorf("one address has begun %d sign-ins", n)
	}
	if w := b.post(OIDCDevicePath, "{}"); w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("beyond that: %d %v", w.Code, w.Header())
	}
	g.OIDC = nil
	expect.Equal(t, b.post(OIDCDevicePath, "{}").Code, 404, "a service without a provider")
}
