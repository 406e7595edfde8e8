package query

import (
	"reflect"
	"slices"
	"sync"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// ofRules lists the fields that a rule may use: those of a message that has just failed.
var ofRules = map[string]bool{"queue": true, "reason": true, "error": true, "exception": true, "group": true,
	"text": true, "attempt": true, "replays": true, "size": true, "exchange": true, "key": true, "type": true,
	"content_type": true, "message_id": true, "correlation_id": true, "app_id": true,
	headerField.name: true, bodyField.name: true}

// Rule is a query that matches failures: a policy.Matcher. It is immutable.
type Rule struct {
	text  string
	query *Query
}

// ParseRule parses the query of a rule. Its errors are *Error.
func ParseRule(text string) (*Rule, error) {
	q, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if q.root == nil {
		return nil, &Error{0, "expected a condition, such as error:timeout; queue:* matches every failure"}
	}
	var wrong error
	q.terms(func(t *term) {
		switch {
		case wrong != nil:
		case !ofRules[t.field.name]:
			wrong = &Error{t.at, "a rule decides when a message has just failed, which has no " + t.field.name}
		case t.field.name == "text" && t.a.text == "not":
			wrong = &Error{t.at, `write NOT in capitals, or "text:not" for the word`}
		}
	})
	if wrong != nil {
		return nil, wrong
	}
	return &Rule{text, q}, nil
}

func (r *Rule) String() string { return r.text }

// failed is a failure under evaluation. It is pooled: a policy may have many rules.
type failed struct {
	failure *policy.Failure
	record  store.Record
	listed  store.Listed
	env     env
	decoded func() *decode.Result
}

var failedPool = sync.Pool{New: func() any {
	a := new(failed)
	a.decoded = func() (result *decode.Result) {
		if a.failure.Decoded != nil {
			result, _ = a.failure.Decoded().(*decode.Result)
		}
		return result
	}
	return a
}}

func (r *Rule) Matches(f *policy.Failure) bool {
	a := failedPool.Get().(*failed)
	a.failure = f
	a.record = store.Record{Queue: f.Queue, Reason: f.Reason, Error: f.Error, Failures: f.Attempt, Replays: f.Replays,
		FirstFailed: f.FirstFailed, FailedAt: f.At}
	if f.Message != nil {
		a.record.Message = *f.Message
	}
	a.listed = store.Listed{Record: &a.record, BodySize: len(a.record.Message.Body)}
	a.env = env{now: f.At, l: &a.listed, groupOf: ofItself}
	matches := r.query.match(&a.env, a.decoded)
	a.failure, a.record, a.env = nil, store.Record{}, env{} // they may be large
	failedPool.Put(a)
	return matches
}

// Covers reports whether r obviously matches all that other matches: other has all conditions of r, and
// perhaps more.
func (r *Rule) Covers(other *Rule) bool {
	theirs := conditions(other.query.root)
	for _, mine := range conditions(r.query.root) {
		if !slices.ContainsFunc(theirs, func(n node) bool { return same(mine, n) }) {
			return false
		}
	}
	return true
}

func conditions(root node) []node {
	if all, ok := root.(and); ok {
		return all
	}
	return []node{root}
}

func same(a, b node) bool {
	switch a := a.(type) {
	case *term:
		b, ok := b.(*term)
		if !ok || (a.a.expression == nil) != (b.a.expression == nil) {
			return false
		}
		x, y := *a, *b
		x.at, x.a.expression, y.at, y.a.expression = 0, nil, 0, nil
		return reflect.DeepEqual(x, y)
	case not:
		b, ok := b.(not)
		return ok && same(a.of, b.of)
	case and:
		b, ok := b.(and)
		return ok && slices.EqualFunc(a, b, same)
	case or:
		b, ok := b.(or)
		return ok && slices.EqualFunc(a, b, same)
	}
	return false
}
