package query

import (
	"strings"

	"github.com/redrive-mq/redrive/policy"
)

// holds tells whether the term is true; what it needs is known.
func (t *term) holds(e *env) bool {
	f := t.field
	switch {
	case f == headerField:
		return t.header(e.l.Record.Message.Headers)
	case f == bodyField:
		return t.inBody(e.body().Value)
	case f.kind == aState:
		return t.op == exists || e.l.Record.State == t.a.state
	case f.kind == aGroup:
		return t.op == exists || e.groupOf(e.l.Record) == t.a.group
	case f.needs == knowsBody:
		return t.inText(e)
	case f.text != nil:
		return t.text(f.text(e.l))
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
func (t *term) text(s string) bool {
	switch {
	case t.op == exists:
		return s != ""
	case t.field.kind == partOf:
		return containsFold(s, t.a.lower)
	case t.field.name == "id":
		return policy.MatchQueue(t.a.lower, s)
	}
	return t.a.names(s)
}

// names tells whether a literal means the whole of a text.
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

// inText looks into the error, then into the body: as it came out of the decoders,
// and as they show it.
func (t *term) inText(e *env) bool {
	if t.op == exists {
		return e.l.BodySize > 0
	}
	if containsFold(e.l.Record.Error, t.a.lower) || containsFold(e.l.Record.Message.Body, t.a.lower) {
		return true
	}
	r := e.body()
	return containsFold(r.Inner, t.a.lower) || containsFold(r.Text, t.a.lower)
}

// containsFold looks for lower, which is in small letters, in capitals or not.
func containsFold[T string | []byte](in T, lower string) bool {
	for i := range len(lower) {
		if lower[i] >= 0x80 {
			return strings.Contains(strings.ToLower(string(in)), lower)
		}
	}
	for i := 0; i+len(lower) <= len(in); i++ {
		j := 0
		for j < len(lower) && small(in[i+j]) == lower[j] {
			j++
		}
		if j == len(lower) {
			return true
		}
	}
	return false
}

func small(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}
