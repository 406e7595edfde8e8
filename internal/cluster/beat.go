package cluster

import (
	"context"
	"encoding/json"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// beatEvery is how often a replica says that it is alive, and gone how long after
	// that it is taken to be dead.
	beatEvery = 250 * time.Millisecond
	gone      = 5 * time.Second
	// lease is how long after a beat a replica has its part of what is limited. Others
	// divide that among them as soon as they have not heard of it for so long, which
	// is later.
	lease = 1250 * time.Millisecond
	// longestWrong bounds what a replica tells of one thing that is wrong, and
	// mostWrong of how many.
	longestWrong, mostWrong = 200, 20
)

// beat is how a replica tells of itself.
type beat struct {
	About
	N     uint64 `json:"n"` // counts, so that it differs each time
	Leads bool   `json:"leads"`
}

// known is a replica that was heard of.
type known struct {
	about beat
	seen  time.Time // when its beat was last another one
	// settled: it has beaten since this replica asked to be reckoned with, and so does.
	settled bool
}

func (r *Replicas) beating(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var n uint64
	failing := false
	for ctx.Err() == nil {
		n++
		began := time.Now()
		about := beat{About: r.About(), N: n, Leads: r.Leads()}
		about.Wrong = shortened(about.Wrong)
		all, err := r.beat(ctx, about)
		switch {
		case err == nil:
			r.Parted(r.beaten(all, about, began, time.Now()))
			if failing {
				r.Log.Info("this replica hears of the others again")
			}
		case ctx.Err() == nil && !failing:
			r.Log.Warn("this replica cannot tell the others that it is alive, nor hear of them; queues with a rate or a breaker get nothing back from here until it can", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (r *Replicas) beat(ctx context.Context, about beat) ([]store.Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	said, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	return r.Store.Beat(ctx, r.ID, said, gone)
}

func shortened(wrong map[string]string) map[string]string {
	short := map[string]string{}
	for part, what := range wrong {
		if len(short) == mostWrong {
			break
		}
		short[part] = what[:min(len(what), longestWrong)]
	}
	return short
}

// beaten takes note of who is alive, and divides what is limited. said is what this
// replica has told, from began on.
//
// No part may begin before all others reckon with it. A replica that can return
// messages says so with a beat, and waits until each of the others has beaten after
// that, and so has divided again; or until those that have not have no part any more.
func (r *Replicas) beaten(all []store.Replica, said beat, began, now time.Time) Part {
	r.mu.Lock()
	defer r.mu.Unlock()
	asks := said.Able && r.since.IsZero()
	if asks {
		r.since = now
	} else if !said.Able {
		r.since = time.Time{}
	}
	there := map[string]bool{}
	p, self, settled := Part{Until: began.Add(lease)}, -1, true
	others := false // that could return messages
	for _, s := range all {
		var b beat
		if json.Unmarshal(s.About, &b) != nil {
			continue // of a version that tells otherwise
		}
		there[s.ID] = true
		k := r.known[s.ID]
		if k == nil {
			k = &known{}
			r.known[s.ID] = k
		}
		if k.about.N != b.N || k.seen.IsZero() {
			k.settled = !asks
			k.seen = now
		} else if asks {
			k.settled = false
		}
		k.about = b
		switch fresh := now.Sub(k.seen) < lease; {
		case s.ID == r.ID:
			self = p.N
			p.N++
		case fresh && b.Able:
			p.N++
			others = true
			settled = settled && k.settled
		case fresh:
			settled = settled && k.settled
		}
	}
	for id := range r.known {
		if !there[id] {
			delete(r.known, id)
		}
	}
	if said.Able || !others {
		r.able = now
	}
	p.I = self
	if !said.Able || self < 0 || !settled && now.Sub(r.since) < lease {
		return Part{Until: p.Until}
	}
	return p
}
