package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// queueWatch looks at all queues of the virtual host, and reports those that stand: they have ready messages, and
// have had no consumer for a while. It watches enrolled queues, and others that have had a consumer since the service
// started, such as the old queue of a migration.
type queueWatch struct {
	list func(context.Context) ([]management.QueueState, error) // nil: no management API is configured
	// keeps returns which queues are meant to keep messages, as dead-letter queues are.
	keeps      func(context.Context) (func(queue string) bool, error)
	conditions *condition.Set
	store      store.SideTable
	log        *slog.Logger

	queues map[string]*seenQueue
	looked time.Time // when RabbitMQ last listed its queues
}

// seenQueue is what is known of a queue.
type seenQueue struct {
	consumed bool      // it has had a consumer
	idle     time.Time // since when messages have been ready and none was taken; zero: it is not so
	standing bool      // and that was reported
}

const (
	// watchEvery is how often to look; less often if looking takes longer than a tenth of it.
	watchEvery = 30 * time.Second
	// standingAfter is longer than consumers are away for a deployment.
	standingAfter = 15 * time.Minute
	// maxUnseen is how long the list may be missing: consumers may have come and gone in a longer time.
	maxUnseen = 5 * time.Minute
	// watchPrefix + a queue's name is the entry of a standing queue, so that a restart neither ends nor repeats it.
	watchPrefix = "watch/"
)

func newQueueWatch(s *vhost) *queueWatch {
	w := &queueWatch{conditions: s.conditions, store: s.store, log: s.Log, queues: map[string]*seenQueue{}}
	if s.manage != nil {
		w.list = s.manage.QueueStates
	}
	w.keeps = func(ctx context.Context) (func(string) bool, error) {
		all, err := s.deadLetters.queues(ctx)
		return func(queue string) bool { return all[queue].Why != "" || s.followers.follows(queue, "") }, err
	}
	return w
}

func (w *queueWatch) run(ctx context.Context) {
	if w.list == nil {
		return
	}
	w.load(ctx)
	for ctx.Err() == nil {
		began := time.Now()
		w.look(ctx)
		sleep(ctx, max(watchEvery, 10*time.Since(began)))
	}
}

// load reads the queues that stood when the service ended.
func (w *queueWatch) load(ctx context.Context) {
	err := w.store.Entries(ctx, watchPrefix, "", func(e store.Entry) (bool, error) {
		var c condition.Condition
		if err := json.Unmarshal(e.Value, &c); err != nil {
			return false, fmt.Errorf("the entry %q: %w", e.Name, err)
		}
		w.queues[strings.TrimPrefix(e.Name, watchPrefix)] = &seenQueue{consumed: true, idle: c.Since, standing: true}
		w.conditions.Put(c)
		return true, nil
	})
	if err != nil && ctx.Err() == nil {
		w.log.Warn("cannot read which queues stood before the start", "error", err)
	}
}

// look asks RabbitMQ once. Without an answer all stays as it is.
func (w *queueWatch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	all, err := w.list(ctx)
	if err != nil {
		return
	}
	now := time.Now()
	unseen := now.Sub(w.looked) > maxUnseen
	before := w.queues
	w.looked, w.queues = now, make(map[string]*seenQueue, len(all))
	var keeps func(queue string) bool // asked for once, when it is needed
	var entries []store.Entry
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
		is.see(q, now, unseen)
		enrolled := q.Setting("dead-letter-exchange") == wire.ExchangeDeadLetters
		stands := (enrolled || is.consumed) && !is.idle.IsZero() && now.Sub(is.idle) >= standingAfter
		if stands && !is.standing && !enrolled {
			if keeps == nil {
				keeps, err = w.keeps(ctx)
			}
			stands = err == nil && !keeps(q.Name)
			is.consumed = err != nil || stands
		}
		if e := w.report(q, is, stands); e != nil {
			entries = append(entries, *e)
		}
	}
	for name, is := range before {
		if w.queues[name] == nil && is.standing {
			w.conditions.Put(condition.Condition{Kind: condition.Standing, Queue: name})
			entries = append(entries, store.Entry{Name: watchPrefix + name})
		}
	}
	if len(entries) > 0 {
		_ = w.store.PutEntries(ctx, entries) // without them, a restart repeats a notification
	}
}

// see updates what is known of a queue. unseen is set if no one looked for long.
func (is *seenQueue) see(q *management.QueueState, now time.Time, unseen bool) {
	is.consumed = is.consumed || q.Consumers > 0
	switch {
	case q.Ready == 0, q.Consumers > 0, q.Stats.Delivered.InMinute() > 0: // the last by basic.get
		is.idle = time.Time{}
	case is.idle.IsZero(), unseen && !is.standing:
		is.idle = now
	}
}

// report puts or removes a queue's condition. It returns the entry to write if that began or ended.
func (w *queueWatch) report(q *management.QueueState, is *seenQueue, stands bool) *store.Entry {
	waits := condition.Condition{Kind: condition.NoConsumer, Queue: q.Name} // which says the same
	if !is.standing && (!stands || w.conditions.Text(waits) != "") {
		return nil
	}
	c, changed := condition.Condition{Kind: condition.Standing, Queue: q.Name}, stands != is.standing
	is.standing = stands
	e := &store.Entry{Name: watchPrefix + q.Name}
	if stands {
		c.Since, c.Text = is.idle, fmt.Sprintf("no consumer for more than %s, and messages are ready (%s)",
			policy.FormatDuration(standingAfter), hint.Thousands(fmt.Sprint(q.Ready)))
		e.Value, _ = json.Marshal(c) // cannot fail
	}
	w.conditions.Put(c)
	switch log := w.log.With("queue", q.Name); {
	case !changed:
		return nil
	case stands:
		log.Warn("a queue stands: messages are ready, and no consumer takes them", "ready", q.Ready, "since", is.idle)
	default:
		log.Info("the queue stands no longer")
	}
	return e
}
