package notify

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	prefix = "notify/" // then the route's name, the kind and the queue
	// minRound is the minimum time between two rounds, so that many messages parked in a second cost one write.
	minRound = time.Second
	// startGrace is how long after a start a missing condition does not count as over.
	startGrace = time.Minute
	maxPause   = 5 * time.Minute // between two tries
)

// route is one Route and its goroutine.
type route struct {
	engine *Engine
	Route
	client  *client
	to      *target
	pending *pending
	reader  *parkedReader

	wake    chan struct{} // receives when there is something to gather
	mu      sync.Mutex
	news    map[key]*tally // parked since the last round
	latest  []Condition
	updated bool // latest is not gathered yet

	failures   int
	nextTry    time.Time
	storeFails bool // the last store failed
}

// count adds messages parked. It does not wait for the route.
func (r *route) count(k key, t *tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.news == nil {
		r.news = map[key]*tally{}
	}
	if r.news[k] == nil {
		r.news[k] = &tally{}
	}
	r.news[k].join(t)
	signal(r.wake)
}

func (r *route) conditions(all []Condition) {
	var mine []Condition
	for _, c := range all {
		if r.engine.wants(r, key{c.Kind, c.Queue, c.Target}) {
			mine = append(mine, c)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest, r.updated = mine, true
	signal(r.wake)
}

// run works until ctx ends. Then it stores what is pending, for the next start.
func (r *route) run(ctx context.Context) {
	began := time.Now()
	last := began.Add(-minRound)
	r.load(context.WithoutCancel(ctx)) // before store would overwrite it
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
			wait(ctx, minRound-time.Since(last))
		}
		now := time.Now()
		last = now
		starting := now.Sub(began) < startGrace
		r.gather(now, starting)
		if ctx.Err() != nil {
			r.store(context.WithoutCancel(ctx))
			return
		}
		next := r.nextTry
		if !now.Before(r.nextTry) {
			next = r.send(ctx, now, starting)
		}
		r.store(ctx)
		timer.Reset(max(0, time.Until(next)))
	}
}

func wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// gather adds news and conditions to what is pending.
func (r *route) gather(now time.Time, starting bool) {
	r.mu.Lock()
	news, conditions, updated := r.news, r.latest, r.updated
	r.news, r.latest, r.updated = nil, nil, false
	r.mu.Unlock()
	for k, t := range news {
		r.pending.count(k, t)
	}
	if updated {
		r.pending.update(now, conditions, starting)
	}
}

// send sends what is due, and returns when to look again. A notification that cannot be sent stays pending, and its
// counts grow.
func (r *route) send(ctx context.Context, now time.Time, starting bool) time.Time {
	messages, next := r.pending.plan(now)
	if len(messages) > 0 { // count what is parked by now; after an error the last second's is missing
		_ = r.reader.read(ctx)
		r.gather(now, starting)
		messages, next = r.pending.plan(now)
	}
	for _, m := range messages {
		err := r.to.deliver(ctx, r.client, m)
		if ctx.Err() != nil {
			return next
		}
		if err != nil {
			r.failed(err)
			return r.nextTry
		}
		if r.failures > 0 {
			r.engine.Log.Info("the notifier answers again", "route", r.Name, "failures", r.failures)
		}
		r.failures = 0
		r.engine.Count(r.Name, "sent")
		r.pending.sent(m, time.Now())
		_, next = r.pending.plan(time.Now())
	}
	return next
}

func (r *route) failed(err error) {
	r.failures++
	limit := maxPause
	if r.to.groups == byReceiver {
		limit = alertEvery // otherwise its alerts would end meanwhile
	}
	off := min(minRound<<min(r.failures, 20), limit)
	var b busyError
	if errors.As(err, &b) {
		off = max(off, b.after)
	}
	r.nextTry = time.Now().Add(off)
	r.engine.Count(r.Name, "failed")
	if r.failures == 1 {
		r.engine.Log.Warn("a notification could not be sent; it is tried again, and its counts grow", "route", r.Name,
			"service", r.to.scheme, "error", err)
	}
}

// load reads what the last run stored.
func (r *route) load(ctx context.Context) {
	at := prefix + r.Name + "/"
	err := r.engine.Store.Entries(ctx, at, "", func(e store.Entry) (bool, error) {
		kind, queue, _ := strings.Cut(strings.TrimPrefix(e.Name, at), "/")
		k, kept := key{Kind: Kind(kind), Queue: queue}, &entry{}
		err := json.Unmarshal(e.Value, kept)
		if kept.Target != "" {
			k.Queue, k.Target = strings.TrimSuffix(queue, toTarget+kept.Target), kept.Target
		}
		if err != nil || !r.engine.wants(r, k) && queue != otherQueues {
			r.pending.changed[k] = true // so that store deletes it
			return true, nil
		}
		r.pending.entries[k] = kept
		return true, nil
	})
	if err != nil {
		r.engine.Log.Warn("the notifications sent before the start cannot be read; they may be sent again", "route",
			r.Name, "error", err)
	}
}

func (r *route) store(ctx context.Context) {
	if len(r.pending.changed) == 0 {
		return
	}
	var entries []store.Entry
	for k := range r.pending.changed {
		e := store.Entry{Name: prefix + r.Name + "/" + string(k.Kind) + "/" + k.lane()}
		if kept := r.pending.entries[k]; kept != nil {
			e.Value, _ = json.Marshal(kept)
		}
		entries = append(entries, e)
	}
	err := r.engine.Store.PutEntries(ctx, entries)
	if err != nil && !r.storeFails && ctx.Err() == nil {
		r.engine.Log.Warn("the state of notifications cannot be stored; after a restart they may be sent again",
			"route", r.Name, "error", err)
	}
	if r.storeFails = err != nil; !r.storeFails {
		clear(r.pending.changed)
	}
}
