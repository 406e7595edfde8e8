package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// AddListed implements store.CopyTarget.
func (s *Store) AddListed(ctx context.Context, records []store.Listed) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	b := batch{groups: groupChanges{}}
	for _, l := range records {
		n, err := l.Number()
		if err != nil {
			return err
		}
		if _, err := b.put(s, l.Record, itoa(n)); err != nil {
			return err
		}
	}
	if b.n == 0 {
		return nil
	}
	if err := s.checkMemory(ctx, b.size, 1); err != nil {
		return err
	}
	for some := range slices.Chunk(b.records, maxPerScript*listedArgs) {
		args := append(append([]string{itoa(len(some) / listedArgs)}, some...), b.groups.args()...)
		if _, err := s.write(ctx, scriptAddListed, args...); err != nil {
			return err
		}
	}
	return nil
}

// listedArgs are the arguments of lua/addlisted.lua for each record.
const listedArgs = 5

// SetMetadata implements store.CopyTarget.
func (s *Store) SetMetadata(ctx context.Context, b store.Metadata) error {
	if err := s.addLedger(ctx, b.Ledger); err != nil {
		return err
	}
	seen, err := s.unseen(ctx, b.Groups)
	if err != nil {
		return err
	}
	floor := b.Newest + 1
	if _, err := s.write(ctx, scriptMetadata, append([]string{itoa(floor)}, seen.args()...)...); err != nil {
		return err
	}
	return s.addPast(ctx, b.Past)
}

// addLedger makes up for what came and went elsewhere.
func (s *Store) addLedger(ctx context.Context, lines []store.LedgerLine) error {
	now, err := s.Ledger(ctx)
	if err != nil {
		return err
	}
	is := map[string]store.Sums{}
	for _, l := range now {
		is[l.Queue] = l.Sums
	}
	var args []string
	for _, l := range lines {
		sums := is[l.Queue]
		for _, as := range store.Flows {
			if more := l.Sums[as] - sums[as]; more != 0 {
				args = append(args, columns[as:as+1]+l.Queue, itoa(more))
			}
		}
	}
	_, err = s.write(ctx, scriptAddSums, append([]string{itoa(len(args) / 2)}, args...)...)
	return err
}

// unseen are the failures of groups that were seen elsewhere, and not here.
func (s *Store) unseen(ctx context.Context, all []store.GroupCount) (groupChanges, error) {
	here, err := s.readGroups(ctx)
	if err != nil {
		return nil, err
	}
	hour := time.Now().Unix() / 3600
	unseen := groupChanges{}
	for _, g := range all {
		is := here[g.ID]
		if is == nil {
			if g.ID == errorgroup.Other(g.Queue, 0).ID {
				continue // its records are in groups of their own here
			}
			is = &knownGroup{}
		}
		saw := unseen.of(g.Group)
		saw.reasons |= g.Reasons
		for _, at := range []time.Time{g.First, g.Last} {
			if !at.IsZero() {
				saw.at(at.Unix() / 60)
			}
		}
		for i, n := range g.Hours {
			at := hour - 23 + int64(i)
			if more := n - is.hours[at]; more > 0 {
				saw.hours[at] = more
			}
		}
	}
	return unseen, nil
}

// addPast adds the history of another store, but for what was added of it before.
func (s *Store) addPast(ctx context.Context, newestFirst []store.PastFailure) error {
	before, err := s.client().Do(ctx, s.client().B().Xlen().Key(s.key("past")).Build()).AsInt64()
	if err != nil {
		return s.wrapError(err)
	}
	all := slices.Clone(newestFirst)
	slices.Reverse(all)
	for some := range slices.Chunk(all[min(int(before), len(all)):], maxPerScript) {
		args := []string{pastKept, itoa(len(some))}
		for _, p := range some {
			args = append(args, idText(p.ID), pastFailureText(p))
		}
		if _, err := s.write(ctx, scriptAddPast, args...); err != nil {
			return err
		}
	}
	return nil
}
