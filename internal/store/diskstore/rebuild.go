package diskstore

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// What follows from the records (counts, groups, the indexes of ids and groups) is made
// again from them when the store is opened after a block was lost, since it may have been in it, and
// when commits are missing, whose tables may have been between others that are there.

// derived are the prefixes of what follows from the records.
var derived = []byte{prefixCount, prefixGroupIndex, prefixID, prefixTally, prefixGroupInfo}

// atOpening are the prefixes of what is read when a store is opened, but for records.
var atOpening = [][]byte{{prefixCount}, keyFormat, {prefixTally}, {prefixLedger}, {prefixGroupInfo}, keyCommits, keyOpened, keySeq}

// rebuildStep is how many bytes of writes a rebuild has in memory.
const rebuildStep = 1 << 20

// probe reads what opening needs, so that damage to it is known before it is relied on.
func (s *Store) probe() error {
	for _, prefix := range atOpening {
		it, err := walkAll(s.db, prefix)
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
		}
		if err := it.Close(); err != nil && !isDamage(err) {
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
	if err := s.deriveAgain(); err != nil {
		return err
	}
	for i := range lost {
		if hit := lost[i].entries(); hit != "" {
			s.log.Warn("store: a block that is lost may have had "+hit+": look at them", "folder", s.path, "block", lost[i].place())
		}
	}
	return s.damage.lost.rebuilt()
}

// deriveAgain makes again what follows from the records.
func (s *Store) deriveAgain() error {
	c := s.newWriteBatch(0)
	defer c.close()
	c.fails = true
	for _, prefix := range derived {
		if err := c.batch.DeleteRange([]byte{prefix}, []byte{prefix + 1}, nil); err != nil {
			return err
		}
	}
	if err := c.flush(); err != nil {
		return err
	}
	newest := uint64(0)
	// Waiting ones last: where the deletion of a record was lost that was moved, it is
	// there twice, and what a person sees of it counts.
	for _, prefix := range []byte{prefixParked, prefixDiscarded, prefixForward, prefixWaiting} {
		n, err := c.rebuildAll(prefix)
		if err != nil {
			return err
		}
		newest = max(newest, n)
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
	return c.batch.Commit(pebble.Sync)
}

// entries is what a block may have had that follows from nothing else.
func (l *lostBlock) entries() string {
	if l.Low == nil || string(l.Low) < string(prefixEntry+1) && string(l.High) >= string(prefixEntry) {
		return "pauses, notes, tokens or operations"
	}
	return ""
}

// rebuildAll counts the records under a prefix again, as far as they can be read, and gives
// them their places in the indexes. newest is the largest of their numbers. What it writes is
// written step by step.
func (c *writeBatch) rebuildAll(prefix byte) (newest uint64, err error) {
	it, err := c.s.walk(c.s.db, []byte{prefix}, []byte{prefix + 1})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		r, err := c.s.recordAt(it, false)
		if err == nil && r != nil {
			newest = max(newest, seqOf(it.Key()))
			err = c.rebuildOne(it.Key(), r)
		}
		if err == nil && c.batch.Len() >= rebuildStep {
			err = c.flush()
		}
		if err != nil {
			return 0, err
		}
	}
	if err := it.Error(); err != nil {
		return 0, err
	}
	return newest, c.flush()
}

// rebuildOne deletes a record that was found before under another key.
func (c *writeBatch) rebuildOne(key []byte, r *store.Record) error {
	there, err := c.s.get(idKey(r.ID, seqOf(key)))
	if err != nil {
		return err
	}
	if there != nil {
		return c.batch.Delete(key, nil)
	}
	return c.enter(key, r)
}

// flush writes what has gathered.
func (c *writeBatch) flush() error {
	if err := c.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	c.batch.Reset()
	return nil
}
