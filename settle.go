package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// settler does with a message what its attempt asks for: hand it over, wait for
// RabbitMQ's confirm, and only then acknowledge it.
type settler struct {
	queue   string
	policy  *policy.Policy
	retry   func(error) bool
	way     wait.Way
	limits  wait.Limits
	verify  bool
	log     *slog.Logger
	publish *broker.Publisher

	declared sync.Map // by exchange: since when what a ticket needed first is there
	sender   *sender
	trouble  atomic.Bool // handing over fails, and that was logged
	early    early       // Native: retries that come back too soon
	cut      atomic.Bool // a handler asked for too long a wait, and that was logged
}

// settle ends an attempt that failed. The error is nil when RabbitMQ has, as far
// as anybody can know, what it needs; otherwise the message is not acknowledged
// and will be delivered again.
func (s *settler) settle(ctx context.Context, d *amqp.Delivery, m *Message, unreadable string, f failure) (Outcome, error) {
	// What the handler did to the message stays with the handler, but for headers.
	headers := m.Headers
	m.Message = message(d, s.queue, s.limits.Linear).Message
	delivered := m.Headers
	if headers != nil {
		m.Headers = headers
	}
	if m.ID == "" {
		m.ID = newID(s.queue, &m.Message)
	}
	outcome, err := s.dispose(ctx, d, m, unreadable, &f)
	if errors.Is(err, wire.ErrUnacceptable) && !reflect.DeepEqual(m.Headers, delivered) {
		s.log.Warn("the headers that a handler has set cannot be published; the message keeps those it was delivered with", "queue", s.queue, "id", m.ID, "error", err)
		m.Headers = delivered
		outcome, err = s.dispose(ctx, d, m, unreadable, &f)
	}
	return outcome, err
}

// dispose does what is decided.
func (s *settler) dispose(ctx context.Context, d *amqp.Delivery, m *Message, unreadable string, f *failure) (Outcome, error) {
	v, t := s.judge(m, f, unreadable)
	if v.Asked > 0 && s.cut.CompareAndSwap(false, true) { // once, not for each message
		s.log.Warn("a handler asked by RetryIn for a longer wait than the policy allows; Policy.MaxRetryIn raises that", "queue", s.queue, "id", m.ID, "asked", v.Asked, "waits", v.Delay)
	}
	switch v.Action {
	case policy.Discard:
		return ended(Discarded, Unsettled, d.Ack(false))
	case policy.Return:
		if t.Requeue {
			s.early.watch(m, t.Delay)
			return ended(Retried, Unsettled, d.Reject(true))
		}
		if err := s.handOver(ctx, s.outgoing(m, f, "", t), t, false); err != nil {
			return Unsettled, err
		}
		return ended(Retried, Unacknowledged, d.Ack(false))
	case policy.Forward:
		to := wait.Ticket{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		err := s.handOver(ctx, s.outgoing(m, f, "", to), to, true)
		if err == nil {
			return ended(Forwarded, Unacknowledged, d.Ack(false))
		}
		if ctx.Err() != nil {
			return Unsettled, err
		}
		v.Why = fmt.Sprintf("%s, and cannot be forwarded to %s: %v", v.Why, v.Forward, err)
	}
	to := wait.Ticket{Exchange: wire.ExchangeParked, RoutingKey: s.queue}
	if err := s.handOver(ctx, s.outgoing(m, f, v.Why, to), to, false); err != nil {
		return Unsettled, err
	}
	return ended(Parked, Unacknowledged, d.Ack(false))
}

// ended is the outcome of an attempt, by whether RabbitMQ could be told of its end.
func ended(yes, no Outcome, err error) (Outcome, error) {
	if err != nil {
		return no, err
	}
	return yes, nil
}

// judge decides, and finds where the message waits. It has no effects.
func (s *settler) judge(m *Message, f *failure, unreadable string) (policy.Verdict, wait.Ticket) {
	v := s.decide(m, f, unreadable)
	if v.Action != policy.Return {
		return v, wait.Ticket{}
	}
	// Only jitter can pass the longest, since the policy's own waits were checked.
	t, err := s.way.Hold(s.queue, min(v.Delay, s.limits.Longest))
	if err != nil {
		return policy.Verdict{Why: err.Error()}, wait.Ticket{}
	}
	if s.limits.Decides && v.Delay > 0 {
		t.Headers = amqp.Table{wire.HeaderDelay: v.Delay.Milliseconds()}
	}
	return v, t
}

// decide asks the policy, unless the handler has decided.
func (s *settler) decide(m *Message, f *failure, unreadable string) policy.Verdict {
	switch {
	case f.discard:
		return policy.Verdict{Action: policy.Discard}
	case unreadable != "":
		return policy.Verdict{Why: unreadable}
	case f.park:
		return policy.Verdict{Why: "its consumer said that another attempt is in vain"}
	case f.refused:
		return policy.Verdict{Why: "its error is none that is retried"}
	}
	if s.limits.Decides {
		v := policy.Verdict{Action: policy.Return}
		if f.again != nil {
			v.Delay = max(f.again.after, 0)
		}
		return v
	}
	of := policy.Failure{Queue: s.queue, Reason: policy.Reported, Attempt: m.Attempt, Seed: seed(m.ID, m.Attempt)}
	if f.again != nil {
		of.Suggested = max(f.again.after, 1)
	}
	return s.policy.Decide(of)
}

// Decision is what becomes of a failed attempt.
type Decision struct {
	Outcome Outcome
	// Delay of a message that is retried, as long as it will really be: rounded up
	// to what the way can keep. With Service it is a wish, or 0: the service
	// decides; with Native it is the queue's, which has its own arguments.
	Delay time.Duration
	// Asked is what RetryIn asked for, where the policy allows less; else 0.
	Asked time.Duration
	Why   string // it is parked, discarded or forwarded by the policy
}

// Decide tells what would become of m if its handler returned failure, which is
// not nil. It does nothing else: Run decides by the same.
func (c *Consumer) Decide(m *Message, failure error) Decision {
	f := c.settler.read(failure)
	v, t := c.settler.judge(m, &f, "")
	return Decision{map[policy.Action]Outcome{policy.Park: Parked, policy.Return: Retried, policy.Discard: Discarded, policy.Forward: Forwarded}[v.Action], t.Delay, v.Asked, v.Why}
}
