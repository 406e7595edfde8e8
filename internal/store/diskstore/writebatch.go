package diskstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// writeBatch is a set of writes that become visible and durable together.
type writeBatch struct {
	s      *Store
	batch  *pebble.Batch
	value  []byte // scratch for a record without its body: the batch copies it
	counts store.SumsBy
	groups map[*groupState]*grouped
	like   *store.Record // the last record that was counted
	last   *grouped
	began  time.Time
	fails  bool // records that are put are new failures
	past   pastFailures
	// deleted is about how many bytes the deleted records have.
	deleted uint64
}

func (s *Store) newWriteBatch(size int) *writeBatch {
	return &writeBatch{s: s, batch: s.db.NewBatchWithSize(size), counts: store.SumsBy{},
		groups: map[*groupState]*grouped{}, began: time.Now()}
}

func (c *writeBatch) count(as store.Column, queue string, n int64) {
	c.counts.Of(queue)[as] += n
}

func (c *writeBatch) put(key []byte, r *store.Record) (err error) {
	if c.value, err = store.AppendHead(c.value[:0], r); err != nil {
		return fmt.Errorf("message %s of queue %q: %w", r.ID, r.Queue, err)
	}
	body := r.Message.Body
	op := c.batch.SetDeferred(len(key), len(c.value)+len(body))
	copy(op.Key, key)
	copy(op.Value[copy(op.Value, c.value):], body)
	if err := op.Finish(); err != nil {
		return err
	}
	return c.enter(key, r)
}

func (c *writeBatch) enter(key []byte, r *store.Record) error {
	c.count(store.Column(r.State), r.Queue, 1)
	g := c.group(r)
	g.more.Reasons |= store.ReasonsOf(r.Reason)
	if g.more.Kept[r.State]++; c.fails {
		g.more.Failed(r.FailedAt, c.began)
	}
	// Waiting records, which come and go by the thousand, are not in the group index.
	if r.State != store.Waiting {
		if err := c.batch.Set(groupIndexKey(g.ID, r.State, key), key, nil); err != nil {
			return err
		}
	}
	return c.batch.Set(idKey(r.ID, seqOf(key)), key, nil)
}

// add writes new records and returns their keys. The caller holds adding until
// they are committed.
func (c *writeBatch) add(records []*store.Record) (keys [][]byte, err error) {
	first := c.s.seq.Add(uint64(len(records))) - uint64(len(records)) + 1
	for i, r := range records {
		if err := r.Validate(); err != nil {
			return nil, err
		}
		key := keyOf(r, first+uint64(i))
		if err := c.put(key, r); err != nil {
			return nil, err
		}
		c.count(store.In, r.Queue, 1)
		keys = append(keys, key)
	}
	return keys, addTo(c.batch, keySeq, int64(len(records)))
}

// remove deletes a record, r being as it was stored, and also its id unless it was moved.
func (c *writeBatch) remove(key []byte, r *store.Record, moved bool) error {
	c.count(store.Column(r.State), r.Queue, -1)
	c.deleted += uint64(len(r.Message.Body) + recordOverhead)
	g := c.group(r)
	g.more.Kept[r.State]--
	if r.State != store.Waiting {
		if err := c.batch.Delete(groupIndexKey(g.ID, r.State, key), nil); err != nil {
			return err
		}
	}
	if err := c.batch.Delete(key, nil); err != nil || moved {
		return err
	}
	return c.batch.Delete(idKey(r.ID, seqOf(key)), nil)
}

func (c *writeBatch) commit() (err error) {
	failed, err := c.s.writeUnstored(c.batch)
	defer func() {
		if err != nil {
			failed()
		}
	}()
	if err != nil {
		return err
	}
	for name, sums := range c.counts {
		if err := addSums(c.batch, name, sums); err != nil {
			return err
		}
	}
	if err := c.writeGroups(); err != nil {
		return err
	}
	if err := c.commitWithPast(); err != nil {
		return err
	}
	c.counted()
	c.s.deleted.bytes.Add(c.deleted)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for name, sums := range c.counts {
		q := c.s.queue(name)
		q.kept.Add(sums)
		q.used = c.began
	}
	return nil
}

func (c *writeBatch) commitWithPast() error {
	var sums store.Sums
	for _, more := range c.counts {
		sums.Add(more)
	}
	if err := addTo(c.batch, keyCommits, 1); err != nil {
		return err
	}
	c.s.committing.RLock()
	defer c.s.committing.RUnlock()
	if c.past.n > 0 {
		c.s.intoHistory.RLock()
		defer c.s.intoHistory.RUnlock()
	}
	began := time.Now()
	if err := c.batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("data folder %s: %w", c.s.path, err)
	}
	c.s.onSync(time.Since(began))
	c.s.witness.committed(&sums)
	c.s.history.write(&c.past)
	return nil
}

// awaitHistory waits until the history has all past failures committed so far.
func (s *Store) awaitHistory() {
	s.intoHistory.Lock()
	s.intoHistory.Unlock() //lint:ignore SA2001 waits for its holder
}

func (s *Store) write(ctx context.Context, fill func(*writeBatch) error) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := s.newWriteBatch(0)
	defer c.close()
	if err := fill(c); err != nil {
		return err
	}
	return c.commit()
}

func (c *writeBatch) close() {
	c.unuse()
	_ = c.batch.Close()
}

// recordOverhead is about how many bytes a record takes besides its body.
const recordOverhead = 1024

func sizeOf(records []*store.Record) (n int) {
	for _, r := range records {
		n += len(r.Message.Body) + recordOverhead
	}
	return n
}

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
	if slices.ContainsFunc(records, func(r *store.Record) bool { return len(r.Message.Body) >= largeBody }) {
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
	for _, r := range records {
		if r.NewlyParked() {
			c.count(r.EverParked(), r.Queue, 1)
		}
	}
	if err := s.receipts.write(c.batch, store.ReceiptsOf(records)); err != nil {
		return err
	}
	return s.commitAdded(c, keys)
}

func (s *Store) commitAdded(c *writeBatch, keys [][]byte) error {
	if err := c.commit(); err != nil {
		return err
	}
	s.mu.Lock()
	for _, key := range keys {
		s.ready(key)
	}
	s.mu.Unlock()
	s.signal()
	return nil
}

const (
	// largeValue is the size from which on a record is in a blob file.
	largeValue = 1 << 20
	// largeBody is the size from which on a body is flushed before the next such one is
	// added. Until then Pebble has it in memory several times.
	largeBody = 8 << 20
)

// flushLarge waits until a large body is on the disk outside of the log. Pebble reports errors at the next commit; the
// record is in its log already.
func (s *Store) flushLarge() {
	_ = s.db.Flush()
	debug.FreeOSMemory() // otherwise memory doubles until the next collection
}

// receiptLog keeps the receipts of the newest batches, one key for each batch, and drops the
// oldest as soon as the others have store.ReceiptsKept.
type receiptLog struct {
	mu      sync.Mutex
	batches []receiptBatch // oldest first
	kept    int            // receipts in all of them
}

type receiptBatch struct {
	number uint64
	size   int
}

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

func (s *Store) Remember(ctx context.Context, receipts []store.Receipt) error {
	return s.write(ctx, func(c *writeBatch) error {
		if err := s.checkSpace(len(receipts)*store.ReceiptSize, s.reserve); err != nil {
			return err
		}
		return s.receipts.write(c.batch, receipts)
	})
}

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

func (s *Store) Receipts(ctx context.Context) ([]store.Receipt, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := s.receipts.read(s.db)
	return all, s.damage.unreadable([]byte{prefixReceipt}, err)
}

func (l *receiptLog) read(db *pebble.DB) (all []store.Receipt, err error) {
	err = eachIn(db, prefixReceipt, func(_, v []byte) error {
		for ; len(v) >= store.ReceiptSize; v = v[store.ReceiptSize:] {
			all = append(all, store.ReadReceipt(v))
		}
		return nil
	})
	return all[max(0, len(all)-store.ReceiptsKept):], err
}
