package query

import (
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Narrowed is a query at a moment, over what a store has.
type Narrowed struct {
	// Range has all messages that the query finds, and others, which Match leaves out.
	Range store.Range
	// None: nothing in the store can match.
	None bool
	// Sure: nearly all messages of Range match.
	Sure bool
	// GroupOf is the group that a store counts a record in: it knows better than the
	// record where it keeps one for all that is rare.
	GroupOf func(*store.Record) errorgroup.ID
	query   *Query
	now     time.Time
}

// Match tells whether the query finds a message of the range. decoded is called at most once, and
// only when the answer depends on the body.
func (n *Narrowed) Match(l *store.Listed, decoded func() *decode.Result) bool {
	return n.query.match(&env{now: n.now, l: l, groupOf: n.GroupOf}, decoded)
}

// mostGroups is the most groups that are scanned side by side; of more, all messages are.
const mostGroups = 300

// ByGroup tells whether Narrow wants to know the groups.
func (q *Query) ByGroup() bool { return q.mentions(knowsGroup | knowsReason) }

// Narrow returns what a store's indexes can answer of the query. queues are all that the caller
// may see and the store has; groups are all groups, or nil.
func (q *Query) Narrow(now time.Time, queues []string, groups []store.GroupCount) *Narrowed {
	n := &Narrowed{query: q, now: now, Sure: true, GroupOf: ofItself}
	if q.root == nil {
		n.Range.Queues = queues
		n.None = len(queues) == 0
		return n
	}
	var states []store.State
	for _, s := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		if q.Says(s, "", nil) >= 0 {
			states = append(states, s)
		}
	}
	s := q.root.bounds(now)
	n.Range = store.Range{From: s.from, To: s.to, Queues: []string{}}
	for _, name := range queues {
		if q.Says(0, name, nil) >= 0 {
			n.Range.Queues = append(n.Range.Queues, name)
		}
	}
	n.None = len(states) == 0 || len(n.Range.Queues) == 0 || !s.from.IsZero() && !s.to.IsZero() && !s.from.Before(s.to)
	if len(states) == 1 {
		n.Range.State = states[0]
	}
	byReason := q.narrowGroups(n, groups)
	q.terms(func(t *term) {
		indexed := t.field.needs&^(knowsState|knowsQueue) == 0 || t.field.isDue || t.field.needs == knowsGroup && n.Range.Groups != nil ||
			t.field.needs == knowsReason && byReason
		n.Sure = n.Sure && indexed
	})
	return n
}

// narrowGroups narrows the range to groups where that leaves something out, and tells whether
// each of the groups that are left has one reason.
func (q *Query) narrowGroups(n *Narrowed, groups []store.GroupCount) (byReason bool) {
	if groups == nil || !q.ByGroup() {
		return false
	}
	kept := []errorgroup.ID{}
	var all, waiting, parked, discarded int64
	byReason = true
	for i := range groups {
		g := &groups[i]
		all += g.Waiting + g.Parked + g.Discarded
		if q.Says(n.Range.State, g.Queue, g) >= 0 {
			kept = append(kept, g.ID)
			waiting, parked, discarded = waiting+g.Waiting, parked+g.Parked, discarded+g.Discarded
			byReason = byReason && len(reasonsOf(g)) == 1
		}
	}
	switch {
	case len(kept) == 0:
		n.None = true
	case len(kept) == len(groups):
	case len(kept) > mostGroups:
		return false
	case !q.mentions(knowsGroup) && (waiting+parked+discarded)*10 > all:
		// Most messages match; going through the groups would only be slower.
	default:
		n.Range.Groups = kept
		// A store has to look for a group's waiting ones one by one.
		if n.Range.State == 0 && waiting == 0 && discarded == 0 {
			n.Range.State = store.Parked
		}
		if n.Range.State == 0 && waiting == 0 && parked == 0 {
			n.Range.State = store.Discarded
		}
	}
	return byReason
}

func ofItself(r *store.Record) errorgroup.ID { return r.Group().ID }

// OnlyRetried tells whether only retried messages can match, and none that are kept.
func (q *Query) OnlyRetried() bool {
	for _, kept := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		if q.Says(kept, "", nil) >= 0 {
			return false
		}
	}
	return q.Says(Retried, "", nil) >= 0
}

// Says tells what the query says of messages of a state (0: whichever), a queue
// ("": whichever) and a group (nil: whichever): 1 that it means them all, -1 that it
// means none, 0 that it depends.
func (q *Query) Says(state store.State, queue string, g *store.GroupCount) int {
	if q.root == nil {
		return 1
	}
	r := store.Record{State: state, Queue: queue}
	e := env{l: &store.Listed{Record: &r}}
	if state != 0 {
		e.known |= knowsState
	}
	if queue != "" {
		e.known |= knowsQueue
	}
	if g != nil {
		e.known |= knowsGroup
		e.group = &g.Group
		if all := reasonsOf(g); len(all) > 0 {
			e.known |= knowsReason
			r.Reason = all[0]
			first := q.root.eval(&e)
			for _, r.Reason = range all[1:] {
				if q.root.eval(&e) != first {
					return int(maybe)
				}
			}
			return int(first)
		}
	}
	return int(q.root.eval(&e))
}

// reasonsOf are all that the members of a group may have failed for, or nil when that
// is not known.
func reasonsOf(g *store.GroupCount) []string {
	if g.Pattern == "" {
		return []string{g.Reason}
	}
	return g.Reasons.Names()
}
