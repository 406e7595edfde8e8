package actions_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/actions"
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
			if err != nil {
				t.Fatal(err)
			}
		}
		page, err := d.Queues(ctx, operator, inspect.QueueQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range page.Queues {
			if q.Name == "orders" {
				if h := q.Pause; h == nil || h.By != operator.Name || h.Reason != "database is down; bob: ticket 7" {
					t.Errorf("the pause: %+v", h)
				}
				return
			}
		}
		t.Errorf("orders is not among the queues: %+v", page.Queues)
	})
}
