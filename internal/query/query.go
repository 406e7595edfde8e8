// Package query is the language in which people say which messages they mean, the
// same in page, API and command line: see docs/reference/query.md. Read it in this order:
//
//	query.go   the whole: a Query, and whether a message matches; queries about groups
//	fields.go  what can be asked for; headers and decoded bodies, by path
//	parse.go   text in, Query out, or an error that points at the character; of one condition as well
//	expression.go  regular expressions
//	value.go   what stands behind the colon; numbers of any size
//	rule.go    a query as the condition of a policy's rule
//	narrow.go  what of a query a store's indexes can answer, and whether the rest holds
package query

import (
	"strings"
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
	now     time.Time
	l       *store.Listed
	known   known
	groupOf func(*store.Record) errorgroup.ID
	decoded func() *decode.Result
	result  *decode.Result
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
	return answerOf(t.holds(e))
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

// ofGroups are the fields that groups have too.
var ofGroups = map[string]bool{"queue": true, "state": true, "reason": true, "group": true, "error": true,
	"exception": true,
	"type":      true, "note": true, "text": true}

// OnlyGroups refuses a query about what groups do not have.
func (q *Query) OnlyGroups() (err error) {
	q.terms(func(t *term) {
		if !ofGroups[t.field.name] && err == nil {
			err = &Error{t.at, "groups have no " + t.field.name +
				", only queue, state, reason, group, error, exception, type, note and text"}
		}
	})
	return err
}

// MatchGroup tells whether a query that OnlyGroups takes finds a group: error is its pattern then,
// note a person's, text either, and state whether it has messages of that state.
func (q *Query) MatchGroup(g *store.GroupCount) bool {
	r := store.Record{Queue: g.Queue, Reason: g.Reason, Error: g.Pattern, Notes: []string{g.Note}}
	r.Message.Type, r.Message.Body = g.Type, []byte(g.Note)
	e := env{l: &store.Listed{Record: &r, BodySize: len(g.Note)},
		groupOf: func(*store.Record) errorgroup.ID { return g.ID }}
	is := func(state store.State) bool {
		r.State = state
		return q.match(&e, func() *decode.Result { return nil })
	}
	return g.Waiting > 0 && is(store.Waiting) || g.Parked > 0 && is(store.Parked) ||
		g.Discarded > 0 && is(store.Discarded) ||
		g.Waiting+g.Parked+g.Discarded == 0 && is(0)
}

// Suggestion is what the last word of a query may become.
type Suggestion struct {
	Text string `json:"text"` // the whole word
	Doc  string `json:"doc"`
}

// Complete proposes how the last word of a query may go on: fields, and the values
// of those that have few.
func Complete(text string) []Suggestion {
	word := text[strings.LastIndexAny(text, " \t\n(")+1:]
	negated := strings.HasPrefix(word, "-")
	word = strings.TrimPrefix(word, "-")
	if strings.Contains(word, `"`) {
		return nil
	}
	var all []Suggestion
	propose := func(s, doc string) {
		if negated {
			s = "-" + s
		}
		all = append(all, Suggestion{s, doc})
	}
	if name, value, ok := strings.Cut(word, ":"); ok {
		if f := fieldNamed[name]; f != nil {
			for _, v := range f.values {
				if strings.HasPrefix(v, value) && v != value {
					propose(name+":"+v, "")
				}
			}
		}
		return all
	}
	for _, f := range append(fields[:len(fields):len(fields)], headerField, bodyField) {
		if !strings.HasPrefix(f.name, word) {
			continue
		}
		if f.kind == anything {
			propose(f.name, f.doc)
		} else {
			propose(f.name+":", f.doc)
		}
	}
	return all
}
