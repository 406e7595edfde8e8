package query

import (
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
)

// Match tells whether the query means a message, at a moment.
func (q *Query) Match(now time.Time, l *store.Listed, decoded func() *decode.Result) bool {
	return q.match(&env{now: now, l: l, groupOf: ofItself}, decoded)
}

// String is the query in its canonical form, which parses to the same.
func (q *Query) String() string {
	if q.root == nil {
		return ""
	}
	return formOf(q.root, true)
}

// formOf is the canonical form of a part; alone: nothing stands beside it.
func formOf(n node, alone bool) string {
	switch n := n.(type) {
	case and:
		return joined(n, " ", alone)
	case or:
		return joined(n, " OR ", alone)
	case not:
		return "-" + formOf(n.of, false)
	}
	return n.(*term).form()
}

func joined(all []node, with string, alone bool) string {
	parts := make([]string, len(all))
	for i, n := range all {
		parts[i] = formOf(n, false)
	}
	s := strings.Join(parts, with)
	if !alone {
		s = "(" + s + ")"
	}
	return s
}

func (t *term) form() string {
	name := t.field.name
	if path := t.path; path != "" {
		if strings.ContainsFunc(path, ends) || strings.Contains(path, ":") {
			path = Quote(path)
		}
		name += path
	}
	switch t.op {
	case exists:
		return name + ":*"
	case between:
		return name + ":" + t.a.form() + ".." + t.b.form()
	}
	return name + ":" + string(t.op) + t.a.form()
}

func (l literal) form() string {
	if l.regex != nil {
		return "/" + strings.ReplaceAll(l.text, "/", `\/`) + "/"
	}
	if l.quoted {
		return Quote(l.text)
	}
	return l.text
}
