package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

const columns = "iwpdrfgmhxnuq"

func (s *Store) Ledger(ctx context.Context) ([]store.LedgerLine, error) { return s.lines(ctx, "0") }

// Recount implements store.Bookkeeper. It counts kept records by the sets that they are in.
func (s *Store) Recount(ctx context.Context) ([]store.LedgerLine, error) { return s.lines(ctx, "1") }

func (s *Store) lines(ctx context.Context, recount string) ([]store.LedgerLine, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.flushUnstored(ctx); err != nil {
		return nil, err
	}
	list, err := texts(s.do(ctx, scriptLedger, recount))
	if err != nil {
		return nil, err
	}
	by := store.SumsBy{}
	for i := 0; i+1 < len(list); i += 2 {
		by.Of(list[i][1:])[strings.Index(columns, list[i][:1])] += score(list[i+1])
	}
	return store.Lines(by), nil
}

// CountUnstored implements store.Bookkeeper. The counts are written within a second.
func (s *Store) CountUnstored(queue string, as store.Column, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := s.unstored.Of(queue)
	sums[store.In] += n
	sums[as] += n
}

// flushUnstored writes those counts. When the answer is lost they may be counted twice, on both
// sides together.
func (s *Store) flushUnstored(ctx context.Context) error {
	s.mu.Lock()
	took := s.unstored
	s.unstored = store.SumsBy{}
	s.mu.Unlock()
	var args []string
	for queue, sums := range took {
		for as, n := range sums {
			if n != 0 {
				args = append(args, columns[as:as+1]+queue, itoa(n))
			}
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, err := s.do(ctx, scriptAddSums, append([]string{itoa(len(args) / 2)}, args...)...)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for queue, sums := range took {
			s.unstored.Of(queue).Add(sums)
		}
	}
	return err
}

// groups is what this process knows of groups: enough to choose the group of a new failure. Redis has the counts. A
// stored record names its group, so that it is removed from the same one whatever other processes know.
type groups struct {
	mu       sync.Mutex
	known    map[groupID]*knownGroup
	ordinary int   // how many are not a queue's other errors
	swept    int64 // the hour in which old ones were last forgotten
	like     store.Record
	last     errorgroup.Group // of like
}

type knownGroup struct {
	errorgroup.Group
	store.Tally
}

// of returns the group in which to count a new record. There may be a few groups more than the
// limit, since other processes learn of new ones within a minute.
func (g *groups) of(r *store.Record) errorgroup.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := store.GroupFor(g.own(r), g.find, g.ordinary < store.GroupsKept)
	if g.known[of.ID] == nil {
		g.known[of.ID] = &knownGroup{Group: of}
		if of.ID == g.last.ID {
			g.ordinary++
		}
	}
	g.known[of.ID].Kept[r.State]++
	return of
}

func (g *groups) find(id groupID) (known, inUse bool) {
	k := g.known[id]
	return k != nil, k != nil && k.Any()
}

// learn replaces the known groups. The caller holds mu.
func (g *groups) learn(all map[groupID]*knownGroup) {
	g.known, g.ordinary = all, 0
	for id, k := range all {
		if id != errorgroup.Other(k.Queue, 0).ID {
			g.ordinary++
		}
	}
}

// own returns a record's own group. Most records of a batch are alike.
func (g *groups) own(r *store.Record) errorgroup.Group {
	l := &g.like
	if l.Queue != r.Queue || l.Reason != r.Reason || l.Error != r.Error || l.Message.Type != r.Message.Type ||
		g.last.ID == (groupID{}) {
		l.Queue, l.Reason, l.Error, l.Message.Type = strings.Clone(r.Queue), strings.Clone(r.Reason),
			strings.Clone(r.Error), strings.Clone(r.Message.Type)
		g.last = l.Group()
	}
	return g.last
}

func (s *Store) GroupOf(r *store.Record) errorgroup.ID {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	return store.GroupFor(s.groups.own(r), s.groups.find, true).ID
}

type groupChanges map[groupID]*knownGroup

func (all groupChanges) of(g errorgroup.Group) *knownGroup {
	if all[g.ID] == nil {
		all[g.ID] = &knownGroup{Group: g}
	}
	return all[g.ID]
}

// args returns the arguments of notegroups in lua/records.lua.
func (all groupChanges) args() []string {
	args := []string{itoa(len(all))}
	for id, s := range all {
		var hours []string
		for hour, n := range s.Hours.All() {
			hours = append(hours, itoa(hour), itoa(n))
		}
		args = append(args, string(id[:]), string(store.AppendGroup(nil, s.Group)), itoa(int(s.Reasons)), itoa(s.First),
			itoa(s.Last), itoa(len(hours)/2))
		args = append(args, hours...)
	}
	return args
}

// read adds what notegroups wrote.
func (k *knownGroup) read(text string) error {
	fields := strings.Fields(text)
	if len(fields) < 3 {
		return fmt.Errorf("a group's times are %q", text)
	}
	first, _ := strconv.ParseInt(fields[0], 10, 64)
	last, _ := strconv.ParseInt(fields[1], 10, 64)
	k.Seen(first)
	k.Seen(last)
	k.Reasons |= store.Reasons(number(fields[2]))
	for _, field := range fields[3:] {
		hour, n, _ := strings.Cut(field, ":")
		at, err := strconv.ParseInt(hour, 10, 64)
		if err != nil {
			return fmt.Errorf("a group's times are %q", text)
		}
		k.Hours.Add(at, int64(number(n)))
	}
	return nil
}

// refreshGroups reads all groups, and forgets old ones once an hour.
func (s *Store) refreshGroups(ctx context.Context) error {
	g := &s.groups
	all, err := s.readGroups(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	var old []string
	g.mu.Lock()
	if hour := now.Unix() / 3600; hour != g.swept {
		g.swept = hour
		for id, k := range all {
			if !k.Listed(now) {
				old = append(old, string(id[:]))
				delete(all, id)
			}
		}
	}
	g.learn(all)
	g.mu.Unlock()
	return s.ungroup(ctx, store.ADayBefore(now), old)
}

// ungroup forgets those of the old groups that have not failed since.
func (s *Store) ungroup(ctx context.Context, since int64, old []string) error {
	for some := range slices.Chunk(old, maxPerScript) {
		if _, err := s.do(ctx, scriptUngroup, append([]string{itoa(since)}, some...)...); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) readGroups(ctx context.Context) (map[groupID]*knownGroup, error) {
	all := map[groupID]*knownGroup{}
	m, err := s.do(ctx, scriptGroups)
	if err != nil {
		return nil, err
	}
	lists, err := m.ToArray()
	if err != nil || len(lists) != 3 {
		return nil, fmt.Errorf("redis: reading the groups: %d lists, %w", len(lists), err)
	}
	for what, list := range lists {
		fields, err := list.AsStrSlice()
		if err != nil {
			return nil, s.wrapError(err)
		}
		for i := 0; i+1 < len(fields); i += 2 {
			if err := addGroup(all, what, fields[i], fields[i+1]); err != nil {
				return nil, s.wrapError(err)
			}
		}
	}
	return all, nil
}

// addGroup adds a field of the hashes :groups, :groups:kept and :groups:seen.
func addGroup(all map[groupID]*knownGroup, what int, field, value string) error {
	if len(field) < groupSize {
		return fmt.Errorf("a group is %q", field)
	}
	id := groupID([]byte(field[len(field)-groupSize:]))
	if all[id] == nil {
		all[id] = &knownGroup{Group: errorgroup.Group{ID: id}}
	}
	k := all[id]
	switch what {
	case 0:
		g, err := store.ReadGroup(id, []byte(value))
		k.Group = g
		return err
	case 1:
		n, err := strconv.ParseInt(value, 10, 64)
		if state := strings.Index(letters, field[:1]); state > 0 {
			k.Kept[state] += n
		}
		return err
	default:
		return k.read(value)
	}
}

func (s *Store) Groups(ctx context.Context) ([]store.GroupCount, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	notes, err := store.GroupNotes(ctx, s)
	if err != nil {
		return nil, err
	}
	all, err := s.readGroups(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var counts []store.GroupCount
	for _, k := range all {
		if k.Listed(now) {
			counts = append(counts, k.Count(k.Group, notes[k.ID.String()], now))
		}
	}
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	s.groups.learn(all)
	return counts, nil
}
