package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// loadQueues reads the counts, and the first waiting record's due time of each
// queue.
func (s *Store) loadQueues() error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixCount}, UpperBound: []byte{prefixCount + 1}})
	if err != nil {
		return err
	}
	for it.First(); it.Valid(); it.Next() {
		n, _ := binary.Varint(it.Value())
		s.queue(string(it.Key()[2:])).count(store.State(it.Key()[1]), n)
	}
	if err := it.Close(); err != nil {
		return err
	}
	for name, q := range s.queues {
		if q.waiting == 0 {
			continue
		}
		key, err := s.first(q.low, after(queuePrefix(store.Waiting, name)))
		if err != nil {
			return err
		}
		if key != nil {
			q.low, q.next = key, dueOf(key)
		}
	}
	return nil
}

// first is the first key from low on and before end, or nil.
func (s *Store) first(low, end []byte) (key []byte, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: end})
	if err != nil {
		return nil, err
	}
	if it.First() {
		key = bytes.Clone(it.Key())
	}
	return key, it.Close()
}

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	type start struct {
		at  int
		low []byte
	}
	var counts []store.QueueCount
	var starts []start
	s.mu.Lock()
	for name, q := range s.queues {
		if q.waiting == 0 && q.parked == 0 {
			continue
		}
		if q.waiting > 0 {
			low := q.low
			for k := range q.claimed { // claimed ones count as waiting still
				if k < string(low) {
					low = []byte(k)
				}
			}
			starts = append(starts, start{len(counts), bytes.Clone(low)})
		}
		counts = append(counts, store.QueueCount{Queue: name, Waiting: q.waiting, Parked: q.parked})
	}
	s.mu.Unlock()
	for _, at := range starts {
		c := &counts[at.at]
		key, err := s.first(at.low, after(queuePrefix(store.Waiting, c.Queue)))
		if err != nil {
			return nil, err
		}
		if key == nil {
			continue
		}
		c.NextDue = dueOf(key)
		value, err := s.get(key)
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue // it has just been returned
		}
		if r, _, err := store.DecodeRecord(value, false); err == nil {
			c.NextFailed = r.FailedAt
		}
	}
	return counts, nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, f store.Filter) (store.Page, error) {
	done, err := s.use(ctx)
	if err != nil {
		return store.Page{}, err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	from, err := hex.DecodeString(f.After)
	if err != nil {
		return store.Page{}, fmt.Errorf("%q is not the end of a page", f.After)
	}
	l := listing{ctx: ctx, filter: f, from: from}
	if f.ID != uuid.Nil {
		err = l.byID(snap)
	} else {
		for _, state := range []store.State{store.Parked, store.Waiting} { // as their keys sort
			if f.State != 0 && f.State != state {
				continue
			}
			prefix := []byte{prefixOf(state)}
			if f.Queue != "" {
				prefix = queuePrefix(state, f.Queue)
			}
			if err = l.scan(snap, prefix); err != nil || l.page.After != "" {
				break
			}
		}
	}
	return l.page, err
}

// listing gathers one page.
type listing struct {
	ctx    context.Context
	filter store.Filter
	from   []byte // the last key of the page before
	page   store.Page
	last   []byte
}

func (l *listing) scan(db pebble.Reader, prefix []byte) error {
	low := prefix
	if len(l.from) > 0 && bytes.Compare(l.from, low) >= 0 {
		low = append(bytes.Clone(l.from), 0)
	}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if more, err := l.show(it.Key(), it.Value()); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// byID shows the few records that carry an ID, in one page.
func (l *listing) byID(db pebble.Reader) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: idKey(l.filter.ID, 0), UpperBound: idKey(l.filter.ID, 1<<64-1)})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		value, closer, err := db.Get(it.Value())
		if err != nil {
			return fmt.Errorf("the record of id %s: %w", l.filter.ID, err)
		}
		more, err := l.show(it.Value(), value)
		if closer.Close(); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// show adds a record to the page, or says that the page is full.
func (l *listing) show(key, value []byte) (more bool, err error) {
	if err := l.ctx.Err(); err != nil {
		return false, err
	}
	r, size, err := store.DecodeRecord(value, l.filter.Body)
	if err != nil {
		return false, fmt.Errorf("key %x: %w", key, err)
	}
	if l.filter.State != 0 && r.State != l.filter.State || l.filter.Queue != "" && r.Queue != l.filter.Queue {
		return true, nil
	}
	if len(l.page.Records) == l.filter.Max() {
		l.page.After = hex.EncodeToString(l.last)
		return false, nil
	}
	l.page.Records = append(l.page.Records, store.Listed{Key: printable(key), Record: r, BodySize: size})
	l.last = bytes.Clone(key)
	return true, nil
}

// Receipts implements store.Store.
func (s *Store) Receipts(ctx context.Context) ([]store.Receipt, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.receipts.read(s.db)
}
