// Package query is the language in which people say which messages they mean, the
// same in page, API and command line: see docs/reference/query.md. Read it in this order:
//
//	query.go    the whole: a Query, and whether a message matches
//	fields.go   what can be asked for
//	parse.go    text in, Query out, or an error that points at the character
//	term.go     … of one condition
//	value.go    what stands behind the colon
//	holds.go    whether a condition holds of a message
//	regex.go    … a regular expression
//	asked.go    several queries about one message: the rules of policies
//	decimal.go  numbers of any size, exactly
//	lookup.go   headers and decoded bodies, by path
//	narrow.go   what of a query a store's indexes can answer
//	bounds.go   … of times and ids
//	groups.go   queries about groups
//	columns.go  fields as the columns of a list; complete.go: what a query may go on with
package query

import (
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Retried is the state of messages that a store keeps no more, only their
// past failure. No record in a store has it.
const Retried store.State = 0xFF

// Query is a parsed query. It never changes, and may be used from many goroutines.
type Query struct {
	root node // nil: everything
}

// NeedsBody tells whether some of it is about bodies.
func (q *Query) NeedsBody() bool { return q.mentions(knowsBody) }

// OnlyQueue tells whether it asks for nothing but the queue.
func (q *Query) OnlyQueue() bool { return !q.All() && !q.mentions(^knowsQueue) }

// All tells whether it is empty, and so finds every message.
func (q *Query) All() bool { return q.root == nil }

// Matches tells whether the query finds a message that is at hand. decoded is called at most once,
// and only when the answer depends on the body.
func (q *Query) Matches(now time.Time, l *store.Listed, decoded func() *decode.Result) bool {
	return q.match(&env{now: now, l: l, groupOf: ofItself}, decoded)
}

func (q *Query) mentions(what known) (is bool) {
	q.terms(func(t *term) { is = is || t.field.needs&what != 0 })
	return is
}

func (q *Query) terms(visit func(*term)) {
	if q.root != nil {
		q.root.each(visit)
	}
}

// match tells whether the query finds a message. decoded is called at most once, and only when the
// answer depends on the body.
func (q *Query) match(e *env, decoded func() *decode.Result) bool {
	if q.root == nil {
		return true
	}
	e.known = knowsRecord
	answer := q.root.eval(e)
	if answer == maybe {
		e.known |= knowsBody
		e.decoded = decoded
		answer = q.root.eval(e)
	}
	return answer == yes
}

// known is what is known of a message while a query is asked about it: first what
// indexes tell, then the record, then its body.
type known uint8

const (
	knowsState known = 1 << iota
	knowsQueue
	knowsReason
	knowsGroup
	knowsRest // of the record
	knowsBody

	knowsRecord = knowsState | knowsQueue | knowsReason | knowsGroup | knowsRest
)

// answer is a query's answer about a message: maybe when it depends on what is not known.
type answer int8

const (
	no    answer = -1
	maybe answer = 0
	yes   answer = 1
)

func answerOf(b bool) answer {
	if b {
		return yes
	}
	return no
}

// env is a message that a query is asked about, as far as it is known.
type env struct {
	now         time.Time
	l           *store.Listed
	known       known
	groupOf     func(*store.Record) errorgroup.ID
	group       *errorgroup.Group // what groupOf returns, where its members' text is known
	decoded     func() *decode.Result
	result      *decode.Result
	foldedError folded // see errorText
	// rules, when not nil, are asked: what cannot be known is then neither true nor false, and
	// notTried is why its body is not decoded.
	rules    *Asked
	notTried *string
}

// isIn tells whether the message is in the group with an ID, be it of one queue or of all.
func (e *env) isIn(id errorgroup.ID) bool {
	if e.group != nil {
		return e.group.ID == id || e.group.Across() == id
	}
	is := e.groupOf(e.l.Record)
	if is == id {
		return true
	}
	own := e.l.Record.Group()
	if own.ID != is { // the store counts it among the others of its queue
		own = errorgroup.Other(own.Queue, store.GroupsKept)
	}
	return own.Across() == id
}

// body decodes it the first time.
func (e *env) body() *decode.Result {
	if e.result == nil {
		if e.result = e.decoded(); e.result == nil {
			e.result = &decode.Result{}
		}
	}
	return e.result
}

// errorText is its error, folded the first time.
func (e *env) errorText() *folded {
	if !e.foldedError.done {
		e.foldedError = fold(e.l.Record.Error)
	}
	return &e.foldedError
}

// node is a part of a query.
type node interface {
	eval(*env) answer
	each(func(*term))
	bounds(now time.Time) span
	ids() (of idSet, only bool)
}

type (
	and []node // two or more, none of them an and
	or  []node // two or more, none of them an or
	not struct{ of node }
)

func (n and) eval(e *env) answer {
	least := yes
	for _, of := range n {
		if least = min(least, of.eval(e)); least == no {
			break
		}
	}
	return least
}

func (n or) eval(e *env) answer {
	most := no
	for _, of := range n {
		if most = max(most, of.eval(e)); most == yes {
			break
		}
	}
	return most
}

func (n not) eval(e *env) answer { return -n.of.eval(e) }

func (t *term) eval(e *env) answer {
	f := t.field
	if f.state != 0 && e.known&knowsState != 0 && e.l.Record.State != f.state {
		return no
	}
	if f.needs&^e.known != 0 {
		return maybe
	}
	if e.rules != nil && e.rules.lacks[f.name] {
		e.rules.cannotTell(e.rules.lacking)
		e.rules.unknown = false
		return maybe
	}
	holds := t.holds(e)
	if e.rules != nil && e.rules.isUnknown() && !holds {
		return maybe
	}
	return answerOf(holds)
}

func (n and) each(visit func(*term))   { eachOf(n, visit) }
func (n or) each(visit func(*term))    { eachOf(n, visit) }
func (n not) each(visit func(*term))   { n.of.each(visit) }
func (t *term) each(visit func(*term)) { visit(t) }

func eachOf(all []node, visit func(*term)) {
	for _, n := range all {
		n.each(visit)
	}
}
