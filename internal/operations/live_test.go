package operations_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := memstore.New(), &activity{}
		in := inspect.New(inspect.Config{Store: s, Activity: r})
		w := operations.New(operations.Config{Inspect: in, Store: s})
		if _, open := <-w.Watch(ctx, auth.Caller{}); open {
			t.Error("a caller without a role may watch")
		}
		ctx, cancel := context.WithCancel(ctx)
		ticks := w.Watch(ctx, caller(auth.Viewer, "orders"))
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
		old := d.plan(t, actions.Discard, "queue:orders attempt:3")
		d.begin(t, old, operations.Start{})
		time.Sleep(time.Minute)
		d.parked(t, "mail", 5)
		slow := d.plan(t, actions.Discard, "queue:mail")
		d.begin(t, slow, operations.Start{Rate: 1})
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
				if o.State == operations.Finished {
					return
				}
			}
		}
	})
}

// activity counts what failed.
type activity struct{ failed int64 }

func (r *activity) Minute(string, time.Time) inspect.Flow            { return inspect.Flow{Failed: 2, Retried: 1} }
func (r *activity) Hour(time.Time, func(string) bool) []inspect.Flow { return make([]inspect.Flow, 60) }
func (r *activity) Queues() []string                                 { return []string{"orders", "quiet"} }
func (r *activity) Failed(func(string) bool) int64                   { return r.failed }
