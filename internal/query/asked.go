package query

import (
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
)

// mostByRules is how many bytes the regular expressions of all rules look at in one message.
const mostByRules = 64 << 10

// Asked is a message that several queries are asked about: the rules of a policy. A rule means a
// message only where that is certain: of a value in a body that no decoder reads, neither a
// condition nor its opposite is true. It is for one goroutine.
type Asked struct {
	env     env
	left    int             // bytes for regular expressions
	unknown bool            // the condition that was looked at last has no answer
	why     string          // what was too much for the query that is asked
	lacks   map[string]bool // fields of which nothing is known
	lacking string          // why
}

// Ask begins to ask about a message. body decodes it: it is called at most once, and only when an
// answer depends on it. Where it does not try, it returns nil and why.
func Ask(l *store.Listed, body func() (r *decode.Result, why string)) *Asked {
	a := &Asked{left: mostByRules}
	a.env = env{l: l, groupOf: ofItself, rules: a}
	notTried := ""
	a.env.decoded = func() (r *decode.Result) {
		r, notTried = body()
		return r
	}
	a.env.notTried = &notTried
	return a
}

// Means tells whether the query means the message. why is not empty where it has no answer because
// the message is too much; a body that no decoder reads has none either, but that is no trouble.
func (a *Asked) Means(q *Query) (means bool, why string) {
	if q.root == nil {
		return true, ""
	}
	a.why, a.unknown = "", false
	a.env.known = knowsRecord
	answer := q.root.eval(&a.env)
	if answer == maybe {
		a.env.known |= knowsBody
		a.why = ""
		answer = q.root.eval(&a.env)
	}
	if answer == maybe {
		why = a.why
	}
	return answer == yes, why
}

// Lacks says of which fields nothing is known, and why.
func (a *Asked) Lacks(why string, fields ...string) {
	a.lacking, a.lacks = why, map[string]bool{}
	for _, name := range fields {
		a.lacks[name] = true
	}
}

// mayRun tells whether a regular expression may look at n more bytes.
func (e *env) mayRun(n int) bool {
	if e.rules == nil {
		return true
	}
	if e.rules.left -= min(n, mostSearched); e.rules.left >= 0 {
		return true
	}
	e.rules.cannotTell(fmt.Sprintf("its regular expressions would look at more than %d KiB of the message", mostByRules>>10))
	return false
}

// cannotTell notes that the condition that is being looked at has no answer.
func (a *Asked) cannotTell(why string) {
	a.unknown = true
	if a.why == "" {
		a.why = why
	}
}

// isUnknown tells whether the condition that was looked at has no answer, and begins with the next.
func (a *Asked) isUnknown() (was bool) {
	was, a.unknown = a.unknown, false
	return was
}

// needsDocument notes, for a rule, that a body has no values.
func (e *env) needsDocument(r *decode.Result) {
	if e.rules != nil && r.Value == nil {
		e.rules.cannotTell(*e.notTried)
	}
}

// needsText notes, for a rule, that not all of a body can be read.
func (e *env) needsText(r *decode.Result) {
	if e.rules != nil && (r.Format == "" || r.Format == "binary" || r.Truncated) {
		e.rules.cannotTell(*e.notTried)
	}
}

// inRules are the fields that a message has before its policy has decided.
var inRules = map[string]bool{"queue": true, "reason": true, "error": true, "group": true, "text": true, "attempt": true, "first": true, "id": true, "size": true,
	"exchange": true, "key": true, "type": true, "content_type": true, "message_id": true, "correlation_id": true, "app_id": true, headerField.name: true, bodyField.name: true}

// OnlyRules refuses a query about what is not known before a policy has decided.
func (q *Query) OnlyRules() (err error) {
	q.terms(func(t *term) {
		if !inRules[t.field.name] && err == nil {
			err = &Error{t.at, fmt.Sprintf("a rule decides before a message has %s", strings.TrimSuffix(t.field.name, "."))}
		}
	})
	return err
}
