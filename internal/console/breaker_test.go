package console_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// What a person sets a breaker to is in the store, so that a restart knows it, in the
// audit log, and told to the gate; auto is forgotten.
func TestABreakerThatAPersonSets(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.gate = &console.Throttle{State: "open", Why: "38 of 40 failed again"}
		d.parked(t, "orders", 1)
		set := func(to string) error { return d.Breaker(ctx, operator, "orders", to, "known") }
		if err := set("ajar"); !errors.Is(err, console.ErrInvalid) {
			t.Errorf("ajar: %v", err)
		}
		if err := d.Breaker(ctx, caller(auth.Viewer), "orders", "open", ""); !errors.Is(err, auth.ErrForbidden) {
			t.Errorf("a viewer: %v", err)
		}
		if err := d.Breaker(ctx, operator, "redrive.parked", "open", ""); !errors.Is(err, console.ErrInvalid) {
			t.Errorf("a queue of our own: %v", err)
		}
		if err := set("closed"); err != nil {
			t.Fatal(err)
		}
		all, err := console.ForcedIn(ctx, d.store)
		if err != nil || all["orders"].To != "closed" || all["orders"].Reason != "known" {
			t.Errorf("the store has %+v, %v", all, err)
		}
		queues, _, err := d.Queues(ctx, operator, "", 0)
		if err != nil || queues[0].Throttle.Forced == nil || queues[0].Throttle.Says() != "breaker set to closed by "+operator.Name {
			t.Errorf("shown as %+v, %v", queues, err)
		}
		if err := set("auto"); err != nil {
			t.Fatal(err)
		}
		if all, err := console.ForcedIn(ctx, d.store); err != nil || len(all) != 0 {
			t.Errorf("after auto the store has %+v, %v", all, err)
		}
		if !slices.Equal(d.forced, []string{"orders closed " + operator.Name + " known", "orders auto " + operator.Name + " known"}) {
			t.Errorf("the gate was told %q", d.forced)
		}
	})
}

// A rate that has just been used up is no news of a queue with nothing due.
func TestALimitIsShownWhileMessagesAreDue(t *testing.T) {
	for why, want := range map[throttle.PauseReason]string{throttle.WhyRate: "limited by rate", throttle.WhyInFlight: "limited by in_flight", "": ""} {
		if got := (&console.Throttle{State: "closed", LimitedBy: why}).Limit(); got != want {
			t.Errorf("%q: %q, want %q", why, got, want)
		}
	}
	for due, want := range map[time.Duration]throttle.PauseReason{-time.Second: throttle.WhyRate, time.Hour: ""} {
		s := memstore.New()
		r := record("orders", store.Waiting, "x")
		r.Due = time.Now().Add(due)
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
		d := newDesk(s)
		d.gate = &console.Throttle{State: "closed", LimitedBy: throttle.WhyRate}
		all, _, err := d.Queues(ctx, operator, "", 10)
		if err != nil || len(all) != 1 || all[0].Throttle.LimitedBy != want {
			t.Errorf("due in %s: %+v, %v, want limited by %q", due, all, err, want)
		}
	}
}

func TestWhatAGateSays(t *testing.T) {
	for _, c := range []struct {
		gate *console.Throttle
		want string
	}{
		{nil, ""},
		{&console.Throttle{State: "closed"}, ""},
		{&console.Throttle{State: "open", Why: "9 of 10 failed"}, "breaker open: 9 of 10 failed"},
		{&console.Throttle{State: "ramp"}, "breaker ramp"},
		{&console.Throttle{State: "closed", Forced: &console.Forced{To: "closed", By: "dana"}}, "breaker set to closed by dana"},
	} {
		if got := c.gate.Says(); got != c.want {
			t.Errorf("%+v says %q, want %q", c.gate, got, c.want)
		}
	}
}
