package redrive

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
)

// returnGrace is how long handlers may take to return after their contexts ended.
const returnGrace = time.Second

// run consumes until ctx ends.
func (c *Client) run(ctx context.Context, a *acknowledger, handle Handler) error {
	k := &a.consumer
	// A handler that has begun may finish, but not take forever.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	over, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		first := time.AfterFunc(k.Shutdown, stopWorking)
		last := time.AfterFunc(k.Shutdown+returnGrace, giveUp)
		context.AfterFunc(over, func() { first.Stop(); last.Stop() })
	})()

	r := &run{client: c, acknowledger: a, consumeCtx: ctx, handleCtx: working, waitCtx: over, handle: handle, slots: make(chan struct{}, k.Concurrency), deliveries: deliveries{max: int64(k.MaxDeliveries)}}
	q := broker.ConsumeOptions{Queue: k.Queue, Prefetch: k.Prefetch, Log: c.config.Log, Observe: func(yes bool) {
		count(c, k.Queue, c.config.Metrics.Consumer, ConsumerEvent{k.Queue, yes})
	}}
	if err := c.subscribe.Consume(ctx, q, r.consume); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	return r.finish()
}

// run is one Consume.
type run struct {
	client       *Client
	acknowledger *acknowledger
	consumeCtx   context.Context // while it lasts, messages are consumed
	handleCtx    context.Context // while it lasts, handlers run, and failed messages are published
	waitCtx      context.Context // while it lasts, finish waits for handlers to return
	handle       Handler         // nil for batches
	slots        chan struct{}   // one for each worker, of whichever connection
	reconnected  bool            // not the first connection
	deliveries   deliveries
}

// subscription is what one connection delivers, and how long its failures are published.
type subscription struct {
	broker.Subscription
	ctx        context.Context // ends with the connection, and with run.handleCtx
	prepared   <-chan struct{} // closed when prepareAgain has ended
	collecting chan struct{}   // full while a batch is collected
	unsettled  *atomic.Int64   // messages whose attempt began, and that are not acknowledged
}

// consume works on one connection. When that is lost, handlers under way continue, and their
// workers' places are free only when they have returned: a slow one delays neither the next
// connection nor the others.
func (r *run) consume(s broker.Subscription) {
	// A failed message is published only while it can still be acknowledged: otherwise RabbitMQ
	// delivers it again, and the copy would be a duplicate.
	ctx, cancel := context.WithCancelCause(r.handleCtx)
	prepared := r.prepareAgain(ctx)
	defer func() { cancel(errLost); <-prepared }()
	sub := subscription{s, ctx, prepared, make(chan struct{}, 1), new(atomic.Int64)}
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
				r.work(sub)
			case <-s.Ended:
			case <-r.consumeCtx.Done():
			}
		}()
	}
	select {
	case <-done:
	case <-s.Ended:
	case <-r.waitCtx.Done():
	}
	if n := sub.unsettled.Load(); n > 0 { // once, not for each message
		r.client.config.Log.Warn("messages could not be acknowledged: RabbitMQ delivers them again, and failed ones may have been published as well, to be retried, parked or forwarded", "queue", r.acknowledger.consumer.Queue, "messages", n)
	}
}

// prepareAgain declares the exchanges and queues that failed messages need once more when this is not the first
// connection: the queue may be another of the same name, without bindings. Until that was tried
// (see prepared) no failure is published; an alarm may delay it for long, and successful
// messages must not wait for it.
func (r *run) prepareAgain(ctx context.Context) (prepared <-chan struct{}) {
	done := make(chan struct{})
	if !r.reconnected {
		r.reconnected = true
		close(done)
		return done
	}
	go func() {
		defer close(done)
		if err := r.acknowledger.prepare(ctx); err != nil && ctx.Err() == nil {
			r.client.config.Log.Error("cannot declare the exchanges and queues that failed messages need; consuming all the same", "queue", r.acknowledger.consumer.Queue, "error", err)
		}
	}()
	return done
}

// work attempts one message after the other, until there are no more.
func (r *run) work(sub subscription) {
	if r.handle == nil {
		r.workBatches(sub)
		return
	}
	for {
		select {
		case <-r.consumeCtx.Done():
			return
		case <-sub.Ended:
			return
		case d, ok := <-sub.In:
			// A select may receive a message although another case is ready too.
			if !ok || r.consumeCtx.Err() != nil || sub.ended() {
				return
			}
			r.attempt(sub, &d)
		}
	}
}

// ended tells that RabbitMQ has requeued what was delivered.
func (sub *subscription) ended() bool {
	select {
	case <-sub.Ended:
		return true
	default:
		return false
	}
}

// finish waits for the workers, and returns an error when some did not return.
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
		case <-r.waitCtx.Done():
			busy++
		}
	}
	if busy == 0 {
		return nil
	}
	return fmt.Errorf("redrive: %d of %d handlers of queue %q did not return when their context ended, %s after the consumer was stopped, and are left behind; RabbitMQ delivers their messages again",
		busy, cap(r.slots), r.acknowledger.consumer.Queue, r.acknowledger.consumer.Shutdown)
}
