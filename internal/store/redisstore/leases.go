package redisstore

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"
)

// claims are those of this process, whose leases it renews.
type claims struct {
	mu   sync.Mutex
	held map[loan]string // its token
	// ending is held for reading while claims are ended: to one that renews meanwhile
	// they would look lost.
	ending sync.RWMutex
}

// loan is a record that is claimed.
type loan struct {
	shard  int
	number uint64
}

func (c *claims) take(shard int, number uint64, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[loan{shard, number}] = token
}

// end forgets a claim, unless the record is claimed anew.
func (c *claims) end(l loan, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[l] == token {
		delete(c.held, l)
	}
}

// all are the claims by shard, each its number and token.
func (c *claims) all(shards int) [][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	by := make([][]string, shards)
	for l, token := range c.held {
		by[l.shard] = append(by[l.shard], member(l.number), token)
	}
	return by
}

// token is one that no claim ever had.
func (s *Store) token() string { return s.name + "." + strconv.FormatUint(s.tokens.Add(1), 36) }

// renewing keeps what this process has claimed from being given to others, until
// Close.
func (s *Store) renewing() {
	tick := time.NewTicker(s.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.tell("renewing the leases of claimed messages", s.renew(s.ctx))
		}
	}
}

func (s *Store) renew(ctx context.Context) error {
	s.claims.ending.Lock()
	defer s.claims.ending.Unlock()
	lost := 0
	err := s.pairs(s.claims.all(s.Shards), func(shard int, pairs []string) error {
		gone, err := texts(s.do(ctx, shard, scriptRenew, append([]string{itoa(s.Lease.Milliseconds()), itoa(len(pairs) / 2)}, pairs...)...))
		if err != nil {
			return err
		}
		tokens := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			tokens[pairs[i]] = pairs[i+1]
		}
		s.claims.mu.Lock()
		defer s.claims.mu.Unlock()
		for _, n := range gone {
			if l := (loan{shard, number(n)}); s.claims.held[l] == tokens[n] && tokens[n] != "" {
				delete(s.claims.held, l)
				lost++
			}
		}
		return nil
	})
	if lost > 0 {
		s.Log.Warn("store: leases of messages on their way were not renewed in time, so another replica may return them as well: this process or Redis stood still for too long", "messages", lost, "lease", s.Lease)
	}
	return err
}

// giveBackAll ends all claims of this process.
func (s *Store) giveBackAll(ctx context.Context) error {
	return s.pairs(s.claims.all(s.Shards), func(shard int, pairs []string) error {
		_, err := s.do(ctx, shard, scriptRelease, append([]string{itoa(len(pairs) / 2)}, pairs...)...)
		return err
	})
}

// pairs does something with numbers and tokens, a script's worth at a time.
func (s *Store) pairs(by [][]string, do func(shard int, pairs []string) error) error {
	return s.each(func(shard int) error {
		for pairs := range slices.Chunk(by[shard], 2*most) {
			if err := do(shard, pairs); err != nil {
				return err
			}
		}
		return nil
	})
}
