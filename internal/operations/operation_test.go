package operations_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx      = context.Background()
	caller   = inspecttest.Caller
	operator = caller(auth.Operator)
	record   = inspecttest.Record
	openDisk = inspecttest.OpenDisk
	long     = inspecttest.Long
)

// desk is a Runner with all that it needs, over an engine.
type desk struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
	store  store.Store
	audit  *inspecttest.AuditLog
	broker *inspecttest.Queues
}

func (d *desk) Act(ctx context.Context, by auth.Caller, act actions.Act) (actions.Acted, error) {
	return d.Runner.Act(ctx, by, act)
}

func newDesk(s store.Store) *desk {
	d := &desk{store: s, audit: &inspecttest.AuditLog{}, broker: inspecttest.NewQueues()}
	d.Inspector = inspect.New(inspect.Config{Store: s, Broker: d.broker, Policies: inspecttest.Everything})
	d.Actions = actions.New(actions.Config{Inspect: d.Inspector, Store: s, Audit: d.audit, Restorable: time.Hour})
	d.Runner = operations.New(operations.Config{Inspect: d.Inspector, Actions: d.Actions, Store: s})
	return d
}

// each runs a test over both engines.
func each(t *testing.T, test func(t *testing.T, d *desk)) {
	inspecttest.Stores(t, func(t *testing.T, s store.Store) { test(t, newDesk(s)) })
}

func (d *desk) add(t *testing.T, records ...*store.Record) {
	t.Helper()
	inspecttest.Add(t, d.store, records...)
}

func (d *desk) kept(t *testing.T, id string) *store.Record {
	t.Helper()
	return inspecttest.Kept(t, d.store, id)
}

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
	return d.planAs(t, operator, operations.PlanRequest{Verb: verb, Query: query})
}

func (d *desk) planAs(t *testing.T, by auth.Caller, r operations.PlanRequest) operations.Plan {
	t.Helper()
	p, err := d.Plan(ctx, by, r)
	must(t, err)
	return p
}

// started plans an operation, and starts it.
func (d *desk) started(t *testing.T, verb actions.Verb, query string, s operations.Start) operations.Plan {
	t.Helper()
	p := d.plan(t, verb, query)
	d.begin(t, p, s)
	return p
}

func (d *desk) begin(t *testing.T, p operations.Plan, s operations.Start) {
	t.Helper()
	must(t, errOf(d.Start(ctx, operator, p.ID, s)))
}

func (d *desk) look(t *testing.T, id string) operations.Operation {
	t.Helper()
	o, err := d.Operation(ctx, operator, id)
	must(t, err)
	return o
}

// is checks an operation's state, how many are done, and what its Why says.
func (d *desk) is(t *testing.T, id, state string, done int64, why ...string) operations.Operation {
	t.Helper()
	o := d.look(t, id)
	if o.State != state || o.Done != done || len(why) > 0 && !strings.Contains(o.Why, why[0]) {
		t.Errorf("it is %s (%s) with %d done, want %s %q with %d", o.State, o.Why, o.Done, state, why, done)
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
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{Rate: 50})
		for s := range 4 {
			time.Sleep(time.Second)
			if n := d.look(t, p.ID).Done; n < int64(50*(s+1)) || n > int64(50*(s+1)+5) {
				t.Errorf("after %d s %d are done", s+1, n)
			}
		}
		if o := d.look(t, p.ID); o.PerSecond < 45 || o.PerSecond > 55 || o.Left == "" {
			t.Errorf("%v a second, %s left", o.PerSecond, o.Left)
		}
		must(t, errOf(d.Order(ctx, operator, p.ID, operations.Pause)))
		before := d.look(t, p.ID).Done
		time.Sleep(time.Hour)
		d.is(t, p.ID, operations.Paused, before, "ann")
		if err := errOf(d.Order(ctx, operator, p.ID, operations.Pause)); !errors.Is(err, inspect.ErrPrecondition) || !strings.Contains(err.Error(), "it is paused: paused by "+operator.Name) {
			t.Errorf("paused twice: %v", err)
		}
		must(t, errOf(d.Order(ctx, operator, p.ID, operations.Resume)))
		time.Sleep(2 * time.Second)
		if n := d.look(t, p.ID).Done - before; n < 100 || n > 106 {
			t.Errorf("in 2 s after the pause %d were done", n)
		}
		must(t, errOf(d.Order(ctx, operator, p.ID, operations.Cancel)))
		synctest.Wait()
		n := d.look(t, p.ID).Done
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, operations.Canceled, n); o.Ended == nil || int64(len(d.outcomes(t, p.ID))) != n {
			t.Errorf("%+v", o)
		}
		expect.Err(t, errOf(d.Order(ctx, operator, p.ID, operations.Resume)), inspect.ErrPrecondition,
			"a canceled one was resumed")
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

// An operation stops where its messages would be lost, or parked again for lack of a policy,
// and leaves the rest as it was.
func TestAQueueThatIsGoneStopsTheOperation(t *testing.T) {
	for why, goes := range map[string]func(*desk, *atomic.Bool){
		`"orders" does not exist`:                      func(d *desk, _ *atomic.Bool) { d.broker.Set("orders", inspect.AtBroker{}) },
		`no policy allows the queue "orders" any more`: func(_ *desk, gone *atomic.Bool) { gone.Store(true) },
	} {
		inFakeTime(t, func(t *testing.T, d *desk) {
			var gone atomic.Bool
			d.Inspector.Config.Policies = func() policy.Set {
				if gone.Load() {
					return nil
				}
				return policy.Set{{Name: "orders", Queues: []string{"orders"}}}
			}
			all := d.parked(t, "orders", 100)
			p := d.started(t, actions.Replay, "queue:orders", operations.Start{Rate: 1})
			time.Sleep(5 * time.Second)
			goes(d, &gone)
			time.Sleep(time.Minute)
			if o := d.look(t, p.ID); o.State != operations.Stopped || o.Done > 10 || !strings.Contains(o.Why, why) {
				t.Errorf("%s with %d done: %s, want %s", o.State, o.Done, o.Why, why)
			}
			if d.kept(t, all[99].ID.String()).State != store.Parked {
				t.Error("the rest is not as it was")
			}
		})
	}
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

func TestAQueueWithoutAPolicyIsNotReplayed(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.Inspector.Config.Policies = func() policy.Set { return policy.Set{{Name: "orders", Queues: []string{"orders"}}} }
		d.parked(t, "mail", 1)
		p := d.plan(t, actions.Replay, "queue:mail")
		if len(p.Blocked) != 1 || !strings.Contains(p.Blocked[0], `no policy allows the queue "mail"`) {
			t.Errorf("a replay is blocked by %q", p.Blocked)
		}
		for i := range 12 {
			d.parked(t, fmt.Sprintf("mail.%d", i), 1)
		}
		expect.Equal(t, strings.Join(d.plan(t, actions.Replay, "queue:mail.*").Blocked, "\n"), `no policy allows the queues "mail.0", `+
			`"mail.1", "mail.2" and 9 more, so their messages would be parked again: add them to the queues of a policy`, "blocked by")
		if p := d.plan(t, actions.Discard, "queue:mail"); len(p.Blocked) != 0 {
			t.Errorf("a discard is blocked by %q", p.Blocked)
		}
	})
}

func TestOperationsOfOthersQueuesAreNotSeen(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 2)
		p := d.started(t, actions.Discard, "queue:orders", operations.Start{})
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
		p := d.started(t, actions.Discard, "queue:orders", operations.Start{})
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
		p := d.started(t, actions.Discard, "queue:orders", operations.Start{})
		d.Inspector.ReadOnly = true
		stop := d.run(t)
		defer stop()
		time.Sleep(time.Hour)
		d.is(t, p.ID, operations.Running, 0, "read-only")
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
		d.started(t, actions.Discard, "queue:orders attempt:3", operations.Start{})
		time.Sleep(time.Minute)
		d.parked(t, "mail", 5)
		slow := d.started(t, actions.Discard, "queue:mail", operations.Start{Rate: 1})
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
func (r *activity) Day(time.Time, string) []inspect.Flow             { return make([]inspect.Flow, 48) }
func (r *activity) Queues() []string                                 { return []string{"orders", "quiet"} }
func (r *activity) Failed(func(string) bool) int64                   { return r.failed }

func (d *desk) give(t *testing.T, queue string, fails func(*store.Record) bool) {
	t.Helper()
	for _, c := range inspecttest.RetryDue(t, d.store, queue, time.Now()) {
		if fails(c.Record) {
			r := *c.Record
			r.Failures, r.FailedAt, r.Error, r.State, r.Due = r.Failures+1, time.Now(), "no stock again", store.Waiting, time.Now().Add(time.Hour)
			d.add(t, &r)
		}
	}
}

func TestTheRestIsChangedOnlyIfTheCanaryDoesNotFailAgain(t *testing.T) {
	for _, back := range []bool{false, true} {
		inFakeTime(t, func(t *testing.T, d *desk) {
			d.parked(t, "orders", 30)
			p := d.started(t, actions.Replay, "queue:orders", operations.Start{CanarySize: 5, CanaryWait: "30s"})
			time.Sleep(time.Hour) // nothing is retried: RabbitMQ is away, or the queue is paused
			pending := func(why string) {
				t.Helper()
				time.Sleep(10 * time.Second)
				o := d.is(t, p.ID, operations.Watching, 5)
				if o.Why != why || o.CanarySent != 0 || o.CanaryUntil != nil {
					t.Errorf("why: %q, want %q; sent %d, until %v", o.Why, why, o.CanarySent, o.CanaryUntil)
				}
			}
			pending("")
			d.Inspector.Throttle = func(string) *inspect.ThrottleView {
				return &inspect.ThrottleView{State: "open", Why: "9 of 10 failed"}
			}
			pending(`queue "orders": breaker open: 9 of 10 failed`)
			must(t, d.PauseQueue(ctx, operator, "orders", "ticket 7"))
			pending(`queue "orders": retries are paused by ann: ticket 7`)
			d.Inspector.Throttle = nil
			must(t, d.ResumeQueue(ctx, operator, "orders", ""))
			pending("")
			d.give(t, "orders", func(r *store.Record) bool { return back && string(r.Message.Body) == "2" })
			for back && d.look(t, p.ID).Ended == nil {
				time.Sleep(time.Millisecond)
			}
			synctest.Wait() // the counts follow at the same instant
			if is := d.look(t, p.ID).Replayed; back && (is.Sent != 5 || is.FailedAgain != 1) {
				t.Errorf("when it stops it counts %+v", is)
			}
			time.Sleep(20 * time.Second)
			if back {
				if o := d.is(t, p.ID, operations.Stopped, 5); !strings.Contains(o.Why, "no stock again") || o.Ended == nil {
					t.Errorf("why: %s", o.Why)
				}
				time.Sleep(time.Hour)
				d.is(t, p.ID, operations.Stopped, 5)
				return
			}
			if o := d.is(t, p.ID, operations.Watching, 5); o.Left == "" || o.Left > "13s" {
				t.Errorf("%q are left of the canary's 30s", o.Left)
			} else if o.CanarySent != 5 || o.Why != "" ||
				o.CanaryUntil.Sub(time.Now()).Round(time.Second).String() != o.Left {
				t.Errorf("sent %d, until %v, why %q", o.CanarySent, o.CanaryUntil, o.Why)
			}
			time.Sleep(20 * time.Second)
			d.is(t, p.ID, operations.Finished, 30)
		})
	}
}

// The speed of an operation after its canary is that at which it sends, without the time in which it watched.
func TestTheWatchOfACanaryIsNotInTheSpeed(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 30)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{CanarySize: 5, CanaryWait: "1m", Rate: 0.5})
		time.Sleep(10 * time.Second)
		d.give(t, "orders", func(*store.Record) bool { return false })
		for d.look(t, p.ID).State == operations.Watching {
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		o := d.look(t, p.ID)
		if left, err := time.ParseDuration(o.Left); err != nil || o.PerSecond < 0.3 || left > 80*time.Second {
			t.Errorf("at 0.5 a second it sends %v, and %s are left", o.PerSecond, o.Left)
		}
	})
}

// failsAgain are ways in which a message fails again and is not kept.
var failsAgain = map[string]func(*testing.T, *desk, *store.Record){
	"and are not kept": func(t *testing.T, d *desk, r *store.Record) {
		d.Failed(retry.Event{Kind: retry.Failed, ID: r.ID, Failures: 1, Error: "no stock again", At: r.FailedAt.Add(time.Hour)})
	},
	"and were retried since": func(t *testing.T, d *desk, r *store.Record) {
		again := *r
		again.Failures, again.FailedAt, again.Error, again.State, again.Due = 1, r.FailedAt.Add(time.Hour), "no stock again", store.Waiting, time.Now()
		d.add(t, &again)
		d.give(t, "orders", func(*store.Record) bool { return false })
	},
}

// A message that failed again is not always kept: it may wait in RabbitMQ, be discarded
// by its policy, or have been retried once more before anyone looked.
func TestACanaryWhoseMessagesFailedAgainIsNotDone(t *testing.T) {
	for name, fail := range failsAgain {
		for _, count := range []int{5, 30} { // the canary is all of the operation, or its first messages
			t.Run(fmt.Sprintf("%s, 5 of %d", name, count), func(t *testing.T) {
				inFakeTime(t, func(t *testing.T, d *desk) {
					all := d.parked(t, "orders", count)
					p := d.plan(t, actions.Replay, "queue:orders")
					d.begin(t, p, operations.Start{CanarySize: 5, CanaryWait: "30s", Reason: "INC-1"})
					time.Sleep(time.Second)
					d.is(t, p.ID, operations.Watching, 5)
					d.give(t, "orders", func(*store.Record) bool { return false })
					time.Sleep(time.Second)
					fail(t, d, all[2])
					time.Sleep(time.Minute)
					d.is(t, p.ID, operations.Stopped, 5, "no stock again")
					want := fmt.Sprintf("INC-1: stopped: the canary failed again (message %s", all[2].ID)
					if lines := strings.Join(d.audit.All(), "\n"); !strings.Contains(lines, want) {
						t.Errorf("audit:\n%s\nwant %q", lines, want)
					}
				})
			})
		}
	}
}

// Everyone sees an operation, so why it stopped is masked.
func TestWhyACanaryFailedIsMasked(t *testing.T) {
	fails := maps.Clone(failsAgain)
	fails["and are kept"] = func(t *testing.T, d *desk, _ *store.Record) {
		d.give(t, "orders", func(r *store.Record) bool { return string(r.Message.Body) == "2" })
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, d *desk) {
				rules := mask.New([]mask.Entry{{Patterns: []string{"/stock/"}}}, mask.DefaultBodies())
				d.Inspector.Mask = func() *mask.Rules { return rules }
				all := d.parked(t, "orders", 5)
				p := d.started(t, actions.Replay, "queue:orders", operations.Start{CanarySize: 5, CanaryWait: "30s"})
				time.Sleep(time.Second)
				if name != "and are kept" {
					d.give(t, "orders", func(*store.Record) bool { return false })
					time.Sleep(time.Second)
				}
				fail(t, d, all[2])
				time.Sleep(time.Minute)
				d.is(t, p.ID, operations.Stopped, 5, "no [masked] again")
			})
		})
	}
}

func TestTheFirstFewAreThoseThatWereSent(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 30)
		p := d.plan(t, actions.Replay, "queue:orders")
		none := d.plan(t, actions.Replay, "queue:orders")
		for _, r := range all[:10] {
			must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{r.ID.String()}})))
		}
		d.begin(t, p, operations.Start{CanarySize: 5, CanaryWait: "30s"})
		time.Sleep(time.Minute)
		if o := d.is(t, p.ID, operations.Watching, 5); o.SkippedN != 10 {
			t.Errorf("%+v", o)
		}
		d.give(t, "orders", func(*store.Record) bool { return false })
		time.Sleep(time.Minute)
		d.is(t, p.ID, operations.Finished, 20)
		d.give(t, "orders", func(*store.Record) bool { return false })
		d.begin(t, none, operations.Start{CanarySize: 5})
		time.Sleep(time.Second)
		d.is(t, none.ID, operations.Finished, 0)
	})
}

// A canary has messages of each queue, the oldest ones, also where one queue has thousands that come first.
func TestACanaryIsSpreadOverQueues(t *testing.T) {
	for many := range map[int]bool{20: true, 2500: true} {
		inFakeTime(t, func(t *testing.T, d *desk) {
			want := map[string]bool{}
			for queue, n := range map[string]int{"orders": many, "mail": 20, "other": 2} {
				all := inspecttest.Parked(queue, n)
				for i, r := range all {
					if r.Due = long.Add(time.Duration(i) * time.Second); queue != "orders" {
						r.Due = r.Due.Add(time.Hour)
					}
				}
				d.add(t, all...)
				for _, r := range all[:min(4, n)] {
					want[r.ID.String()] = true
				}
			}
			p := d.started(t, actions.Replay, "queue:*", operations.Start{CanarySize: 10, CanaryWait: "30s"})
			time.Sleep(time.Second)
			d.is(t, p.ID, operations.Watching, 10)
			for _, o := range d.outcomes(t, p.ID) {
				expect.Equal(t, want[o.ID], true, "of %d, one of %s is the canary's", many, o.Queue)
			}
			for _, queue := range []string{"orders", "mail", "other"} {
				d.give(t, queue, func(*store.Record) bool { return false })
			}
			time.Sleep(time.Minute)
			d.is(t, p.ID, operations.Finished, int64(many)+22)
			ids := map[string]bool{}
			for _, o := range d.outcomes(t, p.ID) {
				ids[o.ID] = true
			}
			expect.Equal(t, len(ids), many+22, "messages that were replayed")
		})
	}
}

// A restart of the service changes nothing of what a canary waits for.
func TestACanarySurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		stop := d.run(t)
		d.parked(t, "orders", 30)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{CanarySize: 3, CanaryWait: "30s"})
		time.Sleep(time.Second)
		d.give(t, "orders", func(*store.Record) bool { return false })
		time.Sleep(20 * time.Second)
		stop()
		d = newDesk(d.store)
		stop = d.run(t)
		defer stop()
		time.Sleep(time.Second)
		d.is(t, p.ID, operations.Watching, 3)
		time.Sleep(15 * time.Second)
		d.is(t, p.ID, operations.Finished, 30)
	})
}

// The plan's table lists the queues; the warnings count them, and name some of those whose breakers are open.
func TestAPlanCountsItsQueuesWithoutConsumers(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		for _, queue := range []string{"a", "b", "c"} {
			d.broker.Set(queue, inspect.AtBroker{Exists: true})
			d.parked(t, queue, 1)
			must(t, d.PauseQueue(ctx, operator, queue, ""))
		}
		d.Inspector.Holds = func(c condition.Condition) string {
			return map[condition.Kind]string{condition.Breaker: "open: 9 failed, not " + c.Queue}[c.Kind]
		}
		expect.Equal(t, strings.Join(d.plan(t, actions.Replay, "queue:?").Warnings, "\n"), "nothing consumes from 3 of the queues\n"+
			"the retries of 3 of the queues are paused: their messages wait until you resume them\n"+
			"3 queues' breakers hold retries back: a, b, c; the messages wait until that is over", "the warnings")
	})
}

func TestAPlanSaysWhatItWouldDoAndDoesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.broker.Set("idle", inspect.AtBroker{Exists: true, Ready: 4})
		d.parked(t, "orders", 7)
		d.parked(t, "idle", 2)
		d.add(t, record("orders", store.Waiting, ""), record("orders", store.Discarded, ""), record("secret", store.Parked, ""))
		must(t, d.PauseQueue(ctx, operator, "orders", "a leak"))
		d.Inspector.Holds = func(c condition.Condition) string {
			return map[condition.Condition]string{{Kind: condition.Breaker, Queue: "orders"}: "open: 9 of 10 failed"}[c]
		}
		p, err := d.Plan(ctx, caller(auth.Operator, "orders", "idle"), operations.PlanRequest{Verb: actions.Replay, Query: "queue:*"})
		must(t, err)
		if p.Count != 10 || len(p.Queues) != 2 || len(p.Samples) != 5 || len(p.Blocked) != 0 || !p.Oldest.Equal(long) || !p.Newest.Equal(long.Add(6*time.Second)) {
			t.Errorf("%+v", p)
		}
		for _, q := range p.Queues {
			want := map[string]operations.PlanQueue{"orders": {Queue: "orders", Count: 8, Known: true, Exists: true, Consumers: 1, Paused: true}, "idle": {Queue: "idle", Count: 2, Known: true, Exists: true, Ready: 4}}[q.Queue]
			if q != want {
				t.Errorf("%+v, want %+v", q, want)
			}
		}
		if len(p.Skipped) != 1 || p.Skipped[0].Count != 1 || !strings.Contains(p.Skipped[0].Why, "restore") || len(p.Warnings) != 3 ||
			!slices.Contains(p.Warnings, `the retries of the queue "orders" are paused by `+operator.Name+
				`: a leak; its messages wait until you resume it`) ||
			!slices.Contains(p.Warnings, "breaker of queue orders: open: 9 of 10 failed; the messages wait until that is over") {
			t.Errorf("skipped %+v, warnings %q", p.Skipped, p.Warnings)
		}
		// Of messages that are named it says the same.
		one := record("orders", store.Parked, "")
		one.Replays = 2
		d.add(t, one)
		again := d.plan(t, actions.Replay, "queue:orders")
		const often = "messages that were replayed before: 1, one of them 2 times"
		for _, want := range append([]string{often}, p.Warnings...) {
			expect.Equal(t, slices.Contains(again.Warnings, want), !strings.Contains(want, "idle"), "%s in %q", want,
				again.Warnings)
		}
		named := actions.Act{Verb: actions.Replay, IDs: []string{one.ID.String()}, DryRun: true}
		acted, err := d.Act(ctx, operator, named)
		must(t, err)
		want := append([]string{"it was replayed 2 times before"}, again.Warnings[1:]...)
		expect.Equal(t, strings.Join(acted.Warnings, "\n"), strings.Join(want, "\n"), "warnings of one message")
		if len(want) != 3 {
			t.Errorf("warnings %q", want)
		}
		named.IDs = []string{"nothing"}
		acted, err = d.Act(ctx, operator, named)
		expect.Equal(t, fmt.Sprint(acted.Warnings, err), "[] <nil>", "of a message that does not exist")
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{one.ID.String()}})))
		// A pause of retries stops no copy, so nothing is said of it.
		if p, err := d.Plan(ctx, caller(auth.Editor), operations.PlanRequest{Verb: actions.Copy, Query: "queue:idle", To: "orders"}); err != nil || len(p.Warnings) != 0 {
			t.Errorf("a copy to a paused queue: warnings %q, %v", p.Warnings, err)
		}
		counts, err := d.store.Counts(ctx)
		must(t, err)
		for _, c := range counts {
			if c.Queue == "orders" && (c.Parked != 7 || c.Waiting != 1) {
				t.Errorf("%+v", c)
			}
		}
		if got, err := d.GetPlan(ctx, operator, p.ID); err != nil || got.Count != 10 {
			t.Errorf("%+v, %v", got, err)
		}
		expect.Err(t, errOf(d.GetPlan(ctx, caller(auth.Operator, "idle"), p.ID)), inspect.ErrNotFound, "another's plan")
	})
}

// What is about error groups is called by their errors, masked as for everyone, and not by their ids.
func TestAPlanOfErrorGroupsIsCalledByTheirErrors(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		rules := mask.New([]mask.Entry{{Patterns: []string{"/stock/"}}}, mask.DefaultBodies())
		d.Inspector.Mask = func() *mask.Rules { return rules }
		ids := map[string]string{}
		for i, queue := range []string{"orders", "mail", "other"} {
			for n, text := range []string{"timeout after %d ms", "timeout after %d ms", "no stock of %d", ""}[:4-i] {
				r := record(queue, store.Parked, "")
				if r.Error = ""; text != "" {
					r.Error = fmt.Sprintf(text, 100*i+n)
				}
				d.add(t, r)
				ids[queue+[]string{" late", " late", " stock", " none"}[n]] = r.Group().ID.String()
			}
		}
		for _, c := range []struct {
			query, want string
		}{
			{inspect.GroupsQuery(ids["orders late"], ids["mail late"], ids["other late"]), "timeout after # ms (3 groups, 3 queues)"},
			{"state:parked " + inspect.GroupsQuery(ids["orders late"]), "timeout after # ms"},
			{"group:" + ids["orders stock"], "no [masked] of #"},
			{"group:" + ids["orders none"], "rejected"},
			{inspect.GroupsQuery(ids["orders late"], ids["orders stock"]), "timeout after # ms and another error (2 groups)"},
			{inspect.GroupsQuery(ids["orders late"], ids["orders stock"], ids["orders none"]),
				"timeout after # ms and 2 other errors (3 groups)"},
			{"group:0123456789abcdef", ""},
			{"queue:orders " + inspect.GroupsQuery(ids["orders late"]), ""},
			{"queue:*", ""},
		} {
			p := d.plan(t, actions.Replay, c.query)
			expect.Equal(t, p.About, c.want, "of %s", c.query)
			expect.Equal(t, p.Subject(), cmp.Or(c.want, c.query), "the subject of %s", c.query)
		}
		p := d.started(t, actions.Discard, inspect.GroupsQuery(ids["orders late"]), operations.Start{})
		time.Sleep(time.Second)
		all := d.audit.Entries()
		for _, e := range all[len(all)-2:] {
			expect.Equal(t, e.Subject(), p.ID+": discard timeout after # ms", "the subject of %s", e.Did)
			expect.Contains(t, e.On, "what it was on", p.Query, "in orders")
		}
	})
}

func TestPlansThatCannotStart(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 3)
		d.parked(t, "gone", 1)
		two := int64(2)
		for name, c := range map[string]struct {
			r   operations.PlanRequest
			s   operations.Start
			why string
		}{
			"empty":          {operations.PlanRequest{Verb: actions.Replay, Query: "queue:mail"}, operations.Start{}, "nothing"},
			"no queue":       {operations.PlanRequest{Verb: actions.Replay, Query: "queue:*"}, operations.Start{}, `"gone" does not exist`},
			"no target":      {operations.PlanRequest{Verb: actions.Copy, Query: "queue:orders", To: "gone"}, operations.Start{}, `"gone" does not exist`},
			"another count":  {operations.PlanRequest{Verb: actions.Discard, Query: "queue:orders"}, operations.Start{ExpectCount: &two}, "about 3 messages, and 2"},
			"a canary wait":  {operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"}, operations.Start{CanarySize: 1, CanaryWait: "soon"}, "canary_wait"},
			"a negative one": {operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"}, operations.Start{Rate: -1}, "rate"},
			"no use":         {operations.PlanRequest{Verb: actions.Discard, Query: "queue:orders"}, operations.Start{CanarySize: 1}, "leave canary out"},
		} {
			p, err := d.Plan(ctx, caller(auth.Editor), c.r)
			if err != nil {
				t.Fatal(name, err)
			}
			_, err = d.Start(ctx, caller(auth.Editor), p.ID, c.s)
			if err == nil || !strings.Contains(err.Error(), c.why) || !errors.Is(err, inspect.ErrPrecondition) && !errors.Is(err, inspect.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, c := range map[string]struct {
			by   auth.Caller
			r    operations.PlanRequest
			want error
		}{
			"a viewer":       {caller(auth.Viewer), operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"}, auth.ErrForbidden},
			"no right there": {caller(auth.Editor, "orders"), operations.PlanRequest{Verb: actions.Copy, Query: "queue:orders", To: "mail"}, auth.ErrForbidden},
			"all":            {operator, operations.PlanRequest{Verb: actions.Replay, Query: " "}, inspect.ErrInvalid},
			"an odd verb":    {operator, operations.PlanRequest{Verb: "purge", Query: "queue:orders"}, inspect.ErrInvalid},
		} {
			expect.Err(t, errOf(d.Plan(ctx, c.by, c.r)), c.want, "%s", name)
		}
		p := d.started(t, actions.Discard, "queue:orders", operations.Start{})
		if err := errOf(d.Start(ctx, operator, p.ID, operations.Start{})); !errors.Is(err, inspect.ErrPrecondition) ||
			!strings.Contains(err.Error(), "already, by "+operator.Name+" at "+time.Now().UTC().Format("2006-")) {
			t.Errorf("started twice: %v", err)
		}
	})
}

// What fails, or is moved, after the preview is not included, and the outcomes have
// each message once, in the order of the store.
func TestTheSetIsFrozenAtThePreview(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 40)
		p := d.plan(t, actions.Replay, "queue:orders")
		late := record("orders", store.Parked, "late")
		again := record("orders", store.Parked, "again") // one of them, which failed once more meanwhile
		again.ID = all[7].ID
		d.add(t, late, again)
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{all[3].ID.String()}})))
		d.begin(t, p, operations.Start{Reason: "fixed"})
		stop := d.run(t)
		defer stop()
		brokertest.Eventually(t, "the operation has ended", func() bool { return d.look(t, p.ID).Ended != nil })
		o := d.is(t, p.ID, operations.Finished, 39)
		if o.SkippedN != 1 || o.Failed != 0 {
			t.Errorf("%+v", o)
		}
		got := d.outcomes(t, p.ID)
		if len(got) != 40 {
			t.Fatalf("%d outcomes", len(got))
		}
		for i, g := range got {
			if g.ID != all[i].ID.String() || (g.Outcome == "done") != (i != 3) {
				t.Errorf("outcome %d: %+v", i, g)
			}
		}
		if d.kept(t, late.ID.String()).State != store.Parked || d.kept(t, all[3].ID.String()).State != store.Discarded || d.kept(t, all[0].ID.String()).State != store.Waiting {
			t.Error("not those of the preview were replayed")
		}
		if both, err := d.store.Find(ctx, again.ID); err != nil || len(both) != 2 || both[0].Record.State != store.Waiting || both[1].Record.State != store.Parked {
			t.Errorf("one that failed once more after the preview: %+v, %v", both, err)
		}
		stop()
		if lines := strings.Join(d.audit.All(), "\n"); !strings.Contains(lines, "operation.start") ||
			strings.Count(lines, "operation.end") != 1 || strings.Count(lines, " in orders") != 2 {
			t.Errorf("audit:\n%s", lines)
		}
	})
}

func TestOldPlansAndOperationsAreForgotten(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		gone := record("mail", store.Discarded, "")
		gone.Due = time.Now().Add(time.Minute)
		d.add(t, gone)
		d.parked(t, "orders", 10)
		old := d.plan(t, actions.Replay, "queue:orders")
		ended := d.started(t, actions.Discard, "queue:orders", operations.Start{})
		time.Sleep(17 * time.Minute)
		expect.Err(t, errOf(d.GetPlan(ctx, operator, old.ID)), inspect.ErrNotFound, "an old plan")
		if left, err := d.store.Find(ctx, gone.ID); err != nil || len(left) > 0 {
			t.Errorf("what was discarded is kept: %v, %v", left, err)
		}
		d.is(t, ended.ID, operations.Finished, 10)
		time.Sleep(31 * 24 * time.Hour)
		if all, err := d.Operations(ctx, operator); err != nil || len(all) != 0 {
			t.Errorf("after 31 days: %+v, %v", all, err)
		}
		for _, prefix := range []string{"operation/", "operations/"} {
			if err := d.store.Entries(ctx, prefix, "", func(e store.Entry) (bool, error) { t.Errorf("%s is left", e.Name); return true, nil }); err != nil {
				t.Error(err)
			}
		}
	})
}

// No one keeps the others from theirs: not with operations that do not end, nor with plans.
func TestWhatOnePersonMayHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New()) // nothing runs, so no operation ends
		person := func(name string) auth.Caller { c := operator; c.Name = name; return c }
		plan := func(by auth.Caller, queue string) string {
			t.Helper()
			time.Sleep(time.Millisecond) // plans are as old as their ids
			p := d.planAs(t, by, operations.PlanRequest{Verb: actions.Discard, Query: "queue:" + queue})
			return p.ID
		}
		for i := range 6 {
			d.parked(t, fmt.Sprint("q", i), 1)
		}
		for i, c := range []struct{ by, queue, refused string }{
			{"ann", "q0", ""}, {"ann", "q0", ""}, {"ann", "q0", ""}, {"ann", "q1", ""}, {"ann", "q2", "4 operations that you started"},
			{"bob", "q0", ""}, {"bob", "q0", `4 operations on the queue "q0"`}, {"bob", "q2", ""},
			{"cy", "q3", ""}, {"cy", "q3", ""}, {"cy", "q3", ""}, {"cy", "q3", ""}, {"di", "q4", ""}, {"di", "q4", ""}, {"di", "q4", ""}, {"di", "q4", ""},
			{"bob", "q5", ""}, {"ed", "q5", ""}, {"ed", "q5", "16 operations"},
		} {
			_, err := d.Start(ctx, person(c.by), plan(person(c.by), c.queue), operations.Start{})
			if (err == nil) != (c.refused == "") || err != nil && (!errors.Is(err, inspect.ErrPrecondition) || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("%d: %s starts one of %s: %v", i, c.by, c.queue, err)
			}
		}
		others, nobodys, own := plan(person("bob"), "q1"), plan(person("bob"), "none"), plan(person("ann"), "q0")
		for range 30 {
			plan(person("ann"), "q0")
		}
		for id, want := range map[string]error{others: nil, nobodys: nil, own: inspect.ErrNotFound} {
			expect.Err(t, errOf(d.GetPlan(ctx, person("bob"), id)), want, "after 30 plans of one person")
		}
		first := plan(person("p0"), "q0")
		for i := range 45 {
			plan(person(fmt.Sprint("p", i)), "q0")
		}
		expect.Err(t, errOf(d.GetPlan(ctx, person("bob"), others)), nil, "after 45 plans of another queue")
		expect.Err(t, errOf(d.GetPlan(ctx, person("bob"), first)), inspect.ErrNotFound, "the oldest of 45 of a queue")
	})
}

// stuck cannot delete entries until it is well.
type stuck struct {
	store.Store
	well atomic.Bool
}

func (s *stuck) DeleteEntries(ctx context.Context, prefix string) error {
	if !s.well.Load() {
		return errors.New("the disk is sick")
	}
	return s.Store.DeleteEntries(ctx, prefix)
}

// A plan that cannot be forgotten yet is a plan still, and no canceled operation.
func TestAPlanIsForgottenWhenThatWorksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{Store: memstore.New()}
		d := newDesk(s)
		d.parked(t, "orders", 1)
		stop := d.run(t)
		defer stop()
		p := d.plan(t, actions.Discard, "queue:orders")
		time.Sleep(time.Hour)
		if all, err := d.Operations(ctx, operator); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		s.well.Store(true)
		time.Sleep(2 * time.Minute)
		expect.Err(t, errOf(d.GetPlan(ctx, operator, p.ID)), inspect.ErrNotFound, "it is known still")
	})
}

func TestWithoutRabbitMQsAnswerACopyIsRefusedAndAReplayWarns(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := d.parked(t, "orders", 1)[0]
		d.Inspector.Broker = nil
		if _, err := d.Act(ctx, caller(auth.Editor), actions.Act{Verb: actions.Copy, IDs: []string{r.ID.String()}, To: "mail"}); !errors.Is(err, inspect.ErrPrecondition) {
			t.Errorf("a copy to who knows where: %v", err)
		}
		p := d.plan(t, actions.Replay, "queue:orders")
		if len(p.Blocked) > 0 || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "management") {
			t.Errorf("blocked %q, warnings %q", p.Blocked, p.Warnings)
		}
	})
}

// A plan can be started for 15 minutes, and not at their end, though nothing has forgotten it
// yet: what it found may have changed since.
func TestAnOldPlanIsNotStarted(t *testing.T) {
	for after, want := range map[time.Duration]error{15*time.Minute - time.Nanosecond: nil, 15 * time.Minute: inspect.ErrPrecondition, time.Hour: inspect.ErrPrecondition} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(memstore.New()) // nothing runs that would forget the plan
			d.parked(t, "orders", 1)
			p := d.plan(t, actions.Discard, "queue:orders")
			time.Sleep(after)
			_, err := d.Start(ctx, operator, p.ID, operations.Start{})
			if !errors.Is(err, want) || err != nil && !strings.Contains(err.Error(), "older than 15m") {
				t.Errorf("after %s: %v, want %v", after, err, want)
			}
		})
	}
}

// growing receives a message as soon as someone has asked for its newest key.
type growing struct {
	store.Store
	late *store.Record
}

func (g growing) NewestNumber(ctx context.Context) (uint64, error) {
	newest, err := g.Store.NewestNumber(ctx)
	return newest, errors.Join(err, g.Add(ctx, []*store.Record{g.late}))
}

// What fails while a plan is being made is not in it: the person has not seen it.
func TestWhatFailsWhileAPlanIsMadeIsNotInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := record("orders", store.Parked, "late")
		d := newDesk(growing{memstore.New(), late})
		d.parked(t, "orders", 3)
		p := d.plan(t, actions.Discard, "queue:orders")
		if p.Count != 3 {
			t.Errorf("the plan has %d messages, want 3", p.Count)
		}
		d.begin(t, p, operations.Start{})
		stop := d.run(t)
		defer stop()
		time.Sleep(time.Minute)
		d.is(t, p.ID, operations.Finished, 3)
		if r := d.kept(t, late.ID.String()); r.State != store.Parked {
			t.Errorf("what failed meanwhile is in state %d", r.State)
		}
	})
}

// The audit log has who tried what they may not do, and on what.
func TestWhatIsRefusedIsInTheAuditLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		d.parked(t, "orders", 1)
		p := d.plan(t, actions.Discard, "queue:orders")
		d.started(t, actions.Discard, "queue:orders", operations.Start{})
		before := len(d.audit.All())
		viewer := caller(auth.Viewer)
		_, planned := d.Plan(ctx, viewer, operations.PlanRequest{Verb: actions.Discard, Query: "queue:orders"})
		_, started := d.Start(ctx, viewer, p.ID, operations.Start{})
		_, ordered := d.Order(ctx, viewer, p.ID, operations.Cancel)
		if !errors.Is(planned, auth.ErrForbidden) || !errors.Is(started, auth.ErrForbidden) || !errors.Is(ordered, auth.ErrForbidden) {
			t.Errorf("%v, %v, %v", planned, started, ordered)
		}
		lines := d.audit.All()[before:]
		for i, want := range []string{"ann plan.discard queue:orders 0: refused", "ann operation.start " + p.ID + " 0: refused", "ann operation.cancel " + p.ID + " 0: refused"} {
			if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
				t.Errorf("the audit log has %q, want %q first in line %d", lines, want, i+1)
			}
		}
		expect.Equal(t, len(lines), 3, "lines: %q", lines)
	})
}

// An operation has ended when its last message is processed, and not before, however its
// messages fill its steps: a step of a rate has 5 here, and a chunk of its list has 1,000.
func TestAnOperationEndsWithItsLastMessage(t *testing.T) {
	for name, c := range map[string]struct {
		count int
		start operations.Start
	}{
		"one step":            {1000, operations.Start{}},
		"full steps":          {2000, operations.Start{}},
		"a step of one":       {2001, operations.Start{}},
		"a rate":              {100, operations.Start{Rate: 50}},
		"a rate, and one":     {101, operations.Start{Rate: 50}},
		"a canary":            {20, operations.Start{Rate: 50, CanarySize: 10, CanaryWait: "1s"}},
		"a canary and one":    {11, operations.Start{CanarySize: 10, CanaryWait: "1s"}},
		"nothing but canary":  {10, operations.Start{CanarySize: 10, CanaryWait: "1s"}},
		"less than a canary":  {9, operations.Start{CanarySize: 10, CanaryWait: "1s"}},
		"a canary of 2 steps": {12, operations.Start{Rate: 50, CanarySize: 10, CanaryWait: "1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, d *desk) {
				all := d.parked(t, "orders", c.count)
				p := d.started(t, actions.Replay, "queue:orders", c.start)
				for range 30 {
					time.Sleep(time.Second)
					d.give(t, "orders", func(*store.Record) bool { return false })
				}
				d.is(t, p.ID, operations.Finished, int64(c.count))
				expect.Equal(t, len(d.outcomes(t, p.ID)), c.count, "outcomes of %d messages", c.count)
				last := all[c.count-1]
				if left, err := d.store.Find(ctx, last.ID); err != nil || slices.ContainsFunc(left, func(l store.Listed) bool { return l.Record.State == store.Parked }) {
					t.Errorf("its last message is parked still, %v", err)
				}
			})
		})
	}
}

// What was replayed as often as its policy allows is left out of a plan, and skipped by an operation where it
// reached that in between, or the policy was changed.
func TestAnOperationReplaysNothingMoreOftenThanItsPolicyAllows(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		limits := policy.Set{{Name: "p", Queues: []string{"orders"}, MaxReplays: 2}, {Name: "rest", Queues: []string{"*"}}}
		d.Inspector.Config.Policies = func() policy.Set { return limits }
		once, twice, often := record("orders", store.Parked, "1"), record("orders", store.Parked, "2"),
			record("mail", store.Parked, "9")
		once.Replays, twice.Replays, often.Replays = 1, 2, 9
		d.add(t, once, twice, often)
		const why = `policy "p" allows 2 replays of a message, and it had them: raise max_replays, or edit the message`
		p := d.plan(t, actions.Replay, "queue:*")
		expect.Equal(t, p.Count, 2, "messages in the plan")
		expect.Equal(t, fmt.Sprint(p.Skipped), fmt.Sprint([]operations.Skipped{{Why: why, Count: 1}}), "left out")
		limits = policy.Set{{Name: "p", Queues: []string{"*"}, MaxReplays: 2}}
		d.begin(t, p, operations.Start{})
		defer d.run(t)()
		brokertest.Eventually(t, "it has ended", func() bool { return d.look(t, p.ID).Ended != nil })
		o := d.is(t, p.ID, operations.Finished, 1)
		expect.Equal(t, o.SkippedN, 1, "skipped")
		for _, one := range d.outcomes(t, p.ID) {
			if one.Outcome == actions.Skipped && (one.Why != why || one.ID != often.ID.String()) {
				t.Errorf("skipped: %+v", one)
			}
		}
		for r, want := range map[*store.Record]store.State{once: store.Waiting, twice: store.Parked, often: store.Parked} {
			expect.Equal(t, d.kept(t, r.ID.String()).State, want, "the state of %s", r.Message.Body)
		}
	})
}

// Where a queue is known to dead-letter elsewhere, and no message in the plan came from there by itself, its next
// failure is not seen, and the plan says so.
func TestAPlanSaysThatANewFailureWillNotBeSeen(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.broker.Set("mail", inspect.AtBroker{Exists: true, Consumers: 1, DeadLetters: `to the exchange "dlx"`})
		adopted, proven, reported := record("mail", store.Parked, ""), record("mail", store.Parked, ""),
			record("mail", store.Parked, "")
		proven.Proven, reported.Reason = true, "reported"
		d.add(t, record("orders", store.Parked, ""), adopted)
		const unseen = `a new failure in the queue "mail" will not be seen here: ` +
			`it dead-letters to the exchange "dlx", ` + "not to Redrive; enroll it, or adopt again"
		const unbound = "a policy names the queue \"mail\" only by a pattern, and it is not enrolled: its messages are parked " +
			"again unless `redrive allow-replays` was run for it\n"
		p := d.plan(t, actions.Replay, "queue:*")
		expect.Equal(t, strings.Join(p.Warnings, "\n"), unbound+unseen, "warnings")
		for _, seen := range []*store.Record{proven, reported} {
			d.add(t, seen)
			p = d.plan(t, actions.Replay, "queue:mail id:"+adopted.ID.String()+" OR id:"+seen.ID.String())
			expect.Equal(t, fmt.Sprint(p.Count, p.Warnings), "2 []", "with one that Redrive has seen fail")
		}
		d.Inspector.Config.Policies = func() policy.Set { return policy.Set{{Queues: []string{"*", "mail"}}} }
		expect.Equal(t, strings.Join(d.plan(t, actions.Replay, "queue:mail id:"+adopted.ID.String()).Warnings, "\n"), unseen,
			"of one that a policy names")
		d.broker.Set("mail", inspect.AtBroker{Exists: true, Consumers: 1})
		expect.Equal(t, len(d.plan(t, actions.Replay, "queue:*").Warnings), 0, "warnings where it is not known")
	})
}
