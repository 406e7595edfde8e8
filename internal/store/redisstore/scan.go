package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	scanPage  = 200     // records that are read at once from a shard
	scanBytes = 1 << 20 // and how much of them, after which it is enough
)

// Scan implements store.Scanner. It merges the pages of all shards; what moves
// meanwhile moves past a page, so those that were visited are noted, a bit for each.
func (s *Store) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	c, err := s.scan(ctx, r)
	if err != nil || c == nil {
		return err
	}
	visited := visited{}
	for {
		p := c.first()
		if p == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		f := p.found[0]
		p.found = p.found[1:]
		if visited.first(f.seq) && r.Upto.Has(f.seq) {
			more, err := visit(f.Listed)
			if err != nil || !more {
				return err
			}
		}
		if err := c.fill(ctx, p); err != nil {
			return err
		}
	}
}

// visited are the numbers of records that were.
type visited map[uint64]uint64

// first notes one, and tells whether it was none before.
func (v visited) first(seq uint64) bool {
	bit := uint64(1) << (seq % 64)
	was := v[seq/64]
	v[seq/64] = was | bit
	return was&bit == 0
}

// cursor is a Scan under way.
type cursor struct {
	s     *Store
	down  bool
	body  bool
	from  string // bounds of Due
	to    string
	which []string // groups, and sets to read
	pages []*page  // of each shard
}

// page is what was read ahead of a shard.
type page struct {
	shard       int
	found       []found
	due, number string // where the next one begins
	last        bool
}

type found struct {
	store.Listed
	due int64
	seq uint64
}

// scan begins one; nil when there is nothing to look at.
func (s *Store) scan(ctx context.Context, r store.Range) (*cursor, error) {
	c := &cursor{s: s, down: r.NewestFirst, body: r.Body, from: "-inf", to: "+inf"}
	if !r.From.IsZero() {
		c.from = bound(r.From)
	}
	if !r.To.IsZero() {
		c.to = bound(r.To)
	}
	var err error
	if c.which, err = s.which(ctx, r); err != nil || c.which == nil {
		return nil, err
	}
	var due int64
	var seq uint64
	if r.After != "" {
		if n, err := fmt.Sscanf(r.After, "%d.%d", &due, &seq); n != 2 || err != nil {
			return nil, fmt.Errorf("%.100q is %w", r.After, store.ErrCursor)
		}
	}
	for shard := range s.Shards {
		p := &page{shard: shard}
		if r.After != "" {
			p.due, p.number = itoa(due), member(s.behind(shard, seq, c.down))
		}
		c.pages = append(c.pages, p)
	}
	var mu sync.Mutex
	return c, s.each(func(shard int) error {
		mu.Lock()
		p := c.pages[shard]
		mu.Unlock()
		return c.fill(ctx, p)
	})
}

// bound leaves out what is due from then on. Kept are microseconds.
func bound(t time.Time) string { return "(" + itoa(t.Add(time.Microsecond-1).UnixMicro()) }

// behind is the first number of a shard that comes behind a record of any shard in the
// order upwards, or downwards the last that does not.
func (s *Store) behind(shard int, seq uint64, down bool) uint64 {
	of, number := s.parts(seq)
	switch {
	case down && shard < of, !down && shard <= of:
		return number + 1
	default:
		return number
	}
}

// which are the arguments of lua/scan.lua from the groups on; nil when nothing can be
// found.
func (s *Store) which(ctx context.Context, r store.Range) ([]string, error) {
	states := "wcpd"
	if r.State != 0 {
		states = map[store.State]string{store.Waiting: "wc", store.Parked: "p", store.Discarded: "d"}[r.State]
	}
	if r.Groups == nil && r.Queues == nil {
		return []string{"0", "", states}, nil
	}
	queues := slices.Compact(slices.Sorted(slices.Values(r.Queues)))
	if r.Groups == nil {
		return sets([]string{"0"}, queues, states), nil
	}
	groups, err := s.groupsOf(ctx, r)
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	which := []string{itoa(len(groups))}
	for id := range groups {
		which = append(which, string(id[:]))
	}
	// A group's waiting records are looked for among their queue's.
	begin := len(which)
	var of []string
	for id, queue := range groups {
		of = append(of, queue)
		for _, state := range states {
			if state == 'p' || state == 'd' {
				which = append(which, "g:"+string(state)+":"+string(id[:]))
			}
		}
	}
	if states[0] == 'w' {
		which = sets(which, slices.Compact(slices.Sorted(slices.Values(of))), "wc")
	}
	if len(which) == begin {
		return nil, nil
	}
	return which, nil
}

// sets adds the names of those of queues in some states; nil when there are none.
func sets(which, queues []string, states string) []string {
	if len(queues) == 0 {
		return nil
	}
	for _, queue := range queues {
		for _, state := range states {
			which = append(which, string(state)+":"+queue)
		}
	}
	return which
}

// groupsOf are the groups of a range that are known, and their queues.
func (s *Store) groupsOf(ctx context.Context, r store.Range) (map[groupID]string, error) {
	of := func() (map[groupID]string, bool) {
		s.groups.mu.Lock()
		defer s.groups.mu.Unlock()
		groups, all := map[groupID]string{}, true
		for _, id := range r.Groups {
			k := s.groups.known[id]
			all = all && k != nil
			if k != nil && (r.Queues == nil || slices.Contains(r.Queues, k.Queue)) {
				groups[id] = k.Queue
			}
		}
		return groups, all
	}
	groups, all := of()
	if all {
		return groups, nil
	}
	if err := s.groups.refresh(ctx, s); err != nil { // another process may know it
		return nil, err
	}
	groups, _ = of()
	return groups, nil
}

// fill reads on in a shard when what was read ahead is used up.
func (c *cursor) fill(ctx context.Context, p *page) error {
	for len(p.found) == 0 && !p.last {
		args := append([]string{flag(c.down), c.from, c.to, p.due, p.number, itoa(scanPage), itoa(scanBytes), flag(c.body)}, c.which...)
		list, err := texts(c.s.do(ctx, p.shard, scriptScan, args...))
		if err != nil {
			return err
		}
		if len(list) < 3 {
			return errors.New("redis: a page of a scan is cut short")
		}
		if p.last, p.due, p.number = list[0] == "1", list[1], list[2]; p.number != "" && !c.down {
			p.number = member(number(p.number) + 1)
		}
		for rest := list[3:]; len(rest) >= 4; rest = rest[4:] {
			f, err := c.s.found(p.shard, number(rest[1]), rest[3], c.body)
			if err != nil {
				return err
			}
			p.found = append(p.found, f)
		}
	}
	return nil
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// found makes a Listed of a record without its group.
func (s *Store) found(shard int, number uint64, value string, body bool) (f found, err error) {
	var r *store.Record
	var size int
	if body {
		r, size, err = store.DecodeRecord([]byte(value), true)
	} else {
		r, size, err = store.DecodeHead([]byte(value))
	}
	if err != nil {
		return f, s.damaged(shard, number, err)
	}
	f.due, f.seq = r.Due.UnixMicro(), s.seq(shard, number)
	f.Listed = store.Listed{Key: store.MakeKey(r.ID, f.seq), Cursor: fmt.Sprintf("%d.%d", f.due, f.seq), Record: r, BodySize: size}
	return f, nil
}

// first is the page whose record comes next; nil when none does.
func (c *cursor) first() (first *page) {
	for _, p := range c.pages {
		if len(p.found) == 0 {
			continue
		}
		if first == nil || c.before(p.found[0], first.found[0]) {
			first = p
		}
	}
	return first
}

func (c *cursor) before(a, b found) bool {
	order := cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.seq, b.seq))
	return order < 0 != c.down
}

// Find implements store.Scanner.
func (s *Store) Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var mu sync.Mutex
	var all []found
	err = s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptFind, idText(id)))
		mu.Lock()
		defer mu.Unlock()
		for ; len(list) >= 2; list = list[2:] {
			f, err := s.found(shard, number(list[0]), list[1][min(groupSize, len(list[1])):], true)
			if err != nil {
				return err
			}
			all = append(all, f)
		}
		return err
	})
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.seq, b.seq) })
	var listed []store.Listed
	for _, f := range all {
		listed = append(listed, f.Listed)
	}
	return listed, err
}

// Get implements store.Scanner.
func (s *Store) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	done, err := s.use(ctx)
	if err != nil {
		return store.Listed{}, err
	}
	defer done()
	id, seq, ok := key.Parts()
	if !ok {
		return store.Listed{}, store.ErrNotFound
	}
	shard, n := s.parts(seq)
	value, err := s.get(ctx, shard, "m:"+member(n))
	if err != nil {
		return store.Listed{}, err
	}
	if len(value) < groupSize {
		return store.Listed{}, store.ErrNotFound
	}
	f, err := s.found(shard, n, value[groupSize:], true)
	if err == nil && f.Record.ID != id {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Listed{}, err
	}
	return f.Listed, nil
}

// get is the value of a key; "" when there is none.
func (s *Store) get(ctx context.Context, shard int, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	value, err := s.client.Do(ctx, s.client.B().Get().Key(s.key(shard, name)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return value, s.failed(err)
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, f store.Filter) (store.Page, error) {
	return store.List(ctx, s, f)
}

// NewestKey implements store.Changer.
func (s *Store) NewestKey(ctx context.Context) (store.Bound, error) {
	bound := make(store.Bound, s.Shards)
	err := s.each(func(shard int) error {
		text, err := s.get(ctx, shard, "seq")
		n := number(text)
		bound[shard] = s.seq(shard, n)
		s.seen(n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return bound, nil
}
