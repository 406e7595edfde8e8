package actions_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/policy"
)

func TestAQueueThatDoesNotExistIsNotPausedAndItsBreakerNotSet(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		breaker := func(to string) error { return d.Breaker(ctx, operator, "ordres", to, "") }
		if err := d.PauseQueue(ctx, operator, "ordres", ""); !errors.Is(err, inspect.ErrNotFound) || len(d.paused) > 0 {
			t.Errorf("paused: %v, %v", err, d.paused)
		}
		for _, to := range []string{"open", "closed", "auto"} {
			if err := breaker(to); !errors.Is(err, inspect.ErrNotFound) {
				t.Errorf("breaker %s: %v", to, err)
			}
		}
		left := inspecttest.Parked("ordres", 1) // it did exist
		d.add(t, left...)
		if err := errors.Join(d.PauseQueue(ctx, operator, "ordres", ""), breaker("open")); err != nil {
			t.Error(err)
		}
		if _, err := d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{left[0].ID.String()}}); err != nil {
			t.Error(err)
		}
		if err := errors.Join(breaker("auto"), d.ResumeQueue(ctx, operator, "ordres", "")); err != nil {
			t.Errorf("what was set cannot be undone: %v", err)
		}
	})
}

func TestAQueueWithoutAPolicyIsNotPaused(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.Inspector.Config.Policies = func() policy.Set { return policy.Set{{Name: "orders", Queues: []string{"orders"}}} }
		if err := d.PauseQueue(ctx, operator, "mail", ""); !errors.Is(err, inspect.ErrNotFound) || !strings.Contains(err.Error(), `no policy names the queue "mail"`) {
			t.Errorf("mail: %v", err)
		}
		d.add(t, inspecttest.Parked("mail", 1)...)
		if err := errors.Join(d.PauseQueue(ctx, operator, "mail", ""), d.PauseQueue(ctx, operator, "orders", "")); err != nil {
			t.Error(err)
		}
	})
}

func TestASecondPauseKeepsTheFirstReason(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		other := operator
		other.Name = "bob"
		for _, err := range []error{
			d.PauseQueue(ctx, operator, "orders", "database is down"), d.PauseQueue(ctx, other, "orders", ""), d.PauseQueue(ctx, other, "orders", "ticket 7"),
			d.PauseQueue(ctx, other, "orders", "ticket 7"), d.PauseQueue(ctx, operator, "orders", "database is down"),
		} {
			must(t, err)
		}
		all, _, err := d.Queues(ctx, operator, "", 0)
		must(t, err)
		for _, q := range all {
			if q.Name == "orders" {
				if h := q.Pause; h == nil || h.By != operator.Name || h.Reason != "database is down; bob: ticket 7" {
					t.Errorf("the pause: %+v", h)
				}
				return
			}
		}
		t.Errorf("orders is not among the queues: %+v", all)
	})
}

// What a person sets a breaker to is in the store, so that a restart knows it, in the
// audit log, and set in the throttle; auto is forgotten.
func TestABreakerThatAPersonSets(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.throttle = &inspect.ThrottleView{State: "open", Why: "38 of 40 failed again"}
		d.add(t, inspecttest.Parked("orders", 1)...)
		set := func(to string) error { return d.Breaker(ctx, operator, "orders", to, "known") }
		if err := set("ajar"); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("ajar: %v", err)
		}
		if err := d.Breaker(ctx, caller(auth.Viewer), "orders", "open", ""); !errors.Is(err, auth.ErrForbidden) {
			t.Errorf("a viewer: %v", err)
		}
		if err := d.Breaker(ctx, operator, "redrive.parked", "open", ""); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("a queue of our own: %v", err)
		}
		must(t, set("closed"))
		all, err := inspect.ForcedBreakers(ctx, d.store)
		if err != nil || all["orders"].To != "closed" || all["orders"].Reason != "known" {
			t.Errorf("the store has %+v, %v", all, err)
		}
		queues, _, err := d.Queues(ctx, operator, "", 0)
		if err != nil || queues[0].Throttle.Forced == nil || queues[0].Throttle.Text() != "breaker set to closed by "+operator.Name {
			t.Errorf("shown as %+v, %v", queues, err)
		}
		must(t, set("auto"))
		if all, err := inspect.ForcedBreakers(ctx, d.store); err != nil || len(all) != 0 {
			t.Errorf("after auto the store has %+v, %v", all, err)
		}
		if !slices.Equal(d.forced, []string{"orders closed " + operator.Name + " known", "orders auto " + operator.Name + " known"}) {
			t.Errorf("the throttle was set to %q", d.forced)
		}
	})
}
