package broker

import (
	"net"
	"sync"
)

// coalescingConn writes what has gathered since the last write in one go.
// amqp091-go flushes after every message; with thousands a second that is
// thousands of system calls. Whatever is written while a write is under way
// leaves with the next one, so nothing waits for more to come.
type coalescingConn struct {
	net.Conn
	mu        sync.Mutex
	changed   sync.Cond // buffer grew, shrank, or the end came
	buffer    []byte
	err       error
	closing   bool
	unbounded bool // Write never waits, see setUnbounded
	done      chan struct{}
}

// maxCoalesced is how many bytes are buffered before Write waits: a broker that reads slowly
// must not fill our memory.
const maxCoalesced = 1 << 20

func newCoalescingConn(c net.Conn) *coalescingConn {
	g := &coalescingConn{Conn: c, done: make(chan struct{})}
	g.changed.L = &g.mu
	go g.run()
	return g
}

func (c *coalescingConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buffer) >= maxCoalesced && !c.unbounded && c.err == nil && !c.closing {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	if c.closing {
		return 0, net.ErrClosed
	}
	c.buffer = append(c.buffer, b...)
	c.changed.Broadcast()
	return len(b), nil
}

// setUnbounded turns the buffer's limit off and on. It is off while an alarm blocks the
// connection: then there is at most one message in the buffer, and heartbeats.
func (c *coalescingConn) setUnbounded(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unbounded = yes
	c.changed.Broadcast()
}

// run is the one goroutine that writes; Close ends it and waits for it.
func (c *coalescingConn) run() {
	defer close(c.done)
	var out []byte
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.buffer) == 0 && !c.closing {
			c.changed.Wait()
		}
		if len(c.buffer) == 0 || c.err != nil {
			return
		}
		out, c.buffer = c.buffer, out[:0]
		c.changed.Broadcast()
		c.mu.Unlock()
		_, err := c.Conn.Write(out)
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.changed.Broadcast()
			return
		}
	}
}

// Close closes the connection under it first, so that a write that hangs ends.
// amqp091-go has by then had the broker's answer to all that matters.
func (c *coalescingConn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.changed.Broadcast()
	c.mu.Unlock()
	err := c.Conn.Close()
	<-c.done
	return err
}
