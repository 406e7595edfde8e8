package redrive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// maxErrorText bounds the error text in a header, in bytes: RabbitMQ closes the connection on
// which properties do not fit one frame.
const maxErrorText = 2048

const (
	// Waits between tries of a publish that fails.
	minPublishWait = 100 * time.Millisecond
	maxPublishWait = 15 * time.Second
)

// publishUntilConfirmed publishes a message to where it waits, and again until RabbitMQ has
// confirmed it. Its error is wire.ErrUnacceptable when RabbitMQ never accepts it, and another
// when ctx ended first. elsewhere is for destinations that are not ours: one that is missing or
// forbidden is tried once. The service tries once and waits in its store (retry.Sender,
// retry.DelayQueues); here RabbitMQ has the only copy until the new one is confirmed, so
// publishing again is all that can be done.
func (a *acknowledger) publishUntilConfirmed(ctx context.Context, out wire.Outgoing, t delay.Ticket, elsewhere bool) error {
	for pause := minPublishWait; ; pause = min(2*pause, maxPublishWait) {
		since, err := a.send(ctx, t, out)
		if err == nil {
			err = t.CheckConfirm(since)
		}
		if err != nil {
			a.declared.Delete(t.Exchange)
		}
		switch {
		case err == nil:
			if a.publishFails.Load() && a.publishFails.CompareAndSwap(true, false) {
				a.log.Info("failed messages are published again", "queue", a.consumer.Queue)
			}
			return nil
		case errors.Is(err, wire.ErrUnacceptable):
			if _, there := out.Message.Headers[wire.HeaderError]; !there {
				return fmt.Errorf("publishing to exchange %q: %w", t.Exchange, err)
			}
			delete(out.Message.Headers, wire.HeaderError) // the text may be what is too much
			continue
		case errors.Is(err, errClosed):
			return err
		case elsewhere && (errors.Is(err, wire.ErrUnroutable) || errors.Is(err, wire.ErrForbidden)):
			return err
		case errors.Is(err, wire.ErrUnroutable) && !a.verify:
			// What it waits in was deleted: it is declared again.
			err = errors.Join(err, a.publish.Declare(ctx, a.way.Topology(a.consumer.Queue)))
		}
		if ctx.Err() == nil && a.publishFails.CompareAndSwap(false, true) { // once, not for each message and try
			a.log.Warn("failed messages cannot be published, to be retried, parked or forwarded; they stay unacknowledged, trying again", "queue", a.consumer.Queue, "id", out.ID, "exchange", t.Exchange, "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("publishing to exchange %q: %w; %w", t.Exchange, err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// send publishes once, and returns since when the queue that a ticket needs is known to exist.
func (a *acknowledger) send(ctx context.Context, t delay.Ticket, out wire.Outgoing) (since time.Time, err error) {
	if t.DeclareFirst != nil {
		if since, err = a.declareFirst(ctx, t); err != nil {
			return since, err
		}
	}
	if err = a.publish.Send(ctx, []wire.Outgoing{out})(ctx)[0]; err != nil {
		select {
		case <-a.closed:
			return since, errClosed
		default:
		}
	}
	return since, err
}

// declareFirst declares what a ticket needs, unless that was done a short time ago: half of the
// time for which it counts is left for the confirm.
func (a *acknowledger) declareFirst(ctx context.Context, t delay.Ticket) (at time.Time, err error) {
	if at, ok := a.declared.Load(t.Exchange); ok && time.Since(at.(time.Time)) < t.ConfirmWithin/2 {
		return at.(time.Time), nil
	}
	at = time.Now()
	if err = a.publish.Declare(ctx, *t.DeclareFirst); err == nil {
		a.declared.Store(t.Exchange, at)
	}
	return at, err
}

// outgoing returns the message as it is published, with its history in headers.
func (a *acknowledger) outgoing(m *Message, f *failure, parkedFor string, t delay.Ticket) wire.Outgoing {
	history := headers.History{ID: m.ID, Failures: m.Attempt, Queue: a.consumer.Queue, FirstFailed: m.FirstFailed, Reason: wire.ReasonReported, Error: f.header()}
	if history.FirstFailed.IsZero() {
		history.FirstFailed = time.Now()
	}
	p := history.ApplyTo(m.Message)
	out := t.Outgoing(m.ID, p)
	if parkedFor != "" {
		p.Headers[wire.HeaderParkReason] = parkedFor
	}
	if a.limits.ServiceDecides && t.Exchange == wire.ExchangeFailures {
		// The service counts this failure itself.
		p.Headers[wire.HeaderAttempt] = int64(m.Attempt - 1)
	}
	return out
}

// newID returns the id of a message that fails for the first time. If the publisher has set a
// message id, it is made from that and the content, so that it is the same when RabbitMQ
// delivers the message again after a crash.
func newID(queue string, m *wire.Message) string {
	if m.MessageID == "" {
		return headers.NewID(m).String()
	}
	h := sha256.New()
	for _, part := range []string{queue, m.Exchange, m.RoutingKey, m.AppID, m.MessageID} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		h.Write([]byte(part))
	}
	_ = binary.Write(h, binary.BigEndian, m.Timestamp.Unix())
	h.Write(m.Body)
	return headers.BindID(uuid.UUID(h.Sum(nil)[:16]), m).String()
}

// seed makes jitter differ between messages and attempts.
func seed(id string, attempt int) uint64 {
	u, _ := uuid.Parse(id) // one that cannot be parsed is no less a seed
	return binary.BigEndian.Uint64(u[8:]) ^ uint64(attempt)*0x9e3779b97f4a7c15
}
