package retry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
)

// wayOfQueue is a way to wait, and a queue whose messages wait by it.
type wayOfQueue struct {
	way   delay.Way
	queue string
}

// declared is what came of a declaration.
type declared struct {
	at  time.Time
	err error
}

func (m *delayedMessage) declaredKey() wayOfQueue { return wayOfQueue{m.way, m.rec.Queue} }

// Forget makes what a queue needs be declared again: it was deleted, and perhaps
// declared again without its bindings. Safe for concurrent use.
func (h *DelayQueues) Forget(queue string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.gone) < 1000 { // each further message that is lost says so again
		h.gone = append(h.gone, queue)
	}
}

func (h *DelayQueues) forgetGone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.gone {
		h.enrolled.forget(q)
		maps.DeleteFunc(h.declared, func(k any, _ declared) bool { by, ok := k.(wayOfQueue); return ok && by.queue == q })
	}
	h.gone = nil
}

// prepare makes sure that a message may come back to its queue at all, and that
// what it passes is there.
func (h *DelayQueues) prepare(ctx context.Context, m *delayedMessage, t *delay.Ticket) error {
	switch f := h.enrolled.route(ctx, m.rec.Queue, m.rec.Proven, m.rec.FailedAt); {
	case errors.Is(f.Err, ErrAsked), errors.Is(f.Err, ErrUnknown):
		return fmt.Errorf("%w: %w", errNoRoute, f.Err) // the store keeps it meanwhile
	case f.Err != nil:
		return f.Err
	case f.Park != "":
		return fmt.Errorf("%w: %s", errNoRoute, f.Park) // as the scheduler will find out
	}
	topology := func() delay.Topology { return m.way.Topology(m.rec.Queue) }
	if err := h.declare(ctx, m.declaredKey(), topology, 0); err != nil || t.First == nil {
		return err
	}
	return h.declare(ctx, t.Exchange, func() delay.Topology { return *t.First }, t.Within/2)
}

// declare makes a topology: once a process and, where it can expire, when the
// last time is longer ago than within. What fails is left alone for a while.
func (h *DelayQueues) declare(ctx context.Context, key any, t func() delay.Topology, within time.Duration) error {
	d, ok := h.declared[key]
	age := time.Since(d.at)
	if ok && d.err != nil && age < retryWayAfter {
		return d.err
	}
	if !ok || d.err != nil || within > 0 && age > within {
		d = declared{at: time.Now()}
		d.err = h.broker.Declare(ctx, t())
		h.declared[key] = d
	}
	return d.err
}
