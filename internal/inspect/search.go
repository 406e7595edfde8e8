package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// mostLooked is how many messages a search looks at when no index leads to those
	// that it finds.
	mostLooked = 100_000
	// longestLook is how long it looks for one page then. The page is short, and its After is
	// where the next one continues; so no request for what is kept takes long.
	longestLook = time.Second
	// lookAhead is how many messages after a full page are searched for one more.
	lookAhead = 1000
)

// Search finds messages, those first that are due the latest, or were parked or retried last. A
// page may be short, even empty, and not be the last.
func (in *Inspector) Search(ctx context.Context, by auth.Caller, text, after string, limit int) (Page, error) {
	q, err := in.parse(by, text)
	if err != nil {
		return Page{}, err
	}
	if limit, err = PageSize(limit); err != nil {
		return Page{}, err
	}
	s := &search{Inspector: in, by: by, query: q, limit: limit, page: Page{Messages: []Message{}}}
	if s.paused, err = Pauses(ctx, in.Store); err != nil {
		return Page{}, err
	}
	if ids, only := q.IDs(); only {
		err = s.searchIDs(ctx, ids)
	} else if q.OnlyRetried() {
		err = s.retried(ctx, after)
	} else {
		err = s.kept(ctx, after)
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
	return query.Parse(text)
}

// search is one page in the making.
type search struct {
	*Inspector
	by     auth.Caller
	query  *query.Query
	limit  int
	paused map[string]QueuePause
	page   Page
}

func (s *search) full() bool { return len(s.page.Messages) >= s.limit }

func (s *search) add(m Message) {
	_, m.Paused = s.paused[m.Queue]
	m.Paused = m.Paused && m.State == Waiting
	s.page.Messages = append(s.page.Messages, m)
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
	r.NewestFirst, r.Body = true, s.query.NeedsBody()
	r.After = place.cursor
	leave, err := s.Inspector.search(ctx, s.by, s.query)
	if err != nil {
		return err
	}
	defer leave()
	began, before, ahead := time.Now(), place.looked, int64(0)
	defer func() { s.page.Looked = place.looked - before + ahead }()
	err = s.Store.Scan(ctx, r, s.yielding(ctx, func(l store.Listed) (bool, error) {
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
			s.add(s.Shown(l))
		}
		return true, nil
	}))
	if errors.Is(err, store.ErrCursor) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

var bounded = fmt.Sprintf("only the latest %d messages were looked at: say more of queue, state, reason or group, or when they were parked or are due", mostLooked)

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
