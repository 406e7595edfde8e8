package operations_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// giveAll retries what is due, and parks those that fail again: fails returns an error's text, or "".
func (d *desk) giveAll(t *testing.T, queue string, fails func(body string) string) {
	t.Helper()
	for _, c := range inspecttest.RetryDue(t, d.store, queue, time.Now()) {
		if why := fails(string(c.Record.Message.Body)); why != "" {
			r := *c.Record
			r.Failures, r.FailedAt, r.Error, r.Due = r.Failures+1, time.Now(), why, time.Now()
			r.State, r.ParkedFor = store.Parked, "it failed once"
			d.add(t, &r)
		}
	}
}

func comesThrough(string) string { return "" }

// fourOfTen has four of the bodies 0 to 9 fail, with two errors.
func fourOfTen(body string) string {
	return map[string]string{"1": "no stock of 17", "3": "no stock of 18", "4": "no stock of 19", "8": "timeout"}[body]
}

// became checks what an operation shows of its replayed messages, and returns it.
func (d *desk) became(t *testing.T, id string, sent, again, here int64) *operations.Replayed {
	t.Helper()
	is := d.look(t, id).Replayed
	if is == nil {
		t.Fatal("nothing is shown of what was replayed")
	}
	if is.Sent != sent || is.FailedAgain != again || is.StillHere != here || is.NotSeenSince != sent-again {
		t.Errorf("%+v, want %d sent, %d failed again, %d still here", is, sent, again, here)
	}
	rows := map[string]int64{}
	for after, more := "", true; more; more = after != "" {
		page, err := d.Outcomes(ctx, operator, id, after, 999)
		must(t, err)
		for _, o := range page.Outcomes {
			rows[o.Became]++
		}
		after = page.After
	}
	for word, n := range map[string]int64{actions.Sent: sent - again, actions.FailedAgain: again, actions.MadeDue: here} {
		expect.Equal(t, rows[word], n, "rows that say %s", word)
	}
	return is
}

func errorsOf(is *operations.Replayed) (all []string) {
	for _, e := range is.Errors {
		all = append(all, fmt.Sprintf("%d %s %s", e.Count, e.Queue, e.Error))
	}
	return all
}

// Whoever replays messages sees which of them fail again while the operation runs, and afterwards.
func TestAReplayTellsWhatFailedAgain(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 10)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{Rate: 0.5})
		d.parked(t, "orders", 1) // replayed by no one
		time.Sleep(5 * time.Second)
		d.giveAll(t, "orders", fourOfTen)
		time.Sleep(4 * time.Second)
		live := d.look(t, p.ID)
		if live.State != operations.Running || live.Replayed.FailedAgain == 0 || live.Replayed.Until != nil {
			t.Errorf("while it runs: %s, %+v", live.State, live.Replayed)
		}
	})
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 10)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{})
		time.Sleep(time.Hour) // nothing is retried: its queue has no consumers
		d.is(t, p.ID, operations.Finished, 10)
		d.became(t, p.ID, 0, 0, 10)
		one, err := d.store.Claim(ctx, store.Lane{Queue: "orders"}, time.Now(), 1, 1<<20)
		must(t, err)
		_, err = d.store.Finish(ctx, []store.Outcome{{Claim: one[0], At: time.Now()}})
		must(t, err)
		time.Sleep(time.Minute)
		d.became(t, p.ID, 1, 0, 9)
		if body := string(one[0].Record.Message.Body); body != "0" {
			t.Errorf("the first to go was %q", body)
		}
		d.giveAll(t, "orders", fourOfTen)
		time.Sleep(time.Minute)
		is := d.became(t, p.ID, 10, 4, 0)
		want := "3 orders no stock of #; 1 orders timeout"
		expect.Equal(t, strings.Join(errorsOf(is), "; "), want, "the errors are")
		if is.Until != nil {
			t.Errorf("the counting ended at %s, within the wait", is.Until)
		}
		// Somebody replays one of them again, which fails, and another, which comes through.
		d.started(t, actions.Replay, "queue:orders error:timeout", operations.Start{})
		time.Sleep(time.Second)
		d.giveAll(t, "orders", func(string) string { return "timeout again" })
		d.started(t, actions.Replay, "queue:orders error:stock", operations.Start{})
		time.Sleep(time.Second)
		d.giveAll(t, "orders", comesThrough)
		time.Sleep(2 * time.Minute)
		is = d.became(t, p.ID, 10, 4, 0)
		expect.Equal(t, strings.Join(errorsOf(is), "; "), want, "after others, the errors are")
		if is.Until == nil {
			t.Error("the counting did not end")
		}
	})
}

// A message is not always kept when somebody looks: it may wait in RabbitMQ, be discarded by its policy,
// or have been retried once more. One that could not be sent failed too.
func TestWhatFailedAgainIsFoundWhereverItIs(t *testing.T) {
	for name, fail := range map[string]func(*testing.T, *desk, *store.Record){
		"not kept": func(t *testing.T, d *desk, r *store.Record) {
			d.giveAll(t, "orders", comesThrough)
			time.Sleep(time.Millisecond)
			d.Failed(retry.Event{Kind: retry.Failed, ID: r.ID, Queue: "orders", Error: "no stock of 1", At: time.Now()})
		},
		"retried since": func(t *testing.T, d *desk, _ *store.Record) {
			time.Sleep(time.Millisecond)
			d.giveAll(t, "orders", func(body string) string {
				return map[string]string{"2": "no stock of 1"}[body]
			})
			d.started(t, actions.Replay, "queue:orders", operations.Start{})
			time.Sleep(time.Microsecond)
			d.giveAll(t, "orders", comesThrough)
		},
		"not sent": func(t *testing.T, d *desk, r *store.Record) {
			claims, err := d.store.Claim(ctx, store.Lane{Queue: "orders"}, time.Now(), 10, 1<<20)
			must(t, err)
			for _, c := range claims {
				o := store.Outcome{Claim: c, At: time.Now()}
				if c.Record.ID == r.ID {
					o.Park = "no stock of #"
				}
				_, err := d.store.Finish(ctx, []store.Outcome{o})
				must(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, d *desk) {
				all := d.parked(t, "orders", 10)
				p := d.started(t, actions.Replay, "queue:orders", operations.Start{})
				synctest.Wait()
				fail(t, d, all[2])
				time.Sleep(5 * time.Minute)
				is := d.became(t, p.ID, 10, 1, 0)
				expect.Equal(t, strings.Join(errorsOf(is), "; "), "1 orders no stock of #", "the errors are")
				if is.Until == nil {
					t.Error("the counting did not end")
				}
			})
		})
	}
}

// Two records of one message, as a crash leaves them, are no failures of each other.
func TestADuplicateDidNotFailAgain(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := inspecttest.Parked("orders", 2)
		all[0].FailedAt = time.Now()
		twin := *all[0]
		d.add(t, append(all, &twin)...)
		time.Sleep(time.Second)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{})
		time.Sleep(time.Minute)
		d.became(t, p.ID, 0, 0, 3)
		d.giveAll(t, "orders", comesThrough)
		time.Sleep(5 * time.Minute)
		d.became(t, p.ID, 3, 0, 0)
	})
}

// A message of another queue with the same id, which a publisher can forge, is none of the operation's:
// the errors of another queue are not for all who see this one.
func TestAForgedIDIsNoFailureOfAReplay(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 2)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{})
		synctest.Wait()
		d.giveAll(t, "orders", comesThrough)
		time.Sleep(time.Millisecond)
		forged := record("mail", store.Parked, "x")
		forged.ID, forged.Error, forged.FailedAt = all[0].ID, "a secret", time.Now()
		d.add(t, forged)
		d.Failed(retry.Event{Kind: retry.Failed, ID: all[1].ID, Queue: "mail", Error: "a secret", At: time.Now()})
		time.Sleep(5 * time.Minute)
		if is := d.became(t, p.ID, 2, 0, 0); len(is.Errors) > 0 {
			t.Errorf("it shows %+v", is.Errors)
		}
	})
}

// The counts are kept with the operation, and go on where they were.
func TestWhatFailedAgainSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		stop := d.run(t)
		all := d.parked(t, "orders", 10)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{})
		time.Sleep(time.Second)
		d.giveAll(t, "orders", func(body string) string {
			return map[string]string{"1": "no stock of 17"}[body]
		})
		time.Sleep(10 * time.Second)
		d.became(t, p.ID, 10, 1, 0)
		stop()
		again := *all[4] // failed while no service ran
		again.FailedAt, again.Error = time.Now(), "no stock of 18"
		d.add(t, &again)
		d = newDesk(d.store)
		stop = d.run(t)
		defer stop()
		time.Sleep(5 * time.Minute)
		is := d.became(t, p.ID, 10, 2, 0)
		if is.Until == nil {
			t.Error("the counting did not end")
		}
		expect.Equal(t, strings.Join(errorsOf(is), "; "), "2 orders no stock of #", "the errors are")
	})
}

// Only the largest errors are kept apart, whatever the messages say; all are counted.
func TestTheErrorsOfAReplayAreBounded(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		d.parked(t, "orders", 1500)
		p := d.started(t, actions.Replay, "queue:orders", operations.Start{})
		time.Sleep(time.Second)
		for range 20 {
			d.giveAll(t, "orders", func(body string) string {
				if len(body) < 3 {
					return "no stock"
				}
				return fmt.Sprintf("the error %c%c", 'a'+body[1]-'0', 'k'+body[2]-'0')
			})
		}
		time.Sleep(5 * time.Minute)
		is := d.became(t, p.ID, 1500, 1500, 0)
		sum := is.OtherErrors
		for _, e := range is.Errors {
			sum += e.Count
		}
		if len(is.Errors) != 10 || sum != 1500 || is.Errors[0].Error != "no stock" || is.Errors[0].Count != 100 {
			t.Errorf("%d errors, together %d: %+v", len(is.Errors), sum, is.Errors)
		}
		if kept, err := d.store.Entry(ctx, "operation/"+p.ID+"/progress"); err != nil || len(kept) > 4<<10 {
			t.Errorf("%d bytes are kept of its progress, %v", len(kept), err)
		}
	})
}

// A canary failed again, or a person has canceled: what was not replayed can be, without what failed again.
func TestTheRestOfAReplay(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 2500)
		p := d.plan(t, actions.Replay, "queue:orders")
		rest := func(verb actions.Verb, query string) (operations.Plan, error) {
			return d.Plan(ctx, operator, operations.PlanRequest{Verb: verb, Query: query, RestOf: p.ID})
		}
		expect.Err(t, errOf(rest(actions.Replay, "")), inspect.ErrPrecondition, "of a plan")
		d.begin(t, p, operations.Start{CanarySize: 5, CanaryWait: "30s"})
		time.Sleep(time.Second)
		expect.Err(t, errOf(rest(actions.Replay, "")), inspect.ErrPrecondition, "while it runs")
		d.parked(t, "orders", 3) // that the first plan did not find
		d.giveAll(t, "orders", func(body string) string {
			return map[string]string{"2": "no stock"}[body]
		})
		time.Sleep(time.Minute)
		d.is(t, p.ID, operations.Stopped, 5)
		for _, is := range []error{
			errOf(rest(actions.Discard, "")), errOf(rest(actions.Replay, "queue:orders")),
			errOf(d.Plan(ctx, caller(auth.Viewer), operations.PlanRequest{Verb: actions.Replay, RestOf: p.ID})),
			errOf(d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Replay, RestOf: "x"})),
		} {
			if is == nil {
				t.Error("a plan of the rest was made that should be refused")
			}
		}
		// One of the rest is discarded, and one replayed, by others.
		one, two := all[1200].ID.String(), all[1300].ID.String()
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{one}})))
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Replay, IDs: []string{two}})))
		left, err := rest(actions.Replay, "")
		must(t, err)
		if left.Count != 2493 || left.RestOf != p.ID || len(left.Blocked) > 0 {
			t.Errorf("%d messages, the rest of %q, blocked: %v", left.Count, left.RestOf, left.Blocked)
		}
		d.begin(t, left, operations.Start{})
		time.Sleep(time.Second)
		d.is(t, left.ID, operations.Finished, 2493)
		expect.Equal(t, d.count(t, "queue:orders state:parked"), 4,
			"are parked: the one that failed again and the 3 that came later")
	})
}

// What a discard took is restored by a plan of it, and nothing else that its query finds.
func TestADiscardIsTakenBack(t *testing.T) {
	inFakeTime(t, func(t *testing.T, d *desk) {
		all := d.parked(t, "orders", 1500)
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{all[0].ID.String()}})))
		p := d.plan(t, actions.Discard, "queue:orders")
		back := func(by auth.Caller, verb actions.Verb) (operations.Plan, error) {
			return d.Plan(ctx, by, operations.PlanRequest{Verb: verb, DiscardedBy: p.ID})
		}
		expect.Err(t, errOf(back(operator, actions.Restore)), inspect.ErrPrecondition, "of a plan")
		d.begin(t, p, operations.Start{Rate: 1000})
		time.Sleep(time.Second)
		must(t, errOf(d.Order(ctx, operator, p.ID, operations.Cancel)))
		done := d.look(t, p.ID).Done
		if done < 2 || done > 1498 {
			t.Fatalf("%d are discarded", done)
		}
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Restore, IDs: []string{all[1].ID.String()}})))
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{all[1499].ID.String()}})))
		expect.Err(t, errOf(back(operator, actions.Replay)), inspect.ErrInvalid, "another verb")
		expect.Err(t, errOf(back(caller(auth.Viewer), actions.Restore)), auth.ErrForbidden, "a viewer")
		few := operator
		few.Queues = []string{"mail"}
		expect.Err(t, errOf(back(few, actions.Restore)), inspect.ErrNotFound, "who does not see its queue")
		taken, err := back(operator, actions.Restore)
		must(t, err)
		expect.Equal(t, taken.Count, done-1, "what it discarded, without what is restored already")
		d.begin(t, taken, operations.Start{})
		time.Sleep(time.Second)
		expect.Equal(t, d.count(t, "queue:orders state:discarded"), 2, "are discarded: by others")
	})
}
