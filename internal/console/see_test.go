package console_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
)

func orders() policy.Policy {
	return policy.Policy{Name: "orders", Queues: []string{"orders*"}, Attempts: 4, Backoff: policy.Exponential(10*time.Second, 2, time.Minute), Jitter: policy.Fraction(0.2)}
}

func TestWhyThatDelay(t *testing.T) {
	s := memstore.New()
	c := console.New(console.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders()} }})
	for i, step := range []struct {
		change func(*store.Record)
		delay  string
		why    []string
	}{
		{func(r *store.Record) {}, "19s", []string{`failure 2 of 4`, `policy "orders" waits 16s to 24s (20s with jitter ±20%)`}},
		{func(r *store.Record) { r.Due = r.FailedAt.Add(time.Hour) }, "1h", []string{"this differs because"}},
		{func(r *store.Record) { r.Attempt = 0 }, "19s", []string{"a person replayed it"}},
		{func(r *store.Record) { r.Policy = "old" }, "19s", []string{`policy "old" decided, which is not in force any more`}},
		{func(r *store.Record) { r.Attempt = 9 }, "19s", []string{"failure 9 of the 4"}},
		{func(r *store.Record) { r.Forward = &store.Destination{Exchange: "x"} }, "", []string{`it goes to exchange "x"`}},
		{func(r *store.Record) { r.State, r.ParkedFor = store.Parked, "tired" }, "", []string{"tired"}},
		{func(r *store.Record) { r.State = store.Discarded }, "", []string{"a person discarded it"}},
	} {
		r := record("orders.eu", store.Waiting, "x")
		r.Policy, r.Attempt, r.FirstFailed, r.Due = "orders", 2, r.FailedAt.Add(-time.Hour), r.FailedAt.Add(19*time.Second)
		step.change(r)
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String())
		if err != nil {
			t.Fatal(err)
		}
		last := m.Timeline[len(m.Timeline)-1]
		if last.Delay != step.delay {
			t.Errorf("%d: waits %q, want %q", i, last.Delay, step.delay)
		}
		for _, why := range step.why {
			if !strings.Contains(last.Why, why) {
				t.Errorf("%d: because %q, not %q", i, last.Why, why)
			}
		}
		if r.Attempt > 1 && (len(m.Timeline) != 2 || m.Timeline[0].Attempt != 1 || !m.Timeline[0].Failed.Equal(r.FirstFailed)) {
			t.Errorf("%d: the first failure is not there: %+v", i, m.Timeline)
		}
	}
}

func TestWhoseHeaders(t *testing.T) {
	s := memstore.New()
	c := console.New(console.Config{Store: s})
	r := record("orders", store.Parked, `{"a":1}`)
	r.Proven = true
	r.Message.Headers = amqp.Table{"x-death": []any{amqp.Table{"queue": "orders", "count": int64(9007199254740993), "raw": []byte{0xff}}},
		"x-first-death-queue": "orders", "x-redrive-attempt": int64(2), "tenant": "a<b>", "none": nil, "when": long}
	r.Message.DeliveryMode, r.Message.Priority, r.Message.Timestamp = 2, 3, long
	forged := record("orders", store.Parked, "")
	forged.Message.Headers = amqp.Table{"x-death": []any{}}
	if err := s.Add(ctx, []*store.Record{r, forged}); err != nil {
		t.Fatal(err)
	}
	m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	want := []console.Header{
		{Name: "none", Type: "void", From: "publisher"},
		{Name: "tenant", Type: "string", Value: "a<b>", From: "publisher"},
		{Name: "when", Type: "timestamp", Value: "2026-01-02T03:04:05Z", From: "publisher"},
		{Name: "x-death", Type: "array", Value: `[{"count":9007199254740993,"queue":"orders","raw":"/w=="}]`, From: "broker"},
		{Name: "x-first-death-queue", Type: "string", Value: "orders", From: "publisher"},
		{Name: "x-redrive-attempt", Type: "int64", Value: "2", From: "redrive"},
	}
	if !slices.Equal(m.Headers, want) {
		t.Errorf("headers are %+v", m.Headers)
	}
	props := []console.Property{{"delivery_mode", "2 (persistent)"}, {"priority", "3"}, {"timestamp", "2026-01-02T03:04:05Z"}}
	if !slices.Equal(m.Properties, props) {
		t.Errorf("properties are %+v", m.Properties)
	}
	if m.Body == nil || m.Body.Format != "json" {
		t.Errorf("the body is %+v", m.Body)
	}
	if m, err = c.Message(ctx, caller(auth.Viewer), forged.ID.String()); err != nil || m.Headers[0].From != "publisher" {
		t.Errorf("without proof x-death is %+v, %v", m.Headers, err)
	}
}

func TestMessagesThatShareAnID(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		a, b, c := record("orders", store.Parked, "a"), record("mail", store.Parked, "b"), record("secret", store.Parked, "c")
		b.ID, c.ID = a.ID, a.ID
		d.add(t, a, b, c)
		by := caller(auth.Viewer, "orders", "mail")
		m, err := d.Message(ctx, by, a.ID.String())
		if err != nil || m.Queue != "orders" || len(m.SameID) != 1 || m.SameID[0].Queue != "mail" {
			t.Fatalf("%+v, %v", m, err)
		}
		m, err = d.Message(ctx, by, m.SameID[0].Key)
		if err != nil || m.Queue != "mail" || len(m.SameID) != 1 || m.SameID[0].Queue != "orders" {
			t.Fatalf("%+v, %v", m, err)
		}
		for _, name := range []string{"", "x", uuid.Nil.String()} {
			if _, err := d.Message(ctx, by, name); !errors.Is(err, console.ErrNotFound) {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}

func TestPolicies(t *testing.T) {
	mail := policy.Policy{Name: "mail", Queues: []string{"mail"}, Attempts: 3, Backoff: policy.List(time.Second, time.Hour), Jitter: policy.None, Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "dead"}}}
	s := memstore.New()
	levels, err := ttlqueue.NewLevels(ttlqueue.Quorum)
	if err != nil {
		t.Fatal(err)
	}
	c := console.New(console.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders(), mail} },
		Way: func(name string) delay.Way {
			if name == "mail" {
				return levels
			}
			return nil
		}})
	all, err := c.Policies(ctx, caller(auth.Viewer))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	o, m := all[0], all[1]
	if want := []console.Wait{{1, "8s", "12s"}, {2, "16s", "24s"}, {3, "32s", "48s"}}; !slices.Equal(o.Waits, want) || o.Wait != retry.Disk || o.Jitter != "±20%" || !slices.Equal(o.Reasons, policy.DefaultReasons) {
		t.Errorf("orders: %+v", o)
	}
	if m.Wait != "levels" || m.Exhausted != `forward to queue "dead"` || m.Waits[0].Least != "1s" || m.Waits[1].Most != "1h" {
		t.Errorf("mail: %+v", m)
	}
	if err := s.Add(ctx, []*store.Record{record("mail", store.Parked, "x")}); err != nil {
		t.Fatal(err)
	}
	if all, err = c.Policies(ctx, caller(auth.Viewer, "mail", "orders.secret")); err != nil || len(all) != 1 || all[0].Name != "mail" {
		t.Errorf("limited: %+v, %v", all, err)
	}
}

// rates are as if the same happened to each queue.
type rates struct{ failed int64 }

func (r *rates) Minute(string, time.Time) console.Flow { return console.Flow{Failed: 2, Returned: 1} }
func (r *rates) Hour(_ time.Time, sees func(string) bool) []console.Flow {
	return make([]console.Flow, 60)
}
func (r *rates) Queues() []string               { return []string{"orders", "quiet"} }
func (r *rates) Failed(func(string) bool) int64 { return r.failed }

// slow answers for some 25 queues a second and asker.
type slow struct{}

func (slow) Queue(ctx context.Context, name string) (console.AtBroker, error) {
	select {
	case <-time.After(40 * time.Millisecond):
		return console.AtBroker{Exists: true}, nil
	case <-ctx.Done():
		return console.AtBroker{}, ctx.Err()
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
		c := console.New(console.Config{Store: s, Broker: slow{}})
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
		c := console.New(console.Config{Store: s, Broker: b})
		running, stop := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- c.Run(running) }()
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
			t.Errorf("RabbitMQ was asked %d times for nobody", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// counting says how often it was asked, as the number of ready messages.
type counting struct {
	mu    sync.Mutex
	times []time.Time
}

func (b *counting) Queue(context.Context, string) (console.AtBroker, error) {
	time.Sleep(100 * time.Millisecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times = append(b.times, time.Now())
	return console.AtBroker{Exists: true, Ready: len(b.times)}, nil
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

func (s *silence) Queue(ctx context.Context, _ string) (console.AtBroker, error) {
	s.asked++
	<-ctx.Done()
	return console.AtBroker{}, ctx.Err()
}

func TestOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		quiet := &silence{}
		c := console.New(console.Config{Store: s, Rates: &rates{}, Broker: quiet, Version: "v1", BrokerAt: func() string { return "amqp://h" }, Problems: func() []string { return []string{"p", "queue orders: gone"} }})
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

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := memstore.New(), &rates{}
		c := console.New(console.Config{Store: s, Rates: r})
		ctx, cancel := context.WithCancel(ctx)
		ticks := c.Watch(ctx, caller(auth.Viewer, "orders"))
		if t0 := <-ticks; t0.Waiting != 0 || t0.Failed != 0 {
			t.Errorf("%+v", t0)
		}
		began := time.Now()
		r.failed = 7
		if err := s.Add(ctx, []*store.Record{record("orders", store.Waiting, "x"), record("mail", store.Waiting, "x")}); err != nil {
			t.Fatal(err)
		}
		if t1 := <-ticks; t1.Waiting != 1 || t1.Failed != 7 || time.Since(began) != time.Second {
			t.Errorf("%+v after %v", t1, time.Since(began))
		}
		time.Sleep(10 * time.Second) // of fake time: nothing is news
		synctest.Wait()
		select {
		case more := <-ticks:
			t.Errorf("%+v", more)
		default:
		}
		cancel()
		if _, open := <-ticks; open {
			t.Error("it goes on")
		}
	})
}

// Who begins to watch learns of what goes on, not of all that ever ended; later, of
// what changes, its end too.
func TestWatchingOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		d.parked(t, "orders", 5)
		stop := d.run(t)
		defer stop()
		old := d.plan(t, console.Discard, "queue:orders attempt:3")
		d.begin(t, old, console.Start{})
		time.Sleep(time.Minute)
		d.parked(t, "mail", 5)
		slow := d.plan(t, console.Discard, "queue:mail")
		d.begin(t, slow, console.Start{Rate: 1})
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ticks := d.Watch(ctx, caller(auth.Viewer))
		for first := true; ; first = false {
			tick := <-ticks
			if first && len(tick.Operations) != 1 {
				t.Fatalf("at first it tells of %+v", tick.Operations)
			}
			for _, o := range tick.Operations {
				if o.ID != slow.ID {
					t.Errorf("it tells of %+v", o)
				}
				if o.State == console.Finished {
					return
				}
			}
		}
	})
}

// book is an audit log of five lines.
type book struct{ *ledger }

func (book) Before(_ context.Context, n int64, visit func(audit.Entry) (bool, error)) error {
	for i := min(n-1, 5); i >= 1; i-- {
		if more, err := visit(audit.Entry{N: i}); err != nil || !more {
			return err
		}
	}
	return nil
}

func TestTheAuditLogAPageAtATime(t *testing.T) {
	c := console.New(console.Config{Store: memstore.New(), Audit: book{&ledger{}}})
	by := caller(auth.Admin)
	by.ReadOnly = true
	var got []int64
	for after := ""; ; {
		page, next, err := c.AuditLog(ctx, by, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			got = append(got, e.N)
		}
		if after = next; after == "" {
			break
		}
	}
	if !slices.Equal(got, []int64{5, 4, 3, 2, 1}) {
		t.Errorf("the lines are %d", got)
	}
}
