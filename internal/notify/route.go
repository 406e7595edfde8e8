package notify

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	prefix = "notify/" // and the route's name, the kind and the queue
	// minRound is the shortest time between two rounds, so that many messages parked in a
	// second cost one write.
	minRound = time.Second
	// startGrace is how long after a start a condition that is not seen is not over yet.
	startGrace = time.Minute
	longestOff = 5 * time.Minute // between two tries
)

// route is one Route and its goroutine.
type route struct {
	engine *Engine
	Route
	client  *client
	to      *target
	pending *pending

	arrivals // its mu guards the next two
	latest   []Condition
	updated  bool // latest is new

	failures   int
	nextTry    time.Time
	storeFails bool // what is pending could not be stored
}

// parkReason is why a message was parked: its consumer's error, or ours.
type parkReason struct {
	text string
	ours bool
}

// arrival counts what was parked of a key since the last round.
type arrival struct {
	tally
	reasons map[parkReason]int64
}

// mostReasons is how many different texts are kept between two rounds: to find what they have in
// common takes longer than the intake has time for. Beyond that, messages are counted and errors
// are not.
const mostReasons = 256

// arrivals counts what was parked since the last round.
type arrivals struct {
	mu    sync.Mutex
	byKey map[key]*arrival
	texts int           // how many different reasons are in it
	wake  chan struct{} // has a value when something was counted
}

func newArrivals() arrivals { return arrivals{wake: make(chan struct{}, 1)} }

// at is where a key is counted.
func (r *arrivals) at(k key) *arrival {
	a := r.byKey[k]
	if a == nil {
		if len(r.byKey) >= mostQueues {
			k.Queue, k.Target = otherQueues, ""
			a = r.byKey[k]
		}
		if a == nil {
			a = &arrival{reasons: map[parkReason]int64{}}
			if r.byKey == nil {
				r.byKey = map[key]*arrival{}
			}
			r.byKey[k] = a
		}
	}
	return a
}

// addReason counts why n of them were parked.
func (r *arrivals) addReason(a *arrival, why parkReason, n int64) {
	if _, ok := a.reasons[why]; ok {
		a.reasons[why] += n
	} else if r.texts < mostReasons && why.text != "" {
		r.texts++
		why.text = strings.Clone(why.text)
		a.reasons[why] = n
	}
}

// drain returns what was counted since the last call. The caller holds mu.
func (r *arrivals) drain() map[key]*arrival {
	news := r.byKey
	r.byKey, r.texts = nil, 0
	return news
}

// count is quick: it is called for each parked message.
func (r *arrivals) count(k key, n int64, why parkReason, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.at(k)
	a.add(n, "", at)
	r.addReason(a, why, n)
	r.signal()
}

func (r *route) conditions(all []Condition) {
	var mine []Condition
	for _, c := range all {
		if r.engine.wants(r, key{Kind: c.Kind, Queue: c.Queue, Target: c.Target}) {
			mine = append(mine, c)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest, r.updated = mine, true
	r.signal()
}

func (r *arrivals) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends. It stores what is pending then for the next start.
func (r *route) run(ctx context.Context) {
	began := time.Now()
	last := began.Add(-minRound)
	r.load(context.WithoutCancel(ctx)) // or store would overwrite it
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
		r.gather(now, now.Sub(began) < startGrace)
		if ctx.Err() != nil {
			r.store(context.WithoutCancel(ctx))
			return
		}
		next := r.nextTry
		if !now.Before(r.nextTry) {
			next = r.send(ctx, now)
		}
		r.store(ctx)
		timer.Reset(max(0, time.Until(next)))
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// gather adds what was parked, and the conditions, to what is pending.
func (r *route) gather(now time.Time, starting bool) {
	r.mu.Lock()
	news, conditions, updated := r.drain(), r.latest, r.updated
	r.latest, r.updated = nil, false
	r.mu.Unlock()
	for k, a := range news {
		for why, n := range a.reasons {
			a.addError(n, commonError(k.Queue, why))
		}
		r.pending.count(k, &a.tally)
	}
	if updated {
		r.pending.update(now, conditions, starting)
	}
}

// commonError is the error that messages of one error group share.
func commonError(queue string, why parkReason) string {
	if p := errorgroup.Of(queue, "", why.text, "").Pattern; p != "" && !why.ours {
		why.text = p
	}
	return clean(why.text, longestError)
}

// send sends what is due, and returns when to look again. A notification that cannot be sent
// stays pending, where its counts grow, and is sent later. Where each queue has a message of its own,
// one that is refused, because its integration key is wrong, say, delays no other.
func (r *route) send(ctx context.Context, now time.Time) time.Time {
	plan, done := func(now time.Time) ([]*Message, time.Time) { return r.pending.plan(now, r.to.perQueue) }, r.pending.sent
	if r.to.isAlertmanager {
		plan, done = r.pending.planAlerts, r.pending.alertsSent
	}
	messages, next := plan(now)
	var refused error
	for _, m := range messages {
		err := r.to.deliver(ctx, r.client, m)
		switch {
		case ctx.Err() != nil:
			return next
		case err != nil && r.to.perQueue && errors.As(err, new(refusedError)):
			refused = err
			continue
		case err != nil:
			r.failed(err)
			return r.nextTry
		}
		r.engine.Count(r.Name, "sent")
		done(m, time.Now())
		_, next = plan(time.Now())
	}
	if refused != nil {
		r.failed(refused)
		return r.nextTry
	}
	if len(messages) > 0 && r.failures > 0 {
		r.engine.Log.Info("the notifier answers again", "route", r.Name, "failures", r.failures)
		r.failures = 0
	}
	return next
}

func (r *route) failed(err error) {
	r.failures++
	longest := longestOff
	if r.to.isAlertmanager {
		longest = alertEvery // or its alerts would end meanwhile
	}
	if r.to.perQueue && errors.As(err, new(refusedError)) {
		longest = alertEvery // other queues' messages are taken
	}
	off := min(minRound<<min(r.failures, 20), longest)
	var b busyError
	if errors.As(err, &b) {
		off = max(off, b.after)
	}
	r.nextTry = time.Now().Add(off)
	r.engine.Count(r.Name, "failed")
	if r.failures == 1 {
		r.engine.Log.Warn("a notification could not be sent; it is tried again, and its counts grow", "route", r.Name, "service", r.to.scheme, "error", err)
	}
}

// load reads what the last run stored.
func (r *route) load(ctx context.Context) {
	at := prefix + r.Name + "/"
	err := r.engine.Store.Entries(ctx, at, "", func(e store.Entry) (bool, error) {
		kind, queue, _ := strings.Cut(strings.TrimPrefix(e.Name, at), "/")
		kind, severity, _ := strings.Cut(kind, ":")
		k, kept := key{Kind: Kind(kind), Queue: queue, Severity: severity}, &entry{}
		err := json.Unmarshal(e.Value, kept)
		if kept.Target != "" {
			k.Queue, k.Target = strings.TrimSuffix(queue, toTarget+kept.Target), kept.Target
		}
		if err != nil || !r.engine.wants(r, k) && queue != otherQueues {
			r.pending.changed[k] = true // so that it is deleted
			return true, nil
		}
		r.pending.entries[k] = kept
		return true, nil
	})
	if err != nil {
		r.engine.Log.Warn("the notifications sent before the start cannot be read; they may be sent again", "route", r.Name, "error", err)
	}
}

// store stores what has changed.
func (r *route) store(ctx context.Context) {
	if len(r.pending.changed) == 0 {
		return
	}
	var entries []store.Entry
	for k := range r.pending.changed {
		e := store.Entry{Name: prefix + r.Name + "/" + k.name()}
		if kept := r.pending.entries[k]; kept != nil {
			e.Value, _ = json.Marshal(kept)
		}
		entries = append(entries, e)
	}
	err := r.engine.Store.PutEntries(ctx, entries)
	if err != nil && !r.storeFails && ctx.Err() == nil {
		r.engine.Log.Warn("the state of notifications cannot be stored; after a restart they may be sent again", "route", r.Name, "error", err)
	}
	if r.storeFails = err != nil; !r.storeFails {
		clear(r.pending.changed)
	}
}
