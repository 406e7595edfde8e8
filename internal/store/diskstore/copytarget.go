package diskstore

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// AddListed implements store.CopyTarget.
func (s *Store) AddListed(ctx context.Context, records []store.Listed) error {
	done, err := s.beginChange(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.adding.RLock()
	defer s.adding.RUnlock()
	size := 0
	for _, l := range records {
		size += sizeOf([]*store.Record{l.Record})
	}
	if err := s.checkSpace(size, s.reserve); err != nil {
		return err
	}
	c := s.newWriteBatch(size)
	defer c.close()
	var keys [][]byte
	for _, l := range records {
		seq, err := l.Number()
		if err != nil {
			return err
		}
		there, err := s.get(idKey(l.Record.ID, seq))
		if err != nil {
			return err
		}
		if there != nil {
			continue
		}
		key := keyOf(l.Record, seq)
		if err := c.put(key, l.Record); err != nil {
			return err
		}
		c.count(store.In, l.Record.Queue, 1)
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil
	}
	if err := c.batch.Merge(keySeq, binary.AppendVarint(nil, int64(len(keys))), nil); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.added(keys)
	return nil
}

// SetMetadata implements store.CopyTarget.
func (s *Store) SetMetadata(ctx context.Context, b store.Metadata) error {
	done, err := s.beginChange(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.adding.Lock()
	defer s.adding.Unlock()
	c := s.newWriteBatch(0)
	defer c.close()
	records := c.addLedger(b.Ledger)
	c.addGroups(b.Groups)
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	newest := max(seq, int64(b.Newest))
	if err := c.batch.Merge(keySeq, binary.AppendVarint(nil, newest-seq), nil); err != nil {
		return err
	}
	// In the same batch: see loadLedger.
	if err := c.batch.Set(keyOpened, binary.AppendVarint(nil, newest-records), nil); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.seq.Store(max(s.seq.Load(), uint64(newest)))
	s.history.addPast(b.Past)
	return nil
}

// addLedger makes up for what came and went elsewhere, and tells how many records
// were ever added then.
func (c *writeBatch) addLedger(lines []store.LedgerLine) (records int64) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, l := range lines {
		for _, as := range store.Flows {
			if more := l.Sums[as] - c.s.queue(l.Queue).kept[as]; more != 0 {
				c.count(as, l.Queue, more)
			}
		}
	}
	for name, q := range c.s.queues {
		sums := q.kept
		if more := c.counts[name]; more != nil {
			sums.Add(more)
		}
		records += sums.Records()
	}
	return records
}

// addGroups makes up for the failures that were seen elsewhere.
func (c *writeBatch) addGroups(all []store.GroupCount) {
	c.s.groups.mu.Lock()
	defer c.s.groups.mu.Unlock()
	hour := time.Now().Unix() / 3600
	for _, g := range all {
		state := c.s.groups.known[g.ID]
		if g.ID != errorgroup.Other(g.Queue, 0).ID {
			state = c.s.groups.of(g.Group)
		}
		if state == nil {
			continue // its records are in groups of their own here
		}
		more := c.groups[state]
		if more == nil {
			more = &grouped{groupState: state}
			c.groups[state] = more
			state.users++
		}
		for _, at := range []time.Time{g.First, g.Last} {
			if !at.IsZero() {
				more.more.seen(at.Unix())
			}
		}
		more.more.reasons |= g.Reasons
		for i, n := range state.hours.upTo(hour) {
			more.more.hours.add(hour-23+int64(i), max(0, g.Hours[i]-n))
		}
	}
}

// addPast adds the history of another store, but for what was added of it before.
func (h *history) addPast(newestFirst []store.PastFailure) {
	const together = 1000
	var chunk pastFailures
	for i := len(newestFirst) - 1 - int(h.written); i >= 0; i-- {
		if chunk.add(&newestFirst[i]); chunk.n == together || i == 0 {
			h.write(&chunk)
			chunk = pastFailures{}
		}
	}
}
