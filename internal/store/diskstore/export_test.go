package diskstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

const FormatVersion = formatVersion

// Lose deletes the first waiting record of a queue without a change of counters.
func (s *Store) Lose(queue string) error {
	it, err := s.walk(s.db, queuePrefix(store.Waiting, queue), nil)
	if err != nil {
		return err
	}
	it.First()
	return errors.Join(s.db.Delete(bytes.Clone(it.Key()), pebble.Sync), it.Close())
}

// LoseLedger deletes the counts of messages that came and went.
func (s *Store) LoseLedger() error {
	return s.db.DeleteRange([]byte{prefixLedger}, []byte{prefixLedger + 1}, pebble.Sync)
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
		state := stateOf(key[0])
		switch {
		case key[0] == prefixID || key[0] == prefixGroupIndex:
			got[string(key)] = string(it.Value())
		case state >= store.Waiting && state <= store.Discarded:
			r, _, err := store.DecodeRecord(it.Value(), false)
			if err != nil {
				return err
			}
			if to := keyOf(r, seqOf(key)); r.State != state || !bytes.Equal(to, key) {
				return fmt.Errorf("the record under %x belongs under %x", key, to)
			}
			counts[place{state, r.Queue}]++
			want[string(idKey(r.ID, seqOf(key)))] = string(key)
			if state != store.Waiting {
				want[string(groupIndexKey(s.GroupOf(r), state, key))] = string(key)
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

// Flush makes tables of what the log has.
func (s *Store) Flush() error { return s.db.Flush() }

// AsFormat gives the folder of a closed store another number.
func AsFormat(path string, format ...byte) error {
	db, err := pebble.Open(path, &pebble.Options{Merger: adder, FormatMajorVersion: pebble.FormatNewest,
		ErrorIfNotExists: true})
	if err != nil {
		return err
	}
	return errors.Join(db.Set(keyFormat, format, pebble.Sync), db.Close())
}

// AfterEIO ends the time during which a block is not read again, and a queue not searched
// again.
func (s *Store) AfterEIO() {
	s.damage.files.bad.mu.Lock()
	for _, bad := range s.damage.files.bad.by {
		if !bad.until.IsZero() {
			bad.until = time.Now().Add(-time.Second)
		}
	}
	s.damage.files.bad.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.targetsAgain.IsZero() {
		s.targetsAgain = time.Now().Add(-time.Second)
	}
	for _, q := range s.queues {
		q.lanes("", func(_ store.Lane, l *lane) {
			if !l.again.IsZero() {
				l.again = time.Now().Add(-time.Second)
			}
		})
	}
}

// Compact rewrites all tables.
func (s *Store) Compact() error {
	return s.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false)
}

// DamageRecord changes the bytes of a record.
func (s *Store) DamageRecord(key store.Key, damage func([]byte) []byte) error {
	return withValue(s.db, indexOf(key), func(at []byte) error {
		return withValue(s.db, at, func(value []byte) error { return s.db.Set(at, damage(bytes.Clone(value)), pebble.Sync) })
	})
}

// AwaitRemovals waits until Pebble has removed the files that it no longer needs.
func (s *Store) AwaitRemovals() { s.db.TestOnlyWaitForCleaning() }

// OpenAt opens a store, and closes it with the test.
func OpenAt(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

var must = expect.NoError
