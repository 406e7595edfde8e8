package diskstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// Lose takes a record away, and tells no counter.
func (s *Store) Lose(queue string) error {
	key, err := s.first(queuePrefix(store.Waiting, queue), after(queuePrefix(store.Waiting, queue)))
	if err != nil {
		return err
	}
	return s.db.Delete(key, pebble.Sync)
}

// AsBefore is what a version without a ledger does: it opens the folder, and takes
// one record away.
func (s *Store) AsBefore(queue string) error {
	b := s.db.NewBatch()
	defer b.Close()
	key, err := s.first(queuePrefix(store.Waiting, queue), after(queuePrefix(store.Waiting, queue)))
	return errors.Join(err, b.Merge(keySeq, binary.AppendVarint(nil, seqLeap), nil), b.Delete(key, nil),
		b.Merge(countKey(store.Waiting, queue), binary.AppendVarint(nil, -1), nil), b.Commit(pebble.Sync))
}

// Check says what in the folder does not fit together: each record has its place
// in the indexes and is counted once, and nothing else is there.
func (s *Store) Check() error {
	snap := s.db.NewSnapshot()
	defer snap.Close()
	it, err := snap.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	type place struct {
		state store.State
		queue string
	}
	counts := map[place]int64{}
	want, got := map[string]string{}, map[string]string{} // the indexes
	for it.First(); it.Valid(); it.Next() {
		key := it.Key()
		state := store.State(bytes.IndexByte(prefixes[:], key[0]))
		switch {
		case key[0] == prefixID || key[0] == prefixGroup:
			got[string(key)] = string(it.Value())
		case state >= store.Waiting && state <= store.Discarded:
			r, _, err := store.DecodeRecord(it.Value(), false)
			if err != nil {
				return err
			}
			if to := recordKey(r.State, r.Queue, r.Due, seqOf(key)); r.State != state || !bytes.Equal(to, key) {
				return fmt.Errorf("the record under %x belongs under %x", key, to)
			}
			counts[place{state, r.Queue}]++
			want[string(idKey(r.ID, seqOf(key)))] = string(key)
			if state != store.Waiting {
				want[string(groupKey(s.GroupOf(r), state, key))] = string(key)
			}
		}
	}
	for k, v := range want {
		if got[k] != v {
			return fmt.Errorf("under %x the index has %x, not %x", k, got[k], v)
		}
		delete(got, k)
	}
	for k := range got {
		return fmt.Errorf("under %x the index has what is gone", k)
	}
	err = counters(snap, func(state store.State, queue string, n int64) error {
		if counts[place{state, queue}] != n {
			return fmt.Errorf("queue %q has %d in state %d, and %d are counted", queue, counts[place{state, queue}], state, n)
		}
		delete(counts, place{state, queue})
		return nil
	})
	if err == nil && len(counts) > 0 {
		err = fmt.Errorf("not counted: %v", counts)
	}
	return err
}
