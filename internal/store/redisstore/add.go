package redisstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// Add implements store.Store. One script adds the whole batch.
func (s *Store) Add(ctx context.Context, records []*store.Record) (err error) {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	b := batch{groups: groupChanges{}}
	if err := b.add(s, records, true); err != nil {
		return err
	}
	try := s.pending.begin(store.HashOf(records), s.token())
	defer func() { s.pending.end(try, err == nil || undone(err) && !try.wasInDoubt) }()
	if try.wasInDoubt { // if it was added, there may be no room now
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

// wasAdded reports whether Redis has a batch that was in doubt, and waits until that is durable.
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
	records []string // arguments of lua/records.lua's add, for n records
	n       int
	groups  groupChanges
	size    int // memory of the records, about
}

// args returns the arguments of add in lua/records.lua.
func (b *batch) args() []string { return append([]string{itoa(b.n)}, b.records...) }

// overhead is what a message takes besides its record (see docs/how-to/redis.md), up to a fifth of it because of
// allocation sizes.
const overhead = 400

// add adds new records; failed counts them as failures.
func (b *batch) add(s *Store, records []*store.Record, failed bool) error {
	now := time.Now()
	b.records = slices.Grow(b.records, 4*len(records))
	for _, r := range records {
		if err := r.Validate(); err != nil {
			return err
		}
		g := s.groups.of(r)
		v, err := value(g.ID, r)
		if err != nil {
			return err
		}
		saw, at := b.groups.of(g), place(r)
		saw.Reasons |= store.ReasonsOf(r.Reason)
		if failed {
			saw.Failed(r.FailedAt, now)
			if r.NewlyParked() {
				at = columns[r.EverParked():][:1] + r.Queue
			}
		}
		b.n++
		b.size += len(v)*5/4 + overhead
		b.records = append(b.records, at, micros(r), idText(r.ID), rueidis.BinaryString(v))
	}
	return nil
}

// pendingBatches are the batches that this process has sent and that Redis may have, though its answer was lost or it
// did not confirm them. When such a batch is added again, it is the same one: otherwise each try would store it once
// more, for as long as Redis is in trouble. Redis remembers the last batch at each position of a process. So a batch
// keeps its position until its fate is known, and longer: its first command may still be on its way, and would add it
// again if Redis remembered another batch by then.
type pendingBatches struct {
	mu        sync.Mutex
	positions []position
	open      []pendingBatch
}

type position struct {
	inUse bool
	rests time.Time // not used again before
}

type pendingBatch struct {
	of         [sha256.Size]byte // see store.HashOf
	token      string
	position   int
	wasInDoubt bool
}

const (
	// maxOpen is how many batches may be in doubt; the oldest are forgotten.
	maxOpen = 64
	// addedFor is how long Redis remembers the batches of a process after its last one.
	addedFor = time.Hour
	// maxLate is how long a command may take to reach Redis after its connection was given up.
	maxLate = addedFor / 4
)

// begin returns the pendingBatch of a batch that was in doubt, or a new one.
func (p *pendingBatches) begin(of [sha256.Size]byte, token string) pendingBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.open, func(was pendingBatch) bool { return was.of == of }); i >= 0 {
		was := p.open[i]
		p.open = slices.Delete(p.open, i, i+1)
		was.wasInDoubt = true
		return was
	}
	now := time.Now()
	at := slices.IndexFunc(p.positions, func(is position) bool { return !is.inUse && !now.Before(is.rests) })
	if at < 0 {
		at = len(p.positions)
		p.positions = append(p.positions, position{})
	}
	p.positions[at].inUse = true
	return pendingBatch{of: of, token: token, position: at}
}

// end ends a try to add a batch; known: it is known whether it was added.
func (p *pendingBatches) end(what pendingBatch, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !known {
		p.open = append(p.open, what)
		if len(p.open) <= maxOpen {
			return
		}
		what = p.open[0]
		p.open = slices.Delete(p.open, 0, 1)
		what.wasInDoubt = true
	}
	free := position{}
	if what.wasInDoubt {
		free.rests = time.Now().Add(maxLate)
	}
	p.positions[what.position] = free
}

// undone reports whether an error came before anything was done.
func undone(err error) bool {
	var op *net.OpError
	_, said := rueidis.IsRedisErr(err)
	return said || errors.Is(err, store.ErrFull) || errors.As(err, &op) && op.Op == "dial"
}

// forbiddenFor is how long Redis remembers that a change is forbidden.
const forbiddenFor = 7 * 24 * time.Hour

// resolve settles the last Change of this process when its answer was lost: afterwards the
// Change is done, or never will be. Otherwise it could still be on its way to Redis while
// somebody finds its entries missing, and does it again. The caller holds changing.
func (s *Store) resolve(ctx context.Context) error {
	c := s.doubt.Load()
	if c == nil {
		return nil
	}
	if _, err := s.write(ctx, scriptForbid, c.token, itoa(forbiddenFor.Milliseconds())); err != nil {
		return fmt.Errorf("it is not known yet whether the last change was done: %w", err)
	}
	if err := c.release(ctx, c.records); err != nil {
		return err
	}
	s.doubt.Store(nil)
	s.signal()
	return nil
}

// giveUp releases the locks of a Change that is not done, now or as soon as possible.
func (c *change) giveUp(ctx context.Context, why error) error {
	err := c.release(ctx, c.records)
	if err != nil {
		c.s.doubted(c)
	}
	return errors.Join(why, err)
}

func (s *Store) doubted(c *change) {
	c.ops, c.add, c.entries, c.unchanged = nil, batch{}, nil, nil
	s.doubt.Store(c)
}

// resolveNow resolves before a read of what a Change may have written.
func (s *Store) resolveNow(ctx context.Context) error {
	if s.doubt.Load() == nil {
		return nil
	}
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.changing.Release(1)
	return s.resolve(ctx)
}

// resolveSoon resolves from time to time, so that nothing stays locked for long.
func (s *Store) resolveSoon() {
	if s.doubt.Load() == nil || !s.changing.TryAcquire(1) {
		return
	}
	defer s.changing.Release(1)
	s.logTrouble("finding out whether a change was done", s.resolve(s.ctx))
}

// Receipts are written in the step of their records, in a list for each process: others
// cannot push out those of a vanished process before RabbitMQ redelivers what it held.
// Stamps order the receipts of several processes.

// stamped returns the process's next stamp: about the time in µs, so that the stamps of
// several processes are nearly in order, too.
func (s *Store) stamped() uint64 {
	for {
		was, now := s.stamp.Load(), time.Now().UnixMicro()
		if now <= was {
			now = was + 1
		}
		if s.stamp.CompareAndSwap(was, now) {
			return uint64(now)
		}
	}
}

const stampSize = 8

func (s *Store) receipts(all []store.Receipt) []string {
	all = all[max(0, len(all)-store.ReceiptsKept):]
	args := append(make([]string, 0, 5+len(all)), s.name, itoa(store.ReceiptsKept), itoa(store.ReceiptsOwners),
		itoa(store.ReceiptsAge.Milliseconds()), itoa(len(all)))
	for _, r := range all {
		b := binary.BigEndian.AppendUint64(make([]byte, 0, stampSize+store.ReceiptSize), s.stamped())
		args = append(args, string(r.Append(b)))
	}
	return args
}

func (s *Store) Remember(ctx context.Context, receipts []store.Receipt) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkMemory(ctx, len(receipts)*2*(stampSize+store.ReceiptSize), 1); err != nil {
		return err
	}
	_, err = s.write(ctx, scriptRemember, s.receipts(receipts)...)
	return err
}

func (s *Store) Receipts(ctx context.Context) ([]store.Receipt, error) {
	all, _, err := s.newReceipts(ctx, nil, "")
	for i := range all {
		all[i].Process = ""
	}
	return all, err
}

func (s *Store) NewReceipts(ctx context.Context, at store.ReceiptsAt) ([]store.Receipt, store.ReceiptsAt, error) {
	own := s.name
	if at == nil { // include those of this process
		own = ""
	}
	return s.newReceipts(ctx, at, own)
}

// newReceipts reads what all processes but one have written since at.
func (s *Store) newReceipts(
	ctx context.Context, at store.ReceiptsAt, but string,
) ([]store.Receipt, store.ReceiptsAt, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	args := []string{but}
	for process, written := range at {
		args = append(args, process, written)
	}
	m, err := s.do(ctx, scriptReceipts, args...)
	if err != nil {
		return nil, nil, err
	}
	lists, err := m.ToArray()
	if err != nil {
		return nil, nil, s.wrapError(err)
	}
	all, now := map[string][]string{}, store.ReceiptsAt{} // by process
	for i := 0; i+2 < len(lists); i += 3 {
		process, err1 := lists[i].ToString()
		written, err2 := lists[i+1].ToString()
		list, err3 := lists[i+2].AsStrSlice()
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, nil, s.wrapError(err)
		}
		now[process] = written
		all[process] = slices.DeleteFunc(list, func(r string) bool { return len(r) != stampSize+store.ReceiptSize })
	}
	return inOrder(all), now, nil
}

// inOrder returns the newest of each process, ordered by stamp.
func inOrder(all map[string][]string) (receipts []store.Receipt) {
	byStamp := func(a, b string) int { return cmp.Compare(a[:stampSize], b[:stampSize]) }
	type written struct{ process, receipt string }
	var kept []written
	for process, list := range all {
		slices.SortStableFunc(list, byStamp)
		for _, r := range list[max(0, len(list)-store.ReceiptsKept):] {
			kept = append(kept, written{process, r})
		}
	}
	slices.SortStableFunc(kept, func(a, b written) int { return byStamp(a.receipt, b.receipt) })
	for _, w := range kept {
		r := store.ReadReceipt([]byte(w.receipt[stampSize:]))
		r.Process = w.process
		receipts = append(receipts, r)
	}
	return receipts
}
