package operations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
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
