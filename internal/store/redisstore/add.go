package redisstore

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// Add implements store.Store. A batch is added in one step, so that it is all or none.
func (s *Store) Add(ctx context.Context, records []*store.Record) (err error) {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	b, err := s.batch(records, true)
	if err != nil {
		return err
	}
	try := s.pending.begin(store.HashOf(records), s.token())
	defer func() { s.pending.end(try, err == nil || undone(err) && !try.wasInDoubt) }()
	if try.wasInDoubt { // where it was added there may be no room now
		var was bool
		if was, err = s.wasAdded(ctx, try); was || err != nil {
			return err
		}
	}
	if err = s.checkMemory(ctx, b.size, 1); err != nil {
		return err
	}
	receipts := s.receipts(store.ReceiptsOf(records))
	args := append([]string{s.name, itoa(try.position), try.token, itoa(addedFor.Milliseconds())}, b.args()...)
	args = append(append(args, b.groups.args()...), receipts...)
	if _, err := s.write(ctx, scriptAdd, args...); err != nil {
		return err
	}
	s.signal()
	return nil
}

// wasAdded tells whether Redis has a batch that was in doubt, and makes sure that it is safe.
func (s *Store) wasAdded(ctx context.Context, try pendingBatch) (bool, error) {
	m, err := s.write(ctx, scriptAdded, s.name, itoa(try.position), try.token)
	if err != nil {
		return false, err
	}
	n, err := m.AsInt64()
	if err != nil || n == 0 {
		return false, s.wrapError(err)
	}
	s.signal()
	return true, nil
}

// batch is what a script adds.
type batch struct {
	records []string // arguments of lua/records.lua's add, of n records
	n       int
	groups  groupChanges
	size    int // of the records in memory, about
}

// args are those of add in lua/records.lua.
func (b *batch) args() []string { return append([]string{itoa(b.n)}, b.records...) }

// overhead is what a message takes besides its record (see docs/how-to/redis.md), of which up
// to a fifth is lost on the sizes that memory is given out in.
const overhead = 400

// batch makes one of new records; failed counts them as failures.
func (s *Store) batch(records []*store.Record, failed bool) (b batch, err error) {
	b.groups, b.records = groupChanges{}, make([]string, 0, 4*len(records))
	return b, b.add(s, records, failed)
}

func (b *batch) add(s *Store, records []*store.Record, failed bool) error {
	now := time.Now()
	for _, r := range records {
		saw, err := b.put(s, r)
		if err != nil {
			return err
		}
		if failed {
			saw.failed(r.FailedAt, now)
		}
	}
	return nil
}

// put adds a record, and returns what is seen of its group.
func (b *batch) put(s *Store, r *store.Record) (*groupChange, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	g := s.groups.of(r)
	v, err := value(g.ID, r)
	if err != nil {
		return nil, err
	}
	b.n++
	b.size += len(v)*5/4 + overhead
	b.records = append(b.records, place(r), micros(r), idText(r.ID), rueidis.BinaryString(v))
	saw := b.groups.of(g)
	saw.reasons |= store.ReasonsOf(r.Reason)
	return saw, nil
}
