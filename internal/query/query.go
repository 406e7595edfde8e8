// Package query is the query language of page, API and command line: see docs/reference/query.md. Read it in this
// order:
//
//	query.go       Query: whether it matches a message, or a group
//	fields.go      the fields; headers and decoded bodies, by path
//	parse.go       parses a query; errors point at the character
//	expression.go  regular expressions
//	value.go       the values after the colon; numbers of any size
//	rule.go        a query as the condition of a policy's rule
//	narrow.go      what a store's indexes can answer, and the test of each term
package query

import (
	"cmp"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Retried is the state of messages of which a store keeps only the past failure.
// No record in a store has it.
const Retried store.State = 0xFF

// Query is a parsed query. It is immutable and safe for concurrent use.
type Query struct {
	root node // nil: everything
}

func (q *Query) NeedsBody() bool { return q.mentions(knowsBody) }

// Listed returns the query of a list: discarded messages, which would stand first for as long as they can be restored,
// are left out unless the text names a state, or messages by their ids.
func Listed(text string) string { return stated(text, "-state:discarded") }

// InAllStates returns a query for which Listed returns all that the text finds.
func InAllStates(text string) string { return stated(text, "state:*") }

// stated adds a term to a valid query that names neither a state nor ids.
func stated(text, term string) string {
	q, err := Parse(text)
	if err != nil || q.mentions(knowsState) {
		return text
	}
	if q.root == nil {
		return term
	}
	if _, byID := q.IDs(); byID {
		return text
	}
	if _, either := q.root.(or); either {
		text = "(" + text + ")"
	}
	return text + " " + term
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

// Paths visits the paths of headers and bodies that the query is about, with the name of the field.
func (q *Query) Paths(visit func(name, path string, header bool)) {
	q.terms(func(t *term) {
		if t.field == headerField || t.field == bodyField {
			visit(t.field.name, t.path, t.field == headerField)
		}
	})
}

// match reports whether the query matches a message. It calls decoded at most once, and only when
// the answer depends on the body.
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

// known is the set of facts that are known of a message while a query is evaluated:
// first what indexes have, then the record, then its body.
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

// answer is three-valued: maybe when it depends on what is not known yet.
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

// env is a message under evaluation, as far as it is known.
type env struct {
	now     time.Time
	l       *store.Listed
	known   known
	groupOf func(*store.Record) errorgroup.ID
	grouped *store.Record     // what groupOf takes; nil: that of l
	group   *store.GroupCount // if only that is known
	decoded func() *decode.Result
	result  *decode.Result
}

// isIn reports whether it is in the group of an id, or has the error of that id in whichever queue.
func (e *env) isIn(id errorgroup.ID) bool {
	if e.group != nil {
		return e.group.ID == id || e.group.Error == id
	}
	r := cmp.Or(e.grouped, e.l.Record)
	is := e.groupOf(r)
	if is == id {
		return true
	}
	own := r.Group()
	if own.ID != is {
		own = errorgroup.Other(own.Queue, store.GroupsKept)
	}
	return own.Everywhere() == id
}

// body decodes the body once.
func (e *env) body() *decode.Result {
	if e.result == nil {
		if e.result = e.decoded(); e.result == nil {
			e.result = &decode.Result{}
		}
	}
	return e.result
}

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
	all := yes
	for _, of := range n {
		if all = min(all, of.eval(e)); all == no {
			break
		}
	}
	return all
}

func (n or) eval(e *env) answer {
	some := no
	for _, of := range n {
		if some = max(some, of.eval(e)); some == yes {
			break
		}
	}
	return some
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

var ofGroups = map[string]bool{"queue": true, "state": true, "reason": true, "group": true, "error": true,
	"exception": true,
	"type":      true, "note": true, "text": true}

func (q *Query) OnlyGroups() (err error) {
	q.terms(func(t *term) {
		if !ofGroups[t.field.name] && err == nil {
			err = &Error{t.at, "groups have no " + t.field.name +
				", only queue, state, reason, group, error, exception, type, note and text"}
		}
	})
	return err
}

// MatchGroup reports whether a query that OnlyGroups accepts matches a group: error means its pattern,
// note the person's note, text either, and state that it has messages in that state.
func (q *Query) MatchGroup(g *store.GroupCount) bool {
	r := store.Record{Queue: g.Queue, Reason: g.Reason, Error: g.Pattern, Notes: []string{g.Note}}
	r.Message.Type, r.Message.Body = g.Type, []byte(g.Note)
	e := env{l: &store.Listed{Record: &r, BodySize: len(g.Note)},
		group: g}
	is := func(state store.State) bool {
		r.State = state
		return q.match(&e, func() *decode.Result { return nil })
	}
	return g.Waiting > 0 && is(store.Waiting) || g.Parked > 0 && is(store.Parked) ||
		g.Discarded > 0 && is(store.Discarded) ||
		g.Waiting+g.Parked+g.Discarded == 0 && is(0)
}

// Suggestion is a completion of a query's last word.
type Suggestion struct {
	Text string `json:"text"` // the whole word
	Doc  string `json:"doc"`
}

// Complete returns completions of a query's last word: fields, and values where
// these are few.
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
