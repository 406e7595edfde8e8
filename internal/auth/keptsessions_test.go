package auth

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// A session that was begun at one replica is one at all, until it ends at any.
func TestAKeptSessionIsKnownToAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replicas := memstore.NewReplicas()
		a, b := replicas.Join(), replicas.Join()
		ctx := t.Context()
		tokens := NewTokens(a, &logbook{})
		secret, _, err := tokens.Create(ctx, root, NewToken{Name: "ops", Role: "operator"})
		if err != nil {
			t.Fatal(err)
		}
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
		if asks(at, first) != 401 {
			t.Error("one that is used all the while does not end")
		}
		second := signIn()
		time.Sleep(sessionIdle - time.Minute)
		if asks(other, second) != 200 {
			t.Error("it is over before it was idle for long")
		}
		time.Sleep(sessionIdle - time.Minute)
		if asks(at, second) != 200 {
			t.Error("it was used at another replica, and is over")
		}
		request(http.HandlerFunc(other.SignOut), "POST", SignOutPath, second)
		if asks(at, second) != 401 || asks(other, second) != 401 {
			t.Error("who signed out at one is signed in at another")
		}
		third := signIn()
		if err := tokens.Revoke(ctx, root, "ops"); err != nil {
			t.Fatal(err)
		}
		if asks(other, third) != 401 {
			t.Error("a session of a token that was revoked goes on")
		}
		// What is over is deleted, and nothing else.
		secret, _, err = tokens.Create(ctx, root, NewToken{Name: "ops", Role: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(sessionLasts)
		fourth := signIn()
		if err := at.sessions.forget(ctx, time.Now()); err != nil {
			t.Fatal(err)
		}
		if n := entries(t, a, sessionPrefix); n != 1 || asks(other, fourth) != 200 {
			t.Errorf("%d entries of sessions are left", n)
		}
	})
}

func entries(t *testing.T, m *memstore.Member, prefix string) (n int) {
	t.Helper()
	err := m.Entries(t.Context(), prefix, "", func(store.Entry) (bool, error) { n++; return true, nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A request that is under way while somebody signs out does not bring the session back.
func TestASessionThatHasEndedIsNotWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.NewReplicas().Join()
		s := sessions{kept: m}
		id, err := s.begin(t.Context(), root, "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, ok, err := s.get(t.Context(), id); !ok || err != nil {
			t.Fatal(ok, err)
		}
		used, err := m.Entry(t.Context(), sessionName(id)+sessionUsed)
		if err != nil || used == nil {
			t.Fatalf("that it was used is not kept: %v", err)
		}
		if err := s.stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := s.use(t.Context(), id, time.Now()); err != nil { // late
			t.Fatal(err)
		}
		if _, ok, _ := s.get(t.Context(), id); ok {
			t.Error("a session that has ended is there again")
		}
	})
}
