package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// queue is what is kept in memory of one work queue. Its size does not depend on
// how many messages wait, but for claims, which are few.
type queue struct {
	kept store.Sums // and what came and went
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

// change is a set of writes that become visible and durable together.
type change struct {
	s      *Store
	batch  *pebble.Batch
	value  []byte                 // scratch: the batch copies it
	counts map[string]*store.Sums // by queue
	groups map[*groupState]*grouped
	like   *store.Record // the last that was counted,
	last   *grouped      // in this group
	began  time.Time
	fails  bool // what is put are new failures
	past   passages
}

// change begins one of about size bytes, which saves growing to that.
func (s *Store) change(size int) *change {
	return &change{s: s, batch: s.db.NewBatchWithSize(size), counts: map[string]*store.Sums{}, groups: map[*groupState]*grouped{}, began: time.Now()}
}

func (c *change) count(as store.Column, queue string, n int64) {
	if c.counts[queue] == nil {
		c.counts[queue] = new(store.Sums)
	}
	c.counts[queue][as] += n
}

// put writes a record under its key.
func (c *change) put(key []byte, r *store.Record) (err error) {
	if c.value, err = store.AppendRecord(c.value[:0], r); err != nil {
		return fmt.Errorf("message %s of queue %q: %w", r.ID, r.Queue, err)
	}
	c.count(store.Column(r.State), r.Queue, 1)
	g := c.group(r)
	g.more.reasons |= store.ReasonsOf(r.Reason)
	if g.more.kept[r.State]++; c.fails {
		g.failed(r.FailedAt, c.began)
	}
	if err := c.batch.Set(key, c.value, nil); err != nil {
		return err
	}
	// Waiting records, which come and go by the thousand, have no place in the index.
	if r.State != store.Waiting {
		if err := c.batch.Set(groupKey(g.ID, r.State, key), key, nil); err != nil {
			return err
		}
	}
	return c.batch.Set(idKey(r.ID, seqOf(key)), key, nil)
}

// add writes new records and returns their keys. The caller holds adding until
// they are committed.
func (c *change) add(records []*store.Record) (keys [][]byte, err error) {
	first := c.s.seq.Add(uint64(len(records))) - uint64(len(records)) + 1
	for i, r := range records {
		key, err := keyOf(r, first+uint64(i))
		if err == nil {
			err = c.put(key, r)
		}
		if err != nil {
			return nil, err
		}
		c.count(store.In, r.Queue, 1)
		keys = append(keys, key)
	}
	return keys, c.batch.Merge(keySeq, binary.AppendVarint(nil, int64(len(records))), nil)
}

// remove takes a record away, r being as it was, and its id too unless it is put
// elsewhere.
func (c *change) remove(key []byte, r *store.Record, moved bool) error {
	c.count(store.Column(r.State), r.Queue, -1)
	g := c.group(r)
	g.more.kept[r.State]--
	if r.State != store.Waiting {
		if err := c.batch.Delete(groupKey(g.ID, r.State, key), nil); err != nil {
			return err
		}
	}
	if err := c.batch.Delete(key, nil); err != nil || moved {
		return err
	}
	return c.batch.Delete(idKey(r.ID, seqOf(key)), nil)
}

// commit makes it all durable, then says so to the counts in memory.
func (c *change) commit() (err error) {
	failed, err := c.s.writePassing(c.batch)
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
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for name, sums := range c.counts {
		c.s.queue(name).kept.Add(sums)
	}
	return nil
}

// commitWithPast lets nobody look for what ended in the batch between the two: it
// would be nowhere.
func (c *change) commitWithPast() error {
	if c.past.n == 0 {
		return c.s.commit(c.batch)
	}
	c.s.ending.RLock()
	defer c.s.ending.RUnlock()
	if err := c.s.commit(c.batch); err != nil {
		return err
	}
	c.s.history.write(&c.past)
	return nil
}

// ended waits until what is no longer kept is in the history.
func (s *Store) ended() {
	s.ending.Lock()
	s.ending.Unlock()
}

func (c *change) close() {
	c.unuse()
	_ = c.batch.Close()
}

// sizeOf is about how much room records take.
func sizeOf(records []*store.Record) (n int) {
	for _, r := range records {
		n += len(r.Message.Body) + 1024
	}
	return n
}

// Add implements store.Store.
func (s *Store) Add(ctx context.Context, records []*store.Record) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	size := sizeOf(records)
	if err := s.room(size, s.reserve); err != nil {
		return err
	}
	c := s.change(size)
	defer c.close()
	c.fails = true
	s.adding.RLock()
	defer s.adding.RUnlock()
	keys, err := c.add(records)
	if err != nil {
		return err
	}
	if err := s.receipts.write(c.batch, receiptsOf(records)); err != nil {
		return err
	}
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

// ready notes that a record was kept under key. The caller holds mu.
func (s *Store) ready(key []byte) {
	if key[0] == prefixWaiting {
		s.queue(queueOf(key)).ready(key)
	}
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
		token := string(key)
		q.claimed[token] = true
		claims = append(claims, store.Claim{Key: store.MakeKey(r.ID, seqOf(key)), Token: token, Record: r})
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

// settledSize is about what it takes to delete a record.
const settledSize = 96

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	c := s.change(len(outcomes) * settledSize)
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
		if err := c.remove(key, r, o.Park != ""); err != nil {
			return 0, err
		}
		if o.Park != "" {
			parked := *r
			parked.State, parked.ParkedFor, parked.Due = store.Parked, o.Park, o.At
			if err := c.put(recordKey(store.Parked, r.Queue, o.At, seqOf(key)), &parked); err != nil {
				return 0, err
			}
			continue
		}
		ending, as := store.EndedReturned, store.Returned
		if r.Forward != nil {
			ending, as = store.EndedForwarded, store.Forwarded
		}
		c.count(as, r.Queue, 1)
		p := store.PassageOf(r, o.At, ending)
		c.past.add(&p)
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
