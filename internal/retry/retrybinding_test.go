package retry_test

import (
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
	"github.com/redrive-mq/redrive/wire"
)

// slowBinder is a broker that takes long to bind a queue.
type slowBinder struct {
	latency time.Duration
	refuses error // to bind any queue

	mu       sync.Mutex
	bound    map[string]int
	now, top int // bindings at once
	late     map[string]time.Duration
}

func (b *slowBinder) RetryExchangeExists(context.Context, string) (bool, error) { return false, nil }

func (b *slowBinder) BindRetryExchange(ctx context.Context, queue string) error {
	b.mu.Lock()
	b.bound[queue]++
	b.now++
	b.top = max(b.top, b.now)
	latency := b.latency
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.now--; b.mu.Unlock() }()
	select {
	case <-time.After(latency):
		return b.refuses
	case <-ctx.Done():
		return wire.ErrNoAnswer
	}
}

func (b *slowBinder) Send(_ context.Context, out []wire.Outgoing) func(context.Context) []error {
	return func(context.Context) []error { return make([]error, len(out)) }
}

// binding runs a scheduler with that broker over what a test adds.
func binding(t *testing.T, b *slowBinder, test func(s *memstore.Store, reports func() string)) {
	t.Helper()
	b.bound, b.late = map[string]int{}, map[string]time.Duration{}
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := retry.NewSender(b, anyQueue, func(e retry.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.late[e.Queue] = max(b.late[e.Queue], e.Late)
		})
		var mu sync.Mutex
		var reports []string
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(lane store.Lane, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				reports = append(reports, fmt.Sprint(lane, ": ", err))
			}
		})
		g.OnLookupAnswered(scheduler.Wake)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		test(s, func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(reports, "; ")
		})
		cancel()
		running.Wait()
		g.Close()
	})
}

// proven is a due message that RabbitMQ has dead-lettered from its queue.
func proven(queue string) *store.Record {
	r := record(queue, "x", time.Now())
	r.Proven = true
	return r
}

// After a start each queue must be bound once before its first retry. Thousands of them make the
// retries of another one no later.
func TestQueuesThatAreBoundDelayNoOther(t *testing.T) {
	const queues = 1000
	b := &slowBinder{latency: 10 * time.Millisecond}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("one")}))
		time.Sleep(2 * time.Second)
		var all []*store.Record
		for i := range queues {
			all = append(all, proven(fmt.Sprint("work-", i)))
		}
		must(t, s.Add(t.Context(), all))
		b.mu.Lock()
		clear(b.late)
		b.mu.Unlock()
		for range 100 {
			must(t, s.Add(t.Context(), []*store.Record{proven("one")}))
			time.Sleep(20 * time.Millisecond)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.late) != queues+1 || b.late["one"] > 150*time.Millisecond {
			t.Errorf("%d queues were retried to, the other one up to %s late", len(b.late), b.late["one"])
		}
		for queue, late := range b.late {
			if late > 1500*time.Millisecond || b.bound[queue] != 1 {
				t.Errorf("%s was bound %d times, and retried %s late", queue, b.bound[queue], late)
			}
		}
		if b.top != 16 || reports() != "" {
			t.Errorf("%d were bound at once; reported: %s", b.top, reports())
		}
	})
}

// A queue whose binding hangs, as it may in RabbitMQ, stops no other. One that cannot be bound is
// reported with the reason.
func TestABindingThatFailsStopsNoOther(t *testing.T) {
	b := &slowBinder{latency: time.Hour}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("hangs")}))
		time.Sleep(time.Second)
		b.mu.Lock()
		b.latency = time.Millisecond
		b.mu.Unlock()
		must(t, s.Add(t.Context(), []*store.Record{proven("one")}))
		time.Sleep(time.Second)
		b.mu.Lock()
		if late, ok := b.late["one"]; !ok || late > 300*time.Millisecond {
			t.Errorf("another queue was retried: %v, %s late", ok, late)
		}
		b.mu.Unlock()
	})
	b = &slowBinder{latency: 200 * time.Millisecond, refuses: errors.New("RabbitMQ refuses it")}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("refused")}))
		time.Sleep(3 * time.Second)
		if r := reports(); !strings.Contains(r, "refused: ") || !strings.Contains(r, "RabbitMQ refuses it") {
			t.Errorf("reported: %s", r)
		}
	})
	b = &slowBinder{latency: 200 * time.Millisecond, refuses: wire.ErrQueueGone}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("gone")}))
		time.Sleep(3 * time.Second)
		if k := kept(t, s); len(k) != 1 || !strings.Contains(k[0].Record.ParkedFor, "does not exist any more") {
			t.Errorf("kept: %+v", k)
		}
	})
}
