package operations

import (
	"context"
	"time"
)

const (
	// answerFresh is how long RabbitMQ's answer that a queue exists is used, and answerUsable how
	// long while RabbitMQ is asked again. A busy RabbitMQ takes a second to answer; an
	// operation does thousands of messages in that time.
	answerFresh  = 2 * time.Second
	answerUsable = 10 * time.Second
	// maxLookups is how many queues RabbitMQ is asked about at once for one operation.
	maxLookups = 4
)

// targetQueue is RabbitMQ's last answer about a queue that an operation publishes to.
type targetQueue struct {
	at     time.Time // when RabbitMQ was asked last
	gone   bool      // the queue does not exist
	asking bool
}

// isGone tells whether a queue is known not to exist any more.
func (r *Runner) isGone(ctx context.Context, op *operation, queue string) bool {
	op.mu.Lock()
	t := op.targets[queue]
	if t == nil {
		if op.targets == nil {
			op.targets = map[string]*targetQueue{}
		}
		t = &targetQueue{}
		op.targets[queue] = t
	}
	now := time.Now()
	wait := now.Sub(t.at) >= answerUsable
	lookup := !t.gone && !t.asking && now.Sub(t.at) >= answerFresh && (wait || op.lookups < maxLookups)
	if lookup {
		t.asking = true
		op.lookups++
	}
	op.mu.Unlock()
	ask := func() {
		at, err := r.Inspect.AtBroker(ctx, queue)
		op.mu.Lock()
		defer op.mu.Unlock()
		t.at, t.gone, t.asking = now, err == nil && !at.Exists, false
		op.lookups--
	}
	if lookup && wait {
		ask()
	} else if lookup {
		r.lookups.Go(ask)
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return t.gone
}
