package operations

import (
	"context"
	"time"
)

const (
	// seenLately is how long a queue that was there is taken to be, and seenOnce how
	// long while RabbitMQ is asked again. A busy one takes a second to answer, in
	// which an operation does thousands.
	seenLately = 2 * time.Second
	seenOnce   = 10 * time.Second
	// mostLooks bounds what is asked of RabbitMQ at once for one operation.
	mostLooks = 4
)

// targetQueue is what is known of a queue that an operation sends to.
type targetQueue struct {
	at      time.Time // when RabbitMQ was asked last
	gone    bool      // it said that there is none
	looking bool
}

// isGone tells whether a queue is known not to exist any more.
func (r *Runner) isGone(ctx context.Context, op *operation, queue string) bool {
	op.mu.Lock()
	t := op.there[queue]
	if t == nil {
		if op.there == nil {
			op.there = map[string]*targetQueue{}
		}
		t = &targetQueue{}
		op.there[queue] = t
	}
	now := time.Now()
	wait := now.Sub(t.at) >= seenOnce
	look := !t.gone && !t.looking && now.Sub(t.at) >= seenLately && (wait || op.looks < mostLooks)
	if look {
		t.looking = true
		op.looks++
	}
	op.mu.Unlock()
	ask := func() {
		at, err := r.Inspect.AtBroker(ctx, queue)
		op.mu.Lock()
		defer op.mu.Unlock()
		t.at, t.gone, t.looking = now, err == nil && !at.Exists, false
		op.looks--
	}
	if look && wait {
		ask()
	} else if look {
		r.looks.Go(ask)
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return t.gone
}
