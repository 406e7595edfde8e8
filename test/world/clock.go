package world

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"sync"
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

// drawClock has the service's clock jump.
func (s *scenario) drawClock(r *rand.Rand) {
	if r.IntN(4) > 0 {
		return
	}
	for range 1 + r.IntN(2) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: clockJumps, away: time.Duration(pick(r, 1, -1)) * pick(r, time.Second, time.Minute, time.Hour)})
	}
}

// onClock is a store whose times are those of a service's clock that is off. In a bubble of
// testing/synctest all read one clock, so the times in the store are moved instead: that what waits
// is due an hour earlier, and that the service's clock is an hour further, is the same to it.
type onClock struct {
	engine
	clock *wallClock

	mu      sync.Mutex
	claimed map[*store.Record]*store.Record // as the store has them, by those that the service got
	// tried is how far the clock was off when a batch was added first that may be in the store: it is
	// added again as it was.
	tried map[[sha256.Size]byte]time.Duration
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

func (s *onClock) Add(ctx context.Context, records []*store.Record) error {
	of := store.HashOf(records)
	s.mu.Lock()
	off, again := s.tried[of]
	s.mu.Unlock()
	if !again {
		off = s.clock.off()
	}
	all := make([]*store.Record, 0, len(records))
	for _, r := range records {
		all = append(all, moved(r, off))
	}
	err := s.engine.Add(ctx, all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.tried, of); err != nil {
		s.tried[of] = off
	}
	return err
}

func (s *onClock) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	off := s.clock.off()
	claims, err := s.engine.Claim(ctx, lane, upTo.Add(off), n, maxBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range claims {
		claims[i].Record = moved(c.Record, -off)
		s.claimed[claims[i].Record] = c.Record
	}
	return claims, err
}

// kept is a claim as the store has it; forget forgets it.
func (s *onClock) kept(c store.Claim) store.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.claimed[c.Record]; r != nil {
		c.Record = r
	}
	return c
}

func (s *onClock) forget(r *store.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claimed, r)
}

func (s *onClock) Finish(ctx context.Context, outcomes []store.Outcome) (int, error) {
	off := s.clock.off()
	all := slices.Clone(outcomes)
	for i, o := range all {
		all[i].Claim, all[i].At = s.kept(o.Claim), o.At.Add(off)
	}
	n, err := s.engine.Finish(ctx, all)
	for _, o := range outcomes {
		if err == nil {
			s.forget(o.Claim.Record)
		}
	}
	return n, err
}

func (s *onClock) Release(ctx context.Context, claims []store.Claim) error {
	all := slices.Clone(claims)
	for i, c := range all {
		all[i] = s.kept(c)
	}
	err := s.engine.Release(ctx, all)
	for _, c := range claims {
		if err == nil {
			s.forget(c.Record)
		}
	}
	return err
}

func (s *onClock) Next(ctx context.Context) ([]store.NextDue, error) {
	off := s.clock.off()
	next, err := s.engine.Next(ctx)
	for i := range next {
		next[i].Due = next[i].Due.Add(-off)
	}
	return next, err
}

func (s *onClock) Remember(ctx context.Context, receipts []store.Receipt) error {
	off := s.clock.off()
	all := slices.Clone(receipts)
	for i := range all {
		all[i].FirstFailed = all[i].FirstFailed.Add(off)
	}
	return s.engine.Remember(ctx, all)
}

func (s *onClock) Receipts(ctx context.Context) ([]store.Receipt, error) {
	off := s.clock.off()
	all, err := s.engine.Receipts(ctx)
	for i := range all {
		all[i].FirstFailed = all[i].FirstFailed.Add(-off)
	}
	return all, err
}

func (s *onClock) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	off := s.clock.off()
	return s.engine.Change(ctx, keys, func(k store.Key, r *store.Record) store.Edit {
		var e store.Edit
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
}

func (s *onClock) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	off := s.clock.off()
	for _, t := range []*time.Time{&r.From, &r.To} {
		if !t.IsZero() {
			*t = t.Add(off)
		}
	}
	return s.engine.Scan(ctx, r, func(l store.Listed) (bool, error) {
		l.Record = moved(l.Record, -off)
		return visit(l)
	})
}

func (s *onClock) Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error) {
	off := s.clock.off()
	all, err := s.engine.Find(ctx, id)
	for i := range all {
		all[i].Record = moved(all[i].Record, -off)
	}
	return all, err
}

func (s *onClock) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	off := s.clock.off()
	l, err := s.engine.Get(ctx, key)
	if err == nil {
		l.Record = moved(l.Record, -off)
	}
	return l, err
}
