package auth

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// shelf keeps entries in memory.
type shelf map[string][]byte

func (s shelf) Entry(_ context.Context, name string) ([]byte, error) { return s[name], nil }

func (s shelf) Entries(_ context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if strings.HasPrefix(name, prefix) && name > after {
			if more, err := visit(store.Entry{Name: name, Value: s[name]}); !more || err != nil {
				return err
			}
		}
	}
	return nil
}

func (s shelf) PutEntries(_ context.Context, entries []store.Entry) error {
	for _, e := range entries {
		if s[e.Name] = e.Value; e.Value == nil {
			delete(s, e.Name)
		}
	}
	return nil
}

func (s shelf) DeleteEntries(_ context.Context, prefix string) error {
	maps.DeleteFunc(s, func(name string, _ []byte) bool { return strings.HasPrefix(name, prefix) })
	return nil
}

// logbook is an audit log that may be full.
type logbook struct {
	lines []string
	full  error
}

func (l *logbook) Begin(e audit.Entry) (func(string, int64), error) {
	if l.full != nil {
		return nil, l.full
	}
	l.lines = append(l.lines, strings.Join([]string{e.Who, e.Did, e.On, "begun"}, " "))
	return func(outcome string, _ int64) { l.lines = append(l.lines, e.Did+" "+outcome) }, nil
}

var root = Caller{Name: "root", How: "rabbitmq", Role: Admin}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := shelf{}, &logbook{}
		tokens := NewTokens(s, log)
		g := NewGuard(Config{Required: true, Tokens: tokens, Log: quiet})
		secret, made, err := tokens.Create(t.Context(), root, NewToken{Name: "ci", Role: "operator", Queues: []string{"orders.*"}, Lasts: time.Hour})
		if err != nil || made.By != "root" || made.Role != "operator" || len(secret) != len("redrive_")+43 {
			t.Fatal(secret, made, err)
		}
		for name, value := range s {
			if strings.Contains(name+string(value), secret[8:]) {
				t.Error("the token itself is kept")
			}
		}
		c, err := g.byToken(t.Context(), secret)
		if err != nil || c.Name != "ci" || c.How != "token" || c.Role != Operator || !c.Sees("orders.eu") || c.Sees("mail") {
			t.Fatal(c, err)
		}
		for _, wrong := range []string{"", "redrive_", secret[:len(secret)-1], secret + "x", strings.ToUpper(secret), nameOf(secret), strings.TrimPrefix(nameOf(secret), "token/")} {
			expect.Err(t, errOf(g.byToken(t.Context(), wrong)), ErrSignIn, "with %q", wrong)
		}
		if _, _, err := tokens.Create(t.Context(), root, NewToken{Name: "ci", Role: "viewer"}); !errors.Is(err, ErrTaken) {
			t.Errorf("a second of the name: %v", err)
		}
		forever, _, err := tokens.Create(t.Context(), root, NewToken{Name: "all", Role: "viewer"})
		must(t, err)
		if all, err := tokens.List(t.Context(), root); err != nil || len(all) != 2 || all[0].Name != "all" || all[0].Expires != nil || all[1].Expires == nil {
			t.Error(all, err)
		}
		time.Sleep(time.Hour - 1)
		expect.Err(t, errOf(g.byToken(t.Context(), secret)), nil, "just before it expires")
		time.Sleep(time.Nanosecond)
		if _, err := g.byToken(t.Context(), secret); !errors.Is(err, ErrSignIn) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("expired: %v", err)
		}
		must(t, tokens.Revoke(t.Context(), root, "all"))
		expect.Err(t, errOf(g.byToken(t.Context(), forever)), ErrSignIn, "revoked")
		expect.Err(t, tokens.Revoke(t.Context(), root, "all"), ErrNoToken, "revoked twice")
		want := "root token.create ci (operator) begun|token.create done|root token.create all (viewer) begun|token.create done|root token.revoke all (viewer) begun|token.revoke done"
		expect.Equal(t, strings.Join(log.lines, "|"), want, "the audit log has")
	})
}

func TestWhoMayMakeTokens(t *testing.T) {
	some := Caller{Name: "sue", Role: Admin, Queues: []string{"orders.*", "mail"}}
	full := errors.New("no space left")
	for name, c := range map[string]struct {
		caller Caller
		token  NewToken
		full   error
		err    error
	}{
		"nobody":                       {Caller{}, NewToken{Name: "x", Role: "viewer"}, nil, ErrSignIn},
		"an editor":                    {Caller{Name: "ed", Role: Editor}, NewToken{Name: "x", Role: "viewer"}, nil, ErrForbidden},
		"read-only":                    {Caller{Name: "root", Role: Admin, ReadOnly: true}, NewToken{Name: "x", Role: "viewer"}, nil, ErrReadOnly},
		"no role":                      {root, NewToken{Name: "x"}, nil, ErrInvalid},
		"a role that is none":          {root, NewToken{Name: "x", Role: "nobody"}, nil, ErrInvalid},
		"no name":                      {root, NewToken{Role: "viewer"}, nil, ErrInvalid},
		"a name to confuse":            {root, NewToken{Name: "a\u202eb", Role: "viewer"}, nil, ErrInvalid},
		"expired":                      {root, NewToken{Name: "x", Role: "viewer", Lasts: -1}, nil, ErrInvalid},
		"no queues at all":             {root, NewToken{Name: "x", Role: "viewer", Queues: []string{}}, nil, ErrInvalid},
		"without an audit log":         {root, NewToken{Name: "x", Role: "viewer"}, full, full},
		"of all, by one of some":       {some, NewToken{Name: "x", Role: "viewer"}, nil, nil},
		"of its own pattern":           {some, NewToken{Name: "x", Role: "viewer", Queues: []string{"orders.*"}}, nil, nil},
		"of a queue of its own":        {some, NewToken{Name: "x", Role: "viewer", Queues: []string{"orders.eu", "mail"}}, nil, nil},
		"of another's queue":           {some, NewToken{Name: "x", Role: "viewer", Queues: []string{"mail", "bills"}}, nil, ErrForbidden},
		"of a pattern its own matches": {some, NewToken{Name: "x", Role: "viewer", Queues: []string{"orders.?*"}}, nil, ErrForbidden},
		"of everything":                {some, NewToken{Name: "x", Role: "viewer", Queues: []string{"*"}}, nil, ErrForbidden},
	} {
		s := shelf{}
		_, made, err := NewTokens(s, &logbook{full: c.full}).Create(t.Context(), c.caller, c.token)
		if !errors.Is(err, c.err) || (err == nil) != (len(s) == 1) {
			t.Errorf("%s: %v, want %v; %d are kept", name, err, c.err, len(s))
		}
		if err == nil && made.Queues == nil {
			t.Errorf("%s: it has all queues", name)
		}
	}
	tokens := NewTokens(shelf{}, &logbook{})
	if _, err := tokens.List(t.Context(), Caller{Name: "ed", Role: Editor}); !errors.Is(err, ErrForbidden) {
		t.Error(err)
	}
	if _, err := tokens.List(t.Context(), Caller{Name: "root", Role: Admin, ReadOnly: true}); err != nil {
		t.Error("a list changes nothing, and is refused read-only:", err)
	}
	if err := tokens.Revoke(t.Context(), Caller{Name: "ed", Role: Editor}, "x"); !errors.Is(err, ErrForbidden) {
		t.Error(err)
	}
}

// Who is limited to some queues neither sees nor ends tokens for others.
func TestTokensOfOthersQueues(t *testing.T) {
	tokens := NewTokens(shelf{}, &logbook{})
	some := Caller{Name: "sue", Role: Admin, Queues: []string{"orders.*", "mail"}}
	for name, queues := range map[string][]string{"all": nil, "others": {"mail", "bills"}, "wider": {"*"}, "same": {"orders.*"}, "less": {"orders.eu", "mail"}} {
		if _, _, err := tokens.Create(t.Context(), root, NewToken{Name: name, Role: "viewer", Queues: queues}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := tokens.List(t.Context(), some)
	if err != nil || len(all) != 2 || all[0].Name != "less" || all[1].Name != "same" {
		t.Errorf("%+v, %v", all, err)
	}
	for name, mine := range map[string]bool{"all": false, "others": false, "wider": false, "same": true, "less": true} {
		if err := tokens.Revoke(t.Context(), some, name); mine && err != nil || !mine && !errors.Is(err, ErrNoToken) {
			t.Errorf("revoking %q: %v", name, err)
		}
	}
}

// A session that was begun at one replica is one at all, until it ends at any.
func TestAKeptSessionIsKnownToAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replicas := memstore.NewReplicas()
		a, b := replicas.Join(), replicas.Join()
		ctx := t.Context()
		tokens := NewTokens(a, &logbook{})
		secret, _, err := tokens.Create(ctx, root, NewToken{Name: "ops", Role: "operator"})
		must(t, err)
		guard := func(m *memstore.Member) *Guard {
			return NewGuard(Config{Required: true, Tokens: NewTokens(m, &logbook{}), Sessions: m, Log: quiet})
		}
		at, other := guard(a), guard(b)
		signIn := func() func(*http.Request) {
			w := request(http.HandlerFunc(at.SignIn), "POST", SignInPath, header("Content-Type", "application/json"),
				func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(`{"token":"` + secret + `"}`)) })
			if w.Code != http.StatusNoContent {
				t.Fatalf("signing in: %d %s", w.Code, w.Body)
			}
			cookie := w.Result().Cookies()[0]
			return func(r *http.Request) { r.AddCookie(cookie) }
		}
		asks := func(g *Guard, cookie func(*http.Request)) int {
			return request(g.Handler(says), "GET", "/", cookie).Code
		}
		first := signIn()
		if asks(at, first) != 200 || asks(other, first) != 200 || asks(guard(b), first) != 200 {
			t.Error("a session is not known to all")
		}
		for range 3 {
			time.Sleep(sessionLasts / 3)
			asks(other, first)
		}
		expect.Equal(t, asks(at, first), 401, "one that is used all the while does not end")
		second := signIn()
		time.Sleep(sessionIdle - time.Minute)
		expect.Equal(t, asks(other, second), 200, "it is over before it was idle for long")
		time.Sleep(sessionIdle - time.Minute)
		expect.Equal(t, asks(at, second), 200, "it was used at another replica, and is over")
		request(http.HandlerFunc(other.SignOut), "POST", SignOutPath, second)
		if asks(at, second) != 401 || asks(other, second) != 401 {
			t.Error("who signed out at one is signed in at another")
		}
		third := signIn()
		must(t, tokens.Revoke(ctx, root, "ops"))
		expect.Equal(t, asks(other, third), 401, "a session of a token that was revoked goes on")
		// What is over is deleted, and nothing else.
		secret, _, err = tokens.Create(ctx, root, NewToken{Name: "ops", Role: "operator"})
		must(t, err)
		time.Sleep(sessionLasts)
		fourth := signIn()
		must(t, at.sessions.forget(ctx, time.Now()))
		if n := entries(t, a, sessionPrefix); n != 1 || asks(other, fourth) != 200 {
			t.Errorf("%d entries of sessions are left", n)
		}
	})
}

// A person stays signed in while one service is restarted with its store on disk.
func TestASessionOutlastsARestart(t *testing.T) {
	fs := vfs.NewMem()
	var cookie *http.Cookie
	for run := range 2 {
		kept, err := diskstore.Open("data", diskstore.Options{FS: fs, Log: quiet})
		must(t, err)
		g := NewGuard(Config{Required: true, Sessions: kept, Log: quiet})
		if run == 0 {
			w := httptest.NewRecorder()
			must(t, g.beginSession(w, httptest.NewRequest("POST", SignInPath, nil), session{Caller: root}, ""))
			cookie = w.Result().Cookies()[0]
		}
		w := request(g.Handler(says), "GET", "/", func(r *http.Request) { r.AddCookie(cookie) })
		if w.Code != 200 || !strings.HasPrefix(w.Body.String(), "root rabbitmq admin page") {
			t.Errorf("run %d: %d %s", run, w.Code, w.Body)
		}
		must(t, kept.Close())
	}
}

func entries(t *testing.T, m *memstore.Member, prefix string) (n int) {
	t.Helper()
	err := m.Entries(t.Context(), prefix, "", func(store.Entry) (bool, error) { n++; return true, nil })
	must(t, err)
	return n
}

// stuck is a side table on a full disk: writes block.
type stuck struct {
	store.SideTable
	writes chan struct{}
}

func (s stuck) PutEntries(context.Context, []store.Entry) error {
	s.writes <- struct{}{}
	return nil
}

// While the disk is full a person who is signed in still sees the page.
func TestAFullDiskEndsNoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := shelf{}
		s := sessions{kept: kept}
		id, err := s.begin(t.Context(), session{Caller: root}, "")
		must(t, err)
		time.Sleep(time.Hour)
		full := stuck{kept, make(chan struct{})}
		s.kept = full
		waits := make(chan error)
		go func() { _, _, err := s.get(t.Context(), id); waits <- err }()
		synctest.Wait()
		for range 3 {
			if v, ok, err := s.get(t.Context(), id); !ok || err != nil || v.Caller.Name != "root" {
				t.Errorf("%v %t %v", v.Caller, ok, err)
			}
		}
		<-full.writes // there is room
		must(t, <-waits)
	})
}

// A request that is under way while somebody signs out does not bring the session back.
func TestASessionThatHasEndedIsNotWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.NewReplicas().Join()
		s := sessions{kept: m}
		id, err := s.begin(t.Context(), session{Caller: root}, "")
		must(t, err)
		time.Sleep(time.Hour)
		if _, ok, err := s.get(t.Context(), id); !ok || err != nil {
			t.Fatal(ok, err)
		}
		used, err := m.Entry(t.Context(), sessionName(id)+sessionUsed)
		if err != nil || used == nil {
			t.Fatalf("that it was used is not kept: %v", err)
		}
		must(t, s.stop(t.Context(), id))
		if err := s.use(t.Context(), id, time.Now()); err != nil { // late
			t.Fatal(err)
		}
		if _, ok, _ := s.get(t.Context(), id); ok {
			t.Error("a session that has ended is there again")
		}
	})
}
