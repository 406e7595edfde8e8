package redisstore

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// serverMemory is what is known of the memory of the server.
type serverMemory struct {
	asking      *semaphore.Weighted // one asks, and the others wait for what it gets
	mu          sync.Mutex
	at          time.Time
	used, limit uint64
	added       uint64 // since then, about
}

// memoryAge is after how long the server is asked again.
const memoryAge = time.Second

// memory asks the server, and reads what INFO says. Without a maxmemory the limit is the machine's
// memory; 0 when that is not known either.
func (s *Store) memory(ctx context.Context) (used, limit uint64, err error) {
	m, err := s.do(ctx, scriptMemory)
	if err != nil {
		return 0, 0, err
	}
	text, err := m.ToString()
	info := parseInfo(text)
	used, _ = strconv.ParseUint(info["used_memory"], 10, 64)
	if limit, _ = strconv.ParseUint(info["maxmemory"], 10, 64); limit == 0 {
		limit, _ = strconv.ParseUint(info["total_system_memory"], 10, 64)
	}
	return used, limit, s.wrapError(err)
}

// look returns the memory that is free, as it was a second ago at most.
func (s *Store) look(ctx context.Context) (free, reserve, limit uint64, err error) {
	r := &s.server
	if err := r.asking.Acquire(ctx, 1); err != nil {
		return 0, 0, 0, err
	}
	defer r.asking.Release(1)
	r.mu.Lock()
	old := time.Since(r.at) >= memoryAge
	r.mu.Unlock()
	var used uint64
	if old {
		if used, limit, err = s.memory(ctx); err != nil {
			return 0, 0, 0, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old {
		r.used, r.limit, r.at, r.added = used, limit, time.Now(), 0
	}
	if r.limit == 0 {
		return math.MaxUint64, 0, 0, nil
	}
	if taken := r.used + r.added; taken < r.limit {
		free = r.limit - taken
	}
	return free, min(s.Reserve, r.limit/10), r.limit, nil
}

// checkMemory returns store.ErrFull when there is no room for n more bytes besides a part of the
// reserve, and otherwise counts them.
func (s *Store) checkMemory(ctx context.Context, n int, part float64) error {
	free, reserve, limit, err := s.look(ctx)
	if err != nil {
		return err
	}
	if float64(free) < float64(reserve)*part+float64(n) {
		return hint.Errorf("give it more maxmemory, or discard what is parked and not needed", "%w: Redis has %d of %d MiB free, and %d MiB are kept in reserve", store.ErrFull, free>>20, limit>>20, reserve>>20)
	}
	r := &s.server
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added += uint64(n)
	return nil
}

// Free is the room left in the server, and what is kept free of it, in bytes.
func (s *Store) Free() (free, reserve uint64, err error) {
	done, err := s.use(s.ctx)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	free, reserve, _, err = s.look(s.ctx)
	return free, reserve, err
}
