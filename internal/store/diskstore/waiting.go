package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// queue is what is kept in memory of one work queue. Its size does not depend on
// how many messages wait, but for claims, which are few.
type queue struct {
	waiting, parked int64
	// low: no waiting record before this key is unclaimed. Without it each claim
	// would wade through the graves of all that was returned before.
	low []byte
	// next is when the first unclaimed record is due; zero when there is none.
	next time.Time
	// claimed has the keys on loan; false while the loan is being settled, so
	// that a claim given twice is counted once.
	claimed map[string]bool
}

func (s *Store) queue(name string) *queue {
	q := s.queues[name]
	if q == nil {
		q = &queue{low: queuePrefix(store.Waiting, name), claimed: map[string]bool{}}
		s.queues[name] = q
	}
	return q
}

// ready notes that the record with this key may be claimed.
func (q *queue) ready(key []byte) {
	if bytes.Compare(key, q.low) < 0 {
		q.low = bytes.Clone(key)
	}
	if due := dueOf(key); q.next.IsZero() || due.Before(q.next) {
		q.next = due
	}
}

func (q *queue) count(state store.State, n int64) {
	if state == store.Parked {
		q.parked += n
	} else {
		q.waiting += n
	}
}

// change is a set of writes that become visible and durable together.
type change struct {
	s      *Store
	batch  *pebble.Batch
	value  []byte               // scratch: the batch copies it
	counts map[string]*[3]int64 // by queue, then state
}

func (s *Store) change() *change {
	return &change{s: s, batch: s.db.NewBatch(), counts: map[string]*[3]int64{}}
}

func (c *change) count(state store.State, queue string, n int64) {
	if c.counts[queue] == nil {
		c.counts[queue] = new([3]int64)
	}
	c.counts[queue][state] += n
}

// put writes a record under its key.
func (c *change) put(key []byte, r *store.Record) error {
	var err error
	if c.value, err = store.AppendRecord(c.value[:0], r); err != nil {
		return fmt.Errorf("message %s of queue %q: %w", r.ID, r.Queue, err)
	}
	c.count(r.State, r.Queue, 1)
	if err := c.batch.Set(key, c.value, nil); err != nil {
		return err
	}
	return c.batch.Set(idKey(r.ID, seqOf(key)), key, nil)
}

// remove takes a record away, and its id too unless it is put elsewhere.
func (c *change) remove(key []byte, state store.State, r *store.Record, moved bool) error {
	c.count(state, r.Queue, -1)
	if err := c.batch.Delete(key, nil); err != nil || moved {
		return err
	}
	return c.batch.Delete(idKey(r.ID, seqOf(key)), nil)
}

// commit makes it all durable, then says so to the counts in memory.
func (c *change) commit() error {
	for name, by := range c.counts {
		for state, n := range by {
			if n != 0 {
				if err := c.batch.Merge(countKey(store.State(state), name), binary.AppendVarint(nil, n), nil); err != nil {
					return err
				}
			}
		}
	}
	if err := c.s.commit(c.batch); err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for name, by := range c.counts {
		for state, n := range by {
			c.s.queue(name).count(store.State(state), n)
		}
	}
	return nil
}

func (c *change) close() { _ = c.batch.Close() }

// Add implements store.Store.
func (s *Store) Add(ctx context.Context, records []*store.Record) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	size := 0
	for _, r := range records {
		size += len(r.Message.Body) + 1024
	}
	if err := s.room(size); err != nil {
		return err
	}
	c := s.change()
	defer c.close()
	last := s.seq.Add(uint64(len(records)))
	keys := make([][]byte, len(records))
	for i, r := range records {
		keys[i] = recordKey(r.State, r.Queue, r.Due, last-uint64(len(records)-1-i))
		if err := c.put(keys[i], r); err != nil {
			return err
		}
	}
	if err := c.batch.Merge(keySeq, binary.AppendVarint(nil, int64(len(records))), nil); err != nil {
		return err
	}
	if err := s.receipts.write(c.batch, receiptsOf(records)); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.mu.Lock()
	for i, r := range records {
		if r.State == store.Waiting {
			s.queue(r.Queue).ready(keys[i])
		}
	}
	s.mu.Unlock()
	s.signal()
	return nil
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, name string, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue(name)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: q.low, UpperBound: after(queuePrefix(store.Waiting, name))})
	if err != nil {
		return nil, err
	}
	var claims []store.Claim
	var next time.Time
	for it.First(); it.Valid(); it.Next() {
		key := it.Key()
		if _, ok := q.claimed[string(key)]; ok {
			continue
		}
		due := dueOf(key)
		full := due.After(upTo) || len(claims) == n
		var r *store.Record
		if !full {
			value, err := it.ValueAndErr()
			if err == nil {
				r, _, err = store.DecodeRecord(value, true)
			}
			if err != nil {
				s.unclaim(q, claims)
				_ = it.Close()
				return nil, fmt.Errorf("data folder %s, key %x: %w", s.path, key, err)
			}
			full = len(claims) > 0 && len(r.Message.Body) > maxBytes
		}
		if full {
			next, q.low = due, bytes.Clone(key)
			break
		}
		maxBytes -= len(r.Message.Body)
		q.claimed[string(key)] = true
		claims = append(claims, store.Claim{Key: printable(key), Token: string(key), Record: r})
	}
	if err := it.Close(); err != nil {
		s.unclaim(q, claims)
		return nil, err
	}
	// Only now: after an error the queue must still be asked again.
	q.next = next
	if next.IsZero() && len(claims) > 0 {
		q.low = append([]byte(claims[len(claims)-1].Token), 0)
	}
	return claims, nil
}

// printable names a record by the number that never changes while it is kept.
func printable(key []byte) store.Key { return store.Key(strconv.FormatUint(seqOf(key), 10)) }

// unclaim makes claims claimable again. The caller holds mu.
func (s *Store) unclaim(q *queue, claims []store.Claim) {
	for _, c := range claims {
		if q.claimed[c.Token] {
			delete(q.claimed, c.Token)
			q.ready([]byte(c.Token))
		}
	}
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, claims []store.Claim) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.mu.Lock()
	for _, c := range claims {
		s.unclaim(s.queue(c.Record.Queue), []store.Claim{c})
	}
	s.mu.Unlock()
	s.signal()
	return nil
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	c := s.change()
	defer c.close()
	var settled []store.Claim
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range settled {
			if claimed := s.queue(c.Record.Queue).claimed; err != nil {
				claimed[c.Token] = true
			} else {
				delete(claimed, c.Token)
			}
		}
	}()
	for _, o := range outcomes {
		r, key := o.Claim.Record, []byte(o.Claim.Token)
		s.mu.Lock()
		claimed := s.queue(r.Queue).claimed
		held := claimed[o.Claim.Token]
		if held {
			claimed[o.Claim.Token] = false
		}
		s.mu.Unlock()
		if !held {
			continue
		}
		settled = append(settled, o.Claim)
		if err := c.remove(key, store.Waiting, r, o.Park != ""); err != nil {
			return 0, err
		}
		if o.Park != "" {
			parked := *r
			parked.State, parked.ParkedFor, parked.Due = store.Parked, o.Park, o.At
			if err := c.put(recordKey(store.Parked, r.Queue, o.At, seqOf(key)), &parked); err != nil {
				return 0, err
			}
		}
	}
	if err := c.commit(); err != nil {
		return 0, err
	}
	return len(settled), nil
}

// Next implements store.Store.
func (s *Store) Next(ctx context.Context) ([]store.NextDue, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	var next []store.NextDue
	for name, q := range s.queues {
		if !q.next.IsZero() {
			next = append(next, store.NextDue{Queue: name, Due: q.next})
		}
	}
	return next, nil
}
