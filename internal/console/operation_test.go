package console_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

var operator = caller(auth.Operator)

// parked adds n parked messages of a queue, each failed a second after the one
// before.
func (d *desk) parked(t *testing.T, queue string, n int) []*store.Record {
	t.Helper()
	var all []*store.Record
	for i := range n {
		r := record(queue, store.Parked, fmt.Sprint(i))
		r.FailedAt = long.Add(time.Duration(i) * time.Second)
		all = append(all, r)
	}
	d.add(t, all...)
	return all
}

// run runs the console until the function it returns is called.
func (d *desk) run(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return sync.OnceFunc(func() { cancel(); running.Wait() })
}

func (d *desk) plan(t *testing.T, verb console.Verb, query string) console.Plan {
	t.Helper()
	p, err := d.Plan(ctx, operator, console.PlanRequest{Verb: verb, Query: query})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (d *desk) begin(t *testing.T, p console.Plan, s console.Start) {
	t.Helper()
	if _, err := d.Start(ctx, operator, p.ID, s); err != nil {
		t.Fatal(err)
	}
}

func (d *desk) look(t *testing.T, id string) console.Operation {
	t.Helper()
	o, err := d.Operation(ctx, operator, id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (d *desk) is(t *testing.T, id, state string, done int64) console.Operation {
	t.Helper()
	o := d.look(t, id)
	if o.State != state || o.Done != done {
		t.Errorf("it is %s (%s) with %d done, want %s with %d", o.State, o.Why, o.Done, state, done)
	}
	return o
}

// outcomes are all of an operation, read in pages.
func (d *desk) outcomes(t *testing.T, id string) (all []console.Outcome) {
	t.Helper()
	for after := ""; ; {
		page, err := d.Outcomes(ctx, operator, id, after, 7)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page.Outcomes...)
		if after = page.After; after == "" {
			return all
		}
	}
}

func TestAPlanSaysWhatItWouldDoAndDoesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.broker.set("idle", console.AtBroker{Exists: true, Ready: 4})
		d.parked(t, "orders", 7)
		d.parked(t, "idle", 2)
		d.add(t, record("orders", store.Waiting, ""), record("orders", store.Discarded, ""), record("secret", store.Parked, ""))
		if err := d.Hold(ctx, operator, "orders", ""); err != nil {
			t.Fatal(err)
		}
		p, err := d.Plan(ctx, caller(auth.Operator, "orders", "idle"), console.PlanRequest{Verb: console.Replay, Query: "queue:*"})
		if err != nil {
			t.Fatal(err)
		}
		if p.Count != 10 || len(p.Queues) != 2 || len(p.Samples) != 5 || len(p.Blocked) != 0 || !p.Oldest.Equal(long) || !p.Newest.Equal(long.Add(6*time.Second)) {
			t.Errorf("%+v", p)
		}
		for _, q := range p.Queues {
			want := map[string]console.PlanQueue{"orders": {Queue: "orders", Count: 8, Known: true, Exists: true, Consumers: 1, Held: true}, "idle": {Queue: "idle", Count: 2, Known: true, Exists: true, Ready: 4}}[q.Queue]
			if q != want {
				t.Errorf("%+v, want %+v", q, want)
			}
		}
		if len(p.Skipped) != 1 || p.Skipped[0].Count != 1 || !strings.Contains(p.Skipped[0].Why, "restore") || len(p.Warnings) != 2 {
			t.Errorf("skipped %+v, warnings %q", p.Skipped, p.Warnings)
		}
		counts, err := d.store.Counts(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range counts {
			if c.Queue == "orders" && (c.Parked != 7 || c.Waiting != 1) {
				t.Errorf("%+v", c)
			}
		}
		if got, err := d.GetPlan(ctx, operator, p.ID); err != nil || got.Count != 10 {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := d.GetPlan(ctx, caller(auth.Operator, "idle"), p.ID); !errors.Is(err, console.ErrNotFound) {
			t.Errorf("another's plan: %v", err)
		}
	})
}

func TestPlansThatCannotStart(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 3)
		d.parked(t, "gone", 1)
		two := int64(2)
		for name, c := range map[string]struct {
			r   console.PlanRequest
			s   console.Start
			why string
		}{
			"empty":          {console.PlanRequest{Verb: console.Replay, Query: "queue:mail"}, console.Start{}, "nothing"},
			"no queue":       {console.PlanRequest{Verb: console.Replay, Query: "queue:*"}, console.Start{}, `"gone" does not exist`},
			"no target":      {console.PlanRequest{Verb: console.Copy, Query: "queue:orders", To: "gone"}, console.Start{}, `"gone" does not exist`},
			"another count":  {console.PlanRequest{Verb: console.Discard, Query: "queue:orders"}, console.Start{ExpectCount: &two}, "about 3 messages, and 2"},
			"a canary wait":  {console.PlanRequest{Verb: console.Replay, Query: "queue:orders"}, console.Start{Canary: 1, CanaryWait: "soon"}, "canary_wait"},
			"a negative one": {console.PlanRequest{Verb: console.Replay, Query: "queue:orders"}, console.Start{Rate: -1}, "rate"},
			"no use":         {console.PlanRequest{Verb: console.Discard, Query: "queue:orders"}, console.Start{Canary: 1}, "leave canary out"},
		} {
			p, err := d.Plan(ctx, caller(auth.Editor), c.r)
			if err != nil {
				t.Fatal(name, err)
			}
			_, err = d.Start(ctx, caller(auth.Editor), p.ID, c.s)
			if err == nil || !strings.Contains(err.Error(), c.why) || !errors.Is(err, console.ErrPrecondition) && !errors.Is(err, console.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, c := range map[string]struct {
			by   auth.Caller
			r    console.PlanRequest
			want error
		}{
			"a viewer":       {caller(auth.Viewer), console.PlanRequest{Verb: console.Replay, Query: "queue:orders"}, auth.ErrForbidden},
			"no right there": {caller(auth.Editor, "orders"), console.PlanRequest{Verb: console.Copy, Query: "queue:orders", To: "mail"}, auth.ErrForbidden},
			"all":            {operator, console.PlanRequest{Verb: console.Replay, Query: " "}, console.ErrInvalid},
			"an odd verb":    {operator, console.PlanRequest{Verb: "purge", Query: "queue:orders"}, console.ErrInvalid},
		} {
			if _, err := d.Plan(ctx, c.by, c.r); !errors.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		p := d.plan(t, console.Discard, "queue:orders")
		d.begin(t, p, console.Start{})
		if _, err := d.Start(ctx, operator, p.ID, console.Start{}); !errors.Is(err, console.ErrPrecondition) {
			t.Errorf("started twice: %v", err)
		}
	})
}

// What fails, or is moved, after the preview is not swept in, and the account has
// each message once, in the order in which they failed.
func TestTheSetIsFrozenAtThePreview(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 40)
		p := d.plan(t, console.Replay, "queue:orders")
		late := record("orders", store.Parked, "late")
		d.add(t, late)
		if _, err := d.Act(ctx, operator, console.Act{Verb: console.Discard, IDs: []string{all[3].ID.String()}}); err != nil {
			t.Fatal(err)
		}
		d.begin(t, p, console.Start{Reason: "fixed"})
		stop := d.run(t)
		defer stop()
		waitFor(t, func() bool { return d.look(t, p.ID).Ended != nil })
		o := d.is(t, p.ID, console.Finished, 39)
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
		stop()
		if lines := strings.Join(d.audit.all(), "\n"); !strings.Contains(lines, "operation.start") || strings.Count(lines, "operation.end") != 1 {
			t.Errorf("audit:\n%s", lines)
		}
	})
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
		p := d.plan(t, console.Replay, "queue:orders")
		d.begin(t, p, console.Start{Rate: 50})
		for s := range 4 {
			time.Sleep(time.Second)
			if n := d.look(t, p.ID).Done; n < int64(50*(s+1)) || n > int64(50*(s+1)+5) {
				t.Errorf("after %d s %d are done", s+1, n)
			}
		}
		if o := d.look(t, p.ID); o.PerSecond < 45 || o.PerSecond > 55 || o.Left == "" {
			t.Errorf("%v a second, %s left", o.PerSecond, o.Left)
		}
		if _, err := d.Order(ctx, operator, p.ID, console.Pause); err != nil {
			t.Fatal(err)
		}
		before := d.look(t, p.ID).Done
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, console.Paused, before); !strings.Contains(o.Why, "ann") {
			t.Error(o.Why)
		}
		if _, err := d.Order(ctx, operator, p.ID, console.Pause); !errors.Is(err, console.ErrPrecondition) {
			t.Errorf("paused twice: %v", err)
		}
		if _, err := d.Order(ctx, operator, p.ID, console.Resume); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n := d.look(t, p.ID).Done - before; n < 100 || n > 106 {
			t.Errorf("in 2 s after the pause %d were done", n)
		}
		if _, err := d.Order(ctx, operator, p.ID, console.Cancel); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n := d.look(t, p.ID).Done
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, console.Canceled, n); o.Ended == nil || int64(len(d.outcomes(t, p.ID))) != n {
			t.Errorf("%+v", o)
		}
		if _, err := d.Order(ctx, operator, p.ID, console.Resume); !errors.Is(err, console.ErrPrecondition) {
			t.Errorf("a canceled one was resumed: %v", err)
		}
	})
}

func TestOperationsTakeTurns(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 200)
		d.parked(t, "mail", 20)
		slow, quick := d.plan(t, console.Replay, "queue:orders"), d.plan(t, console.Replay, "queue:mail")
		d.begin(t, slow, console.Start{Rate: 1})
		d.begin(t, quick, console.Start{Rate: 10})
		time.Sleep(3 * time.Second)
		d.is(t, quick.ID, console.Finished, 20)
		if n := d.look(t, slow.ID).Done; n < 3 || n > 4 {
			t.Errorf("%d done of the slow one", n)
		}
	})
}

// give returns what is due, and fails some of it again.
func (d *desk) give(t *testing.T, queue string, fails func(*store.Record) bool) {
	t.Helper()
	claims, err := d.store.Claim(ctx, queue, time.Now(), 1000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []store.Outcome
	for _, c := range claims {
		out = append(out, store.Outcome{Claim: c, At: time.Now()})
	}
	if _, err := d.store.Settle(ctx, out); err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		if fails(c.Record) {
			r := *c.Record
			r.Attempt, r.FailedAt, r.Error, r.State, r.Due = r.Attempt+1, time.Now(), "no stock again", store.Waiting, time.Now().Add(time.Hour)
			d.add(t, &r)
		}
	}
}

func TestTheRestGoesOnlyWhenTheFirstDoNotComeBack(t *testing.T) {
	for _, back := range []bool{false, true} {
		inFakeTime(t, func(t *testing.T, d *desk) {
			d.parked(t, "orders", 30)
			p := d.plan(t, console.Replay, "queue:orders")
			d.begin(t, p, console.Start{Canary: 5, CanaryWait: "30s"})
			time.Sleep(time.Hour) // nothing returns: RabbitMQ is away, or the queue is held
			d.is(t, p.ID, console.Canary, 5)
			d.give(t, "orders", func(r *store.Record) bool { return back && string(r.Message.Body) == "2" })
			time.Sleep(20 * time.Second)
			if back {
				if o := d.is(t, p.ID, console.Stopped, 5); !strings.Contains(o.Why, "no stock again") || o.Ended == nil {
					t.Errorf("why: %s", o.Why)
				}
				time.Sleep(time.Hour)
				d.is(t, p.ID, console.Stopped, 5)
				return
			}
			d.is(t, p.ID, console.Canary, 5)
			time.Sleep(20 * time.Second)
			d.is(t, p.ID, console.Finished, 30)
		})
	}
}

// What was skipped proves nothing: the first few are those that were sent.
func TestTheFirstFewAreThoseThatWereSent(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 30)
		p := d.plan(t, console.Replay, "queue:orders")
		none := d.plan(t, console.Replay, "queue:orders")
		for _, r := range all[:10] {
			if _, err := d.Act(ctx, operator, console.Act{Verb: console.Discard, IDs: []string{r.ID.String()}}); err != nil {
				t.Fatal(err)
			}
		}
		d.begin(t, p, console.Start{Canary: 5, CanaryWait: "30s"})
		time.Sleep(time.Minute)
		if o := d.is(t, p.ID, console.Canary, 5); o.SkippedN != 10 {
			t.Errorf("%+v", o)
		}
		d.give(t, "orders", func(*store.Record) bool { return false })
		time.Sleep(time.Minute)
		d.is(t, p.ID, console.Finished, 20)
		d.give(t, "orders", func(*store.Record) bool { return false })
		d.begin(t, none, console.Start{Canary: 5})
		time.Sleep(time.Second)
		d.is(t, none.ID, console.Finished, 0)
	})
}

// A restart of the service changes nothing of what a canary waits for.
func TestACanarySurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		stop := d.run(t)
		d.parked(t, "orders", 30)
		p := d.plan(t, console.Replay, "queue:orders")
		d.begin(t, p, console.Start{Canary: 3, CanaryWait: "30s"})
		time.Sleep(time.Second)
		d.give(t, "orders", func(*store.Record) bool { return false })
		time.Sleep(20 * time.Second)
		stop()
		d = newDesk(d.store)
		stop = d.run(t)
		defer stop()
		time.Sleep(time.Second)
		d.is(t, p.ID, console.Canary, 3)
		time.Sleep(15 * time.Second)
		d.is(t, p.ID, console.Finished, 30)
	})
}

func TestAQueueThatIsGoneStopsTheOperation(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 100)
		p := d.plan(t, console.Replay, "queue:orders")
		d.begin(t, p, console.Start{Rate: 1})
		time.Sleep(5 * time.Second)
		d.broker.set("orders", console.AtBroker{})
		time.Sleep(time.Minute)
		o := d.look(t, p.ID)
		if o.State != console.Stopped || o.Done > 10 || !strings.Contains(o.Why, `"orders" does not exist`) {
			t.Errorf("%s with %d done: %s", o.State, o.Done, o.Why)
		}
		if d.kept(t, all[99].ID.String()).State != store.Parked {
			t.Error("the rest is not as it was")
		}
	})
}

func TestOldPlansAndOperationsAreForgotten(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		gone := record("mail", store.Discarded, "")
		gone.Due = time.Now().Add(time.Minute)
		d.add(t, gone)
		d.parked(t, "orders", 10)
		old := d.plan(t, console.Replay, "queue:orders")
		ended := d.plan(t, console.Discard, "queue:orders")
		d.begin(t, ended, console.Start{})
		time.Sleep(15 * time.Minute)
		if _, err := d.Start(ctx, operator, old.ID, console.Start{}); !errors.Is(err, console.ErrPrecondition) && !errors.Is(err, console.ErrNotFound) {
			t.Errorf("started after 15 min: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := d.GetPlan(ctx, operator, old.ID); !errors.Is(err, console.ErrNotFound) {
			t.Errorf("an old plan: %v", err)
		}
		if left, err := d.store.Find(ctx, gone.ID); err != nil || len(left) > 0 {
			t.Errorf("what was discarded is kept: %v, %v", left, err)
		}
		d.is(t, ended.ID, console.Finished, 10)
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

// stuck cannot delete entries until it is well.
type stuck struct {
	console.Store
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
		p := d.plan(t, console.Discard, "queue:orders")
		time.Sleep(time.Hour)
		if all, err := d.Operations(ctx, operator); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		s.well.Store(true)
		time.Sleep(2 * time.Minute)
		if _, err := d.GetPlan(ctx, operator, p.ID); !errors.Is(err, console.ErrNotFound) {
			t.Errorf("it is known still: %v", err)
		}
	})
}

func TestOperationsOfOthersQueuesAreNotSeen(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 2)
		p := d.plan(t, console.Discard, "queue:orders")
		d.begin(t, p, console.Start{})
		other := caller(auth.Operator, "mail")
		if all, err := d.Operations(ctx, other); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		for _, err := range []error{
			func() error { _, err := d.Operation(ctx, other, p.ID); return err }(),
			func() error { _, err := d.Order(ctx, other, p.ID, console.Cancel); return err }(),
			func() error { _, err := d.Outcomes(ctx, other, p.ID, "", 0); return err }(),
		} {
			if !errors.Is(err, console.ErrNotFound) {
				t.Errorf("%v", err)
			}
		}
		if all, err := d.Operations(ctx, caller(auth.Viewer)); err != nil || !slices.ContainsFunc(all, func(o console.Operation) bool { return o.ID == p.ID }) {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// choosy cannot change one message.
type choosy struct {
	console.Store
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
		if err != nil {
			t.Fatal(err)
		}
		d = newDesk(choosy{d.store, kept[0].Key})
		stop := d.run(t)
		defer stop()
		p := d.plan(t, console.Discard, "queue:orders")
		d.begin(t, p, console.Start{})
		time.Sleep(time.Minute)
		if o := d.is(t, p.ID, console.Finished, 1499); o.Failed != 1 {
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
		p := d.plan(t, console.Discard, "queue:orders")
		d.begin(t, p, console.Start{})
		d.Console.ReadOnly = true
		stop := d.run(t)
		defer stop()
		time.Sleep(time.Hour)
		if o := d.is(t, p.ID, console.Running, 0); !strings.Contains(o.Why, "read-only") {
			t.Error(o.Why)
		}
	})
}

func TestWithoutRabbitMQsWordACopyIsRefusedAndAReplayWarnsOfIt(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := d.parked(t, "orders", 1)[0]
		d.Console.Broker = nil
		if _, err := d.Act(ctx, caller(auth.Editor), console.Act{Verb: console.Copy, IDs: []string{r.ID.String()}, To: "mail"}); !errors.Is(err, console.ErrPrecondition) {
			t.Errorf("a copy to who knows where: %v", err)
		}
		p := d.plan(t, console.Replay, "queue:orders")
		if len(p.Blocked) > 0 || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "management") {
			t.Errorf("blocked %q, warnings %q", p.Blocked, p.Warnings)
		}
	})
}
