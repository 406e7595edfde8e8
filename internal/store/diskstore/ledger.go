package diskstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// seqLeap is how many numbers each Open skips: numbers that a failed batch used are not
// counted, and none may be used again.
const seqLeap = 1 << 20

func addTo(b *pebble.Batch, key []byte, n int64) error {
	return b.Merge(key, binary.AppendVarint(nil, n), nil)
}

func addSums(b *pebble.Batch, queue string, sums *store.Sums) error {
	for as, n := range sums {
		if n != 0 {
			if err := addTo(b, sumKey(store.Column(as), queue), n); err != nil {
				return err
			}
		}
	}
	return nil
}

func eachSum(db pebble.Reader, visit func(as store.Column, queue string, n int64)) error {
	for _, prefix := range []byte{prefixCount, prefixLedger} {
		err := eachIn(db, prefix, func(key, value []byte) error {
			n, _ := binary.Varint(value)
			if as := int(key[1]); as < len(store.Sums{}) {
				visit(store.Column(as), string(key[2:]), n)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// loadLedger begins the ledger with the kept records when there is none, and when a part of it
// is lost, in a damaged block or by an accepted loss. Each new record is counted and gets a
// number; so when a part is lost, the difference between the two has changed since the last
// Open.
func (s *Store) loadLedger() error {
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	opened, err := s.get(keyOpened)
	if err != nil {
		return err
	}
	records := s.records()
	b := s.db.NewBatch()
	defer b.Close()
	if err := s.dropZeros(b); err != nil {
		return err
	}
	since, size := binary.Varint(opened)
	if size <= 0 || since != seq-records {
		if size > 0 {
			// checkWitness has shown that no commit is missing, or a person accepted the loss.
			s.log.Warn("store: the ledger begins again with the messages that are kept, since counts of others "+
				"are lost", "folder", s.path)
		}
		if records, err = s.beginLedger(b); err != nil {
			return err
		}
	}
	seq += seqLeap
	s.seq.Store(uint64(seq))
	if err := addTo(b, keySeq, seqLeap); err != nil {
		return err
	}
	// In one batch: one without the other would look like a loss.
	if err := b.Set(keyOpened, binary.AppendVarint(nil, seq-records), nil); err != nil {
		return err
	}
	return b.Commit(pebble.NoSync)
}

// records returns how many records were ever added. The caller holds mu, except while opening.
func (s *Store) records() (n int64) {
	for _, q := range s.queues {
		n += q.kept.Records()
	}
	return n
}

func (s *Store) beginLedger(b *pebble.Batch) (records int64, err error) {
	if err := b.DeleteRange([]byte{prefixLedger}, []byte{prefixLedger + 1}, nil); err != nil {
		return 0, err
	}
	for name, q := range s.queues {
		came := store.Sums{store.In: q.kept.Kept()}
		if err := addSums(b, name, &came); err != nil {
			return 0, err
		}
		records += came.Records()
		copy(came[store.Waiting:], q.kept[store.Waiting:store.Retried])
		q.kept = came
	}
	return records, nil
}

// number reads a counter; 0 when there is none.
func (s *Store) number(key []byte) (int64, error) {
	v, err := s.get(key)
	n, _ := binary.Varint(v)
	return n, err
}

func (s *Store) Ledger(ctx context.Context) ([]store.LedgerLine, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	by := store.SumsBy{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, q := range s.queues {
		by[name] = &q.kept
	}
	return store.Lines(by), nil
}

var recounting = background.Work{For: 2 * time.Millisecond, Rest: time.Millisecond}

// recountStep is how many keys are read in less than a millisecond.
const recountStep = 256

func (s *Store) Recount(ctx context.Context) ([]store.LedgerLine, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	by := store.SumsBy{}
	err = eachSum(snap, func(as store.Column, queue string, n int64) {
		if !as.Kept() {
			by.Of(queue)[as] = n
		}
	})
	if err != nil {
		return nil, err
	}
	for _, prefix := range recordPrefixes {
		err := s.recount(ctx, snap, prefix, func(queue string) *int64 { return &by.Of(queue)[stateOf(prefix)] })
		if err != nil {
			return nil, err
		}
	}
	return store.Lines(by), nil
}

func (s *Store) recount(ctx context.Context, snap *pebble.Snapshot, prefix byte, of func(queue string) *int64) error {
	it, err := s.walk(snap, []byte{prefix}, []byte{prefix + 1})
	if err != nil {
		return err
	}
	var queue string
	var count *int64
	i := 0
	for it.First(); it.Valid() && ctx.Err() == nil; it.Next() {
		// Compare without making a string of each name, which costs as much as the rest.
		if name := it.Key()[2 : 2+int(it.Key()[1])]; count == nil || string(name) != queue {
			queue = string(name)
			count = of(queue)
		}
		*count++
		if i++; i%recountStep == 0 {
			recounting.Pause()
		}
	}
	return errors.Join(it.Close(), ctx.Err())
}

func (s *Store) CountUnstored(queue string, as store.Column, n int64) {
	sums := store.Sums{store.In: n}
	sums[as] += n
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue(queue).kept.Add(&sums)
	s.unstored.Of(queue).Add(&sums)
}

// writeUnstored moves the counts to a batch. The caller must call failed when the batch does
// not become durable.
func (s *Store) writeUnstored(b *pebble.Batch) (failed func(), err error) {
	s.mu.Lock()
	took := s.unstored
	if len(took) > 0 {
		s.unstored = store.SumsBy{}
	}
	s.mu.Unlock()
	for queue, sums := range took {
		err = errors.Join(err, addSums(b, queue, sums))
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for queue, sums := range took {
			s.unstored.Of(queue).Add(sums)
		}
	}, err
}

func (s *Store) flushUnstored() error {
	c := s.newWriteBatch(0)
	defer c.close()
	return c.commit()
}

// groups holds all groups in memory, as their number is bounded. On disk each has a key with what its members share,
// and one with its tally.
type groups struct {
	mu       sync.Mutex
	known    map[errorgroup.ID]*groupState
	ordinary int   // how many are not other errors of a queue
	swept    int64 // the hour of the last sweep
	cache    groupCache
}

type groupState struct {
	errorgroup.Group
	store.Tally
	stored bool // what its members share is on disk
	users  int  // running changes that count in it
}

// of returns the group in which a failure with the group own counts. The caller holds mu.
func (g *groups) of(own errorgroup.Group) *groupState {
	of := store.GroupFor(own, g.find, g.ordinary < store.GroupsKept)
	if g.known[of.ID] == nil {
		g.add(&groupState{Group: of})
	}
	return g.known[of.ID]
}

func (g *groups) find(id errorgroup.ID) (known, inUse bool) {
	s := g.known[id]
	return s != nil, s != nil && s.inUse()
}

func (g *groups) add(s *groupState) {
	g.known[s.ID] = s
	if !s.isOther() {
		g.ordinary++
	}
}

func (s *groupState) inUse() bool { return s.Any() || s.users > 0 }

func (s *groupState) isOther() bool { return s.ID == errorgroup.Other(s.Queue, 0).ID }

func (s *Store) GroupOf(r *store.Record) errorgroup.ID {
	own := s.groups.cache.of(r, false)
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	return store.GroupFor(own, s.groups.find, true).ID
}

type grouped struct {
	*groupState
	more store.Tally
}

// group returns the group in which to count a record that is put or removed. Most records of a
// batch are alike.
func (c *writeBatch) group(r *store.Record) *grouped {
	if l := c.like; l != nil && l.Queue == r.Queue && l.Reason == r.Reason && l.Error == r.Error &&
		l.Message.Type == r.Message.Type {
		return c.last
	}
	own := c.s.groups.cache.of(r, c.fails)
	c.s.groups.mu.Lock()
	defer c.s.groups.mu.Unlock()
	s := c.s.groups.of(own)
	g := c.groups[s]
	if g == nil {
		g = &grouped{groupState: s}
		c.groups[s] = g
		s.users++
	}
	c.like, c.last = r, g
	return g
}

func (c *writeBatch) writeGroups() error {
	for s, g := range c.groups {
		if !s.stored {
			if err := c.batch.Set(groupInfoKey(s.ID), store.AppendGroup(nil, s.Group), nil); err != nil {
				return err
			}
		}
		if g.more != (store.Tally{}) {
			c.value = g.more.Append(c.value[:0])
			if err := c.batch.Merge(tallyKey(s.ID), c.value, nil); err != nil {
				return err
			}
		}
	}
	return c.s.groups.sweep(c.s.db, c.began)
}

func (c *writeBatch) counted() {
	c.s.groups.mu.Lock()
	defer c.s.groups.mu.Unlock()
	for s, g := range c.groups {
		s.Tally.Add(&g.more)
		s.stored = true
	}
}

func (c *writeBatch) unuse() {
	c.s.groups.mu.Lock()
	defer c.s.groups.mu.Unlock()
	for s := range c.groups {
		s.users--
	}
}

// sweep forgets, once an hour, groups without kept messages or a failure within a day. No change counts in them: mu
// keeps changes from starting to.
func (g *groups) sweep(db *pebble.DB, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	hour := now.Unix() / 3600
	if hour == g.swept {
		return nil
	}
	g.swept = hour
	b := db.NewBatch()
	defer b.Close()
	for id, s := range g.known {
		if s.users > 0 || s.Listed(now) {
			continue
		}
		if err := errors.Join(b.Delete(groupInfoKey(id), nil), b.Delete(tallyKey(id), nil)); err != nil {
			return err
		}
		delete(g.known, id)
		if !s.isOther() {
			g.ordinary--
		}
	}
	return b.Commit(pebble.NoSync)
}

func (s *Store) loadGroups() error {
	g := &s.groups
	if err := eachIn(s.db, prefixGroupInfo, func(key, value []byte) error {
		shared, err := store.ReadGroup(errorgroup.ID(key[1:]), value)
		if err == nil {
			g.add(&groupState{Group: shared, stored: true})
		}
		return err
	}); err != nil {
		return err
	}
	return eachIn(s.db, prefixTally, func(key, value []byte) error {
		s := g.known[errorgroup.ID(key[1:])]
		if s == nil {
			return fmt.Errorf("key %x: nothing tells which group it counts: %w", key, pebble.ErrCorruption)
		}
		if err := s.AddFrom(value); err != nil {
			return fmt.Errorf("key %x: %w", key, err)
		}
		return nil
	})
}

func (s *Store) Groups(ctx context.Context) ([]store.GroupCount, error) {
	notes, err := store.GroupNotes(ctx, s)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	var counts []store.GroupCount
	for _, g := range s.groups.known {
		if g.Listed(now) {
			counts = append(counts, g.Count(g.Group, notes[g.ID.String()], now))
		}
	}
	return counts, nil
}

// groupCache caches the groups of recent failures. Most failures are literally like one of
// these, and normalising an error costs more than all other counting.
type groupCache struct {
	mu   sync.Mutex
	own  map[likeness]errorgroup.Group
	seed maphash.Seed
	// seen has hashes of new failures' errors. An error is cached the second time, so that
	// errors that are all different are not cached.
	seen [8 * groupsCached]uint64
}

type likeness struct{ queue, reason, error, kind string }

const (
	groupsCached = 1024
	maxCached    = 512 // longer ones are not kept
)

// of returns a record's own group; fails: it is a new failure.
func (c *groupCache) of(r *store.Record, fails bool) errorgroup.Group {
	if len(r.Error)+len(r.Message.Type) > maxCached {
		return r.Group()
	}
	l := likeness{r.Queue, r.Reason, r.Error, r.Message.Type}
	c.mu.Lock()
	own, known := c.own[l]
	c.mu.Unlock()
	if known {
		return own
	}
	own = r.Group()
	if !fails {
		return own
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		c.own, c.seed = map[likeness]errorgroup.Group{}, maphash.MakeSeed()
	}
	hash := maphash.String(c.seed, r.Error)
	if seen := &c.seen[hash%uint64(len(c.seen))]; *seen != hash {
		*seen = hash
		return own
	}
	if len(c.own) == groupsCached {
		clear(c.own)
	}
	// A record's strings share the memory of a large one, which these would retain.
	l = likeness{strings.Clone(l.queue), strings.Clone(l.reason), strings.Clone(l.error), strings.Clone(l.kind)}
	c.own[l] = errorgroup.Of(l.queue, l.reason, l.error, l.kind)
	return own
}
