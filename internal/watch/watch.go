// Package watch finds the conditions of queues that take time to see: no consumers, and counts that
// grow. Read it in this order:
//
//	watch.go       the loop: asks RabbitMQ and the store once a minute
//	unconsumed.go  queues with messages and no consumers, and those of them that fill up
//	rising.go      messages waiting and parked, compared with what is usual for the queue
//	history.go     how many there were, over a day
//	saved.go       what the next start, or the next leader, continues from
package watch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// every is how often RabbitMQ is asked for all queues, in one request, and longestAsk how long
	// that may take.
	every, longestAsk = time.Minute, 30 * time.Second
	// mostQueues bounds the queues that are remembered.
	mostQueues = 5000
)

// Queue is a queue as RabbitMQ has it.
type Queue struct {
	Name      string
	Messages  int64
	Consumers int
	// Enrolled: its dead letters go to Redrive.
	Enrolled bool
	// Passes: its messages expire and are dead-lettered, so it fills up and drains by itself.
	Passes bool
}

// Options of a Watcher.
type Options struct {
	Settings func() *notify.Settings // patterns and thresholds
	// Queues asks RabbitMQ for all queues that last, without Redrive's own; nil: it cannot be asked.
	Queues func(context.Context) ([]Queue, error)
	Counts func(context.Context) ([]store.QueueCount, error)
	Store  store.SideTable
	Log    *slog.Logger
}

// Watcher knows the conditions as of the last minute. Make it with New, and Run it.
type Watcher struct {
	Options

	mu         sync.Mutex
	unconsumed map[string]*unconsumed
	rising     map[string]*counts
	none       history // of a queue of which the store had nothing
	unanswered bool    // RabbitMQ did not answer, the last time

	// of Run alone
	savedSlot int64
	saveFails bool
}

// New makes a Watcher.
func New(o Options) *Watcher {
	return &Watcher{Options: o, unconsumed: map[string]*unconsumed{}, rising: map[string]*counts{}}
}

// Run watches until ctx ends. It continues from what was saved, by this replica or another.
func (w *Watcher) Run(ctx context.Context) {
	w.load(ctx)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			_ = w.save(context.WithoutCancel(ctx)) // a former leader is refused
			w.forget()
			return
		case <-tick.C:
		}
	}
}

// look asks RabbitMQ and the store.
func (w *Watcher) look(ctx context.Context) {
	if w.Queues != nil {
		asking, cancel := context.WithTimeout(ctx, longestAsk)
		all, err := w.Queues(asking)
		cancel()
		w.answered(err, ctx.Err() != nil)
		if err == nil {
			w.addQueues(all, time.Now())
		}
	}
	if all, err := w.Counts(ctx); err == nil { // another part reports a store that fails
		w.addCounts(all, time.Now())
	}
	if slot := slotOf(time.Now()); slot != w.savedSlot && ctx.Err() == nil {
		w.savedSlot = slot
		err := w.save(ctx)
		if err != nil && !w.saveFails && ctx.Err() == nil {
			w.Log.Warn("what was seen of the queues cannot be saved; after a restart, what is usual for each is not known for some hours", "error", err)
		}
		w.saveFails = err != nil
	}
}

const notListed = "RabbitMQ's management API does not list the queues: only of those with due messages it is known whether they have consumers"

// answered logs once that RabbitMQ does not answer, and once that it does again.
func (w *Watcher) answered(err error, ends bool) {
	w.mu.Lock()
	was := w.unanswered
	w.unanswered = err != nil
	w.mu.Unlock()
	switch {
	case ends || was == (err != nil):
	case err != nil && len(w.Settings().Watch) == 0: // as where there is no such API
		w.Log.Info(notListed, "error", err)
	case err != nil:
		w.Log.Warn(notListed, "error", err)
	default:
		w.Log.Info("RabbitMQ's management API lists the queues again")
	}
}

// Conditions returns those that are on, as of the last minute.
func (w *Watcher) Conditions() []notify.Condition {
	s := w.Settings()
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(w.unconsumedConditions(s), w.risingConditions(s)...)
}

// forget leaves what the next leader knows better to it.
func (w *Watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unconsumed, w.rising, w.none, w.unanswered = map[string]*unconsumed{}, map[string]*counts{}, history{}, false
}
