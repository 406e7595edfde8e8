package operations_test

import (
	"context"
	"errors"
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
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// target is a dead-letter queue that messages are put back into.
type target struct {
	deadLetters
	is     operations.Target
	in     []string // bodies, in order
	opens  int
	during func()            // while RabbitMQ has not confirmed them
	answer func(n int) error // to the message that would be the n-th
}

func (d *deadLetters) Target(context.Context, string) (operations.Target, error) {
	return operations.Target{Room: -1}, nil
}

func (d *deadLetters) OpenTarget(context.Context, string) (operations.Sink, error) {
	return nil, errors.New("not of this test")
}

func (q *target) Target(context.Context, string) (operations.Target, error) { return q.is, nil }

func (q *target) OpenTarget(context.Context, string) (operations.Sink, error) {
	q.opens++
	return q, q.openErr
}

func (q *target) Put(_ context.Context, all []wire.Message) []error {
	errs := make([]error, len(all))
	for i, m := range all {
		if q.answer != nil {
			errs[i] = q.answer(len(q.in))
		}
		if errs[i] == nil {
			q.in = append(q.in, string(m.Body))
		}
	}
	if q.during != nil {
		q.during()
	}
	return errs
}

// unadopting runs a test in fake time, with 600 messages that were adopted from orders.dlq.
func unadopting(t *testing.T, test func(t *testing.T, d *desk, q *target, all []*store.Record)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		q := &target{is: operations.Target{Room: -1}}
		d.Runner.DeadLetters = q
		stop := d.run(t)
		all := make([]*store.Record, 0, 600)
		for i, r := range append(inspecttest.Parked("orders", 300), inspecttest.Parked("mail", 300)...) {
			r.AdoptedFrom, r.Message.Body = "orders.dlq", fmt.Append(nil, i)
			all = append(all, r)
		}
		d.add(t, all...)
		d.parked(t, "orders", 3) // were not adopted
		test(t, d, q, all)
		stop()
	})
}

func (d *desk) unadopt(t *testing.T) string {
	t.Helper()
	p := d.planAs(t, editor, operations.PlanRequest{Verb: actions.Unadopt, To: "orders.dlq"})
	must(t, errOf(d.Start(ctx, editor, p.ID, operations.Start{ExpectCount: &p.Count})))
	return p.ID
}

func (d *desk) count(t *testing.T, query string) int64 {
	t.Helper()
	n, _, err := d.Count(ctx, editor, query)
	must(t, err)
	return n
}

// While RabbitMQ has not confirmed a message, no one can replay, discard or edit it: it would be there twice.
func TestWhatIsBeingPutBackIsLeftAlone(t *testing.T) {
	unadopting(t, func(t *testing.T, d *desk, q *target, all []*store.Record) {
		id := all[0].ID.String()
		q.during = func() {
			if len(q.in) > 256 {
				return
			}
			acted, err := d.Act(ctx, editor, actions.Act{Verb: actions.Replay, IDs: []string{id}})
			if err != nil || acted.Done != 0 || !strings.Contains(acted.Outcomes[0].Why, "being put back") {
				t.Errorf("it was replayed: %+v, %v", acted, err)
			}
			body := []byte("edited")
			_, err = d.Edit(ctx, editor, actions.EditRequest{ID: id, Body: &body})
			expect.Err(t, err, inspect.ErrPrecondition, "it is edited")
		}
		op := d.unadopt(t)
		time.Sleep(time.Minute)
		d.is(t, op, operations.Finished, 600)
		for i, body := range q.in {
			if body != fmt.Sprint(i) {
				t.Fatalf("number %d is %s", i, body)
			}
		}
		expect.Equal(t, d.count(t, "state:parked"), 3, "are parked")
		expect.Equal(t, len(d.outcomes(t, op)), 600, "have an outcome")
		storetest.Balances(t, d.store)
	})
}

// What RabbitMQ does not take stays parked, and a person may act on it. One message that it refuses stops no
// other.
func TestAnUnadoptionStops(t *testing.T) {
	for name, c := range map[string]struct {
		err          error
		at           int // the message that is refused
		open         error
		state, why   string
		done, parked int64
		failed       int64
		once         bool
	}{
		"full": {err: wire.ErrNacked, at: 300, state: operations.Stopped, why: "is parked as it was",
			done: 300, parked: 300},
		"gone": {err: wire.ErrQueueGone, at: 10, state: operations.Stopped, why: "does not exist",
			done: 10, parked: 590},
		"no rights": {open: wire.ErrForbidden, state: operations.Stopped, why: "redrive permissions --adopt",
			parked: 600},
		"too large": {err: wire.ErrUnacceptable, at: 10, once: true, state: operations.Finished,
			done: 599, parked: 1, failed: 1},
		"away": {err: wire.ErrNoAnswer, at: 100, state: operations.Running, done: 100, parked: 500},
	} {
		t.Run(name, func(t *testing.T) {
			unadopting(t, func(t *testing.T, d *desk, q *target, _ []*store.Record) {
				refused := false
				q.openErr = c.open
				q.answer = func(n int) error {
					if c.err == nil || n < c.at || c.once && refused {
						return nil
					}
					refused = true
					return fmt.Errorf("queue: %w", c.err)
				}
				op := d.unadopt(t)
				time.Sleep(time.Minute)
				is := d.is(t, op, c.state, c.done)
				if !strings.Contains(is.Why, c.why) || is.Failed != c.failed {
					t.Errorf("%d failed, and it says %s", is.Failed, is.Why)
				}
				expect.Equal(t, d.count(t, "state:parked adopted:orders.dlq"), c.parked, "are parked")
				expect.Equal(t, int64(len(q.in)), c.done, "are in the queue")
				page, err := d.Search(ctx, editor, "state:parked adopted:orders.dlq", "", 1)
				must(t, err)
				acted, err := d.Act(ctx, editor, actions.Act{Verb: actions.Discard, IDs: []string{page.Messages[0].ID}})
				if err != nil || acted.Done != 1 {
					t.Errorf("one that is left cannot be discarded: %+v, %v", acted, err)
				}
				if c.state == operations.Running {
					q.answer = nil
					time.Sleep(time.Minute)
					d.is(t, op, operations.Finished, 599)
				}
				storetest.Balances(t, d.store)
			})
		})
	}
}

// After its store has failed, what RabbitMQ has confirmed is deleted, and not published again.
func TestAnUnadoptionSurvivesItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		d := newDesk(s)
		q := &target{is: operations.Target{Room: -1}}
		d.Runner.DeadLetters = q
		failing := &failingStore{Store: s}
		d.Actions.Store = failing
		stop := d.run(t)
		defer stop()
		for _, r := range inspecttest.Parked("orders", 20) {
			r.AdoptedFrom = "orders.dlq"
			d.add(t, r)
		}
		q.during = func() { failing.left = 3 }
		op := d.unadopt(t)
		time.Sleep(time.Minute)
		d.is(t, op, operations.Finished, 20)
		expect.Equal(t, len(q.in), 20, "were published")
		expect.Equal(t, failing.left, 0, "failures are left")
	})
}

// failingStore fails so many Changes.
type failingStore struct {
	actions.Store
	left int
}

func (s *failingStore) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry) (int, error) {
	if s.left > 0 {
		s.left--
		return 0, errors.New("the store failed")
	}
	return s.Store.Change(ctx, keys, edit, entries)
}

func TestWhatAnUnadoptionRefuses(t *testing.T) {
	unadopting(t, func(t *testing.T, d *desk, q *target, _ []*store.Record) {
		for _, r := range []operations.PlanRequest{{}, {To: "redrive.intake"},
			{To: "orders.dlq", Query: "queue:orders"}, {To: "orders.dlq", From: "x"}, {To: "orders.dlq", Limit: 5}} {
			r.Verb = actions.Unadopt
			expect.Err(t, errOf(d.Plan(ctx, editor, r)), inspect.ErrInvalid, "%+v", r)
		}
		_, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Unadopt, To: "orders.dlq"})
		expect.Err(t, err, auth.ErrForbidden, "an operator plans it")
		q.is = operations.Target{Room: 599, Doubt: "has consumers", Warnings: []string{"expire"}}
		p := d.planAs(t, editor, operations.PlanRequest{Verb: actions.Unadopt, To: "orders.dlq"})
		if len(p.Blocked) != 2 || fmt.Sprint(p.Warnings) != "[expire]" {
			t.Errorf("it is blocked by %q, with the warnings %q", p.Blocked, p.Warnings)
		}
		// Two at once would put each message back twice, and one that is adopted meanwhile never ends.
		q.is = operations.Target{Room: -1}
		q.answer = func(int) error { return wire.ErrNoAnswer }
		d.unadopt(t)
		for _, r := range []operations.PlanRequest{
			{Verb: actions.Unadopt, To: "orders.dlq"}, {Verb: actions.Adopt, From: "orders.dlq"}} {
			q.DeadLetterQueue = operations.DeadLetterQueue{Queue: "orders.dlq", Ready: 1}
			p := d.planAs(t, editor, r)
			_, err = d.Start(ctx, editor, p.ID, operations.Start{})
			if !errors.Is(err, inspect.ErrPrecondition) || !strings.Contains(err.Error(), "has not ended") {
				t.Errorf("%s: %v", r.Verb, err)
			}
		}
	})
}
