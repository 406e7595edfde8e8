package query

import (
	"strings"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/policy"
)

// holds tells whether the term is true; what it needs is known.
func (t *term) holds(e *env) bool {
	f := t.field
	switch {
	case f == headerField:
		return find(e.l.Record.Message.Headers, t.path, func(v any) bool { return t.value(e, v) })
	case f == bodyField:
		r := e.body()
		e.needsDocument(r)
		return find(r.Value, t.path, func(v any) bool { return t.value(e, v) })
	case f.kind == aState:
		return t.op == exists || e.l.Record.State == t.a.state
	case f.kind == aGroup:
		return t.op == exists || e.isIn(t.a.group)
	case f.needs == knowsBody:
		return t.inText(e)
	case f.text != nil:
		return t.text(e, f.text(e.l))
	case f.number != nil:
		return t.op == exists || t.compares(fromInt(f.number(e.l)))
	}
	at := f.time(e.l)
	if t.op == exists {
		return !at.IsZero()
	}
	return t.within(e.now).has(at)
}

// text compares with a name, or looks into a text.
func (t *term) text(e *env, s string) bool {
	switch {
	case t.op == exists:
		return s != ""
	case t.a.regex != nil:
		f := e.errorText()
		if t.field.name != "error" {
			other := fold(s)
			f = &other
		}
		return t.a.regex.in(e, f)
	case t.a.wild != "":
		return policy.MatchQueue(t.a.wild, strings.ToLower(s))
	case t.field.kind == partOf:
		return containsFold(s, &t.a)
	case t.field.name == "id":
		return policy.MatchQueue(t.a.lower, s)
	}
	return t.a.names(s)
}

// names tells whether a literal matches the whole of a text.
func (l *literal) names(s string) bool {
	if l.quoted {
		return l.text == s
	}
	return policy.MatchQueue(l.text, s)
}

// compares compares a number.
func (t *term) compares(d decimal) bool {
	c := d.compare(t.a.number)
	switch t.op {
	case greater:
		return c > 0
	case atLeast:
		return c >= 0
	case less:
		return c < 0
	case atMost:
		return c <= 0
	case between:
		return c >= 0 && d.compare(t.b.number) <= 0
	}
	return c == 0
}

// inText looks into the error, then into the body: as it is, as it came out of the decoders, and
// as they show it.
func (t *term) inText(e *env) bool {
	if t.op == exists {
		return e.l.BodySize > 0
	}
	if t.a.regex != nil {
		return t.regexInText(e)
	}
	if containsFold(e.l.Record.Error, &t.a) || containsFold(e.l.Record.Message.Body, &t.a) {
		return true
	}
	r := e.body()
	e.needsText(r)
	return containsFold(r.Inner, &t.a) || containsFold(r.Text, &t.a)
}

func (t *term) regexInText(e *env) bool {
	x := t.a.regex
	if x.in(e, e.errorText()) || x.inBytes(e, e.l.Record.Message.Body) {
		return true
	}
	r := e.body()
	e.needsText(r)
	return x.inBytes(e, r.Inner) || x.inBytes(e, []byte(r.Text))
}

// containsFold looks for a literal, in capitals or not. It never looks at a byte of
// the text twice: a body and a query can be made for each other.
func containsFold[T string | []byte](in T, l *literal) bool {
	if l.borders == nil {
		return strings.Contains(strings.ToLower(string(in)), l.lower)
	}
	if len(l.lower) == 0 {
		return true
	}
	n := 0 // how much of it ends here
	for i := range len(in) {
		c := small(in[i])
		for n > 0 && c != l.lower[n] {
			n = l.borders[n-1]
		}
		if c == l.lower[n] {
			n++
		}
		if n == len(l.lower) {
			return true
		}
	}
	return false
}

// bordersOf tells, for each beginning of s, how long its longest end is that s begins
// with too: as in the algorithm of Knuth, Morris and Pratt. It is nil when s is not
// ASCII.
func bordersOf(s string) []int {
	all := make([]int, len(s))
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return nil
		}
		if i == 0 {
			continue
		}
		n := all[i-1]
		for n > 0 && s[i] != s[n] {
			n = all[n-1]
		}
		if s[i] == s[n] {
			n++
		}
		all[i] = n
	}
	return all
}

func small(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}
