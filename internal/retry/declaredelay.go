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

// declaration is the result of declaring a topology.
type declaration struct {
	at  time.Time
	err error
}

func (m *delayedMessage) declaredKey() wayOfQueue { return wayOfQueue{m.way, m.rec.Queue} }

// MarkLost makes what a queue needs be declared again: the queue was deleted, and perhaps
// declared again without its bindings. Safe for concurrent use.
func (d *DelayQueues) MarkLost(queue string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.lostQueues) < 1000 { // each further message marks its queue again
		d.lostQueues = append(d.lostQueues, queue)
	}
}

func (d *DelayQueues) forgetLost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.lostQueues {
		d.targets.forget(q)
		maps.DeleteFunc(d.declared, func(k any, _ declaration) bool { by, ok := k.(wayOfQueue); return ok && by.queue == q })
	}
	d.lostQueues = nil
}

// prepare makes sure that a message may be retried to its queue at all, and that all exchanges
// and queues on its way exist.
func (d *DelayQueues) prepare(ctx context.Context, m *delayedMessage, t *delay.Ticket) error {
	switch r := d.targets.route(ctx, m.rec.Queue, m.rec.Proven, m.rec.FailedAt); {
	case errors.Is(r.Err, ErrLookupPending), errors.Is(r.Err, ErrConsentUnknown):
		return fmt.Errorf("%w: %w", errNoRoute, r.Err) // it waits in the store meanwhile
	case r.Err != nil:
		return r.Err
	case r.Park != "":
		return fmt.Errorf("%w: %s", errNoRoute, r.Park) // the scheduler will park it for that
	}
	topology := func() delay.Topology { return m.way.Topology(m.rec.Queue) }
	if err := d.declare(ctx, m.declaredKey(), topology, 0); err != nil || t.DeclareFirst == nil {
		return err
	}
	return d.declare(ctx, t.Exchange, func() delay.Topology { return *t.DeclareFirst }, t.ConfirmWithin/2)
}

// declare declares a topology: once for each process and, where it can expire, again when the
// last time is longer ago than within. After an error it is not tried again for tryAgainAfter.
func (d *DelayQueues) declare(ctx context.Context, key any, t func() delay.Topology, within time.Duration) error {
	was, ok := d.declared[key]
	age := time.Since(was.at)
	if ok && was.err != nil && age < tryAgainAfter {
		return was.err
	}
	if !ok || was.err != nil || within > 0 && age > within {
		was = declaration{at: time.Now()}
		was.err = d.broker.Declare(ctx, t())
		d.declared[key] = was
	}
	return was.err
}
