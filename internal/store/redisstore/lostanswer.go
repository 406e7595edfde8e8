package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// forbiddenFor is how long it is remembered that a change must not be done.
const forbiddenFor = 7 * 24 * time.Hour

// resolve finds out what became of the last Change of this process, when its answer was
// lost: after it the Change is done, or never will be. Without that it could still be on
// its way to Redis while somebody finds its entries missing, and does it again.
// The caller holds changing.
func (s *Store) resolve(ctx context.Context) error {
	c := s.doubt.Load()
	if c == nil {
		return nil
	}
	if _, err := s.write(ctx, scriptForbid, c.token, itoa(forbiddenFor.Milliseconds())); err != nil {
		return fmt.Errorf("whether the last change was done is not known yet: %w", err)
	}
	if err := c.release(ctx, c.records); err != nil {
		return err
	}
	s.doubt.Store(nil)
	s.signal()
	return nil
}

// giveUp releases what a Change that is not done has locked, now or as soon as that works.
func (c *change) giveUp(ctx context.Context, why error) error {
	err := c.release(ctx, c.records)
	if err != nil {
		c.s.doubted(c)
	}
	return errors.Join(why, err)
}

// doubted notes a Change whose answer was lost.
func (s *Store) doubted(c *change) {
	c.ops, c.add, c.entries, c.unchanged = nil, batch{}, nil, nil
	s.doubt.Store(c)
}

// resolveNow is resolve for who is about to read what a Change may have written.
func (s *Store) resolveNow(ctx context.Context) error {
	if s.doubt.Load() == nil {
		return nil
	}
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.changing.Release(1)
	return s.resolve(ctx)
}

// resolveSoon is resolve now and then, so that nothing stays locked for longer than it
// must.
func (s *Store) resolveSoon() {
	if s.doubt.Load() == nil || !s.changing.TryAcquire(1) {
		return
	}
	defer s.changing.Release(1)
	s.logTrouble("finding out whether a change was done", s.resolve(s.ctx))
}
