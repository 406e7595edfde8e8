package redisstore

import (
	"context"
	"slices"
)

// unlockAbandoned releases what is locked by changes whose time is over: of processes that ended,
// or stand still, in the middle of one. A change commits in one step or not at all, and
// is forbidden to before its locks are released.
func (s *Store) unlockAbandoned(ctx context.Context) error { return s.unlock(ctx, "") }

// unlock releases what is locked by changes whose time is over, or by those of one store,
// whose process led and may have ended: who leads now finds nothing locked by it.
func (s *Store) unlock(ctx context.Context, of string) error {
	args := []string{itoa(maxPerScript), of, itoa(forbiddenFor.Milliseconds())}
	m, err := s.do(ctx, scriptUnlock, append(args, "0")...)
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || n == 0 {
		return s.wrapError(err) // nothing to be confirmed: no replica need be there
	}
	_, err = s.write(ctx, scriptUnlock, append(args, "1")...)
	s.signal()
	return err
}

// release ends claims and locks: pairs are their numbers and tokens.
func (s *Store) release(ctx context.Context, pairs []string) error {
	for some := range slices.Chunk(pairs, 2*maxPerScript) {
		if _, err := s.do(ctx, scriptRelease, append([]string{itoa(len(some) / 2)}, some...)...); err != nil {
			return err
		}
	}
	return nil
}
