package redrive

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
)

// lastGrace is how long handlers may take to return once their contexts ended.
const lastGrace = time.Second

// Run consumes until ctx ends: then it takes no more, lets handlers finish and
// hands over what failed, within Config.Shutdown, and returns nil. What was only
// prefetched goes back to the queue untouched.
//
// It connects again for as long as it takes. It returns an error when it cannot
// begin for a reason that a person must mend, such as a missing queue or right;
// and at the end, when handlers did not return.
func (c *Consumer) Run(ctx context.Context, handle Handler) error {
	if handle == nil {
		return errors.New("redrive: Run needs a handler")
	}
	if !c.ran.CompareAndSwap(false, true) {
		return errors.New("redrive: a consumer runs once: make another with NewConsumer")
	}
	stop, err := c.settler.start(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer stop()

	// What has begun may end in its own time, but not for ever.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	over, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		first := time.AfterFunc(c.config.Shutdown, stopWorking)
		last := time.AfterFunc(c.config.Shutdown+lastGrace, giveUp)
		context.AfterFunc(over, func() { first.Stop(); last.Stop() })
	})()

	r := &run{Consumer: c, ctx: ctx, working: working, over: over, handle: handle, slots: make(chan struct{}, c.config.Concurrency)}
	in := broker.NewSubscriber(broker.Config{URL: c.config.URL, TLS: c.config.TLS, Name: "redrive " + c.config.Queue, Log: c.config.Log, Observe: r.observe, Strict: true},
		c.config.Queue, c.config.Prefetch)
	defer r.observe(broker.State{})
	if err := in.Run(ctx, r.consume); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	return r.finish()
}

// run is one Run of a consumer.
type run struct {
	*Consumer
	ctx     context.Context // takes messages
	working context.Context // handles them and hands them over
	over    context.Context // waits for that
	handle  Handler
	slots   chan struct{} // one for each worker, of whichever connection
	again   bool          // not the first connection

	metricsPanic sync.Once // logs it
}

// connection is what one connection delivers, and how long its failures are handed over.
type connection struct {
	broker.Subscription
	ctx      context.Context // ends with the connection, and with run.working
	prepared <-chan struct{} // closed when what failed messages need is there, or cannot be made
}

func (r *run) observe(s broker.State) {
	r.measure(func(m Metrics) { m.Connected(r.config.Queue, s.Connected) })
}

// measure tells Config.Metrics something. A panic there costs what it would have counted,
// and is logged once.
func (r *run) measure(tell func(Metrics)) {
	if r.config.Metrics == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			r.metricsPanic.Do(func() {
				r.config.Log.Error("Config.Metrics panicked; what it counts is incomplete", "queue", r.config.Queue, "panic", fmt.Sprint(p), "stack", string(stack))
			})
		}
	}()
	tell(r.config.Metrics)
}

// consume works off one connection. When it is lost, handlers under way are left
// to their own end, and their workers' places are free only then: a slow one holds
// up neither the next connection nor the others.
func (r *run) consume(s broker.Subscription) {
	// What fails is handed over only while it can still be acknowledged: RabbitMQ delivers
	// it again otherwise, and a copy would be one too many.
	ctx, cancel := context.WithCancelCause(r.working)
	prepared := r.prepareAgain(ctx)
	defer func() { cancel(errLost); <-prepared }()
	c := connection{s, ctx, prepared}
	done := make(chan struct{})
	var left atomic.Int32
	left.Store(int32(r.config.Concurrency))
	for range r.config.Concurrency {
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
// it has tried, which prepared says, no failure is handed over; an alarm may hold that up
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
			r.config.Log.Error("what failed messages need cannot be made; consuming all the same", "queue", r.config.Queue, "error", err)
		}
	}()
	return done
}

// work attempts one message after the other, until there are no more to take.
func (r *run) work(c connection) {
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
	return fmt.Errorf("redrive: %d of %d handlers of queue %q did not return when their context ended, %s after Run was to end, and are left behind; RabbitMQ delivers their messages again",
		busy, cap(r.slots), r.config.Queue, r.config.Shutdown)
}
