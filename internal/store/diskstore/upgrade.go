package diskstore

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// upgradeBatch is how many bytes of writes one step of an upgrade holds in memory.
const upgradeBatch = 1 << 20

// upgrade brings a folder of format 1 up to this one: parked records get their
// places in the index of groups. When it is cut short it begins anew.
func (s *Store) upgrade() error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixParked}, UpperBound: []byte{prefixParked + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	b := s.db.NewBatch()
	defer b.Close()
	for it.First(); it.Valid(); it.Next() {
		r, _, err := store.DecodeRecord(it.Value(), false)
		if err != nil {
			return fmt.Errorf("key %x: %w", it.Key(), err)
		}
		if err := b.Set(groupKey(r, it.Key()), it.Key(), nil); err != nil {
			return err
		}
		if b.Len() < upgradeBatch {
			continue
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			return err
		}
		b.Reset()
	}
	if err := it.Error(); err != nil {
		return err
	}
	if err := b.Set(keyFormat, []byte{formatVersion}, nil); err != nil {
		return err
	}
	return b.Commit(pebble.Sync)
}
