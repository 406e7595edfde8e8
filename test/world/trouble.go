package world

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// callTimeout is how long a call of Redis may take, and lease how long a claim stays with a
	// process that does not know of it: see redisstore.Options.
	callTimeout = 5 * time.Second
	lease       = 30 * time.Second
)

// trouble is what a store has while a fault lasts: some of what it is asked is not done, some is
// late, and where it is Redis some is done and not answered.
type trouble struct {
	mu      sync.Mutex
	random  *rand.Rand
	until   time.Time
	percent int // of the calls
}

func (t *trouble) begin(lasts time.Duration, percent int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until, t.percent = time.Now().Add(lasts), percent
}

// manner is how one call goes.
type manner struct {
	late time.Duration
	lost bool
	err  error // it is not done; or with lost, it is, and this is what the caller sees
}

var (
	errTimeout = fmt.Errorf("redis: %w", context.DeadlineExceeded)
	errReset   = fmt.Errorf("redis: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET})
	errEOF     = fmt.Errorf("redis: %w", io.EOF)
	errRefused = fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	errMemory  = fmt.Errorf("redis: %w: OOM command not allowed when used memory > 'maxmemory'", store.ErrFull)
	errDisk    = fmt.Errorf("writing to the store: %w", syscall.EIO)
)

// draw decides how a call goes.
func (t *trouble) draw(redis, adds bool) (m manner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !time.Now().Before(t.until) || t.random.IntN(100) >= t.percent {
		return m
	}
	switch t.random.IntN(4) {
	case 0:
		m.late = between(t.random, 0, 2*callTimeout)
		if redis && m.late > callTimeout {
			m.late, m.lost, m.err = callTimeout, true, errTimeout
		}
	case 1:
		if redis {
			m.lost, m.err = true, pick(t.random, errReset, errEOF, errTimeout)
			break
		}
		fallthrough
	default:
		m.err = errDisk
		if redis {
			m.err = pick(t.random, errReset, errEOF, errRefused, errTimeout)
		}
		if adds && t.random.IntN(3) == 0 {
			m.err = errMemory
		}
	}
	return m
}
