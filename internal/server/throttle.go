package server

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

func (s *vhost) openThrottle() {
	s.throttle = throttle.New(s.queueLimits, rand.Float64, s.retriesChanged)
	s.consumerThrottle = &consumerThrottle{
		Throttle: s.throttle, mayRetryTo: s.sender.MayRetryTo, rules: s.queueLimits, due: s.store.Next,
		ask: s.publisher.Consumers, ready: s.publisher.Ready,
		wake: s.wake.Wake, pollNow: make(chan struct{}, 1), queues: map[string]*watchedQueue{},
		unknownSince: map[string]time.Time{},
	}
	s.metrics.Retries(s.retryStates, s.conditions.All)
}

// queueLimits returns the throttle's rules for a queue: those of its policy. A queue without a policy gets no retries;
// its rules are only shown.
func (s *vhost) queueLimits(queue string) throttle.Rules {
	if p, ok := s.inForce.Policies().Match(queue); ok {
		return s.policyLimits(p.Name)
	}
	return throttle.Rules{}
}

func (s *vhost) policyLimits(policy string) throttle.Rules {
	return (*s.limitsByPolicy.Load())[policy]
}

var transitionKinds = map[throttle.State]retry.Kind{
	throttle.Open: retry.Opened, throttle.HalfOpen: retry.HalfOpened, throttle.Ramp: retry.Ramping,
	throttle.Closed:     retry.Closed,
	throttle.NoConsumer: retry.NoConsumer, throttle.ConsumerBack: retry.ConsumerBack,
}

// retriesChanged reports that a queue's breaker or lack of consumers has changed. The throttle calls it with its lock
// held, so it calls no method of the throttle.
func (s *vhost) retriesChanged(t throttle.Transition) {
	log := s.Log.With("queue", t.Queue, "why", t.Reason)
	defer s.scheduler.Wake()
	if s.replica != nil {
		defer s.replica.PollSoon() // so that the others know
	}
	if t.By != "" {
		log = log.With("by", t.By)
	}
	c := condition.Condition{Kind: condition.Breaker, Queue: t.Queue}
	switch t.To {
	case throttle.Open, throttle.HalfOpen:
		c.Text = strings.TrimSuffix(string(t.To)+": "+t.Reason, ": ")
	case throttle.NoConsumer:
		c.Text = "none; its retries wait"
		fallthrough
	case throttle.ConsumerBack:
		c.Kind = condition.NoConsumer
	}
	s.conditions.Put(c)
	switch t.To {
	case throttle.Open:
		if t.Until.IsZero() {
			log.Warn("breaker open: retries of the queue are paused until a person closes it")
		} else {
			log.Warn("breaker open: retries of the queue are paused", "probes_at", t.Until)
		}
	case throttle.NoConsumer:
		log.Warn("retries of the queue are paused: it has no consumers, and a probe stands in it; they resume by " +
			"themselves when it has one")
	case throttle.ConsumerBack:
		log.Info("retries of the queue are no longer paused for lack of consumers")
	default:
		log.Info("breaker "+string(t.To), "was", t.From)
	}
	if !t.OnFollower { // otherwise the leader has sent the event
		s.events(retry.Event{Kind: transitionKinds[t.To], At: t.At, Queue: t.Queue, Why: t.Reason, By: t.By})
	}
}

// retryStates returns the state of each shown queue that the throttle or the scheduler knows.
func (s *vhost) retryStates(shown func(queue string) bool) (all []metrics.QueueRetries) {
	now := time.Now()
	due := map[string]bool{}
	if next, err := s.store.Next(context.Background()); err == nil {
		for _, n := range next {
			if !n.Forwards() && !n.Due.After(now) {
				due[n.Queue] = true
			}
		}
	}
	known := map[string]bool{} // true: a person has paused it
	for _, q := range s.throttle.Queues() {
		known[q] = false
	}
	for _, q := range s.scheduler.Paused() {
		known[q] = true
	}
	for q, paused := range known {
		if !shown(q) {
			continue
		}
		r := metrics.QueueRetries{Queue: q, View: s.throttle.View(q, now)}
		if why := r.View.WaitReason; why != "" && (!why.IsLimit() || due[q]) {
			r.WaitReasons = append(r.WaitReasons, why)
		}
		if paused {
			r.WaitReasons = append(r.WaitReasons, throttle.WhyPerson)
		}
		all = append(all, r)
	}
	return all
}

// throttleOf returns a queue's throttle for people, or nil if nothing limits the queue.
func (s *vhost) throttleOf(queue string) *inspect.ThrottleView {
	v := s.throttle.View(queue, time.Now())
	if !v.HasBreaker && !v.Forced && v.Rate == 0 && v.MaxInFlight == 0 && v.NoConsumersSince.IsZero() &&
		v.WaitReason == "" {
		return nil
	}
	shown := &inspect.ThrottleView{State: string(v.State), Why: v.Reason, Since: timeOrNil(v.Since),
		Until: timeOrNil(v.Until), NoConsumer: timeOrNil(v.NoConsumersSince),
		Rate: v.Rate, InFlight: v.InFlight, MaxInFlight: v.MaxInFlight, FailedShare: v.FailedShare,
		Finished: v.Finished}
	if v.WaitReason.IsLimit() {
		shown.LimitedBy = v.WaitReason
	}
	return shown
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *vhost) force(queue, to, by, why string) {
	if err := s.throttle.Force(queue, to, by, why, time.Now()); err != nil {
		s.Log.Error("a breaker cannot be set", "queue", queue, "to", to, "error", err)
	}
}

// loadBreakers sets the breakers as people had set them when the service ended. Nothing is retried before.
func (s *vhost) loadBreakers(ctx context.Context) error {
	if s.replica != nil {
		return s.replica.Join(ctx, ReplicaParts{
			Throttle: s.throttle, Scheduler: s.scheduler, Inspect: s.inspect, Actions: s.actions,
			Operations: s.operations, CountFlow: s.countFlow,
			LeaderTasks: []func(context.Context){s.inspect.Lead, s.operations.Lead, s.notify.Run, s.guard.Forget,
				s.removeRetryExchanges}})
	}
	all, err := inspect.ForcedBreakers(ctx, s.store)
	for queue, f := range all {
		s.force(queue, f.To, f.By, f.Reason)
	}
	return err
}

const (
	// How often to ask RabbitMQ for the consumers of a queue that has some, has none, or whose number it does not know.
	askSome, askNone, askUnknown = 5 * time.Second, time.Second, time.Minute
	// An answer counts for answerValid longer than that.
	answerValid = 10 * time.Second
	// maxAnswerWait bounds how long a retry waits for the first answer: retries must not stop because RabbitMQ does not
	// answer.
	maxAnswerWait = 5 * time.Second
	// watchedFor is how long to watch a queue after its last due message.
	watchedFor = 30 * time.Second
)

// consumerThrottle is the throttle that the scheduler calls. It asks RabbitMQ how many consumers
// each queue with due messages has, and allows the queue no retries until that is known, for
// maxAnswerWait at most.
type consumerThrottle struct {
	*throttle.Throttle
	// mayRetryTo reports whether a queue can be retried to. If not, do not ask RabbitMQ about it: a report may have
	// invented the name.
	mayRetryTo func(queue string) (yes, known bool)
	rules      func(queue string) throttle.Rules
	due        func(context.Context) ([]store.NextDue, error)
	ask        func(ctx context.Context, queues []string, answer func(queue string, consumers, ready int)) error
	ready      func() bool
	wake       func() // the scheduler

	pollNow chan struct{}

	mu     sync.Mutex
	queues map[string]*watchedQueue
	// unknownSince has since when it is unknown whether a queue can be retried to.
	unknownSince map[string]time.Time
}

type watchedQueue struct {
	due          time.Time // of its last due message
	waits        bool      // a message was due in the latest poll
	awaitedSince time.Time // since when a retry waits for an answer; zero: none waits
	answeredAt   time.Time // when RabbitMQ answered; zero: never
	consumers    int       // -1: not known
}

func (w *watchedQueue) askEvery() time.Duration {
	switch w.consumers {
	case 0:
		return askNone
	case -1:
		return askUnknown
	}
	return askSome
}

// Allow calls the throttle's Allow once it is known whether the queue has consumers.
func (c *consumerThrottle) Allow(queue string, wanted int, now time.Time) (n int, retryAt time.Time) {
	yes, until := c.mayRetryOrWait(queue, now)
	if yes && c.rules(queue).NoConsumer != throttle.RetryWithoutConsumers {
		until = c.waitForAnswer(queue, now)
	}
	if !until.IsZero() {
		return 0, until
	}
	return c.Throttle.Allow(queue, wanted, now)
}

// mayRetryOrWait reports whether a queue can be retried to, or until when to wait for RabbitMQ's answer to that.
func (c *consumerThrottle) mayRetryOrWait(queue string, now time.Time) (yes bool, until time.Time) {
	yes, known := c.mayRetryTo(queue)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known {
		delete(c.unknownSince, queue)
		return yes, until
	}
	if c.unknownSince[queue].IsZero() {
		c.unknownSince[queue] = now
	}
	if until = c.unknownSince[queue].Add(maxAnswerWait); !now.Before(until) {
		return false, time.Time{}
	}
	return false, until
}

// waitForAnswer returns until when to wait for the number of the queue's consumers; zero: not at all.
func (c *consumerThrottle) waitForAnswer(queue string, now time.Time) (until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.watch(queue, now)
	if !w.answeredAt.IsZero() && now.Sub(w.answeredAt) < w.askEvery()+answerValid {
		w.awaitedSince = time.Time{}
		return until
	}
	if w.awaitedSince.IsZero() {
		w.awaitedSince = now
		select {
		case c.pollNow <- struct{}{}:
		default:
		}
	}
	if until = w.awaitedSince.Add(maxAnswerWait); !now.Before(until) {
		return time.Time{}
	}
	return until
}

func (c *consumerThrottle) watch(queue string, now time.Time) *watchedQueue {
	w := c.queues[queue]
	if w == nil {
		w = &watchedQueue{consumers: -1}
		c.queues[queue] = w
	}
	w.due = now
	return w
}

func (c *consumerThrottle) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-time.After(c.poll(ctx)):
		case <-ctx.Done():
		case <-c.pollNow:
		}
	}
}

// poll asks for the consumers of queues whose answers are old, and returns how long to wait until the next poll.
func (c *consumerThrottle) poll(ctx context.Context) time.Duration {
	now := time.Now()
	if next, err := c.due(ctx); err == nil {
		c.mu.Lock()
		for _, w := range c.queues {
			w.waits = false
		}
		c.mu.Unlock()
		for _, n := range next {
			if n.Forwards() || !n.Due.Before(now.Add(askSome)) ||
				c.rules(n.Queue).NoConsumer == throttle.RetryWithoutConsumers {
				continue
			}
			if yes, _ := c.mayRetryTo(n.Queue); yes {
				c.mu.Lock()
				w := c.watch(n.Queue, now)
				w.waits = w.waits || !n.Due.After(now)
				c.mu.Unlock()
			}
		}
	}
	ask, forgotten, wait := c.toAsk(now)
	for _, q := range forgotten {
		c.Consumers(q, -1, 0, false, now)
	}
	if len(ask) > 0 && c.ready() {
		// The next poll asks again for those without an answer.
		_ = c.ask(ctx, ask, func(q string, n, ready int) { c.setAnswer(q, n, ready, now) })
		c.wake()
	}
	for _, q := range c.Queues() { // applies what time alone changes
		c.View(q, now)
	}
	return wait
}

// toAsk returns the queues to ask for, those that it has stopped watching, and how long to wait until the next poll.
func (c *consumerThrottle) toAsk(now time.Time) (ask, forgotten []string, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = askSome
	maps.DeleteFunc(c.unknownSince, func(_ string, since time.Time) bool { return now.Sub(since) > watchedFor })
	for q, w := range c.queues {
		switch {
		case now.Sub(w.due) > watchedFor || c.rules(q).NoConsumer == throttle.RetryWithoutConsumers:
			delete(c.queues, q)
			if w.consumers >= 0 {
				forgotten = append(forgotten, q)
			}
			continue
		case w.answeredAt.IsZero() || !w.awaitedSince.IsZero() || now.Sub(w.answeredAt) >= w.askEvery()-askNone/2:
			ask = append(ask, q)
		}
		if w.consumers == 0 || w.answeredAt.IsZero() {
			wait = askNone
		}
	}
	return ask, forgotten, wait
}

// setAnswer passes an answer to the throttle before it stores it: from then on Allow does not wait.
func (c *consumerThrottle) setAnswer(queue string, n, ready int, asked time.Time) {
	c.mu.Lock()
	w := c.queues[queue]
	waits := w != nil && w.waits
	c.mu.Unlock()
	c.Consumers(queue, n, ready, waits, asked)
	if w != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		w.answeredAt, w.consumers, w.awaitedSince = time.Now(), n, time.Time{}
	}
}
