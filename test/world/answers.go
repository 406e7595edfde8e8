package world

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// unanswered is the error of a store in trouble.
type unanswered struct {
	error
	done bool // what was asked, all the same
	open bool // it may be done later
}

func (u *unanswered) Unwrap() error { return u.error }

// reached is a store as a service reaches it. What its contract leaves to Redis's engine it does
// as that does: a batch whose answer was lost is the same one when it is added again, an end of a
// claim that was ended already is none, and claims whose answer was lost end with their lease.
type reached struct {
	engine
	redis   bool
	client  *redisClient // nil: the store is not Redis's own, whose connections have the trouble
	trouble *trouble     // of all that use the store
	cutOff  *trouble     // of this process alone
	stall   *stall
	ledger  *ledger
	part    string // of the service, in the ledger: its scheduler

	mu      sync.Mutex
	dead    bool                       // its process has crashed, and changes nothing any more
	changes sync.WaitGroup             // under way
	added   map[[sha256.Size]byte]bool // batches that were added, and the answer was lost
	held    map[store.Key]heldClaim
}

// Kinds of calls.
const (
	adds   = 1 << iota // it needs room
	reads              // it changes nothing
	prompt             // the service may hold a mutex meanwhile: fake time would not pass, so it is never late
)

// draw decides about a call.
func (s *reached) draw(kind int) manner {
	if s.client != nil {
		return manner{}
	}
	if m := s.cutOff.draw(s.redis, kind&adds != 0); m != (manner{}) {
		return m
	}
	return s.trouble.draw(s.redis, kind&adds != 0)
}

func (s *reached) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// ask asks the store, as well as that goes now.
func (s *reached) ask(ctx context.Context, kind int, do func() error) (m manner, err error) {
	if s.client != nil {
		kind &^= prompt
	}
	if kind&prompt != 0 && s.stall.isOn() {
		return m, &unanswered{error: errTimeout}
	}
	if s.stall.isOn() {
		if s.stall.wait(); s.isDead() {
			return m, store.ErrClosed // it crashed meanwhile
		}
	}
	if kind&prompt == 0 {
		defer s.stall.wait() // the answer comes when it goes on
	}
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
		if s.client != nil && wentUnanswered(err) {
			err = &unanswered{error: err}
		}
		return m, err
	}
	if m.lost {
		return m, &unanswered{error: m.err, done: kind&reads == 0}
	}
	return m, nil
}

func (s *reached) Add(ctx context.Context, records []*store.Record) error {
	s.stall.reach(adding)
	defer s.stall.reach(added)
	if s.client != nil {
		_, err := s.ask(ctx, adds, func() error { return s.engine.Add(ctx, records) })
		return err
	}
	of := store.HashOf(records)
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
		return s.engine.Add(ctx, records)
	})
	var u *unanswered
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.added, of)
	case m.lost && errors.As(err, &u) && u.done:
		s.added[of] = true
	}
	return err
}

func (s *reached) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) (claims []store.Claim, err error) {
	_, err = s.ask(ctx, 0, func() (err error) {
		claims, err = s.engine.Claim(ctx, lane, upTo, n, maxBytes)
		return err
	})
	if s.client != nil {
		if err != nil {
			return nil, err
		}
		s.ledger.leasesEnded(s.client.claims(claims))
	}
	if err != nil && len(claims) > 0 {
		lost := claims
		time.AfterFunc(lease, func() { _ = s.engine.Release(context.WithoutCancel(ctx), lost) }) // it may be closed
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(claims))
	for _, c := range claims {
		s.held[c.Key] = heldClaim{c.Record, time.Now().Add(lease)}
		ids = append(ids, idIn(c.Record.Message.Headers))
	}
	s.ledger.doubt(s.part, ids) // it may be published from now on
	return claims, err
}

// isHeld tells whether a claim was not ended yet.
func (s *reached) isHeld(c store.Claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[c.Key].record == c.Record
}

func (s *reached) ended(c store.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[c.Key].record == c.Record {
		delete(s.held, c.Key)
	}
}

func (s *reached) Finish(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	s.stall.reach(finishing)
	defer s.stall.reach(finished)
	ids := make([]string, 0, len(outcomes))
	for _, o := range outcomes {
		ids = append(ids, idIn(o.Claim.Record.Message.Headers))
	}
	s.ledger.doubt(s.part, ids)
	_, err = s.ask(ctx, 0, func() (err error) {
		if s.client != nil {
			n, err = s.engine.Finish(ctx, outcomes)
			return err
		}
		held := slices.DeleteFunc(slices.Clone(outcomes), func(o store.Outcome) bool { return !s.isHeld(o.Claim) })
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
	if s.client != nil && n == len(outcomes) {
		for _, o := range outcomes {
			s.client.endClaims([]store.Claim{o.Claim})
		}
	}
	s.ledger.certain(s.part, ids)
	return n, nil
}

func (s *reached) Release(ctx context.Context, claims []store.Claim) error {
	_, err := s.ask(ctx, 0, func() error {
		held := claims
		if s.client == nil {
			held = slices.DeleteFunc(slices.Clone(claims), func(c store.Claim) bool { return !s.isHeld(c) })
		}
		if err := s.engine.Release(ctx, held); err != nil {
			return err
		}
		if s.client != nil {
			s.client.endClaims(held)
		}
		for _, c := range held {
			s.ended(c)
			s.ledger.certain(s.part, []string{idIn(c.Record.Message.Headers)})
		}
		return nil
	})
	return err
}

func (s *reached) Next(ctx context.Context) (next []store.NextDue, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { next, err = s.engine.Next(ctx); return err })
	return next, err
}

func (s *reached) Counts(ctx context.Context) (counts []store.QueueCount, err error) {
	_, err = s.ask(ctx, reads|prompt, func() (err error) { counts, err = s.engine.Counts(ctx); return err })
	return counts, err
}

func (s *reached) Remember(ctx context.Context, receipts []store.Receipt) error {
	_, err := s.ask(ctx, adds, func() error { return s.engine.Remember(ctx, receipts) })
	return err
}

func (s *reached) Receipts(ctx context.Context) (all []store.Receipt, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { all, err = s.engine.Receipts(ctx); return err })
	return all, err
}

func (s *reached) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (n int, err error) {
	s.stall.reach(changing)
	defer s.stall.reach(changed) // when it is no longer under way: a process may crash then
	if !s.beginChange() {
		return 0, store.ErrClosed
	}
	defer s.changes.Done()
	alone := entries == nil
	o, edit, entries := s.ledger.observe(edit, entries)
	if s.client != nil {
		return s.changeInRedis(ctx, keys, o, edit, entries)
	}
	_, err = s.ask(ctx, adds, func() (err error) { n, err = s.engine.Change(ctx, keys, edit, entries); return err })
	if u := (*unanswered)(nil); errors.As(err, &u) && alone && n == 0 {
		u.done = false // it came too late: there was nothing to be done
	}
	o.end(err == nil || doneUnanswered(err))
	if err != nil {
		return 0, err
	}
	return n, nil
}

// changeInRedis is a Change of which Redis may not say what became of it.
func (s *reached) changeInRedis(ctx context.Context, keys []store.Key, o *observed, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (n int, err error) {
	is := &redisChange{}
	_, err = s.ask(ctx, adds, func() (err error) {
		n, err = s.engine.Change(ctx, keys, edit, func(n int) []store.Entry {
			s.client.begin(is)
			return entries(n)
		})
		return err
	})
	if err == nil {
		o.end(true)
		return n, nil
	}
	u, unknown := err.(*unanswered)
	sent, done := s.client.became(is, func() { o.end(true) })
	switch {
	case done:
		o.end(true)
		if unknown {
			u.done = true
		}
	case unknown && sent:
		u.open = true
		o.leaveOpen()
	default:
		o.end(false)
	}
	return 0, err
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
	s.stall.end()
	if s.client != nil {
		s.client.end()
		return // what became of a Change, Redis knows
	}
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
	_, err := s.ask(ctx, reads, func() error { return s.engine.Scan(ctx, r, visit) })
	return err
}

func (s *reached) Find(ctx context.Context, id uuid.UUID) (all []store.Listed, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { all, err = s.engine.Find(ctx, id); return err })
	return all, err
}

func (s *reached) Get(ctx context.Context, key store.Key) (l store.Listed, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { l, err = s.engine.Get(ctx, key); return err })
	return l, err
}
