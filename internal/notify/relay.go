package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// relayPrefix, a replica's id and a number name an entry with what was parked there since the
// number before. The leader removes it, and then sends notifications.
const relayPrefix = "notify-relay/"

// relay counts messages parked at a replica that are not written yet.
type relay struct {
	arrivals
	n        int    // entries that were written
	unproven []byte // the last of them, when it is not known whether it was
}

// relayed is the entry of a key.
type relayed struct {
	Kind     Kind
	Queue    string
	Severity string `json:",omitempty"`
	Tally    tally
	Reasons  []relayedReason `json:"Said,omitempty"`
}

type relayedReason struct {
	Text string
	Ours bool `json:",omitempty"`
	N    int64
}

func (w *relayed) key() key { return key{Kind: w.Kind, Queue: w.Queue, Severity: w.Severity} }

// drainAll returns what was counted since it was last called, for the leader.
func (r *relay) drainAll() (all []relayed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, a := range r.drain() {
		w := relayed{Kind: k.Kind, Queue: k.Queue, Severity: k.Severity, Tally: a.tally}
		for why, n := range a.reasons {
			w.Reasons = append(w.Reasons, relayedReason{why.text, why.ours, n})
		}
		all = append(all, w)
	}
	return all
}

// enter counts what another replica has written.
func (r *arrivals) enter(w *relayed) {
	a := r.at(w.key())
	a.join(&w.Tally)
	for _, s := range w.Reasons {
		r.addReason(a, parkReason{s.Text, s.Ours}, s.N)
	}
}

// Relay writes what is parked at this replica for the leader, at most once a second, until
// ctx ends; and at the end the rest.
func (e *Engine) Relay(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
		case <-e.relay.wake:
			wait(ctx, minRound)
		}
		ended := ctx.Err() != nil
		err := e.writeRelayed(context.WithoutCancel(ctx))
		if err != nil && (ended || !failing) {
			e.Log.Warn("what was parked here cannot be passed to the replica that notifies", "error", err)
		}
		if failing = err != nil; ended {
			return
		}
	}
}

// writeRelayed writes what was counted. What may have been written although an error came is
// written again under the same name, by which the leader knows it.
func (e *Engine) writeRelayed(ctx context.Context) error {
	r := &e.relay
	for again := true; again; {
		again = r.unproven != nil
		if !again {
			all := r.drainAll()
			if len(all) == 0 {
				return nil
			}
			value, err := json.Marshal(all)
			if err != nil {
				return err
			}
			r.n++
			r.unproven = value
		}
		if err := e.Store.PutEntries(ctx, []store.Entry{{Name: fmt.Sprintf("%s%s/%012d", relayPrefix, e.Replica, r.n), Value: r.unproven}}); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.signal()
			return err
		}
		r.unproven = nil
	}
	return nil
}

// collector is what a leader knows of the entries that it took.
type collector struct {
	last map[string]string // by replica: the number of the newest
	// read are the counts that were read but not yet passed on, and gone their entries: it is not
	// known whether these were removed.
	read []relayed
	gone []store.Entry
}

// collect passes to the routes, once a second, what the replicas have parked.
func (e *Engine) collect(ctx context.Context, c *routeSet, in *collector) {
	tick := time.NewTicker(minRound)
	defer tick.Stop()
	failing := false
	for {
		err := e.collectOnce(ctx, c, in)
		if err != nil && !failing && ctx.Err() == nil {
			e.Log.Warn("what replicas have parked cannot be read; no notifications about it for now", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// mostRelayed is how many entries are taken at a time.
const mostRelayed = 100

func (e *Engine) collectOnce(ctx context.Context, c *routeSet, in *collector) error {
	if len(in.gone) == 0 {
		if err := in.take(ctx, e.Store); err != nil || len(in.gone) == 0 {
			return err
		}
	}
	// Removed first: a former leader is refused that, so nothing is sent twice.
	if err := e.Store.PutEntries(ctx, in.gone); err != nil {
		return err
	}
	all := in.read
	in.read, in.gone = nil, nil
	for i := range all {
		w := &all[i]
		for _, r := range c.routes {
			if !e.wants(r, w.key()) && w.Queue != otherQueues {
				continue
			}
			r.mu.Lock()
			r.enter(w)
			r.signal()
			r.mu.Unlock()
		}
	}
	return nil
}

// take reads the next entries. One that was taken before is removed once more and not counted:
// its replica had no answer when it wrote it.
func (in *collector) take(ctx context.Context, s store.SideTable) error {
	var read []relayed
	var gone []store.Entry
	last := maps.Clone(in.last)
	err := s.Entries(ctx, relayPrefix, "", func(en store.Entry) (bool, error) {
		replica, number, _ := strings.Cut(strings.TrimPrefix(en.Name, relayPrefix), "/")
		if number > last[replica] {
			var some []relayed
			if err := json.Unmarshal(en.Value, &some); err != nil {
				return false, fmt.Errorf("%s: %w", en.Name, err)
			}
			read = append(read, some...)
			last[replica] = number
		}
		gone = append(gone, store.Entry{Name: en.Name})
		return len(gone) < mostRelayed, nil
	})
	if err == nil {
		in.last, in.read, in.gone = last, read, gone
	}
	return err
}
