package redrive

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/wire"
)

// attempt hands one delivery to the handler and settles it.
func (r *run) attempt(s broker.Subscription, d *amqp.Delivery) {
	m := message(d, r.config.Queue, r.settler.limits.Linear)
	var failure error
	unreadable := s.Unreadable(d)
	began := time.Now()
	if unreadable != "" {
		failure = errors.New(unreadable)
	} else {
		failure = try(r.working, r.config.Timeout, r.handle, m)
	}
	took := time.Since(began)
	outcome, err := Unsettled, error(nil)
	if failure == nil {
		outcome, err = Succeeded, d.Ack(false)
	} else if err = r.lost(s); err == nil {
		outcome, err = r.settler.settle(r.working, d, m, unreadable, failure)
	}
	if err != nil {
		outcome = Unsettled
	}
	if err != nil || failure != nil {
		r.say(m, outcome, failure, err)
	}
	if r.config.Metrics != nil {
		r.config.Metrics.Attempted(r.config.Queue, outcome, took)
	}
}

var (
	errLost  = errors.New("the connection was lost meanwhile")
	errEnded = errors.New("the time to stop ended first")
)

// lost tells why a failure need not be looked at: the message is back in its queue
// already, or soon.
func (r *run) lost(s broker.Subscription) error {
	if ended(s) {
		return errLost
	}
	if r.working.Err() != nil {
		return errEnded
	}
	return nil
}

// say logs a failure once, a panic with its stack. A payload is never logged.
func (r *run) say(m *Message, o Outcome, failure, err error) {
	log := r.config.Log.With("queue", r.config.Queue, "id", m.ID, "message_id", m.MessageID, "attempt", m.Attempt, "outcome", o)
	if p := (*PanicError)(nil); errors.As(failure, &p) {
		log.Error("a handler panicked", "panic", p.Value, "stack", string(p.Stack))
	}
	switch level := slog.LevelInfo; {
	case errors.Is(err, wire.ErrUnacceptable):
		log.Error("a failed message can be kept nowhere else: it stays unacknowledged, and RabbitMQ delivers it again when the connection ends", "error", err)
	case err != nil:
		log.Warn("a message was not settled; RabbitMQ delivers it again", "error", err)
	default:
		if o == Retried {
			level = slog.LevelDebug // it is what the policy is for
		}
		log.Log(context.Background(), level, "an attempt failed", "error", failure)
	}
}

// try runs a handler once. A panic is its failure.
func try(ctx context.Context, timeout time.Duration, handle Handler, m *Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return handle(ctx, m)
}
