package console

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// mostLooked is how many messages a search looks at when no index leads to those
	// it means.
	mostLooked = 100_000
	// longestLook is how long it looks for one page then: the page has an After, and
	// the next one goes on there. So an answer streams, and ends with its caller.
	longestLook = time.Second
	// lookAhead is how far a full page looks for whether there is more.
	lookAhead = 1000
)

// Search finds messages, newest first: those that fail, park and are due the
// latest. A page may be short, even empty, and not be the last.
func (c *Console) Search(ctx context.Context, by auth.Caller, text, after string, limit int) (Page, error) {
	q, err := c.parse(by, text)
	if err != nil {
		return Page{}, err
	}
	if limit == 0 {
		limit = 100
	}
	if limit < 1 || limit > 1000 {
		return Page{}, fmt.Errorf("%w: limit is %d, and must be from 1 to 1,000", ErrInvalid, limit)
	}
	s := &search{Console: c, by: by, query: q, limit: limit, page: Page{Messages: []Message{}}}
	if s.held, err = c.holds(ctx); err != nil {
		return Page{}, err
	}
	if ids, only := q.IDs(); only {
		err = s.named(ctx, ids)
	} else if slices.Equal(q.States(), []store.State{query.Returned}) {
		err = s.returned(ctx, after)
	} else {
		err = s.kept(ctx, after)
	}
	if err != nil {
		return Page{}, err
	}
	return s.page, nil
}

func (c *Console) parse(by auth.Caller, text string) (*query.Query, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	return query.Parse(text)
}

// search is one page in the making.
type search struct {
	*Console
	by    auth.Caller
	query *query.Query
	limit int
	held  map[string]Hold
	page  Page
}

func (s *search) full() bool { return len(s.page.Messages) >= s.limit }

func (s *search) add(m Message) {
	_, m.Held = s.held[m.Queue]
	m.Held = m.Held && m.State == Waiting
	s.page.Messages = append(s.page.Messages, m)
}

// kept finds what the store keeps.
func (s *search) kept(ctx context.Context, after string) error {
	n, err := s.narrow(ctx, s.by, s.query)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.NewestFirst, r.Body = true, s.query.NeedsBody()
	place, err := readPlace(after)
	if err != nil {
		return err
	}
	r.After = place.cursor
	began, before, ahead := time.Now(), place.looked, int64(0)
	defer func() { s.page.Looked = place.looked - before + ahead }()
	return s.Store.Scan(ctx, r, func(l store.Listed) (bool, error) {
		switch {
		case n.Sure:
		case place.looked+ahead >= mostLooked:
			s.page.Bounded = bounded
			return false, nil
		case place.looked > before && time.Since(began) > longestLook:
			s.page.After = place.String()
			return false, nil
		}
		match := n.Match(&l, s.decoded(ctx, &l))
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
			s.add(s.shown(l))
		}
		return true, nil
	})
}

var bounded = fmt.Sprintf("only the newest %d messages were looked at: say more of queue, state or group, or when they were parked or are due", mostLooked)

// named finds by id, which an index knows: kept ones, else how they ended.
func (s *search) named(ctx context.Context, ids []uuid.UUID) error {
	n := s.query.Narrow(s.Now(), nil, nil)
	n.GroupOf = s.Store.GroupOf
	var kept []store.Listed
	for _, id := range ids {
		all, err := s.Store.Find(ctx, id)
		if err != nil {
			return err
		}
		s.page.Looked += int64(len(all))
		kept = append(kept, all...)
		if len(all) > 0 {
			continue
		}
		past, err := s.Store.Past(ctx, id)
		if err != nil {
			return err
		}
		if len(past) > 0 {
			kept = append(kept, passed(past[len(past)-1]))
		}
	}
	slices.SortStableFunc(kept, func(a, b store.Listed) int { return b.Record.Due.Compare(a.Record.Due) })
	for _, l := range kept {
		if s.by.Sees(l.Record.Queue) && !s.full() && n.Match(&l, s.decoded(ctx, &l)) {
			s.add(s.shown(l))
		}
	}
	return nil
}

// returned finds messages that are back in their queue and were not seen since.
func (s *search) returned(ctx context.Context, after string) error {
	n := s.query.Narrow(s.Now(), nil, nil)
	n.GroupOf = s.Store.GroupOf
	seen := map[uuid.UUID]bool{}
	skip := after != ""
	return s.Store.Returned(ctx, func(p store.Passage) (bool, error) {
		at := passagePlace(p)
		if skip {
			// A page ends at a message that may be forgotten by now.
			skip = at != after && at > after
			seen[p.ID] = true
			return true, ctx.Err()
		}
		s.page.Looked++
		l := passed(p)
		if seen[p.ID] || p.Ending != store.EndedReturned || !s.by.Sees(p.Queue) || !n.Match(&l, nothing) {
			seen[p.ID] = true
			return true, ctx.Err()
		}
		seen[p.ID] = true
		if again, err := s.Store.Find(ctx, p.ID); err != nil || len(again) > 0 {
			return true, err
		}
		if s.full() {
			return false, nil
		}
		s.add(s.shown(l))
		s.page.After = at
		return true, nil
	})
}

func nothing() *decode.Result { return &decode.Result{} }

// passed is a passage as a record without a body, in a state that no record has.
func passed(p store.Passage) store.Listed {
	return store.Listed{Record: &store.Record{ID: p.ID, Queue: p.Queue, State: query.Returned, Due: p.Ended, Attempt: p.Attempt,
		Reason: p.Reason, Error: p.Error, Policy: p.Policy, FailedAt: p.FailedAt}}
}

// passagePlace orders passages by when they ended.
func passagePlace(p store.Passage) string {
	return fmt.Sprintf("%016x-%s", p.Ended.UnixMicro(), p.ID)
}

// place is where a search goes on, and how many it has looked at before.
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

// narrow asks the store what it has, as far as the caller may see it.
func (c *Console) narrow(ctx context.Context, by auth.Caller, q *query.Query) (*query.Narrowed, error) {
	counts, err := c.Store.Counts(ctx)
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
		if groups, err = c.groupsSeen(ctx, by); err != nil {
			return nil, err
		}
	}
	n := q.Narrow(c.Now(), names, groups)
	n.GroupOf = c.Store.GroupOf
	return n, nil
}

func (c *Console) groupsSeen(ctx context.Context, by auth.Caller) ([]store.GroupCount, error) {
	all, err := c.Store.Groups(ctx)
	return slices.DeleteFunc(all, func(g store.GroupCount) bool { return !by.Sees(g.Queue) }), err
}

// decoded reads the body, when it is asked.
func (c *Console) decoded(ctx context.Context, l *store.Listed) func() *decode.Result {
	return func() *decode.Result {
		return c.Decoder.Decode(ctx, encoded(l.Record, l.Record.Message.Body, l.Record.Message.Headers))
	}
}

// find visits every message that a query means, those that failed first before the
// others; with upto, only what had been added then (see store.Changer.NewestKey).
func (c *Console) find(ctx context.Context, by auth.Caller, text string, upto uint64, body bool, visit func(store.Listed) (bool, error)) error {
	q, err := c.parse(by, text)
	if err != nil {
		return err
	}
	n, err := c.narrow(ctx, by, q)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.Upto, r.Body = upto, body || q.NeedsBody()
	return c.Store.Scan(ctx, r, func(l store.Listed) (bool, error) {
		if !n.Match(&l, c.decoded(ctx, &l)) {
			return true, nil
		}
		return visit(l)
	})
}

// Count is how many messages a query means; exact is false when there may be more
// than were looked at.
func (c *Console) Count(ctx context.Context, by auth.Caller, text string) (n int64, exact bool, err error) {
	q, err := c.parse(by, text)
	if err != nil {
		return 0, false, err
	}
	counts, err := c.Store.Counts(ctx)
	if err != nil {
		return 0, false, err
	}
	sure := true
	add := func(state store.State, queue string, g *store.GroupCount, of int64) {
		if of == 0 || !by.Sees(queue) {
			return
		}
		says := q.Says(state, queue, g)
		if sure = sure && says != 0; says > 0 {
			n += of
		}
	}
	for _, of := range counts {
		add(store.Waiting, of.Queue, nil, of.Waiting)
		add(store.Parked, of.Queue, nil, of.Parked)
		add(store.Discarded, of.Queue, nil, of.Discarded)
	}
	if sure {
		return n, true, nil
	}
	if q.ByGroup() {
		groups, err := c.groupsSeen(ctx, by)
		if err != nil {
			return 0, false, err
		}
		n, sure = 0, true
		for i := range groups {
			g := &groups[i]
			add(store.Waiting, g.Queue, g, g.Waiting)
			add(store.Parked, g.Queue, g, g.Parked)
			add(store.Discarded, g.Queue, g, g.Discarded)
		}
		if sure {
			return n, true, nil
		}
	}
	return c.countOne(ctx, by, q)
}

// countOne counts one by one, as far as a search looks.
func (c *Console) countOne(ctx context.Context, by auth.Caller, q *query.Query) (n int64, exact bool, err error) {
	in, err := c.narrow(ctx, by, q)
	if err != nil || in.None {
		return 0, err == nil, err
	}
	r := in.Range
	r.NewestFirst, r.Body = true, q.NeedsBody()
	looked := 0
	exact = true
	err = c.Store.Scan(ctx, r, func(l store.Listed) (bool, error) {
		if exact = in.Sure || looked < mostLooked; !exact {
			return false, nil
		}
		looked++
		if in.Match(&l, c.decoded(ctx, &l)) {
			n++
		}
		return true, nil
	})
	return n, exact, err
}
