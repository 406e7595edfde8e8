package diskstore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// replayBatch and replayBytes bound what one step of a replay holds in memory.
const (
	replayBatch = 256
	replayBytes = 16 << 20
)

// Replay implements store.Store.
func (s *Store) Replay(ctx context.Context, sel store.Selection, due time.Time, progress func(int)) (moved int, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	s.moving.Lock()
	defer s.moving.Unlock()
	step := func(keys [][]byte) error {
		n, err := s.replay(keys, due)
		moved += n
		if progress != nil && n > 0 {
			progress(moved)
		}
		return err
	}
	if len(sel.IDs) > 0 {
		for _, id := range sel.IDs {
			keys, err := s.keysOf(id)
			if err == nil {
				err = step(keys)
			}
			if err != nil {
				return moved, err
			}
		}
		return moved, nil
	}
	for low := queuePrefix(store.Parked, sel.Queue); ctx.Err() == nil; {
		keys, err := s.someKeys(low, after(queuePrefix(store.Parked, sel.Queue)))
		if err != nil || len(keys) == 0 {
			return moved, err
		}
		low = append(bytes.Clone(keys[len(keys)-1]), 0)
		if err := step(keys); err != nil {
			return moved, err
		}
	}
	return moved, ctx.Err()
}

// someKeys are the next keys of parked records, a step's worth.
func (s *Store) someKeys(low, end []byte) (keys [][]byte, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: end})
	if err != nil {
		return nil, err
	}
	size := 0
	for it.First(); it.Valid() && len(keys) < replayBatch && size < replayBytes; it.Next() {
		keys = append(keys, bytes.Clone(it.Key()))
		size += len(it.Value())
	}
	return keys, it.Close()
}

// keysOf are the keys of the parked records with an ID.
func (s *Store) keysOf(id uuid.UUID) (keys [][]byte, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: idKey(id, 0), UpperBound: idKey(id, 1<<64-1)})
	if err != nil {
		return nil, err
	}
	for it.First(); it.Valid(); it.Next() {
		if it.Value()[0] == prefixParked {
			keys = append(keys, bytes.Clone(it.Value()))
		}
	}
	return keys, it.Close()
}

// replay makes parked records waiting, in one step.
func (s *Store) replay(keys [][]byte, due time.Time) (int, error) {
	c := s.change()
	defer c.close()
	type place struct {
		queue string
		key   []byte
	}
	var ready []place
	for _, key := range keys {
		value, err := s.get(key)
		if err != nil {
			return 0, err
		}
		if value == nil {
			continue
		}
		r, _, err := store.DecodeRecord(value, true)
		if err != nil {
			return 0, fmt.Errorf("key %x: %w", key, err)
		}
		if err := c.remove(key, store.Parked, r, true); err != nil {
			return 0, err
		}
		r.Replay(due)
		to := recordKey(store.Waiting, r.Queue, due, seqOf(key))
		ready = append(ready, place{r.Queue, to})
		if err := c.put(to, r); err != nil {
			return 0, err
		}
	}
	if len(ready) == 0 {
		return 0, nil
	}
	if err := c.commit(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	for _, p := range ready {
		s.queue(p.queue).ready(p.key)
	}
	s.mu.Unlock()
	s.signal()
	return len(ready), nil
}
