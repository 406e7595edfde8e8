package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// Paths of signing in and out; both take POST.
const (
	SignInPath  = "/signin"
	SignOutPath = "/signout"
)

// cookieName returns the name of the session cookie. With HTTPS its prefix __Host- makes browsers
// accept it from this host by HTTPS only. Under a base its path is the base, so that it goes to no
// other virtual host; __Host- requires the path /, so it is __Secure- then (HTTPS only). The name
// is another one then, since browsers send the cookies of / to all paths below.
func (g *Guard) cookieName() string {
	switch {
	case g.Secure && g.Base != "":
		return "__Secure-redrive-vhost"
	case g.Secure:
		return "__Host-redrive"
	case g.Base != "":
		return "redrive-vhost"
	}
	return "redrive"
}

// maxCookies is how many are tried: each may take a read of the store.
const maxCookies = 8

// sessionsOf returns the session ids that a browser sends. There may be several: other sites of the
// same domain can set cookies of this name, and those with the longest path come first.
func (g *Guard) sessionsOf(r *http.Request) (ids []string) {
	for _, c := range r.CookiesNamed(g.cookieName()) {
		if c.Value != "" && len(ids) < maxCookies {
			ids = append(ids, c.Value)
		}
	}
	return ids
}

// credentials are a user of RabbitMQ and a password, or a token.
type credentials struct {
	User     string `json:"user"`
	Password string `json:"password"`
	Token    string `json:"token"`
}

// SignIn begins a session, for a form of the page (fields user and password, or
// token, and next, where to go on) or JSON of the same names. A form that fails comes
// back to the page with error=refused, guest, slow (too many attempts) or unreachable
// (RabbitMQ).
func (g *Guard) SignIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	in, form, err := readCredentials(r)
	if err != nil {
		refuse(w, err)
		return
	}
	next := LocalPath(r.PostForm.Get("next"))
	var c Caller
	var token string
	if secret := strings.TrimSpace(in.Token); secret != "" {
		token = nameOf(secret)
		c, err = g.byToken(r.Context(), secret)
	} else {
		c, err = g.byUser(r, in.User, in.Password)
	}
	if err != nil && form {
		g.setTried(w, in.User)
		g.redirect(w, r, next, signInError(err))
		return
	}
	if err == nil {
		err = g.beginSession(w, r, session{Caller: c, Token: token}, "")
	}
	switch {
	case err != nil:
		g.refuse(w, r, err)
	case form:
		http.Redirect(w, r, g.Base+next, http.StatusSeeOther)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// triedCookie has the name that somebody did not sign in with, so that they need not type it again. It is not in the
// URL: a password may have been typed as a name.
const triedCookie = "redrive-tried"

func (g *Guard) setTried(w http.ResponseWriter, user string) {
	if user == "" || len(user) > maxName || strings.HasPrefix(user, secretPrefix) {
		return
	}
	http.SetCookie(w, &http.Cookie{Name: triedCookie, Value: base64.RawURLEncoding.EncodeToString([]byte(user)),
		Path: g.Base + SignInPath, MaxAge: 60, HttpOnly: true, Secure: g.Secure, SameSite: http.SameSiteStrictMode})
}

// TriedUser returns the name that this browser did not sign in with a moment ago; "" is none.
func TriedUser(r *http.Request) string {
	c, err := r.Cookie(triedCookie)
	if err != nil {
		return ""
	}
	user, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || !shown(string(user)) {
		return ""
	}
	return string(user)
}

// readCredentials reads JSON or a form, and reports which.
func readCredentials(r *http.Request) (in credentials, form bool, err error) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return in, false, hint.New("malformed", "expected JSON with user and password, or token")
		}
		return in, false, nil
	}
	if err := r.ParseForm(); err != nil {
		return in, true, hint.New("malformed", "expected a form with user and password, or token")
	}
	return credentials{r.PostForm.Get("user"), r.PostForm.Get("password"), r.PostForm.Get("token")}, true, nil
}

// signInError returns the value of the sign-in page's parameter error.
func signInError(err error) string {
	switch {
	case errors.Is(err, errGuest): // whatever the password
		return "guest"
	case errors.Is(err, ErrSignIn), errors.Is(err, ErrForbidden):
		return "refused"
	case errors.As(err, new(*TooMany)):
		return "slow"
	}
	return "unreachable"
}

// beginSession ends earlier sessions and begins one. refresh is what it is renewed with, if anything.
func (g *Guard) beginSession(w http.ResponseWriter, r *http.Request, s session, refresh string) error {
	if err := g.end(r); err != nil {
		return err
	}
	id, err := g.sessions.begin(r.Context(), s, refresh)
	if err != nil {
		return err
	}
	c := s.Caller
	g.Log.Info("signed in", "user", c.Name, "how", c.How, "role", c.Role, "from", g.Proxies.client(r))
	g.setCookie(w, id, int(sessionLasts.Seconds()))
	return nil
}

// redirect sends a browser to the sign-in page, with the path to return to.
func (g *Guard) redirect(w http.ResponseWriter, r *http.Request, next, why string) {
	q := url.Values{"next": {next}}
	if why != "" {
		q.Set("error", why)
	}
	http.Redirect(w, r, g.Base+g.SignInPage+"?"+q.Encode(), http.StatusSeeOther)
}

// SignOut ends the session; with the parameter everywhere, all sessions of its caller. The sign-in page has the
// parameter left if an OpenID Connect provider began it, where the person is still signed in: no redirect may lead
// there, since the page's forms are for this service alone.
func (g *Guard) SignOut(w http.ResponseWriter, r *http.Request) {
	provided := slices.ContainsFunc(g.sessionsOf(r), func(id string) bool {
		s, _, _ := g.sessions.get(r.Context(), id) // an error comes again
		return s.Caller.How == "oidc"
	})
	var err error
	if r.URL.Query().Has("everywhere") {
		var c Caller
		if c, err = g.bySession(r); err == nil {
			err = g.sessions.stopAll(r.Context(), c.ID())
		} else if errors.Is(err, ErrSignIn) {
			err = nil
		}
	}
	if err = errors.Join(err, g.end(r)); err != nil { // the session goes on, so the browser keeps its cookie
		g.refuse(w, r, err)
		return
	}
	g.setCookie(w, "", -1)
	w.Header().Set("Clear-Site-Data", `"cache"`)
	to := g.Base + LocalPath(g.SignInPage)
	if provided {
		to += "?left"
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (g *Guard) end(r *http.Request) error {
	for _, id := range g.sessionsOf(r) {
		if err := g.sessions.stop(r.Context(), id); err != nil {
			return err
		}
	}
	return nil
}

func (g *Guard) setCookie(w http.ResponseWriter, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{Name: g.cookieName(), Value: value, Path: g.Base + "/", MaxAge: maxAge,
		HttpOnly: true, Secure: g.Secure, SameSite: http.SameSiteStrictMode})
}

// LocalPath returns a path of this service without its base, or / if to leads to another site or out
// of the base: the sender of a link must not choose where a person lands after signing in.
func LocalPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") ||
		strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	for step := range strings.SplitSeq(u.EscapedPath(), "/") {
		if step, _ := url.PathUnescape(step); step == ".." {
			return "/"
		}
	}
	return to
}

// sessions keeps the page's sessions in the store's side table, under a hash of the browser's cookie: they
// outlast the service, and replicas share them.
//
// A session is two or three entries: the session, written once, until when it lasts unused, and a renewal. So a
// request at another replica, while the person signs out, cannot write the session again.
type sessions struct {
	kept  store.SideTable
	begun atomic.Int64 // since the service started
	using atomic.Bool  // a use is being written. On a full disk that waits, and other requests go on without.
}

// session is stored as JSON: its fields' names never change.
type session struct {
	Caller Caller
	Token  string    `json:",omitempty"` // the name that the token is kept under, if it was begun with one
	Idle   time.Time // when it ends, unless it is used before
	End    time.Time

	Subject string `json:",omitempty"` // who it is for the OpenID Connect provider
	Renews  bool   `json:",omitempty"` // it has a renewal
	renewal renewal
}

const (
	// sessionIdle is how long a session lasts without a request, sessionLasts how
	// long at most: what changes for a user in RabbitMQ is seen at the next sign-in.
	sessionIdle  = 12 * time.Hour
	sessionLasts = 24 * time.Hour
	// maxSessions bounds those that are stored. A service deletes the oldest of too many when it has
	// begun as many as sessionsBetween.
	maxSessions, sessionsBetween = 10_000, 500

	sessionPrefix = "session/"
	sessionIs     = "is"
	sessionUsed   = "used"
	// sessionRenewal comes after sessionIs, as read expects.
	sessionRenewal = "renewal"
	// usedEvery is how often the use of a session is written.
	usedEvery = 10 * time.Minute
	// forgetEvery is how often Forget looks.
	forgetEvery = time.Hour
)

func sessionName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return sessionPrefix + hex.EncodeToString(sum[:]) + "/"
}

func (s *sessions) begin(ctx context.Context, v session, refresh string) (id string, err error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	id = base64.RawURLEncoding.EncodeToString(random[:])
	now := time.Now()
	if s.begun.Add(1)%sessionsBetween == 0 {
		_ = s.forget(ctx, now) // Forget says why it cannot
	}
	v.Idle, v.End, v.Renews = now.Add(sessionIdle), now.Add(sessionLasts), refresh != ""
	value, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	entries := []store.Entry{{Name: sessionName(id) + sessionIs, Value: value}}
	if v.Renews {
		e, err := renewal{seal(id).Seal(nil, nil, []byte(refresh), nil), now, v.renewal.Next, v.Caller.Role,
			v.Caller.Queues}.entry(id)
		if err != nil {
			return "", err
		}
		entries = append(entries, e)
	}
	return id, s.kept.PutEntries(ctx, entries)
}

func (v session) over(now time.Time) bool { return !now.Before(v.Idle) || !now.Before(v.End) }

// get reads a session, and writes that it is used.
func (s *sessions) get(ctx context.Context, id string) (v session, ok bool, err error) {
	err = s.kept.Entries(ctx, sessionName(id), "", func(e store.Entry) (bool, error) { return true, v.read(e) })
	now := time.Now()
	if err != nil || v.over(now) {
		return session{}, false, err
	}
	if idle := now.Add(sessionIdle); idle.Sub(v.Idle) >= usedEvery && s.using.CompareAndSwap(false, true) {
		defer s.using.Store(false)
		if err := s.use(ctx, id, idle); err != nil {
			return session{}, false, err
		}
		v.Idle = idle
	}
	return v, true, nil
}

// read reads one of the entries of a session, in their order. Without the first the session is over.
func (v *session) read(e store.Entry) (err error) {
	switch e.Name[strings.LastIndex(e.Name, "/")+1:] {
	case sessionIs:
		err = json.Unmarshal(e.Value, v)
	case sessionRenewal:
		err = json.Unmarshal(e.Value, &v.renewal)
	default:
		err = v.Idle.UnmarshalText(e.Value)
	}
	if err != nil {
		return fmt.Errorf("the store's entry %s: %w", e.Name, err)
	}
	return nil
}

// use writes until when a session lasts unused.
func (s *sessions) use(ctx context.Context, id string, idle time.Time) error {
	used, err := idle.MarshalText()
	if err != nil {
		return err
	}
	return s.kept.PutEntries(ctx, []store.Entry{{Name: sessionName(id) + sessionUsed, Value: used}})
}

func (s *sessions) stop(ctx context.Context, id string) error {
	return s.kept.DeleteEntries(ctx, sessionName(id))
}

// stopAll ends the sessions of the caller with an ID.
func (s *sessions) stopAll(ctx context.Context, id string) error {
	var all []string
	err := s.kept.Entries(ctx, sessionPrefix, "", func(e store.Entry) (bool, error) {
		var v session
		name, is := strings.CutSuffix(e.Name, sessionIs)
		if !is {
			return true, nil
		}
		if err := v.read(e); err != nil {
			return false, err
		}
		if v.Caller.ID() == id {
			all = append(all, name)
		}
		return true, nil
	})
	for _, name := range all {
		err = errors.Join(err, s.kept.DeleteEntries(ctx, name))
	}
	return err
}

// Forget deletes ended sessions and old sign-ins, every hour until ctx ends. Of several replicas only the
// leader calls it.
func (g *Guard) Forget(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		err := g.sessions.forget(ctx, now)
		if g.Users != nil {
			err = errors.Join(err, g.Users.forget(ctx, now))
		}
		if err != nil && ctx.Err() == nil {
			g.Log.Warn("sessions that are over are not deleted; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// forget deletes the sessions that are over, and the oldest where there are too many.
func (s *sessions) forget(ctx context.Context, now time.Time) error {
	all := map[string]session{}
	err := s.kept.Entries(ctx, sessionPrefix, "", func(e store.Entry) (bool, error) {
		name := e.Name[:strings.LastIndex(e.Name, "/")+1]
		v := all[name]
		err := v.read(e)
		all[name] = v
		return true, err
	})
	if err != nil {
		return err
	}
	oldest := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[a].End.Compare(all[b].End) })
	for i, name := range oldest {
		if all[name].over(now) || len(oldest)-i > maxSessions-sessionsBetween {
			if err := s.kept.DeleteEntries(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}
