package query

import (
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// ofGroups are the fields that groups have too.
var ofGroups = map[string]bool{"queue": true, "state": true, "reason": true, "group": true, "error": true, "type": true, "note": true, "text": true}

// OnlyGroups refuses a query about what groups do not have.
func (q *Query) OnlyGroups() (err error) {
	q.terms(func(t *term) {
		if !ofGroups[t.field.name] && err == nil {
			err = &Error{t.at, "groups have no " + t.field.name + ", only queue, state, reason, group, error, type, note and text"}
		}
	})
	return err
}

// MatchGroup tells whether a query that OnlyGroups takes finds a group: error is its pattern then,
// note a person's, text either, and state whether it has messages of that state.
func (q *Query) MatchGroup(g *store.GroupCount) bool {
	r := store.Record{Queue: g.Queue, Reason: g.Reason, Error: g.Pattern, Notes: []string{g.Note}}
	r.Message.Type, r.Message.Body = g.Type, []byte(g.Note)
	e := env{l: &store.Listed{Record: &r, BodySize: len(g.Note)}, groupOf: func(*store.Record) errorgroup.ID { return g.ID }}
	is := func(state store.State) bool {
		r.State = state
		return q.match(&e, func() *decode.Result { return nil })
	}
	return g.Waiting > 0 && is(store.Waiting) || g.Parked > 0 && is(store.Parked) || g.Discarded > 0 && is(store.Discarded) ||
		g.Waiting+g.Parked+g.Discarded == 0 && is(0)
}
