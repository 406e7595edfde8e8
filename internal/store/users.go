package store

import (
	"context"
	"sync"
)

// Users are the calls under way on a store, for which its Close waits. The zero value is
// ready for use.
type Users struct {
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// Begin keeps the store open until done is called. After Close it fails with ErrClosed.
func (u *Users) Begin(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, ErrClosed
	}
	u.calls.Add(1)
	return u.calls.Done, nil
}

// Close refuses further calls and waits for those under way. It tells whether it is the
// first to be called; only then there is something to close.
func (u *Users) Close() (first bool) {
	u.mu.Lock()
	first, u.closed = !u.closed, true
	u.mu.Unlock()
	if first {
		u.calls.Wait()
	}
	return first
}
