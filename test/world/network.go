package world

import (
	"errors"
	"net"
	"sync"
)

// network is how one process reaches the model. Its connections can be cut.
type network struct {
	dial func(network, address string) (net.Conn, error)

	mu    sync.Mutex
	down  bool
	conns []*cable // oldest first
}

var errDown = errors.New("the network is down")

// Dial is an amqp.Config.Dial.
func (n *network) Dial(network, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errDown
	}
	conn, err := n.dial(network, address)
	if err != nil {
		return nil, err
	}
	c := &cable{Conn: conn}
	n.conns = append(n.conns, c)
	return c, nil
}

// open are the connections that are not cut yet.
func (n *network) open() (open []*cable) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if !c.isCut() {
			open = append(open, c)
		}
	}
	n.conns = open
	return open
}

// end cuts all connections at once, for good: what is under way on them is lost.
func (n *network) end() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	for _, c := range n.open() {
		c.cutNow()
	}
}

// cable is a connection that can be cut at a chosen byte of either direction.
type cable struct {
	net.Conn
	mu  sync.Mutex
	cut bool
	// up and down are how many bytes still pass to RabbitMQ and from it, before the cut that
	// arm has ordered.
	armed    bool
	up, down int
	onCut    func()
}

// arm cuts the connection once so many more bytes have passed in one direction; the other
// number is negative.
func (c *cable) arm(up, down int, onCut func()) {
	c.mu.Lock()
	c.armed, c.up, c.down, c.onCut = true, up, down, onCut
	c.mu.Unlock()
	if up == 0 || down == 0 {
		c.cutNow()
	}
}

func (c *cable) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cable) cutNow() {
	c.mu.Lock()
	was, onCut := c.cut, c.onCut
	c.cut = true
	c.mu.Unlock()
	if !was {
		_ = c.Conn.Close() // never fails
		if onCut != nil {
			onCut()
		}
	}
}

// pass tells how many of n bytes pass, and whether the connection is cut behind them.
func (c *cable) pass(left *int, n int) (passing int, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return 0, true
	}
	if !c.armed || *left < 0 || n < *left {
		if c.armed && *left >= 0 {
			*left -= n
		}
		return n, false
	}
	n, *left = *left, 0
	return n, true
}

func (c *cable) Write(b []byte) (int, error) {
	n, cut := c.pass(&c.up, len(b))
	if n > 0 {
		if n, err := c.Conn.Write(b[:n]); err != nil {
			return n, err
		}
	}
	if cut {
		c.cutNow()
		return n, net.ErrClosed
	}
	return n, nil
}

func (c *cable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}
	n, cut := c.pass(&c.down, n)
	if cut {
		c.cutNow()
		return n, net.ErrClosed
	}
	return n, nil
}

// Close is the process's own, and no cut.
func (c *cable) Close() error {
	c.mu.Lock()
	c.cut = true
	c.mu.Unlock()
	return c.Conn.Close()
}
