package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// attempt hands one delivery to the handler and settles it.
func (r *run) attempt(c connection, d *amqp.Delivery) {
	m := message(d, r.config.Queue, r.settler.limits.Linear)
	r.settler.came(m)
	var failed error
	unreadable := c.Unreadable(d)
	began := time.Now()
	if unreadable != "" {
		failed = errors.New(unreadable)
	} else {
		failed = try(r.working, r.config.Timeout, r.handle, m)
	}
	took := time.Since(began)
	outcome, err := Unsettled, error(nil)
	if failed == nil {
		outcome, err = ended(Succeeded, Unsettled, d.Ack(false))
	} else {
		f := failure{text: unreadable}
		if unreadable == "" {
			f = r.settler.read(failed)
		}
		if err = r.lost(c); err == nil {
			outcome, err = r.settler.settle(c.ctx, d, m, unreadable, f)
		}
		r.sayFailure(m, outcome, &f, err)
	}
	if err != nil {
		r.sayUnsettled(m, outcome, err)
	}
	r.measure(func(metrics Metrics) { metrics.Attempted(r.config.Queue, outcome, took) })
}

var (
	errLost  = errors.New("the connection was lost meanwhile")
	errEnded = errors.New("the time to stop ended first")
)

// lost tells why a failure need not be looked at: the message is back in its queue
// already, or soon. It waits until what failed messages need is there.
func (r *run) lost(c connection) error {
	select {
	case <-c.prepared:
	case <-c.ctx.Done():
	}
	if c.ended() {
		return errLost
	}
	if r.working.Err() != nil {
		return errEnded
	}
	return nil
}

func (r *run) logOf(m *Message, o Outcome) *slog.Logger {
	return r.config.Log.With("queue", r.config.Queue, "id", m.ID, "message_id", m.MessageID, "attempt", m.Attempt, "outcome", o)
}

// sayFailure logs a failure once, a panic with its stack. A payload is never logged.
func (r *run) sayFailure(m *Message, o Outcome, f *failure, err error) {
	log := r.logOf(m, o)
	if f.panicked != nil {
		log.Error("a handler panicked", "panic", fmt.Sprint(f.panicked.Value), "stack", string(f.panicked.Stack))
	}
	if err != nil {
		return
	}
	level := slog.LevelInfo
	if o == Retried {
		level = slog.LevelDebug // it is what the policy is for
	}
	log.Log(context.Background(), level, "an attempt failed", "error", f.text)
}

// sayUnsettled logs why a message was not acknowledged.
func (r *run) sayUnsettled(m *Message, o Outcome, err error) {
	log := r.logOf(m, o)
	switch {
	case errors.Is(err, wire.ErrUnacceptable):
		log.Error("a failed message can be kept nowhere else: it stays unacknowledged, uses one of Config.Prefetch, and RabbitMQ delivers it again when the connection closes", "prefetch", r.config.Prefetch, "error", err)
	case o == Unacknowledged:
		log.Warn("a message was published for its retry, but could not be acknowledged: RabbitMQ delivers the original again as well", "error", err)
	default:
		log.Warn("a message was not settled; RabbitMQ delivers it again", "error", err)
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
