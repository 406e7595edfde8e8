package broker

import (
	"net"
	"sync"
)

// gatheringConn writes what has gathered since the last write in one go.
// amqp091-go flushes after every message; with thousands a second that is
// thousands of system calls. Whatever is written while a write is under way
// leaves with the next one, so nothing waits for more to come.
type gatheringConn struct {
	net.Conn
	mu      sync.Mutex
	changed sync.Cond // buffer grew, shrank, or the end came
	buffer  []byte
	err     error
	closing bool
	free    bool // Write never waits, see unbound
	done    chan struct{}
}

// gathered is how much may gather before Write waits: a broker that reads slowly must
// not fill our memory.
const gathered = 1 << 20

func newGatheringConn(c net.Conn) *gatheringConn {
	g := &gatheringConn{Conn: c, done: make(chan struct{})}
	g.changed.L = &g.mu
	go g.run()
	return g
}

func (g *gatheringConn) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.buffer) >= gathered && !g.free && g.err == nil && !g.closing {
		g.changed.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	if g.closing {
		return 0, net.ErrClosed
	}
	g.buffer = append(g.buffer, b...)
	g.changed.Broadcast()
	return len(b), nil
}

// unbound lets writes gather without a limit, or ends that. It is for a connection that
// an alarm blocks: what is published there is one message at most, and heartbeats.
func (g *gatheringConn) unbound(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = yes
	g.changed.Broadcast()
}

// run is the one goroutine that writes; Close ends it and waits for it.
func (g *gatheringConn) run() {
	defer close(g.done)
	var out []byte
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		for len(g.buffer) == 0 && !g.closing {
			g.changed.Wait()
		}
		if len(g.buffer) == 0 || g.err != nil {
			return
		}
		out, g.buffer = g.buffer, out[:0]
		g.changed.Broadcast()
		g.mu.Unlock()
		_, err := g.Conn.Write(out)
		g.mu.Lock()
		if err != nil {
			g.err = err
			g.changed.Broadcast()
			return
		}
	}
}

// Close closes the connection under it first, so that a write that hangs ends.
// amqp091-go has by then had the broker's answer to all that matters.
func (g *gatheringConn) Close() error {
	g.mu.Lock()
	g.closing = true
	g.changed.Broadcast()
	g.mu.Unlock()
	err := g.Conn.Close()
	<-g.done
	return err
}
