package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

var errTooLong = errors.New("the change took so long that others may have done something with its messages meanwhile; nothing was changed")

// Change implements store.Changer.
//
// The records are locked in their shards, edited here, and written: in one step where
// all are in one shard; else what is to be done is written down first (intent.go), and
// once that is durable it is done, by this process or, should that die, by another.
func (s *Store) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (n int, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	s.moving.Lock()
	defer s.moving.Unlock()
	if err := s.resolve(ctx); err != nil {
		return 0, err
	}
	c := &change{s: s, token: "x:" + s.token(), parts: make([]part, s.Shards)}
	for shard := range c.parts {
		c.parts[shard].add.seen = sightings{}
	}
	keys = keys[:min(len(keys), store.ChangeMost)]
	if err := c.lock(ctx, keys); err != nil {
		return 0, c.giveUp(ctx, err)
	}
	if n, err = c.edit(ctx, edit); err == nil && entries != nil {
		c.entries = entries(n)
	}
	if err == nil {
		err = c.room(ctx)
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
	// It is done. Should this fail, they are let go when their time is over.
	s.tell("letting go messages that were not changed", c.release(ctx, c.spared))
	s.signal()
	return n, nil
}

// change is a Change under way.
type change struct {
	s       *Store
	token   string // of its locks
	taken   []*taken
	parts   []part   // by shard
	spared  []*taken // locked, and to be let go as they are
	entries []store.Entry
	added   int // bytes of new records, and
	moved   int // of those that were written again
	// at is the shard that it is committed in; intent and account, with several, what
	// is to be done in each, and written then.
	at      int
	intent  map[int][]string
	account []string
}

// taken is a record that is locked, or one that cannot be: locked is false.
type taken struct {
	key    store.Key
	id     uuid.UUID
	shard  int
	number uint64
	locked bool
	size   int
}

// part is what a change does in a shard.
type part struct {
	ops []string // arguments of lua/apply.lua, n of them
	n   int
	add batch
}

// patience is how long a change waits for records that another process is changing.
const patience = 5 * time.Second

// lock locks the records of keys, as many as may be in memory at once.
func (c *change) lock(ctx context.Context, keys []store.Key) error {
	given := map[store.Key]bool{}
	for _, key := range keys {
		t := &taken{key: key}
		id, seq, ok := key.Parts()
		if t.id = id; ok && !given[key] {
			t.shard, t.number = c.s.parts(seq)
			t.locked = true
		}
		given[key] = true
		c.taken = append(c.taken, t)
	}
	for began := time.Now(); ; {
		busy, err := c.tryLock(ctx)
		if err != nil || len(busy) == 0 {
			return err
		}
		if time.Since(began) > patience {
			for _, t := range busy {
				t.locked = false
			}
			return nil
		}
		// All or none, or two that wait for each other would do so for long.
		if err := c.release(ctx, c.taken); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again):
		}
	}
}

// tryLock locks what is to be locked, and returns what another change has.
func (c *change) tryLock(ctx context.Context) (busy []*taken, err error) {
	by := make([][]*taken, c.s.Shards)
	for _, t := range c.taken {
		if t.locked {
			by[t.shard] = append(by[t.shard], t)
		}
	}
	var mu sync.Mutex
	err = c.s.each(func(shard int) error {
		for some := range slices.Chunk(by[shard], most) {
			args := []string{c.token, itoa(c.s.Lease.Milliseconds()), itoa(len(some))}
			for _, t := range some {
				args = append(args, member(t.number), idText(t.id))
			}
			sizes, err := texts(c.s.do(ctx, shard, scriptLock, args...))
			if err != nil {
				return err
			}
			mu.Lock()
			for i, t := range some {
				switch t.size, _ = strconv.Atoi(sizes[i]); t.size {
				case -1:
					t.locked = false
				case -2:
					busy = append(busy, t)
				}
			}
			mu.Unlock()
		}
		return nil
	})
	return busy, err
}

// release lets locks go.
func (c *change) release(ctx context.Context, some []*taken) error {
	by := make([][]string, c.s.Shards)
	for _, t := range some {
		if t.locked {
			by[t.shard] = append(by[t.shard], member(t.number), c.token)
		}
	}
	ctx = context.WithoutCancel(ctx)
	return c.s.pairs(by, func(shard int, pairs []string) error {
		_, err := c.s.do(ctx, shard, scriptRelease, append([]string{itoa(len(pairs) / 2)}, pairs...)...)
		return err
	})
}

// editBytes is how much of bodies is read at once.
const editBytes = 8 << 20

// edit gives the records to edit, in order, and notes what it says.
func (c *change) edit(ctx context.Context, edit func(store.Key, *store.Record) store.Edit) (n int, err error) {
	bodies := 0
	fits := func(t *taken) bool { return !t.locked || bodies == 0 || bodies+t.size <= store.ChangeBytes }
	for n < len(c.taken) {
		// Those that are read at once.
		end, size := n, 0
		for end < len(c.taken) && end-n < most && fits(c.taken[end]) && (end == n || size+c.taken[end].size <= editBytes) {
			if t := c.taken[end]; t.locked {
				size, bodies = size+t.size, bodies+t.size
			}
			end++
		}
		if end == n {
			break
		}
		values, err := c.read(ctx, c.taken[n:end])
		if err != nil {
			return 0, err
		}
		for i, t := range c.taken[n:end] {
			if err := c.one(t, values[i], edit); err != nil {
				return 0, err
			}
		}
		n = end
	}
	c.spared = append(c.spared, c.taken[n:]...)
	return n, nil
}

// read reads records as they are kept.
func (c *change) read(ctx context.Context, some []*taken) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.Timeout)
	defer cancel()
	var gets []rueidis.Completed
	var of []int
	for i, t := range some {
		if t.locked {
			gets, of = append(gets, c.s.client.B().Get().Key(c.s.key(t.shard, "m:"+member(t.number))).Build()), append(of, i)
		}
	}
	values := make([]string, len(some))
	for i, answer := range c.s.client.DoMulti(ctx, gets...) {
		var err error
		if values[of[i]], err = answer.ToString(); err != nil {
			return nil, c.s.failed(err)
		}
	}
	return values, nil
}

func (c *change) op(t *taken, op ...string) {
	p := &c.parts[t.shard]
	p.n++
	p.ops = append(p.ops, op...)
}

// one gives a record to edit, and notes what it says.
func (c *change) one(t *taken, value string, edit func(store.Key, *store.Record) store.Edit) error {
	if !t.locked {
		return c.add(0, edit(t.key, nil).Add)
	}
	r, g, err := decode(value, true)
	if err != nil {
		return c.s.damaged(t.shard, t.number, err)
	}
	was := *r
	e := edit(t.key, r)
	switch {
	case e.Keep:
		if r.ID != was.ID {
			return fmt.Errorf("message %s of queue %q was given another id: add a new one instead", was.ID, was.Queue)
		}
		if err := c.keep(t, &was, r, g); err != nil {
			return err
		}
	case e.Delete:
		left := ""
		if was.State == store.Discarded {
			left = passage(&was, was.Due, store.EndedDiscarded, c.s.stamped())
		}
		c.op(t, "d", member(t.number), left)
	default:
		c.spared = append(c.spared, t)
	}
	// What is made of it goes to its shard: one step is enough then.
	return c.add(t.shard, e.Add)
}

// keep writes a record again; g is the group it was in.
func (c *change) keep(t *taken, was, r *store.Record, g groupID) error {
	if err := r.Sound(); err != nil {
		return err
	}
	if into := r.Group(); into.ID != was.Group().ID {
		into = c.s.groups.of(r)
		g = into.ID
		c.parts[t.shard].add.seen.of(into).reasons |= store.ReasonsOf(r.Reason)
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
	c.op(t, "k", member(t.number), place(r), micros(r), flag(same), rueidis.BinaryString(v))
	return nil
}

// sameBytes tells whether edit has left a body as it was: it never writes into one.
func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// add notes new records.
func (c *change) add(shard int, records []*store.Record) error {
	if len(records) == 0 {
		return nil
	}
	b := &c.parts[shard].add
	was := b.size
	err := b.add(c.s, records, false)
	c.added += b.size - was
	return err
}

// room says whether there is room for it.
func (c *change) room(ctx context.Context) error {
	_, entries := written(c.entries)
	if entries <= smallEntries {
		entries = 0
	}
	for shard := range c.parts {
		switch {
		case c.added > 0:
			if n := c.parts[shard].add.size; n > 0 {
				if err := c.s.room(ctx, shard, n+c.moved+entries, 1); err != nil {
					return err
				}
			}
		case c.moved > 0 && c.parts[shard].n > 0:
			if err := c.s.room(ctx, shard, c.moved, 0.5); err != nil {
				return err
			}
		}
	}
	return nil
}

// commit does it: at once where it is in one shard, by an intent where it is not, or
// where another shard than the first, which alone knows of terms, is changed in one.
func (c *change) commit(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx) // it is to be finished, as far as that can be
	var shards []int
	for shard := range c.parts {
		if p := &c.parts[shard]; p.n > 0 || p.add.size > 0 || shard == 0 && len(c.entries) > 0 {
			shards = append(shards, shard)
		}
	}
	_, _, inTerm := store.TermOf(ctx)
	switch {
	case len(shards) == 0:
		return nil
	case len(shards) == 1 && (shards[0] == 0 || !inTerm):
		c.at = shards[0]
		args := c.args(ctx, shards[0], true, c.entries)
		return c.s.apply(ctx, shards[0], args)
	}
	return c.intend(ctx, shards)
}

// doneFor is how long a shard remembers that a change was done there.
const doneFor = 7 * 24 * time.Hour

// args are the arguments of lua/apply.lua.
func (c *change) args(ctx context.Context, shard int, whole bool, entries []store.Entry) []string {
	p := &c.parts[shard]
	by := []string{"", "0"} // whoever does what is committed
	ttl := doneFor
	if whole { // only this process does it again, and that within the timeout
		by, ttl = led(ctx), 2*c.s.Timeout
	}
	args := append(by, c.token, flag(whole), itoa(ttl.Milliseconds()), c.s.pastKept(), itoa(p.n))
	args = append(args, p.ops...)
	args = append(args, p.add.args(c.s)...)
	args = append(args, p.add.seen.args()...)
	e, _ := written(entries)
	return append(args, e...)
}

// apply does a change's part in a shard. It may be sent twice: when its answer is lost,
// only asking again tells whether it was done.
func (s *Store) apply(ctx context.Context, shard int, args []string) error {
	for began := time.Now(); ; {
		m, err := s.write(ctx, shard, scriptApply, args...)
		if err == nil {
			switch n, err := m.AsInt64(); {
			case err != nil || n == 1:
				return s.failed(err)
			case n < 0:
				return store.ErrDeposed
			}
			return errTooLong
		}
		if certain(err) || time.Since(began) > s.Timeout {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again):
		}
	}
}
