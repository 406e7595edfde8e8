package operations_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// only are some outcomes of an operation, read in pages.
func (d *desk) only(t *testing.T, id, only string) (all []actions.Outcome) {
	t.Helper()
	for after := ""; ; {
		p, err := d.Outcomes(ctx, operator, id, only, after, 7)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p.Outcomes...)
		if after = p.After; after == "" {
			return all
		}
	}
}

func bodyIs(bodies ...string) func(*store.Record) bool {
	return func(r *store.Record) bool {
		for _, b := range bodies {
			if string(r.Message.Body) == b {
				return true
			}
		}
		return false
	}
}

func (d *desk) again(t *testing.T, id string, want int64) operations.Operation {
	t.Helper()
	o, err := d.Operation(ctx, operator, id)
	if err != nil || o.Again != want {
		t.Fatalf("%d failed again (%v), want %d", o.Again, err, want)
	}
	return o
}

func TestReplayedMessagesThatFailAgainAreCounted(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 30)
		p := d.plan(t, actions.Replay, "queue:orders")
		d.begin(t, p, operations.Start{})
		time.Sleep(time.Second)
		d.is(t, p.ID, operations.Finished, 30)
		d.again(t, p.ID, 0)
		d.give(t, "orders", bodyIs("2", "11"))
		d.Failed(retry.Event{Kind: retry.Failed, At: time.Now()})
		time.Sleep(10 * time.Second)
		d.again(t, p.ID, 2)
		again := d.only(t, p.ID, operations.OnlyAgain)
		if len(again) != 2 || again[0].Outcome != actions.Done || again[0].Again.Error != "no stock again" || again[0].Again.At.IsZero() {
			t.Fatalf("%+v", again)
		}
		if all := d.only(t, p.ID, ""); len(all) != 30 {
			t.Errorf("%d outcomes", len(all))
		}
		if rest := d.only(t, p.ID, operations.OnlyRest); len(rest) != 2 {
			t.Errorf("%d are the rest", len(rest))
		}
		// What fails after ten minutes is another failure; nothing is counted twice.
		time.Sleep(11 * time.Minute)
		d.Failed(retry.Event{Kind: retry.Failed, At: time.Now()})
		time.Sleep(time.Hour)
		d.again(t, p.ID, 2)
	})
}

// A failure counts wherever it is: kept, retried once more since, or where the store does not see
// it, and only if it came in time.
func TestAFailureAgainIsSeenWhereverItIs(t *testing.T) {
	fails := func(t *testing.T, d *desk, r *store.Record, due time.Time) {
		again := *r
		again.State, again.Failures, again.FailedAt, again.Due, again.ParkedFor, again.Forward = store.Waiting, 1, time.Now(), due, "", nil
		d.add(t, &again)
	}
	for name, c := range map[string]struct {
		fail func(t *testing.T, d *desk, r *store.Record)
		want int64
	}{
		"kept": {func(t *testing.T, d *desk, r *store.Record) { fails(t, d, r, time.Now().Add(time.Hour)) }, 1},
		"retried once more": {func(t *testing.T, d *desk, r *store.Record) {
			fails(t, d, r, time.Now())
			d.give(t, "orders", bodyIs())
		}, 1},
		"not kept": {func(t *testing.T, d *desk, r *store.Record) {
			d.Failed(retry.Event{Kind: retry.Failed, ID: r.ID, At: time.Now(), Error: "it waits in RabbitMQ"})
		}, 1},
		"too late": {func(t *testing.T, d *desk, r *store.Record) {
			time.Sleep(11 * time.Minute)
			fails(t, d, r, time.Now().Add(time.Hour))
		}, 0},
		"of another message": {func(t *testing.T, d *desk, _ *store.Record) {
			d.Failed(retry.Event{Kind: retry.Failed, ID: uuid.Must(uuid.NewV7()), At: time.Now()})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, d *desk) {
				all := d.parked(t, "orders", 3)
				p := d.plan(t, actions.Replay, "queue:orders")
				d.begin(t, p, operations.Start{})
				time.Sleep(time.Second)
				d.give(t, "orders", bodyIs())
				time.Sleep(time.Second)
				c.fail(t, d, all[1])
				d.Failed(retry.Event{Kind: retry.Failed, At: time.Now()})
				time.Sleep(6 * time.Minute)
				d.again(t, p.ID, c.want)
			})
		})
	}
}

func TestTheRestOfAnOperation(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 30)
		p := d.plan(t, actions.Replay, "queue:orders")
		d.begin(t, p, operations.Start{Rate: 10})
		if _, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Replay, RestOf: p.ID}); !errors.Is(err, inspect.ErrPrecondition) {
			t.Errorf("of one that runs: %v", err)
		}
		time.Sleep(1500 * time.Millisecond)
		if _, err := d.Order(ctx, operator, p.ID, operations.Cancel); err != nil {
			t.Fatal(err)
		}
		o, _ := d.Operation(ctx, operator, p.ID)
		if o.Done == 0 || o.Done == 30 {
			t.Fatalf("%d done", o.Done)
		}
		d.give(t, "orders", bodyIs("0", "1"))
		rest, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Replay, RestOf: p.ID})
		if err != nil || rest.Count != 30-o.Done+2 || rest.RestOf != p.ID || rest.Query != p.Query {
			t.Fatalf("%d of %d done are the rest: %+v, %v", rest.Count, o.Done, rest, err)
		}
		d.begin(t, rest, operations.Start{})
		time.Sleep(time.Second)
		d.is(t, rest.ID, operations.Finished, rest.Count)
		if all := d.audit.All(); !strings.Contains(strings.Join(all, "\n"), "replay the rest of "+p.ID+" in orders") {
			t.Errorf("the audit log has %q", all)
		}
		for _, bad := range []operations.PlanRequest{
			{Verb: actions.Replay, RestOf: p.ID, Query: "queue:orders"}, {Verb: actions.Copy, RestOf: p.ID, To: "mail"}, {Verb: actions.Replay},
			{Verb: actions.Replay, RestOf: "nothing"},
		} {
			if _, err := d.Plan(ctx, operator, bad); !errors.Is(err, inspect.ErrInvalid) && !errors.Is(err, inspect.ErrNotFound) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
	})
}

func TestACanaryIsSuggestedForMany(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		for _, c := range []struct{ n, want int }{{99, 0}, {1, 10}, {2000, 21}} { // one after another
			d.parked(t, "orders", c.n)
			if p := d.plan(t, actions.Replay, "queue:orders"); p.SuggestedCanary != c.want {
				t.Errorf("of %d: %d", p.Count, p.SuggestedCanary)
			}
		}
		if p := d.plan(t, actions.Discard, "queue:orders"); p.SuggestedCanary != 0 {
			t.Error("a discard fails nowhere")
		}
	})
}
