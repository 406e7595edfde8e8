package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

var errTooLong = errors.New("the change took so long that others may have done something with its messages meanwhile; nothing was changed")

// Change implements store.Changer.
//
// The records are locked, edited here, and written in one step.
func (s *Store) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (n int, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer s.changing.Release(1)
	if err := s.resolve(ctx); err != nil {
		return 0, err
	}
	c := &change{s: s, token: s.changeToken(ctx), add: batch{groups: groupChanges{}}}
	keys = keys[:min(len(keys), store.ChangeMost)]
	if err := c.lock(ctx, keys); err != nil {
		return 0, c.giveUp(ctx, err)
	}
	if n, err = c.edit(ctx, edit); err == nil && entries != nil {
		c.entries = entries(n)
	}
	if err == nil {
		err = c.checkMemory(ctx)
	}
	if err != nil {
		return 0, c.giveUp(ctx, err)
	}
	switch err := c.commit(ctx); {
	case errors.Is(err, store.ErrDeposed):
		return 0, c.giveUp(ctx, err)
	case errors.Is(err, errTooLong):
		return 0, err
	case err != nil:
		s.doubted(c)
		return 0, err
	}
	// It is done. Should this fail, the locks end when their time is over.
	s.logTrouble("releasing messages that were not changed", c.release(ctx, c.unchanged))
	s.signal()
	return n, nil
}

// changeToken returns a token of locks. It begins with what is led, for unlock.
func (s *Store) changeToken(ctx context.Context) string {
	if what, _, ok := store.TermOf(ctx); ok {
		return "x:" + what + "." + s.token()
	}
	return "x:" + s.token()
}

// change is a Change under way.
type change struct {
	s         *Store
	token     string // of its locks
	records   []*lockedRecord
	ops       []string // arguments of lua/apply.lua, n of them
	n         int
	add       batch
	unchanged []*lockedRecord // locked, and to be released as they are
	entries   []store.Entry
	moved     int // bytes of records that are written again
}

// lockedRecord is a record that is locked, or one that cannot be: then locked is false.
type lockedRecord struct {
	key    store.Key
	id     uuid.UUID
	number uint64
	locked bool
	size   int
}

// lockTimeout is how long a change waits for records that another process is changing.
const lockTimeout = 5 * time.Second

// lock locks the records of keys, as many as may be in memory at once.
func (c *change) lock(ctx context.Context, keys []store.Key) error {
	seen := map[store.Key]bool{}
	for _, key := range keys {
		t := &lockedRecord{key: key}
		id, seq, ok := key.Parts()
		if t.id = id; ok && !seen[key] {
			t.number, t.locked = seq, true
		}
		seen[key] = true
		c.records = append(c.records, t)
	}
	for began := time.Now(); ; {
		busy, err := c.tryLock(ctx)
		if err != nil || len(busy) == 0 {
			return err
		}
		if time.Since(began) > lockTimeout {
			for _, t := range busy {
				t.locked = false
			}
			return nil
		}
		// All or none, or two that wait for each other would do so for long.
		if err := c.release(ctx, c.records); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tryAgainAfter):
		}
	}
}

// tryLock locks what is to be locked, and returns what another change has.
func (c *change) tryLock(ctx context.Context) (busy []*lockedRecord, err error) {
	wanted := slices.DeleteFunc(slices.Clone(c.records), func(t *lockedRecord) bool { return !t.locked })
	for some := range slices.Chunk(wanted, maxPerScript) {
		args := []string{c.token, itoa(c.s.Lease.Milliseconds()), itoa(len(some))}
		for _, t := range some {
			args = append(args, member(t.number), idText(t.id))
		}
		sizes, err := texts(c.s.do(ctx, scriptLock, args...))
		if err != nil {
			return nil, err
		}
		for i, t := range some {
			switch t.size, _ = strconv.Atoi(sizes[i]); t.size {
			case -1:
				t.locked = false
			case -2:
				busy = append(busy, t)
			}
		}
	}
	return busy, nil
}

// release releases locks.
func (c *change) release(ctx context.Context, some []*lockedRecord) error {
	var pairs []string
	for _, t := range some {
		if t.locked {
			pairs = append(pairs, member(t.number), c.token)
		}
	}
	return c.s.release(context.WithoutCancel(ctx), pairs)
}

// editBytes is how much of bodies is read at once.
const editBytes = 8 << 20

// edit passes the records to edit, in order, and notes what that returns.
func (c *change) edit(ctx context.Context, edit func(store.Key, *store.Record) store.Edit) (n int, err error) {
	bodies := 0
	fits := func(t *lockedRecord) bool { return !t.locked || bodies == 0 || bodies+t.size <= store.ChangeBytes }
	for n < len(c.records) {
		// Those that are read at once.
		end, size := n, 0
		for end < len(c.records) && end-n < maxPerScript && fits(c.records[end]) && (end == n || size+c.records[end].size <= editBytes) {
			if t := c.records[end]; t.locked {
				size, bodies = size+t.size, bodies+t.size
			}
			end++
		}
		if end == n {
			break
		}
		values, err := c.read(ctx, c.records[n:end])
		if err != nil {
			return 0, err
		}
		for i, t := range c.records[n:end] {
			if err := c.editOne(t, values[i], edit); err != nil {
				return 0, err
			}
		}
		n = end
	}
	c.unchanged = append(c.unchanged, c.records[n:]...)
	return n, nil
}

// read reads records as they are kept.
func (c *change) read(ctx context.Context, some []*lockedRecord) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.Timeout)
	defer cancel()
	var gets []rueidis.Completed
	var of []int
	for i, t := range some {
		if t.locked {
			gets, of = append(gets, c.s.client().B().Get().Key(c.s.key("m:"+member(t.number))).Build()), append(of, i)
		}
	}
	values := make([]string, len(some))
	for i, answer := range c.s.client().DoMulti(ctx, gets...) {
		var err error
		if values[of[i]], err = answer.ToString(); err != nil {
			return nil, c.s.wrapError(err)
		}
	}
	return values, nil
}

func (c *change) op(op ...string) {
	c.n++
	c.ops = append(c.ops, op...)
}

// editOne passes a record to edit, and notes what that returns.
func (c *change) editOne(t *lockedRecord, value string, edit func(store.Key, *store.Record) store.Edit) error {
	if !t.locked {
		return c.add.add(c.s, edit(t.key, nil).Add, false)
	}
	r, g, err := decode(value, true)
	if err != nil { // it stays as it is, and stops no other
		edit(t.key, &store.Record{Unreadable: c.s.damaged(t.number, err)})
		c.unchanged = append(c.unchanged, t)
		return nil
	}
	was := *r
	e := edit(t.key, r)
	switch {
	case e.Keep:
		if err := c.keep(t, &was, r, g); err != nil {
			return err
		}
	case e.Delete:
		left := ""
		if was.State == store.Discarded {
			left = pastFailure(&was, was.Due, store.EndedDiscarded)
		}
		c.op("d", member(t.number), left)
	default:
		c.unchanged = append(c.unchanged, t)
	}
	return c.add.add(c.s, e.Add, false)
}

// keep writes a record again; g is the group it was in.
func (c *change) keep(t *lockedRecord, was, r *store.Record, g groupID) error {
	if err := r.ValidateEdit(was); err != nil {
		return err
	}
	if into := r.Group(); into.ID != was.Group().ID {
		into = c.s.groups.of(r)
		g = into.ID
		c.add.groups.of(into).reasons |= store.ReasonsOf(r.Reason)
	}
	v, err := value(g, r)
	if err != nil {
		return err
	}
	same := sameBytes(was.Message.Body, r.Message.Body)
	if same {
		v = v[:len(v)-len(r.Message.Body)]
	}
	c.moved += len(v)
	c.op("k", member(t.number), place(r), micros(r), flag(same), rueidis.BinaryString(v))
	return nil
}

// sameBytes tells whether edit has left a body as it was: it never writes into one.
func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// checkMemory returns store.ErrFull when there is no room for the change.
func (c *change) checkMemory(ctx context.Context) error {
	_, entries := written(c.entries)
	if entries <= smallEntries {
		entries = 0
	}
	switch {
	case c.add.size > 0:
		return c.s.checkMemory(ctx, c.add.size+c.moved+entries, 1)
	case c.moved > 0:
		return c.s.checkMemory(ctx, c.moved, 0.5)
	}
	return nil
}

// commit does it.
func (c *change) commit(ctx context.Context) error {
	if c.n == 0 && c.add.n == 0 && len(c.entries) == 0 {
		return nil
	}
	if err := c.s.step("apply"); err != nil {
		return err
	}
	// Only this process does it again, and that within the timeout.
	args := append(termArgs(ctx), c.token, itoa((2 * c.s.Timeout).Milliseconds()), pastKept, itoa(c.n))
	args = append(append(args, c.ops...), c.add.args()...)
	e, _ := written(c.entries)
	return c.s.apply(context.WithoutCancel(ctx), append(append(args, c.add.groups.args()...), e...))
}

// apply does what a change decided. It may be sent twice: when its answer is lost, only
// asking again tells whether it was done.
func (s *Store) apply(ctx context.Context, args []string) error {
	for began := time.Now(); ; {
		m, err := s.write(ctx, scriptApply, args...)
		if err == nil {
			switch n, err := m.AsInt64(); {
			case err != nil || n == 1:
				return s.wrapError(err)
			case n < 0:
				return store.ErrDeposed
			}
			return errTooLong
		}
		var said *rueidis.RedisError
		if errors.As(err, &said) || time.Since(began) > s.Timeout {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(tryAgainAfter):
		}
	}
}
