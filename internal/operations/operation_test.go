package operations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
)

// parked adds n parked messages of a queue.
func (d *desk) parked(t *testing.T, queue string, n int) []*store.Record {
	t.Helper()
	all := inspecttest.Parked(queue, n)
	d.add(t, all...)
	return all
}

// run runs operations until the function it returns is called.
func (d *desk) run(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.Inspector.Run(ctx) })
	running.Go(func() { d.Runner.Run(ctx) })
	return sync.OnceFunc(func() { cancel(); running.Wait() })
}

func (d *desk) plan(t *testing.T, verb actions.Verb, query string) operations.Plan {
	t.Helper()
	p, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: verb, Query: query})
	must(t, err)
	return p
}

func (d *desk) begin(t *testing.T, p operations.Plan, s operations.Start) {
	t.Helper()
	if _, err := d.Start(ctx, operator, p.ID, s); err != nil {
		t.Fatal(err)
	}
}

func (d *desk) look(t *testing.T, id string) operations.Operation {
	t.Helper()
	o, err := d.Operation(ctx, operator, id)
	must(t, err)
	return o
}

func (d *desk) is(t *testing.T, id, state string, done int64) operations.Operation {
	t.Helper()
	o := d.look(t, id)
	if o.State != state || o.Done != done {
		t.Errorf("it is %s (%s) with %d done, want %s with %d", o.State, o.Why, o.Done, state, done)
	}
	return o
}

// outcomes are all of an operation, read in pages. The first is small, so that each operation has
// several; each further one reads a whole step, of up to 1000.
func (d *desk) outcomes(t *testing.T, id string) (all []actions.Outcome) {
	t.Helper()
	for after, limit := "", 7; ; limit = 300 {
		page, err := d.Outcomes(ctx, operator, id, after, limit)
		must(t, err)
		all = append(all, page.Outcomes...)
		if after = page.After; after == "" {
			return all
		}
	}
}

// waitFor waits for what must happen soon.
func waitFor(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}

// inFakeTime runs a test over the engine in memory.
func inFakeTime(t *testing.T, test func(t *testing.T, d *desk)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		stop := d.run(t)
		defer stop()
		test(t, d)
	})
}

func TestAnOperationKeepsItsRate(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 1000)
		p := d.plan(t, actions.Replay, "queue:orders")
		d.begin(t, p, operations.Start{Rate: 50})
		for s := range 4 {
			time.Sleep(time.Second)
			if n := d.look(t, p.ID).Done; n < int64(50*(s+1)) || n > int64(50*(s+1)+5) {
				t.Errorf("after %d s %d are done", s+1, n)
			}
		}
		if o := d.look(t, p.ID); o.PerSecond < 45 || o.PerSecond > 55 || o.Left == "" {
			t.Errorf("%v a second, %s left", o.PerSecond, o.Left)
		}
		if _, err := d.Order(ctx, operator, p.ID, operations.Pause); err != nil {
			t.Fatal(err)
		}
		before := d.look(t, p.ID).Done
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, operations.Paused, before); !strings.Contains(o.Why, "ann") {
			t.Error(o.Why)
		}
		if _, err := d.Order(ctx, operator, p.ID, operations.Pause); !errors.Is(err, inspect.ErrPrecondition) {
			t.Errorf("paused twice: %v", err)
		}
		if _, err := d.Order(ctx, operator, p.ID, operations.Resume); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n := d.look(t, p.ID).Done - before; n < 100 || n > 106 {
			t.Errorf("in 2 s after the pause %d were done", n)
		}
		if _, err := d.Order(ctx, operator, p.ID, operations.Cancel); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n := d.look(t, p.ID).Done
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, operations.Canceled, n); o.Ended == nil || int64(len(d.outcomes(t, p.ID))) != n {
			t.Errorf("%+v", o)
		}
		if _, err := d.Order(ctx, operator, p.ID, operations.Resume); !errors.Is(err, inspect.ErrPrecondition) {
			t.Errorf("a canceled one was resumed: %v", err)
		}
	})
}

func TestOperationsTakeTurns(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 200)
		d.parked(t, "mail", 20)
		slow, quick := d.plan(t, actions.Replay, "queue:orders"), d.plan(t, actions.Replay, "queue:mail")
		d.begin(t, slow, operations.Start{Rate: 1})
		d.begin(t, quick, operations.Start{Rate: 10})
		time.Sleep(3 * time.Second)
		d.is(t, quick.ID, operations.Finished, 20)
		if n := d.look(t, slow.ID).Done; n < 3 || n > 4 {
			t.Errorf("%d done of the slow one", n)
		}
	})
}

func TestAQueueThatIsGoneStopsTheOperation(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 100)
		p := d.plan(t, actions.Replay, "queue:orders")
		d.begin(t, p, operations.Start{Rate: 1})
		time.Sleep(5 * time.Second)
		d.broker.Set("orders", inspect.AtBroker{})
		time.Sleep(time.Minute)
		o := d.look(t, p.ID)
		if o.State != operations.Stopped || o.Done > 10 || !strings.Contains(o.Why, `"orders" does not exist`) {
			t.Errorf("%s with %d done: %s", o.State, o.Done, o.Why)
		}
		if d.kept(t, all[99].ID.String()).State != store.Parked {
			t.Error("the rest is not as it was")
		}
	})
}

// That a queue did not exist some seconds ago is no answer for one that was declared since.
func TestAQueueThatWasJustDeclaredStopsNothing(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 10)
		p := d.plan(t, actions.Replay, "queue:orders")
		d.broker.Set("orders", inspect.AtBroker{})
		d.LatelyAtBroker(t.Context(), []string{"orders"})
		d.broker.Set("orders", inspect.AtBroker{Exists: true})
		d.begin(t, p, operations.Start{})
		time.Sleep(time.Second)
		if o := d.look(t, p.ID); o.State != operations.Finished || o.Done != 10 {
			t.Errorf("%s with %d done: %s", o.State, o.Done, o.Why)
		}
	})
}

// Without a policy a queue's messages would be parked again.
func TestAQueueWithoutAPolicyIsNotReplayed(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		var gone atomic.Bool
		d.Inspector.Config.Policies = func() policy.Set {
			if gone.Load() {
				return nil
			}
			return policy.Set{{Name: "orders", Queues: []string{"orders"}}}
		}
		d.parked(t, "orders", 100)
		d.parked(t, "mail", 1)
		const why = "no policy allows the queue"
		if p := d.plan(t, actions.Replay, "queue:mail"); len(p.Blocked) != 1 || !strings.Contains(p.Blocked[0], why+` "mail"`) {
			t.Errorf("a replay is blocked by %q", p.Blocked)
		}
		if p := d.plan(t, actions.Discard, "queue:mail"); len(p.Blocked) != 0 {
			t.Errorf("a discard is blocked by %q", p.Blocked)
		}
		p := d.plan(t, actions.Replay, "queue:orders")
		d.begin(t, p, operations.Start{Rate: 1})
		time.Sleep(5 * time.Second)
		gone.Store(true)
		time.Sleep(time.Minute)
		if o := d.look(t, p.ID); o.State != operations.Stopped || o.Done > 10 || !strings.Contains(o.Why, why+` "orders" any more`) {
			t.Errorf("%s with %d done: %s", o.State, o.Done, o.Why)
		}
	})
}

func TestOperationsOfOthersQueuesAreNotSeen(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 2)
		p := d.plan(t, actions.Discard, "queue:orders")
		d.begin(t, p, operations.Start{})
		other := caller(auth.Operator, "mail")
		if all, err := d.Operations(ctx, other); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		for _, err := range []error{
			func() error { _, err := d.Operation(ctx, other, p.ID); return err }(),
			func() error { _, err := d.Order(ctx, other, p.ID, operations.Cancel); return err }(),
			func() error { _, err := d.Outcomes(ctx, other, p.ID, "", 0); return err }(),
		} {
			if !errors.Is(err, inspect.ErrNotFound) {
				t.Errorf("%v", err)
			}
		}
		if all, err := d.Operations(ctx, caller(auth.Viewer)); err != nil || !slices.ContainsFunc(all, func(o operations.Operation) bool { return o.ID == p.ID }) {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// choosy cannot change one message.
type choosy struct {
	store.Store
	bad store.Key
}

func (s choosy) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	if slices.Contains(keys, s.bad) {
		return 0, errors.New("it is damaged")
	}
	return s.Store.Change(ctx, keys, edit, entries)
}

func TestOneMessageThatCannotBeChangedStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		bad := d.parked(t, "orders", 1500)[700]
		kept, err := d.store.Find(ctx, bad.ID)
		must(t, err)
		d = newDesk(choosy{d.store, kept[0].Key})
		stop := d.run(t)
		defer stop()
		p := d.plan(t, actions.Discard, "queue:orders")
		d.begin(t, p, operations.Start{})
		time.Sleep(time.Minute)
		if o := d.is(t, p.ID, operations.Finished, 1499); o.Failed != 1 {
			t.Errorf("%+v", o)
		}
		got := d.outcomes(t, p.ID)
		if o := got[700]; len(got) != 1500 || o.ID != bad.ID.String() || o.Outcome != "failed" || o.Why != "it is damaged" {
			t.Errorf("%d outcomes, that one: %+v", len(got), o)
		}
	})
}

// --read-only beats what was started before.
func TestAReadOnlyServiceGoesOnWithNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		d.parked(t, "orders", 5)
		p := d.plan(t, actions.Discard, "queue:orders")
		d.begin(t, p, operations.Start{})
		d.Inspector.ReadOnly = true
		stop := d.run(t)
		defer stop()
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, operations.Running, 0); !strings.Contains(o.Why, "read-only") {
			t.Error(o.Why)
		}
	})
}

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
		must(t, s.Add(ctx, []*store.Record{record("orders", store.Waiting, "x"), record("mail", store.Waiting, "x")}))
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
