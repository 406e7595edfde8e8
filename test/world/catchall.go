package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// drawCatchAll has a last policy for all other queues, and people who replay what hostile messages
// have left parked: only the service itself keeps it from its own queues then.
func (s *scenario) drawCatchAll(r *rand.Rand) {
	if s.catchAll = r.IntN(2) == 0; !s.catchAll {
		return
	}
	for i := range r.IntN(3) {
		s.hostile = append(s.hostile, hostile{id: fmt.Sprintf("h%03d", 900+i), at: between(r, 0, faultsEnd/2), kind: ownQueueNamed, queue: s.queues[0]})
	}
	for range 1 + r.IntN(3) {
		s.actions = append(s.actions, action{at: between(r, time.Minute, faultsEnd), verb: replayHostile, nth: r.IntN(100), queue: s.queues[r.IntN(len(s.queues))]})
	}
}

// catchAll is the policy of all queues that no other names.
var catchAll = policy.Policy{Name: "all others", Queues: []string{"*"}, Attempts: 3, Jitter: jitter, Backoff: policy.Fixed(10 * time.Second)}

// replayHostile is a person who replays a message that names no work queue. It is parked again.
func (w *World) replayHostile(ctx context.Context, a action) error {
	p := w.used(a.replica)
	var all []store.Listed
	err := w.stored().Scan(ctx, store.Range{State: store.Parked}, func(l store.Listed) (bool, error) {
		if w.ledger.namesNoQueue(idOf(l)) {
			all = append(all, l)
		}
		return true, nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	slices.SortStableFunc(all, func(a, b store.Listed) int { return strings.Compare(idOf(a), idOf(b)) })
	l := all[a.nth%len(all)]
	w.say("it is %s, of %q", idOf(l), l.Record.Queue)
	_, err = p.actions.Act(ctx, ann, actions.Act{Verb: actions.Replay, IDs: []string{string(l.Key)}})
	return w.refused(err)
}

// namesNoQueue tells whether a message is a hostile one that names no work queue.
func (l *ledger) namesNoQueue(id string) bool {
	return slices.ContainsFunc(l.scenario.hostile, func(h hostile) bool { return h.id == id && hostileKinds[h.kind].key != anyQueue })
}
