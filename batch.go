package redrive

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Batch has a consumer handle several messages at once. Size and Handler are required.
type Batch struct {
	// Size is the most messages of one call, from 1 to 65,535.
	Size int
	// Wait is how long the first message of a batch waits for more. The default is 1 s.
	Wait time.Duration
	// Handler handles a batch.
	Handler BatchHandler
}

// BatchHandler is one attempt at each of several messages, 1 to Batch.Size of them. It
// returns the errors of those that failed, by the very pointers it was called with; nil is
// a success of all. Each message is settled by itself: an error means for it what it means
// when a Handler returns it. A panic, or an error for a message that is not of the batch,
// fails all that have no error of their own.
//
// Different attempts at a message may be in different batches. When the consumer stops, a
// batch that is not full is handled at once. It must return when ctx ends.
type BatchHandler func(ctx context.Context, batch []*Message) map[*Message]error

var errNotOfBatch = errors.New("redrive: the batch handler returned an error for a message that is not of its batch")

// workBatches attempts one batch after the other, until there are no more messages. One worker
// at a time collects, or each would wait with a part of what has arrived.
func (r *run) workBatches(sub subscription) {
	b := r.acknowledger.consumer.Batch
	for {
		select {
		case sub.collecting <- struct{}{}:
		case <-r.consumeCtx.Done():
			return
		case <-sub.Ended:
			return
		}
		deliveries := collect(r.consumeCtx, sub.In, sub.Ended, b.Size, b.Wait)
		<-sub.collecting
		if len(deliveries) == 0 || sub.ended() {
			return
		}
		r.attemptBatch(sub, deliveries)
	}
}

// collect waits for a delivery, and from then on up to wait for size of them, not longer than
// ctx lasts. It returns none when nothing more is to be handled: after ended, and after the end
// of in, RabbitMQ delivers again what was collected.
func collect(ctx context.Context, in <-chan amqp.Delivery, ended <-chan struct{}, size int, wait time.Duration) (batch []amqp.Delivery) {
	var over <-chan time.Time
	for len(batch) < size {
		if ctx.Err() != nil { // a select may receive a message although ctx has ended
			return batch
		}
		select {
		case <-ctx.Done():
			return batch
		case <-ended:
			return nil
		case <-over:
			return batch
		case d, ok := <-in:
			if !ok {
				return nil
			}
			if batch = append(batch, d); len(batch) == 1 {
				over = time.After(wait)
			}
		}
	}
	return batch
}

// attemptBatch calls the handler with a batch and ends the attempt at each of its messages.
func (r *run) attemptBatch(sub subscription, deliveries []amqp.Delivery) {
	all := make([]attempt, len(deliveries))
	var batch []*attempt
	for i := range deliveries {
		a := &all[i]
		if *a = r.begin(sub, &deliveries[i]); a.unhandled {
			continue
		}
		if a.suspect {
			r.handleBatch([]*attempt{a})
			continue
		}
		batch = append(batch, a)
	}
	if len(batch) > 0 {
		r.handleBatch(batch)
	}
	var ending sync.WaitGroup // each waits for its own confirm
	for i := range all {
		d, a := &deliveries[i], &all[i]
		if a.failed == nil {
			r.end(sub, d, a)
			continue
		}
		ending.Go(func() { r.end(sub, d, a) })
	}
	ending.Wait()
}

// handleBatch calls the handler with messages that are all suspects, or none of them.
func (r *run) handleBatch(batch []*attempt) {
	suspect := batch[0].suspect
	r.deliveries.enter(suspect)
	began := time.Now()
	messages := make([]*Message, len(batch))
	for i, a := range batch {
		messages[i] = a.m
	}
	failed, other := callBatchHandler(r.handleCtx, r.acknowledger.consumer, messages)
	took := time.Since(began)
	r.deliveries.leave(suspect)
	for _, a := range batch {
		a.took = took
		if a.failed = failed[a.m]; a.failed == nil {
			a.failed = other
		}
	}
}

// callBatchHandler calls a batch handler once.
func callBatchHandler(ctx context.Context, c Consumer, batch []*Message) (failed map[*Message]error, other error) {
	ctx, cancel := withTimeout(ctx, c.Timeout)
	defer cancel()
	known := make(map[*Message]bool, len(batch))
	for _, m := range batch {
		known[m] = true
	}
	var returned map[*Message]error
	if p := catch(func() { returned = c.Batch.Handler(ctx, batch) }); p != nil {
		return nil, p
	}
	failed = make(map[*Message]error, len(returned)) // the handler may keep its own
	for m, err := range returned {
		switch {
		case err == nil:
		case !known[m]:
			other = errNotOfBatch
		default:
			failed[m] = err
		}
	}
	return failed, other
}
