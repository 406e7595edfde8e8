package diskstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

func (s *Store) Claim(ctx context.Context, which store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lane(which)
	if !l.again.IsZero() && !time.Now().Before(l.again) { // the disk may be able to read what was left out
		l.low, l.again = lanePrefix(which), time.Time{}
	}
	it, err := s.walkNoting(s.db, l.low, after(lanePrefix(which)), l.leftOut)
	if err != nil {
		return nil, err
	}
	claims, rest, err := s.claimFirst(l, it, upTo, n, maxBytes)
	if closing := it.Close(); err == nil {
		err = closing
	}
	if err != nil {
		s.unclaim(claims)
		return nil, err
	}
	// Only now: after an error the lane must still be claimed from again.
	l.next = time.Time{}
	if rest != nil {
		l.low, l.next = rest, dueOf(rest)
	} else if len(claims) > 0 {
		l.low = append([]byte(claims[len(claims)-1].Token), 0)
	}
	return claims, nil
}

// claimFirst claims the first records of a lane, within the limits. rest is the key of the
// first record beyond them; nil: there is none.
func (s *Store) claimFirst(
	l *lane, it *walk, upTo time.Time, n, maxBytes int,
) (claims []store.Claim, rest []byte, err error) {
	for it.First(); it.Valid(); it.Next() {
		key := it.Key()
		if _, ok := l.claimed[string(key)]; ok {
			continue
		}
		lazy := it.LazyValue()
		if dueOf(key).After(upTo) || len(claims) == n ||
			len(claims) > 0 && lazy.Len()-largeValue > maxBytes { // without reading the record
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

func (l *lane) leftOut() {
	if l.again.IsZero() {
		l.again = time.Now().Add(eioKept)
	}
}

// unclaim makes claims claimable again. The caller holds mu.
func (s *Store) unclaim(claims []store.Claim) {
	for _, c := range claims {
		if l := s.lane(c.Record.Lane()); l.claimed[c.Token] {
			delete(l.claimed, c.Token)
			l.ready([]byte(c.Token))
		}
	}
}

func (s *Store) Release(ctx context.Context, claims []store.Claim) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.mu.Lock()
	s.unclaim(claims)
	s.mu.Unlock()
	s.signal()
	return nil
}

// finishedSize is about how many bytes it takes to delete a record.
const finishedSize = 96

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
			c.count(r.EverParked(), r.Queue, 1)
			continue
		}
		ending, as := r.Ended()
		c.count(as, r.Queue, 1)
		c.past.add(store.PastFailureOf(r, o.At, ending))
	}
	if err := c.commit(); err != nil {
		return 0, err
	}
	return len(finished), nil
}

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
				due = l.again
			}
			if !due.IsZero() {
				next = append(next, store.NextDue{Lane: at, Due: due})
			}
		})
	}
	return next, nil
}

// queue is the state in memory of one work queue. Its size does not depend on how many
// messages wait, except for claims, which are few.
type queue struct {
	kept store.Sums
	lane
	// forwards are the lanes of its forward targets; nil: there are none.
	forwards map[store.Destination]*lane
	// used is when a message of it was last counted; zero: not since the start.
	used time.Time
}

type lane struct {
	// low: all waiting records before this key are claimed. Without it each claim would read the tombstones of all
	// earlier retries.
	low []byte
	// next is when the first unclaimed record is due; zero when there is none.
	next time.Time
	// again is when to look again for records that could not be read, as the disk may
	// read them then; zero: none was left out.
	again time.Time
	// claimed has the tokens of claims, and the keys that a Change holds. The value is
	// false for the latter, and for a claim being finished, so that Finish counts none twice.
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

// lane returns the state of a lane. The caller holds mu.
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

func (q *queue) lanes(name string, visit func(store.Lane, *lane)) {
	visit(store.Lane{Queue: name}, &q.lane)
	for to, l := range q.forwards {
		visit(store.Lane{Queue: name, Forward: to}, l)
	}
}

func (l *lane) ready(key []byte) {
	if bytes.Compare(key, l.low) < 0 {
		l.low = bytes.Clone(key)
	}
	if due := dueOf(key); l.next.IsZero() || due.Before(l.next) {
		l.next = due
	}
}

// ready makes the record under key claimable if it waits. The caller holds mu.
func (s *Store) ready(key []byte) {
	if isWaiting(key) {
		s.lane(laneOf(key)).ready(key)
	}
}

func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, limit int64) ([]int64, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	counts := make([]int64, len(edges))
	for _, name := range queues {
		for lane, low := range s.lowest(name) {
			if err := s.countDue(ctx, lane, low, edges, counts, limit); err != nil {
				return nil, err
			}
		}
	}
	return counts, nil
}

func (s *Store) countDue(
	ctx context.Context, lane store.Lane, low []byte, edges []time.Time, counts []int64, limit int64,
) error {
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
			if counts[i] == limit {
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

// lowest returns, for each lane of a queue, a key before which no record waits: the
// tombstones of retried records there are slow to read.
func (s *Store) lowest(name string) map[store.Lane][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[store.Lane][]byte{}
	s.queue(name).lanes(name, func(at store.Lane, l *lane) { all[at] = l.lowest() })
	return all
}

// lowest returns a key before which no record of the lane waits, claimed or not.
func (l *lane) lowest() []byte {
	low := string(l.low)
	for key := range l.claimed {
		low = min(low, key)
	}
	return []byte(low)
}

func (s *Store) loadQueues() error {
	err := eachSum(s.db, func(as store.Column, queue string, n int64) {
		if n != 0 {
			s.queue(queue).kept[as] += n
		}
	})
	if err != nil {
		return err
	}
	var starts []start
	for name, q := range s.queues {
		if q.kept[store.Waiting] != 0 {
			starts = append(starts, start{lane: store.Lane{Queue: name}, low: q.low})
		}
	}
	targets, someLeftOut, err := s.forwards(s.db, []byte{prefixForward})
	if err != nil {
		return err
	}
	if someLeftOut {
		s.targetsAgain = time.Now().Add(eioKept)
	}
	for _, l := range targets {
		starts = append(starts, start{lane: l, low: lanePrefix(l)})
	}
	leftOut, err := s.firsts(starts, func(at start, key, _ []byte) error {
		l := s.lane(at.lane)
		l.low, l.next = bytes.Clone(key), dueOf(key)
		return nil
	})
	if leftOut { // a record of some lane, which may be readable later
		for _, at := range starts {
			s.lane(at.lane).leftOut()
		}
	}
	return err
}

// forwards returns the lanes of forward targets among the keys with a prefix. leftOut is true
// when some keys could not be read.
func (s *Store) forwards(db pebble.Reader, prefix []byte) (all []store.Lane, leftOut bool, err error) {
	it, err := s.walkNoting(db, prefix, after(prefix), func() { leftOut = true })
	if err != nil {
		return nil, false, err
	}
	for more := it.First(); more; {
		key := it.Key()
		all = append(all, laneOf(key))
		more = it.SeekGE(after(key[:len(key)-placeSize]))
	}
	return all, leftOut, errors.Join(it.Error(), it.Close())
}

// lookForTargets finds lanes of forward targets that could not be read when the store was opened, once the disk may be
// able to. The caller holds mu.
func (s *Store) lookForTargets() error {
	now := time.Now()
	if s.targetsAgain.IsZero() || now.Before(s.targetsAgain) {
		return nil
	}
	targets, _, err := s.forwards(s.db, []byte{prefixForward})
	if err == nil {
		s.targetsAgain = time.Time{}
	}
	for _, l := range targets {
		if q := s.queue(l.Queue); q.forwards[l.Forward] == nil {
			s.lane(l).again = now // Claim finds its records
		}
	}
	return err
}

type start struct {
	lane store.Lane
	low  []byte
	at   int
}

// firsts visits the first record of each start, with one iterator for all: there may be
// thousands of queues. leftOut is true when some keys could not be read.
func (s *Store) firsts(starts []start, visit func(at start, key, value []byte) error) (leftOut bool, err error) {
	slices.SortFunc(starts, func(a, b start) int { return bytes.Compare(a.low, b.low) })
	it, err := s.walkNoting(s.db, []byte{prefixForward}, []byte{prefixWaiting + 1}, func() { leftOut = true })
	if err != nil {
		return false, err
	}
	for _, at := range starts {
		if !it.SeekGE(at.low) {
			if it.Error() != nil {
				break
			}
			continue
		}
		if !bytes.HasPrefix(it.Key(), lanePrefix(at.lane)) {
			continue
		}
		value, err := it.ValueAndErr() // nil where it cannot be read
		if err = s.damage.unreadable(it.Key(), err); err == nil {
			err = visit(at, it.Key(), value)
		}
		if err != nil {
			return leftOut, errors.Join(err, it.Close())
		}
	}
	return leftOut, errors.Join(it.Error(), it.Close())
}

func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var counts []store.QueueCount
	var starts []start
	s.mu.Lock()
	for name, q := range s.queues {
		if q.kept[store.Waiting]|q.kept[store.Parked]|q.kept[store.Discarded] == 0 {
			continue
		}
		if q.kept[store.Waiting] > 0 {
			q.lanes(name, func(at store.Lane, l *lane) { // claimed records still count as waiting
				starts = append(starts, start{lane: at, low: l.lowest(), at: len(counts)})
			})
		}
		counts = append(counts, store.QueueCount{Queue: name, Waiting: q.kept[store.Waiting],
			Parked: q.kept[store.Parked], Discarded: q.kept[store.Discarded]})
	}
	s.mu.Unlock()
	first := make([][]byte, len(counts)) // places
	_, err = s.firsts(starts, func(at start, key, value []byte) error {
		c, place := &counts[at.at], placeOf(key)
		if was := first[at.at]; was != nil && bytes.Compare(was, place) <= 0 {
			return nil
		}
		first[at.at], c.NextDue = bytes.Clone(place), dueOf(key)
		if r, _, err := store.DecodeRecord(value, false); err == nil {
			c.NextFailed = r.FailedAt
		}
		return nil
	})
	return counts, err
}
