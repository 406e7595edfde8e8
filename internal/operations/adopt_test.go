package operations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// deadLetters has one dead-letter queue.
type deadLetters struct {
	operations.DeadLetterQueue
	mu      sync.Mutex
	parks   []int // how many each Park was asked for
	opened  []retry.Adoption
	open    int
	epochs  []int64
	again   bool // what comes was delivered before
	away    bool // RabbitMQ has it for a connection that is dead
	hangs   bool // Park does not return before it must
	openErr error
	parkErr error
}

func (d *deadLetters) List(context.Context) ([]operations.DeadLetterQueue, error) {
	return []operations.DeadLetterQueue{d.DeadLetterQueue, {Queue: "hidden"}}, nil
}

func (d *deadLetters) Look(context.Context, string) (operations.DeadLetterQueue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.DeadLetterQueue, nil
}

// Sample gives a message of each kind.
func (d *deadLetters) Sample(context.Context, retry.Adoption, int) ([]*store.Record, error) {
	return []*store.Record{
		{Queue: "orders", Error: "no stock of 7\n   at Shop.Ship()", Format: "masstransit"},
		{Queue: "orders", Error: "no stock of 8\n   at Shop.Ship()", Notes: []string{"odd"}},
		{Queue: "hidden"},
		{},
	}, nil
}

func (d *deadLetters) Open(_ context.Context, a retry.Adoption) (operations.Source, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.openErr == nil {
		d.opened, d.open = append(d.opened, a), d.open+1
	}
	return d, d.openErr
}

func (d *deadLetters) Park(ctx context.Context, most int, epoch int64) (int, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangs {
		<-ctx.Done()
		return 0, false, ctx.Err()
	}
	if d.away {
		return 0, false, nil
	}
	d.parks = append(d.parks, most)
	if d.parkErr != nil {
		return 0, false, d.parkErr
	}
	d.epochs = append(d.epochs, epoch)
	n := min(most, int(d.DeadLetterQueue.Ready))
	d.DeadLetterQueue.Ready -= int64(n)
	return n, d.again, nil
}

func (d *deadLetters) Ready() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int(d.DeadLetterQueue.Ready), nil
}

func (d *deadLetters) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
}

func (d *deadLetters) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

var editor = caller(auth.Editor)

// adopting runs a test in fake time, with 2,500 messages in a dead-letter queue.
func adopting(t *testing.T, test func(t *testing.T, d *desk, q *deadLetters)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(memstore.New())
		q := &deadLetters{DeadLetterQueue: operations.DeadLetterQueue{Queue: "orders.dlq", Kind: "quorum", Ready: 2500, WorkQueues: []string{"orders"}}}
		d.Runner.DeadLetters = q
		stop := d.run(t)
		test(t, d, q)
		stop()
		expect.Equal(t, q.open, 0, "sources are left open")
	})
}

func (d *desk) adopt(t *testing.T, r operations.PlanRequest, s operations.Start) string {
	t.Helper()
	r.Verb, r.From = actions.Adopt, "orders.dlq"
	p := d.planAs(t, editor, r)
	must(t, errOf(d.Start(ctx, editor, p.ID, s)))
	return p.ID
}

func TestAnAdoptionTakesWhatWasThere(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		p := d.planAs(t, editor, operations.PlanRequest{Verb: actions.Adopt, From: "orders.dlq", Limit: 1200})
		if p.Count != 1200 || fmt.Sprint(p.Leads) != "[orders]" || len(p.Blocked) > 0 || len(q.parks) > 0 {
			t.Fatalf("the plan is %+v", p)
		}
		id := d.adopt(t, operations.PlanRequest{}, operations.Start{Rate: 100})
		time.Sleep(10 * time.Second)
		if is := d.look(t, id); is.Done < 990 || is.Done > 1010 || is.State != operations.Running {
			t.Errorf("after 10 s at 100 a second it is %+v", is)
		}
		must(t, errOf(d.Order(ctx, editor, id, operations.Pause)))
		synctest.Wait()
		expect.Equal(t, q.open, 0, "sources are open while it is paused")
		done := d.look(t, id).Done
		time.Sleep(time.Minute)
		d.is(t, id, operations.Paused, done)
		q.set(func() { q.DeadLetterQueue.Ready += 7 }) // these came since
		must(t, errOf(d.Order(ctx, editor, id, operations.Resume)))
		time.Sleep(time.Minute)
		is := d.is(t, id, operations.Finished, 2500)
		expect.Equal(t, is.Why, "7 more messages are in the queue now", "it says")
		expect.Equal(t, fmt.Sprint(q.opened[0]), fmt.Sprint(retry.Adoption{ID: id, From: "orders.dlq", By: editor.Name, Leads: "orders"}), "was adopted")
		if said := fmt.Sprint(d.audit.Entries()); !strings.Contains(said, "adopt orders.dlq") {
			t.Errorf("the audit log has %s", said)
		}
	})
}

// A look tells what the first messages say, and is in the audit log. It takes nothing, and is not taken of a
// queue that would not be adopted.
func TestASampleIsToldBeforeAnAdoption(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		by := auth.Caller{Name: "eve", Role: auth.Editor, Queues: []string{"orders*", "orders.*"}}
		ask := operations.PlanRequest{Verb: actions.Adopt, From: "orders.dlq", Sample: 100}
		p := d.planAs(t, by, ask)
		expect.Equal(t, fmt.Sprint(*p.Sampled), "{4 [{orders 2} { 1} {a queue that you do not see 1}] "+
			"[{ 2} {no stock of 7 2}] [{x-death 3} {masstransit 1}] [{odd 1}]}", "is said")
		if said := fmt.Sprint(d.audit.Entries()); !strings.Contains(said, "adopt.sample orders.dlq") || len(q.parks) > 0 {
			t.Errorf("the audit log has %s, and %v were parked", said, q.parks)
		}
		for _, wrong := range []operations.PlanRequest{{Sample: 1001}, {Sample: -1}, {Format: "nothing"}} {
			wrong.Verb, wrong.From = actions.Adopt, "orders.dlq"
			expect.Err(t, errOf(d.Plan(ctx, by, wrong)), inspect.ErrInvalid, "%+v", wrong)
		}
		q.set(func() { q.DeadLetterQueue.Doubt = "it has consumers" })
		if p, err := d.Plan(ctx, by, ask); err != nil || p.Sampled != nil {
			t.Errorf("of a queue with consumers: %+v, %v", p.Sampled, err)
		}
	})
}

// After an error that passes it goes on; where each try could harm, or none can succeed, it stops, and
// says that the rest is where it was.
func TestAnAdoptionStops(t *testing.T) {
	for name, c := range map[string]struct {
		open, park error
		state, why string
		parks      int
	}{
		"full":      {park: fmt.Errorf("%w: 1 MiB is free", store.ErrFull), state: operations.Stopped, why: "is in RabbitMQ as it was", parks: 1},
		"gone":      {open: fmt.Errorf("%w: no queue", wire.ErrQueueGone), state: operations.Stopped, why: "no queue"},
		"no rights": {open: fmt.Errorf("%w: read", wire.ErrForbidden), state: operations.Stopped, why: "read"},
		"poison":    {park: errors.New("541"), state: operations.Stopped, why: "failed 3 times at the next message: 541", parks: 3},
		"away":      {open: errors.New("connection refused"), state: operations.Running, why: "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
				q.openErr, q.parkErr = c.open, c.park
				id := d.adopt(t, operations.PlanRequest{}, operations.Start{})
				time.Sleep(time.Minute)
				is := d.is(t, id, c.state, 0)
				if !strings.Contains(is.Why, c.why) || len(q.parks) != c.parks {
					t.Errorf("after %d tries it says %q", len(q.parks), is.Why)
				}
				q.set(func() { q.openErr, q.parkErr = nil, nil })
				time.Sleep(time.Minute)
				if c.state == operations.Running {
					d.is(t, id, operations.Finished, 2500)
				}
			})
		})
	}
}

// It continues after a restart, where others took a part of what was there.
func TestAnAdoptionContinuesAfterARestart(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		id := d.adopt(t, operations.PlanRequest{}, operations.Start{Rate: 1000})
		time.Sleep(time.Second)
		again := newDesk(d.store)
		again.Runner.DeadLetters = q
		_, err := d.Order(ctx, editor, id, operations.Pause) // the process of before does nothing more
		must(t, err)
		done := d.look(t, id).Done
		must(t, errOf(again.Order(ctx, editor, id, operations.Resume)))
		q.set(func() { q.DeadLetterQueue.Ready = 100 })
		stop := again.run(t)
		defer stop()
		time.Sleep(time.Minute)
		again.is(t, id, operations.Finished, done+100, "were not there any more")
	})
}

// An epoch lasts as long as messages come that were delivered before: in it they have the ids that they
// had, and later equal messages are others.
func TestEpochsOfAnAdoption(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		q.again = true
		id := d.adopt(t, operations.PlanRequest{}, operations.Start{Rate: 1000})
		time.Sleep(time.Minute)
		d.is(t, id, operations.Finished, 2500)
		expect.Equal(t, fmt.Sprint(q.epochs[:22]), "["+strings.Repeat("0 ", 21)+"2100]", "are the epochs where all had been delivered before")
		q.set(func() { q.again, q.epochs, q.DeadLetterQueue.Ready = false, nil, 300 })
		d.adopt(t, operations.PlanRequest{}, operations.Start{Rate: 1000})
		time.Sleep(time.Minute)
		expect.Equal(t, fmt.Sprint(q.epochs), "[0 100 200]", "are the epochs where none had")
	})
}

// Messages that RabbitMQ has for a dead connection are adopted when it puts them back.
func TestAnAdoptionWaitsForWhatIsPutBack(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		q.away = true
		id := d.adopt(t, operations.PlanRequest{}, operations.Start{})
		time.Sleep(30 * time.Second)
		d.is(t, id, operations.Running, 0)
		q.set(func() { q.away = false })
		time.Sleep(10 * time.Second)
		d.is(t, id, operations.Finished, 2500)
	})
}

// While RabbitMQ does not answer, an adoption can be paused, and other operations go on.
func TestAnAdoptionThatHangsHoldsUpNothing(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		q.hangs = true
		id := d.adopt(t, operations.PlanRequest{}, operations.Start{})
		synctest.Wait()
		d.parked(t, "orders", 3)
		p := d.started(t, actions.Discard, "queue:orders", operations.Start{})
		d.Runner.Reread()
		time.Sleep(time.Second)
		d.is(t, p.ID, operations.Finished, 3)
		began := time.Now()
		is, err := d.Order(ctx, editor, id, operations.Pause)
		if took := time.Since(began); err != nil || is.State != operations.Paused || took > 3*time.Second {
			t.Errorf("after %s it is %s, %v", took, is.State, err)
		}
	})
}

// refusesProgress is a store that does not take an operation's progress.
type refusesProgress struct {
	store.Store
	refuses atomic.Bool
}

func (s *refusesProgress) PutEntries(ctx context.Context, entries []store.Entry) error {
	if s.refuses.Load() && strings.HasSuffix(entries[0].Name, "/progress") {
		return errors.New("MISCONF")
	}
	return s.Store.PutEntries(ctx, entries)
}

// Where its progress cannot be written, nothing more is taken, and nothing is counted twice or not.
func TestAnAdoptionThatCannotBeWrittenTakesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &refusesProgress{Store: memstore.New()}
		d := newDesk(s)
		q := &deadLetters{DeadLetterQueue: operations.DeadLetterQueue{Queue: "orders.dlq", Ready: 2500}}
		d.Runner.DeadLetters = q
		stop := d.run(t)
		defer stop()
		id := d.adopt(t, operations.PlanRequest{}, operations.Start{Rate: 1000})
		time.Sleep(250 * time.Millisecond)
		s.refuses.Store(true)
		time.Sleep(time.Second)
		taken := len(q.parks)
		time.Sleep(time.Minute)
		expect.Equal(t, len(q.parks), taken, "times something is taken")
		s.refuses.Store(false)
		time.Sleep(time.Minute)
		d.is(t, id, operations.Finished, 2500)
	})
}

func TestWhoMayAdoptWhat(t *testing.T) {
	adopting(t, func(t *testing.T, d *desk, q *deadLetters) {
		only := func(queues ...string) auth.Caller { c := caller(auth.Editor); c.Queues = queues; return c }
		for _, c := range []struct {
			by   auth.Caller
			r    operations.PlanRequest
			want error
		}{
			{operator, operations.PlanRequest{From: "orders.dlq"}, auth.ErrForbidden},
			{only("mail*"), operations.PlanRequest{From: "orders.dlq"}, auth.ErrForbidden},
			{only("*.dlq"), operations.PlanRequest{From: "orders.dlq", WorkQueues: []string{"orders"}}, auth.ErrForbidden},
			{only("*.dlq"), operations.PlanRequest{From: "orders.dlq"}, nil},
			{editor, operations.PlanRequest{From: "redrive.intake"}, inspect.ErrInvalid},
			{editor, operations.PlanRequest{}, inspect.ErrInvalid},
			{editor, operations.PlanRequest{From: "orders.dlq", Query: "queue:a"}, inspect.ErrInvalid},
			{editor, operations.PlanRequest{From: "orders.dlq", Limit: -1}, inspect.ErrInvalid},
		} {
			c.r.Verb = actions.Adopt
			expect.Err(t, errOf(d.Plan(ctx, c.by, c.r)), c.want, "%v: %+v", c.by.Queues, c.r)
		}
		seen, err := d.DeadLetterQueues(ctx, only("orders*"))
		must(t, err)
		if len(seen) != 1 || seen[0].Queue != "orders.dlq" {
			t.Errorf("who sees orders* is shown %+v", seen)
		}
		p := d.planAs(t, only("*.dlq"), operations.PlanRequest{Verb: actions.Adopt, From: "orders.dlq"})
		q.Follow = &operations.Follow{Queue: "orders", State: operations.Following}
		seen, err = d.DeadLetterQueues(ctx, only("*.dlq"))
		must(t, err)
		if len(p.Leads)+len(seen[0].WorkQueues) > 0 || seen[0].Follow.Queue != "" {
			t.Errorf("who sees *.dlq is shown %v, %v and %+v", p.Leads, seen[0].WorkQueues, seen[0].Follow)
		}
		seen, err = d.DeadLetterQueues(ctx, only("orders*"))
		must(t, err)
		expect.Equal(t, seen[0].Follow.Queue, "orders", "is shown to who sees it")
		_, err = d.Act(ctx, editor, actions.Act{Verb: actions.Adopt, IDs: []string{"x"}})
		expect.Err(t, err, inspect.ErrInvalid, "adopt as an act on messages")
		for _, blocked := range []operations.DeadLetterQueue{{Refused: "a stream"}, {Doubt: "it has consumers", Ready: 1}, {Ready: 0}} {
			q.set(func() { q.DeadLetterQueue = blocked })
			p := d.planAs(t, editor, operations.PlanRequest{Verb: actions.Adopt, From: "orders.dlq"})
			expect.Err(t, errOf(d.Start(ctx, editor, p.ID, operations.Start{})), inspect.ErrPrecondition,
				"start of %+v", blocked)
		}
	})
}
