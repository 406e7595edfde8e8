package world

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// wallClock is how far the service's clock is from RabbitMQ's. A person or NTP sets it; what
// measures how long something takes (Go's monotonic clock) does not notice.
type wallClock struct {
	mu    sync.Mutex
	jumps []clockJump
}

type clockJump struct {
	at  time.Time
	off time.Duration // from then on
}

// jump sets the clock by so much.
func (c *wallClock) jump(by time.Duration) {
	off := c.off()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jumps = append(c.jumps, clockJump{time.Now(), off + by})
}

func (c *wallClock) off() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.jumps); n > 0 {
		return c.jumps[n-1].off
	}
	return 0
}

// rise is by how much the clock was set forward in all between two moments, and fall by how much
// back: at most so much earlier, or later, comes what waits meanwhile.
func (c *wallClock) rise(from, to time.Time) (rise, fall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	off := time.Duration(0)
	for _, j := range c.jumps {
		by := j.off - off
		if off = j.off; j.at.Before(from) || j.at.After(to) {
			continue
		}
		rise, fall = rise+max(0, by), fall+max(0, -by)
	}
	return rise, fall
}

// moved is a record with its times moved.
func moved(r *store.Record, by time.Duration) *store.Record {
	is := *r
	for _, t := range []*time.Time{&is.Due, &is.FailedAt, &is.FirstFailed} {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
	return &is
}

const (
	// callTimeout is how long a call of Redis may take, and lease how long a claim stays with a
	// process that does not know of it: see redisstore.Options.
	callTimeout = 5 * time.Second
	lease       = 30 * time.Second
)

// trouble is what a store has while a fault lasts: some of what it is asked is not done, some is
// late, and where it is Redis some is done and not answered.
type trouble struct {
	mu      sync.Mutex
	random  *rand.Rand
	until   time.Time
	percent int // of the calls
}

func (t *trouble) begin(lasts time.Duration, percent int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until, t.percent = time.Now().Add(lasts), percent
}

// manner is how one call goes.
type manner struct {
	late time.Duration
	lost bool
	err  error // it is not done; or with lost, it is, and this is what the caller sees
}

var (
	errTimeout = fmt.Errorf("redis: %w", context.DeadlineExceeded)
	errReset   = fmt.Errorf("redis: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET})
	errEOF     = fmt.Errorf("redis: %w", io.EOF)
	errRefused = fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	errMemory  = fmt.Errorf("redis: %w: OOM command not allowed when used memory > 'maxmemory'", store.ErrFull)
	errDisk    = fmt.Errorf("writing to the store: %w", syscall.EIO)
)

// draw decides how a call goes.
func (t *trouble) draw(redis, adds bool) (m manner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !time.Now().Before(t.until) || t.random.IntN(100) >= t.percent {
		return m
	}
	switch t.random.IntN(4) {
	case 0:
		m.late = between(t.random, 0, 2*callTimeout)
		if redis && m.late > callTimeout {
			m.late, m.lost, m.err = callTimeout, true, errTimeout
		}
	case 1:
		if redis {
			m.lost, m.err = true, pick(t.random, errReset, errEOF, errTimeout)
			break
		}
		fallthrough
	default:
		m.err = errDisk
		if redis {
			m.err = pick(t.random, errReset, errEOF, errRefused, errTimeout)
		}
		if adds && t.random.IntN(3) == 0 {
			m.err = errMemory
		}
	}
	return m
}

// unanswered is the error of a store in trouble.
type unanswered struct {
	error
	done bool // what was asked, all the same
}

func (u *unanswered) Unwrap() error { return u.error }

// reached is a store as a service reaches it. What its contract leaves to Redis's engine it does
// as that does: a batch whose answer was lost is the same one when it is added again, an end of a
// claim that was ended already is none, and claims whose answer was lost end with their lease.
//
// Its times are those of the service's clock, which may be off. In a bubble of testing/synctest all read
// one clock, so the times in the store are moved instead: that what waits is due an hour earlier, and
// that the service's clock is an hour further, is the same to it.
type reached struct {
	engine
	clock   *wallClock
	redis   bool
	trouble *trouble // of all that use the store
	cutOff  *trouble // of this process alone
	hook    *hook
	ledger  *ledger
	part    string // of the service, in the ledger: its scheduler

	mu      sync.Mutex
	dead    bool                       // its process has crashed, and changes nothing any more
	changes sync.WaitGroup             // under way
	added   map[[sha256.Size]byte]bool // batches that were added, and the answer was lost
	held    map[store.Key]heldClaim
}

// heldClaim is a claim of a process until its lease ends.
type heldClaim struct {
	record   *store.Record // as the service got it
	original *store.Record // as the store has it
	until    time.Time
}

// Kinds of calls.
const (
	adds   = 1 << iota // it needs room
	reads              // it changes nothing
	prompt             // the service may hold a mutex meanwhile: fake time would not pass, so it is never late
)

// draw decides about a call.
func (s *reached) draw(kind int) manner {
	if m := s.cutOff.draw(s.redis, kind&adds != 0); m != (manner{}) {
		return m
	}
	return s.trouble.draw(s.redis, kind&adds != 0)
}

// ask asks the store, as well as that goes now.
func (s *reached) ask(ctx context.Context, kind int, do func() error) (m manner, err error) {
	m = s.draw(kind)
	if m.err != nil && !m.lost {
		return m, &unanswered{error: m.err}
	}
	if m.late > 0 && kind&prompt == 0 {
		select {
		case <-ctx.Done():
			return m, &unanswered{error: ctx.Err()}
		case <-time.After(m.late):
		}
	}
	if err := do(); err != nil {
		return m, err
	}
	if m.lost {
		return m, &unanswered{error: m.err, done: kind&reads == 0}
	}
	return m, nil
}

func (s *reached) Add(ctx context.Context, records []*store.Record) error {
	s.hook.reach(adding)
	defer s.hook.reach(added)
	of, off := store.HashOf(records), s.clock.off()
	s.mu.Lock()
	wasAdded := s.added[of]
	s.mu.Unlock()
	kind := adds
	if wasAdded {
		kind = 0 // that needs no room
	}
	m, err := s.ask(ctx, kind, func() error {
		if wasAdded {
			return nil
		}
		all := make([]*store.Record, 0, len(records))
		for _, r := range records {
			all = append(all, moved(r, off))
		}
		return s.engine.Add(ctx, all)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.added, of)
	case m.lost && doneUnanswered(err):
		s.added[of] = true
	}
	return err
}

func (s *reached) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) (claims []store.Claim, err error) {
	off := s.clock.off()
	_, err = s.ask(ctx, 0, func() (err error) {
		claims, err = s.engine.Claim(ctx, lane, upTo.Add(off), n, maxBytes)
		return err
	})
	if err != nil {
		lost := claims
		time.AfterFunc(lease, func() { _ = s.engine.Release(context.WithoutCancel(ctx), lost) }) // it may be closed
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range claims {
		claims[i].Record = moved(c.Record, -off)
		s.held[c.Key] = heldClaim{claims[i].Record, c.Record, time.Now().Add(lease)}
	}
	s.ledger.doubt(s.part, idsOf(claims)) // it may be published from now on
	return claims, nil
}

func idsOf(claims []store.Claim) (ids []string) {
	for _, c := range claims {
		ids = append(ids, idIn(c.Record.Message.Headers))
	}
	return ids
}

// holds returns a claim as the store has it; false: it was ended already.
func (s *reached) holds(c store.Claim) (store.Claim, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[c.Key]
	if h.record != c.Record {
		return c, false
	}
	c.Record = h.original
	return c, true
}

func (s *reached) ended(c store.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[c.Key].original == c.Record {
		delete(s.held, c.Key)
	}
}

func (s *reached) Finish(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	s.hook.reach(finishing)
	defer s.hook.reach(finished)
	off := s.clock.off()
	var ids []string
	for _, o := range outcomes {
		ids = append(ids, idIn(o.Claim.Record.Message.Headers))
	}
	s.ledger.doubt(s.part, ids)
	_, err = s.ask(ctx, 0, func() (err error) {
		var held []store.Outcome
		for _, o := range outcomes {
			var is bool
			if o.Claim, is = s.holds(o.Claim); is {
				o.At = o.At.Add(off)
				held = append(held, o)
			}
		}
		if n, err = s.engine.Finish(ctx, held); err == nil {
			for _, o := range held {
				s.ended(o.Claim)
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	s.ledger.certain(s.part, ids)
	return n, nil
}

func (s *reached) Release(ctx context.Context, claims []store.Claim) error {
	_, err := s.ask(ctx, 0, func() error {
		var held []store.Claim
		for _, c := range claims {
			if c, is := s.holds(c); is {
				held = append(held, c)
			}
		}
		if err := s.engine.Release(ctx, held); err != nil {
			return err
		}
		for _, c := range held {
			s.ended(c)
		}
		s.ledger.certain(s.part, idsOf(held))
		return nil
	})
	return err
}

func (s *reached) Next(ctx context.Context) (next []store.NextDue, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { next, err = s.engine.Next(ctx); return err })
	for i := range next {
		next[i].Due = next[i].Due.Add(-s.clock.off())
	}
	return next, err
}

func (s *reached) Counts(ctx context.Context) (counts []store.QueueCount, err error) {
	_, err = s.ask(ctx, reads|prompt, func() (err error) { counts, err = s.engine.Counts(ctx); return err })
	return counts, err
}

func (s *reached) Remember(ctx context.Context, receipts []store.Receipt) error {
	all := slices.Clone(receipts)
	for i := range all {
		all[i].FirstFailed = all[i].FirstFailed.Add(s.clock.off())
	}
	_, err := s.ask(ctx, adds, func() error { return s.engine.Remember(ctx, all) })
	return err
}

func (s *reached) Receipts(ctx context.Context) (all []store.Receipt, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { all, err = s.engine.Receipts(ctx); return err })
	for i := range all {
		all[i].FirstFailed = all[i].FirstFailed.Add(-s.clock.off())
	}
	return all, err
}

func (s *reached) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry) (n int, err error) {
	if !s.beginChange() {
		return 0, store.ErrClosed
	}
	defer s.changes.Done()
	off, alone := s.clock.off(), entries == nil
	o, edit, entries := s.ledger.observe(edit, entries)
	_, err = s.ask(ctx, adds, func() (err error) {
		n, err = s.engine.Change(ctx, keys, func(k store.Key, r *store.Record) (e store.Edit) {
			if r == nil {
				e = edit(k, nil)
			} else {
				is := moved(r, -off)
				e = edit(k, is)
				*r = *moved(is, off)
			}
			for i, made := range e.Add {
				e.Add[i] = moved(made, off)
			}
			return e
		}, entries)
		return err
	})
	if u := (*unanswered)(nil); errors.As(err, &u) && alone && n == 0 {
		u.done = false // it came too late: there was nothing to be done
	}
	if o.end(err == nil || doneUnanswered(err)); err != nil {
		return 0, err
	}
	return n, nil
}

func (s *reached) beginChange() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead {
		s.changes.Add(1)
	}
	return !s.dead
}

// crash is when its process crashes: not in the middle of a Change, or no one would know whether that
// is done.
func (s *reached) crash() {
	s.mu.Lock()
	s.dead = true
	s.mu.Unlock()
	s.hook.end()
	s.changes.Wait()
}

func (s *reached) Entry(ctx context.Context, name string) (value []byte, err error) {
	_, err = s.ask(ctx, reads|prompt, func() (err error) { value, err = s.engine.Entry(ctx, name); return err })
	return value, err
}

func (s *reached) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	_, err := s.ask(ctx, reads|prompt, func() error { return s.engine.Entries(ctx, prefix, after, visit) })
	return err
}

func (s *reached) PutEntries(ctx context.Context, entries []store.Entry) error {
	_, err := s.ask(ctx, prompt, func() error { return s.engine.PutEntries(ctx, entries) })
	return err
}

func (s *reached) DeleteEntries(ctx context.Context, prefix string) error {
	_, err := s.ask(ctx, prompt, func() error { return s.engine.DeleteEntries(ctx, prefix) })
	return err
}

func (s *reached) NewestNumber(ctx context.Context) (n uint64, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { n, err = s.engine.NewestNumber(ctx); return err })
	return n, err
}

func (s *reached) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	off := s.clock.off()
	for _, t := range []*time.Time{&r.From, &r.To} {
		if !t.IsZero() {
			*t = t.Add(off)
		}
	}
	_, err := s.ask(ctx, reads, func() error {
		return s.engine.Scan(ctx, r, func(l store.Listed) (bool, error) {
			l.Record = moved(l.Record, -off)
			return visit(l)
		})
	})
	return err
}

func (s *reached) Find(ctx context.Context, id uuid.UUID) (all []store.Listed, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { all, err = s.engine.Find(ctx, id); return err })
	for i := range all {
		all[i].Record = moved(all[i].Record, -s.clock.off())
	}
	return all, err
}

func (s *reached) Get(ctx context.Context, key store.Key) (l store.Listed, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { l, err = s.engine.Get(ctx, key); return err })
	if err == nil {
		l.Record = moved(l.Record, -s.clock.off())
	}
	return l, err
}

// sharedStore is a store in Redis, which others may use too.
type sharedStore struct {
	*reached
	shared store.Shared
}

// Beat implements store.Shared.
func (s *sharedStore) Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) (all []store.Replica, err error) {
	_, err = s.ask(ctx, 0, func() (err error) { all, err = s.shared.Beat(ctx, replica, about, ttl); return err })
	return all, err
}

// Leave implements store.Shared.
func (s *sharedStore) Leave(ctx context.Context, replica string) error {
	_, err := s.ask(ctx, 0, func() error { return s.shared.Leave(ctx, replica) })
	return err
}

// Lead implements store.Shared.
func (s *sharedStore) Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error) {
	_, err = s.ask(ctx, 0, func() (err error) { term, leads, err = s.shared.Lead(ctx, what, replica, ttl); return err })
	return term, leads && err == nil, err
}

// Resign implements store.Shared.
func (s *sharedStore) Resign(ctx context.Context, what, replica string) error {
	_, err := s.ask(ctx, 0, func() error { return s.shared.Resign(ctx, what, replica) })
	return err
}

// Send implements store.Shared.
func (s *sharedStore) Send(ctx context.Context, topic string, message []byte) error {
	_, err := s.ask(ctx, 0, func() error { return s.shared.Send(ctx, topic, message) })
	return err
}

// Listen implements store.Shared.
func (s *sharedStore) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	_, err := s.ask(ctx, reads, func() error {
		return s.shared.Listen(ctx, topic, func(message []byte) {
			if m := s.draw(reads); m.err != nil {
				lose(&unanswered{error: m.err}) // the connection is gone, and with it what is sent
			}
			if ctx.Err() == nil {
				receive(message)
			}
		})
	})
	return cmp.Or(context.Cause(ctx), err)
}

// keepLeases renews the leases of what the process has claimed, until ctx ends, as redisstore does;
// those that it cannot renew end: then others may claim the messages.
func (s *reached) keepLeases(ctx context.Context) {
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed := s.draw(reads).err == nil
		s.endLeases(context.WithoutCancel(ctx), renewed)
	}
}

func (s *reached) endLeases(ctx context.Context, renewed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var over []store.Claim
	for key, c := range s.held {
		switch {
		case renewed:
			c.until = now.Add(lease)
			s.held[key] = c
		case !now.Before(c.until):
			over = append(over, store.Claim{Key: key, Record: c.original})
			delete(s.held, key)
		}
	}
	if len(over) > 0 && s.engine.Release(ctx, over) == nil { // it may be closed
		s.ledger.leasesEnded(over)
	}
}
