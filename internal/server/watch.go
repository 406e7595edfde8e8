package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// queueWatch looks at all queues of the virtual host, and reports those that stand: they have ready messages, and
// have had no consumer for a while; those that are too long; and those of which nothing is acknowledged. It watches
// enrolled queues, others that have had a consumer since the service started, such as the old queue of a migration,
// and those that the config names.
type queueWatch struct {
	list func(context.Context) ([]management.QueueState, error) // nil: no management API is configured
	// keeps returns which queues are meant to keep messages, as dead-letter queues are.
	keeps      func(context.Context) (func(queue string) bool, error)
	configured atomic.Pointer[config.Watches]
	conditions *condition.Set
	store      store.SideTable
	log        *slog.Logger

	queues map[string]*seenQueue
	looked time.Time // when RabbitMQ last listed its queues
	silent time.Time // since when it has not; zero: it did
	last   atomic.Pointer[lastLook]
}

// lastLook has the watched queues for the metrics: those that the config names first.
type lastLook struct {
	at     time.Time
	queues []metrics.WatchedQueue
}

// seenQueue is what is known of a queue.
type seenQueue struct {
	consumed    bool      // it has had a consumer
	idle        time.Time // since when messages have been ready and none was taken; zero: it is not so
	over        time.Time // since when more than its limit have been ready; zero: it is not so
	ready       int       // at the last look
	grows, rose time.Time // since when that has grown and never fallen, and when it last grew; zero: it fell
	// keeps is set if it is meant to keep messages, and asked if that is known; neither between two backlogs.
	asked, keeps   bool
	standing, long bool // reported
	counts         deliveries
	held           time.Time // since when messages have been unacknowledged and none was settled; zero: it is not so
	unacked        bool      // reported
	grew           time.Time // when a reported queue that is too long last got more messages
}

// deliveries is what RabbitMQ counted of a queue.
type deliveries struct {
	Messages  int // at the last look, ready and unacknowledged
	Delivered int // at the last look
	// Settled is by how much more were delivered than are unacknowledged: it grows when one is acknowledged, rejected
	// or requeued. The two are not counted at the same time, so it is the most since then.
	Settled int
}

// keptCondition is the entry of a condition.
type keptCondition struct {
	condition.Condition
	Counts deliveries
}

const (
	// watchEvery is how often to look; less often if looking takes longer than a tenth of it.
	watchEvery = 30 * time.Second
	// longAfter is longer than consumers are away for a deployment. Of a queue that is meant to keep messages, the
	// second look counts.
	longAfter = 15 * time.Minute
	// maxUnseen is how long the list may be missing: consumers may have come and gone in a longer time.
	maxUnseen = 5 * time.Minute
	// silentFor is how long the management API may be silent: longer than a restart of RabbitMQ takes.
	silentFor = 2 * time.Minute
	// watchPrefix + the kind and a queue's name is the entry of a condition, so that a restart neither ends nor
	// repeats it.
	watchPrefix = "watch/"
)

func newQueueWatch(s *vhost) *queueWatch {
	w := &queueWatch{conditions: s.conditions, store: s.store, log: s.Log, queues: map[string]*seenQueue{}}
	w.configured.Store(&s.config.Watch)
	s.metrics.Watched(w.shown)
	if s.manage != nil {
		w.list = s.manage.QueueStates
	}
	w.keeps = func(ctx context.Context) (func(string) bool, error) {
		all, err := s.deadLetters.queues(ctx)
		return func(queue string) bool { return all[queue].Why != "" || s.followers.follows(queue, "") }, err
	}
	return w
}

// shown returns the watched queues, or none if the last look was long ago.
func (w *queueWatch) shown() []metrics.WatchedQueue {
	if last := w.last.Load(); last != nil && time.Since(last.at) <= maxUnseen {
		return last.queues
	}
	return nil
}

func (w *queueWatch) run(ctx context.Context) {
	if w.list == nil {
		return
	}
	w.load(ctx)
	for ctx.Err() == nil {
		began := time.Now()
		w.look(ctx)
		pause := 10 * time.Since(began)
		if !w.silent.IsZero() {
			pause = 0
		}
		sleep(ctx, max(watchEvery, pause))
	}
}

// load reads the queues that stood, or were too long, when the service ended.
func (w *queueWatch) load(ctx context.Context) {
	err := w.store.Entries(ctx, watchPrefix, "", func(e store.Entry) (bool, error) {
		var c keptCondition
		if err := json.Unmarshal(e.Value, &c); err != nil {
			return false, fmt.Errorf("the entry %q: %w", e.Name, err)
		}
		is := w.queues[c.Queue]
		if is == nil {
			is = &seenQueue{}
			w.queues[c.Queue] = is
		}
		switch c.Kind {
		case condition.Standing:
			is.consumed, is.idle, is.standing = true, c.Since, true
		case condition.Unacked:
			is.held, is.unacked = c.Since, true
			is.counts.Delivered, is.counts.Settled = c.Counts.Delivered, c.Counts.Settled
		case condition.Long:
			is.over, is.grows, is.rose, is.long = c.Since, c.Since, time.Now(), true
			is.grew, is.counts.Messages = c.Grew, c.Counts.Messages
		}
		w.conditions.Put(c.Condition)
		return true, nil
	})
	if err != nil && ctx.Err() == nil {
		w.log.Warn("cannot read which queues stood before the start", "error", err)
	}
}

// look asks RabbitMQ once. Without an answer it keeps what it knows, and reports the silence.
func (w *queueWatch) look(ctx context.Context) {
	if w.silent.IsZero() {
		w.silent = time.Now()
	}
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	all, err := w.list(ctx)
	now, api := time.Now(), condition.Condition{Kind: condition.Management}
	if err != nil {
		if now.Sub(w.silent) >= silentFor {
			api.Since, api.Text = w.silent, "it does not answer, so what only it knows is not shown"
			w.conditions.Put(api)
		}
		return
	}
	w.silent = time.Time{}
	w.conditions.Put(api)
	unseen := now.Sub(w.looked) > maxUnseen
	before, rules := w.queues, *w.configured.Load()
	w.looked, w.queues = now, make(map[string]*seenQueue, len(all))
	var keeps func(queue string) bool // asked for once, when it is needed
	ask := func(queue string, is *seenQueue) {
		if !is.asked && keeps == nil && err == nil {
			keeps, err = w.keeps(ctx)
		}
		if !is.asked && err == nil {
			is.asked, is.keeps = true, keeps(queue)
		}
	}
	var entries []store.Entry
	var shown, unnamed []metrics.WatchedQueue
	for i := range all {
		q := &all[i]
		if wire.OwnQueue(q.Name) || q.Exclusive || q.Type == "stream" {
			continue
		}
		is := before[q.Name]
		if is == nil {
			is = &seenQueue{}
		}
		w.queues[q.Name] = is
		rule, named := rules.Match(q.Name)
		is.see(q, &rule, now, unseen)
		enrolled := q.Setting("dead-letter-exchange") == wire.ExchangeDeadLetters
		watched := enrolled || named || is.consumed
		at := metrics.WatchedQueue{Queue: q.Name, Ready: q.Ready, Unacked: q.Unacked, Consumers: q.Consumers}
		if named {
			shown = append(shown, at)
		} else if watched {
			unnamed = append(unnamed, at)
		}
		stands := watched && rule.Standing > 0 && !is.idle.IsZero() &&
			now.Sub(is.idle) >= rule.Standing
		if stands && !is.standing && !enrolled {
			ask(q.Name, is)
			stands = is.asked && !is.keeps
		}
		if !is.over.IsZero() && now.After(is.over) && !is.long && !enrolled {
			ask(q.Name, is)
		}
		c := condition.Condition{Kind: condition.Standing, Queue: q.Name}
		if waits := (condition.Condition{Kind: condition.NoConsumer, Queue: q.Name}); // which says the same
		stands && (is.standing || w.conditions.Text(waits) == "") {
			c.Since, c.Text = is.idle, fmt.Sprintf("no consumer for more than %s, and messages are ready (%s)",
				policy.FormatDuration(rule.Standing), hint.Thousands(fmt.Sprint(q.Ready)))
		}
		entries = w.report(entries, c, is, &is.standing)
		entries = w.report(entries, is.tooLong(q, &rule, now), is, &is.long)
		c = condition.Condition{Kind: condition.Unacked, Queue: q.Name}
		if rule.Unacked > 0 && !is.held.IsZero() && now.Sub(is.held) >= rule.Unacked {
			c.Since, c.Text = is.held, fmt.Sprintf("none was acknowledged for more than %s, of %s",
				policy.FormatDuration(rule.Unacked), hint.Thousands(fmt.Sprint(q.Unacked)))
		}
		entries = w.report(entries, c, is, &is.unacked)
	}
	for name, is := range before {
		if w.queues[name] == nil {
			entries = w.report(entries, condition.Condition{Kind: condition.Standing, Queue: name}, is, &is.standing)
			entries = w.report(entries, condition.Condition{Kind: condition.Long, Queue: name}, is, &is.long)
			entries = w.report(entries, condition.Condition{Kind: condition.Unacked, Queue: name}, is, &is.unacked)
		}
	}
	byName := func(a, b metrics.WatchedQueue) int { return strings.Compare(a.Queue, b.Queue) }
	slices.SortFunc(shown, byName)
	slices.SortFunc(unnamed, byName)
	w.last.Store(&lastLook{now, append(shown, unnamed...)})
	if len(entries) > 0 {
		_ = w.store.PutEntries(ctx, entries) // without them, a restart repeats a notification
	}
}

// see updates what is known of a queue. unseen is set if no one looked for long.
func (is *seenQueue) see(q *management.QueueState, rule *config.Watched, now time.Time, unseen bool) {
	is.consumed = is.consumed || q.Consumers > 0
	switch {
	case q.Ready == 0, q.Consumers > 0, q.Stats.Delivered.InMinute() > 0: // the last by basic.get
		is.idle = time.Time{}
	case is.idle.IsZero(), unseen && !is.standing:
		is.idle = now
	}
	switch {
	case rule.Ready == nil, q.Ready <= *rule.Ready && (!is.long || q.Ready <= *rule.Ready-*rule.Ready/10):
		is.over = time.Time{}
	case is.over.IsZero(), unseen:
		is.over = now
	}
	switch {
	case q.Ready < is.ready, unseen && !is.long:
		is.rose = time.Time{}
	case q.Ready > is.ready:
		if now.Sub(is.rose) >= rule.GrowingFor {
			is.grows = now
		}
		is.rose = now
	}
	messages, delivered := q.Ready+q.Unacked, q.Stats.Delivers+q.Stats.Gets
	switch {
	case !is.long || !rule.EachIncrease:
		is.grew = time.Time{}
	case messages > is.counts.Messages:
		is.grew = now
	}
	settled := delivered - q.Unacked
	switch {
	case q.Unacked == 0, delivered == 0: // the latter without RabbitMQ's statistics
		is.held = time.Time{}
	case is.held.IsZero(), settled > is.counts.Settled, delivered < is.counts.Delivered, unseen && !is.unacked:
		is.held, is.counts.Settled = now, settled
	}
	is.counts.Messages, is.counts.Delivered = messages, delivered
	if is.ready = q.Ready; is.idle.IsZero() && is.over.IsZero() {
		is.asked, is.keeps = false, false
	}
}

// tooLong returns the condition of a queue that is too long, without a text if it is not.
func (is *seenQueue) tooLong(q *management.QueueState, rule *config.Watched, now time.Time) condition.Condition {
	c := condition.Condition{Kind: condition.Long, Queue: q.Name}
	ready, over := hint.Thousands(fmt.Sprint(q.Ready)), now.Sub(is.over)
	switch {
	case !is.over.IsZero() && (over >= longAfter || is.long || is.keeps && over > 0):
		c.Since, c.Grew, c.Text = is.over, is.grew, fmt.Sprintf("%s messages are ready, and its limit is %s", ready,
			hint.Thousands(fmt.Sprint(*rule.Ready)))
	case rule.GrowingFor > 0 && now.Sub(is.grows) >= rule.GrowingFor && now.Sub(is.rose) < rule.GrowingFor:
		c.Since, c.Text = is.grows, fmt.Sprintf("it has grown for more than %s, and never fell (%s messages are ready)",
			policy.FormatDuration(rule.GrowingFor), ready)
	}
	return c
}

// report puts a queue's condition, or removes it if c has no text. It adds the entry to write if that began or ended,
// or the queue grew.
func (w *queueWatch) report(
	entries []store.Entry, c condition.Condition, is *seenQueue, was *bool,
) []store.Entry {
	holds := c.Text != ""
	if !holds && !*was {
		return entries
	}
	w.conditions.Put(c)
	if holds == *was && !(holds && c.Grew.Equal(w.looked)) {
		return entries
	}
	e := store.Entry{Name: watchPrefix + string(c.Kind) + "/" + c.Queue}
	if holds {
		e.Value, _ = json.Marshal(keptCondition{c, is.counts}) // cannot fail
	}
	if holds == *was {
		return append(entries, e)
	}
	*was = holds
	if log := w.log.With("queue", c.Queue, "condition", c.Kind); holds {
		log.Warn("messages stay in a queue", "text", c.Text, "since", c.Since)
	} else {
		log.Info("messages no longer stay in the queue")
	}
	return append(entries, e)
}
