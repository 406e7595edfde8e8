package server

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

const (
	// How often RabbitMQ is asked whether a queue has consumers: one that has some,
	// one that has none, and one of which it does not tell.
	askSome, askNone, askUntold = 5 * time.Second, time.Second, time.Minute
	// fresh is how long an answer counts beyond that.
	fresh = 10 * time.Second
	// mostUnknown is how long a retry waits for the first answer: retries must not stop
	// because RabbitMQ does not answer.
	mostUnknown = 5 * time.Second
	// watchedFor is how long a queue is watched after the last that was due for it.
	watchedFor = 30 * time.Second
)

// consumers is the gate that the scheduler asks. It knows how many consumers each queue with
// due messages has, and pauses the queue's retries until that is known.
type consumers struct {
	*throttle.Throttle
	// enrolled tells whether a queue can be retried to: of a name that a report made
	// up RabbitMQ is asked nothing else.
	enrolled func(queue string) (yes, known bool)
	rules    func(queue string) throttle.Rules
	due      func(context.Context) ([]store.NextDue, error)
	ask      func(ctx context.Context, queues []string, tell func(queue string, consumers int)) error
	ready    func() bool
	wake     func() // the scheduler

	nudged chan struct{}

	mu     sync.Mutex
	queues map[string]*watched
	unsure map[string]time.Time // since when it is not known whether they are enrolled
}

type watched struct {
	due       time.Time // when something was due last
	unknown   time.Time // since when an answer is waited for; zero: it is not
	asked     time.Time // when RabbitMQ answered; zero: never
	consumers int       // -1: it does not tell
}

func (w *watched) every() time.Duration {
	switch w.consumers {
	case 0:
		return askNone
	case -1:
		return askUntold
	}
	return askSome
}

// Allow is the gate's, once it is known whether somebody is there.
func (c *consumers) Allow(queue string, most int, now time.Time) (n int, again time.Time) {
	yes, until := c.asked(queue, now)
	if !until.IsZero() {
		return 0, until
	}
	if yes && c.rules(queue).NoConsumer != throttle.RetryWithoutConsumers {
		if until := c.unknown(queue, now); !until.IsZero() {
			return 0, until
		}
	}
	return c.Throttle.Allow(queue, most, now)
}

// asked tells whether a queue can be retried to, or until when to wait for
// RabbitMQ's answer: those of other queues are not held up by it.
func (c *consumers) asked(queue string, now time.Time) (yes bool, until time.Time) {
	yes, known := c.enrolled(queue)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known {
		delete(c.unsure, queue)
		return yes, until
	}
	if c.unsure[queue].IsZero() {
		c.unsure[queue] = now
	}
	if until = c.unsure[queue].Add(mostUnknown); !now.Before(until) {
		return false, time.Time{}
	}
	return false, until
}

// unknown is until when to wait for RabbitMQ's answer; zero: no longer.
func (c *consumers) unknown(queue string, now time.Time) (until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.watch(queue, now)
	if !w.asked.IsZero() && now.Sub(w.asked) < w.every()+fresh {
		w.unknown = time.Time{}
		return until
	}
	if w.unknown.IsZero() {
		w.unknown = now
		select {
		case c.nudged <- struct{}{}:
		default:
		}
	}
	if until = w.unknown.Add(mostUnknown); !now.Before(until) {
		return time.Time{}
	}
	return until
}

func (c *consumers) watch(queue string, now time.Time) *watched {
	w := c.queues[queue]
	if w == nil {
		w = &watched{consumers: -1}
		c.queues[queue] = w
	}
	w.due = now
	return w
}

// run asks until ctx ends.
func (c *consumers) run(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(c.round(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-c.nudged:
		}
		timer.Stop()
	}
}

// round asks for the queues whose turn it is, and tells when the next is.
func (c *consumers) round(ctx context.Context) time.Duration {
	now := time.Now()
	if next, err := c.due(ctx); err == nil {
		for _, n := range next {
			if n.Forwards() || !n.Due.Before(now.Add(askSome)) || c.rules(n.Queue).NoConsumer == throttle.RetryWithoutConsumers {
				continue
			}
			if yes, _ := c.enrolled(n.Queue); yes {
				c.mu.Lock()
				c.watch(n.Queue, now)
				c.mu.Unlock()
			}
		}
	}
	ask, forgotten, wait := c.turn(now)
	for _, q := range forgotten {
		c.Consumers(q, -1, now)
	}
	if len(ask) > 0 && c.ready() {
		_ = c.ask(ctx, ask, c.told) // what is left is asked in the next round
		c.wake()
	}
	for _, q := range c.Queues() { // what time alone changes
		c.View(q, now)
	}
	return wait
}

// turn tells which queues to ask for, which were paused and need not be watched any
// more, and how long the next round has time.
func (c *consumers) turn(now time.Time) (ask, forgotten []string, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = askSome
	maps.DeleteFunc(c.unsure, func(_ string, since time.Time) bool { return now.Sub(since) > watchedFor })
	for q, w := range c.queues {
		switch {
		case now.Sub(w.due) > watchedFor || c.rules(q).NoConsumer == throttle.RetryWithoutConsumers:
			delete(c.queues, q)
			if w.consumers == 0 {
				forgotten = append(forgotten, q)
			}
			continue
		case w.asked.IsZero() || !w.unknown.IsZero() || now.Sub(w.asked) >= w.every()-askNone/2:
			ask = append(ask, q)
		}
		if w.consumers == 0 || w.asked.IsZero() {
			wait = askNone
		}
	}
	return ask, forgotten, wait
}

func (c *consumers) told(queue string, n int) {
	now := time.Now()
	c.mu.Lock()
	if w := c.queues[queue]; w != nil {
		w.asked, w.consumers, w.unknown = now, n, time.Time{}
	}
	c.mu.Unlock()
	c.Consumers(queue, n, now)
}
