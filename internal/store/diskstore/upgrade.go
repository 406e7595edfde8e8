package diskstore

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// upgradeBatch is how many bytes of writes one step of an upgrade holds in memory.
const upgradeBatch = 1 << 20

// upgrade brings a folder of format 1 up to this one: all records are counted in
// their groups, and parked ones get their places in the index of groups. When it
// is cut short it begins anew, for the counts are written last.
func (s *Store) upgrade() error {
	s.log.Info("store: counting messages by their errors, once, since an older version of Redrive wrote the data folder", "folder", s.path)
	c := s.change(0)
	defer c.close()
	for _, state := range []store.State{store.Waiting, store.Parked} {
		if err := c.upgradeAll(state); err != nil {
			return err
		}
	}
	if err := c.writeGroups(); err != nil {
		return err
	}
	if err := c.batch.Set(keyFormat, []byte{formatVersion}, nil); err != nil {
		return err
	}
	return c.batch.Commit(pebble.Sync)
}

func (c *change) upgradeAll(state store.State) error {
	prefix := prefixes[state]
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		r, _, err := store.DecodeRecord(it.Value(), false)
		if err != nil {
			return fmt.Errorf("key %x: %w", it.Key(), err)
		}
		g := c.group(r)
		g.more.kept[state]++
		g.more.reasons |= store.ReasonsOf(r.Reason)
		g.failed(r.FailedAt, c.began)
		if state == store.Waiting {
			continue
		}
		if err := c.batch.Set(groupKey(g.ID, state, it.Key()), it.Key(), nil); err != nil {
			return err
		}
		if c.batch.Len() < upgradeBatch {
			continue
		}
		if err := c.batch.Commit(pebble.NoSync); err != nil {
			return err
		}
		c.batch.Reset()
	}
	return it.Error()
}
