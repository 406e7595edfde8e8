package broker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
)

// Some messages would end an amqp091-go connection each time they are
// delivered, and so stop a consumer for ever [measured on 3.10.8 and 4.3.6]:
//
//   - one whose headers nearly fill a frame: with the x-death that RabbitMQ adds,
//     the header frame is larger than the frame size RabbitMQ itself negotiated;
//   - one with headers that the client refuses to read: of type L (unsigned 64
//     bit), which RabbitMQ 3 delivers as it is, nested too deep, or too many.
//
// consumingConn makes the client accept them: it tells the client that there is no limit to a
// frame (and RabbitMQ that its limit is agreed), and repairs the headers, see headerrepair.go.
// It is for a connection that only consumes, since the client then believes it
// could send frames of any size.
//
// It also bounds memory. Prefetch counts messages, not bytes: a few thousand of 16 MiB would
// fill the machine. Read blocks while more than maxBuffered bytes of bodies are read and not
// yet in a batch.
type consumingConn struct {
	net.Conn
	in       *bufio.Reader
	rest     []byte // of the frame being read
	frame    []byte
	head     [frameHead]byte
	frameMax [4]byte // frame_max as RabbitMQ said it
	agreed   bool    // tune-ok was sent
	bodies   byteLimit

	delivered map[uint16]*delivery // by channel: what its next content header belongs to
	mu        sync.Mutex
	repaired  map[delivery]headerRepair // until repairedHeaders takes them
	any       atomic.Bool               // something was repaired: until then the map is not read
}

// delivery is one message as basic.deliver names it: consumer tags are not used twice on a
// connection, and channel numbers are.
type delivery struct {
	consumer string
	tag      uint64
}

func newConsumingConn(c net.Conn) *consumingConn {
	i := &consumingConn{Conn: c, in: bufio.NewReaderSize(c, 128<<10), delivered: map[uint16]*delivery{}, repaired: map[delivery]headerRepair{}}
	i.bodies.init()
	return i
}

// AMQP 0-9-1 framing.
const (
	frameMethod      = 1
	frameHeader      = 2
	frameBody        = 3
	frameHead        = 7 // type, channel, size
	frameEnd         = 0xCE
	maxIncomingFrame = 16 << 20 // far above what RabbitMQ sends
)

var (
	methodTune    = [4]byte{0, 10, 0, 30}
	methodTuneOk  = [4]byte{0, 10, 0, 31}
	methodDeliver = [4]byte{0, 60, 0, 60}
)

func (c *consumingConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next reads one frame and repairs it.
func (c *consumingConn) next() error {
	head := c.head[:]
	if _, err := io.ReadFull(c.in, head); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[3:])
	if size > maxIncomingFrame {
		return fmt.Errorf("a frame of %d bytes", size)
	}
	total := frameHead + int(size) + 1
	if cap(c.frame) < total {
		c.frame = make([]byte, total)
	}
	c.frame = c.frame[:total]
	copy(c.frame, head)
	if _, err := io.ReadFull(c.in, c.frame[frameHead:]); err != nil {
		return err
	}
	payload := c.frame[frameHead : total-1]
	switch {
	case head[0] == frameMethod && len(payload) == 12 && [4]byte(payload) == methodTune:
		copy(c.frameMax[:], payload[6:10])
		clear(payload[6:10])
	case head[0] == frameMethod && len(payload) > 4 && [4]byte(payload) == methodDeliver:
		c.deliver(binary.BigEndian.Uint16(head[1:]), payload[4:])
	case head[0] == frameHeader:
		if fixed, m := repairHeader(payload); m != (headerRepair{}) {
			c.mu.Lock()
			if d := c.delivered[binary.BigEndian.Uint16(head[1:])]; d != nil {
				c.repaired[*d] = m
			}
			c.any.Store(true)
			c.mu.Unlock()
			c.frame = reframe(c.frame, fixed)
		}
	case head[0] == frameBody:
		if c.bodies.add(len(payload)) {
			// The client moves its read deadline at each frame, and there was none while this
			// waited: without more time its next read would end a connection that works.
			if err := c.Conn.SetReadDeadline(time.Now().Add(3 * addresses.LongestHeartbeat * time.Second)); err != nil {
				return err
			}
		}
	}
	c.rest = c.frame
	return nil
}

// Write puts RabbitMQ's own frame limit into the client's tune-ok.
func (c *consumingConn) Write(b []byte) (int, error) {
	if !c.agreed && len(b) >= frameHead+12 && b[0] == frameMethod && [4]byte(b[frameHead:frameHead+4]) == methodTuneOk {
		c.agreed = true
		b = append([]byte(nil), b...)
		copy(b[frameHead+6:], c.frameMax[:])
	}
	return c.Conn.Write(b)
}

// Close also ends a Read that waits at the byte limit.
func (c *consumingConn) Close() error {
	c.bodies.lift()
	return c.Conn.Close()
}

// reframe puts another payload into a frame.
func reframe(frame, payload []byte) []byte {
	out := append(make([]byte, 0, frameHead+len(payload)+1), frame[:frameHead]...)
	binary.BigEndian.PutUint32(out[3:], uint32(len(payload)))
	return append(append(out, payload...), frameEnd)
}

// deliver notes which message the next content header of a channel belongs to. args are
// those of basic.deliver: a consumer tag, a delivery tag, and more.
func (c *consumingConn) deliver(channel uint16, args []byte) {
	n := 1 + int(args[0])
	if len(args) < n+8 {
		return // the client refuses it
	}
	d := c.delivered[channel]
	if d == nil {
		d = &delivery{}
		c.delivered[channel] = d
	}
	if string(args[1:n]) != d.consumer { // compares without an allocation
		d.consumer = string(args[1:n])
	}
	d.tag = binary.BigEndian.Uint64(args[n:])
}

// repairedHeaders returns, once, what was repaired in a delivery.
func (c *consumingConn) repairedHeaders(consumer string, tag uint64) headerRepair {
	if !c.any.Load() {
		return headerRepair{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := delivery{consumer, tag}
	m := c.repaired[d]
	delete(c.repaired, d)
	return m
}

// forget drops what was repaired for a consumer that has ended, and that repairedHeaders has not taken.
func (c *consumingConn) forget(consumer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.repaired, func(d delivery, _ headerRepair) bool { return d.consumer == consumer })
}
