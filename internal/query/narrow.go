package query

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Narrowed is a query at a moment, on the contents of a store.
type Narrowed struct {
	// Range contains all messages that the query matches, and others that Match rejects.
	Range store.Range
	// None: nothing in the store can match.
	None bool
	// Sure: nearly all messages of Range match.
	Sure bool
	// GroupOf returns the group that a store counts a record in. Only the store knows
	// which groups it merged into a queue's other errors.
	GroupOf func(*store.Record) errorgroup.ID
	// Grouped is the record that GroupOf takes, if Match gets a masked one.
	Grouped *store.Record
	query   *Query
	now     time.Time
}

// Match reports whether the query matches a message of the range. It calls decoded at most once, and
// only when the answer depends on the body.
func (n *Narrowed) Match(l *store.Listed, decoded func() *decode.Result) bool {
	return n.query.match(&env{now: n.now, l: l, groupOf: n.GroupOf, grouped: n.Grouped}, decoded)
}

// maxGroups is how many groups are scanned side by side; with more, all messages are scanned.
const maxGroups = 300

func (q *Query) ByGroup() bool { return q.mentions(knowsGroup | knowsReason) }

// Narrow returns the range of a store's indexes that the query needs. queues are all queues of the
// store that the caller may see; groups are all groups, or nil.
func (q *Query) Narrow(now time.Time, queues []string, groups []store.GroupCount) *Narrowed {
	n := &Narrowed{query: q, now: now, Sure: true, GroupOf: ofItself}
	if q.root == nil {
		n.Range.Queues = queues
		n.None = len(queues) == 0
		return n
	}
	var states []store.State
	var without store.State
	for _, s := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		if q.Says(s, "", nil) >= 0 {
			states = append(states, s)
		} else {
			without = s
		}
	}
	s := q.root.bounds(now)
	n.Range = store.Range{From: s.from, To: s.to, Queues: []string{}}
	for _, name := range queues {
		if q.Says(0, name, nil) >= 0 {
			n.Range.Queues = append(n.Range.Queues, name)
		}
	}
	n.None = len(states) == 0 || len(n.Range.Queues) == 0 || !s.from.IsZero() && !s.to.IsZero() && !s.from.Before(s.to)
	if len(states) == 1 {
		n.Range.State = states[0]
	} else {
		n.Range.Without = without
	}
	byReason := q.narrowGroups(n, groups)
	q.terms(func(t *term) {
		indexed := t.field.needs&^(knowsState|knowsQueue) == 0 || t.field.isDue ||
			t.field.needs == knowsGroup && n.Range.Groups != nil ||
			t.field.needs == knowsReason && byReason
		n.Sure = n.Sure && indexed
	})
	return n
}

// narrowGroups narrows the range to the matching groups where that excludes enough, and reports
// whether each matching group has a single reason.
func (q *Query) narrowGroups(n *Narrowed, groups []store.GroupCount) (byReason bool) {
	if groups == nil || !q.ByGroup() {
		return false
	}
	kept := []errorgroup.ID{}
	var all, waiting, parked, discarded int64
	byReason = true
	for i := range groups {
		g := &groups[i]
		all += g.Waiting + g.Parked + g.Discarded
		if q.Says(n.Range.State, g.Queue, g) >= 0 {
			kept = append(kept, g.ID)
			waiting, parked, discarded = waiting+g.Waiting, parked+g.Parked, discarded+g.Discarded
			byReason = byReason && len(reasonsOf(g)) == 1
		}
	}
	switch {
	case len(kept) == 0:
		n.None = true
	case len(kept) == len(groups):
	case len(kept) > maxGroups:
		return false
	case !q.mentions(knowsGroup) && (waiting+parked+discarded)*10 > all:
		// Most messages match; going through the groups would only be slower.
	default:
		n.Range.Groups = kept
		// A store has to look for a group's waiting ones one by one.
		if n.Range.State == 0 && waiting == 0 && discarded == 0 {
			n.Range.State = store.Parked
		}
		if n.Range.State == 0 && waiting == 0 && parked == 0 {
			n.Range.State = store.Discarded
		}
	}
	return byReason
}

func ofItself(r *store.Record) errorgroup.ID { return r.Group().ID }

func (q *Query) OnlyRetried() bool {
	for _, kept := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		if q.Says(kept, "", nil) >= 0 {
			return false
		}
	}
	return q.Says(Retried, "", nil) >= 0
}

// Says evaluates the query for all messages of a state (0: any), a queue ("": any) and a
// group (nil: any): 1 when it matches all of them, -1 when it matches none, 0 when that
// depends on the message.
func (q *Query) Says(state store.State, queue string, g *store.GroupCount) int {
	if q.root == nil {
		return 1
	}
	r := store.Record{State: state, Queue: queue}
	e := env{l: &store.Listed{Record: &r}}
	if state != 0 {
		e.known |= knowsState
	}
	if queue != "" {
		e.known |= knowsQueue
	}
	if g != nil {
		e.known |= knowsGroup
		e.group = g
		if all := reasonsOf(g); len(all) > 0 {
			e.known |= knowsReason
			r.Reason = all[0]
			first := q.root.eval(&e)
			for _, r.Reason = range all[1:] {
				if q.root.eval(&e) != first {
					return int(maybe)
				}
			}
			return int(first)
		}
	}
	return int(q.root.eval(&e))
}

// reasonsOf returns all reasons for which members of a group may have failed; nil: not known.
func reasonsOf(g *store.GroupCount) []string {
	if g.Pattern == "" {
		return []string{g.Reason}
	}
	return g.Reasons.Names()
}

// span is a range of times: from ≤ t < to. Zero ends are open.
type span struct{ from, to time.Time }

func (s span) has(t time.Time) bool {
	return (s.from.IsZero() || !t.Before(s.from)) && (s.to.IsZero() || t.Before(s.to))
}

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

// point returns the time a value means: for a date, a whole day.
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

// bounds returns a span of Due outside which nothing matches.
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

// IDs returns the only message ids that the query can match; ok is false when it can
// match others.
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

func (t *term) holds(e *env) bool {
	f := t.field
	switch {
	case f == headerField:
		return find(e.l.Record.Message.Headers, t.path, t.value)
	case f == bodyField:
		return find(e.body().Value, t.path, t.value)
	case f.kind == aState:
		return t.op == exists || e.l.Record.State == t.a.state
	case f.kind == aGroup:
		return t.op == exists || e.isIn(t.a.group)
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

func (t *term) text(s string) bool {
	switch {
	case t.op == exists:
		return s != ""
	case t.field.kind == partOf:
		return containsFold(s, &t.a)
	case t.field.name == "id" && t.a.expression == nil:
		return policy.MatchQueue(t.a.lower, s)
	case t.field.name == "exception":
		return t.a.names(s) || t.a.names(errorgroup.ExceptionName(s))
	}
	return t.a.names(s)
}

func (l *literal) names(s string) bool {
	switch {
	case l.expression != nil:
		return l.expression.matches(s)
	case l.quoted:
		return l.text == s
	}
	return policy.MatchQueue(l.text, s)
}

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

// inText searches the error, then the body: raw, decoded, and as shown.
func (t *term) inText(e *env) bool {
	if t.op == exists {
		return e.l.BodySize > 0
	}
	if containsFold(e.l.Record.Error, &t.a) || containsFold(e.l.Record.Message.Body, &t.a) {
		return true
	}
	r := e.body()
	return containsFold(r.Inner, &t.a) || containsFold(r.Text, &t.a)
}

// containsFold searches for a literal, ignoring case. It reads each byte of the text
// once: a body and a query can be made for each other to be slow.
func containsFold[T string | []byte](in T, l *literal) bool {
	if l.expression != nil {
		if text, ok := any(in).([]byte); ok {
			return l.expression.matchesBytes(text)
		}
		return l.expression.matches(string(in))
	}
	if l.borders == nil {
		return strings.Contains(strings.ToLower(string(in)), l.lower)
	}
	if len(l.lower) == 0 {
		return true
	}
	n := 0 // bytes of the literal matched so far
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

// bordersOf returns the failure function of Knuth, Morris and Pratt: for each prefix of s,
// the length of its longest proper suffix that is also a prefix. It is nil when s is not
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
