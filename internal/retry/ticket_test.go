package retry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

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
	policies := policy.Set{{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(2 * time.Second), Jitter: policy.None}}
	queues := retry.NewDelayQueues(b, func() policy.Set { return policies }, 0, func(string, error) {})
	return retry.NewIntake(s, retry.Rules{Policies: policies, Ways: map[string]delay.Way{"p": w}}, queues, func(retry.Event) {}), queues
}

// A message that is to wait in RabbitMQ is published as its way says, and asked for no
// longer than that can.
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

// slowConfirms confirms after a while.
type slowConfirms struct {
	faultyBroker
	after time.Duration
}

func (b *slowConfirms) Send(ctx context.Context, out []wire.Outgoing) func(context.Context) []error {
	wait := b.faultyBroker.Send(ctx, out)
	return func(ctx context.Context) []error { time.Sleep(b.after); return wait(ctx) }
}

// A delay queue that expires may be gone, with what was published to it, when the confirm
// comes late: then the message is kept.
func TestALateConfirmOfAnExpiringQueueDoesNotCount(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		kept  int
	}{{500 * time.Millisecond, 0}, {2 * time.Second, 1}} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			f, hold := newTicketedIntake(s, &slowConfirms{after: c.after}, &ticketed{longest: time.Hour, ticket: delay.Ticket{Exchange: "e", DeclareFirst: &delay.Topology{}, ConfirmWithin: time.Second}})
			must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
			if n := len(kept(t, s)); n != c.kept {
				t.Errorf("confirmed after %s: %d are kept, want %d", c.after, n, c.kept)
			}
			hold.Wait()
		})
	}
}

// What somebody deleted is declared again for the next message; the one that found out is
// kept.
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
	if n := len(kept(t, s)); n != 1 {
		t.Errorf("%d are kept, want the one that RabbitMQ returned", n)
	}
}

// Where messages stand behind each other, one whose consumer asked for a delay of its own
// waits in the store.
func TestASuggestedDelayDelaysNoOtherMessage(t *testing.T) {
	for blocks, want := range map[bool]int{false: 1, true: 0} {
		b, s := &faultyBroker{}, memstore.New()
		w := &ticketed{longest: time.Hour, blocks: blocks, ticket: delay.Ticket{Exchange: "e"}, delays: new([]time.Duration)}
		policies := policy.Set{{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(2 * time.Second)}}
		f := retry.NewIntake(s, retry.Rules{Policies: policies, Ways: map[string]delay.Way{"p": w}}, retry.NewDelayQueues(b, func() policy.Set { return policies }, 0, func(string, error) {}), func(retry.Event) {})
		must(t, f.Handle(t.Context(), []wire.Delivery{{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "q", Headers: amqp.Table{wire.HeaderDelay: int64(500)}}}}))
		if len(b.sent) != want || len(kept(t, s)) != 1-want {
			t.Errorf("blocks %v: %d wait in RabbitMQ, %d in the store", blocks, len(b.sent), len(kept(t, s)))
		}
	}
}

// A batch that could not be kept does not come again over a new connection as it was: what
// RabbitMQ had of it says nothing about the next one.
func TestANewConnectionForgetsTheUnfinishedBatch(t *testing.T) {
	b, s := &faultyBroker{}, &failing{Store: memstore.New(), err: store.ErrFull}
	f := newHeldFlow(t, s, b)
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
