package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// scene is RabbitMQ and a store as a Watcher sees them, in fake time.
type scene struct {
	t        *testing.T
	settings notify.Settings
	store    store.SideTable
	log      strings.Builder

	mu     sync.Mutex
	queues []Queue
	counts []store.QueueCount
	err    error
	asked  int

	*Watcher
	stop func()
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, settings: notify.DefaultSettings(), store: memstore.New()}
	s.settings.Watch = []string{"*.dlq"}
	time.Sleep(every / 2) // it looks between the full minutes, at which tests change something
	s.start()
	time.Sleep(every / 2)
	return s
}

func (s *scene) start() {
	s.Watcher = New(Options{Settings: func() *notify.Settings { return &s.settings }, Store: s.store, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		Queues: func(context.Context) ([]Queue, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			return slices.Clone(s.queues), s.err
		},
		Counts: func(context.Context) ([]store.QueueCount, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Clone(s.counts), nil
		}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	s.stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(s.stop)
	synctest.Wait()
}

func (s *scene) has(all ...Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = all
}

func (s *scene) keeps(queue string, waiting, parked int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts = slices.DeleteFunc(s.counts, func(c store.QueueCount) bool { return c.Queue == queue })
	if waiting+parked > 0 {
		s.counts = append(s.counts, store.QueueCount{Queue: queue, Waiting: waiting, Parked: parked})
	}
}

func (s *scene) fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// after waits, and compares the conditions of a kind that last long enough; "?" is one of which
// nothing is known.
func (s *scene) after(wait time.Duration, kind notify.Kind, want ...string) {
	s.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	got := []string{}
	for _, c := range s.Conditions() {
		switch {
		case c.Kind != kind:
		case c.Unknown:
			got = append(got, "? "+c.Queue)
		case !time.Now().Before(c.Since.Add(c.After)):
			got = append(got, c.Queue+": "+c.Text)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		s.t.Errorf("%s: %q, want %q", kind, got, want)
	}
}

// A queue that has messages and no consumers for 15 minutes is reported, if it is enrolled or named;
// any other one is somebody's own business.
func TestQueuesWithoutConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		orders, dlq := Queue{Name: "orders", Messages: 3, Enrolled: true}, Queue{Name: "mail.dlq", Messages: 1204}
		consumed, empty, other := Queue{Name: "a.dlq", Messages: 5, Consumers: 1}, Queue{Name: "b.dlq"}, Queue{Name: "other", Messages: 9}
		s.has(orders, dlq, consumed, empty, other)
		s.after(15*time.Minute, notify.NoConsumer)
		s.after(time.Minute, notify.NoConsumer, "mail.dlq: messages in it: 1,204", "orders: messages in it: 3")
		orders.Consumers = 1
		s.has(orders, dlq, consumed, empty, other)
		s.after(time.Minute, notify.NoConsumer, "mail.dlq: messages in it: 1,204")
		orders.Consumers = 0 // for another while
		dlq.Messages = 0
		s.has(orders, dlq, consumed, empty, other)
		s.after(10*time.Minute, notify.NoConsumer)
		s.after(6*time.Minute, notify.NoConsumer, "orders: messages in it: 3")
		s.has()
		s.after(time.Minute, notify.NoConsumer)
		if most := int(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))/time.Minute) + 1; s.asked > most {
			t.Errorf("RabbitMQ was asked %d times, which is more often than once a minute", s.asked)
		}
	})
}

// The dead-letter queue of a former set-up: a few messages an hour, and no pattern matches it.
func TestAForgottenQueueFillsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		n := int64(500)
		grows := func(wait time.Duration, by int64) {
			for range int(wait / time.Hour) {
				n += by
				// old is forgotten; burst got its messages at once; consumed has a consumer; retry passes
				// its messages on.
				s.has(Queue{Name: "old", Messages: n}, Queue{Name: "burst", Messages: 9000}, Queue{Name: "consumed", Messages: n, Consumers: 2}, Queue{Name: "retry", Messages: n, Passes: true})
				time.Sleep(time.Hour)
				synctest.Wait()
			}
		}
		grows(5*time.Hour, 10)
		s.after(0, notify.QueueFilling, "? burst", "? old", "? retry")
		grows(2*time.Hour, 10)
		s.after(0, notify.QueueFilling, "old: 570 messages, 60 more than 6h ago")
		if got := s.Unconsumed(); len(got) != 1 || got[0].Queue != "old" || got[0].Messages != 570 {
			t.Errorf("shown are %v", got)
		}
		grows(2*time.Hour, 0)
		s.after(0, notify.QueueFilling, "old: 570 messages, 40 more than 6h ago")
		grows(2*time.Hour, 0) // it is full, or what dead-letters to it was repaired
		s.after(0, notify.QueueFilling)
		grows(8*time.Hour, 1)
		s.after(0, notify.QueueFilling, "old: 578 messages, 6 more than 6h ago")
		s.has(Queue{Name: "old", Messages: n, Consumers: 1})
		s.after(time.Minute, notify.QueueFilling)
	})
}

// Ten times as many as is usual for the queue are too many, whatever that is.
func TestCountsThatRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		busy, quiet := int64(0), int64(0)
		hours := func(n int, more, fewer int64) {
			for range n {
				busy += more
				s.keeps("busy", 0, busy)
				s.keeps("quiet", quiet, 0)
				time.Sleep(time.Hour)
				quiet = max(0, quiet-fewer)
			}
			synctest.Wait()
		}
		hours(3, 50, 0)
		s.keeps("new", 0, 1000) // of which nothing is known, so early
		s.after(time.Hour, notify.ParkedRising)
		s.keeps("new", 0, 0)
		hours(6, 50, 0)
		s.after(0, notify.ParkedRising)
		hours(1, 450, 0) // nine times as many as usual
		s.after(0, notify.ParkedRising)
		hours(20, 50, 0)
		hours(1, 1200, 0)
		s.after(0, notify.ParkedRising, "busy: 1,200 more in an hour, usually 67")
		hours(1, 50, 0) // over
		s.after(0, notify.ParkedRising)
		quiet = 99 // fewer than notify.rising
		hours(1, 50, 0)
		s.after(0, notify.WaitingRising)
		quiet = 250
		hours(1, 50, 0)
		s.after(0, notify.WaitingRising, "quiet: 151 more in an hour, usually 4")
		// A queue that the store had nothing of before has 0 as usual.
		s.keeps("new", 120, 150)
		s.after(20*time.Minute, notify.WaitingRising, "new: 120 more in an hour, usually 0")
		s.after(0, notify.ParkedRising, "new: 150 more in an hour, usually 0")
	})
}

// A deploy, or another replica that leads, forgets nothing; a service that was away for long begins
// anew.
func TestARestartContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		for n := range int64(8) {
			s.has(Queue{Name: "old.dlq", Messages: 500 + n})
			s.keeps("busy", 0, 10*n)
			time.Sleep(time.Hour)
		}
		s.stop()
		if len(s.Conditions()) > 0 {
			t.Errorf("one that does not run has %v", s.Conditions())
		}
		time.Sleep(5 * time.Minute)
		s.keeps("busy", 0, 500)
		s.start()
		s.after(0, notify.NoConsumer, "old.dlq: messages in it: 507")
		s.after(0, notify.QueueFilling, "old.dlq: 507 messages, 6 more than 6h ago")
		s.after(20*time.Minute, notify.ParkedRising, "busy: 430 more in an hour, usually 9")
		s.stop()
		time.Sleep(3 * time.Hour)
		s.start()
		s.after(0, notify.NoConsumer)
		s.after(0, notify.QueueFilling, "? old.dlq")
		s.after(time.Hour, notify.ParkedRising)
		s.after(0, notify.NoConsumer, "old.dlq: messages in it: 507")
	})
}

// While RabbitMQ does not answer, nothing begins and nothing ends.
func TestRabbitMQDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.has(Queue{Name: "a.dlq", Messages: 5})
		s.after(20*time.Minute, notify.NoConsumer, "a.dlq: messages in it: 5")
		s.has()
		s.fails(errors.New("no route"))
		s.after(10*time.Minute, notify.NoConsumer, "? a.dlq")
		s.fails(nil)
		s.after(time.Minute, notify.NoConsumer)
		if log := s.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "no route") {
			t.Errorf("it was logged:\n%s", log)
		}
	})
}

// Thousands of queues, and names that are made up, cost bounded memory.
func TestManyQueues(t *testing.T) {
	w := New(Options{Settings: func() *notify.Settings { s := notify.DefaultSettings(); return &s }, Store: memstore.New(), Log: slog.New(slog.DiscardHandler)})
	var all []Queue
	var counts []store.QueueCount
	for i := range mostQueues + 10 {
		all = append(all, Queue{Name: fmt.Sprintf("%d.dlq", i), Messages: 12345678, Enrolled: true})
		counts = append(counts, store.QueueCount{Queue: fmt.Sprint("q", i), Waiting: 12345678, Parked: 12345678})
	}
	at := time.Now()
	for range 25 * slotsAnHour {
		at = at.Add(slot)
		w.addQueues(all, at)
		w.addCounts(counts, at)
	}
	if len(w.unconsumed) != mostQueues || len(w.rising) != mostQueues {
		t.Errorf("%d and %d queues are remembered", len(w.unconsumed), len(w.rising))
	}
	if err := w.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	value, err := w.Store.Entry(t.Context(), savedName)
	if err != nil || len(value) > mostQueues*1100 {
		t.Errorf("%d bytes are stored, %v", len(value), err)
	}
}

func BenchmarkFiveThousandQueues(b *testing.B) {
	w := New(Options{Settings: func() *notify.Settings { s := notify.DefaultSettings(); s.Watch = []string{"*.dlq"}; return &s }})
	var all []Queue
	for i := range 5000 {
		all = append(all, Queue{Name: fmt.Sprintf("queue-%d.dlq", i), Messages: int64(i)})
	}
	at := time.Now()
	for b.Loop() {
		at = at.Add(time.Minute)
		w.addQueues(all, at)
		w.Conditions()
	}
}
