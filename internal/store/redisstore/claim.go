package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
)

func (s *Store) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var claims []store.Claim
	for len(claims) < n {
		want := min(n-len(claims), maxPerScript)
		some, err := s.claim(ctx, lane, upTo, want, maxBytes, len(claims) == 0)
		if err != nil && len(claims) > 0 {
			break // otherwise no one would finish what is already claimed
		}
		if err != nil {
			return nil, err
		}
		claims = append(claims, some...)
		for _, c := range some {
			maxBytes -= len(c.Record.Message.Body)
		}
		if len(some) < want {
			break
		}
	}
	return claims, nil
}

// claim claims as many as one script does; larger: the first may be larger than maxBytes.
func (s *Store) claim(
	ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int, larger bool,
) (claims []store.Claim, err error) {
	token := s.token()
	list, err := texts(s.do(ctx, scriptClaim, laneText(lane), itoa(upTo.UnixMicro()), itoa(n), itoa(maxBytes),
		flag(larger), token, itoa(s.Lease.Milliseconds())))
	for i := 0; i+1 < len(list); i += 2 {
		n := number(list[i])
		r, _, err := decode(list[i+1], true)
		if err != nil {
			_ = s.damaged(n, err) // its lease keeps others from claiming it
			continue
		}
		s.claims.add(n, token)
		claims = append(claims, store.Claim{Key: store.MakeKey(r.ID, n), Token: token, Record: r})
	}
	return claims, err
}

var errGone = errors.New("there is no record")

func decode(value string, body bool) (*store.Record, groupID, error) {
	if len(value) < groupSize {
		return nil, groupID{}, errGone
	}
	r, _, err := store.DecodeRecord([]byte(value[groupSize:]), body)
	return r, groupID([]byte(value[:groupSize])), err
}

func (s *Store) Finish(ctx context.Context, outcomes []store.Outcome) (finished int, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := s.claims.ending.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer s.claims.ending.Release(1)
	for some := range slices.Chunk(outcomes, maxPerScript) {
		n, err := s.finish(ctx, some)
		if err != nil {
			return finished, err
		}
		finished += n
	}
	return finished, nil
}

// finish ends as many claims as one script does.
func (s *Store) finish(ctx context.Context, outcomes []store.Outcome) (int, error) {
	args := append(make([]string, 0, 2+6*len(outcomes)), pastKept, itoa(len(outcomes)))
	for _, o := range outcomes {
		_, n, _ := o.Claim.Key.Parts() // 0, which no record has, for an invalid key
		r := o.Claim.Record
		args = append(args, member(n), o.Claim.Token)
		if o.Park == "" {
			ending, as := r.Ended()
			args = append(args, columns[as:as+1], pastFailure(r, o.At, ending))
			continue
		}
		parked := *r
		parked.State, parked.ParkedFor, parked.Due = store.Parked, o.Park, o.At
		v, err := store.AppendHead(nil, &parked)
		if err != nil {
			return 0, err
		}
		as := r.EverParked()
		args = append(args, "p", micros(&parked), rueidis.BinaryString(v), columns[as:as+1])
	}
	m, err := s.write(ctx, scriptFinish, args...)
	if err != nil {
		return 0, err
	}
	for _, o := range outcomes {
		s.claims.end(o.Claim)
	}
	n, err := m.AsInt64()
	return int(n), err
}

func (s *Store) Release(ctx context.Context, claims []store.Claim) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := s.claims.ending.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.claims.ending.Release(1)
	var pairs []string
	for _, c := range claims {
		if _, n, ok := c.Key.Parts(); ok {
			pairs = append(pairs, member(n), c.Token)
		}
	}
	if err := s.release(ctx, pairs); err != nil {
		return err
	}
	s.claims.end(claims...)
	s.signal()
	return nil
}

func (s *Store) Next(ctx context.Context) ([]store.NextDue, error) {
	list, err := texts(s.call(ctx, scriptNext))
	if err != nil {
		return nil, err
	}
	next := make([]store.NextDue, 0, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		next = append(next, store.NextDue{Lane: laneOf(list[i]), Due: time.UnixMicro(score(list[i+1]))})
	}
	return next, nil
}

type claims struct {
	mu   sync.Mutex
	held map[uint64]string // number of the record to token
	// ending is held in part by each call that ends claims, and as a whole while they are renewed: a claim that ends
	// meanwhile would look lost.
	ending *semaphore.Weighted
}

const allEnding = math.MaxInt64

func (c *claims) add(number uint64, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[number] = token
}

// end forgets claims, unless the record is claimed again.
func (c *claims) end(some ...store.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, claim := range some {
		if _, n, _ := claim.Key.Parts(); c.held[n] == claim.Token {
			delete(c.held, n)
		}
	}
}

// all returns the claims as pairs of number and token.
func (c *claims) all() (pairs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, token := range c.held {
		pairs = append(pairs, member(n), token)
	}
	return pairs
}

// token returns a token that no claim ever had.
func (s *Store) token() string { return s.name + "." + strconv.FormatUint(s.tokens.Add(1), 36) }

func (s *Store) renew(ctx context.Context) (err error) {
	if err := s.claims.ending.Acquire(ctx, allEnding); err != nil {
		return err
	}
	defer s.claims.ending.Release(allEnding)
	lost := 0
	for pairs := range slices.Chunk(s.claims.all(), 2*maxPerScript) {
		var gone []string
		gone, err = texts(s.do(ctx, scriptRenew,
			append([]string{itoa(s.Lease.Milliseconds()), itoa(len(pairs) / 2)}, pairs...)...))
		if err != nil {
			break
		}
		lost += s.claims.lost(pairs, gone)
	}
	if lost > 0 {
		s.Log.Warn("store: leases of messages on their way were not renewed in time, so another replica may retry "+
			"them as well: this process or Redis was stopped for too long", "messages", lost, "lease", s.Lease)
	}
	return err
}

// lost forgets claims whose lease has ended, and returns how many they were.
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

// unlockAbandoned releases expired locks: of processes that ended or hang in the middle of a change. A change commits
// in one step or not at all, and is forbidden before its locks are released.
func (s *Store) unlockAbandoned(ctx context.Context) error { return s.unlock(ctx, "") }

// unlock releases expired locks, and those of earlier terms of what the caller leads: a new leader
// finds nothing locked by a former one.
func (s *Store) unlock(ctx context.Context, of string) error {
	args := []string{itoa(maxPerScript), of, itoa(forbiddenFor.Milliseconds())}
	m, err := s.do(ctx, scriptUnlock, append(args, "0")...)
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || n == 0 {
		return s.wrapError(err) // nothing to confirm, so it works without a replica
	}
	_, err = s.write(ctx, scriptUnlock, append(args, "1")...)
	s.signal()
	return err
}

// release ends claims and locks, given as pairs of number and token.
func (s *Store) release(ctx context.Context, pairs []string) error {
	for some := range slices.Chunk(pairs, 2*maxPerScript) {
		if _, err := s.do(ctx, scriptRelease, append([]string{itoa(len(some) / 2)}, some...)...); err != nil {
			return err
		}
	}
	return nil
}
