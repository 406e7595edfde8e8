package auth

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// Config is whom a guard lets in.
type Config struct {
	// Required: everybody signs in. Otherwise whoever is on this machine is its
	// administrator, and no one else has access.
	Required bool
	ReadOnly bool
	Tokens   *Tokens
	Users    *Users // nil: only tokens
	// Proxies tell the address that a request really came from.
	Proxies Proxies
	// Secure: browsers reach the service by HTTPS, here or at a proxy.
	Secure bool
	// Public is what everybody may ask for besides signing in and out: health, and
	// what the page to sign in consists of. nil: nothing.
	Public func(*http.Request) bool
	// SignInPage is where a browser that is not signed in is sent; "": nowhere.
	SignInPage string
	// Base is the escaped path that the service is under, without a slash at its end,
	// where several are at one host; "" where it is alone. Requests come without it.
	Base string
	// Sessions, when not nil, is where sessions are kept for all replicas.
	Sessions store.SideTable
	Log      *slog.Logger
}

// Guard tells for each request who calls.
type Guard struct {
	Config
	sessions sessions
}

// NewGuard makes a guard.
func NewGuard(c Config) *Guard { return &Guard{Config: c, sessions: sessions{kept: c.Sessions}} }

// public never says yes to a path that may come to mean another one.
func (g *Guard) public(r *http.Request) bool {
	return r.URL.Path == SignInPath || r.URL.Path == SignOutPath || g.Public != nil && path.Clean(r.URL.Path) == r.URL.Path && g.Public(r)
}

type contextKey struct{}

// From is the caller; without a role where no guard has said so.
func From(ctx context.Context) Caller {
	c, _ := ctx.Value(contextKey{}).(Caller)
	return c
}

// With is a context of a caller's request.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

type stillKey struct{}

// Still is nil while the caller of a request would be let in again: for answers that
// go on for long, since a token is revoked at once.
func Still(ctx context.Context) error {
	if still, ok := ctx.Value(stillKey{}).(func() error); ok {
		return still()
	}
	return nil
}

// InterfaceHeader is how our own command line says that it is one, for the audit log alone.
const InterfaceHeader = "X-Redrive-Face"

// Handler lets requests of known callers through, and all to what is public. It also
// refuses what a page of another site makes a browser ask for, but for following a
// link: it could not read the answers, and yet fill the audit log with exports, or
// take all places of those who watch.
func (g *Guard) Handler(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.Required {
			if err := local(r); err != nil {
				refuse(w, http.StatusForbidden, err)
				return
			}
		}
		if Foreign(r) && r.Header.Get("Sec-Fetch-Dest") != "document" {
			refuse(w, http.StatusForbidden, errors.New("a page of another site has asked for this"))
			return
		}
		c, err := g.caller(r)
		c.ReadOnly = g.ReadOnly
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
		case err != nil:
			g.refuse(w, r, err)
			return
		}
		still := func() error { _, err := g.caller(r); return err }
		next.ServeHTTP(w, r.WithContext(context.WithValue(With(r.Context(), c), stillKey{}, still)))
	})
}

// caller is who asks. Its errors are those of Users.SignIn and Tokens.
func (g *Guard) caller(r *http.Request) (c Caller, err error) {
	by := "api"
	if r.Header.Get(InterfaceHeader) == "cli" {
		by = "cli"
	}
	from := g.Proxies.client(r)
	given := r.Header.Get("Authorization")
	scheme, value, _ := strings.Cut(given, " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		c, err = g.byToken(r.Context(), strings.TrimSpace(value))
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
		by = "page"
		c, err = g.bySession(r)
	}
	c.From, c.Interface = from.String(), by
	return c, err
}

// bySession is who signed in with the page.
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

// byUser logs who did not sign in: that is how guessing shows.
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

// loggable is a name as typed; people mistake the field.
func loggable(name string) string {
	if strings.HasPrefix(name, secretPrefix) {
		return secretPrefix + "…"
	}
	return strings.ToValidUTF8(name[:min(len(name), 64)], "")
}

// Whole refuses callers who are limited to some queues: what is behind it tells of
// all.
func Whole(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := From(r.Context()); c.Queues != nil {
			refuse(w, http.StatusForbidden, errors.New("this tells of all queues, and "+c.Name+" is limited to some"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// navigates tells a person's browser, which opens a page or sends one's form, from a
// program.
func navigates(r *http.Request) bool {
	form := r.Method == http.MethodPost && strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded")
	return (r.Method == http.MethodGet || form) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// refuse answers with why a caller is not let in.
func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var many *TooMany
	switch {
	case errors.As(err, &many):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(many.Wait.Seconds()))))
		refuse(w, http.StatusTooManyRequests, err)
	case errors.Is(err, ErrSignIn):
		// Not Basic: browsers would ask for the password, and send it ever after.
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive"`)
		refuse(w, http.StatusUnauthorized, err)
	case errors.Is(err, ErrForbidden), errors.Is(err, ErrReadOnly):
		refuse(w, http.StatusForbidden, err)
	case errors.Is(err, ErrUnchecked):
		refuse(w, http.StatusServiceUnavailable, err)
	default:
		if r.Context().Err() == nil {
			g.Log.Error("who calls cannot be checked", "error", err)
		}
		refuse(w, http.StatusInternalServerError, errors.New("who calls cannot be checked now; the service's log says why"))
	}
}

// codes name the refusals for programs, as package api names all others.
var codes = map[int]string{http.StatusBadRequest: "malformed", http.StatusUnauthorized: "sign_in", http.StatusForbidden: "forbidden",
	http.StatusTooManyRequests: "too_many", http.StatusServiceUnavailable: "unchecked", http.StatusInternalServerError: "internal"}

func refuse(w http.ResponseWriter, status int, err error) {
	code := codes[status]
	if errors.Is(err, ErrReadOnly) {
		code = "read_only"
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "urn:redrive:problem:" + code, "code": code,
		"title": http.StatusText(status), "status": status, "detail": err.Error()})
}
