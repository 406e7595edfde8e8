// Package auth is access control: signing in with a user of RabbitMQ's or a token, roles, and the
// queues that callers are limited to. Read it in this order:
//
//	guard.go     a caller, their role and queues; lets requests of known callers through, and slows guessing
//	token.go     tokens
//	rabbitmq.go  RabbitMQ's users
//	signin.go    signing in and out with the page; sessions, in the store
//	oidc.go      people who sign in with OpenID Connect
//	proxy.go     people whom a proxy names
//	tls.go       certificates that are renewed while the service runs
package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

var (
	// ErrForbidden: the caller is signed in and lacks the permission.
	ErrForbidden = hint.New("forbidden", "not allowed")
	// ErrSignIn: the caller is not signed in, or what they signed in with is not valid.
	ErrSignIn = hint.New("sign_in", "sign in first")
	// ErrReadOnly: the service refuses all changes, whoever calls.
	ErrReadOnly = hint.New("read_only", "this service is read-only")
)

// Role is a caller's permission. Each includes the one before.
type Role uint8

// Roles.
const (
	NoRole   Role = iota
	Viewer        // see messages, their bodies too
	Operator      // replay, discard, restore, pause and resume; run operations
	Editor        // edit, import, and send copies to other queues
	Admin         // make tokens, read the audit log
)

var roleNames = [...]string{"nobody", "viewer", "operator", "editor", "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads a role's name.
func ParseRole(s string) (Role, error) {
	if r := slices.Index(roleNames[:], s); r > 0 {
		return Role(r), nil
	}
	return NoRole, fmt.Errorf("%q is not a role: expected viewer, operator, editor or admin", s)
}

// Caller is the person or program that has sent a request.
type Caller struct {
	Name string // the user, or the token's name; "local" for whoever is on this machine where no one signs in
	How  string // "rabbitmq", "oidc", "proxy", "token", "local" or "visitor"
	From string // the address the call came from
	// Interface is "page", "api" or "cli". Its name in JSON is that of stored sessions.
	Interface string `json:"Face"`
	Role      Role
	Queues    []string // names or patterns that they are limited to, as in a policy; nil: all
	// ReadOnly: whatever the role, nothing may be changed.
	ReadOnly bool
}

// ID tells callers apart; "" is whoever is on this machine where no one signs in.
func (c Caller) ID() string {
	switch c.How {
	case "local":
		return ""
	case "visitor":
		at, _ := netip.ParseAddr(c.From)
		return "visitor " + limited(at)
	}
	return c.How + " " + c.Name
}

// SignedIn reports whether the caller can sign out here.
func (c Caller) SignedIn() bool { return c.How != "local" && c.How != "visitor" && c.How != "proxy" }

// May returns nil when the caller has the role and may act on the queue; "" is none. Its errors are
// ErrReadOnly, ErrSignIn or ErrForbidden.
func (c Caller) May(role Role, queue string) error {
	switch {
	case c.Role == NoRole:
		return ErrSignIn
	case c.ReadOnly && role > Viewer:
		return ErrReadOnly
	case queue != "" && !c.Sees(queue):
		return fmt.Errorf("%w: %s may not touch the queue %q", ErrForbidden, c.Name, queue)
	}
	return c.MaySee(role)
}

// MaySee is May for what changes nothing and yet needs a role, such as the audit log: it is shown
// by a read-only service too.
func (c Caller) MaySee(role Role) error {
	switch {
	case c.Role == NoRole:
		return ErrSignIn
	case c.Role < role:
		return fmt.Errorf("%w: %s is %s, and this needs %s", ErrForbidden, c.Name, c.Role, role)
	}
	return nil
}

// Sees reports whether the caller may see a queue.
func (c Caller) Sees(queue string) bool {
	return c.Queues == nil || slices.ContainsFunc(c.Queues, func(p string) bool { return policy.MatchQueue(p, queue) })
}

// Config of a Guard.
type Config struct {
	// Required: everybody signs in. Otherwise callers on this machine are administrators, and no one else has
	// access.
	Required bool
	// Visitors: everybody is a viewer, no one signs in or changes anything, and each address has a limit of requests.
	Visitors bool
	ReadOnly bool
	Tokens   *Tokens
	Users    *Users // nil: only tokens
	OIDC     *OIDC  // nil: no one signs in with OpenID Connect
	// Proxies are those whose header X-Forwarded-For is believed, and the headers of Proxy.
	Proxies Proxies
	Proxy   ProxyConfig
	// Secure: browsers reach the service by HTTPS, here or at a proxy.
	Secure bool
	// Public reports whether a request needs no sign-in, as those for health and for the assets of
	// the sign-in page. Signing in and out never needs one. nil: no others.
	Public func(*http.Request) bool
	// SignInPage is where a browser that is not signed in is sent; "": nowhere.
	SignInPage string
	// Base is the escaped path that the service is under, without a slash at its end,
	// where several are at one host; "" where it is alone. Requests come without it.
	Base string
	// Sessions is where sessions are kept, for all replicas.
	Sessions store.SideTable
	Log      *slog.Logger
}

// Guard finds out for each request who calls.
type Guard struct {
	Config
	sessions sessions
	visits   limiter
}

// NewGuard makes a guard.
func NewGuard(c Config) *Guard {
	if c.Visitors {
		c.Tokens, c.Users = nil, nil
	}
	return &Guard{Config: c, sessions: sessions{kept: c.Sessions},
		visits: limiter{most: VisitorBurst, every: time.Second / visitorRate}}
}

// VisitorBurst is how many requests an address of visitors has at once, and visitorRate how many a second after that.
const VisitorBurst, visitorRate = 100, 5

// public is false for a path that is not clean: a handler may serve another one.
func (g *Guard) public(r *http.Request) bool {
	return slices.Contains([]string{SignInPath, SignOutPath, OIDCPath, OIDCStartPath, OIDCDevicePath}, r.URL.Path) ||
		g.Public != nil && path.Clean(r.URL.Path) == r.URL.Path && g.Public(r)
}

type contextKey struct{}

// From returns the caller of a request; one without a role when no guard has let it through.
func From(ctx context.Context) Caller {
	c, _ := ctx.Value(contextKey{}).(Caller)
	return c
}

// With returns the context of a caller's request.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

type stillKey struct{}

// Still returns nil while the caller of a request would be let through again. Long answers, such as
// streams, ask it from time to time: a revoked token ends them at once.
func Still(ctx context.Context) error {
	if still, ok := ctx.Value(stillKey{}).(func() error); ok {
		return still()
	}
	return nil
}

// InterfaceHeader is how our own command line says that it is one, for the audit log alone.
const InterfaceHeader = "X-Redrive-Face"

// PathHeader is the escaped path that our own command line asked for, where a name in it has a slash:
// a proxy that decodes it leads to another object.
const PathHeader = "X-Redrive-Path"

// Handler lets requests of known callers through, and all requests that are public. It refuses those
// that a page of another site causes, except for following a link: such a page could not read the
// answers, and yet fill the audit log with exports, or use up the streams.
func (g *Guard) Handler(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case g.Visitors:
			if wait := g.visits.charge(limited(g.Proxies.client(r))); wait > 0 {
				g.refuse(w, r, &TooMany{"requests of this address", wait})
				return
			}
		case !g.Required:
			if err := local(r); err != nil {
				refuse(w, err)
				return
			}
		}
		if Foreign(r) && r.Header.Get("Sec-Fetch-Dest") != "document" {
			refuse(w, hint.New("forbidden", "a page of another site has asked for this"))
			return
		}
		c, err := g.caller(r)
		c.ReadOnly = g.ReadOnly || g.Visitors
		switch {
		case g.public(r):
			if err != nil {
				c = Caller{}
			}
		case errors.Is(err, ErrSignIn) && g.SignInPage != "" && r.Header.Get("Authorization") == "" && navigates(r):
			if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
				// After a link of another site a browser keeps the cookie back, as it
				// should. It sends it when our own page leads here.
				w.Header().Set("Refresh", "0")
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
				_, _ = io.WriteString(w, `<!doctype html><title>Redrive</title><a href="">Go on</a>`)
				return
			}
			why := ""
			if len(g.sessionsOf(r)) > 0 {
				why = "expired"
			}
			next := r.URL.RequestURI()
			if r.Method == http.MethodPost {
				next, why = "/", "undone"
			}
			g.redirect(w, r, next, why)
			return
		case errors.As(err, new(*NoRoleError)) && g.SignInPage != "" && navigates(r):
			g.redirect(w, r, "/", "") // which shows what would give a role
			return
		case err != nil:
			g.refuse(w, r, err)
			return
		}
		still := func() error { _, err := g.caller(r); return err }
		next.ServeHTTP(w, r.WithContext(context.WithValue(With(r.Context(), c), stillKey{}, still)))
	})
}

// caller returns who sent a request. It returns the errors of Users.SignIn and Tokens.
func (g *Guard) caller(r *http.Request) (c Caller, err error) {
	by := "api"
	if r.Header.Get(InterfaceHeader) == "cli" {
		by = "cli"
	}
	from := g.Proxies.client(r)
	given := r.Header.Get("Authorization")
	scheme, value, _ := strings.Cut(given, " ")
	bearer := strings.EqualFold(scheme, "Bearer")
	value = strings.TrimSpace(value)
	switch {
	case g.Visitors:
		c = Caller{Name: "visitor", How: "visitor", Role: Viewer}
		if r.Header.Get("Sec-Fetch-Site") != "" {
			by = "page"
		}
	case g.named(r) && !(bearer && strings.HasPrefix(value, secretPrefix)):
		// Other credentials may be the proxy's own.
		c, err = g.byProxy(r)
		if r.Header.Get("Sec-Fetch-Site") != "" {
			by = "page"
		}
	case bearer:
		c, err = g.byToken(r.Context(), value)
	case strings.EqualFold(scheme, "Basic"):
		user, password, _ := r.BasicAuth()
		c, err = g.byUser(r, user, password)
	case given != "":
		return Caller{}, ErrSignIn
	case !g.Required:
		c = Caller{Name: "local", How: "local", Role: Admin}
		if r.Header.Get("Sec-Fetch-Site") != "" {
			by = "page"
		}
	default:
		if by == "api" {
			by = "page"
		}
		c, err = g.bySession(r)
	}
	c.From, c.Interface = from.String(), by
	return c, err
}

// bySession returns the caller who signed in with the page.
func (g *Guard) bySession(r *http.Request) (Caller, error) {
	for _, id := range g.sessionsOf(r) {
		s, ok, err := g.sessions.get(r.Context(), id)
		switch {
		case err != nil:
			return Caller{}, err
		case !ok:
			continue
		case s.Token != "":
			return g.Tokens.caller(r.Context(), s.Token)
		case s.Caller.How == "oidc":
			return g.renewed(r.Context(), id, s)
		}
		return s.Caller, nil
	}
	return Caller{}, ErrSignIn
}

func (g *Guard) byToken(ctx context.Context, secret string) (Caller, error) {
	if g.Tokens == nil || !strings.HasPrefix(secret, secretPrefix) {
		return Caller{}, ErrSignIn
	}
	return g.Tokens.caller(ctx, nameOf(secret))
}

// byUser logs failures, so that guessing shows.
func (g *Guard) byUser(r *http.Request, name, password string) (c Caller, err error) {
	if g.Users == nil {
		return Caller{}, ErrSignIn
	}
	from := g.Proxies.client(r)
	c, err = g.Users.SignIn(r.Context(), name, password, limited(from))
	var many *TooMany // those would fill the log
	if err != nil && !errors.As(err, &many) {
		g.Log.Warn("a user of RabbitMQ's did not sign in", "from", from, "user", loggable(name), "error", err)
	}
	if errors.Is(err, ErrUnchecked) {
		err = ErrUnchecked // where RabbitMQ is, and what it said, is not for everybody
	}
	return c, err
}

// loggable returns a name for the log, without a token that somebody typed as a name.
func loggable(name string) string {
	if strings.HasPrefix(name, secretPrefix) {
		return secretPrefix + "…"
	}
	return strings.ToValidUTF8(name[:min(len(name), 64)], "")
}

// Whole refuses callers who are limited to some queues, for answers that are about all of them.
func Whole(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := From(r.Context()); c.Queues != nil {
			refuse(w, hint.New("forbidden", "this tells of all queues, and "+c.Name+" is limited to some"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// navigates reports whether a person's browser opens a page or sends its form.
func navigates(r *http.Request) bool {
	form := r.Method == http.MethodPost &&
		strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded")
	return (r.Method == http.MethodGet || form) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// refuse answers with the reason why a request is not let through.
func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var many *TooMany
	switch {
	case errors.As(err, &many):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(many.Wait.Seconds()))))
	case errors.Is(err, ErrSignIn):
		// Not Basic: browsers would ask for the password, and send it ever after.
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive"`)
	case errors.Is(err, ErrForbidden), errors.Is(err, ErrReadOnly), errors.Is(err, ErrUnchecked):
	default:
		if r.Context().Err() == nil {
			g.Log.Error("who calls cannot be checked", "error", err)
		}
		err = errors.New("who calls cannot be checked now; the service's log says why")
	}
	refuse(w, err)
}

func refuse(w http.ResponseWriter, err error) {
	k := hint.HTTP(err)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(k.Status)
	said := map[string]any{"type": "urn:redrive:problem:" + k.Code, "code": k.Code,
		"title": http.StatusText(k.Status), "status": k.Status, "detail": hint.Text(err)}
	if remedy := hint.Of(err); remedy != "" {
		said["hint"] = remedy
	}
	_ = json.NewEncoder(w).Encode(said)
}

// limiter allows each key a number of failures, and then one from time to time: a leaky bucket
// for each key, which each failure fills.
type limiter struct {
	most  float64
	every time.Duration

	mu      sync.Mutex
	buckets map[string]bucket
	swept   time.Time
}

type bucket struct {
	level float64
	at    time.Time
}

// maxBuckets bounds memory; beyond it all new keys share one bucket.
const maxBuckets = 10_000

// charge counts an attempt before it is made, as if it had failed, so that attempts at the same
// time all count. After too many it counts none, and returns how long to wait.
func (l *limiter) charge(key string) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.buckets == nil {
		l.buckets = map[string]bucket{}
	}
	if _, known := l.buckets[key]; !known && len(l.buckets) >= maxBuckets {
		if now.Sub(l.swept) >= time.Second { // it looks at all of them
			l.swept = now
			maps.DeleteFunc(l.buckets, func(_ string, b bucket) bool { return l.level(b, now) == 0 })
		}
		if len(l.buckets) >= maxBuckets {
			key = ""
		}
	}
	level := l.level(l.buckets[key], now)
	if level+1 > l.most {
		return time.Duration((level + 1 - l.most) * float64(l.every))
	}
	l.buckets[key] = bucket{level + 1, now}
	return 0
}

// refund uncounts an attempt that did not fail.
func (l *limiter) refund(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, own := l.buckets[key]; !own {
		key = ""
	}
	if b, ok := l.buckets[key]; ok {
		l.buckets[key] = bucket{max(0, b.level-1), b.at}
	}
}

func (l *limiter) level(b bucket, now time.Time) float64 {
	return max(0, b.level-float64(now.Sub(b.at))/float64(l.every))
}

// Proxies are the addresses whose header X-Forwarded-For is believed.
type Proxies []netip.Prefix

// ParseProxy reads an address or a network.
func ParseProxy(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or network, such as 10.0.0.7 or 10.0.0.0/8", s)
	}
	return p.Masked(), nil
}

func (p Proxies) has(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// Loopback reports whether one is on this machine.
func (p Proxies) Loopback() bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Addr().IsLoopback() })
}

// client returns the address that a request comes from: the last one in X-Forwarded-For that is no
// proxy of ours. A caller can forge the addresses before it.
func (p Proxies) client(r *http.Request) netip.Addr {
	at := peer(r)
	forwarded := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(forwarded) - 1; i >= 0 && p.has(at); i-- {
		a, err := netip.ParseAddr(strings.TrimSpace(forwarded[i]))
		if err != nil {
			break
		}
		at = a.Unmap().WithZone("")
	}
	return at
}

// peer returns the address at the other end of the connection.
func peer(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return at.Addr().Unmap().WithZone("")
}

// limited returns the key under which failures count together: an IPv4 address, or the IPv6 network
// that one customer of a provider has.
func limited(a netip.Addr) string {
	if a.Is6() {
		network, _ := a.Prefix(64)
		return network.String()
	}
	return a.String()
}

// local returns nil for a request from this machine. Without sign-in its callers are administrators,
// so others must not pass for them: a web page whose own host name resolves to 127.0.0.1 (Host is
// that name then), or callers that come by a proxy.
func local(r *http.Request) error {
	if !Loopback(r.Host) {
		return hint.New("forbidden", "ask for this service by its loopback address")
	}
	if !peer(r).IsLoopback() {
		return hint.New("forbidden", "this service answers only its own machine; configure auth to let others sign in")
	}
	by := ""
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains([]string{"Forwarded", "X-Real-Ip", "Via"}, name) {
			by = "it has the header " + name
		}
	}
	if !r.ProtoAtLeast(1, 1) {
		by = "it is HTTP/1.0" // as nginx asks, which adds no header unless told to
	}
	if by != "" {
		return hint.New("forbidden", "this came by a proxy ("+by+
			"), and this service has no sign-in: configure auth before others can reach this service")
	}
	return nil
}

// Loopback reports whether a host, with a port or without, is localhost or a loopback address.
func Loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Foreign reports whether a page of another site has caused a browser to send the request.
func Foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}
