package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// relayPrefix and a replica's id and a number is what was parked there since the
// number before. The replica that leads tells of it, and takes it away before.
const relayPrefix = "notify-relay/"

// relay is what a replica has seen parked and not yet written.
type relay struct {
	mu sync.Mutex
	arrivals
	wake chan struct{}
	n    int
}

// relayed is what is written of a key.
type relayed struct {
	Kind  Kind
	Queue string
	Tally tally
	Said  []relayedSaid `json:",omitempty"`
}

type relayedSaid struct {
	Text string
	Ours bool `json:",omitempty"`
	N    int64
}

func (r *relay) count(k key, n int64, why said, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.at(k)
	a.add(n, "", at)
	r.say(a, why, n)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take is what is to be written.
func (r *relay) take() (all []relayed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, a := range r.news {
		w := relayed{Kind: k.Kind, Queue: k.Queue, Tally: a.tally}
		for why, n := range a.said {
			w.Said = append(w.Said, relayedSaid{why.text, why.ours, n})
		}
		all = append(all, w)
	}
	r.arrivals = arrivals{}
	return all
}

// enter counts what was written, or was not.
func (r *arrivals) enter(w *relayed) {
	a := r.at(key{Kind: w.Kind, Queue: w.Queue})
	a.join(&w.Tally)
	for _, s := range w.Said {
		r.say(a, said{s.Text, s.Ours}, s.N)
	}
}

// Relay writes, until ctx ends, what is parked at this replica, once a second at most,
// for the one that leads; and at the end what is left.
func (e *Engine) Relay(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
		case <-e.relay.wake:
			wait(ctx, pause)
		}
		ended := ctx.Err() != nil
		err := e.pass(context.WithoutCancel(ctx))
		if err != nil && (ended || !failing) {
			e.Log.Warn("what was parked here cannot be handed to the replica that notifies", "error", err)
		}
		if failing = err != nil; ended {
			return
		}
	}
}

// pass writes what there is.
func (e *Engine) pass(ctx context.Context) error {
	r := &e.relay
	all := r.take()
	if len(all) == 0 {
		return nil
	}
	value, err := json.Marshal(all)
	if err != nil {
		return err
	}
	r.n++
	err = e.Store.PutEntries(ctx, []store.Entry{{Name: fmt.Sprintf("%s%s/%012d", relayPrefix, e.Replica, r.n), Value: value}})
	if err != nil { // it counts on, with what comes
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range all {
			r.enter(&all[i])
		}
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// collect gives the routes, once a second, what the replicas have seen parked.
func (e *Engine) collect(ctx context.Context, c *crew) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	failing := false
	for {
		err := e.collectOnce(ctx, c)
		if err != nil && !failing && ctx.Err() == nil {
			e.Log.Warn("what replicas have seen parked cannot be read; nobody is told of it for now", "error", err)
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

func (e *Engine) collectOnce(ctx context.Context, c *crew) error {
	var all []relayed
	var gone []store.Entry
	err := e.Store.Entries(ctx, relayPrefix, "", func(en store.Entry) (bool, error) {
		var some []relayed
		if err := json.Unmarshal(en.Value, &some); err != nil {
			return false, fmt.Errorf("%s: %w", en.Name, err)
		}
		all = append(all, some...)
		gone = append(gone, store.Entry{Name: en.Name})
		return len(gone) < mostRelayed, nil
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	// Taken away first: who is not the leader any more is refused that, and tells of
	// nothing twice.
	if err := e.Store.PutEntries(ctx, gone); err != nil {
		return err
	}
	for i := range all {
		w := &all[i]
		for _, r := range c.routes {
			if !e.wants(r, key{Kind: w.Kind, Queue: w.Queue}) && w.Queue != otherQueues {
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
