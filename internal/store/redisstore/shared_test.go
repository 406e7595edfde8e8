package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

func ids(all []store.Replica) (s string) {
	for _, r := range all {
		s += r.ID + "=" + string(r.About) + " "
	}
	return s
}

func TestReplicasAreAliveUntilTheirTimeIsOver(t *testing.T) {
	server := start(t, "")
	a, b := openAt(t, server.options()), openAt(t, server.options())
	beat := func(s store.Shared, id string, ttl time.Duration) string {
		t.Helper()
		all, err := s.Beat(ctx, id, []byte("about "+id), ttl)
		if err != nil {
			t.Fatal(err)
		}
		return ids(all)
	}
	beat(b, "b", time.Hour)
	if got := beat(a, "a", time.Hour); got != "a=about a b=about b " {
		t.Errorf("alive: %s", got)
	}
	if err := b.Leave(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if got := beat(a, "a", time.Hour); got != "a=about a " {
		t.Errorf("alive when one has left: %s", got)
	}
	beat(b, "b", time.Millisecond)
	for began := time.Now(); beat(a, "a", time.Hour) != "a=about a "; {
		if time.Since(began) > time.Minute {
			t.Fatal("b is alive after its time")
		}
	}
}

func TestOneLeads(t *testing.T) {
	server := start(t, "")
	s := openAt(t, server.options())
	lead := func(what, replica string, ttl time.Duration) string {
		t.Helper()
		term, leads, err := s.Lead(ctx, what, replica, ttl)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(term, leads)
	}
	for _, c := range []struct{ replica, want string }{{"a", "1 true"}, {"a", "1 true"}, {"b", "1 false"}, {"a", "1 true"}} {
		if got := lead("x", c.replica, time.Hour); got != c.want {
			t.Errorf("%s: %s, want %s", c.replica, got, c.want)
		}
	}
	if got := lead("y", "b", time.Hour); got != "1 true" {
		t.Errorf("of something else: %s", got)
	}
	if err := s.Resign(ctx, "x", "b"); err != nil {
		t.Fatal(err)
	}
	if got := lead("x", "b", time.Hour); got != "1 false" {
		t.Errorf("when one who did not lead resigned: %s", got)
	}
	if err := s.Resign(ctx, "x", "a"); err != nil {
		t.Fatal(err)
	}
	// It may have to ask twice, and a term so short be over in between.
	term, leads, err := s.Lead(ctx, "x", "b", time.Millisecond)
	if err != nil || term < 2 || !leads {
		t.Errorf("when a resigned: %d %t, %v", term, leads, err)
	}
	for began := time.Now(); lead("x", "a", time.Hour) != fmt.Sprint(term+1, true); {
		if time.Since(began) > time.Minute {
			t.Fatal("b leads after its time")
		}
	}
}

// What one sends, others receive in order; one that may have missed something learns so.
func TestAnnouncementsReachListeners(t *testing.T) {
	server := start(t, "")
	a, b := openAt(t, server.options()), openAt(t, server.options())
	var mu sync.Mutex
	var received []string
	ended := make(chan error, 1)
	listening, stop := context.WithCancel(ctx)
	listen := func() {
		ended <- b.Listen(listening, "topic", func(message []byte) {
			mu.Lock()
			defer mu.Unlock()
			received = append(received, string(message))
		})
	}
	last := func(want string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			if err := a.Send(ctx, "topic", []byte(want)); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			is := len(received) > 0 && received[len(received)-1] == want
			mu.Unlock()
			if is {
				return
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("%s was not received", want)
			}
		}
	}
	go listen()
	last("first")
	mu.Lock()
	received = nil
	mu.Unlock()
	for i := range 100 {
		if err := errors.Join(a.Send(ctx, "topic", fmt.Appendf(nil, "%d\x00\xff", i)), a.Send(ctx, "other", []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	last("end")
	mu.Lock()
	n := 0
	for _, message := range received {
		if message == fmt.Sprintf("%d\x00\xff", n) {
			n++
		} else if message != "first" && message != "end" {
			t.Errorf("received %q when it was the turn of %d", message, n)
		}
	}
	if n != 100 {
		t.Errorf("received %d of 100", n)
	}
	mu.Unlock()
	server.do(t, "CLIENT", "KILL", "TYPE", "pubsub")
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("when its connection was cut: %v", err)
	}
	go listen()
	last("again")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("when ctx ended: %v", err)
	}
	listening, stop = context.WithCancel(ctx)
	defer stop()
	go listen()
	last("and again")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, store.ErrClosed) {
		t.Errorf("when the store closed: %v", err)
	}
}
