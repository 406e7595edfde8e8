package operations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
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

func TestAPlanSaysWhatItWouldDoAndDoesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.broker.Set("idle", inspect.AtBroker{Exists: true, Ready: 4})
		d.parked(t, "orders", 7)
		d.parked(t, "idle", 2)
		d.add(t, record("orders", store.Waiting, ""), record("orders", store.Discarded, ""), record("secret", store.Parked, ""))
		must(t, d.PauseQueue(ctx, operator, "orders", ""))
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
		if len(p.Skipped) != 1 || p.Skipped[0].Count != 1 || !strings.Contains(p.Skipped[0].Why, "restore") || len(p.Warnings) != 2 {
			t.Errorf("skipped %+v, warnings %q", p.Skipped, p.Warnings)
		}
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
		if _, err := d.GetPlan(ctx, caller(auth.Operator, "idle"), p.ID); !errors.Is(err, inspect.ErrNotFound) {
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
			if _, err := d.Plan(ctx, c.by, c.r); !errors.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		p := d.plan(t, actions.Discard, "queue:orders")
		d.begin(t, p, operations.Start{})
		if _, err := d.Start(ctx, operator, p.ID, operations.Start{}); !errors.Is(err, inspect.ErrPrecondition) {
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
		if _, err := d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{all[3].ID.String()}}); err != nil {
			t.Fatal(err)
		}
		d.begin(t, p, operations.Start{Reason: "fixed"})
		stop := d.run(t)
		defer stop()
		waitFor(t, func() bool { return d.look(t, p.ID).Ended != nil })
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
		if lines := strings.Join(d.audit.All(), "\n"); !strings.Contains(lines, "operation.start") || strings.Count(lines, "operation.end") != 1 {
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
		ended := d.plan(t, actions.Discard, "queue:orders")
		d.begin(t, ended, operations.Start{})
		time.Sleep(15 * time.Minute)
		if _, err := d.Start(ctx, operator, old.ID, operations.Start{}); !errors.Is(err, inspect.ErrPrecondition) && !errors.Is(err, inspect.ErrNotFound) {
			t.Errorf("started after 15 min: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := d.GetPlan(ctx, operator, old.ID); !errors.Is(err, inspect.ErrNotFound) {
			t.Errorf("an old plan: %v", err)
		}
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
		if _, err := d.GetPlan(ctx, operator, p.ID); !errors.Is(err, inspect.ErrNotFound) {
			t.Errorf("it is known still: %v", err)
		}
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
		d.begin(t, d.plan(t, actions.Discard, "queue:orders"), operations.Start{})
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
		if len(lines) != 3 {
			t.Errorf("%d lines: %q", len(lines), lines)
		}
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
				p := d.plan(t, actions.Replay, "queue:orders")
				d.begin(t, p, c.start)
				for range 30 {
					time.Sleep(time.Second)
					d.give(t, "orders", func(*store.Record) bool { return false })
				}
				d.is(t, p.ID, operations.Finished, int64(c.count))
				if n := len(d.outcomes(t, p.ID)); n != c.count {
					t.Errorf("%d outcomes of %d messages", n, c.count)
				}
				last := all[c.count-1]
				if left, err := d.store.Find(ctx, last.ID); err != nil || slices.ContainsFunc(left, func(l store.Listed) bool { return l.Record.State == store.Parked }) {
					t.Errorf("its last message is parked still, %v", err)
				}
			})
		})
	}
}
