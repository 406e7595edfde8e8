package query

import (
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
)

// ofGroups are the fields that groups have too.
var ofGroups = []string{"queue", "state", "reason", "group", "error", "type", "note", "text", "first", "failed", "age"}

// OnlyGroups refuses a query about what groups do not have.
func (q *Query) OnlyGroups() (err error) {
	q.terms(func(t *term) {
		if !isOfGroups(t.field) && err == nil {
			last := len(ofGroups) - 1
			err = &Error{t.at, "groups have no " + t.field.name + ", only " + strings.Join(ofGroups[:last], ", ") + " and " + ofGroups[last]}
		}
	})
	return err
}

func isOfGroups(f *field) bool {
	for _, name := range ofGroups {
		if f.name == name || f.short != "" && name == "failed" {
			return true
		}
	}
	return false
}

// MatchGroup tells whether a query that OnlyGroups takes finds a group: error is its pattern then,
// reason any that its members failed for, note a person's, text either, failed and age its last
// failure, first its first, and state whether it has messages of that state.
func (q *Query) MatchGroup(g *store.GroupCount, now time.Time) bool {
	r := store.Record{Queue: g.Queue, Reason: g.Reason, Error: g.Pattern, Notes: []string{g.Note}, FailedAt: g.Last, FirstFailed: g.First}
	r.Message.Type, r.Message.Body = g.Type, []byte(g.Note)
	e := env{now: now, l: &store.Listed{Record: &r, BodySize: len(g.Note)}, group: &g.Group}
	is := func(state store.State) bool {
		r.State = state
		return q.match(&e, func() *decode.Result { return nil })
	}
	any := func() bool {
		return g.Waiting > 0 && is(store.Waiting) || g.Parked > 0 && is(store.Parked) || g.Discarded > 0 && is(store.Discarded) ||
			g.Waiting+g.Parked+g.Discarded == 0 && is(0)
	}
	reasons := reasonsOf(g)
	if len(reasons) < 2 || !q.mentions(knowsReason) {
		if len(reasons) == 1 {
			r.Reason = reasons[0]
		}
		return any()
	}
	for _, r.Reason = range reasons {
		if any() {
			return true
		}
	}
	return false
}
