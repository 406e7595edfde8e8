package console_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
