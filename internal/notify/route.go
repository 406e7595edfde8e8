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
	// pause is the shortest time between two looks at what is new, so that many
	// messages parked in a second cost one write.
	pause = time.Second
	// settle is how long after a start what is not seen counts as not known yet.
	settle     = time.Minute
	longestOff = 5 * time.Minute // between two tries
)

// route is one way to somebody, and its goroutine.
type route struct {
	engine *Engine
	Route
	client *client
	to     *target
	book   *book

	mu sync.Mutex
	arrivals
	now   []Condition
	asked bool // now is news
	wake  chan struct{}

	failures int
	notUntil time.Time
	full     bool
}

// said is why a message was parked: its consumer's error, or ours.
type said struct {
	text string
	ours bool
}

// arrived is what came in of a key since the last look.
type arrived struct {
	tally
	said map[said]int64
}

// mostSaid is how many different texts a route takes between two looks: to find what
// they have in common takes longer than the intake has time for. Of more than that,
// messages are counted and errors are not.
const mostSaid = 256

// arrivals are what came in since the last look.
type arrivals struct {
	news      map[key]*arrived
	different int // texts in it
}

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

// count is quick: it is called for each parked message.
func (r *route) count(k key, n int64, why said, at time.Time) {
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

func (r *route) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends. What is not told then is kept for the next start.
func (r *route) run(ctx context.Context) {
	began := time.Now()
	last := began.Add(-pause)
	r.load(context.WithoutCancel(ctx)) // or what is kept at the end would replace it
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
			next = r.tell(ctx, now)
		}
		r.keep(ctx)
		timer.Reset(max(0, time.Until(next)))
	}
}

// wait is for so long, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// take enters into the book what came in.
func (r *route) take(now time.Time, settling bool) {
	r.mu.Lock()
	news, conditions, asked := r.news, r.now, r.asked
	r.arrivals, r.now, r.asked = arrivals{}, nil, false
	r.mu.Unlock()
	for k, a := range news {
		for why, n := range a.said {
			a.addError(n, trouble(k.Queue, why))
		}
		r.book.count(k, &a.tally)
	}
	if asked {
		r.book.see(now, conditions, settling)
	}
}

// trouble is what messages that failed in the same way share.
func trouble(queue string, why said) string {
	if p := errorgroup.Of(queue, "", why.text, "").Pattern; p != "" && !why.ours {
		why.text = p
	}
	return clean(why.text, longestError)
}

// tell sends what is due, and says when to look again. What fails stays in the book,
// where it grows, and is tried again later.
func (r *route) tell(ctx context.Context, now time.Time) time.Time {
	plan, told := func(now time.Time) ([]*Message, time.Time) { return r.book.plan(now, r.to.each) }, r.book.told
	if r.to.alerts {
		plan, told = r.book.alerts, r.book.sent
	}
	messages, next := plan(now)
	for _, m := range messages {
		err := r.to.tell(ctx, r.client, m)
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
		told(m, time.Now())
		_, next = plan(time.Now())
	}
	return next
}

func (r *route) failed(err error) {
	r.failures++
	longest := longestOff
	if r.to.alerts {
		longest = alertEvery // or what goes on would end meanwhile
	}
	off := min(pause<<min(r.failures, 20), longest)
	var b busy
	if errors.As(err, &b) {
		off = max(off, b.after)
	}
	r.notUntil = time.Now().Add(off)
	r.engine.Count(r.Name, "failed")
	if r.failures == 1 {
		r.engine.Log.Warn("a notification could not be sent; it is tried again, and counts on", "route", r.Name, "service", r.to.scheme, "error", err)
	}
}

// load reads what was kept at the last run.
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
			r.book.changed[k] = true // and so it is deleted
			return true, nil
		}
		r.book.entries[k] = kept
		return true, nil
	})
	if err != nil {
		r.engine.Log.Warn("what was told before the start cannot be read; it may be told again", "route", r.Name, "error", err)
	}
}

// keep writes what has changed.
func (r *route) keep(ctx context.Context) {
	if len(r.book.changed) == 0 {
		return
	}
	var entries []store.Entry
	for k := range r.book.changed {
		e := store.Entry{Name: prefix + r.Name + "/" + string(k.Kind) + "/" + k.lane()}
		if kept := r.book.entries[k]; kept != nil {
			e.Value, _ = json.Marshal(kept)
		}
		entries = append(entries, e)
	}
	err := r.engine.Store.PutEntries(ctx, entries)
	if err != nil && !r.full && ctx.Err() == nil {
		r.engine.Log.Warn("what was told is not kept; after a restart it may be told again", "route", r.Name, "error", err)
	}
	if r.full = err != nil; !r.full {
		clear(r.book.changed)
	}
}
