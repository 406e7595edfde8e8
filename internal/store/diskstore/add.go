package diskstore

import (
	"context"
	"runtime/debug"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

// recordOverhead is about how many bytes a record has besides its body.
const recordOverhead = 1024

// sizeOf is about how much room records take.
func sizeOf(records []*store.Record) (n int) {
	for _, r := range records {
		n += len(r.Message.Body) + recordOverhead
	}
	return n
}

// Add implements store.Store.
func (s *Store) Add(ctx context.Context, records []*store.Record) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	size := sizeOf(records)
	if err := s.checkSpace(size, s.reserve); err != nil {
		return err
	}
	if hasLarge(records) {
		s.large.Lock()
		defer s.large.Unlock()
		defer s.flushLarge()
	}
	c := s.newWriteBatch(size)
	defer c.close()
	c.fails = true
	s.adding.RLock()
	defer s.adding.RUnlock()
	keys, err := c.add(records)
	if err != nil {
		return err
	}
	if err := s.receipts.write(c.batch, store.ReceiptsOf(records)); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.added(keys)
	return nil
}

// added notes that records were kept under these keys.
func (s *Store) added(keys [][]byte) {
	s.mu.Lock()
	for _, key := range keys {
		s.ready(key)
	}
	s.mu.Unlock()
	s.signal()
}

const (
	// largeValue is from what size on a record has a place of its own on the disk.
	largeValue = 1 << 20
	// largeBody is from what size on a record is on the disk before the next such one
	// is added. Pebble has each several times in memory until then.
	largeBody = 8 << 20
)

func hasLarge(records []*store.Record) bool {
	return slices.ContainsFunc(records, func(r *store.Record) bool { return len(r.Message.Body) >= largeBody })
}

// flushLarge waits until a large body is on the disk outside of the log. What goes wrong with
// that, Pebble says at the next commit; the record is in the log of the database already.
func (s *Store) flushLarge() {
	_ = s.db.Flush()
	debug.FreeOSMemory() // or it would be there twice as often until the next collection
}
