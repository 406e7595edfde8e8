package notify

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// otherQueues is the entry that further queues share if a kind has more than maxQueues.
const (
	otherQueues   = "(other queues)"
	maxQueues     = 500
	maxErrorKinds = 20 // different errors of an entry
	otherErrors   = "(other errors)"
)

// key is what a notification is about.
type key struct {
	Kind   Kind
	Queue  string
	Target string // of ForwardStopped, or the group of GroupReopened
}

// lane returns the queue and, if any, the forward target.
func (k key) lane() string {
	if k.Target == "" || k.Kind == GroupReopened {
		return k.Queue
	}
	return k.Queue + toTarget + k.Target
}

const toTarget = " to "

type tally struct {
	N           int64            `json:"n,omitempty"`
	First, Last time.Time        `json:",omitzero"`
	Errors      map[string]int64 `json:"errors,omitempty"`
}

func (t *tally) addError(n int64, err string) {
	if t.Errors == nil {
		t.Errors = map[string]int64{}
	}
	if _, ok := t.Errors[err]; !ok && len(t.Errors) >= maxErrorKinds {
		err = otherErrors
	}
	t.Errors[err] += n
}

// join adds the messages of u, which may be earlier.
func (t *tally) join(u *tally) {
	if t.N == 0 || u.First.Before(t.First) {
		t.First = u.First
	}
	if u.Last.After(t.Last) {
		t.Last = u.Last
	}
	t.N += u.N
	for err, n := range u.Errors {
		t.addError(n, err)
	}
}

// entry is the state of a key, kept over restarts. Its JSON names are stored, and must not change.
type entry struct {
	Sent  time.Time `json:"Told,omitzero"` // when a notification was last sent
	Tally tally     // messages parked since then
	// of a condition
	On       bool      `json:",omitempty"`
	Reported bool      `json:"Said,omitempty"` // the last notification reported it as on
	Since    time.Time `json:",omitzero"`
	Changed  time.Time `json:"Seen,omitzero"` // when it was first found on, or over
	Grew     time.Time `json:",omitzero"`     // the condition's
	Text     string    `json:",omitempty"`
	// Target is the key's: a queue's name may look like a lane.
	Target string `json:",omitempty"`
}

// Condition is a state that lasts, such as an open breaker.
type Condition struct {
	Kind  Kind
	Queue string
	// Target is, of ForwardStopped, where the queue forwards to; of GroupReopened the group.
	Target string
	Since  time.Time     // zero: since it was first seen
	After  time.Duration // reported only when it has lasted that long
	Grew   time.Time     // when it grew, which is reported before it would be repeated; zero: never
	Text   string        // why; may be hostile

	// Unknown means that nothing is known about the kind now: its conditions stay as they were.
	Unknown bool
}

// pending holds what one route has to send. Time is passed in.
type pending struct {
	settings  *Settings
	route     *Route
	groups    grouping
	entries   map[key]*entry
	changed   map[key]bool // to be stored
	firstSeen map[key]time.Time
}

func newPending(s *Settings, r *Route, g grouping) *pending {
	return &pending{settings: s, route: r, groups: g, entries: map[key]*entry{}, changed: map[key]bool{},
		firstSeen: map[key]time.Time{}}
}

// entryOf returns the entry of a key, or beyond maxQueues the shared one of otherQueues.
func (b *pending) entryOf(k key) (key, *entry) {
	e := b.entries[k]
	if e == nil {
		n := 0
		for other := range b.entries {
			if other.Kind == k.Kind && other.Queue != otherQueues {
				n++
			}
		}
		if n >= maxQueues {
			k.Queue, k.Target = otherQueues, ""
			e = b.entries[k]
		}
	}
	if e == nil {
		e = &entry{Target: k.Target}
		b.entries[k] = e
	}
	b.changed[k] = true
	return k, e
}

func (b *pending) count(k key, t *tally) {
	_, e := b.entryOf(k)
	e.Tally.join(t)
}

// update applies the present conditions. Others are over, unless the service is starting: it may not know them yet.
func (b *pending) update(now time.Time, all []Condition, starting bool) {
	there, unknown := map[key]bool{}, map[Kind]bool{}
	for _, c := range all {
		if c.Unknown {
			unknown[c.Kind] = true
			continue
		}
		k := key{c.Kind, c.Queue, c.Target}
		there[k] = true
		c.Text = clean(c.Text, maxTextLen)
		if _, ok := b.firstSeen[k]; !ok {
			b.firstSeen[k] = now
		}
		if c.Since.IsZero() {
			c.Since = b.firstSeen[k]
		}
		e := b.entries[k]
		if e == nil && now.Before(c.Since.Add(c.After)) ||
			e != nil && e.On && e.Text == c.Text && e.Grew.Equal(c.Grew) {
			continue
		}
		at, e := b.entryOf(k)
		there[at] = true
		if !e.On && !e.Reported {
			e.Since, e.Changed = c.Since, now
		}
		e.On, e.Text, e.Grew = true, c.Text, c.Grew
	}
	maps.DeleteFunc(b.firstSeen, func(k key, _ time.Time) bool { return !there[k] })
	if starting {
		return
	}
	for k, e := range b.entries {
		if k.Kind.counted() || there[k] || unknown[k.Kind] || !e.On {
			continue
		}
		if b.changed[k] = true; k.Kind.once() && b.groups != byReceiver {
			b.drop(k)
			continue
		}
		e.On, e.Changed = false, now
	}
}

// lasts reports whether what k names begins and ends. For a service that groups by itself, parked messages do.
func (b *pending) lasts(k key) bool { return !k.Kind.counted() || b.groups == byReceiver }

// due returns when to send an entry, after a wait for more to join it, and whether quiet hours deferred it; ok is false
// if there is nothing to send.
func (b *pending) due(k key, e *entry, now time.Time, wait time.Duration) (at time.Time, deferred, ok bool) {
	repeat := b.route.Repeat
	if b.groups == byReceiver {
		wait, repeat = 0, alertEvery
		if k.Kind.counted() && !e.Tally.Last.Before(e.Sent) {
			repeat = countEvery
		}
	}
	again := e.Sent.Add(repeat)
	switch {
	case k.Kind.once() && e.Reported && b.groups != byReceiver:
		return at, false, false
	case b.lasts(k) && e.On && e.Reported:
		if at = again; e.Grew.After(e.Sent) && e.Grew.Add(wait).Before(at) {
			at = e.Grew.Add(wait)
		}
	case b.groups == byReceiver: // it began, or it is over
	case k.Kind.counted() && e.Tally.N == 0, !k.Kind.counted() && !e.On && e.Reported && !b.route.Resolved:
		return at, false, false
	case k.Kind.counted():
		at = e.Tally.First.Add(wait)
		if !e.Sent.IsZero() && again.After(at) {
			at = again
		}
	default: // it began, or it is over
		at = e.Changed.Add(wait)
	}
	if b.settings.severity(k) < Critical {
		var end time.Time
		if end, deferred = b.route.Quiet.until(at); deferred {
			at = end
		} else if end, quiet := b.route.Quiet.until(now); quiet && !at.After(now) {
			// It was due before quiet hours, and could not be sent.
			at, deferred = end, true
		}
	}
	return at, deferred, true
}

// plan returns what to send now, and when to call plan again at the latest.
func (b *pending) plan(now time.Time) (messages []*Message, next time.Time) {
	next = now.Add(time.Hour)
	due := map[Kind]bool{}
	for k, e := range b.entries {
		if k.Kind.counted() && b.groups == byReceiver {
			e.On = now.Before(e.Tally.Last.Add(parkedLasts))
		}
		if b.lasts(k) && !e.On && !e.Reported {
			if _, deferred, _ := b.due(k, e, now, b.route.GroupWait); !deferred {
				b.drop(k) // over before it was sent
				continue
			}
		}
		at, _, ok := b.due(k, e, now, b.route.GroupWait)
		switch {
		case !ok && !e.On && now.After(e.Sent.Add(b.route.Repeat)):
			b.drop(k)
		case !ok:
		case !at.After(now):
			due[k.Kind] = true
		case at.Before(next):
			next = at
		}
	}
	groups := map[Kind]*Message{}
	for k, e := range b.entries {
		if !due[k.Kind] {
			continue
		}
		at, deferred, ok := b.due(k, e, now, 0)
		if !ok || at.After(now) {
			continue
		}
		group, digest := k.Kind, deferred && b.groups != byKind
		if digest || b.groups == byReceiver {
			group = ""
		}
		m := groups[group]
		if m == nil {
			m = &Message{Kind: group, Digest: digest, At: now}
			groups[group] = m
		}
		i := b.item(k, e)
		i.Link = link(b.settings.Page, &Message{Kind: k.Kind, Items: []Item{i}})
		m.Items = append(m.Items, i)
		m.Severity = max(m.Severity, i.Severity)
	}
	for k, e := range b.entries {
		if m := groups[k.Kind]; m != nil && e.On {
			m.Open++
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		m := groups[group]
		inOrder(m.Items)
		m.Link, m.VHost = link(b.settings.Page, m), b.settings.VHost
		messages = append(messages, m)
	}
	return messages, next
}

func (b *pending) item(k key, e *entry) Item {
	i := Item{Kind: k.Kind, Queue: k.Queue, Target: k.Target, Since: e.Since, Text: e.Text, N: e.Tally.N}
	i.Severity = b.settings.severity(k)
	if !k.Kind.counted() {
		i.Resolved, i.Again = !e.On, e.On && e.Reported && b.groups != byReceiver
		if i.Resolved {
			i.Until = e.Changed
		}
		return i
	}
	i.Since, i.Until = e.Tally.First, e.Tally.Last
	if b.groups == byReceiver && !e.On {
		i.Resolved, i.Until = true, e.Tally.Last.Add(parkedLasts)
	}
	for err, n := range e.Tally.Errors {
		i.Errors = append(i.Errors, ErrorCount{err, n})
	}
	slices.SortFunc(i.Errors, func(a, b ErrorCount) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Error, b.Error))
	})
	return i
}

func (b *pending) sent(m *Message, now time.Time) {
	for _, i := range m.Items {
		k := key{i.Kind, i.Queue, i.Target}
		e := b.entries[k]
		if b.groups == byReceiver && e.Reported && !i.Resolved {
			e.Sent = now // not stored: after a start all are sent at once
			continue
		}
		b.changed[k] = true
		switch {
		case e == nil:
		case i.Resolved:
			b.drop(k)
		case b.groups == byReceiver:
			e.Sent, e.Reported = now, true
		default:
			e.Sent, e.Reported, e.Tally = now, !k.Kind.counted(), tally{}
		}
	}
}

func (b *pending) drop(k key) {
	delete(b.entries, k)
	b.changed[k] = true
}

// Quiet has the hours of each day, from From to To in minutes since midnight, in which only critical notifications are
// sent. A nil Zone means no quiet hours.
type Quiet struct {
	From, To int
	Zone     *time.Location
}

func (q Quiet) in(t time.Time) bool {
	if q.Zone == nil || q.From == q.To {
		return false
	}
	t = t.In(q.Zone)
	m := 60*t.Hour() + t.Minute()
	if q.From < q.To {
		return q.From <= m && m < q.To
	}
	return m >= q.From || m < q.To
}

// until reports whether t is in quiet hours, and returns when they end, by local time.
func (q Quiet) until(t time.Time) (end time.Time, quiet bool) {
	if !q.in(t) {
		return t, false
	}
	local := t.In(q.Zone)
	y, mo, d := local.Date()
	if q.From > q.To && 60*local.Hour()+local.Minute() >= q.From {
		d++
	}
	end = time.Date(y, mo, d, q.To/60, q.To%60, 0, 0, q.Zone)
	// If the clock has the hour twice, the zone decides which one time.Date returns; it is quiet until the second.
	_, offset := end.Zone()
	_, later := end.Add(maxClockShift).Zone()
	if second := end.Add(time.Duration(offset-later) * time.Second); second.After(end) && sameClock(second, end) {
		end = second
	}
	// If the clock leaves out the hour, the time may be past, still quiet, or too late.
	for !end.After(t) || q.in(end) {
		end = end.Add(time.Minute)
	}
	for last := end.Add(-time.Minute); last.After(t) && !q.in(last); last = last.Add(-time.Minute) {
		end = last
	}
	return end, true
}

// maxClockShift is more than a zone sets its clock back by, and so more than the time that the clock has twice.
const maxClockShift = 3 * time.Hour

func sameClock(a, b time.Time) bool { return a.Hour() == b.Hour() && a.Minute() == b.Minute() }

const (
	// The entry seen + a queue's name, below prefix, has how many of its messages were ever parked by the ledger when
	// it was last read, and seenUrgent + its name how many urgent ones. No route has such a name, and store.OtherQueues
	// always has an entry.
	seen       = "(parked)"
	seenUrgent = "(urgent)"
	// maxRead bounds the parked records whose errors are read after each reading of the ledger.
	maxRead      = 256
	maxReasonLen = 1 << 10 // bytes of an error
	baseTimeout  = 5 * time.Second
)

// parkedCounts has how many messages of each queue were ever parked, urgent ones apart.
type parkedCounts map[key]int64

// countedAs has, for each kind of parked messages, the ledger's column and the prefix of the entries of the last
// reading.
var countedAs = map[Kind]struct {
	as   store.Column
	seen string
}{
	Parked:       {store.EverParked, prefix + seen + "/"},
	ParkedUrgent: {store.EverParkedUrgent, prefix + seenUrgent + "/"},
}

// readCounts reads the counts from the ledger. The line of OtherQueues is about forgotten queues, not about messages
// parked now.
func (e *Engine) readCounts(ctx context.Context) (parkedCounts, error) {
	lines, err := e.Store.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	all := parkedCounts{}
	for i := range lines {
		for kind, in := range countedAs {
			if n := lines[i].Sums[in.as]; n > 0 {
				all[key{Kind: kind, Queue: lines[i].Queue}] = n
			}
		}
	}
	all[key{Kind: Parked, Queue: store.OtherQueues}] = 0
	delete(all, key{Kind: ParkedUrgent, Queue: store.OtherQueues})
	return all, nil
}

// readBase reads the counts from which routes begin that have never run. If it cannot, they begin at the first reading.
func (e *Engine) readBase() parkedCounts {
	ctx, cancel := context.WithTimeout(context.Background(), baseTimeout)
	defer cancel()
	base, _ := e.readCounts(ctx)
	return base
}

// parkedReader finds what was parked since the last reading.
type parkedReader struct {
	*Engine
	set *routeSet

	mu     sync.Mutex   // guards the rest
	last   parkedCounts // counts of the last reading; nil: none yet
	stored bool         // last is stored
	at     time.Time    // of the last reading
}

// load reads what the last run stored.
func (in *parkedReader) load(ctx context.Context) error {
	last := parkedCounts{}
	for kind, counted := range countedAs {
		err := in.Store.Entries(ctx, counted.seen, "", func(en store.Entry) (bool, error) {
			k := key{Kind: kind, Queue: strings.TrimPrefix(en.Name, counted.seen)}
			last[k], _ = strconv.ParseInt(string(en.Value), 10, 64)
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	if in.stored = len(last) > 0; !in.stored {
		last = in.set.base
	}
	in.last = last
	return nil
}

// read passes what was parked since the last reading to the routes.
func (in *parkedReader) read(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	began := time.Now()
	if in.last == nil {
		if err := in.load(ctx); err != nil {
			return err
		}
	}
	now, err := in.readCounts(ctx)
	if err != nil {
		return err
	}
	if in.last == nil {
		in.last = now
	}
	var changed []store.Entry
	grown := parkedCounts{}
	for k, n := range now {
		was, ok := in.last[k]
		if !in.stored || !ok || was != n {
			changed = append(changed, store.Entry{Name: countedAs[k.Kind].seen + k.Queue,
				Value: strconv.AppendInt(nil, n, 10)})
		}
		if n < was { // the queue was forgotten meanwhile, or its counts were lost
			was = 0
		}
		if n > was {
			grown[k] = n - was
		}
	}
	for k := range in.last {
		if _, ok := now[k]; !ok {
			changed = append(changed, store.Entry{Name: countedAs[k.Kind].seen + k.Queue})
		}
	}
	if len(changed) > 0 {
		// Store first: the store refuses a former leader's write, so nothing is sent twice.
		if err := in.Store.PutEntries(context.WithoutCancel(ctx), changed); err != nil {
			return err
		}
	}
	before := in.at
	in.last, in.stored, in.at = now, true, began
	each := max(1, maxRead/max(1, len(grown)))
	left := maxRead
	for k, n := range grown {
		var t *tally
		for _, r := range in.set.routes {
			if !in.wants(r, k) {
				continue
			}
			if t == nil {
				t = in.describe(context.WithoutCancel(ctx), k, n, min(each, left), before)
				left -= min(each, left)
			}
			r.count(k, t)
		}
	}
	return nil
}

// describe returns when and why n messages were parked, from at most limit of the queue's newest. before is when the
// ledger was previously read.
func (in *parkedReader) describe(ctx context.Context, k key, n int64, limit int, before time.Time) *tally {
	now := time.Now()
	t := &tally{N: n, First: now, Last: now}
	errs, found, looked := map[string]int64{}, int64(0), 0
	newest := store.Range{State: store.Parked, Queues: []string{k.Queue}, NewestFirst: true}
	wanted := min(n, int64(limit))
	visit := func(l store.Listed) (bool, error) {
		r := l.Record
		if looked++; (r.Notify == store.Urgent) != (k.Kind == ParkedUrgent) || r.Notify == store.Never {
			return looked < maxRead, nil
		}
		if r.Due.Before(now) { // unless a clock was wrong
			if t.First = r.Due; found == 0 {
				t.Last = r.Due
			}
		}
		why := r.ParkedFor
		problem := r.Error
		if in.Mask != nil {
			why, problem = in.Mask(k.Queue, why), in.Mask(k.Queue, problem)
		}
		if problem != "" { // all of an error group count as one
			text := problem[:min(len(problem), maxReasonLen)]
			why = cmp.Or(errorgroup.Of(k.Queue, "", text, "").Pattern, text)
		}
		errs[clean(why, maxErrorLen)]++
		found++
		return found < wanted && looked < maxRead, nil
	}
	if wanted > 0 {
		_ = in.Store.Scan(ctx, newest, visit) // without it the notification has no errors
	}
	if found < n && !before.IsZero() && before.Before(t.First) {
		t.First = before
	}
	delete(errs, "")
	for text, some := range errs {
		t.addError(some*n/found, text)
	}
	return t
}
