package actions_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
)

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
		if err := set("closed"); err != nil {
			t.Fatal(err)
		}
		all, err := inspect.ForcedBreakers(ctx, d.store)
		if err != nil || all["orders"].To != "closed" || all["orders"].Reason != "known" {
			t.Errorf("the store has %+v, %v", all, err)
		}
		page, err := d.Queues(ctx, operator, inspect.QueueQuery{})
		queues := page.Queues
		if err != nil || queues[0].Throttle.Forced == nil || queues[0].Throttle.Text() != "breaker set to closed by "+operator.Name {
			t.Errorf("shown as %+v, %v", queues, err)
		}
		if err := set("auto"); err != nil {
			t.Fatal(err)
		}
		if all, err := inspect.ForcedBreakers(ctx, d.store); err != nil || len(all) != 0 {
			t.Errorf("after auto the store has %+v, %v", all, err)
		}
		if !slices.Equal(d.forced, []string{"orders closed " + operator.Name + " known", "orders auto " + operator.Name + " known"}) {
			t.Errorf("the throttle was set to %q", d.forced)
		}
	})
}
