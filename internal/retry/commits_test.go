package retry_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// ends is a store that notes how many claims each of its commits ends.
type ends struct {
	*memstore.Store
	mu                 sync.Mutex
	finished, released []int
}

func (s *ends) Finish(ctx context.Context, outcomes []store.Outcome) (int, error) {
	s.mu.Lock()
	s.finished = append(s.finished, len(outcomes))
	s.mu.Unlock()
	return s.Store.Finish(ctx, outcomes)
}

func (s *ends) Release(ctx context.Context, claims []store.Claim) error {
	s.mu.Lock()
	s.released = append(s.released, len(claims))
	s.mu.Unlock()
	return s.Store.Release(ctx, claims)
}

// Each commit costs a sync: none is made for nothing.
func TestNoCommitIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &ends{Store: memstore.New()}
		g := &fakeSender{began: time.Now(), nth: map[string]int{}, answer: func(_ string, nth int) retry.Result {
			if nth < 3 {
				return retry.Result{Err: errors.New("full")}
			}
			return retry.Result{Done: true}
		}}
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		must(t, s.Add(t.Context(), []*store.Record{record("q", "x", time.Now())}))
		run(t, scheduler, time.Minute)
		if !slices.Equal(s.finished, []int{1}) || !slices.Equal(s.released, []int{1, 1}) {
			t.Errorf("claims were finished in commits of %v and released in commits of %v, want one, and two of one", s.finished, s.released)
		}
	})
}

// The memory of a large body is freed when it was retried; that costs too much for others.
func TestTheMemoryOfLargeBodiesIsFreed(t *testing.T) {
	const large = 8 << 20
	for name, c := range map[string]struct {
		bodies []int
		want   uint32
	}{"small": {[]int{1, 2}, 0}, "nearly": {[]int{large - 1}, 0}, "large": {[]int{large}, 1}, "large and small": {[]int{1, large, 1}, 1}} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sent, left, _ := play(t, time.Minute, done, func(now time.Time) (all []*store.Record) {
				for _, n := range c.bodies {
					all = append(all, record("q", strings.Repeat("b", n), now.Add(time.Second)))
				}
				return all
			})
			runtime.ReadMemStats(&after)
			if n := after.NumForcedGC - before.NumForcedGC; n != c.want || len(sent) != len(c.bodies) || left != 0 {
				t.Errorf("memory was freed %d times, want %d; %d were sent, %d are left", n, c.want, len(sent), left)
			}
		})
	}
}

// What a store keeps of a batch before it is full keeps the event of its own message.
func TestEachMessageOfABatchInPartsHasItsEvent(t *testing.T) {
	s := &smallStore{memstore.New(), 2, 3}
	var events []retry.Event
	f := retry.NewIntake(s, retry.Rules{Policies: anyQueue()}, nil, func(e retry.Event) { events = append(events, e) })
	names := []string{"a", "b", "c", "d", "e"}
	var batch []wire.Delivery
	for _, queue := range names {
		batch = append(batch, deadLetter(queue, "x"))
	}
	if err := f.Handle(t.Context(), batch); !errors.Is(err, store.ErrFull) {
		t.Fatalf("%v; want it to be full", err)
	}
	s.inAll = 10
	must(t, f.Handle(t.Context(), batch))
	var failed, waiting []string
	for _, e := range events {
		if e.Kind == retry.Failed {
			failed = append(failed, e.Queue)
		} else if e.Kind == retry.Waiting {
			waiting = append(waiting, e.Queue)
		}
	}
	if !slices.Equal(failed, names) || !slices.Equal(waiting, names) {
		t.Errorf("%q failed and %q wait, want each of %q once", failed, waiting, names)
	}
}

func TestABatchMayBeEmpty(t *testing.T) {
	s := memstore.New()
	must(t, newIntake(s).Handle(t.Context(), nil))
	must(t, retry.NewParkedIntake(s, nil, func(retry.Event) {}).Handle(t.Context(), nil))
	if n := len(kept(t, s)); n != 0 {
		t.Errorf("%d are kept of nothing", n)
	}
}

// emptyLane is a store that has something due, and by the time it is claimed has it no more.
type emptyLane struct {
	*memstore.Store
	queue string
}

func (s *emptyLane) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	if lane.Queue == s.queue {
		return nil, nil
	}
	return s.Store.Claim(ctx, lane, upTo, n, maxBytes)
}

// What a person discards, or another replica claims, just before it is claimed here delays no
// other queue.
func TestAQueueWithNothingToClaimDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &emptyLane{memstore.New(), "first"}
		g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		now := time.Now()
		must(t, s.Add(t.Context(), []*store.Record{record("first", "a", now.Add(time.Second)), record("second", "b", now.Add(time.Second+time.Millisecond))}))
		run(t, scheduler, 10*time.Second)
		if !slices.Equal(g.sent, []string{"b 1.001s"}) {
			t.Errorf("sent %q", g.sent)
		}
	})
}
