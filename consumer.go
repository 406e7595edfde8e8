package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/policy"
)

// Config of a consumer. URL, Queue, Policy and Wait are needed, the rest has
// defaults.
type Config struct {
	URL   string // amqp:// or amqps://, with credentials
	Queue string // the work queue; it must exist
	// Policy says how many attempts, what wait between them and what then. Its
	// Name and Queues may be left out, and its Reasons mean nothing here.
	Policy policy.Policy
	// Wait is how messages wait for their next attempt.
	Wait Way
	// Retry says which errors are retried; others are parked. nil: all are.
	Retry func(error) bool

	Concurrency int           // handlers at once; 0: 1
	Prefetch    int           // messages RabbitMQ may have outstanding; 0: 10 × Concurrency, at least 100
	Timeout     time.Duration // of one attempt, as its context's deadline; 0: none
	// Shutdown is how long handlers may finish, and failures be handed over, when
	// Run is to end. 0: 30 s.
	Shutdown time.Duration
	// Verify makes nothing in RabbitMQ, and fails when something is missing: for
	// users who may not declare.
	Verify bool

	Log     *slog.Logger // nil: slog.Default
	Metrics Metrics      // nil: none
}

// Metrics hears what a consumer does. Its methods are called from many
// goroutines at once and must not block.
type Metrics interface {
	// Attempted is told of each attempt: what became of it, and how long the
	// handler took.
	Attempted(queue string, outcome Outcome, took time.Duration)
	// Connected is told when the consumer's connection is there or gone.
	Connected(queue string, yes bool)
}

// Handler is one attempt at a message. An error means another attempt, as the
// policy says, unless it is Discard, or made by Park or RetryIn. A panic is an
// error. It must return when ctx ends.
type Handler func(ctx context.Context, m *Message) error

// Consumer consumes one work queue, with retries. Make it with NewConsumer and
// run it once with Run.
type Consumer struct {
	Config
	settler *settler
}

// NewConsumer refuses a configuration that cannot be kept, and says why. It does
// not connect.
func NewConsumer(c Config) (*Consumer, error) {
	switch {
	case c.URL == "":
		return nil, errors.New("redrive: Config.URL is empty")
	case c.Queue == "":
		return nil, errors.New("redrive: Config.Queue is empty")
	case c.Wait.err != nil:
		return nil, fmt.Errorf("redrive: Config.Wait: %w", c.Wait.err)
	case c.Wait.way == nil:
		return nil, errors.New("redrive: Config.Wait is not set: redrive.Levels() suits most")
	case c.Concurrency < 0 || c.Prefetch < 0 || c.Timeout < 0 || c.Shutdown < 0:
		return nil, errors.New("redrive: Config has a negative number")
	}
	if c.Policy.Name == "" {
		c.Policy.Name = c.Queue
	}
	if len(c.Policy.Queues) == 0 {
		c.Policy.Queues = []string{c.Queue}
	}
	l := c.Wait.Limits()
	if !l.Decides {
		if err := errors.Join(c.Policy.Validate(), l.Check(&c.Policy)); err != nil {
			return nil, fmt.Errorf("redrive: %w", err)
		}
	}
	if !l.Spreads() {
		c.Policy.Jitter = policy.None
	}
	c.Concurrency = max(c.Concurrency, 1)
	if c.Prefetch == 0 {
		c.Prefetch = max(100, 10*c.Concurrency)
	}
	if c.Shutdown == 0 {
		c.Shutdown = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &settler{queue: c.Queue, policy: &c.Policy, retry: c.Retry, way: c.Wait.way, limits: l, verify: c.Verify, log: c.Log,
		publish: broker.NewPublisher(broker.Config{URL: c.URL, Name: "redrive " + c.Queue + " hand-over", Log: c.Log})}
	return &Consumer{Config: c, settler: s}, nil
}

// Run consumes until ctx ends: then it takes no more, lets handlers finish and
// hands over what failed, within Config.Shutdown, and returns nil. It connects
// again for as long as it takes; its error is one that trying again would not
// mend.
func (c *Consumer) Run(ctx context.Context, handle Handler) error {
	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var publisher sync.WaitGroup
	publisher.Go(func() { _ = c.settler.publish.Run(publishing) })
	defer publisher.Wait()
	defer stopPublishing()
	if err := c.settler.prepare(ctx); err != nil {
		return err
	}

	// What has begun may end in its own time, but not for ever.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(c.Shutdown, stopWorking)
		context.AfterFunc(working, func() { t.Stop() })
	})
	defer stop()

	observe := func(s broker.State) {
		if c.Metrics != nil {
			c.Metrics.Connected(c.Queue, s.Connected)
		}
	}
	var refused error
	consuming, end := context.WithCancel(ctx)
	defer end()
	in := broker.NewSubscriber(broker.Config{URL: c.URL, Name: "redrive " + c.Queue, Log: c.Log, Observe: observe}, c.Queue, c.Prefetch)
	err := in.Run(consuming, func(s broker.Subscription) {
		if refused = c.settler.limits.Suits(s.Version); refused != nil {
			end()
			return
		}
		var workers sync.WaitGroup
		for range c.Concurrency {
			workers.Go(func() { c.work(ctx, working, s, handle) })
		}
		workers.Wait()
	})
	return errors.Join(refused, err)
}

// work attempts one message after the other until there are no more, or ctx has
// ended: what was only prefetched then goes back to the queue untouched.
func (c *Consumer) work(ctx, working context.Context, s broker.Subscription, handle Handler) {
	for d := range s.In {
		if ctx.Err() != nil {
			return
		}
		c.attempt(working, s, &d, handle)
	}
}

func (c *Consumer) attempt(ctx context.Context, s broker.Subscription, d *amqp.Delivery, handle Handler) {
	m := message(d, c.Queue, c.settler.limits.Linear)
	unreadable := s.Unreadable(d)
	began := time.Now()
	var failure error
	if unreadable != "" {
		failure = errors.New(unreadable)
	} else {
		failure = try(ctx, c.Timeout, handle, m)
	}
	took := time.Since(began)
	outcome, err := c.settler.settle(ctx, d, m, unreadable, failure)
	if err != nil {
		c.Log.Warn("a message was not settled; RabbitMQ delivers it again when this connection ends", "queue", c.Queue, "id", m.ID, "error", err)
		outcome = Unsettled
	}
	if c.Metrics != nil {
		c.Metrics.Attempted(c.Queue, outcome, took)
	}
}

// prepare makes or finds what the way and the parking lot need.
func (s *settler) prepare(ctx context.Context) error {
	t := s.way.Topology(s.queue)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := s.declare(ctx, t)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if permanent(err) {
			return fmt.Errorf("redrive: %s: %w", s.limits.Name, err)
		}
		s.log.Warn("what failed messages need cannot be made yet; trying again", "queue", s.queue, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (s *settler) declare(ctx context.Context, t wait.Topology) error {
	if s.verify {
		return s.publish.Verify(ctx, t)
	}
	return s.publish.Declare(ctx, t)
}
