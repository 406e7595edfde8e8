package redisstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
)

var errTooLong = errors.New("the change took so long that others may have done something with its messages " +
	"meanwhile; nothing was changed")

// Change implements store.Changer. It locks the records, edits them here, and writes them in
// one step.
func (s *Store) Change(
	ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry,
) (n int, err error) {
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
	keys = keys[:min(len(keys), store.MaxChange)]
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
	// It is done. If this fails, the locks expire.
	s.logTrouble("releasing messages that were not changed", c.release(ctx, c.unchanged))
	s.signal()
	return n, nil
}

// changeToken returns a token for locks. It begins with what the caller leads, for unlock.
func (s *Store) changeToken(ctx context.Context) string {
	if what, _, ok := store.TermOf(ctx); ok {
		return "x:" + what + "." + s.token()
	}
	return "x:" + s.token()
}

type change struct {
	s         *Store
	token     string // of its locks
	records   []*lockedRecord
	ops       []string // arguments of lua/apply.lua, for n operations
	n         int
	add       batch
	unchanged []*lockedRecord // locked, and to be released unchanged
	entries   []store.Entry
	moved     int // bytes of rewritten records
}

// lockedRecord is a record that is to be locked; locked is false for one that cannot be.
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
		// Lock all or none: two changes that wait for each other would wait for long.
		if err := c.release(ctx, c.records); err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// tryLock locks records, and returns those that another change has locked.
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

func (c *change) release(ctx context.Context, some []*lockedRecord) error {
	var pairs []string
	for _, t := range some {
		if t.locked {
			pairs = append(pairs, member(t.number), c.token)
		}
	}
	return c.s.release(context.WithoutCancel(ctx), pairs)
}

// editBytes is how many bytes of bodies are read at once.
const editBytes = 8 << 20

// edit passes the records to edit, in order, and collects the Edits.
func (c *change) edit(ctx context.Context, edit func(store.Key, *store.Record) store.Edit) (n int, err error) {
	bodies := 0
	fits := func(t *lockedRecord) bool { return !t.locked || bodies == 0 || bodies+t.size <= store.MaxChangeBytes }
	for n < len(c.records) {
		end, size := n, 0 // of those that are read at once
		for end < len(c.records) && end-n < maxPerScript && fits(c.records[end]) &&
			(end == n || size+c.records[end].size <= editBytes) {
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

func (c *change) editOne(t *lockedRecord, value string, edit func(store.Key, *store.Record) store.Edit) error {
	if !t.locked {
		return c.add.add(c.s, edit(t.key, nil).Add, false)
	}
	r, g, err := decode(value, true)
	if err != nil { // leave it as it is
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
	case e.Delete && !e.Forwarded.IsZero():
		c.op("f", member(t.number), pastFailure(&was, e.Forwarded, store.EndedForwarded))
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

// keep rewrites a record; g is the group it was in.
func (c *change) keep(t *lockedRecord, was, r *store.Record, g groupID) error {
	if err := r.ValidateEdit(was); err != nil {
		return err
	}
	if into := r.Group(); into.ID != was.Group().ID {
		into = c.s.groups.of(r)
		g = into.ID
		c.add.groups.of(into).Reasons |= store.ReasonsOf(r.Reason)
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

// sameBytes reports whether edit left a body unchanged: it never writes into one.
func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

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

func (c *change) commit(ctx context.Context) error {
	if c.n == 0 && c.add.n == 0 && len(c.entries) == 0 {
		return nil
	}
	if err := c.s.step("apply"); err != nil {
		return err
	}
	// Only this process repeats it, and only within the timeout.
	args := append(termArgs(ctx), c.token, itoa((2 * c.s.Timeout).Milliseconds()), pastKept, itoa(c.n))
	args = append(append(args, c.ops...), c.add.args()...)
	e, _ := written(c.entries)
	return c.s.apply(context.WithoutCancel(ctx), append(append(args, c.add.groups.args()...), e...))
}

// apply applies a change. It may send it twice: when the answer is lost, only asking again
// shows whether it was done.
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
		if pause(ctx) != nil {
			return err
		}
	}
}

// smallEntries is how many bytes of entries may be written even when Redis is full.
const smallEntries = 4 << 10

const (
	entriesPage  = 500
	entriesBytes = 1 << 20
)

func (s *Store) Entry(ctx context.Context, name string) ([]byte, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.resolveNow(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	value, err := s.client().Do(ctx, s.client().B().Hget().Key(s.key("e")).Field(name).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.wrapError(err)
	}
	return []byte(value), nil
}

// Entries implements store.Changer. It may see some of what others write meanwhile.
func (s *Store) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, to := names(prefix)
	if after != "" && after >= prefix {
		from = "(" + after
	}
	for {
		list, err := texts(s.do(ctx, scriptEntries, from, to, itoa(entriesPage), itoa(entriesBytes)))
		if err != nil || len(list) == 0 {
			return err
		}
		for ; len(list) >= 2; list = list[2:] {
			if err := ctx.Err(); err != nil {
				return err
			}
			more, err := visit(store.Entry{Name: list[0], Value: []byte(list[1])})
			if err != nil || !more {
				return err
			}
			from = "(" + list[0]
		}
	}
}

// names returns the range of names with a prefix, for ZRANGE BYLEX.
func names(prefix string) (from, to string) {
	end := prefix
	for strings.HasSuffix(end, "\xff") { // TrimRight would cut any byte that is not UTF-8
		end = end[:len(end)-1]
	}
	if end == "" {
		return "[" + prefix, "+"
	}
	return "[" + prefix, "(" + end[:len(end)-1] + string([]byte{end[len(end)-1] + 1})
}

func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	args, size := written(entries)
	if size > smallEntries {
		if err := s.checkMemory(ctx, size, 0.75); err != nil {
			return err
		}
	}
	return refuseDeposed(s.write(ctx, scriptWrite, append(termArgs(ctx), args...)...))
}

// written returns the arguments of write in lua/records.lua.
func written(entries []store.Entry) (args []string, size int) {
	args = append(make([]string, 0, 1+3*len(entries)), itoa(len(entries)))
	for _, e := range entries {
		args = append(args, e.Name, flag(e.Value != nil), rueidis.BinaryString(e.Value))
		size += 2*len(e.Name) + len(e.Value)
	}
	return args, size
}

func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, to := names(prefix)
	return refuseDeposed(s.write(ctx, scriptForget, append(termArgs(ctx), from, to)...))
}

// termArgs returns the arguments of deposed in lua/store.lua.
func termArgs(ctx context.Context) []string {
	what, term, _ := store.TermOf(ctx)
	return []string{what, strconv.FormatUint(term, 10)}
}

// refuseDeposed returns ErrDeposed when a script refused to run for a former leader.
func refuseDeposed(m rueidis.RedisMessage, err error) error {
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || n != 1 {
		return errors.Join(store.ErrDeposed, err)
	}
	return nil
}

// idle is the ledger's line of a queue without kept messages, and since when it is so.
type idle struct {
	sums  store.Sums
	since time.Time
}

// Forget implements store.Changer. A process that was suspended in the middle does no harm
// when it continues: as a former leader it is refused, and each record is locked and checked
// again before it is deleted. One that was restored, or discarded again, stays.
func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.forgetQueues(ctx)
}

// forgetStep is about how many of the ledger's counts are read at once, and maxForget in one call of Forget. Among a
// hundred thousand queues, idle ones are found within some calls.
const (
	forgetStep = 1000
	maxForget  = 20_000
)

type forgetting struct {
	turn *semaphore.Weighted // one at a time
	at   string              // "": at the start
	idle map[string]idle     // queues without kept messages when they were read
	max  int                 // maxForget, except in tests
	read int
}

// forgetQueues forgets the lines of queues without kept messages, except EmptyLinesKept: see
// the disk engine's. A script moves them in one step, and only if nothing is kept, so that
// messages that arrive meanwhile are counted right.
func (s *Store) forgetQueues(ctx context.Context) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	f := &s.forgetting
	if err := f.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.turn.Release(1)
	if f.idle == nil {
		f.idle = map[string]idle{}
	}
	for read, whole := 0, false; read < cmp.Or(f.max, maxForget) && !whole; whole = f.at == "" {
		n, err := s.lookForIdle(ctx)
		if err != nil {
			return err
		}
		read += n
	}
	names := f.byIdleTime()
	for some := range slices.Chunk(names[:max(0, len(names)-store.EmptyLinesKept)], maxPerScript) {
		if err := ctx.Err(); err != nil {
			return err
		}
		args := append([]string{columns[store.Waiting:store.Retried], columns[:store.Waiting] + columns[store.Retried:],
			store.OtherQueues}, some...)
		if _, err := s.do(ctx, scriptUnqueue, args...); err != nil {
			return err
		}
		for _, name := range some {
			delete(f.idle, name)
		}
	}
	return nil
}

// lookForIdle reads some queues of the ledger; the next call continues from there.
func (s *Store) lookForIdle(ctx context.Context) (read int, err error) {
	f := &s.forgetting
	list, err := texts(s.do(ctx, scriptNames, cmp.Or(f.at, "0"), itoa(forgetStep)))
	if err != nil {
		return 0, err
	}
	seen := map[string]*store.Sums{}
	for _, column := range list[1:] {
		if queue := column[1:]; queue != store.OtherQueues {
			seen[queue] = new(store.Sums)
		}
	}
	names := slices.Collect(maps.Keys(seen))
	for some := range slices.Chunk(names, maxPerScript) {
		if err := s.sumUp(ctx, some, seen); err != nil {
			return 0, err
		}
	}
	now := time.Now()
	for queue, sums := range seen {
		if l := (store.LedgerLine{Queue: queue, Sums: *sums}); l.Kept() != 0 || l.Off() != 0 ||
			*sums == (store.Sums{}) {
			delete(f.idle, queue)
		} else if was, ok := f.idle[queue]; !ok || was.sums != *sums {
			f.idle[queue] = idle{*sums, now}
		}
	}
	if f.at = list[0]; f.at == "0" {
		f.at = ""
	}
	f.read += len(list) - 1
	return len(list) - 1, nil
}

func (s *Store) sumUp(ctx context.Context, queues []string, into map[string]*store.Sums) error {
	list, err := texts(s.do(ctx, scriptLinesOf, append([]string{columns}, queues...)...))
	for i, n := range list {
		into[queues[i/len(columns)]][i%len(columns)] = score(n)
	}
	return err
}

// byIdleTime returns the queues without kept messages that this process has found, the one
// idle for longest first.
func (f *forgetting) byIdleTime() []string {
	return slices.SortedFunc(maps.Keys(f.idle), func(a, b string) int {
		return cmp.Or(f.idle[a].since.Compare(f.idle[b].since), cmp.Compare(a, b))
	})
}
