package retry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// faultyStore is a store that fails at something for a while, with other words each time.
type faultyStore struct {
	*memstore.Store
	at       string
	from, to time.Time
	tries    int
}

func (f *faultyStore) fails(at string) error {
	if now := time.Now(); at != f.at || now.Before(f.from) || !now.Before(f.to) {
		return nil
	}
	f.tries++
	return fmt.Errorf("refused for the %dth time", f.tries)
}

func (f *faultyStore) Next(ctx context.Context) ([]store.NextDue, error) {
	next, err := f.Store.Next(ctx)
	return next, errors.Join(err, f.fails("Next"))
}

func (f *faultyStore) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	if err := f.fails("Claim"); err != nil {
		return nil, err
	}
	return f.Store.Claim(ctx, lane, upTo, n, maxBytes)
}

func (f *faultyStore) Finish(ctx context.Context, outcomes []store.Outcome) (int, error) {
	if err := f.fails("Finish"); err != nil {
		return 0, err
	}
	return f.Store.Finish(ctx, outcomes)
}

// A store that fails for a while is logged twice: when that begins, with why, and when
// it works again, with how long it failed. It is tried ever less often, and what was due
// is retried within a second of that, whatever wakes the scheduler meanwhile.
func TestAFailingStoreIsLoggedOnce(t *testing.T) {
	const away = 20 * time.Second
	for _, at := range []string{"Next", "Claim", "Finish"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &faultyStore{Store: memstore.New(), at: at, from: began.Add(time.Second), to: began.Add(time.Second + away)}
				g := &fakeSender{began: began, answer: done, nth: map[string]int{}}
				var log bytes.Buffer
				scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.NewTextHandler(&log, nil)), func(store.Lane, error) {})
				if err := s.Add(t.Context(), []*store.Record{record("q", "a", began.Add(5*time.Second)), record("q", "b", s.to)}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { scheduler.Run(ctx, time.Second) })
				time.Sleep(2 * time.Second)
				for time.Now().Before(s.to) {
					scheduler.Wake()
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Second)
				left, err := storetest.List(t.Context(), s, storetest.Filter{State: store.Waiting})
				if err != nil || len(left.Records) > 0 || len(g.sent) != 2 {
					t.Errorf("a second after it is back %d are left, sent were %v, %v", len(left.Records), g.sent, err)
				}
				cancel()
				running.Wait()
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				if len(lines) != 2 || !strings.Contains(lines[0], "ERROR") || !strings.Contains(lines[0], "the 1th time") ||
					!strings.Contains(lines[1], "INFO") || !strings.Contains(lines[1], "works again\" after=1") && !strings.Contains(lines[1], "works again\" after=2") {
					t.Errorf("the log is %q; want one error and one \"works again\"", lines)
				}
				if s.tries < 15 || s.tries > 25 {
					t.Errorf("it was tried %d times in %s; want 15 to 25", s.tries, away)
				}
			})
		})
	}
}

// A message that a store does not park until the end is parked after the next start, and counted
// then.
func TestNoMessageIsReportedAsParkedThatTheStoreHasNotParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &faultyStore{Store: memstore.New(), at: "Finish", from: began, to: began.Add(time.Hour)}
		g := &fakeSender{began: began, answer: func(string, int) retry.Result { return retry.Result{Park: "gone"} }, nth: map[string]int{}}
		var events []retry.Event
		scheduler := retry.NewScheduler(s, g, open(), func(e retry.Event) { events = append(events, e) }, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		must(t, s.Add(t.Context(), []*store.Record{record("q", "x", began)}))
		run(t, scheduler, time.Minute)
		parked, err := storetest.List(t.Context(), s, storetest.Filter{State: store.Parked})
		must(t, err)
		if len(g.sent) != 1 || len(parked.Records) != 0 || len(events) != 0 {
			t.Errorf("sent %v, parked %d, events %+v", g.sent, len(parked.Records), events)
		}
	})
}
