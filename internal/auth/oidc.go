package auth

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// Paths of signing in with OpenID Connect. A browser GETs the first two, and the provider leads it back to OIDCPath;
// the command line POSTs to the third.
const (
	OIDCPath       = "/signin/oidc"
	OIDCStartPath  = "/signin/oidc/start"
	OIDCDevicePath = "/signin/oidc/device"
)

const (
	// flowLasts is how long a person has at the provider.
	flowLasts = 10 * time.Minute
	// maxFlowNext bounds the path in the cookie, which browsers drop beyond 4 KiB.
	maxFlowNext = 1 << 10
	// renewEvery is how often the provider is asked whether a session may go on, unless its access tokens end
	// before, but not within renewSoonest; renewAgain how soon after it did not answer, and renewGrace how long
	// it may stay silent.
	renewEvery, renewSoonest, renewAgain, renewGrace = 10 * time.Minute, 10 * time.Second, time.Minute, time.Hour
	// clockOffset is how late an ID token may come after its end, by this machine's clock.
	clockOffset = time.Minute
	// maxDeviceCode and maxAnswer are limits in bytes, of a device code and of the provider's answer with one. The
	// provider is asked about a code once in devicePoll.
	maxDeviceCode, devicePoll, maxAnswer = 4 << 10, 4 * time.Second, 64 << 10
)

// OIDCConfig configures the OpenID Connect provider, and the roles of its groups.
type OIDCConfig struct {
	Issuer     string
	ClientID   string
	SecretFile string // is read for each call, so that the secret can change
	CA         string // a file in PEM; "": the system's
	Name       string // the provider's, for people
	Contact    string // whom to ask for a role
	Scopes     []string
	Claim      string           // the claim with the groups, or a path to it
	Groups     map[string]Grant // by group
}

// DefaultOIDC has what most providers understand.
func DefaultOIDC() OIDCConfig {
	return OIDCConfig{Scopes: []string{"profile", "email"}, Claim: "groups"}
}

// Check returns why the files cannot be used.
func (c *OIDCConfig) Check() error {
	if c.Issuer == "" {
		return nil
	}
	_, noSecret := c.secret()
	_, noRoots := c.roots()
	return errors.Join(noSecret, noRoots)
}

func (c *OIDCConfig) secret() (string, error) {
	data, err := os.ReadFile(c.SecretFile)
	if err != nil {
		return "", fmt.Errorf("auth.oidc.client_secret_file: %w", err)
	}
	secret := strings.TrimSpace(string(data))
	if secret == "" {
		return "", fmt.Errorf("auth.oidc.client_secret_file: %s is empty", c.SecretFile)
	}
	return secret, nil
}

func (c *OIDCConfig) roots() (*x509.CertPool, error) {
	if c.CA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, fmt.Errorf("auth.oidc.ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("auth.oidc.ca: %s has no certificate in PEM", c.CA)
	}
	return pool, nil
}

// OIDC signs people in with an OpenID Connect provider.
type OIDC struct {
	OIDCConfig
	redirect  string
	client    *http.Client
	addresses limiter       // of failures, so that they do not fill the log
	polls     limiter       // of device codes
	calls     chan struct{} // bounds how many run at once
	renewing  singleflight.Group

	mu    sync.Mutex
	found *provider
}

// provider is what discovery has found.
type provider struct {
	*oidc.Provider
	verifier *oidc.IDTokenVerifier
	endpoint oauth2.Endpoint
	signOut  string // where a browser signs out at the provider; "": nowhere
}

// NewOIDC makes one for the page at a URL. The provider is not asked before somebody signs in.
func NewOIDC(c OIDCConfig, page string) (*OIDC, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	return newOIDC(c, page, transport), nil
}

func newOIDC(c OIDCConfig, page string, transport http.RoundTripper) *OIDC {
	return &OIDC{OIDCConfig: c, redirect: strings.TrimSuffix(page, "/") + OIDCPath,
		addresses: limiter{most: 30, every: 5 * time.Second}, polls: limiter{most: 2, every: devicePoll},
		calls: make(chan struct{}, checksAtOnce),
		client: &http.Client{Transport: transport, Timeout: checkWithin,
			// The secret goes nowhere but to the endpoints that the provider names.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// errSilent: the provider does not answer.
var errSilent = hint.New("unchecked", "the OpenID Connect provider does not answer")

// errElsewhere: a sign-in that this browser has not begun, or too long ago.
var errElsewhere = errors.New("the sign-in was not begun in this browser, or too long ago")

// NoRoleError: the person is known to the provider or a proxy, and none of their groups has a role.
type NoRoleError struct {
	Name    string
	Groups  []string // those that have a role
	Contact string   // whom to ask
	Proxied bool
	SignOut string // where they sign out at the provider or proxy; "": nowhere
}

func (e *NoRoleError) Error() string {
	return fmt.Sprintf("%s is in no group that has a role (%s); ask %s", e.Name, strings.Join(e.Groups, ", "),
		cmp.Or(e.Contact, "whoever runs this service"))
}

func (e *NoRoleError) Unwrap() error { return ErrForbidden }

// member returns the caller with the highest role of their groups, or a NoRoleError.
func member(how, name string, groups []string, roles map[string]Grant, contact string) (Caller, error) {
	// A user of RabbitMQ's whose name has a colon cannot sign in.
	c, best := Caller{Name: how + ":" + name, How: how}, highest(roles, groups)
	if c.Role, c.Queues = best.Role, best.Queues; c.Role == NoRole {
		return Caller{}, &NoRoleError{Name: c.Name, Groups: slices.Sorted(maps.Keys(roles)), Contact: contact}
	}
	return c, nil
}

// enter waits for a place to call the provider, and limits how long the calls take.
func (o *OIDC) enter(ctx context.Context) (called context.Context, leave func(), err error) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, o.client), checkWithin)
	select {
	case o.calls <- struct{}{}:
		return ctx, func() { <-o.calls; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, fmt.Errorf("%w: %w", errSilent, ctx.Err())
	}
}

func (o *OIDC) provider(ctx context.Context) (*provider, error) {
	o.mu.Lock()
	found := o.found
	o.mu.Unlock()
	if found != nil {
		return found, nil
	}
	p, err := oidc.NewProvider(ctx, o.Issuer)
	if err != nil {
		return nil, fmt.Errorf("%w: %.300w", errSilent, err)
	}
	var more struct {
		Keys    string   `json:"jwks_uri"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
		SignOut string   `json:"end_session_endpoint"`
	}
	if err := p.Claims(&more); err != nil {
		return nil, fmt.Errorf("%w: %w", errSilent, err)
	}
	found = &provider{Provider: p, endpoint: p.Endpoint(), verifier: p.Verifier(&oidc.Config{ClientID: o.ClientID,
		Now: func() time.Time { return time.Now().Add(-clockOffset) }})}
	for _, at := range []string{found.endpoint.AuthURL, found.endpoint.TokenURL, more.Keys,
		cmp.Or(found.endpoint.DeviceAuthURL, o.Issuer), cmp.Or(more.SignOut, o.Issuer)} {
		if !strings.HasPrefix(at, "https://") && strings.HasPrefix(o.Issuer, "https://") {
			return nil, fmt.Errorf("%w: its endpoint %q is not https", errSilent, at)
		}
	}
	if at, err := url.Parse(more.SignOut); err == nil && more.SignOut != "" {
		q := at.Query()
		q.Set("client_id", o.ClientID)
		at.RawQuery = q.Encode()
		found.signOut = at.String()
	}
	// A try with the wrong one would use up the code. Some providers that support both do not decode the header.
	found.endpoint.AuthStyle = oauth2.AuthStyleInHeader
	if slices.Contains(more.Methods, "client_secret_post") {
		found.endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.found = found
	return found, nil
}

// call is what one call of the provider needs. The error is errSilent, or that of the secret's file.
type call struct {
	*provider
	oauth2.Config
	ctx   context.Context
	leave func() // ends the call
}

func (o *OIDC) call(ctx context.Context) (*call, error) {
	ctx, leave, err := o.enter(ctx)
	if err != nil {
		return nil, err
	}
	p, err := o.provider(ctx)
	if err == nil {
		var secret string
		if secret, err = o.secret(); err == nil {
			return &call{p, oauth2.Config{ClientID: o.ClientID, ClientSecret: secret, Endpoint: p.endpoint,
				RedirectURL: o.redirect, Scopes: append([]string{oidc.ScopeOpenID}, o.Scopes...)}, ctx, leave}, nil
		}
	}
	leave()
	return nil, err
}

// flow is a sign-in that a browser has begun, in its cookie.
type flow struct {
	State, Nonce, Verifier, Next string
	Base                         string // of the virtual host
}

func (o *OIDC) begin(ctx context.Context, f flow) (to string, err error) {
	c, err := o.call(ctx)
	if err != nil {
		return "", err
	}
	defer c.leave()
	return c.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), nil
}

var (
	errNoDevice = hint.New("not_found", "nobody can sign in by the browser")
	errPending  = errors.New("the person has not confirmed it yet")
	errSlower   = errors.New("the provider is asked too often")
	errEnded    = hint.New("sign_in", "the sign-in was not confirmed in time; begin again")
	errDenied   = hint.New("sign_in", "the provider did not sign you in; the service's log says why")
)

// beginDevice begins a sign-in that a person confirms in a browser anywhere (RFC 8628).
func (o *OIDC) beginDevice(ctx context.Context) (*oauth2.DeviceAuthResponse, error) {
	c, err := o.call(ctx)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	if c.endpoint.DeviceAuthURL == "" {
		return nil, hint.Errorf("sign in with a token, or allow the device flow at the provider, which then names its "+
			"device_authorization_endpoint",
			"%w: the OpenID Connect provider has no device flow", errNoDevice)
	}
	// The library's DeviceAuth neither sends the secret nor ends with its context.
	form := url.Values{"client_id": {c.ClientID}, "scope": {strings.Join(c.Scopes, " ")}}
	if c.endpoint.AuthStyle == oauth2.AuthStyleInParams {
		form.Set("client_secret", c.ClientSecret)
	}
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, c.endpoint.DeviceAuthURL,
		strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.endpoint.AuthStyle == oauth2.AuthStyleInHeader {
		r.SetBasicAuth(url.QueryEscape(c.ClientID), url.QueryEscape(c.ClientSecret))
	}
	resp, err := o.client.Do(r)
	if err != nil {
		return nil, refusal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, refusal(err)
	}
	if resp.StatusCode/100 != 2 {
		var why struct {
			Code string `json:"error"`
		}
		_ = json.Unmarshal(said, &why)
		return nil, refusal(&oauth2.RetrieveError{Response: resp, ErrorCode: why.Code})
	}
	d := &oauth2.DeviceAuthResponse{}
	if json.Unmarshal(said, d) != nil || d.DeviceCode == "" || len(d.DeviceCode) > maxDeviceCode ||
		d.UserCode == "" || d.VerificationURI == "" {
		return nil, errors.New("the provider's answer has no device code, user code or address")
	}
	if d.Expiry.IsZero() {
		d.Expiry = time.Now().Add(flowLasts)
	}
	return d, nil
}

// finishDevice exchanges a device code for the person who confirmed it. After errPending and errSlower the caller asks
// again. The ID token needs no nonce, since no one can replay it: the provider sends it to this service alone, once.
func (o *OIDC) finishDevice(ctx context.Context, code string) (person, error) {
	c, err := o.call(ctx)
	if err != nil {
		return person{}, err
	}
	defer c.leave()
	c.RedirectURL = ""
	t, err := c.Exchange(c.ctx, "", oauth2.SetAuthURLParam("device_code", code),
		oauth2.SetAuthURLParam("grant_type", "urn:ietf:params:oauth:grant-type:device_code"))
	var said *oauth2.RetrieveError
	if errors.As(err, &said) {
		switch said.ErrorCode {
		case "authorization_pending":
			return person{}, errPending
		case "slow_down":
			return person{}, errSlower
		case "expired_token":
			return person{}, errEnded
		}
	}
	if err != nil {
		return person{}, refusal(err)
	}
	id, err := o.verify(c, t)
	if err != nil {
		return person{}, err
	}
	return o.person(c, t, id)
}

// person is who the provider says it is.
type person struct {
	caller  Caller
	subject string
	refresh string
	renew   time.Time // when the provider is asked again
}

func (p person) session() session {
	return session{Caller: p.caller, Subject: p.subject, renewal: renewal{Next: p.renew}}
}

// finish exchanges the provider's answer for the person. After any error, no one is signed in.
func (o *OIDC) finish(ctx context.Context, answer url.Values, f flow) (person, error) {
	if e := answer.Get("error"); e != "" {
		return person{}, fmt.Errorf("the provider says %.80q: %.200q", e, answer.Get("error_description"))
	}
	if iss := answer.Get("iss"); iss != "" && iss != o.Issuer {
		return person{}, fmt.Errorf("another provider answers: %.200q", iss)
	}
	c, err := o.call(ctx)
	if err != nil {
		return person{}, err
	}
	defer c.leave()
	t, err := c.Exchange(c.ctx, answer.Get("code"), oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return person{}, refusal(err)
	}
	id, err := o.verify(c, t)
	if err != nil {
		return person{}, err
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		return person{}, errors.New("the ID token has another nonce")
	}
	return o.person(c, t, id)
}

// renew asks the provider for the person's present groups. Its error is errSilent where the session may continue.
func (o *OIDC) renew(ctx context.Context, refresh, subject string) (person, error) {
	c, err := o.call(ctx)
	if err != nil && !errors.Is(err, errSilent) { // a secret that cannot be read ends no session
		err = fmt.Errorf("%w: %w", errSilent, err)
	}
	if err != nil {
		return person{}, err
	}
	defer c.leave()
	t, err := c.TokenSource(c.ctx, &oauth2.Token{RefreshToken: refresh}).Token()
	if err != nil {
		return person{}, refusal(err)
	}
	var id *oidc.IDToken // which providers may leave out here
	if _, ok := t.Extra("id_token").(string); ok {
		if id, err = o.verify(c, t); err != nil {
			return person{}, err
		}
	}
	who, err := o.person(c, t, id)
	if err == nil && who.subject != subject {
		return person{}, errors.New("the provider answers for another person")
	}
	return who, err
}

// refusal returns errSilent if the provider did not answer. Of what it did answer the error has only the code, since
// the rest may repeat the secret.
func refusal(err error) error {
	var said *oauth2.RetrieveError
	if errors.As(err, &said) && said.Response != nil && said.Response.StatusCode < 500 &&
		said.Response.StatusCode != http.StatusTooManyRequests {
		return fmt.Errorf("the provider refuses: %s %.80q", said.Response.Status, said.ErrorCode)
	} else if said != nil && said.Response != nil {
		return fmt.Errorf("%w: %s", errSilent, said.Response.Status)
	}
	return fmt.Errorf("%w: %w", errSilent, err)
}

// verify returns the ID token that came with an access token.
func (o *OIDC) verify(c *call, t *oauth2.Token) (*oidc.IDToken, error) {
	raw, _ := t.Extra("id_token").(string)
	id, err := c.verifier.Verify(c.ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("the ID token is not valid: %w", err)
	}
	var party struct {
		Authorized string `json:"azp"`
	}
	if err := id.Claims(&party); err != nil {
		return nil, fmt.Errorf("the ID token is not valid: %w", err)
	}
	if party.Authorized != o.ClientID && (party.Authorized != "" || len(id.Audience) > 1) {
		return nil, fmt.Errorf("the ID token is for %.80q", party.Authorized)
	}
	return id, nil
}

// person reads the claims of the ID token; what that lacks the provider's userinfo has.
func (o *OIDC) person(by *call, t *oauth2.Token, id *oidc.IDToken) (person, error) {
	all := map[string]json.RawMessage{}
	if id != nil {
		if err := id.Claims(&all); err != nil {
			return person{}, fmt.Errorf("the ID token: %w", err)
		}
	}
	in := claim(all, o.Claim)
	if in == nil && by.UserInfoEndpoint() != "" {
		info, err := by.UserInfo(by.ctx, oauth2.StaticTokenSource(t))
		if err != nil {
			return person{}, fmt.Errorf("%w: its userinfo: %.300w", errSilent, err)
		}
		if id != nil && info.Subject != id.Subject {
			return person{}, errors.New("the provider's userinfo is another person's")
		}
		more := map[string]json.RawMessage{}
		if err := info.Claims(&more); err != nil {
			return person{}, fmt.Errorf("the provider's userinfo: %w", err)
		}
		in = claim(more, o.Claim)
		maps.Copy(more, all)
		all = more
	}
	text := func(claim string) string { return shownText(all[claim]) }
	subject, name := text("sub"), ""
	verified := strings.Trim(string(all["email_verified"]), `"`) == "true"
	switch email, preferred := text("email"), text("preferred_username"); {
	case subject == "":
		return person{}, errors.New("the provider does not say who it is: there is no claim sub")
	case email != "" && verified && !strings.Contains(email, " "):
		name = email
	case email+preferred != "": // which people may choose: the subject keeps them apart
		name = preferred + " (" + subject + ")"
		if preferred == "" {
			name = email + " (" + subject + ")"
		}
	default:
		name = subject
	}
	var groups []string
	if json.Unmarshal(in, &groups) != nil {
		groups = []string{shownText(in)}
	}
	c, err := member("oidc", name, groups, o.Groups, o.Contact)
	renew := time.Now().Add(renewEvery)
	if !t.Expiry.IsZero() && t.Expiry.Before(renew) {
		renew = time.Now().Add(max(time.Until(t.Expiry), renewSoonest))
	}
	return person{c, subject, t.RefreshToken, renew}, err
}

// claim returns the claim of a name, or of a path with dots where no claim has the whole name, as in Keycloak's
// resource_access.CLIENT.roles; nil is none.
func claim(all map[string]json.RawMessage, name string) json.RawMessage {
	if found := all[name]; found != nil {
		return found
	}
	for i := range name {
		var within map[string]json.RawMessage
		if name[i] != '.' || json.Unmarshal(all[name[:i]], &within) != nil {
			continue
		}
		if found := claim(within, name[i+1:]); found != nil {
			return found
		}
	}
	return nil
}

// shownText returns a text in JSON that can be shown; "" is none.
func shownText(value json.RawMessage) (s string) {
	if json.Unmarshal(value, &s) != nil || !shown(s) {
		return ""
	}
	return s
}

// shown reports whether a name can be shown and logged as it is.
func shown(name string) bool { return len(name) <= maxName && graphic(name) }

func graphic(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) })
}

// ProviderName returns the name of the OpenID Connect provider; "" is none.
func (g *Guard) ProviderName() string {
	if g == nil || g.OIDC == nil {
		return ""
	}
	return g.OIDC.Name
}

// ProviderSignOut returns where a browser signs out at the OpenID Connect provider; "" is nowhere, or not known yet.
func (g *Guard) ProviderSignOut() string {
	if g == nil || g.OIDC == nil {
		return ""
	}
	g.OIDC.mu.Lock()
	defer g.OIDC.mu.Unlock()
	if g.OIDC.found == nil {
		return ""
	}
	return g.OIDC.found.signOut
}

// flowCookie returns a cookie that the browser, unlike the session's, also sends when the provider leads it back. With
// HTTPS no other host can set it.
func (g *Guard) flowCookie(value string, maxAge int) *http.Cookie {
	name := "redrive-oidc"
	if g.Secure {
		name = "__Host-redrive-oidc"
	}
	return &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: g.Secure,
		SameSite: http.SameSiteLaxMode}
}

// StartOIDC sends a browser to the provider.
func (g *Guard) StartOIDC(w http.ResponseWriter, r *http.Request) {
	next := LocalPath(r.URL.Query().Get("next"))
	if len(next) > maxFlowNext {
		next = "/"
	}
	if g.OIDC == nil {
		g.redirect(w, r, next, "")
		return
	}
	key := limited(g.Proxies.client(r))
	if g.OIDC.addresses.charge(key) > 0 {
		g.redirect(w, r, next, "slow")
		return
	}
	f := flow{rand.Text(), rand.Text(), oauth2.GenerateVerifier(), next, g.Base}
	to, err := g.OIDC.begin(r.Context(), f)
	if err != nil {
		g.Log.Warn("nobody can sign in with OpenID Connect", "error", err)
		g.redirect(w, r, next, "silent")
		return
	}
	g.OIDC.addresses.refund(key)
	value, _ := json.Marshal(f) // texts alone never fail
	http.SetCookie(w, g.flowCookie(base64.RawURLEncoding.EncodeToString(value), int(flowLasts.Seconds())))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// FinishOIDC begins the session of who comes back from the provider. It returns an error for the page to
// show, and otherwise has answered.
func (g *Guard) FinishOIDC(w http.ResponseWriter, r *http.Request) *NoRoleError {
	if g.OIDC == nil {
		g.redirect(w, r, "/", "")
		return nil
	}
	from := g.Proxies.client(r)
	key := limited(from)
	if g.OIDC.addresses.charge(key) > 0 {
		g.redirect(w, r, "/", "slow")
		return nil
	}
	http.SetCookie(w, g.flowCookie("", -1)) // it is good for one answer
	f, err := g.flowOf(r)
	var who person
	if err == nil {
		who, err = g.OIDC.finish(r.Context(), r.URL.Query(), f)
	}
	var none *NoRoleError
	switch {
	case errors.As(err, &none):
		g.OIDC.addresses.refund(key)
		g.Log.Warn("signed in with OpenID Connect, and has no role here", "user", none.Name, "from", from)
		none.SignOut = g.ProviderSignOut()
		return none
	case err != nil:
		g.Log.Warn("nobody was signed in with OpenID Connect", "from", from, "error", err)
		why := "denied"
		if errors.Is(err, errSilent) {
			why = "silent"
		} else if errors.Is(err, errElsewhere) {
			why = "elsewhere"
		}
		g.redirect(w, r, f.Next, why)
		return nil
	}
	g.OIDC.addresses.refund(key)
	if err := g.beginSession(w, r, who.session(), who.refresh); err != nil {
		g.refuse(w, r, err)
		return nil
	}
	http.Redirect(w, r, g.Base+f.Next, http.StatusSeeOther)
	return nil
}

// SignInDevice begins a sign-in of the command line, or with its device_code, in JSON, answers it: 202 while the person
// has not confirmed it, and then 204 and a session. The service keeps nothing of it: it ends when the provider says so.
func (g *Guard) SignInDevice(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Code string `json:"device_code"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&in)
	switch {
	case g.OIDC == nil:
		refuse(w, hint.Errorf("sign in with a token", "%w: this service has no OpenID Connect provider",
			errNoDevice))
		return
	case err != nil || len(in.Code) > maxDeviceCode:
		refuse(w, hint.New("malformed", "expected JSON with nothing, or with a device_code"))
		return
	}
	from := g.Proxies.client(r)
	key := limited(from)
	wait := g.OIDC.addresses.charge(key)
	if wait == 0 && in.Code != "" {
		wait = g.OIDC.polls.charge(nameOf(in.Code))
	}
	if wait > 0 {
		g.refuse(w, r, &TooMany{"attempts to sign in", wait})
		return
	}
	if in.Code == "" {
		d, err := g.OIDC.beginDevice(r.Context())
		if err != nil {
			g.refuseDevice(w, from, err)
			return
		}
		// This attempt stays counted, since the provider keeps it.
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d)
		return
	}
	who, err := g.OIDC.finishDevice(r.Context(), in.Code)
	if err == nil || errors.Is(err, errPending) || errors.Is(err, errSlower) || errors.As(err, new(*NoRoleError)) {
		g.OIDC.addresses.refund(key)
	}
	switch {
	case errors.Is(err, errPending):
		w.WriteHeader(http.StatusAccepted)
		return
	case errors.Is(err, errSlower):
		g.refuse(w, r, &TooMany{"attempts to sign in", devicePoll})
		return
	case err != nil:
		g.refuseDevice(w, from, err)
		return
	}
	if err := g.beginSession(w, r, who.session(), who.refresh); err != nil {
		g.refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (g *Guard) refuseDevice(w http.ResponseWriter, from netip.Addr, err error) {
	g.Log.Warn("nobody was signed in with OpenID Connect", "from", from, "error", err)
	switch {
	case errors.Is(err, errSilent):
		err = hint.Errorf("sign in with a token meanwhile; the service's log says more", "%w", errSilent)
	case errors.Is(err, errNoDevice), errors.Is(err, errEnded), errors.As(err, new(*NoRoleError)):
	default:
		err = errDenied
	}
	refuse(w, err)
}

// flowOf returns the sign-in that the browser has begun and the provider answers.
func (g *Guard) flowOf(r *http.Request) (flow, error) {
	state := r.URL.Query().Get("state")
	for _, c := range r.CookiesNamed(g.flowCookie("", 0).Name) {
		var f flow
		value, err := base64.RawURLEncoding.DecodeString(c.Value)
		if err == nil && json.Unmarshal(value, &f) == nil && f.State != "" && f.Nonce != "" && f.Verifier != "" &&
			f.Base == g.Base && subtle.ConstantTimeCompare([]byte(f.State), []byte(state)) == 1 {
			f.Next = LocalPath(f.Next)
			return f, nil
		}
	}
	return flow{Next: "/"}, errElsewhere
}

// renewal is an entry of a session with a refresh token: until when the provider need not be asked again, and what
// it said last. It is stored as JSON: its fields' names never change.
type renewal struct {
	Refresh  []byte // only the browser's cookie can open it
	Answered time.Time
	Next     time.Time
	Role     Role
	Queues   []string
}

// seal returns what encrypts a session's refresh token. The store has only a hash of id.
func seal(id string) cipher.AEAD {
	m := hmac.New(sha256.New, []byte(id))
	m.Write([]byte("refresh token"))
	block, err := aes.NewCipher(m.Sum(nil))
	if err != nil {
		panic(err) // the key has the right length
	}
	sealed, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // it is AES
	}
	return sealed
}

func (v renewal) entry(id string) (store.Entry, error) {
	value, err := json.Marshal(v)
	return store.Entry{Name: sessionName(id) + sessionRenewal, Value: value}, err
}

// renewed returns the caller of a session, after the provider has said that it may go on.
func (g *Guard) renewed(ctx context.Context, id string, s session) (Caller, error) {
	if g.OIDC == nil {
		return Caller{}, ErrSignIn
	}
	if s.Renews && !time.Now().Before(s.renewal.Next) {
		// Other requests wait for the same answer: the provider accepts a refresh token once.
		ctx := context.WithoutCancel(ctx)
		v, err, _ := g.OIDC.renewing.Do(sessionName(id), func() (any, error) { return g.renew(ctx, id) })
		if err != nil {
			return Caller{}, err
		}
		s = v.(session)
	}
	if s.Renews {
		s.Caller.Role, s.Caller.Queues = s.renewal.Role, s.renewal.Queues
	}
	return s.Caller, nil
}

func (g *Guard) renew(ctx context.Context, id string) (session, error) {
	s, ok, err := g.sessions.get(ctx, id)
	now := time.Now()
	switch {
	case err != nil:
		return session{}, err
	case !ok:
		return session{}, ErrSignIn
	case now.Before(s.renewal.Next):
		return s, nil
	}
	next := s.renewal
	refresh, err := seal(id).Open(nil, nil, next.Refresh, nil)
	var who person
	if err == nil {
		who, err = g.OIDC.renew(ctx, string(refresh), s.Subject)
	}
	switch {
	case err == nil:
		next = renewal{seal(id).Seal(nil, nil, []byte(who.refresh), nil), now, who.renew,
			who.caller.Role, who.caller.Queues}
	case errors.Is(err, errSilent) && now.Sub(next.Answered) < renewGrace:
		g.Log.Warn("a session goes on though the provider does not answer", "user", s.Caller.Name, "error", err)
		next.Next = now.Add(renewAgain)
	default:
		// Another replica may have used the refresh token.
		if s, ok, _ := g.sessions.get(ctx, id); ok && now.Before(s.renewal.Next) {
			return s, nil
		}
		g.Log.Warn("a session has ended: it was not renewed", "user", s.Caller.Name, "error", err)
		if err := g.sessions.stop(ctx, id); err != nil {
			return session{}, err
		}
		return session{}, ErrSignIn
	}
	e, err := next.entry(id)
	if err == nil {
		err = g.sessions.kept.PutEntries(ctx, []store.Entry{e})
	}
	s.renewal = next
	return s, err
}
