package diskstore

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/store"
)

// seqLeap is how many numbers each opening leaves out: one that was used by a batch
// that failed is not counted, and none may be used again.
const seqLeap = 1 << 20

// addSums counts in a batch: one merge for each column that changes, however many
// messages there are.
func addSums(b *pebble.Batch, queue string, sums *store.Sums) error {
	for as, n := range sums {
		if n != 0 {
			if err := b.Merge(sumKey(store.Column(as), queue), binary.AppendVarint(nil, n), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// eachSum visits what was counted: what is kept, and what came and went.
func eachSum(db pebble.Reader, visit func(as store.Column, queue string, n int64)) error {
	for _, prefix := range []byte{prefixCount, prefixLedger} {
		err := eachIn(db, prefix, func(key, value []byte) error {
			n, _ := binary.Varint(value)
			if as := int(key[1]); as < len(store.Sums{}) {
				visit(store.Column(as), string(key[2:]), n)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// loadLedger begins the ledger with what is kept where there is none, and where a part of it
// is lost, with a damaged block or by a loss that was accepted. Each record that comes is
// counted and gets a number; so when a part is lost, the difference of the two is another one
// than at the last opening.
func (s *Store) loadLedger() error {
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	opened, err := s.get(keyOpened)
	if err != nil {
		return err
	}
	records := int64(0)
	for _, q := range s.queues {
		records += q.kept.Records()
	}
	b := s.db.NewBatch()
	defer b.Close()
	if err := s.dropZeros(b); err != nil {
		return err
	}
	since, size := binary.Varint(opened)
	if size <= 0 || since != seq-records {
		if size > 0 {
			// The witness has just shown that no commit is missing, or a person accepted it.
			s.log.Warn("store: the ledger begins again with what is kept, since what was counted of other messages is lost", "folder", s.path)
		}
		if records, err = s.beginLedger(b); err != nil {
			return err
		}
	}
	seq += seqLeap
	s.seq.Store(uint64(seq))
	if err := b.Merge(keySeq, binary.AppendVarint(nil, seqLeap), nil); err != nil {
		return err
	}
	// In one batch: the one without the other would look like a loss.
	if err := b.Set(keyOpened, binary.AppendVarint(nil, seq-records), nil); err != nil {
		return err
	}
	return b.Commit(pebble.NoSync)
}

// beginLedger lets what is kept be all that ever came.
func (s *Store) beginLedger(b *pebble.Batch) (records int64, err error) {
	if err := b.DeleteRange([]byte{prefixLedger}, []byte{prefixLedger + 1}, nil); err != nil {
		return 0, err
	}
	for name, q := range s.queues {
		came := store.Sums{store.In: q.kept.Kept()}
		if err := addSums(b, name, &came); err != nil {
			return 0, err
		}
		records += came.Records()
		came[store.Waiting], came[store.Parked], came[store.Discarded] = q.kept[store.Waiting], q.kept[store.Parked], q.kept[store.Discarded]
		q.kept = came
	}
	return records, nil
}

// number is a counter; 0 when there is none.
func (s *Store) number(key []byte) (int64, error) {
	v, err := s.get(key)
	n, _ := binary.Varint(v)
	return n, err
}

// Ledger implements store.Bookkeeper.
func (s *Store) Ledger(ctx context.Context) ([]store.LedgerLine, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	by := map[string]*store.Sums{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, q := range s.queues {
		sums := q.kept
		by[name] = &sums
	}
	return store.Lines(by), nil
}

// recounting is work in no hurry.
var recounting = background.Work{For: 2 * time.Millisecond, Rest: time.Millisecond}

// recountStep is how many keys it takes less than a millisecond to read.
const recountStep = 256

// Recount implements store.Bookkeeper.
func (s *Store) Recount(ctx context.Context) ([]store.LedgerLine, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	by := map[string]*store.Sums{}
	of := func(queue string) *store.Sums {
		if by[queue] == nil {
			by[queue] = new(store.Sums)
		}
		return by[queue]
	}
	err = eachSum(snap, func(as store.Column, queue string, n int64) {
		if !as.Kept() {
			of(queue)[as] = n
		}
	})
	if err != nil {
		return nil, err
	}
	for _, prefix := range recordPrefixes {
		err := s.recount(ctx, snap, prefix, func(queue string) *int64 { return &of(queue)[stateOf(prefix)] })
		if err != nil {
			return nil, err
		}
	}
	return store.Lines(by), nil
}

// recount counts the records of a state by their keys.
func (s *Store) recount(ctx context.Context, snap *pebble.Snapshot, prefix byte, of func(queue string) *int64) error {
	it, err := s.walk(snap, []byte{prefix}, []byte{prefix + 1})
	if err != nil {
		return err
	}
	var queue string
	var count *int64
	i := 0
	for it.First(); it.Valid() && ctx.Err() == nil; it.Next() {
		// The name alone is compared: to make a text of each costs as much as the rest.
		if name := it.Key()[2 : 2+int(it.Key()[1])]; count == nil || string(name) != queue {
			queue = string(name)
			count = of(queue)
		}
		*count++
		if i++; i%recountStep == 0 {
			recounting.Pause()
		}
	}
	return errors.Join(it.Close(), ctx.Err())
}

// unstored is what was counted of messages that were never kept, and is not on disk
// yet: the next change writes it.
type unstored map[string]*store.Sums

func (p unstored) add(queue string, sums *store.Sums) {
	if p[queue] == nil {
		p[queue] = new(store.Sums)
	}
	p[queue].Add(sums)
}

// CountUnstored implements store.Bookkeeper.
func (s *Store) CountUnstored(queue string, as store.Column, n int64) {
	sums := store.Sums{store.In: n}
	sums[as] += n
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue(queue).kept.Add(&sums)
	s.unstored.add(queue, &sums)
}

// writeUnstored puts what was counted of those into a batch; failed is to be called when that
// does not become durable.
func (s *Store) writeUnstored(b *pebble.Batch) (failed func(), err error) {
	s.mu.Lock()
	took := s.unstored
	if len(took) > 0 {
		s.unstored = unstored{}
	}
	s.mu.Unlock()
	for queue, sums := range took {
		err = errors.Join(err, addSums(b, queue, sums))
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for queue, sums := range took {
			s.unstored.add(queue, sums)
		}
	}, err
}

// endLedger writes what has passed since the last change.
func (s *Store) endLedger() error {
	if len(s.unstored) == 0 {
		return nil
	}
	b := s.db.NewBatch()
	defer b.Close()
	if _, err := s.writeUnstored(b); err != nil {
		return err
	}
	return s.commit(b, new(store.Sums))
}
