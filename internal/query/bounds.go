package query

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// span is a stretch of time: from ≤ t < to. Zero ends are open.
type span struct{ from, to time.Time }

func (s span) has(t time.Time) bool {
	return (s.from.IsZero() || !t.Before(s.from)) && (s.to.IsZero() || t.Before(s.to))
}

// within is when a term about a time is true.
func (t *term) within(now time.Time) span {
	from, to := t.point(&t.a, now)
	o := t.op
	if t.field.kind == anAge {
		o = map[op]op{greater: less, atLeast: atMost, less: greater, atMost: atLeast, between: between}[o]
	}
	switch o {
	case greater:
		return span{from: to}
	case atLeast:
		return span{from: from}
	case less:
		return span{to: from}
	case atMost:
		return span{to: to}
	case between:
		otherFrom, otherTo := t.point(&t.b, now)
		if t.field.kind == anAge { // the older end is the earlier
			return span{otherFrom, to}
		}
		return span{from, otherTo}
	}
	return span{from, to}
}

// point is the time a value means: that of a date is a whole day.
func (t *term) point(l *literal, now time.Time) (from, to time.Time) {
	switch {
	case l.isTime:
		return l.from, l.to
	case t.field.kind == anAge:
		from = now.Add(-l.span)
	default:
		from = now.Add(l.span)
	}
	return from, from.Add(1)
}

// bounds of Due, outside of which nothing matches.
func (t *term) bounds(now time.Time) (s span) {
	if t.op == exists || !t.field.isDue && !t.field.floor {
		return s
	}
	s = t.within(now)
	if !t.field.isDue {
		s.to = time.Time{} // it failed before then, and may be due at any time after
	}
	return s
}

func (n and) bounds(now time.Time) (s span) {
	for _, of := range n {
		o := of.bounds(now)
		if o.from.After(s.from) {
			s.from = o.from
		}
		if s.to.IsZero() || !o.to.IsZero() && o.to.Before(s.to) {
			s.to = o.to
		}
	}
	return s
}

func (n or) bounds(now time.Time) span {
	s := n[0].bounds(now)
	for _, of := range n[1:] {
		o := of.bounds(now)
		if o.from.IsZero() || o.from.Before(s.from) {
			s.from = o.from
		}
		if o.to.IsZero() || !s.to.IsZero() && o.to.After(s.to) {
			s.to = o.to
		}
	}
	return s
}

func (n not) bounds(time.Time) span { return span{} }

type idSet map[uuid.UUID]bool

// IDs are the only message ids that it can match; ok is false when it can match
// others.
func (q *Query) IDs() (ids []uuid.UUID, ok bool) {
	if q.root == nil {
		return nil, false
	}
	set, ok := q.root.ids()
	return slices.Collect(maps.Keys(set)), ok
}

func (t *term) ids() (idSet, bool) {
	if t.field.name == "id" && t.a.isID && t.op == is {
		return idSet{t.a.id: true}, true
	}
	return nil, false
}

func (n and) ids() (idSet, bool) {
	for _, of := range n {
		if set, only := of.ids(); only {
			return set, true
		}
	}
	return nil, false
}

func (n or) ids() (idSet, bool) {
	all := idSet{}
	for _, of := range n {
		set, only := of.ids()
		if !only {
			return nil, false
		}
		maps.Copy(all, set)
	}
	return all, true
}

func (n not) ids() (idSet, bool) { return nil, false }
