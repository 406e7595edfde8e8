package store

import (
	"context"
	"sync"
)

// OpenCalls counts the calls under way on a store, for which its Close waits. The zero value is
// ready for use.
type OpenCalls struct {
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// Begin keeps the store open until done is called. After Close it fails with ErrClosed.
func (c *OpenCalls) Begin(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.calls.Add(1)
	return c.calls.Done, nil
}

// Close refuses further calls and waits for those under way. first is true for the
// first call; only then is there something to close.
func (c *OpenCalls) Close() (first bool) {
	c.mu.Lock()
	first, c.closed = !c.closed, true
	c.mu.Unlock()
	if first {
		c.calls.Wait()
	}
	return first
}
