package replica

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// breakerStatePrefix and a queue's name is the entry with the state of its breaker, when that is not
// closed, as the leader decided it. All replicas follow it, and so does the next leader.
const breakerStatePrefix = "breaker-state/"

// followBreakers sets the breakers as the leader has decided.
func (r *Replica) followBreakers(ctx context.Context) error {
	all, err := r.breakerStates(ctx)
	if err == nil {
		r.Throttle.Follow(all, time.Now())
	}
	return err
}

func (r *Replica) breakerStates(ctx context.Context) (map[string]throttle.BreakerState, error) {
	all := map[string]throttle.BreakerState{}
	err := r.store.Entries(ctx, breakerStatePrefix, "", func(e store.Entry) (bool, error) {
		var s throttle.BreakerState
		if err := json.Unmarshal(e.Value, &s); err != nil {
			return false, fmt.Errorf("the state of breaker %q: %w", e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, breakerStatePrefix)] = s
		return true, nil
	})
	return all, err
}

// writeBreakers writes the state of the breakers, for the others to follow.
func (r *Replica) writeBreakers(term context.Context) error {
	written, err := r.breakerStates(term)
	if err != nil {
		return err
	}
	var entries []store.Entry
	is := r.Throttle.BreakerStates(time.Now())
	for queue, s := range is {
		if was, ok := written[queue]; ok && was.Number == s.Number {
			continue
		}
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		entries = append(entries, store.Entry{Name: breakerStatePrefix + queue, Value: value})
	}
	for queue := range written {
		if _, still := is[queue]; !still {
			entries = append(entries, store.Entry{Name: breakerStatePrefix + queue})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := r.store.PutEntries(term, entries); err != nil {
		return err
	}
	r.Announce(func(a *cluster.Announcement) { a.SideTableChanged = true })
	return nil
}
