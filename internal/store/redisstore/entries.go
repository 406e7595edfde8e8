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

	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
)

// smallEntries is how much of entries may be written when Redis is full.
const smallEntries = 4 << 10

const (
	entriesPage  = 500
	entriesBytes = 1 << 20
)

// Entry implements store.Changer.
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

// Entries implements store.Changer. Of what others write meanwhile it may see some.
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

// names is the range of names with a prefix, as ZRANGE BYLEX has it.
func names(prefix string) (from, to string) {
	end := prefix
	for strings.HasSuffix(end, "\xff") { // TrimRight takes each byte that is no UTF-8 for one
		end = end[:len(end)-1]
	}
	if end == "" {
		return "[" + prefix, "+"
	}
	return "[" + prefix, "(" + end[:len(end)-1] + string([]byte{end[len(end)-1] + 1})
}

// PutEntries implements store.Changer.
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

// written are the arguments of write in lua/records.lua.
func written(entries []store.Entry) (args []string, size int) {
	args = append(make([]string, 0, 1+3*len(entries)), itoa(len(entries)))
	for _, e := range entries {
		args = append(args, e.Name, flag(e.Value != nil), rueidis.BinaryString(e.Value))
		size += 2*len(e.Name) + len(e.Value)
	}
	return args, size
}

// DeleteEntries implements store.Changer.
func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, to := names(prefix)
	return refuseDeposed(s.write(ctx, scriptForget, append(termArgs(ctx), from, to)...))
}

// termArgs are the arguments of deposed in lua/store.lua.
func termArgs(ctx context.Context) []string {
	what, term, _ := store.TermOf(ctx)
	return []string{what, strconv.FormatUint(term, 10)}
}

// refuseDeposed returns the result of a script that only the leader can run.
func refuseDeposed(m rueidis.RedisMessage, err error) error {
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || n != 1 {
		return errors.Join(store.ErrDeposed, err)
	}
	return nil
}

// idle is what the ledger says of a queue that nothing is kept for, and since when.
type idle struct {
	sums  store.Sums
	since time.Time
}

// Forget implements store.Changer. A process that stood still in the middle of it does no
// harm when it goes on: as a former leader it is refused, and in any case each record is
// locked and looked at again before it is deleted. One that was restored, or discarded again,
// stays.
func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.forgetQueues(ctx)
}

// forgetStep is about how many of the ledger's counts are read at once, and forgetMost how
// many in one call of Forget. Among a hundred thousand queues, those that nothing is kept for
// any more are found within some calls.
const (
	forgetStep = 1000
	forgetMost = 20_000
)

// forgetting is how far Forget has looked.
type forgetting struct {
	turn *semaphore.Weighted // one at a time
	at   string              // "": at the beginning
	idle map[string]idle     // queues that nothing was kept for when they were looked at
	most int                 // forgetMost, but for tests
	read int                 // how much of the ledger was read in all
}

// forgetQueues forgets the lines of queues that nothing is kept for, but for EmptyLinesKept:
// see the disk engine's. They are moved in one step, and only where nothing is kept, so
// that what comes meanwhile is counted right.
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
	for read, whole := 0, false; read < cmp.Or(f.most, forgetMost) && !whole; whole = f.at == "" {
		n, err := s.lookForIdle(ctx)
		if err != nil {
			return err
		}
		read += n
	}
	names := f.longestIdle()
	for some := range slices.Chunk(names[:max(0, len(names)-store.EmptyLinesKept)], maxPerScript) {
		if err := ctx.Err(); err != nil {
			return err
		}
		args := append([]string{columns[store.Waiting:store.Retried], columns[:store.Waiting] + columns[store.Retried:], store.OtherQueues}, some...)
		if _, err := s.do(ctx, scriptUnqueue, args...); err != nil {
			return err
		}
		for _, name := range some {
			delete(f.idle, name)
		}
	}
	return nil
}

// lookForIdle looks at some queues of the ledger, and goes on from there next time.
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
		if l := (store.LedgerLine{Queue: queue, Sums: *sums}); l.Kept() != 0 || l.Off() != 0 || *sums == (store.Sums{}) {
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

// sumUp reads what was counted of queues.
func (s *Store) sumUp(ctx context.Context, queues []string, into map[string]*store.Sums) error {
	list, err := texts(s.do(ctx, scriptLinesOf, append([]string{columns}, queues...)...))
	for i, n := range list {
		into[queues[i/len(columns)]][i%len(columns)] = score(n)
	}
	return err
}

// longestIdle are the queues that nothing is kept for, the one first that nothing was
// counted of for longest, as far as this process has looked.
func (f *forgetting) longestIdle() []string {
	return slices.SortedFunc(maps.Keys(f.idle), func(a, b string) int {
		return cmp.Or(f.idle[a].since.Compare(f.idle[b].since), cmp.Compare(a, b))
	})
}
