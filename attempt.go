package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// attempt is one try of the handler at a delivery, and how it ended.
type attempt struct {
	m               *Message
	number          int    // m.Attempt before the handler, which may change m
	cannotRepublish string // why it cannot be published again as it was; "" when it can
	failed          error
	unhandled       bool // it is parked without its handler: failed says why
	suspect         bool // its handler may have ended the process: it is handled alone
	took            time.Duration
}

// begin reads a delivery. One that cannot be published again is passed to no handler.
func (r *run) begin(sub subscription, d *amqp.Delivery) attempt {
	a := attempt{m: message(d, r.acknowledger.consumer.Queue, r.acknowledger.limits.QueueCounts), cannotRepublish: sub.CannotRepublish(d)}
	a.number = a.m.Attempt
	sub.unsettled.Add(1)
	r.acknowledger.checkEarly(a.m)
	if a.cannotRepublish != "" {
		a.failed, a.unhandled = errors.New(a.cannotRepublish), true
	} else if !r.acknowledger.limits.QueueCounts {
		r.deliveries.judge(&a, d)
	}
	return a
}

// attempt calls the handler with one delivery and ends it.
func (r *run) attempt(sub subscription, d *amqp.Delivery) {
	a := r.begin(sub, d)
	if !a.unhandled {
		r.deliveries.enter(a.suspect)
		began := time.Now()
		a.failed = callHandler(r.handleCtx, r.acknowledger.consumer.Timeout, r.handle, a.m)
		a.took = time.Since(began)
		r.deliveries.leave(a.suspect)
	}
	r.end(sub, d, &a)
}

// end acknowledges the delivery of an attempt; if it failed, only once its copy is confirmed. The
// delivery is passed beside the attempt: as a field of it, it would be allocated for each message.
func (r *run) end(sub subscription, d *amqp.Delivery, a *attempt) {
	m := a.m
	outcome, err := Unsettled, error(nil)
	if a.failed == nil {
		outcome, err = outcomeOf(Succeeded, Unsettled, d.Ack(false))
	} else {
		f := failure{text: a.cannotRepublish}
		if a.cannotRepublish == "" {
			f = r.acknowledger.classify(a.failed)
		}
		if err = r.waitPrepared(sub); err == nil {
			outcome, err = r.acknowledger.acknowledge(sub.ctx, d, m, a.cannotRepublish, f)
		}
		r.logFailure(m, outcome, &f, err)
	}
	if err == nil {
		sub.unsettled.Add(-1)
	} else {
		r.logUnsettled(m, outcome, err)
	}
	queue := r.acknowledger.consumer.Queue
	count(r.client, queue, r.client.config.Metrics.Attempt, AttemptEvent{Queue: queue, Attempt: a.number, Outcome: outcome, Duration: a.took})
}

var (
	errLost  = errors.New("the connection was lost meanwhile")
	errEnded = errors.New("the time to stop ended first")
)

// waitPrepared waits until the exchanges and queues that failed messages need are declared. Its
// error is why the failure needs no copy: the message is in its queue again, or soon will be.
func (r *run) waitPrepared(sub subscription) error {
	select {
	case <-sub.prepared:
	case <-sub.ctx.Done():
	}
	if sub.ended() {
		return errLost
	}
	if r.handleCtx.Err() != nil {
		return errEnded
	}
	return nil
}

func (r *run) logOf(m *Message, o Outcome) *slog.Logger {
	return r.client.config.Log.With("queue", r.acknowledger.consumer.Queue, "id", m.ID, "message_id", m.MessageID, "attempt", m.Attempt, "outcome", o)
}

// logFailure logs a failure once, a panic with its stack. A payload is never logged.
func (r *run) logFailure(m *Message, o Outcome, f *failure, err error) {
	log := r.logOf(m, o)
	if f.panicked != nil {
		log.Error("a handler panicked", "panic", fmt.Sprint(f.panicked.Value), "stack", string(f.panicked.Stack))
	}
	if err != nil {
		return
	}
	level := slog.LevelInfo
	switch o {
	case Retried:
		level = slog.LevelDebug // a retry is normal
	case Parked:
		level = slog.LevelWarn // it waits for a person
	}
	log.Log(context.Background(), level, "an attempt failed", "error", f.text)
}

// logUnsettled logs why a message was not acknowledged. consume warns of all of a connection at once.
func (r *run) logUnsettled(m *Message, o Outcome, err error) {
	log := r.logOf(m, o)
	if errors.Is(err, wire.ErrUnacceptable) {
		log.Error("a failed message cannot be published, neither for its retry nor to redrive.parked: it stays unacknowledged, uses one of Consumer.Prefetch, and RabbitMQ delivers it again when the connection closes", "prefetch", r.acknowledger.consumer.Prefetch, "error", err)
		return
	}
	log.Debug("a message could not be acknowledged", "error", err)
}

// callHandler calls a handler once. A panic is an error.
func callHandler(ctx context.Context, timeout time.Duration, handle Handler, m *Message) (err error) {
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	if p := catch(func() { err = handle(ctx, m) }); p != nil {
		return p
	}
	return err
}

// withTimeout returns a context that ends with ctx, and after timeout unless that is 0.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout > 0 {
		return context.WithTimeout(ctx, timeout)
	}
	return ctx, func() {}
}
