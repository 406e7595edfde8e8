package redisstore

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Renew renews the leases of s's claims, as it does periodically.
func (s *Store) Renew(ctx context.Context) error { return s.renew(ctx) }

// Recover releases locks that others have left, as s does periodically.
func (s *Store) Recover(ctx context.Context) error { return s.unlockAbandoned(ctx) }

// Steps calls told before a Change is applied; an error stops it there, like a crash.
func (s *Store) Steps(told func(string) error) { s.step = told }

// Forgot makes s ask Redis for its memory again.
func (s *Store) Forgot() {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.at = s.server.at.AddDate(-1, 0, 0)
}

var ErrUnconfirmed, ErrTooLong = errUnconfirmed, errTooLong

// Ungroup forgets groups as one does who looked at them when they had not failed since.
func (s *Store) Ungroup(ctx context.Context, since time.Time, groups ...string) error {
	return s.ungroup(ctx, since.Unix(), groups)
}

// Generation returns the largest confirmed generation.
func (s *Store) Generation() uint64 { return s.generation() }

// WatchAtMost is how long a dead server may go unreported.
const WatchAtMost = watchEvery + watchFor

// ForgetMost bounds how much of the ledger Forget reads each time, about; Forgetting is how
// much it has read.
func (s *Store) ForgetMost(n int) { s.forgetting.max = n }
func (s *Store) Forgetting() int  { return s.forgetting.read }

// DamageRecord changes the bytes of a record.
func (s *Store) DamageRecord(ctx context.Context, key store.Key, damage func([]byte) []byte) error {
	_, n, _ := key.Parts()
	value, err := s.get(ctx, "m:"+member(n))
	if err != nil {
		return err
	}
	return s.client().Do(ctx, s.client().B().Set().Key(s.key("m:"+member(n))).Value(value[:groupSize]+string(damage([]byte(value[groupSize:])))).Build()).Error()
}

// Expire ends all leases and locks; Ends returns when the first lease ends.
func (s *Store) Expire(ctx context.Context) error {
	const old = "#!lua\nfor _, m in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, m) end return 1"
	for _, set := range []string{"lease", "locks"} {
		if err := s.client().Do(ctx, s.client().B().Eval().Script(old).Numkeys(1).Key(s.key(set)).Build()).Error(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) Ends(ctx context.Context) (time.Time, error) {
	first, err := s.client().Do(ctx, s.client().B().Zrange().Key(s.key("lease")).Min("0").Max("0").Withscores().Build()).AsZScores()
	if err != nil || len(first) == 0 {
		return time.Time{}, err
	}
	return time.UnixMilli(int64(first[0].Score)), nil
}

// Within sets the timeout of later calls.
func (s *Store) Within(d time.Duration) { s.Timeout = d }
