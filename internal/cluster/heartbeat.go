package cluster

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// beatEvery is how often a replica sends a heartbeat, and goneAfter how long after its
	// latest one it counts as dead.
	beatEvery = 250 * time.Millisecond
	goneAfter = 5 * time.Second
	// shareLease is how long after a heartbeat a replica has its share of the limits. Others
	// divide that share among them when they have seen no heartbeat for as long, which is
	// later.
	shareLease = 1250 * time.Millisecond
	// maxText bounds the text of a condition in a heartbeat, in bytes, and maxConditions their number.
	maxText, maxConditions = 200, 20
)

// heartbeat is what a replica writes to the store to show that it is alive.
type heartbeat struct {
	About
	N     uint64 `json:"n"` // counts, so that each one differs
	Leads bool   `json:"leads"`
}

// knownReplica is a replica whose heartbeat was seen.
type knownReplica struct {
	latest heartbeat
	seen   time.Time // when its heartbeat last changed
	// acknowledged: it has sent a heartbeat since this replica asked for a share, and so has
	// divided the limits with this one.
	acknowledged bool
}

func (r *Replicas) runHeartbeats(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var n uint64
	failing := false
	for ctx.Err() == nil {
		n++
		began := time.Now()
		about := heartbeat{About: r.About(), N: n, Leads: r.Leads()}
		about.Conditions = shortened(about.Conditions)
		all, err := r.sendHeartbeat(ctx, about)
		switch {
		case err == nil:
			r.OnShare(r.divide(all, about, began, time.Now()))
			if failing {
				r.Log.Info("this replica can read and write heartbeats again")
			}
		case ctx.Err() == nil && !failing:
			r.Log.Warn("this replica cannot write its heartbeat, nor read those of others; until it can, it retries nothing to queues with a rate, a bound in flight or a breaker", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (r *Replicas) sendHeartbeat(ctx context.Context, about heartbeat) ([]store.Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	text, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	return r.Store.Beat(ctx, r.ID, text, goneAfter)
}

func shortened(all []condition.Condition) []condition.Condition {
	short := slices.Clone(all[:min(len(all), maxConditions)])
	for i := range short {
		short[i].Text = short[i].Text[:min(len(short[i].Text), maxText)]
	}
	return short
}

// divide updates which replicas are alive, and returns this one's share of the limits. own is
// the heartbeat that this replica sent from began on.
//
// A share may not begin before all others know of it. A replica that can retry messages says
// so in its heartbeat, and waits until each of the others has sent one after that, and so has
// divided again; or until those that have not have no share any more.
func (r *Replicas) divide(all []store.Replica, own heartbeat, began, now time.Time) Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	asks := own.CanPublish && r.askedSince.IsZero()
	if asks {
		r.askedSince = now
	} else if !own.CanPublish {
		r.askedSince = time.Time{}
	}
	there := map[string]bool{}
	share, self, acknowledged := Share{Until: began.Add(shareLease)}, -1, true
	others := false // that could retry messages
	for _, s := range all {
		var b heartbeat
		if json.Unmarshal(s.About, &b) != nil {
			continue // of a version with another format
		}
		there[s.ID] = true
		k := r.known[s.ID]
		if k == nil {
			k = &knownReplica{}
			r.known[s.ID] = k
		}
		if k.latest.N != b.N || k.seen.IsZero() {
			k.acknowledged = !asks
			k.seen = now
		} else if asks {
			k.acknowledged = false
		}
		k.latest = b
		switch fresh := now.Sub(k.seen) < shareLease; {
		case s.ID == r.ID:
			self = share.N
			share.N++
		case fresh && b.CanPublish:
			share.N++
			others = true
			acknowledged = acknowledged && k.acknowledged
		case fresh:
			acknowledged = acknowledged && k.acknowledged
		}
	}
	for id := range r.known {
		if !there[id] {
			delete(r.known, id)
		}
	}
	if own.CanPublish || !others {
		r.lastAble = now
	}
	share.I = self
	if !own.CanPublish || self < 0 || !acknowledged && now.Sub(r.askedSince) < shareLease {
		return Share{Until: share.Until}
	}
	return share
}
