package redrive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/trail"
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

	sending sync.Mutex // Publisher.Send is for one at a time; waiting for its answers is not
}

// longestError bounds the error text in a header: properties that do not fit one
// frame cost the whole connection.
const longestError = 2048

// Waits between tries of a hand-over that fails.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 15 * time.Second
)

// settle ends one attempt. The error is nil when RabbitMQ has, as far as anybody
// can know, what it needs; otherwise the message is not acknowledged and will be
// delivered again.
func (s *settler) settle(ctx context.Context, d *amqp.Delivery, m *Message, unreadable string, failure error) (Outcome, error) {
	if failure == nil {
		return Succeeded, d.Ack(false)
	}
	v := s.decide(m, failure, unreadable)
	switch v.Action {
	case policy.Discard:
		return Discarded, d.Ack(false)
	case policy.Return:
		t, err := s.hold(m, v.Delay)
		if err != nil { // no way takes such a delay, which Check has refused: a person may know
			v.Why = err.Error()
			break
		}
		if t.Requeue {
			return Retried, d.Reject(true)
		}
		out, err := s.handOver(ctx, m, failure, "", t)
		return s.acknowledged(d, Retried, out, err)
	case policy.Forward:
		out, err := s.handOver(ctx, m, failure, "", wait.Ticket{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey})
		if out == nil {
			return s.acknowledged(d, Forwarded, nil, err)
		}
		v.Why = fmt.Sprintf("%s, and cannot be forwarded to exchange %q with routing key %q: %v", v.Why, v.Forward.Exchange, v.Forward.RoutingKey, out)
	}
	out, err := s.handOver(ctx, m, failure, v.Why, wait.Ticket{Exchange: wire.ExchangeParked, RoutingKey: s.queue})
	return s.acknowledged(d, Parked, out, err)
}

// acknowledged acknowledges what was handed over. refused is why RabbitMQ will
// never take it: then it goes back to the queue's head as it was, after a pause
// that its handler's caller has already spent.
func (s *settler) acknowledged(d *amqp.Delivery, o Outcome, refused, err error) (Outcome, error) {
	switch {
	case err != nil:
		return Unsettled, err
	case refused != nil:
		return Unsettled, refused
	}
	return o, d.Ack(false)
}

// decide asks the policy, unless the handler has decided.
func (s *settler) decide(m *Message, failure error, unreadable string) policy.Verdict {
	var park *parkError
	var again *retryError
	f := policy.Failure{Queue: s.queue, Reason: policy.Reported, Attempt: m.Attempt, Seed: seed(m.ID, m.Attempt)}
	switch {
	case errors.Is(failure, Discard):
		return policy.Verdict{Action: policy.Discard}
	case unreadable != "":
		return policy.Verdict{Why: unreadable}
	case errors.As(failure, &park):
		return policy.Verdict{Why: "its consumer said that another attempt is in vain"}
	case s.limits.Decides:
		v := policy.Verdict{Action: policy.Return}
		if errors.As(failure, &again) {
			v.Delay = again.after
		}
		return v
	case s.retry != nil && !s.retry(failure):
		return policy.Verdict{Why: "its error is none that is retried"}
	case errors.As(failure, &again):
		f.Suggested = max(again.after, 1)
	}
	return s.policy.Decide(f)
}

func (s *settler) hold(m *Message, delay time.Duration) (wait.Ticket, error) {
	t, err := s.way.Hold(s.queue, delay)
	if s.limits.Decides && delay > 0 {
		t.Headers = amqp.Table{wire.HeaderDelay: delay.Milliseconds()}
	}
	return t, err
}

// handOver publishes a message to where it waits, and again until RabbitMQ has
// confirmed it. It returns refused when RabbitMQ never takes it there, and an
// error when ctx ended first.
func (s *settler) handOver(ctx context.Context, m *Message, failure error, parkedFor string, t wait.Ticket) (refused, err error) {
	out := s.outgoing(m, failure, parkedFor, t)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		began := time.Now()
		err := s.try(ctx, t, out)
		if err == nil && t.Within > 0 && time.Since(began) > t.Within {
			err = errors.New("the confirm came so late that the delay queue may be gone")
		}
		switch {
		case err == nil:
			return nil, nil
		case errors.Is(err, wire.ErrUnacceptable):
			return err, nil
		case errors.Is(err, wire.ErrUnroutable) && t.Delay == 0 && parkedFor == "":
			return err, nil // a forward: its destination is somebody else's
		case errors.Is(err, wire.ErrUnroutable) && !s.verify:
			// Somebody deleted what it waits in: it is made again.
			err = errors.Join(err, s.publish.Declare(ctx, s.way.Topology(s.queue)))
		}
		s.log.Warn("a failed message cannot be handed over; it stays unacknowledged, trying again", "queue", s.queue, "exchange", t.Exchange, "error", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("handing over to exchange %q: %w", t.Exchange, err)
		case <-time.After(pause):
		}
	}
}

func (s *settler) try(ctx context.Context, t wait.Ticket, out broker.Outgoing) error {
	if t.First != nil {
		if err := s.publish.Declare(ctx, *t.First); err != nil {
			return err
		}
	}
	s.sending.Lock()
	answers := s.publish.Send(ctx, []broker.Outgoing{out})
	s.sending.Unlock()
	return answers(ctx)[0]
}

// outgoing is the message with its trail.
func (s *settler) outgoing(m *Message, failure error, parkedFor string, t wait.Ticket) broker.Outgoing {
	if m.ID == "" {
		m.ID = uuid.Must(uuid.NewV7()).String()
	}
	if m.FirstFailed.IsZero() {
		m.FirstFailed = time.Now()
	}
	tr := trail.Trail{ID: m.ID, Attempt: m.Attempt, Queue: s.queue, FirstFailed: m.FirstFailed, Reason: wire.ReasonReported, Error: errorText(failure)}
	p := tr.Mark(m.Message)
	for k, v := range t.Headers {
		p.Headers[k] = v
	}
	if parkedFor != "" {
		p.Headers[wire.HeaderParkedFor] = parkedFor
	}
	if s.limits.Decides && t.Exchange == wire.ExchangeFailures {
		// The service counts this failure itself.
		p.Headers[wire.HeaderAttempt] = int64(m.Attempt - 1)
	}
	p.Expiration = t.Expiration
	return broker.Outgoing{Exchange: t.Exchange, RoutingKey: t.RoutingKey, ID: m.ID, Message: p, Unchecked: t.Unchecked}
}

func errorText(err error) string {
	s := err.Error()
	if len(s) > longestError {
		s = s[:longestError]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// seed makes jitter differ between messages and attempts.
func seed(id string, attempt int) uint64 {
	u, err := uuid.Parse(id)
	if err != nil {
		u = uuid.New() // the first failure: it has no id yet
	}
	return binary.BigEndian.Uint64(u[8:]) ^ uint64(attempt)*0x9e3779b97f4a7c15
}
