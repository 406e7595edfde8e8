package redisstore

import (
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// claims are those of this process, whose leases it renews.
type claims struct {
	mu   sync.Mutex
	held map[uint64]string // its token, by the record's number
	// ending is held while claims are ended, by several at once, and as a whole while they are
	// renewed: what is ended meanwhile would look lost.
	ending *semaphore.Weighted
}

const allEnding = math.MaxInt64

func newClaims() claims {
	return claims{held: map[uint64]string{}, ending: semaphore.NewWeighted(allEnding)}
}

func (c *claims) add(number uint64, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[number] = token
}

// end forgets a claim, unless the record is claimed again.
func (c *claims) end(number uint64, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[number] == token {
		delete(c.held, number)
	}
}

// all are the claims, each its number and token.
func (c *claims) all() (pairs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, token := range c.held {
		pairs = append(pairs, member(n), token)
	}
	return pairs
}

// token is one that no claim ever had.
func (s *Store) token() string { return s.name + "." + strconv.FormatUint(s.tokens.Add(1), 36) }

// renewing keeps what this process has claimed from being claimed by others, until
// Close.
func (s *Store) renewing() {
	tick := time.NewTicker(s.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.logTrouble("renewing the leases of claimed messages", s.renew(s.ctx))
		}
	}
}

func (s *Store) renew(ctx context.Context) (err error) {
	if err := s.claims.ending.Acquire(ctx, allEnding); err != nil {
		return err
	}
	defer s.claims.ending.Release(allEnding)
	lost := 0
	for pairs := range slices.Chunk(s.claims.all(), 2*maxPerScript) {
		var gone []string
		gone, err = texts(s.do(ctx, scriptRenew, append([]string{itoa(s.Lease.Milliseconds()), itoa(len(pairs) / 2)}, pairs...)...))
		if err != nil {
			break
		}
		lost += s.claims.lost(pairs, gone)
	}
	if lost > 0 {
		s.Log.Warn("store: leases of messages on their way were not renewed in time, so another replica may retry them as well: this process or Redis stood still for too long", "messages", lost, "lease", s.Lease)
	}
	return err
}

// lost forgets claims whose numbers are gone, which others may have by now, and tells how
// many they were.
func (c *claims) lost(pairs, gone []string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for claim := range slices.Chunk(pairs, 2) {
		if m := number(claim[0]); slices.Contains(gone, claim[0]) && c.held[m] == claim[1] {
			delete(c.held, m)
			n++
		}
	}
	return n
}
