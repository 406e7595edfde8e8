package diskstore

import (
	"bytes"
	"fmt"

	"github.com/redrive-mq/redrive/internal/store"
)

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
