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
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// acknowledger does with a message what its attempt asks for: publish it elsewhere, wait for
// RabbitMQ's confirm, and only then acknowledge it.
type acknowledger struct {
	consumer Consumer // validated, with its defaults
	way      delay.Way
	limits   delay.Limits
	verify   bool
	log      *slog.Logger
	publish  *broker.Publisher
	closed   <-chan struct{} // of the client
	parked   func(ParkedMessage)

	declared        sync.Map    // by exchange: when a ticket's DeclareFirst was declared
	publishFails    atomic.Bool // publishing fails, and that was logged
	early           nativeEarly // Native: messages that the queue delivers again too soon
	shortenedLogged atomic.Bool // a handler asked for too long a wait, and that was logged
}

// acknowledge ends an attempt that failed. A nil error means that the message is acknowledged,
// after RabbitMQ has confirmed its copy where there is one, or with Native rejected, so that its
// queue delays it. Otherwise RabbitMQ delivers it again.
func (a *acknowledger) acknowledge(ctx context.Context, d *amqp.Delivery, m *Message, cannotRepublish string, f failure) (Outcome, error) {
	// What the handler did to the message stays with the handler, but for headers.
	headers := m.Headers
	*m = *message(d, a.consumer.Queue, a.limits.QueueCounts)
	delivered := m.Headers
	if headers != nil {
		m.Headers = headers
	}
	if m.ID == "" {
		m.ID = newID(a.consumer.Queue, &m.Message)
	}
	outcome, err := a.dispose(ctx, d, m, cannotRepublish, &f)
	if errors.Is(err, wire.ErrUnacceptable) && !reflect.DeepEqual(m.Headers, delivered) {
		a.log.Warn("the headers that a handler has set cannot be published; the message keeps those it was delivered with", "queue", a.consumer.Queue, "id", m.ID, "error", err)
		m.Headers = delivered
		outcome, err = a.dispose(ctx, d, m, cannotRepublish, &f)
	}
	return outcome, err
}

// dispose carries out the verdict.
func (a *acknowledger) dispose(ctx context.Context, d *amqp.Delivery, m *Message, cannotRepublish string, f *failure) (Outcome, error) {
	v, t := a.verdict(m, f, cannotRepublish)
	if v.Asked > 0 && a.shortenedLogged.CompareAndSwap(false, true) { // once, not for each message
		a.log.Warn("a handler asked by RetryAfter for a longer delay than the policy allows; Policy.MaxRetryAfter raises that", "queue", a.consumer.Queue, "id", m.ID, "asked", v.Asked, "waits", v.Delay)
	}
	switch v.Action {
	case policy.Discard:
		return outcomeOf(Discarded, Unsettled, d.Ack(false))
	case policy.Retry:
		if t.Requeue {
			a.early.watch(m, t.Delay)
			return outcomeOf(Retried, Unsettled, d.Reject(true))
		}
		if err := a.publishUntilConfirmed(ctx, a.outgoing(m, f, "", t), t, false); err != nil {
			return Unsettled, err
		}
		return outcomeOf(Retried, Unacknowledged, d.Ack(false))
	case policy.Forward:
		to := delay.Ticket{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		err := a.publishUntilConfirmed(ctx, a.outgoing(m, f, "", to), to, true)
		if err == nil {
			return outcomeOf(Forwarded, Unacknowledged, d.Ack(false))
		}
		if ctx.Err() != nil {
			return Unsettled, err
		}
		v.Why = fmt.Sprintf("%s, and cannot be forwarded to %s: %v", v.Why, v.Forward, err)
	}
	to := delay.Ticket{Exchange: wire.ExchangeParked, RoutingKey: a.consumer.Queue}
	if err := a.publishUntilConfirmed(ctx, a.outgoing(m, f, v.Why, to), to, false); err != nil {
		return Unsettled, err
	}
	a.parked(ParkedMessage{Queue: a.consumer.Queue, ID: m.ID, MessageID: m.MessageID, Attempt: m.Attempt, Reason: v.Why, Err: f.err})
	return outcomeOf(Parked, Unacknowledged, d.Ack(false))
}

// outcomeOf returns acknowledged if the message could be acknowledged, and otherwise failed.
func outcomeOf(acknowledged, failed Outcome, ackErr error) (Outcome, error) {
	if ackErr != nil {
		return failed, ackErr
	}
	return acknowledged, nil
}

// verdict decides, and finds where the message waits. It has no effects.
func (a *acknowledger) verdict(m *Message, f *failure, cannotRepublish string) (policy.Verdict, delay.Ticket) {
	v := a.decide(m, f, cannotRepublish)
	if v.Action != policy.Retry {
		return v, delay.Ticket{}
	}
	// Only jitter can pass the longest, since the policy's own waits were checked.
	t, err := a.way.Ticket(a.consumer.Queue, min(v.Delay, a.limits.Longest))
	if err != nil {
		return policy.Verdict{Why: err.Error()}, delay.Ticket{}
	}
	if a.limits.ServiceDecides && v.Delay > 0 {
		// Rounded up, or the message would come back before its delay is over.
		t.Headers = amqp.Table{wire.HeaderDelay: int64((v.Delay-1)/time.Millisecond) + 1}
	}
	return v, t
}

// decide asks the policy, unless the handler has decided.
func (a *acknowledger) decide(m *Message, f *failure, cannotRepublish string) policy.Verdict {
	switch {
	case f.discard:
		return policy.Verdict{Action: policy.Discard}
	case cannotRepublish != "":
		return policy.Verdict{Why: cannotRepublish}
	case f.tooOften:
		return policy.Verdict{Why: "it was delivered too often without an acknowledgement: its handler may have ended the process"}
	case f.park:
		return policy.Verdict{Why: "its handler parked it"}
	case f.notRetried:
		return policy.Verdict{Why: "Consumer.Retry does not retry its error"}
	}
	if a.limits.ServiceDecides {
		v := policy.Verdict{Action: policy.Retry}
		if f.retryAfter != nil {
			v.Delay = max(f.retryAfter.Delay, 0)
		}
		return v
	}
	of := policy.Failure{Queue: a.consumer.Queue, Reason: policy.Reported, Attempt: m.Attempt, Seed: seed(m.ID, m.Attempt)}
	if f.retryAfter != nil {
		of.Suggested = max(f.retryAfter.Delay, 1)
	}
	return a.consumer.Policy.Decide(of)
}

// Decision is what becomes of a failed attempt.
type Decision struct {
	Outcome Outcome
	// Delay until the next attempt of a message that is retried, rounded up to what
	// Consumer.Wait can keep. With Service it is what RetryAfter asked for, or 0, and the
	// service decides; with Native it is the policy's, and the queue waits as its arguments say.
	Delay time.Duration
	// Asked is what RetryAfter asked for, where the policy allows less; else 0.
	Asked time.Duration
	// Why it is parked, or what the policy made of it after the last attempt, in words; "" for a
	// retry and for ErrDiscard.
	Why string
}

// Decide returns what would become of m if its handler returned failure, by the code that
// decides at run time. It connects to nothing, and the same arguments have the same
// result. Of m, Attempt and ID count: a zero Attempt is the first one, and the ID chooses
// the jitter. The error is what is wrong with c, or a nil m.
//
// Package redrivetest follows a message through all its attempts.
func (c Consumer) Decide(m *Message, failure error) (Decision, error) {
	if err := c.validateSettings(); err != nil {
		return Decision{}, err
	}
	if m == nil {
		return Decision{}, errors.New("redrive: Decide needs a Message")
	}
	if failure == nil {
		return Decision{Outcome: Succeeded}, nil
	}
	a := &acknowledger{consumer: c, way: c.Wait.way, limits: c.Wait.way.Limits()}
	f := a.classify(failure)
	v, t := a.verdict(m, &f, "")
	o := map[policy.Action]Outcome{policy.Park: Parked, policy.Retry: Retried, policy.Discard: Discarded, policy.Forward: Forwarded}[v.Action]
	return Decision{o, t.Delay, v.Asked, v.Why}, nil
}
