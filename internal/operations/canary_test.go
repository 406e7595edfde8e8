package operations_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

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
			p := d.plan(t, actions.Replay, "queue:orders")
			d.begin(t, p, operations.Start{CanarySize: 5, CanaryWait: "30s"})
			time.Sleep(time.Hour) // nothing is retried: RabbitMQ is away, or the queue is paused
			d.is(t, p.ID, operations.Watching, 5)
			d.give(t, "orders", func(r *store.Record) bool { return back && string(r.Message.Body) == "2" })
			time.Sleep(20 * time.Second)
			if back {
				if o := d.is(t, p.ID, operations.Stopped, 5); !strings.Contains(o.Why, "no stock again") || o.Ended == nil {
					t.Errorf("why: %s", o.Why)
				}
				time.Sleep(time.Hour)
				d.is(t, p.ID, operations.Stopped, 5)
				return
			}
			d.is(t, p.ID, operations.Watching, 5)
			time.Sleep(20 * time.Second)
			d.is(t, p.ID, operations.Finished, 30)
		})
	}
}

// A message that failed again is not always kept: it may wait in RabbitMQ, be discarded
// by its policy, or have been retried once more before anyone looked.
func TestACanaryWhoseMessagesFailedAgainIsNotDone(t *testing.T) {
	for name, fail := range map[string]func(*testing.T, *desk, *store.Record){
		"and are not kept": func(t *testing.T, d *desk, r *store.Record) {
			d.Failed(retry.Event{Kind: retry.Failed, ID: r.ID, Failures: 1, Error: "no stock again", At: r.FailedAt.Add(time.Hour)})
		},
		"and were retried since": func(t *testing.T, d *desk, r *store.Record) {
			again := *r
			again.Failures, again.FailedAt, again.Error, again.State, again.Due = 1, r.FailedAt.Add(time.Hour), "no stock again", store.Waiting, time.Now()
			d.add(t, &again)
			d.give(t, "orders", func(*store.Record) bool { return false })
		},
	} {
		for _, count := range []int{5, 30} { // the canary is all of the operation, or its first messages
			t.Run(fmt.Sprintf("%s, 5 of %d", name, count), func(t *testing.T) {
				inFakeTime(t, func(t *testing.T, d *desk) {
					all := d.parked(t, "orders", count)
					p := d.plan(t, actions.Replay, "queue:orders")
					d.begin(t, p, operations.Start{CanarySize: 5, CanaryWait: "30s"})
					time.Sleep(time.Second)
					d.is(t, p.ID, operations.Watching, 5)
					d.give(t, "orders", func(*store.Record) bool { return false })
					time.Sleep(time.Second)
					fail(t, d, all[2])
					time.Sleep(time.Minute)
					if o := d.is(t, p.ID, operations.Stopped, 5); !strings.Contains(o.Why, "no stock again") {
						t.Errorf("why: %s", o.Why)
					}
				})
			})
		}
	}
}

func TestTheFirstFewAreThoseThatWereSent(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 30)
		p := d.plan(t, actions.Replay, "queue:orders")
		none := d.plan(t, actions.Replay, "queue:orders")
		for _, r := range all[:10] {
			if _, err := d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{r.ID.String()}}); err != nil {
				t.Fatal(err)
			}
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

// A restart of the service changes nothing of what a canary waits for.
func TestACanarySurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		stop := d.run(t)
		d.parked(t, "orders", 30)
		p := d.plan(t, actions.Replay, "queue:orders")
		d.begin(t, p, operations.Start{CanarySize: 3, CanaryWait: "30s"})
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
