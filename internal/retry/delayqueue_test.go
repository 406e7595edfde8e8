package retry_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

type delayingIntake struct {
	*retry.Intake
	inForce *retry.InForce
	hold    *retry.DelayQueues
	reports []error
	events  []retry.Event
}

// newHeldFlow has a policy that waits in levels, but for the queue "kept", and a confirm timeout.
func newHeldFlow(t *testing.T, s store.Store, b *faultyBroker, c retry.Consent, timeout time.Duration) *delayingIntake {
	t.Helper()
	way, err := delay.NewLevels(delay.Quorum, 2*time.Second)
	must(t, err)
	rules := retry.Rules{Ways: map[string]delay.Way{"levels": way}, Policies: policy.Set{
		{Name: "kept", Queues: []string{"kept"}, Attempts: 3, Backoff: policy.Fixed(time.Second)},
		{Name: "levels", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second), Jitter: policy.None},
	}}
	h := &delayingIntake{inForce: retry.NewInForce(rules)}
	h.hold = retry.NewDelayQueues(b, h.inForce.Policies, c, timeout, func(_ string, err error) { h.reports = append(h.reports, err) })
	h.Intake = retry.NewIntake(s, h.inForce, h.hold, nil, nil, func(e retry.Event) {
		if e.Kind == retry.Waiting {
			h.events = append(h.events, e)
		}
	})
	return h
}

// A batch that cannot be stored is passed again; what RabbitMQ has of it already is not published
// twice. The ledger counts each message that RabbitMQ accepted to wait there, once, and none that
// it did not accept.
func TestABatchThatIsOfferedAgainIsDelayedOnce(t *testing.T) {
	ctx := context.Background()
	b, s := &faultyBroker{}, &failing{Store: memstore.New(), err: store.ErrFull}
	f := newHeldFlow(t, s, b, nil, 0)
	batch := []wire.Delivery{deadLetter("a", "1"), deadLetter("kept", "2"), deadLetter("b", "3")}
	for range 3 {
		if err := f.Handle(ctx, batch); !errors.Is(err, store.ErrFull) {
			t.Fatalf("%v; want it to be full", err)
		}
	}
	s.err = nil
	must(t, f.Handle(ctx, batch))
	if all := kept(t, s); len(b.sent) != 2 || len(all) != 1 || all[0].Record.Queue != "kept" || len(f.events) != 3 {
		t.Errorf("%d were sent, %d kept, %d events", len(b.sent), len(all), len(f.events))
	}
	if err := f.Handle(ctx, batch); err != nil || len(b.sent) != 4 { // another batch, though it looks the same
		t.Errorf("%d were sent, %v; want 4", len(b.sent), err)
	}
	expect.Equal(t, b.declared, 2, "declarations")
	b.answer = wire.ErrNacked
	batch = []wire.Delivery{deadLetter("a", "4")}
	for _, s.err = range []error{store.ErrFull, store.ErrFull, nil} {
		if err := f.Handle(ctx, batch); !errors.Is(err, s.err) {
			t.Fatalf("%v; want %v", err, s.err)
		}
	}
	// Receipts are written before, and once.
	if all, err := s.Receipts(ctx); err != nil || len(all) != 7 {
		t.Errorf("%d receipts of 7 messages, %v", len(all), err)
	}
	lines, err := s.Ledger(ctx)
	must(t, err)
	got := map[string][2]int64{}
	for _, l := range lines {
		got[l.Queue] = [2]int64{l.Sums[store.Delayed], l.Sums[store.Waiting]}
	}
	if want := map[string][2]int64{"a": {2, 1}, "b": {2, 0}, "kept": {0, 2}}; !maps.Equal(got, want) {
		t.Errorf("handed over and waiting: %v; want %v", got, want)
	}
}

// New rules do not also store, park or discard messages of a repeated batch that wait in RabbitMQ already.
func TestARuleThatChangesWhileABatchIsOfferedAgainDoublesNothing(t *testing.T) {
	ctx := context.Background()
	every := policy.Policy{Name: "new", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}
	last := every
	last.Attempts, last.Exhausted = 1, policy.Exhausted{Action: policy.Discard}
	for name, rules := range map[string]retry.Rules{"in the store": {Policies: policy.Set{every}}, "discarded": {Policies: policy.Set{last}}, "parked": {}} {
		t.Run(name, func(t *testing.T) {
			b, s := &faultyBroker{}, &failing{Store: memstore.New(), err: store.ErrFull}
			f := newHeldFlow(t, s, b, nil, 0)
			batch := []wire.Delivery{deadLetter("a", "1"), deadLetter("kept", "2"), deadLetter("b", "3")}
			if err := f.Handle(ctx, batch); !errors.Is(err, store.ErrFull) || len(b.sent) != 2 {
				t.Fatalf("%d were sent, %v; want it to be full", len(b.sent), err)
			}
			f.inForce.Replace(rules)
			s.err = nil
			must(t, f.Handle(ctx, batch))
			for _, l := range kept(t, s) {
				expect.Equal(t, l.Record.Queue, "kept",
					"%s of queue … is kept, and waits in RabbitMQ", l.Record.Message.Body)
			}
			levels := 0
			for _, e := range f.events {
				if e.Way == "levels" {
					levels++
				}
			}
			if levels != 2 || len(b.sent) != 2 {
				t.Errorf("events for %d that wait in RabbitMQ, which has %d; want 2", levels, len(b.sent))
			}
			lines, err := s.Ledger(ctx)
			for _, l := range lines {
				if l.Queue != "kept" && (l.Sums[store.In] != 1 || l.Sums[store.Delayed] != 1) || err != nil {
					t.Errorf("the ledger has %+v, %v", l, err)
				}
			}
		})
	}
}

// A message published to RabbitMQ keeps its id when RabbitMQ redelivers it because the acknowledgement was lost.
func TestARedeliveryOfWhatWaitsInRabbitMQKeepsItsID(t *testing.T) {
	ctx := context.Background()
	b, s := &faultyBroker{}, memstore.New()
	batch := []wire.Delivery{deadLetter("q", "same"), deadLetter("q", "same"), deadLetter("q", "other")}
	for range 2 { // two processes
		f := newHeldFlow(t, s, b, nil, 0)
		must(t, f.Connected(ctx))
		must(t, f.Handle(ctx, batch))
		for i := range batch {
			batch[i].Redelivered = true
		}
	}
	ids := map[string]int{}
	for _, o := range b.sent {
		ids[o.ID]++
	}
	if len(b.sent) != 6 || len(ids) != 3 {
		t.Errorf("%d were sent with the ids %v; want each of three twice", len(b.sent), ids)
	}
}

// The store keeps messages without an answer, and not those that RabbitMQ has confirmed in time.
func TestOnlyUnconfirmedMessagesAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := &faultyBroker{stuck: "q"}, memstore.New()
		f := newHeldFlow(t, s, b, nil, 0)
		began := time.Now()
		must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x"), deadLetter("r", "x")}))
		if all := kept(t, s); len(b.sent) != 2 || len(all) != 1 || all[0].Record.Queue != "q" {
			t.Errorf("%d were sent, and %d kept", len(b.sent), len(all))
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the batch took %s", d)
		}
		must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("r", "x")})) // left alone for now
		if len(b.sent) != 2 || len(kept(t, s)) != 2 {
			t.Errorf("%d were sent, and %d kept", len(b.sent), len(kept(t, s)))
		}
		f.hold.Wait()
	})
}

// The intake waits neither for a blocked connection nor for a publish that hangs, and reports that once.
func TestRabbitMQsTroubleDoesNotStopTheIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		b, s := &faultyBroker{hangs: make(chan struct{})}, memstore.New()
		f := newHeldFlow(t, s, b, nil, 0)
		handle := func(most time.Duration) {
			t.Helper()
			began := time.Now()
			must(t, f.Handle(ctx, []wire.Delivery{deadLetter("q", "x"), deadLetter("r", "x")}))
			if d := time.Since(began); d > most {
				t.Errorf("a batch took %s", d)
			}
		}
		handle(5 * time.Second) // hangs
		handle(0)               // still hangs: nothing is tried
		close(b.hangs)
		synctest.Wait()
		handle(0) // it failed just now: not tried
		time.Sleep(20 * time.Second)
		b.blocked = true
		handle(0)
		if n := len(kept(t, s)); n != 8 || len(b.sent) != 2 {
			t.Errorf("%d are kept, %d were sent; want all 8 kept", n, len(b.sent))
		}
		if len(f.reports) != 1 || f.reports[0] == nil {
			t.Errorf("it reported %v; want one trouble", f.reports)
		}
		b.blocked, b.answer = false, wire.ErrNacked
		handle(0)
		b.answer = nil
		handle(0)
		if len(f.reports) != 1 {
			t.Errorf("reports %v at once; it may fail for another queue", f.reports)
		}
		time.Sleep(5 * time.Second)
		handle(0)
		if n := len(kept(t, s)); n != 10 || len(f.reports) != 2 || f.reports[1] != nil {
			t.Errorf("%d are kept, reports %v; want 10, and that all is well", n, f.reports)
		}
		for i, e := range f.events {
			if waits := e.Way == "levels" && e.Delay == 2*time.Second && e.Instead == ""; waits != (i >= 10) {
				t.Errorf("event %d is %+v", i, e)
			}
		}
		f.hold.Wait()
	})
}

// A batch may take as long as the service is configured, 5 s by default, and the report says how long that was.
func TestTheConfirmTimeoutOfABatch(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{0: 5 * time.Second, 10 * time.Minute: 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := &faultyBroker{hangs: make(chan struct{})}
			f := newHeldFlow(t, memstore.New(), b, nil, timeout)
			began := time.Now()
			must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
			if took := time.Since(began); took != want || len(f.reports) != 1 || !strings.HasSuffix(f.reports[0].Error(), "within "+want.String()) {
				t.Errorf("with a timeout of %s it took %s, and reports %v", timeout, took, f.reports)
			}
			close(b.hangs)
			f.hold.Wait()
		})
	}
}

// "Not enrolled" is no answer for ever: for a later failure RabbitMQ is asked again, and then messages wait there.
func TestAReportWaitsInRabbitMQOnceItsQueueIsEnrolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{there: map[string]bool{}, lookups: map[string]int{}}
		hold := retry.NewDelayQueues(b, anyQueue, nil, 0, func(string, error) {})
		way, err := delay.NewLevels(delay.Quorum, 2*time.Second)
		must(t, err)
		f := retry.NewIntake(memstore.New(), retry.NewInForce(retry.Rules{Policies: anyQueue(), Ways: map[string]delay.Way{"p": way}}), hold, nil, nil, none)
		report := func() {
			t.Helper()
			must(t, f.Handle(t.Context(), []wire.Delivery{{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "late"}}}))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		report()
		report()
		b.there["late"] = true
		expect.Equal(t, len(b.sent), 0, "were sent before the queue was enrolled")
		report() // asks
		report()
		expect.Equal(t, len(b.sent), 1, "wait in RabbitMQ once the queue is enrolled")
		hold.Wait()
	})
}

// ticketed is a way that says the same of each message, and notes the delays.
type ticketed struct {
	ticket  delay.Ticket
	longest time.Duration
	blocks  bool
	delays  *[]time.Duration
}

func (w *ticketed) Limits() delay.Limits {
	return delay.Limits{Name: "ticketed", Longest: w.longest, Blocks: w.blocks}
}

func (w *ticketed) Topology(string) delay.Topology { return delay.Topology{} }

func (w *ticketed) Ticket(_ string, d time.Duration) (delay.Ticket, error) {
	*w.delays = append(*w.delays, d)
	return w.ticket, nil
}

// newTicketedIntake has a policy whose messages wait 2 s by a ticket.
func newTicketedIntake(s *memstore.Store, b retry.Declarer, w *ticketed) (*retry.Intake, *retry.DelayQueues) {
	w.delays = new([]time.Duration)
	policies := policy.Set{{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(2 * time.Second), Jitter: policy.None}}
	queues := retry.NewDelayQueues(b, func() policy.Set { return policies }, nil, 0, func(string, error) {})
	return retry.NewIntake(s, retry.NewInForce(retry.Rules{Policies: policies, Ways: map[string]delay.Way{"p": w}}), queues, nil, nil, none), queues
}

// A message that waits in RabbitMQ is published as its way says, and never for longer than the way can.
func TestWhatWaitsInRabbitMQIsPublishedAsItsWaySays(t *testing.T) {
	b := &faultyBroker{}
	for _, unchecked := range []bool{false, true} {
		w := &ticketed{longest: time.Second, ticket: delay.Ticket{Exchange: "e", RoutingKey: "k", Expiration: "1000", Headers: amqp.Table{"x-delay": int64(7)}, Unchecked: unchecked}}
		f, _ := newTicketedIntake(memstore.New(), b, w)
		must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
		o := b.sent[len(b.sent)-1]
		if o.Exchange != "e" || o.RoutingKey != "k" || o.Unchecked != unchecked || o.Message.Expiration != "1000" || o.Message.Headers["x-delay"] != int64(7) || o.Message.Headers[wire.HeaderID] != o.ID {
			t.Errorf("it was published as %+v, %+v", o, o.Message)
		}
		if d := *w.delays; len(d) != 1 || d[0] != time.Second {
			t.Errorf("it was to wait %v, and the longest is 1s", d)
		}
	}
}

// An expiring delay queue may be gone when the confirm comes late: then the message is stored.
func TestALateConfirmOfAnExpiringQueueDoesNotCount(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		kept  int
	}{{500 * time.Millisecond, 0}, {2 * time.Second, 1}} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			f, hold := newTicketedIntake(s, &faultyBroker{after: c.after}, &ticketed{longest: time.Hour, ticket: delay.Ticket{Exchange: "e", DeclareFirst: &delay.Topology{}, ConfirmWithin: time.Second}})
			must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
			expect.Equal(t, len(kept(t, s)), c.kept, "confirmed after %s: kept", c.after)
			hold.Wait()
		})
	}
}

// A deleted exchange or queue is declared again for the next message; the message that found out waits in the store.
func TestADeletedDelayQueueIsDeclaredAgain(t *testing.T) {
	b, s := &faultyBroker{}, memstore.New()
	f, _ := newTicketedIntake(s, b, &ticketed{longest: time.Hour, ticket: delay.Ticket{Exchange: "e", DeclareFirst: &delay.Topology{}, ConfirmWithin: time.Hour}})
	for i, answer := range []error{nil, wire.ErrUnroutable, nil} {
		b.answer = answer
		must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
		if want := []int{2, 2, 4}[i]; b.declared != want {
			t.Errorf("%d declarations after message %d, want %d", b.declared, i, want)
		}
	}
	expect.Equal(t, len(kept(t, s)), 1, "are kept")
}

// If a way blocks at the head, a message whose consumer asked for a delay waits in the store.
func TestASuggestedDelayDelaysNoOtherMessage(t *testing.T) {
	for blocks, want := range map[bool]int{false: 1, true: 0} {
		b, s := &faultyBroker{}, memstore.New()
		f, _ := newTicketedIntake(s, b, &ticketed{longest: time.Hour, blocks: blocks, ticket: delay.Ticket{Exchange: "e"}})
		must(t, f.Handle(t.Context(), []wire.Delivery{{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "q", Headers: amqp.Table{wire.HeaderDelay: int64(500)}}}}))
		if len(b.sent) != want || len(kept(t, s)) != 1-want {
			t.Errorf("blocks %v: %d wait in RabbitMQ, %d in the store", blocks, len(b.sent), len(kept(t, s)))
		}
	}
}

// What RabbitMQ had of a batch before a reconnect says nothing about the next one.
func TestANewConnectionForgetsTheUnfinishedBatch(t *testing.T) {
	b, s := &faultyBroker{}, &failing{Store: memstore.New(), err: store.ErrFull}
	f := newHeldFlow(t, s, b, nil, 0)
	must(t, f.Connected(t.Context()))
	if err := f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "first"), deadLetter("kept", "x")}); err == nil {
		t.Fatal("a full store kept it")
	}
	f.Disconnected()
	s.err = nil
	must(t, f.Connected(t.Context()))
	must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "second")}))
	if len(b.sent) != 2 || string(b.sent[1].Message.Body) != "second" {
		t.Errorf("%d were sent, want another of the second connection", len(b.sent))
	}
}

// reportOf is a report for a queue that nothing proves.
func reportOf(queue string) wire.Delivery {
	return wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: queue}}
}

// A report for a queue that is no target waits in the store and declares nothing; those behind it go to RabbitMQ.
func TestWhatStandsBehindAReportWaitsInRabbitMQ(t *testing.T) {
	b, s := &faultyBroker{}, memstore.New()
	f := newHeldFlow(t, s, b, nil, 0)
	must(t, f.Handle(t.Context(), []wire.Delivery{reportOf("secret"), reportOf("secret"), deadLetter("q", "x"), reportOf("secret"), deadLetter("r", "y")}))
	for _, l := range kept(t, s) {
		expect.Equal(t, l.Record.Queue, "secret", "a message of … is stored")
	}
	if len(kept(t, s)) != 3 || len(b.sent) != 2 || b.declared != 2 || len(f.reports) != 0 {
		t.Errorf("%d are stored and %d wait in RabbitMQ, %d declared, reported %v; want 3, 2, 2 and nothing", len(kept(t, s)), len(b.sent), b.declared, f.reports)
	}
	f.hold.Wait()
}

// A failing way is reported, and works again when it has not failed for 3 s.
func TestWhenAWayWorksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := &faultyBroker{answer: wire.ErrNacked}, memstore.New()
		f := newHeldFlow(t, s, b, nil, 0)
		handle := func(batch ...wire.Delivery) { t.Helper(); must(t, f.Handle(t.Context(), batch)) }
		handle(reportOf("secret"), deadLetter("q", "x"))
		if len(f.reports) != 1 || !errors.Is(f.reports[0], wire.ErrNacked) {
			t.Fatalf("reported %v, want that the way fails", f.reports)
		}
		b.answer = nil
		time.Sleep(3*time.Second - 1)
		if handle(deadLetter("q", "x")); len(f.reports) != 1 {
			t.Errorf("a moment early: reported %v", f.reports)
		}
		time.Sleep(time.Nanosecond)
		if handle(deadLetter("q", "x")); len(f.reports) != 2 || f.reports[1] != nil {
			t.Errorf("after 3 s: reported %v, want that it works", f.reports)
		}
		f.hold.Wait()
	})
}

// That RabbitMQ cannot accept a message, that its queue is gone, or that RabbitMQ cannot be asked about it, is not its
// way's fault.
func TestAWayIsNotToBlameForAMessage(t *testing.T) {
	down := &consent{err: errors.New("the management API is down")}
	for name, c := range map[string]struct {
		answer error
		of     wire.Delivery
		sent   int
	}{
		"unacceptable": {wire.ErrUnacceptable, deadLetter("q", "x"), 1},
		"queue gone":   {wire.ErrQueueGone, deadLetter("q", "x"), 1},
		"unknown":      {nil, reportOf("reported"), 0},
	} {
		b, s := &faultyBroker{answer: c.answer}, memstore.New()
		f := newHeldFlow(t, s, b, down, 0)
		must(t, f.Handle(t.Context(), []wire.Delivery{c.of}))
		all := kept(t, s)
		if len(all) != 1 || all[0].Record.State != store.Waiting || len(b.sent) != c.sent || len(f.reports) != 0 {
			t.Errorf("%s: kept %d, sent %d, reports %v", name, len(all), len(b.sent), f.reports)
		}
		f.hold.Wait()
	}
}
