package diskstore

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// receiptLog keeps the receipts of the newest batches, one key a batch, and
// drops the oldest batches as soon as the newer ones hold store.ReceiptsKept.
type receiptLog struct {
	mu      sync.Mutex
	batches []receiptBatch // oldest first
	kept    int            // receipts in all of them
}

type receiptBatch struct {
	number uint64
	size   int
}

// load finds which batches are kept.
func (l *receiptLog) load(db *pebble.DB) error {
	return eachIn(db, prefixReceipt, func(key, value []byte) error {
		l.add(binary.BigEndian.Uint64(key[1:]), len(value)/store.ReceiptSize)
		return nil
	})
}

func (l *receiptLog) add(number uint64, size int) {
	l.batches = append(l.batches, receiptBatch{number, size})
	l.kept += size
}

// Remember implements store.Store.
func (s *Store) Remember(ctx context.Context, receipts []store.Receipt) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkSpace(len(receipts)*store.ReceiptSize, s.reserve); err != nil {
		return err
	}
	c := s.newWriteBatch(0)
	defer c.close()
	if err := s.receipts.write(c.batch, receipts); err != nil {
		return err
	}
	return c.commit()
}

// write puts receipts into b, and takes those out that are too old to be needed.
func (l *receiptLog) write(b *pebble.Batch, receipts []store.Receipt) error {
	v := make([]byte, 0, len(receipts)*store.ReceiptSize)
	for _, r := range receipts {
		v = r.Append(v)
	}
	if len(v) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	number := uint64(1)
	if n := len(l.batches); n > 0 {
		number = l.batches[n-1].number + 1
	}
	l.add(number, len(v)/store.ReceiptSize)
	for l.kept-l.batches[0].size >= store.ReceiptsKept {
		if err := b.Delete(receiptKey(l.batches[0].number), nil); err != nil {
			return err
		}
		l.kept -= l.batches[0].size
		l.batches = l.batches[1:]
	}
	return b.Set(receiptKey(number), v, nil)
}

// Receipts implements store.Store.
func (s *Store) Receipts(ctx context.Context) ([]store.Receipt, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := s.receipts.read(s.db)
	return all, s.damage.unreadable([]byte{prefixReceipt}, err)
}

// read returns the receipts kept, oldest first.
func (l *receiptLog) read(db *pebble.DB) (all []store.Receipt, err error) {
	err = eachIn(db, prefixReceipt, func(_, v []byte) error {
		for ; len(v) >= store.ReceiptSize; v = v[store.ReceiptSize:] {
			all = append(all, store.ReadReceipt(v))
		}
		return nil
	})
	return all[max(0, len(all)-store.ReceiptsKept):], err
}
