package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
}

// settle ends an attempt that failed. The error is nil when RabbitMQ has, as far
// as anybody can know, what it needs; otherwise the message is not acknowledged
// and will be delivered again.
func (s *settler) settle(ctx context.Context, d *amqp.Delivery, m *Message, unreadable string, failure error) (Outcome, error) {
	// What the handler did to the message stays with the handler, but for headers.
	headers := m.Headers
	first := message(d, s.queue, s.limits.Linear)
	m.Message = first.Message
	if headers != nil {
		m.Headers = headers
	}
	if m.ID == "" {
		m.ID = newID(s.queue, &m.Message)
	}
	v, t := s.judge(m, failure, unreadable)
	switch v.Action {
	case policy.Discard:
		return Discarded, d.Ack(false)
	case policy.Return:
		if t.Requeue {
			return Retried, d.Reject(true)
		}
		if err := s.handOver(ctx, s.outgoing(m, failure, "", t), t, false); err != nil {
			return Unsettled, err
		}
		return Retried, d.Ack(false)
	case policy.Forward:
		to := wait.Ticket{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		err := s.handOver(ctx, s.outgoing(m, failure, "", to), to, true)
		if err == nil {
			return Forwarded, d.Ack(false)
		}
		if ctx.Err() != nil {
			return Unsettled, err
		}
		v.Why = fmt.Sprintf("%s, and cannot be forwarded to %s: %v", v.Why, v.Forward, err)
	}
	to := wait.Ticket{Exchange: wire.ExchangeParked, RoutingKey: s.queue}
	if err := s.handOver(ctx, s.outgoing(m, failure, v.Why, to), to, false); err != nil {
		return Unsettled, err
	}
	return Parked, d.Ack(false)
}

// judge decides, and finds where the message waits. It has no effects.
func (s *settler) judge(m *Message, failure error, unreadable string) (policy.Verdict, wait.Ticket) {
	v := s.decide(m, failure, unreadable)
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
func (s *settler) decide(m *Message, failure error, unreadable string) policy.Verdict {
	var park *parkError
	var again *retryError
	switch {
	case errors.Is(failure, Discard):
		return policy.Verdict{Action: policy.Discard}
	case unreadable != "":
		return policy.Verdict{Why: unreadable}
	case errors.As(failure, &park):
		return policy.Verdict{Why: "its consumer said that another attempt is in vain"}
	case errors.As(failure, &again): // whatever Retry says
	case s.retry != nil && !s.retry(failure):
		return policy.Verdict{Why: "its error is none that is retried"}
	}
	if s.limits.Decides {
		v := policy.Verdict{Action: policy.Return}
		if again != nil {
			v.Delay = max(again.after, 0)
		}
		return v
	}
	f := policy.Failure{Queue: s.queue, Reason: policy.Reported, Attempt: m.Attempt, Seed: seed(m.ID, m.Attempt)}
	if again != nil {
		f.Suggested = max(again.after, 1)
	}
	return s.policy.Decide(f)
}

// Decision is what becomes of a failed attempt.
type Decision struct {
	Outcome Outcome
	// Delay of a message that is retried, as long as it will really be: rounded up
	// to what the way can keep. With Service it is a wish, or 0: the service
	// decides; with Native it is the queue's, which has its own arguments.
	Delay time.Duration
	Why   string // it is parked, discarded or forwarded by the policy
}

// Decide tells what would become of m if its handler returned failure, which is
// not nil. It does nothing else: Run decides by the same.
func (c *Consumer) Decide(m *Message, failure error) Decision {
	v, t := c.settler.judge(m, failure, "")
	return Decision{map[policy.Action]Outcome{policy.Park: Parked, policy.Return: Retried, policy.Discard: Discarded, policy.Forward: Forwarded}[v.Action], t.Delay, v.Why}
}
