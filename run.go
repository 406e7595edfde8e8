package redrive

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
)

// lastGrace is how long handlers may take to return once their contexts ended.
const lastGrace = time.Second

// run consumes until ctx ends.
func (c *Client) run(ctx context.Context, s *settler, handle Handler) error {
	k := &s.consumer
	// What has begun may end in its own time, but not for ever.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	over, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		first := time.AfterFunc(k.Shutdown, stopWorking)
		last := time.AfterFunc(k.Shutdown+lastGrace, giveUp)
		context.AfterFunc(over, func() { first.Stop(); last.Stop() })
	})()

	r := &run{client: c, settler: s, ctx: ctx, working: working, over: over, handle: handle, slots: make(chan struct{}, k.Concurrency)}
	q := broker.ConsumeOptions{Queue: k.Queue, Prefetch: k.Prefetch, Log: c.config.Log, Observe: func(yes bool) { c.consumes(k.Queue, yes) }}
	if err := c.subscribe.Consume(ctx, q, r.consume); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	return r.finish()
}

// run is one Consume.
type run struct {
	client  *Client
	settler *settler
	ctx     context.Context // takes messages
	working context.Context // handles them and hands them over
	over    context.Context // waits for that
	handle  Handler         // nil for batches
	slots   chan struct{}   // one for each worker, of whichever connection
	again   bool            // not the first connection
}

// connection is what one connection delivers, and how long its failures are published.
type connection struct {
	broker.Subscription
	ctx        context.Context // ends with the connection, and with run.working
	prepared   <-chan struct{} // closed when what failed messages need is there, or cannot be made
	collecting chan struct{}   // full while a batch is collected
}

// consume works off one connection. When it is lost, handlers under way are left
// to their own end, and their workers' places are free only then: a slow one holds
// up neither the next connection nor the others.
func (r *run) consume(s broker.Subscription) {
	// What fails is published only while it can still be acknowledged: RabbitMQ delivers
	// it again otherwise, and a copy would be one too many.
	ctx, cancel := context.WithCancelCause(r.working)
	prepared := r.prepareAgain(ctx)
	defer func() { cancel(errLost); <-prepared }()
	c := connection{s, ctx, prepared, make(chan struct{}, 1)}
	done := make(chan struct{})
	var left atomic.Int32
	left.Store(int32(cap(r.slots)))
	for range cap(r.slots) {
		go func() {
			defer func() {
				if left.Add(-1) == 0 {
					close(done)
				}
			}()
			select {
			case r.slots <- struct{}{}:
				defer func() { <-r.slots }()
				r.work(c)
			case <-s.Ended:
			case <-r.ctx.Done():
			}
		}()
	}
	select {
	case <-done:
	case <-s.Ended:
	case <-r.over.Done():
	}
}

// prepareAgain makes what failed messages need once more when this is not the first
// connection: the queue may be another of the same name, which nothing is bound to. Until
// it has tried, which prepared says, no failure is published; an alarm may hold that up
// for long, and what succeeds must not wait for it.
func (r *run) prepareAgain(ctx context.Context) (prepared <-chan struct{}) {
	done := make(chan struct{})
	if !r.again {
		r.again = true
		close(done)
		return done
	}
	go func() {
		defer close(done)
		if err := r.settler.prepare(ctx); err != nil && ctx.Err() == nil {
			r.client.config.Log.Error("what failed messages need cannot be made; consuming all the same", "queue", r.settler.consumer.Queue, "error", err)
		}
	}()
	return done
}

// work attempts one message after the other, until there are no more to take.
func (r *run) work(c connection) {
	if r.handle == nil {
		r.workBatches(c)
		return
	}
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-c.Ended:
			return
		case d, ok := <-c.In:
			// A select may take a message though one of the others is so too.
			if !ok || r.ctx.Err() != nil || c.ended() {
				return
			}
			r.attempt(c, &d)
		}
	}
}

// ended tells that what was delivered is back in its queue.
func (c *connection) ended() bool {
	select {
	case <-c.Ended:
		return true
	default:
		return false
	}
}

// finish waits for the workers, and tells when some did not return.
func (r *run) finish() error {
	busy := 0
	for range cap(r.slots) {
		select {
		case r.slots <- struct{}{}:
			continue
		default:
		}
		select {
		case r.slots <- struct{}{}:
		case <-r.over.Done():
			busy++
		}
	}
	if busy == 0 {
		return nil
	}
	return fmt.Errorf("redrive: %d of %d handlers of queue %q did not return when their context ended, %s after the consumer was stopped, and are left behind; RabbitMQ delivers their messages again",
		busy, cap(r.slots), r.settler.consumer.Queue, r.settler.consumer.Shutdown)
}
