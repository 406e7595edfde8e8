package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Enroller is the broker's side of enrolling a queue.
type Enroller interface {
	// BindReturn makes the return exchange of an existing queue and binds it.
	BindReturn(ctx context.Context, queue string) error
	// ReturnExists tells whether the queue has a return exchange.
	ReturnExists(ctx context.Context, queue string) (bool, error)
}

// enrolled decides which queues messages may be brought back to, whichever way
// they wait: those with a return exchange, which only what RabbitMQ itself says,
// or a policy that names the queue exactly, may give them.
type enrolled struct {
	broker   Enroller
	policies func() policy.Set

	mu    sync.Mutex
	bound map[string]bool // queues whose return exchange was seen in place by this process
}

func newEnrolled(b Enroller, policies func() policy.Set) *enrolled {
	return &enrolled{broker: b, policies: policies, bound: map[string]bool{}}
}

// route makes sure that the queue can be returned to, once per process and
// queue. The zero Fate means that it can.
func (e *enrolled) route(ctx context.Context, queue string, proven bool) Fate {
	policies := e.policies()
	if _, ok := policies.Match(queue); !ok || wire.OwnQueue(queue) {
		return Fate{Park: fmt.Sprintf("no policy allows the queue %q", queue)}
	}
	e.mu.Lock()
	bound := e.bound[queue]
	e.mu.Unlock()
	if bound {
		return Fate{}
	}
	if !proven && !policies.Exact(queue) {
		// A client said that it failed there. That must not enrol a queue.
		there, err := e.broker.ReturnExists(ctx, queue)
		if err != nil {
			return Fate{Err: err}
		}
		if !there {
			return Fate{Park: fmt.Sprintf("the queue %q is not enrolled: nothing was dead-lettered from it yet, and no policy names it exactly", queue)}
		}
	}
	switch err := e.broker.BindReturn(ctx, queue); {
	case errors.Is(err, wire.ErrQueueGone):
		return Fate{Park: fmt.Sprintf("the queue %q does not exist any more", queue)}
	case err != nil:
		return Fate{Err: fmt.Errorf("binding the return exchange of queue %q: %w", queue, err)}
	}
	e.mu.Lock()
	e.bound[queue] = true
	e.mu.Unlock()
	return Fate{}
}

func (e *enrolled) forget(queue string) {
	e.mu.Lock()
	delete(e.bound, queue)
	e.mu.Unlock()
}
