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
	// pause is the shortest time between two rounds, so that many messages parked in a
	// second cost one write.
	pause = time.Second
	// settle is how long after a start a condition that is not seen is not over yet.
	settle     = time.Minute
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
	now      []Condition
	asked    bool // now is new

	failures int
	notUntil time.Time
	full     bool
}

// said is why a message was parked: its consumer's error, or ours.
type said struct {
	text string
	ours bool
}

// arrived is what came in of a key since the last round.
type arrived struct {
	tally
	said map[said]int64
}

// mostSaid is how many different texts a route reads between two rounds: to find what
// they have in common takes longer than the intake has time for. Beyond that, messages
// are counted and errors are not.
const mostSaid = 256

// arrivals are what came in since the last round.
type arrivals struct {
	mu        sync.Mutex
	news      map[key]*arrived
	different int           // texts in it
	wake      chan struct{} // has one when something came in
}

func newArrivals() arrivals { return arrivals{wake: make(chan struct{}, 1)} }

// at is where a key is counted.
func (r *arrivals) at(k key) *arrived {
	a := r.news[k]
	if a == nil {
		if len(r.news) >= mostQueues {
			k.Queue, k.Target = otherQueues, ""
			a = r.news[k]
		}
		if a == nil {
			a = &arrived{said: map[said]int64{}}
			if r.news == nil {
				r.news = map[key]*arrived{}
			}
			r.news[k] = a
		}
	}
	return a
}

// say counts why n of them were parked.
func (r *arrivals) say(a *arrived, why said, n int64) {
	if _, ok := a.said[why]; ok {
		a.said[why] += n
	} else if r.different < mostSaid && why.text != "" {
		r.different++
		why.text = strings.Clone(why.text)
		a.said[why] = n
	}
}

// takeNews returns what came in since it was last called. The caller holds mu.
func (r *arrivals) takeNews() map[key]*arrived {
	news := r.news
	r.news, r.different = nil, 0
	return news
}

// count is quick: it is called for each parked message.
func (r *arrivals) count(k key, n int64, why said, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.at(k)
	a.add(n, "", at)
	r.say(a, why, n)
	r.signal()
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
	r.now, r.asked = mine, true
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
	last := began.Add(-pause)
	r.load(context.WithoutCancel(ctx)) // or keep would overwrite it
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
			wait(ctx, pause-time.Since(last))
		}
		now := time.Now()
		last = now
		r.take(now, now.Sub(began) < settle)
		if ctx.Err() != nil {
			r.keep(context.WithoutCancel(ctx))
			return
		}
		next := r.notUntil
		if !now.Before(r.notUntil) {
			next = r.send(ctx, now)
		}
		r.keep(ctx)
		timer.Reset(max(0, time.Until(next)))
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// take adds what came in to the pending notifications.
func (r *route) take(now time.Time, settling bool) {
	r.mu.Lock()
	news, conditions, asked := r.takeNews(), r.now, r.asked
	r.now, r.asked = nil, false
	r.mu.Unlock()
	for k, a := range news {
		for why, n := range a.said {
			a.addError(n, commonError(k.Queue, why))
		}
		r.pending.count(k, &a.tally)
	}
	if asked {
		r.pending.see(now, conditions, settling)
	}
}

// commonError is the error that messages of one error group share.
func commonError(queue string, why said) string {
	if p := errorgroup.Of(queue, "", why.text, "").Pattern; p != "" && !why.ours {
		why.text = p
	}
	return clean(why.text, longestError)
}

// send sends what is due, and returns when to look again. A notification that cannot be sent
// stays pending, where its counts grow, and is sent later.
func (r *route) send(ctx context.Context, now time.Time) time.Time {
	plan, done := func(now time.Time) ([]*Message, time.Time) { return r.pending.plan(now, r.to.each) }, r.pending.delivered
	if r.to.alerts {
		plan, done = r.pending.alerts, r.pending.alertsSent
	}
	messages, next := plan(now)
	for _, m := range messages {
		err := r.to.deliver(ctx, r.client, m)
		if ctx.Err() != nil {
			return next
		}
		if err != nil {
			r.failed(err)
			return r.notUntil
		}
		if r.failures > 0 {
			r.engine.Log.Info("the notifier answers again", "route", r.Name, "failures", r.failures)
		}
		r.failures = 0
		r.engine.Count(r.Name, "sent")
		done(m, time.Now())
		_, next = plan(time.Now())
	}
	return next
}

func (r *route) failed(err error) {
	r.failures++
	longest := longestOff
	if r.to.alerts {
		longest = alertEvery // or its alerts would end meanwhile
	}
	off := min(pause<<min(r.failures, 20), longest)
	var b busy
	if errors.As(err, &b) {
		off = max(off, b.after)
	}
	r.notUntil = time.Now().Add(off)
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
		k, kept := key{Kind: Kind(kind), Queue: queue}, &entry{}
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

// keep stores what has changed.
func (r *route) keep(ctx context.Context) {
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
	if err != nil && !r.full && ctx.Err() == nil {
		r.engine.Log.Warn("the state of notifications cannot be stored; after a restart they may be sent again", "route", r.Name, "error", err)
	}
	if r.full = err != nil; !r.full {
		clear(r.pending.changed)
	}
}
