package diskstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// upgradeBatch is how many bytes of writes one step of an upgrade holds in memory.
const upgradeBatch = 1 << 20

// format is the format of the folder; 0 when it is new. One that this version does not
// know is refused before anything is written.
func (s *Store) format() (byte, error) {
	f, err := s.get(keyFormat)
	if err == nil && f == nil && s.damage.lostKey(keyFormat) {
		return s.formatByWitness()
	}
	switch {
	case err != nil || f == nil:
		return 0, err
	case len(f) != 1 || f[0] == 0 || f[0] > formatVersion:
		return 0, fmt.Errorf("%w: it is format %s, and this version of Redrive reads formats 1 to %d. Nothing was changed. Run the version that wrote it, or put a snapshot from before its upgrade in the place of the folder", store.ErrFormat, strings.Trim(fmt.Sprint(f), "[]"), formatVersion)
	}
	if f[0] == 1 {
		return f[0], s.refuseEarliest()
	}
	return f[0], nil
}

// refuseEarliest refuses a folder whose records have the layout of the first versions,
// which have the same number: the state and the id come where the size of the body is now.
func (s *Store) refuseEarliest() error {
	for _, state := range []store.State{store.Waiting, store.Parked} {
		it, err := s.walk(s.db, []byte{prefixes[state]}, []byte{prefixes[state] + 1})
		if err != nil {
			return err
		}
		earliest := false
		if value, id := []byte(nil), (uuid.UUID{}); it.First() {
			if value, err = it.ValueAndErr(); len(value) >= 2+len(id) && value[0] == 1 && value[1] == byte(state) {
				copy(id[:], value[2:])
				at, failed := s.get(idKey(id, seqOf(it.Key())))
				earliest, err = bytes.Equal(at, it.Key()), errors.Join(err, failed)
			}
		}
		if err = s.damage.unreadable([]byte{prefixes[state]}, errors.Join(err, it.Close())); err != nil {
			return err
		}
		if earliest {
			return fmt.Errorf("%w: it is format 1 as versions of before 2026-11-21 wrote it, with another layout of records. Nothing was changed. Run the version that wrote it until nothing waits in it, and start this one with a new folder", store.ErrFormat)
		}
	}
	return nil
}

// formatByWitness is the format of a folder whose number is lost: formats before 3 have no
// witness, and upgrading one of this format from 3 changes nothing.
func (s *Store) formatByWitness() (byte, error) {
	was, _, err := s.witness.read()
	if err == nil && was == nil {
		err = fmt.Errorf("%w: the number of its format cannot be read, and its witness is gone", pebble.ErrCorruption)
	}
	if err != nil {
		return 0, err
	}
	return 3, nil
}

// upgrade brings a folder of an earlier format up to this one. When it is cut short it
// begins again: the number is written last, with the counts.
func (s *Store) upgrade(from byte) error {
	if from == formatVersion {
		return nil
	}
	c := s.newWriteBatch(0)
	defer c.close()
	if from != 0 {
		s.log.Info("store: upgrading the data folder; versions of Redrive before this one cannot read it any more", "folder", s.path, "from", from, "to", formatVersion)
	}
	if from != 0 {
		if err := c.moveForwarded(); err != nil {
			return err
		}
	}
	if from == 1 {
		if err := c.countGroups(); err != nil {
			return err
		}
	}
	// Receipts of formats 1 and 2 lack the first failure. What they are for is
	// acknowledged when a process stops in order.
	if err := c.batch.DeleteRange([]byte{prefixOldReceipt}, []byte{prefixOldReceipt + 1}, nil); err != nil {
		return err
	}
	if err := c.batch.Set(keyFormat, []byte{formatVersion}, nil); err != nil {
		return err
	}
	return c.batch.Commit(pebble.Sync)
}

// moveForwarded moves records that wait for a forward target, which formats before 4 had
// among those of their work queue, to the lanes of their targets.
func (c *writeBatch) moveForwarded() error {
	return c.eachRecord(prefixWaiting, func(key, value []byte, r *store.Record) error {
		if !r.Lane().Forwards() {
			return nil
		}
		seq := seqOf(key)
		to := placedKey(r, seq)
		return errors.Join(c.batch.Set(to, value, nil), c.batch.Delete(key, nil), c.batch.Set(idKey(r.ID, seq), to, nil))
	})
}

// countGroups counts all records in their groups, and gives parked ones their places in
// the index of groups.
func (c *writeBatch) countGroups() error {
	for _, prefix := range []byte{prefixWaiting, prefixForward, prefixParked} {
		err := c.eachRecord(prefix, func(key, _ []byte, r *store.Record) error { return c.countInGroup(key, r) })
		if err != nil {
			return err
		}
	}
	return c.writeGroups()
}
