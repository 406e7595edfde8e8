package diskstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, which store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lane(which)
	l.lookBelow(which)
	it, err := s.walkNoting(s.db, l.low, after(lanePrefix(which)), l.leftOut)
	if err != nil {
		return nil, err
	}
	claims, rest, err := s.claimFirst(l, it, upTo, n, maxBytes)
	if closing := it.Close(); err == nil {
		err = closing
	}
	if err != nil {
		s.unclaim(l, claims)
		return nil, err
	}
	// Only now: after an error the lane must still be asked again.
	l.next = time.Time{}
	if rest != nil {
		l.low, l.next = rest, dueOf(rest)
	} else if len(claims) > 0 {
		l.low = append([]byte(claims[len(claims)-1].Token), 0)
	}
	return claims, nil
}

// claimFirst claims the first records of a lane, within the bounds. rest is the key of the
// first record beyond them; nil: there is none.
func (s *Store) claimFirst(l *lane, it *walk, upTo time.Time, n, maxBytes int) (claims []store.Claim, rest []byte, err error) {
	for it.First(); it.Valid(); it.Next() {
		key := it.Key()
		if _, ok := l.claimed[string(key)]; ok {
			continue
		}
		lazy := it.LazyValue()
		if dueOf(key).After(upTo) || len(claims) == n || len(claims) > 0 && lazy.Len()-largeValue > maxBytes { // the record itself is not read
			return claims, bytes.Clone(key), nil
		}
		r, err := s.recordAt(it, true)
		if err != nil {
			return claims, nil, fmt.Errorf("data folder %s, %w", s.path, err)
		}
		if r == nil {
			l.leftOut()
			continue
		}
		if len(claims) > 0 && len(r.Message.Body) > maxBytes {
			return claims, bytes.Clone(key), nil
		}
		maxBytes -= len(r.Message.Body)
		token := string(key)
		l.claimed[token] = true
		claims = append(claims, store.Claim{Key: store.MakeKey(r.ID, seqOf(key)), Token: token, Record: r})
	}
	return claims, nil, nil
}

// recordAt is the record where the walk is, with its body or without; nil: it cannot be read.
func (s *Store) recordAt(it *walk, body bool) (r *store.Record, err error) {
	key := it.Key()
	value, err := it.ValueAndErr()
	if err == nil {
		r, _, err = store.DecodeRecord(value, body)
	}
	if err := s.damage.unreadable(key, err); err != nil {
		return nil, fmt.Errorf("key %x: %w", key, err)
	}
	return r, nil
}

// leftOut notes that something could not be read.
func (l *lane) leftOut() {
	if l.again.IsZero() {
		l.again = time.Now().Add(eioKept)
	}
}

// lookBelow makes a lane that left something out begin at its first record again, once
// the disk may read it.
func (l *lane) lookBelow(which store.Lane) {
	if !l.again.IsZero() && !time.Now().Before(l.again) {
		l.low, l.again = lanePrefix(which), time.Time{}
	}
}

// unclaim makes claims claimable again. The caller holds mu.
func (s *Store) unclaim(l *lane, claims []store.Claim) {
	for _, c := range claims {
		if l.claimed[c.Token] {
			delete(l.claimed, c.Token)
			l.ready([]byte(c.Token))
		}
	}
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, claims []store.Claim) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.mu.Lock()
	for _, c := range claims {
		s.unclaim(s.lane(c.Record.Lane()), []store.Claim{c})
	}
	s.mu.Unlock()
	s.signal()
	return nil
}

// finishedSize is about what it takes to delete a record.
const finishedSize = 96

// Finish implements store.Store.
func (s *Store) Finish(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	c := s.newWriteBatch(len(outcomes) * finishedSize)
	defer c.close()
	var finished []store.Claim
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range finished {
			if claimed := s.lane(c.Record.Lane()).claimed; err != nil {
				claimed[c.Token] = true
			} else {
				delete(claimed, c.Token)
			}
		}
	}()
	for _, o := range outcomes {
		r, key := o.Claim.Record, []byte(o.Claim.Token)
		s.mu.Lock()
		claimed := s.lane(r.Lane()).claimed
		held := claimed[o.Claim.Token]
		if held {
			claimed[o.Claim.Token] = false
		}
		s.mu.Unlock()
		if !held {
			continue
		}
		finished = append(finished, o.Claim)
		if err := c.remove(key, r, o.Park != ""); err != nil {
			return 0, err
		}
		if o.Park != "" {
			parked := *r
			parked.State, parked.ParkedFor, parked.Due = store.Parked, o.Park, o.At
			if err := c.put(keyOf(&parked, seqOf(key)), &parked); err != nil {
				return 0, err
			}
			c.count(store.EverParked, r.Queue, 1)
			continue
		}
		ending, as := r.Ended()
		c.count(as, r.Queue, 1)
		p := store.PastFailureOf(r, o.At, ending)
		c.past.add(&p)
	}
	if err := c.commit(); err != nil {
		return 0, err
	}
	return len(finished), nil
}

// Next implements store.Store.
func (s *Store) Next(ctx context.Context) ([]store.NextDue, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lookForTargets(); err != nil {
		return nil, err
	}
	var next []store.NextDue
	for name, q := range s.queues {
		q.lanes(name, func(at store.Lane, l *lane) {
			due := l.next
			if !l.again.IsZero() && (due.IsZero() || l.again.Before(due)) {
				due = l.again // what is due by then is a claim's to find
			}
			if !due.IsZero() {
				next = append(next, store.NextDue{Lane: at, Due: due})
			}
		})
	}
	return next, nil
}

// queue is what is kept in memory of one work queue. Its size does not depend on
// how many messages wait, but for claims, which are few.
type queue struct {
	kept store.Sums // and what came and went
	lane            // of the queue itself
	// forwards are the lanes of its forward targets; nil: there are none.
	forwards map[store.Destination]*lane
	// used is when something was last counted of it; zero: not since the start.
	used time.Time
}

// lane is what is kept in memory of one.
type lane struct {
	// low: all waiting records before this key are claimed. Without it each claim
	// would read the tombstones of all that was retried before.
	low []byte
	// next is when the first unclaimed record is due; zero when there is none.
	next time.Time
	// again: a claim left out what could not be read, and this is when it is looked for
	// again, as a disk may read then; zero: nothing was left out.
	again time.Time
	// claimed has the tokens of claims, and the keys that a Change holds. It is false for
	// those, and for a claim that is being finished: so Finish counts none twice.
	claimed map[string]bool
}

func newLane(l store.Lane) lane { return lane{low: lanePrefix(l), claimed: map[string]bool{}} }

func (s *Store) queue(name string) *queue {
	q := s.queues[name]
	if q == nil {
		q = &queue{lane: newLane(store.Lane{Queue: name})}
		s.queues[name] = q
	}
	return q
}

// lane is what is known of a lane. The caller holds mu.
func (s *Store) lane(l store.Lane) *lane {
	q := s.queue(l.Queue)
	if !l.Forwards() {
		return &q.lane
	}
	if q.forwards[l.Forward] == nil {
		if q.forwards == nil {
			q.forwards = map[store.Destination]*lane{}
		}
		made := newLane(l)
		q.forwards[l.Forward] = &made
	}
	return q.forwards[l.Forward]
}

// lanes visits a queue's lanes.
func (q *queue) lanes(name string, visit func(store.Lane, *lane)) {
	visit(store.Lane{Queue: name}, &q.lane)
	for to, l := range q.forwards {
		visit(store.Lane{Queue: name, Forward: to}, l)
	}
}

// ready notes that the record with this key may be claimed.
func (l *lane) ready(key []byte) {
	if bytes.Compare(key, l.low) < 0 {
		l.low = bytes.Clone(key)
	}
	if due := dueOf(key); l.next.IsZero() || due.Before(l.next) {
		l.next = due
	}
}

// ready notes that a record was kept under key. The caller holds mu.
func (s *Store) ready(key []byte) {
	if isWaiting(key) {
		s.lane(laneOf(key)).ready(key)
	}
}

// CountDue implements store.Searcher. It reads keys, and no record.
func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	counts := make([]int64, len(edges))
	for _, name := range queues {
		for lane, low := range s.lowest(name) {
			if err := s.countDue(ctx, lane, low, edges, counts, most); err != nil {
				return nil, err
			}
		}
	}
	return counts, nil
}

func (s *Store) countDue(ctx context.Context, lane store.Lane, low []byte, edges []time.Time, counts []int64, most int64) error {
	prefix := lanePrefix(lane)
	it, err := s.walk(s.db, low, after(prefix))
	if err != nil {
		return err
	}
	defer it.Close()
	valid := it.First()
	for i, edge := range edges {
		end := slices.Concat(prefix, placeFrom(edge))
		for valid && bytes.Compare(it.Key(), end) < 0 {
			if counts[i] == most {
				valid = it.SeekGE(end)
				break
			}
			counts[i]++
			valid = it.Next()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return it.Error()
}

// lowest has, for each lane of a queue, a key before which no record waits: what was
// retried left tombstones there, which are slow to read.
func (s *Store) lowest(name string) map[store.Lane][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[store.Lane][]byte{}
	s.queue(name).lanes(name, func(at store.Lane, l *lane) { all[at] = l.lowest() })
	return all
}

// lowest is a key before which no record of the lane waits, claimed or not.
func (l *lane) lowest() []byte {
	low := string(l.low)
	for key := range l.claimed {
		low = min(low, key)
	}
	return []byte(low)
}
