package broker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"
)

// Two kinds of message would end an amqp091-go connection each time they are
// delivered, and so stop the intake for ever [measured on 3.10.8 and 4.3.6]:
//
//   - one whose headers nearly fill a frame: with the x-death that RabbitMQ adds,
//     the header frame is larger than the frame size RabbitMQ itself negotiated;
//   - one with a header of type L (unsigned 64 bit), which RabbitMQ 3 delivers as
//     it is. RabbitMQ 4 turns it into l (signed 64 bit).
//
// intakeConn lets the client take them: it tells the client that there is no
// limit to a frame (and RabbitMQ that its limit is agreed), and turns L into l
// as RabbitMQ 4 does. It is for a connection that consumes and publishes
// nothing, since the client then believes it could send frames of any size.
//
// It also bounds memory. Prefetch counts messages, not bytes: a few thousand of
// 16 MiB would fill the machine. Read stands still while more than mostBuffered
// bytes of body are read and not yet taken.
type intakeConn struct {
	net.Conn
	in     *bufio.Reader
	rest   []byte // of the frame being handed out
	frame  []byte
	limit  [4]byte // frame_max as RabbitMQ said it
	agreed bool    // tune-ok was sent
	gate   gate
}

func newIntakeConn(c net.Conn) *intakeConn {
	i := &intakeConn{Conn: c, in: bufio.NewReaderSize(c, 128<<10)}
	i.gate.init()
	return i
}

// AMQP 0-9-1 framing.
const (
	frameMethod     = 1
	frameHeader     = 2
	frameBody       = 3
	frameHead       = 7 // type, channel, size
	frameEnd        = 0xCE
	largestIncoming = 16 << 20 // far above what RabbitMQ sends
)

var (
	methodTune   = [4]byte{0, 10, 0, 30}
	methodTuneOk = [4]byte{0, 10, 0, 31}
)

func (c *intakeConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next reads one frame and mends it.
func (c *intakeConn) next() error {
	var head [frameHead]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[3:])
	if size > largestIncoming {
		return fmt.Errorf("a frame of %d bytes", size)
	}
	total := frameHead + int(size) + 1
	if cap(c.frame) < total {
		c.frame = make([]byte, total)
	}
	c.frame = c.frame[:total]
	copy(c.frame, head[:])
	if _, err := io.ReadFull(c.in, c.frame[frameHead:]); err != nil {
		return err
	}
	payload := c.frame[frameHead : total-1]
	switch {
	case head[0] == frameMethod && len(payload) == 12 && [4]byte(payload) == methodTune:
		copy(c.limit[:], payload[6:10])
		clear(payload[6:10])
	case head[0] == frameHeader:
		mendHeader(payload)
	case head[0] == frameBody:
		c.gate.entered(len(payload))
	}
	c.rest = c.frame
	return nil
}

// Write gives RabbitMQ its own frame limit back in the client's tune-ok.
func (c *intakeConn) Write(b []byte) (int, error) {
	if !c.agreed && len(b) >= frameHead+12 && b[0] == frameMethod && [4]byte(b[frameHead:frameHead+4]) == methodTuneOk {
		c.agreed = true
		b = append([]byte(nil), b...)
		copy(b[frameHead+6:], c.limit[:])
	}
	return c.Conn.Write(b)
}

// Close also frees a Read that stands at the gate.
func (c *intakeConn) Close() error {
	c.gate.open()
	return c.Conn.Close()
}

// mendHeader turns L into l in the header table of a content header, in place.
// What is not as it should be is left to the client to judge.
func mendHeader(p []byte) {
	const fixed = 14 // class, weight, body size, flags
	if len(p) < fixed {
		return
	}
	flags := binary.BigEndian.Uint16(p[12:])
	p = p[fixed:]
	for _, bit := range []uint16{1 << 15, 1 << 14} { // content type and encoding come first
		if flags&bit != 0 {
			if len(p) < 1 || len(p) < 1+int(p[0]) {
				return
			}
			p = p[1+int(p[0]):]
		}
	}
	if flags&(1<<13) != 0 {
		mendTable(p)
	}
}

// long takes a 32 bit length and that many bytes.
func long(p []byte) (content, rest []byte, ok bool) {
	if len(p) < 4 || uint64(len(p)-4) < uint64(binary.BigEndian.Uint32(p)) {
		return nil, nil, false
	}
	n := 4 + int(binary.BigEndian.Uint32(p))
	return p[4:n], p[n:], true
}

func mendTable(p []byte) (rest []byte, ok bool) {
	t, rest, ok := long(p)
	for ok && len(t) > 0 {
		if len(t) < 1+int(t[0]) {
			return nil, false
		}
		t, ok = mendValue(t[1+int(t[0]):])
	}
	return rest, ok
}

// sizes of the values that have one.
var sizes = map[byte]int{'t': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'l': 8, 'L': 8, 'f': 4, 'd': 8, 'D': 5, 'T': 8, 'V': 0}

func mendValue(p []byte) (rest []byte, ok bool) {
	if len(p) == 0 {
		return nil, false
	}
	kind, v := &p[0], p[1:]
	if n, ok := sizes[*kind]; ok {
		if *kind == 'L' {
			*kind = 'l'
		}
		if len(v) < n {
			return nil, false
		}
		return v[n:], true
	}
	switch *kind {
	case 'S', 'x':
		_, rest, ok = long(v)
	case 'F':
		rest, ok = mendTable(v)
	case 'A':
		var a []byte
		a, rest, ok = long(v)
		for ok && len(a) > 0 {
			a, ok = mendValue(a)
		}
	}
	return rest, ok
}

// gate counts body bytes that were read and not yet taken.
type gate struct {
	in     atomic.Int64
	freed  chan struct{}
	closed chan struct{}
	once   atomic.Bool
	idle   atomic.Bool // the taker has nothing and waits: let a large message through
}

// mostBuffered bodies may be in memory unread by the flow.
const mostBuffered = 64 << 20

func (g *gate) init() { g.freed, g.closed = make(chan struct{}, 1), make(chan struct{}) }

// entered counts n bytes in and waits while there are too many, unless the taker
// has nothing: one message may be larger than the bound.
func (g *gate) entered(n int) {
	for now := g.in.Add(int64(n)); now > mostBuffered && !g.idle.Load(); now = g.in.Load() {
		select {
		case <-g.freed:
		case <-g.closed:
			return
		}
	}
}

// taken counts n bytes out.
func (g *gate) taken(n int) {
	g.in.Add(-int64(n))
	g.signal()
}

// waiting says whether the taker has nothing to do.
func (g *gate) waiting(yes bool) {
	g.idle.Store(yes)
	if yes {
		g.signal()
	}
}

func (g *gate) signal() {
	select {
	case g.freed <- struct{}{}:
	default:
	}
}

func (g *gate) open() {
	if g.once.CompareAndSwap(false, true) {
		close(g.closed)
	}
}
