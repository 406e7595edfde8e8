package world

import (
	"cmp"
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

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
			s.stall.wait()
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

// heldClaim is a claim of a process until its lease ends.
type heldClaim struct {
	record *store.Record
	until  time.Time
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
		renewed := !s.stall.isOn() && s.draw(reads).err == nil
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
			over = append(over, store.Claim{Key: key, Record: c.record})
			delete(s.held, key)
		}
	}
	if len(over) > 0 && s.engine.Release(ctx, over) == nil { // it may be closed
		s.ledger.leasesEnded(over)
	}
}
