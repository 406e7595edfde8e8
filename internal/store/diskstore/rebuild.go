package diskstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// What follows from the records (counts, groups, the indexes of ids and groups) is made
// again from them when the store is opened after a block was lost: it may have been in it.

// derived are the prefixes of what follows from the records.
var derived = []byte{prefixCount, prefixGroup, prefixID, prefixTally, prefixShared}

// atOpening are the prefixes of what is read when a store is opened, but for records.
var atOpening = [][]byte{{prefixCount}, keyFormat, {prefixTally}, {prefixLedger}, {prefixShared}, keyCommits, keyOpened, keySeq}

// probe reads what opening needs, so that damage to it is known before it is relied on.
func (s *Store) probe() error {
	for _, prefix := range atOpening {
		it, err := wholly(s.db, prefix, after(prefix))
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
		}
		if err := it.Close(); err != nil && !harmful(err) {
			return err
		}
	}
	if s.damage.lost == nil && len(s.damage.files.bad.unrepaired()) > 0 {
		return fmt.Errorf("%w: of what leads to the records", pebble.ErrCorruption) // what is salvaged is not rebuilt
	}
	return nil
}

// rebuild makes again what follows from the records. When it is cut short it begins again at
// the next start.
func (s *Store) rebuild() error {
	lost := s.damage.lost.pending()
	if len(lost) == 0 {
		return nil
	}
	s.log.Warn("store: blocks that cannot be read were set apart; counts, groups and indexes are made again from the records", "folder", s.path, "blocks", len(lost))
	c := s.newWriteBatch(0)
	defer c.close()
	for _, prefix := range derived {
		if err := c.batch.DeleteRange([]byte{prefix}, []byte{prefix + 1}, nil); err != nil {
			return err
		}
	}
	newest := uint64(0)
	// Waiting ones last: where the deletion of a record was lost that was moved, it is
	// there twice, and what a person sees of it counts.
	for _, prefix := range []byte{prefixParked, prefixDiscarded, prefixForward, prefixWaiting} {
		if err := c.rebuildAll(prefix, &newest); err != nil {
			return err
		}
	}
	for queue, sums := range c.counts {
		if err := addSums(c.batch, queue, sums); err != nil {
			return err
		}
	}
	if err := c.writeGroups(); err != nil {
		return err
	}
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	if more := int64(newest) - seq; more > 0 {
		if err := c.batch.Merge(keySeq, binary.AppendVarint(nil, more), nil); err != nil {
			return err
		}
	}
	if err := c.batch.Commit(pebble.Sync); err != nil {
		return err
	}
	for i := range lost {
		if hit := lost[i].entries(); hit != "" {
			s.log.Warn("store: a block that is lost may have had "+hit+": look at them", "folder", s.path, "block", lost[i].place())
		}
	}
	return s.damage.lost.rebuilt()
}

// entries is what a block may have had that follows from nothing else.
func (l *lostBlock) entries() string {
	if l.Low == nil || string(l.Low) < string(prefixEntry+1) && string(l.High) >= string(prefixEntry) {
		return "pauses, notes, tokens or operations"
	}
	return ""
}

func (c *writeBatch) rebuildAll(prefix byte, newest *uint64) error {
	return c.eachRecord(prefix, func(key, _ []byte, r *store.Record) error {
		index := idKey(r.ID, seqOf(key))
		*newest = max(*newest, seqOf(key))
		if there, err := c.indexed(index, prefix); err != nil {
			return err
		} else if there {
			return c.batch.Delete(key, nil)
		}
		c.count(store.Column(r.State), r.Queue, 1)
		return errors.Join(c.batch.Set(index, key, nil), c.countInGroup(key, r))
	})
}

// countInGroup counts a record in its group, and unless it waits gives it its place in the
// index of groups.
func (c *writeBatch) countInGroup(key []byte, r *store.Record) error {
	g := c.group(r)
	g.more.kept[r.State]++
	g.more.reasons |= store.ReasonsOf(r.Reason)
	g.failed(r.FailedAt, c.began)
	if r.State == store.Waiting {
		return nil
	}
	return c.batch.Set(groupKey(g.ID, r.State, key), key, nil)
}

// eachRecord visits the records under a prefix that can be read, without their bodies. What
// the visits put into the batch is written step by step.
func (c *writeBatch) eachRecord(prefix byte, visit func(key, value []byte, r *store.Record) error) error {
	it, err := c.s.walk(c.s.db, []byte{prefix}, []byte{prefix + 1})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		r, err := c.s.recordAt(it, false)
		if err == nil && r != nil {
			err = visit(it.Key(), it.Value(), r)
		}
		if err == nil && c.batch.Len() >= upgradeBatch {
			err = c.flush()
		}
		if err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	return c.flush()
}

// indexed tells whether a record is there already, under a prefix that was looked through
// before.
func (c *writeBatch) indexed(index []byte, prefix byte) (bool, error) {
	if prefix == prefixParked {
		return false, nil
	}
	there, err := c.s.get(index)
	return there != nil, err
}

// flush writes what has gathered.
func (c *writeBatch) flush() error {
	if err := c.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	c.batch.Reset()
	return nil
}
