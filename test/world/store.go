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

	"github.com/redrive-mq/redrive/internal/store"
)

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
	defer lock(&t.mu)()
	t.until, t.percent = time.Now().Add(lasts), percent
}

// manner is how one call goes.
type manner struct {
	late time.Duration
	lost bool
	err  error // it is not done; or with lost, it is, and this is what the caller sees
}

var (
	errTimeout  = fmt.Errorf("redis: %w", context.DeadlineExceeded)
	errsOfRedis = []error{fmt.Errorf("redis: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}), fmt.Errorf("redis: %w", io.EOF), errTimeout,
		fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})} // the last: not done for sure
	errMemory = fmt.Errorf("redis: %w: OOM command not allowed when used memory > 'maxmemory'", store.ErrFull)
	errDisk   = fmt.Errorf("writing to the store: %w", syscall.EIO)
)

// draw decides how a call goes.
func (t *trouble) draw(redis, adds bool) (m manner) {
	defer lock(&t.mu)()
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
			m.lost, m.err = true, pick(t.random, errsOfRedis[:3]...)
			break
		}
		fallthrough
	default:
		m.err = errDisk
		if redis {
			m.err = pick(t.random, errsOfRedis...)
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
type reached struct {
	engine
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
	record *store.Record
	until  time.Time
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
func (s *reached) ask(ctx context.Context, kind int, do func() error) error {
	m := s.draw(kind)
	if m.err != nil && !m.lost {
		return &unanswered{error: m.err}
	}
	if m.late > 0 && kind&prompt == 0 {
		select {
		case <-ctx.Done():
			return &unanswered{error: ctx.Err()}
		case <-time.After(m.late):
		}
	}
	if err := do(); err != nil {
		return err
	}
	if m.lost {
		return &unanswered{error: m.err, done: kind&reads == 0}
	}
	return nil
}

// asked is ask for what has an answer.
func asked[T any](ctx context.Context, s *reached, kind int, do func() (T, error)) (answer T, err error) {
	err = s.ask(ctx, kind, func() (err error) { answer, err = do(); return err })
	return answer, err
}

func (s *reached) Add(ctx context.Context, records []*store.Record) error {
	s.hook.reach(adding)
	defer s.hook.reach(added)
	of := store.HashOf(records)
	s.mu.Lock()
	wasAdded := s.added[of]
	s.mu.Unlock()
	kind := adds
	if wasAdded {
		kind = 0 // that needs no room
	}
	err := s.ask(ctx, kind, func() error {
		if wasAdded {
			return nil
		}
		return s.engine.Add(ctx, records)
	})
	defer lock(&s.mu)()
	switch {
	case err == nil:
		delete(s.added, of)
	case doneUnanswered(err):
		s.added[of] = true
	}
	return err
}

func (s *reached) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) (claims []store.Claim, err error) {
	err = s.ask(ctx, 0, func() (err error) {
		claims, err = s.engine.Claim(ctx, lane, upTo, n, maxBytes)
		return err
	})
	if err != nil {
		lost := claims
		time.AfterFunc(lease, func() { _ = s.engine.Release(context.WithoutCancel(ctx), lost) }) // it may be closed
		return nil, err
	}
	defer lock(&s.mu)()
	for _, c := range claims {
		s.held[c.Key] = heldClaim{c.Record, time.Now().Add(lease)}
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

// holds reports whether a claim has not ended yet.
func (s *reached) holds(c store.Claim) bool {
	defer lock(&s.mu)()
	return s.held[c.Key].record == c.Record
}

func (s *reached) ended(c store.Claim) {
	defer lock(&s.mu)()
	if s.held[c.Key].record == c.Record {
		delete(s.held, c.Key)
	}
}

func (s *reached) Finish(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	s.hook.reach(finishing)
	defer s.hook.reach(finished)
	var ids []string
	for _, o := range outcomes {
		ids = append(ids, idIn(o.Claim.Record.Message.Headers))
	}
	s.ledger.doubt(s.part, ids)
	err = s.ask(ctx, 0, func() (err error) {
		held := slices.DeleteFunc(slices.Clone(outcomes), func(o store.Outcome) bool { return !s.holds(o.Claim) })
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
	err := s.ask(ctx, 0, func() error {
		held := slices.DeleteFunc(slices.Clone(claims), func(c store.Claim) bool { return !s.holds(c) })
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

func (s *reached) Next(ctx context.Context) ([]store.NextDue, error) {
	return asked(ctx, s, reads, func() ([]store.NextDue, error) { return s.engine.Next(ctx) })
}

func (s *reached) Counts(ctx context.Context) ([]store.QueueCount, error) {
	return asked(ctx, s, reads|prompt, func() ([]store.QueueCount, error) { return s.engine.Counts(ctx) })
}

func (s *reached) Remember(ctx context.Context, receipts []store.Receipt) error {
	return s.ask(ctx, adds, func() error { return s.engine.Remember(ctx, receipts) })
}

func (s *reached) Receipts(ctx context.Context) ([]store.Receipt, error) {
	return asked(ctx, s, reads, func() ([]store.Receipt, error) { return s.engine.Receipts(ctx) })
}

func (s *reached) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry) (n int, err error) {
	if !s.beginChange() {
		return 0, store.ErrClosed
	}
	defer s.changes.Done()
	alone := entries == nil
	o, edit, entries := s.ledger.observe(edit, entries)
	err = s.ask(ctx, adds, func() (err error) {
		n, err = s.engine.Change(ctx, keys, edit, entries)
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
	defer lock(&s.mu)()
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

func (s *reached) Entry(ctx context.Context, name string) ([]byte, error) {
	return asked(ctx, s, reads|prompt, func() ([]byte, error) { return s.engine.Entry(ctx, name) })
}

func (s *reached) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	return s.ask(ctx, reads|prompt, func() error { return s.engine.Entries(ctx, prefix, after, visit) })
}

func (s *reached) PutEntries(ctx context.Context, entries []store.Entry) error {
	return s.ask(ctx, prompt, func() error { return s.engine.PutEntries(ctx, entries) })
}

func (s *reached) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	return asked(ctx, s, reads, func() (store.Listed, error) { return s.engine.Get(ctx, key) })
}

// sharedStore is a store in Redis, which others may use too.
type sharedStore struct {
	*reached
	shared store.Shared
}

func (s *sharedStore) Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]store.Replica, error) {
	return asked(ctx, s.reached, 0, func() ([]store.Replica, error) { return s.shared.Beat(ctx, replica, about, ttl) })
}

func (s *sharedStore) Leave(ctx context.Context, replica string) error {
	return s.ask(ctx, 0, func() error { return s.shared.Leave(ctx, replica) })
}

func (s *sharedStore) Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error) {
	err = s.ask(ctx, 0, func() (err error) { term, leads, err = s.shared.Lead(ctx, what, replica, ttl); return err })
	return term, leads && err == nil, err
}

func (s *sharedStore) Resign(ctx context.Context, what, replica string) error {
	return s.ask(ctx, 0, func() error { return s.shared.Resign(ctx, what, replica) })
}

func (s *sharedStore) Send(ctx context.Context, topic string, message []byte) error {
	return s.ask(ctx, 0, func() error { return s.shared.Send(ctx, topic, message) })
}

func (s *sharedStore) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	err := s.ask(ctx, reads, func() error {
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
	defer lock(&s.mu)()
	now := time.Now()
	var over []store.Claim
	for key, c := range s.held {
		switch {
		case renewed:
			c.until = now.Add(lease)
			s.held[key] = c
		case !now.Before(c.until):
			over = append(over, store.Claim{Key: key, Record: c.record})
			delete(s.held, key)
		}
	}
	if len(over) > 0 && s.engine.Release(ctx, over) == nil { // it may be closed
		s.ledger.leasesEnded(over)
	}
}
