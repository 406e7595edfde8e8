package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	scanPage  = 200     // records read at once
	scanBytes = 1 << 20 // bytes after which a page ends
)

// Scan implements store.Scanner. A record may move to a later page meanwhile, so visited
// ones are remembered, with a bit for each.
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
	for !c.last {
		page, err := c.page(ctx)
		if err != nil {
			return err
		}
		for _, f := range page {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !visited.first(f.seq) || !r.Has(f.seq) {
				continue
			}
			if more, err := visit(f.Listed); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// visited has a bit for the number of each record that was visited.
type visited map[uint64]uint64

func (v visited) first(seq uint64) bool {
	bit := uint64(1) << (seq % 64)
	was := v[seq/64]
	v[seq/64] = was | bit
	return was&bit == 0
}

type cursor struct {
	s           *Store
	down        bool
	body        bool
	from        string
	to          string
	which       []string // groups and sets to read
	due, number string   // where the next page begins
	last        bool
}

type found struct {
	store.Listed
	seq uint64
}

// scan returns the cursor of a range; nil when there is nothing to read.
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
	if r.After == "" {
		return c, nil
	}
	var due int64
	var seq uint64
	if n, err := fmt.Sscanf(r.After, "%d.%d", &due, &seq); n != 2 || err != nil {
		return nil, fmt.Errorf("%.100q is %w", r.After, store.ErrCursor)
	}
	if !c.down {
		seq++
	}
	c.due, c.number = itoa(due), member(seq)
	return c, nil
}

// bound returns the end, for ZCOUNT, of what is due before t: Due is stored in microseconds.
func bound(t time.Time) string { return "(" + itoa(t.Add(time.Microsecond-1).UnixMicro()) }

// which returns the arguments of lua/scan.lua from the groups on; nil when nothing can be
// found.
func (s *Store) which(ctx context.Context, r store.Range) ([]string, error) {
	states := ""
	for i, letters := range []string{"wc", "p", "d"} {
		if r.Of(store.Waiting + store.State(i)) {
			states += letters
		}
	}
	if states == "" {
		return nil, nil
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
	for id := range groups {
		for _, state := range strings.TrimPrefix(states, "wc") {
			which = append(which, "g:"+string(state)+":"+string(id[:]))
		}
	}
	if states[0] == 'w' { // a group's waiting records are searched among their queue's
		which = sets(which, slices.Compact(slices.Sorted(maps.Values(groups))), "wc")
	}
	return which, nil
}

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

// groupsOf returns the known groups of a range, with their queues.
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
	if err := s.refreshGroups(ctx); err != nil { // another process may know it
		return nil, err
	}
	groups, _ = of()
	return groups, nil
}

func (c *cursor) page(ctx context.Context) (page []found, err error) {
	args := append([]string{flag(c.down), c.from, c.to, c.due, c.number, itoa(scanPage), itoa(scanBytes), flag(c.body)},
		c.which...)
	list, err := texts(c.s.do(ctx, scriptScan, args...))
	if err != nil {
		return nil, err
	}
	if len(list) < 3 {
		return nil, errors.New("redis: a page of a scan is cut short")
	}
	if c.last, c.due, c.number = list[0] == "1", list[1], list[2]; c.number != "" && !c.down {
		c.number = member(number(c.number) + 1)
	}
	for rest := list[3:]; len(rest) >= 4; rest = rest[4:] {
		if f, err := c.s.found(number(rest[1]), rest[3], c.body); err == nil { // found notes an error
			page = append(page, f)
		}
	}
	return page, nil
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// found decodes a record without its group. It notes an error, which is about this record
// alone.
func (s *Store) found(number uint64, value string, body bool) (f found, err error) {
	var r *store.Record
	var size int
	if body {
		r, size, err = store.DecodeRecord([]byte(value), true)
	} else {
		r, size, err = store.DecodeHead([]byte(value))
	}
	if err != nil {
		return f, s.damaged(number, err)
	}
	cursor := fmt.Sprintf("%d.%d", r.Due.UnixMicro(), number)
	return found{store.Listed{Key: store.MakeKey(r.ID, number), Cursor: cursor, Record: r, BodySize: size}, number}, nil
}

func (s *Store) Find(ctx context.Context, id uuid.UUID) (all []store.Listed, err error) {
	list, err := texts(s.call(ctx, scriptFind, idText(id)))
	if err != nil {
		return nil, err
	}
	var some []found
	var unreadable error
	for ; len(list) >= 2; list = list[2:] {
		f, err := s.found(number(list[0]), list[1][min(groupSize, len(list[1])):], true)
		if err != nil {
			unreadable = err
			continue
		}
		some = append(some, f)
	}
	if len(some) == 0 {
		return nil, unreadable
	}
	slices.SortFunc(some, func(a, b found) int { return cmp.Compare(a.seq, b.seq) })
	for _, f := range some {
		all = append(all, f.Listed)
	}
	return all, nil
}

func (s *Store) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	done, err := s.use(ctx)
	if err != nil {
		return store.Listed{}, err
	}
	defer done()
	id, n, ok := key.Parts()
	if !ok {
		return store.Listed{}, store.ErrNotFound
	}
	value, err := s.get(ctx, "m:"+member(n))
	if err != nil {
		return store.Listed{}, err
	}
	if len(value) < groupSize {
		return store.Listed{}, store.ErrNotFound
	}
	f, err := s.found(n, value[groupSize:], true)
	if err == nil && f.Record.ID != id {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Listed{}, err
	}
	return f.Listed, nil
}

// get returns the value of a key; "" when there is none.
func (s *Store) get(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	value, err := s.client().Do(ctx, s.client().B().Get().Key(s.key(name)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return value, s.wrapError(err)
}

func (s *Store) NewestNumber(ctx context.Context) (uint64, error) {
	text, err := s.get(ctx, "seq")
	return number(text), err
}

var pastKept = itoa(store.PastFailuresKept)

func pastFailure(r *store.Record, ended time.Time, how store.Ending) string {
	return rueidis.BinaryString(store.AppendPastFailure(make([]byte, 0, 160), store.PastFailureOf(r, ended, how)))
}

func (s *Store) PastFailures(ctx context.Context, id uuid.UUID) (all []store.PastFailure, err error) {
	list, err := texts(s.call(ctx, scriptPast, idText(id)))
	for _, text := range list {
		p, err := store.ReadPastFailure(text)
		if err != nil {
			return nil, s.wrapError(err)
		}
		all = append(all, p)
	}
	return all, err
}

const pastPage = 500

func (s *Store) EachPastFailure(ctx context.Context, visit func(store.PastFailure) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	for from := "+"; ; {
		list, err := s.pastFrom(ctx, from)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, e := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			p, err := store.ReadPastFailure(e.FieldValues["p"])
			if err != nil {
				return s.wrapError(err)
			}
			if more, err := visit(p); err != nil || !more {
				return err
			}
			from = "(" + e.ID
		}
	}
}

func (s *Store) pastFrom(ctx context.Context, from string) ([]rueidis.XRangeEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	list, err := s.client().Do(ctx,
		s.client().B().Xrevrange().Key(s.key("past")).End(from).Start("-").Count(pastPage).Build()).AsXRange()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return list, s.wrapError(err)
}
