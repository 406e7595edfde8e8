package retry_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// reportOf is a report for a queue that nothing proves.
func reportOf(queue string) wire.Delivery {
	return wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: queue}}
}

// A report that cannot wait in RabbitMQ is stored, and so is another for its queue; what comes
// behind them in the batch waits there all the same.
func TestWhatStandsBehindAReportWaitsInRabbitMQ(t *testing.T) {
	b, s := &faultyBroker{}, memstore.New()
	f := newHeldFlow(t, s, b)
	must(t, f.Handle(t.Context(), []wire.Delivery{reportOf("secret"), reportOf("secret"), deadLetter("q", "x"), reportOf("secret"), deadLetter("r", "y")}))
	for _, l := range kept(t, s) {
		if l.Record.Queue != "secret" {
			t.Errorf("a message of %s is stored", l.Record.Queue)
		}
	}
	if len(kept(t, s)) != 3 || len(b.sent) != 2 {
		t.Errorf("%d are stored and %d wait in RabbitMQ, want 3 and 2", len(kept(t, s)), len(b.sent))
	}
	f.hold.Wait()
}

// A way that fails is reported, whatever stands before in the batch that the way is not to blame
// for. It works again when it has not failed for 3 s.
func TestWhenAWayWorksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := &faultyBroker{answer: wire.ErrNacked}, memstore.New()
		f := newHeldFlow(t, s, b)
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

// A message that RabbitMQ refuses for what it is, and one whose queue is gone, are no fault of
// their way.
func TestAWayIsNotToBlameForAMessage(t *testing.T) {
	for _, answer := range []error{wire.ErrUnacceptable, wire.ErrQueueGone} {
		b, s := &faultyBroker{answer: answer}, memstore.New()
		f := newHeldFlow(t, s, b)
		must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
		if len(kept(t, s)) != 1 || len(f.reports) != 0 {
			t.Errorf("%v: %d are stored, reported %v", answer, len(kept(t, s)), f.reports)
		}
		f.hold.Wait()
	}
}
