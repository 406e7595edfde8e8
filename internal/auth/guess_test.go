package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// directory answers as RabbitMQ's: it knows alice, whose password has a colon in it,
// as a directory would, whatever the case of her name.
func directory(t *testing.T) (url string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		if !strings.EqualFold(name, "alice") || password != "s3:cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "tags": []string{"monitoring"}})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// However a name is written, the failures count for the one it is.
func TestNoWayOfWritingANameGivesMoreGuesses(t *testing.T) {
	u, err := usersAt(directory(t), "/", DefaultGrants())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.SignIn(t.Context(), "alice", "s3:cret", "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	// To RabbitMQ that would be alice with the password "s3:cret".
	if _, err := u.SignIn(t.Context(), "alice:s3", "cret", "192.0.2.2"); !errors.Is(err, ErrSignIn) {
		t.Errorf("a name with a colon is a guess that counts for nobody: %v", err)
	}
	if _, err := u.SignIn(t.Context(), strings.Repeat("a", 1000), "x", "192.0.2.2"); !errors.Is(err, ErrSignIn) || len(u.names.buckets) > 1 {
		t.Errorf("a name longer than any is kept: %v", err)
	}
	guesses := 0
	for i := range 40 {
		name := []byte("alice")
		for bit := range name {
			if i>>bit&1 == 1 {
				name[bit] -= 'a' - 'A'
			}
		}
		var many *TooMany
		if _, err := u.SignIn(t.Context(), string(name), "wrong", string(rune('a'+i))); !errors.As(err, &many) {
			guesses++
		}
	}
	if guesses > 32 {
		t.Errorf("%d guesses, by writing the name in so many ways", guesses)
	}
}

// What does not work is written to the log, and not to strangers; and what somebody
// types into the wrong field not even to the log.
func TestWhatStrangersAndTheLogAreTold(t *testing.T) {
	users, err := usersAt("http://monitor:s3cret@127.0.0.1:1", "/", DefaultGrants())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	_, h, secret := guarded(t, Config{Users: users, Log: slog.New(slog.NewTextHandler(&log, nil))})
	basic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	w := request(h, "GET", "/", basic("ann", "pass"))
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "127.0.0.1:1") {
		t.Errorf("a stranger is told where RabbitMQ is: %d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "127.0.0.1:1") || !strings.Contains(log.String(), "user=ann") {
		t.Errorf("the log does not say what is wrong: %s", &log)
	}
	request(h, "GET", "/", basic(secret, "x"))
	request(h, "GET", "/", basic(strings.Repeat("y", 300), "x"))
	if strings.Contains(log.String(), secret) || strings.Contains(log.String(), strings.Repeat("y", 70)) || strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log has %s", &log)
	}
}

// All who come by one proxy have one address.
func TestAnAttackerLocksOutNobodyElseAtTheSameAddress(t *testing.T) {
	u, err := usersAt(directory(t), "/", DefaultGrants())
	if err != nil {
		t.Fatal(err)
	}
	const proxy = "192.0.2.1"
	signIn := func() error {
		clear(u.known) // some minutes later
		_, err := u.SignIn(t.Context(), "alice", "s3:cret", proxy)
		return err
	}
	wrong := func(name string) (refused int) {
		for range 40 {
			var many *TooMany
			if _, err := u.SignIn(t.Context(), name, "wrong", proxy); !errors.As(err, &many) {
				refused++
			}
		}
		return refused
	}
	if n := wrong("bob"); n > 11 {
		t.Errorf("%d guesses at one account from one address", n)
	}
	if err := signIn(); err != nil {
		t.Fatalf("locked out by guesses at another account: %v", err)
	}
	for i := range 30 { // many accounts
		wrong("user" + string(rune('a'+i)))
	}
	if err := signIn(); err != nil {
		t.Errorf("who signed in from there before is locked out: %v", err)
	}
	if n := wrong("another"); n > 1 {
		t.Errorf("%d guesses at one more account, after those at thirty", n)
	}
}

// After a restart, too, guesses at other accounts hold up only those who have never signed
// in from the address.
func TestWhoSignedInBeforeARestartIsNotHeldUpByOthers(t *testing.T) {
	url, kept := directory(t), memstore.New()
	const proxy = "192.0.2.1"
	started := func(s store.SideTable) *Users {
		u, err := usersAt(url, "/", DefaultGrants())
		if err != nil {
			t.Fatal(err)
		}
		if s != nil {
			u.RememberIn(s)
		}
		return u
	}
	if _, err := started(kept).SignIn(t.Context(), "alice", "s3:cret", proxy); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, from string
		kept       store.SideTable
		in         bool
	}{{"alice", proxy, kept, true}, {"ALICE", proxy, kept, true}, {"alice", "192.0.2.2", kept, false}, {"alice", proxy, nil, false}} {
		u := started(c.kept)
		for i := range 150 {
			_, _ = u.SignIn(t.Context(), "user"+strconv.Itoa(i), "wrong", c.from)
		}
		_, err := u.SignIn(t.Context(), c.name, "s3:cret", c.from)
		var many *TooMany
		if in := err == nil; in != c.in || !in && !errors.As(err, &many) {
			t.Errorf("%s from %s, kept %t: %v", c.name, c.from, c.kept != nil, err)
		}
		if _, err := u.SignIn(t.Context(), "bob", "wrong", c.from); !errors.As(err, &many) {
			t.Errorf("an address with too many failures goes on guessing: %v", err)
		}
	}
}

// What is kept of who signed in does not grow for ever.
func TestWhoSignedInLongAgoIsForgotten(t *testing.T) {
	kept := memstore.New()
	old, err := time.Now().Add(-signedInFor - time.Hour).MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.PutEntries(t.Context(), []store.Entry{{Name: signedInName("bob 192.0.2.1"), Value: old}}); err != nil {
		t.Fatal(err)
	}
	u, err := usersAt(directory(t), "/", DefaultGrants())
	if err != nil {
		t.Fatal(err)
	}
	u.RememberIn(kept)
	if _, err := u.SignIn(t.Context(), "alice", "s3:cret", "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	if u.signedInBefore(t.Context(), "bob 192.0.2.1") || !u.signedInBefore(t.Context(), "alice 192.0.2.1") {
		t.Error("it keeps what is old, or not what is new")
	}
}

func TestFailuresAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter{most: 3, every: time.Minute}
		allowed := func(key string) (n int) {
			for l.charge(key) == 0 {
				n++
			}
			return n
		}
		if n := allowed("a"); n != 3 {
			t.Errorf("%d failures at first", n)
		}
		if n := allowed("b"); n != 3 {
			t.Errorf("%d failures for another", n)
		}
		if wait := l.charge("a"); wait != time.Minute {
			t.Errorf("it says to wait %s", wait)
		}
		time.Sleep(30 * time.Second)
		if wait := l.charge("a"); wait != 30*time.Second {
			t.Errorf("after half of it, %s", wait)
		}
		time.Sleep(30 * time.Second)
		if n := allowed("a"); n != 1 {
			t.Errorf("%d failures after a minute", n)
		}
		time.Sleep(time.Hour)
		if n := allowed("a"); n != 3 {
			t.Errorf("%d failures after an hour", n)
		}
		l.refund("a")
		if n := allowed("a"); n != 1 {
			t.Errorf("%d failures after one that was none", n)
		}
	})
}

func TestTheLimiterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter{most: 3, every: time.Minute}
		for i := range 3 * mostBuckets {
			l.charge(strconv.Itoa(i))
		}
		if len(l.buckets) > mostBuckets+1 {
			t.Errorf("%d are kept", len(l.buckets))
		}
		if l.charge("new") == 0 {
			t.Error("who comes when all are full is not limited")
		}
		time.Sleep(time.Hour)
		if l.charge("new") != 0 || len(l.buckets) != 1 {
			t.Errorf("after an hour %d are kept", len(l.buckets))
		}
	})
}
