package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// maxLooked is how many messages a search looks at when no index leads to those
	// that it finds.
	maxLooked = 100_000
	// maxLookTime is how long it looks for one page then. The page is short, and its After is
	// where the next one continues; so no request for what is kept takes long.
	maxLookTime = time.Second
	// lookAhead is how many messages after a full page are searched for one more.
	lookAhead = 1000
	// maxWithBodies is how many messages a page has at most whose columns show parts of bodies.
	maxWithBodies = 100
)

// Search finds messages, those first that are due the latest, or were parked or retried last; of a query for
// waiting ones alone, those that are due first. A page may be short, even empty, and not be the last. Columns
// are names of fields, which each message then has.
func (in *Inspector) Search(
	ctx context.Context, by auth.Caller, text, after string, limit int, columns ...string,
) (Page, error) {
	q, err := in.parse(by, text)
	if err != nil {
		return Page{}, err
	}
	if limit, err = PageSize(limit); err != nil {
		return Page{}, err
	}
	s := &search{Inspector: in, by: by, query: q, limit: limit, groupOf: in.Store.GroupOf, held: map[string]string{},
		page: Page{Messages: []Message{}, Whole: in.Whole(by) == nil}}
	if s.columns, err = query.Columns(strings.Join(columns, ",")); err != nil {
		return Page{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	ofBodies := slices.ContainsFunc(s.columns, query.Column.NeedsBody)
	if ofBodies {
		s.limit = min(limit, maxWithBodies)
	}
	if s.queues, err = in.setQueues(ctx); err != nil {
		return Page{}, err
	}
	if ids, only := q.IDs(); only {
		err = s.searchIDs(ctx, ids)
	} else if q.OnlyRetried() {
		err = s.retried(ctx, after)
	} else {
		err = s.kept(ctx, after)
	}
	if err == nil && ofBodies {
		err = s.decodeColumns(ctx)
	}
	if err != nil {
		return Page{}, err
	}
	return s.page, nil
}

// PageSize is how many entries a page has at most, of the limit that its caller gives; 0: 100.
func PageSize(limit int) (int, error) {
	if limit < 0 || limit > 1000 {
		return 0, fmt.Errorf("%w: limit is %d, and must be from 1 to 1,000", ErrInvalid, limit)
	}
	return cmp.Or(limit, 100), nil
}

func (in *Inspector) parse(by auth.Caller, text string) (*query.Query, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	q, err := query.Parse(text)
	if err == nil {
		err = in.refuse(by, q)
	}
	return q, err
}

// search is one page in the making.
type search struct {
	*Inspector
	by      auth.Caller
	query   *query.Query
	columns []query.Column
	limit   int
	queues  visibleQueues     // without their counts
	held    map[string]string // by queue: what holds its messages back
	groupOf func(*store.Record) errorgroup.ID
	page    Page
}

func (s *search) full() bool { return len(s.page.Messages) >= s.limit }

func (s *search) add(l store.Listed) {
	m := s.shown(s.by, l, s.groupOf(l.Record))
	if s.columns != nil {
		m.Columns = map[string]string{}
		s.fill(m, &l, nil)
	}
	if m.State == Waiting {
		_, m.Paused = s.queues.pauses[m.Queue]
		if l.Record.Forward == nil {
			m.Held = s.heldIn(m.Queue)
		}
	}
	s.page.Messages = append(s.page.Messages, m)
}

// heldIn returns what holds the messages of a queue back.
func (s *search) heldIn(queue string) string {
	what, known := s.held[queue]
	if known {
		return what
	}
	what = s.queues.shown([]store.QueueCount{{Queue: queue}})[0].Held()
	s.held[queue] = what
	return what
}

// fill fills in the columns that show parts of the body, or the others.
func (s *search) fill(m Message, l *store.Listed, decoded func() *decode.Result) {
	shown := *l
	shown.Record = s.masked(s.by, l.Record)
	group := func(*store.Record) errorgroup.ID { return s.groupOf(l.Record) }
	for _, c := range s.columns {
		if c.NeedsBody() == (decoded != nil) && (m.Size != nil || c.Name != "size") {
			m.Columns[c.Name] = c.Of(&shown, group, decoded)
		}
	}
}

// decodeColumns fills in the columns that show parts of bodies, for as long as a search looks for one page.
func (s *search) decodeColumns(ctx context.Context) error {
	leave, err := s.searching.Enter(ctx, s.by.ID(), 1)
	if err != nil {
		return err
	}
	defer leave()
	began := time.Now()
	for i, m := range s.page.Messages {
		if time.Since(began) > maxLookTime {
			s.page.Bounded = strings.TrimPrefix(fmt.Sprintf("%s; the bodies of the last %d messages were not decoded, "+
				"since that takes long", s.page.Bounded, len(s.page.Messages)-i), "; ")
			return nil
		}
		if m.Key == "" { // retried
			continue
		}
		l, err := s.Store.Get(ctx, store.Key(m.Key))
		if errors.Is(err, store.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		s.fill(m, &l, sync.OnceValue(s.decodedFor(ctx, s.by, &l)))
	}
	return nil
}

// kept finds what the store keeps.
func (s *search) kept(ctx context.Context, after string) error {
	place, err := readPlace(after)
	if err != nil {
		return err
	}
	n, err := s.narrow(ctx, s.by, s.query)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	s.page.Soonest = r.State == store.Waiting
	r.NewestFirst, r.Body = !s.page.Soonest, s.query.NeedsBody()
	r.After = place.cursor
	s.groupOf = n.GroupOf
	leave, err := s.Inspector.search(ctx, s.by, s.query)
	if err != nil {
		return err
	}
	defer leave()
	began, before, ahead := time.Now(), place.looked, int64(0)
	defer func() { s.page.Looked = place.looked - before + ahead }()
	err = s.Store.Scan(ctx, r, yielding(ctx, s.Inspector, func(l store.Listed) (bool, error) {
		switch {
		case n.Sure:
		case place.looked+ahead >= maxLooked:
			s.page.Bounded = bounded
			return false, nil
		case place.looked > before && time.Since(began) > maxLookTime:
			s.page.After = place.String()
			return false, nil
		}
		match := s.match(ctx, s.by, n, &l)
		if s.full() {
			if ahead++; match || ahead == lookAhead {
				s.page.After = place.String()
				return false, nil
			}
			return true, nil
		}
		place.looked++
		place.cursor = l.Cursor
		if match {
			s.add(l)
		}
		return true, nil
	}))
	if errors.Is(err, store.ErrCursor) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

var bounded = fmt.Sprintf("only the first %d messages were looked at: say more of queue, state, reason or group, or "+
	"when they were parked or are due", maxLooked)

// place is where a search continues, and how many messages it has read before.
type place struct {
	looked int64
	cursor string
}

func (p place) String() string { return strconv.FormatInt(p.looked, 10) + "." + p.cursor }

func readPlace(after string) (p place, err error) {
	if after == "" {
		return p, nil
	}
	looked, cursor, ok := strings.Cut(after, ".")
	if p.looked, err = strconv.ParseInt(looked, 10, 64); err != nil || !ok || p.looked < 0 || cursor == "" {
		return p, fmt.Errorf("%w: %.100q is not the end of a page", ErrInvalid, after)
	}
	p.cursor = cursor
	return p, nil
}

// narrow returns what of a query the store's indexes can answer, for the queues that the caller sees.
func (in *Inspector) narrow(ctx context.Context, by auth.Caller, q *query.Query) (*query.Narrowed, error) {
	counts, err := in.Store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, n := range counts {
		if by.Sees(n.Queue) {
			names = append(names, n.Queue)
		}
	}
	var groups []store.GroupCount
	if q.ByGroup() {
		if groups, err = in.groupsSeen(ctx, by); err != nil {
			return nil, err
		}
	}
	n := q.Narrow(in.Now(), names, groups)
	n.GroupOf = in.Store.GroupOf
	// A scan of one group finds no others, and to group an error takes long.
	if _, byID := q.IDs(); !byID && len(n.Range.Groups) == 1 {
		n.GroupOf = func(*store.Record) errorgroup.ID { return n.Range.Groups[0] }
	}
	return n, nil
}

// decoded returns a function that decodes the body.
func (in *Inspector) decoded(ctx context.Context, l *store.Listed) func() *decode.Result {
	return func() *decode.Result {
		return in.Decoder.Decode(ctx, BodyOf(l.Record))
	}
}

// BodyOf is the body of a record, with what tells how to decode it.
func BodyOf(r *store.Record) decode.Body {
	m := retry.Unwrapped(r)
	return decode.Body{Bytes: m.Body, Queue: r.Queue, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding,
		Type: m.Type, Headers: m.Headers}
}

// scan visits the messages that a query may find: by its ids where it names them, otherwise all of
// the range.
func (in *Inspector) scan(
	ctx context.Context, by auth.Caller, q *query.Query, r store.Range, visit func(store.Listed) (bool, error),
) error {
	ids, only := q.IDs()
	if !only {
		return in.Store.Scan(ctx, r, yielding(ctx, in, visit))
	}
	for _, id := range ids {
		all, err := in.Store.Find(ctx, id)
		if err != nil {
			return err
		}
		for _, l := range all {
			if _, seq, _ := l.Key.Parts(); !by.Sees(l.Record.Queue) || !r.Has(seq) {
				continue
			}
			if more, err := visit(l); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

const (
	// workFor is how long a search works before it rests for restFor times as long.
	workFor = 5 * time.Millisecond
	restFor = 2
)

// yielding makes visit rest in between while messages are being retried.
func yielding[T any](
	ctx context.Context, in *Inspector, visit func(T) (bool, error),
) func(T) (bool, error) {
	if in.Busy == nil {
		return visit
	}
	began := time.Now()
	return func(l T) (bool, error) {
		if worked := time.Since(began); worked >= workFor {
			if in.Busy() {
				select {
				case <-ctx.Done():
				case <-time.After(restFor * worked):
				}
			}
			began = time.Now()
		}
		return visit(l)
	}
}

// search waits for its turn where a query is about bodies.
func (in *Inspector) search(ctx context.Context, by auth.Caller, q *query.Query) (leave func(), err error) {
	if !q.NeedsBody() {
		return func() {}, nil
	}
	return in.searching.Enter(ctx, by.ID(), 1)
}

// Find visits every message that a query finds, in the order of when it was parked or is due;
// only those that were added up to a number (see NewestNumber of package store).
func (in *Inspector) Find(
	ctx context.Context, by auth.Caller, text string, upto uint64, visit func(store.Listed) (bool, error),
) error {
	q, err := in.parse(by, text)
	if err != nil {
		return err
	}
	n, err := in.narrow(ctx, by, q)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.Upto, r.Body = &upto, q.NeedsBody()
	return in.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
		if !in.match(ctx, by, n, &l) {
			return true, nil
		}
		return visit(l)
	})
}

const (
	// LargeBody is the size in bytes above which a body is read only for its own visit.
	LargeBody = 256 << 10
	// visitedAtOnce and bytesAtOnce bound the messages that are read before they are visited, and
	// readAtOnce those that are looked at.
	visitedAtOnce = 500
	bytesAtOnce   = 1 << 20
	readAtOnce    = 20_000
)

// FindWithBodies visits every message that a query finds, with its body, as Find does. It reads a
// few at a time, so that a slow visit keeps the store from nothing; a message that changes
// meanwhile is visited at most once. Each LargeBody is read after hold, and until its release. It refuses who does
// not see bodies whole.
func (in *Inspector) FindWithBodies(
	ctx context.Context, by auth.Caller, text string, hold func() (release func(), err error),
	visit func(store.Listed) error,
) error {
	q, err := in.parse(by, text)
	if err == nil {
		err = in.Whole(by)
	}
	if err != nil {
		return err
	}
	upto, err := in.Store.NewestNumber(ctx)
	if err != nil {
		return err
	}
	n, err := in.narrow(ctx, by, q)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.Upto, r.Body = &upto, true
	_, byID := q.IDs()
	visited := map[uint64]uint64{} // a bit for the number of each
	for more := true; more; {
		more = false
		var page []store.Listed
		read, size := 0, 0
		leave, err := in.search(ctx, by, q)
		if err != nil {
			return err
		}
		err = in.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
			r.After = l.Cursor
			_, seq, _ := l.Key.Parts()
			if bit := uint64(1) << (seq % 64); visited[seq/64]&bit == 0 && in.match(ctx, by, n, &l) {
				visited[seq/64] |= bit
				if l.BodySize > LargeBody {
					l.Record.Message.Body = nil
				}
				page = append(page, l)
				size += len(l.Record.Message.Body)
			}
			read++
			more = !byID && (read == readAtOnce || len(page) == visitedAtOnce || size >= bytesAtOnce)
			return !more, nil
		})
		leave()
		for i := 0; i < len(page) && err == nil; i++ {
			err = in.visitWithBody(ctx, page[i], hold, visit)
			page[i].Record = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *Inspector) visitWithBody(
	ctx context.Context, l store.Listed, hold func() (func(), error), visit func(store.Listed) error,
) error {
	if l.BodySize > LargeBody {
		release, err := hold()
		if err != nil {
			return err
		}
		defer release()
		if l, err = in.Store.Get(ctx, l.Key); errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return visit(l)
}

// Count returns how many messages a query finds; exact is false when not all were looked at, so
// that there may be more.
func (in *Inspector) Count(ctx context.Context, by auth.Caller, text string) (n int64, exact bool, err error) {
	q, err := in.parse(by, text)
	if err != nil {
		return 0, false, err
	}
	if q.OnlyRetried() {
		began := time.Now()
		exact = true
		err = in.eachRetried(ctx, by, q, "", func(store.Listed, string) bool {
			if exact = time.Since(began) <= maxCountTime; exact {
				n++
			}
			return exact
		})
		return n, exact && err == nil, err
	}
	counts, err := in.Store.Counts(ctx)
	if err != nil {
		return 0, false, err
	}
	c, sure, err := in.countStates(ctx, by, q, counts)
	if err != nil {
		return 0, false, err
	}
	if sure {
		return c.Waiting + c.Parked + c.Discarded, true, nil
	}
	return in.countEach(ctx, by, q)
}

// StateCounts are how many messages are in each state.
type StateCounts struct{ Waiting, Parked, Discarded int64 }

// CountStates returns how many messages of each state a query finds, if the store's counts tell: no message is
// looked at.
func (in *Inspector) CountStates(ctx context.Context, by auth.Caller, text string) (StateCounts, bool, error) {
	q, err := in.parse(by, text)
	if err != nil {
		return StateCounts{}, false, err
	}
	counts, err := in.counts(ctx)
	if err != nil {
		return StateCounts{}, false, err
	}
	return in.countStates(ctx, by, q, counts)
}

func (in *Inspector) countStates(
	ctx context.Context, by auth.Caller, q *query.Query, counts []store.QueueCount,
) (StateCounts, bool, error) {
	var c StateCounts
	sure := true
	add := func(queue string, g *store.GroupCount, of StateCounts) {
		for _, s := range []struct {
			state store.State
			n     int64
			sum   *int64
		}{{store.Waiting, of.Waiting, &c.Waiting}, {store.Parked, of.Parked, &c.Parked},
			{store.Discarded, of.Discarded, &c.Discarded}} {
			if s.n == 0 || !by.Sees(queue) {
				continue
			}
			says := q.Says(s.state, queue, g)
			if sure = sure && says != 0; says > 0 {
				*s.sum += s.n
			}
		}
	}
	for _, of := range counts {
		add(of.Queue, nil, StateCounts{of.Waiting, of.Parked, of.Discarded})
	}
	if sure || !q.ByGroup() {
		return c, sure, nil
	}
	groups, err := in.groupsSeen(ctx, by)
	c, sure = StateCounts{}, err == nil
	for i := range groups {
		g := &groups[i]
		add(g.Queue, g, StateCounts{g.Waiting, g.Parked, g.Discarded})
	}
	return c, sure, err
}

// maxCountTime is how long messages are counted one by one.
const maxCountTime = 5 * time.Second

// countEach counts one by one, at most as many as a search looks at.
func (in *Inspector) countEach(ctx context.Context, by auth.Caller, q *query.Query) (n int64, exact bool, err error) {
	narrowed, err := in.narrow(ctx, by, q)
	if err != nil || narrowed.None {
		return 0, err == nil, err
	}
	r := narrowed.Range
	r.NewestFirst, r.Body = true, q.NeedsBody()
	leave, err := in.search(ctx, by, q)
	if err != nil {
		return 0, false, err
	}
	defer leave()
	looked, began := 0, time.Now()
	exact = true
	err = in.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
		if exact = narrowed.Sure || looked < maxLooked && time.Since(began) <= maxCountTime; !exact {
			return false, nil
		}
		looked++
		if in.match(ctx, by, narrowed, &l) {
			n++
		}
		return true, nil
	})
	return n, exact, err
}

// searchIDs finds messages by id, by an index: stored ones, and of others the last past failure.
func (s *search) searchIDs(ctx context.Context, ids []uuid.UUID) error {
	n := s.query.Narrow(s.Now(), nil, nil)
	n.GroupOf = s.Store.GroupOf
	var kept []store.Listed
	for _, id := range ids {
		all, err := s.Store.Find(ctx, id)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(l store.Listed) bool { return !s.by.Sees(l.Record.Queue) })
		if len(all) == 0 {
			last, err := s.lastOf(ctx, s.by, id)
			if err != nil {
				return err
			}
			all = append(all, last...)
		}
		s.page.Looked += int64(len(all))
		kept = append(kept, all...)
	}
	slices.SortStableFunc(kept, func(a, b store.Listed) int { return b.Record.Due.Compare(a.Record.Due) })
	for _, l := range kept {
		if !s.full() && s.match(ctx, s.by, n, &l) {
			s.add(l)
		}
	}
	return nil
}

// lastOf returns the last past failure of a message that the caller may see, or nothing.
func (in *Inspector) lastOf(ctx context.Context, by auth.Caller, id uuid.UUID) ([]store.Listed, error) {
	past, err := in.Store.PastFailures(ctx, id)
	for _, p := range slices.Backward(past) {
		if by.Sees(p.Queue) {
			return []store.Listed{recordOf(p)}, nil
		}
	}
	return nil, err
}

// retried finds the messages of eachRetried.
func (s *search) retried(ctx context.Context, after string) error {
	last, more := "", false
	err := s.eachRetried(ctx, s.by, s.query, after, func(l store.Listed, place string) bool {
		if more = s.full(); more {
			return false
		}
		s.add(l)
		s.page.Looked++
		last = place
		return true
	})
	if more {
		s.page.After = last
	}
	return err
}

// eachRetried visits messages that are in their queue again and have not failed since: those after a
// place, newest first, each with its own place.
func (in *Inspector) eachRetried(
	ctx context.Context, by auth.Caller, q *query.Query, after string,
	visit func(l store.Listed, place string) (more bool),
) error {
	n := q.Narrow(in.Now(), nil, nil)
	n.GroupOf = in.Store.GroupOf
	seen := map[uuid.UUID]bool{}
	skip := after != ""
	return in.Store.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) {
		if err := ctx.Err(); err != nil || seen[p.ID] {
			return true, err
		}
		seen[p.ID] = true
		place := pastFailurePlace(p)
		if skip {
			// The one the page ended at may be forgotten by now; many end at once, in
			// any order.
			skip = place != after && place[:placeTime] >= after[:min(placeTime, len(after))]
			if skip || place == after {
				return true, nil
			}
		}
		l := recordOf(p)
		if p.Ending != store.EndedRetried || !by.Sees(p.Queue) || !in.match(ctx, by, n, &l) {
			return true, nil
		}
		if again, err := in.Store.Find(ctx, p.ID); err != nil || len(again) > 0 {
			return true, err
		}
		return visit(l, place), nil
	})
}

// recordOf is a past failure as a record without a body, in a state that no record has.
func recordOf(p store.PastFailure) store.Listed {
	return store.Listed{Record: &store.Record{ID: p.ID, Queue: p.Queue, State: query.Retried, Due: p.Ended,
		Failures: p.Failures,
		Reason:   p.Reason, Error: p.Error, Policy: p.Policy, FailedAt: p.FailedAt}}
}

// placeTime is how much of a place is the time.
const placeTime = 16

// pastFailurePlace begins with when it ended.
func pastFailurePlace(p store.PastFailure) string {
	return fmt.Sprintf("%016x-%s", p.Ended.UnixMicro(), p.ID)
}
