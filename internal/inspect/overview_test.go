package inspect_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// activity is as if the same happened to each queue.
type activity struct{ failed int64 }

func (r *activity) Minute(string, time.Time) inspect.Flow { return inspect.Flow{Failed: 2, Retried: 1} }

func (r *activity) Hour(_ time.Time, sees func(string) bool) []inspect.Flow {
	return make([]inspect.Flow, 60)
}

func (r *activity) Queues() []string { return []string{"orders", "quiet"} }

func (r *activity) Failed(func(string) bool) int64 { return r.failed }

// slow answers for some 25 queues a second and asker.
type slow struct{}

func (slow) Queue(ctx context.Context, name string) (inspect.AtBroker, error) {
	select {
	case <-time.After(40 * time.Millisecond):
		return inspect.AtBroker{Exists: true}, nil
	case <-ctx.Done():
		return inspect.AtBroker{}, ctx.Err()
	}
}

// Of very many queues some are asked about each time, and the page never waits.
func TestManyQueuesOfASlowRabbitMQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		for i := range 150 {
			if err := s.Add(ctx, []*store.Record{record(fmt.Sprintf("q%03d", i), store.Parked, "x")}); err != nil {
				t.Fatal(err)
			}
		}
		c := inspect.New(inspect.Config{Store: s, Broker: slow{}})
		for round, want := range []int{96, 150} {
			began := time.Now()
			all, _, err := c.Queues(ctx, caller(auth.Viewer), "", 0)
			if err != nil || time.Since(began) > time.Second {
				t.Fatal(time.Since(began), err)
			}
			known := 0
			for _, q := range all {
				if q.Broker != nil {
					known++
				}
			}
			if known < want {
				t.Errorf("round %d: %d queues are known", round, known)
			}
		}
	})
}

// Who goes on looking never waits for RabbitMQ, and learns nothing old; no one asks
// it for those who have gone.
func TestWhoLooksOnDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(), &counting{}
		if err := s.Add(ctx, []*store.Record{record("orders", store.Parked, "x")}); err != nil {
			t.Fatal(err)
		}
		c := inspect.New(inspect.Config{Store: s, Broker: b})
		running, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(running) }()
		for i := range 20 {
			began := time.Now()
			all, _, err := c.Queues(ctx, caller(auth.Viewer), "", 0)
			if err != nil || all[0].Broker == nil {
				t.Fatal(all, err)
			}
			if waited := time.Since(began); i > 0 && waited > 0 {
				t.Errorf("look %d waited for %v", i, waited)
			}
			if old := b.since(all[0].Broker.Ready); old > 8*time.Second {
				t.Errorf("look %d was told what RabbitMQ said %v ago", i, old)
			}
			time.Sleep(3 * time.Second)
		}
		time.Sleep(time.Minute)
		before := b.asked()
		time.Sleep(time.Minute)
		if n := b.asked() - before; n != 0 {
			t.Errorf("RabbitMQ was asked %d times, although nothing needed the answer", n)
		}
		stop()
		<-ended
	})
}

// counting says how often it was asked, as the number of ready messages.
type counting struct {
	mu    sync.Mutex
	times []time.Time
}

func (b *counting) Queue(context.Context, string) (inspect.AtBroker, error) {
	time.Sleep(100 * time.Millisecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times = append(b.times, time.Now())
	return inspect.AtBroker{Exists: true, Ready: len(b.times)}, nil
}

func (b *counting) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.times)
}

// since is how long ago it gave its nth answer.
func (b *counting) since(nth int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.times[nth-1])
}

// silence is a RabbitMQ that does not answer.
type silence struct{ asked int }

func (s *silence) Queue(ctx context.Context, _ string) (inspect.AtBroker, error) {
	s.asked++
	<-ctx.Done()
	return inspect.AtBroker{}, ctx.Err()
}

func TestOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		quiet := &silence{}
		c := inspect.New(inspect.Config{Store: s, Activity: &activity{}, Broker: quiet, Version: "v1", BrokerURL: func() string { return "amqp://h" }, Problems: func() []string { return []string{"p", "queue orders: gone"} }})
		now := time.Now()
		for i := range 3 {
			r := record("orders", store.Waiting, "x")
			r.FailedAt, r.Due = now.Add(-time.Minute), now.Add(time.Duration(i)*time.Hour-time.Second)
			if err := s.Add(ctx, []*store.Record{r, record("mail", store.Parked, "y")}); err != nil {
				t.Fatal(err)
			}
		}
		o, err := c.Overview(ctx, caller(auth.Viewer))
		if err != nil {
			t.Fatal(err)
		}
		if o.Waiting != 3 || o.Parked != 3 || o.Oldest == nil || !o.Oldest.Equal(now.Add(-time.Minute)) || o.PerMinute.Failed != 4 || len(o.Hour) != 60 || o.Problems[0] != "p" {
			t.Errorf("%+v", o)
		}
		names := []string{}
		for _, q := range o.Queues {
			names = append(names, q.Name)
		}
		if !slices.Equal(names, []string{"mail", "orders", "quiet"}) || o.Queues[0].Broker != nil {
			t.Errorf("queues %+v", o.Queues)
		}
		var due int64
		for i, s := range o.Calendar {
			due += s.Count
			if i > 0 && !s.From.Equal(o.Calendar[i-1].To) {
				t.Errorf("slot %d begins at %v", i, s.From)
			}
		}
		if due != 3 || o.Calendar[0].Count == 0 {
			t.Errorf("%d are due: %+v", due, o.Calendar)
		}
		if waited := time.Since(now); waited != time.Second {
			t.Errorf("it waited %v for RabbitMQ", waited)
		}
		if o, err := c.Overview(ctx, caller(auth.Viewer, "mail")); err != nil || len(o.Problems) != 1 || o.Waiting != 0 || o.PerMinute.Failed != 0 {
			t.Errorf("to others: %+v, %v", o, err)
		}
		// That RabbitMQ is silent is remembered for a while.
		asked := quiet.asked
		if _, _, err := c.Queues(ctx, caller(auth.Viewer), "", 0); err != nil || quiet.asked != asked || time.Since(now) != time.Second {
			t.Errorf("asked again: %d times, %v after, %v", quiet.asked-asked, time.Since(now), err)
		}
	})
}

// The list of very many queues has each name once, a page at a time, whatever it is made of.
func TestQueuesArePaged(t *testing.T) {
	s := memstore.New()
	names := []string{"", "\xbe\xff"}
	for i := range 2*inspect.MostQueues + 300 {
		names = append(names, fmt.Sprintf("invented.%05d", i))
	}
	var all []*store.Record
	for _, name := range names {
		all = append(all, record(name, store.Parked, "x"))
	}
	if err := s.Add(ctx, all); err != nil {
		t.Fatal(err)
	}
	d := newDesk(s)
	for _, limit := range []int{0, 1, 700} {
		seen, after := map[string]int{}, ""
		for pages := 0; pages == 0 || after != ""; pages++ {
			page, next, err := d.Queues(ctx, caller(auth.Viewer), after, limit)
			if after = next; err != nil {
				t.Fatal(err)
			}
			for _, q := range page {
				seen[q.Name]++
			}
			if limit == 1 && pages == 5 {
				break
			}
			if most := max(limit, 1); limit > 0 && len(page) > most || len(page) > inspect.MostQueues {
				t.Fatalf("a page of %d has %d", limit, len(page))
			}
		}
		if want := len(names); limit != 1 && len(seen) != want || limit == 1 && len(seen) != 6 {
			t.Errorf("in pages of %d there are %d names of %d", limit, len(seen), want)
		}
		for name, n := range seen {
			if n != 1 {
				t.Errorf("%q is on %d pages", name, n)
			}
		}
	}
	if _, _, err := d.Queues(ctx, caller(auth.Viewer), "!", 0); err == nil {
		t.Error("a page that none ends with was given")
	}
}
