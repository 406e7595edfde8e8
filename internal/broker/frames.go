package broker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/wire"
)

// Some messages would end an amqp091-go connection each time they are delivered, and so stop a consumer for ever
// [measured on 3.10.8 and 4.3.6]:
//
//   - one whose headers nearly fill a frame: with the x-death that RabbitMQ adds, it exceeds the negotiated frame size;
//   - one with headers that the client refuses to read: of type L (unsigned 64 bit), which RabbitMQ 3 delivers as it
//     is, nested too deep, or too many.
//
// consumingConn makes the client accept them: it tells the client that frames have no limit (and RabbitMQ that its
// limit is agreed), and repairs the headers. It is only for a connection that consumes, since the client would also
// send frames of any size.
//
// It also bounds memory: prefetch counts messages, not bytes. Read blocks while more than maxBuffered bytes of bodies
// are read and not yet in a batch.
type consumingConn struct {
	net.Conn
	in       *bufio.Reader
	rest     []byte // of the frame being read
	frame    []byte
	head     [frameHead]byte
	frameMax [4]byte // frame_max as RabbitMQ said it
	agreed   bool    // tune-ok was sent
	bodies   byteLimit

	delivered map[uint16]*delivery // by channel: the message of its next content header
	mu        sync.Mutex
	repaired  map[delivery]headerRepair // until repairedHeaders takes them
	any       atomic.Bool               // something was repaired: before that, skip the map
}

// delivery identifies a message as basic.deliver does. A connection reuses channel numbers, and no consumer tags.
type delivery struct {
	consumer string
	tag      uint64
}

func newBufferedConsumingConn(c net.Conn) *consumingConn {
	return newConsumingConn(newCoalescingConn(c))
}

func newConsumingConn(c net.Conn) *consumingConn {
	i := &consumingConn{Conn: c, in: bufio.NewReaderSize(c, 128<<10), delivered: map[uint16]*delivery{},
		repaired: map[delivery]headerRepair{}}
	i.bodies.changed.L = &i.bodies.mu
	return i
}

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
			// The client moves its read deadline at each frame, and got none while this waited: without more time its
			// next read would end a working connection.
			if err := c.Conn.SetReadDeadline(time.Now().Add(3 * connect.MaxHeartbeat * time.Second)); err != nil {
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

func reframe(frame, payload []byte) []byte {
	out := append(make([]byte, 0, frameHead+len(payload)+1), frame[:frameHead]...)
	binary.BigEndian.PutUint32(out[3:], uint32(len(payload)))
	return append(append(out, payload...), frameEnd)
}

// deliver notes which message the next content header of a channel belongs to. args are those of basic.deliver.
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

// repairedHeaders returns what was repaired in a delivery, and forgets it.
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

// delivery converts a delivery, and adds what was repaired in it.
func (c *consumingConn) delivery(d *amqp.Delivery) wire.Delivery {
	m := c.repairedHeaders(d.ConsumerTag, d.DeliveryTag)
	return wire.Delivery{Message: Received(d), Redelivered: d.Redelivered,
		Note: m.note, CannotRepublish: m.cannotRepublish, DuplicateHeader: m.duplicateHeader}
}

func (c *consumingConn) forget(consumer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.repaired, func(d delivery, _ headerRepair) bool { return d.consumer == consumer })
}

// Limits of amqp091-go, which ends the connection over more. [read.go of v1.16]
const (
	maxNesting  = 32
	maxElements = 8192
)

type headerRepair struct {
	note            string // a harmless change
	cannotRepublish string // why it cannot be published again as it was
	duplicateHeader string // why its death headers prove nothing
}

// repairHeader changes what the client cannot read in the header table of a content header, mostly in place, and says
// what it did. It leaves what RabbitMQ would not send to the client.
func repairHeader(p []byte) ([]byte, headerRepair) {
	const fixed = 14 // class, weight, body size, flags
	if len(p) < fixed {
		return p, headerRepair{}
	}
	flags := binary.BigEndian.Uint16(p[12:])
	rest := p[fixed:]
	for _, bit := range []uint16{1 << 15, 1 << 14} { // content type and encoding come first
		if flags&bit != 0 {
			if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
				return p, headerRepair{}
			}
			rest = rest[1+int(rest[0]):]
		}
	}
	if flags&(1<<13) == 0 {
		return p, headerRepair{}
	}
	table, after, ok := cutLong(rest)
	if !ok {
		return p, headerRepair{}
	}
	m := headerRepair{duplicateHeader: duplicateIn(table)}
	entries := 0
	var death []byte // the x-death entry, with its name: without it the origin is unknown
	for t := table; len(t) > 0; entries++ {
		n := 1 + int(t[0])
		if len(t) < n+1 {
			return p, headerRepair{duplicateHeader: m.duplicateHeader}
		}
		name, value := t[1:n], t[n:]
		next, fits, ok := repairValue(value, 1, &m)
		if !ok {
			return p, headerRepair{duplicateHeader: m.duplicateHeader}
		}
		if !fits {
			// A table or a list becomes bytes: they have the same form.
			value[0] = 'x'
			m.cannotRepublish = fmt.Sprintf("its header %.60q is nested more than %d deep or has more than %d "+
				"entries, which the AMQP client cannot send; it is kept as bytes", name, maxNesting, maxElements)
		}
		if string(name) == "x-death" {
			death = t[:len(t)-len(next)]
		}
		t = next
	}
	if entries <= maxElements {
		return p, m
	}
	kept := append([]byte(nil), death...)
	kept = append(append(kept, byte(len(wire.HeaderUnreadable))), wire.HeaderUnreadable...)
	kept = append(binary.BigEndian.AppendUint32(append(kept, 'x'), uint32(len(table))), table...)
	out := append([]byte(nil), p[:len(p)-len(rest)]...)
	out = append(binary.BigEndian.AppendUint32(out, uint32(len(kept))), kept...)
	return append(out, after...), headerRepair{duplicateHeader: m.duplicateHeader,
		cannotRepublish: fmt.Sprintf("it has %d headers, more than the %d that the AMQP client can send; they are "+
			"kept as bytes", entries, maxElements)}
}

// cutLong cuts off a 32 bit length and that many bytes.
func cutLong(p []byte) (content, rest []byte, ok bool) {
	if len(p) < 4 || uint64(len(p)-4) < uint64(binary.BigEndian.Uint32(p)) {
		return nil, nil, false
	}
	n := 4 + int(binary.BigEndian.Uint32(p))
	return p[4:n], p[n:], true
}

// valueSizes has the sizes, in bytes, of value types of fixed size.
var valueSizes = map[byte]int{'t': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'l': 8, 'L': 8, 'f': 4, 'd': 8,
	'D': 5, 'T': 8, 'V': 0}

// repairValue turns L into l within a value, and reports whether the client can read it at this depth. ok is false if
// it is malformed.
func repairValue(p []byte, depth int, m *headerRepair) (rest []byte, fits, ok bool) {
	if len(p) == 0 {
		return nil, false, false
	}
	kind, v := p[0], p[1:]
	if n, sized := valueSizes[kind]; sized {
		if kind == 'L' {
			p[0] = 'l'
			m.note = "it had a header of AMQP type L (unsigned 64 bit), which became l (signed), as RabbitMQ 4 " +
				"does itself"
		}
		if len(v) < n {
			return nil, false, false
		}
		return v[n:], true, true
	}
	content, rest, ok := cutLong(v)
	if !ok || kind == 'S' || kind == 'x' {
		return rest, true, ok
	}
	if kind != 'F' && kind != 'A' {
		return nil, false, false
	}
	if depth > maxNesting {
		return rest, false, true // deeper need not be looked at: it becomes bytes
	}
	fits = true
	for n := 0; len(content) > 0; n++ {
		if kind == 'F' {
			if len(content) < 1+int(content[0]) {
				return nil, false, false
			}
			content = content[1+int(content[0]):]
		}
		var f bool
		if content, f, ok = repairValue(content, depth+1, m); !ok {
			return nil, false, false
		}
		fits = fits && f && n < maxElements
	}
	return rest, fits, true
}

// duplicateIn returns why the x-death headers of a table prove nothing: a name occurs twice, or the table is malformed.
// AMQP allows two headers of one name, and two fields of one name in an entry of x-death. RabbitMQ 3.10 writes to the
// first of them and keeps both, and amqp091-go reads the last: the publisher's. [measured on 3.10.8; 4.3.6 replaces
// them] Only the frame shows both.
func duplicateIn(table []byte) string {
	var seen []string
	for len(table) > 0 {
		name, value, rest, ok := cutEntry(table)
		if !ok {
			return malformedTable
		}
		table = rest
		if !deathHeader(name) {
			continue
		}
		if slices.Contains(seen, string(name)) {
			return fmt.Sprintf("it has the header %q twice", name)
		}
		seen = append(seen, string(name))
		if why := duplicateField(name, value); why != "" {
			return why
		}
	}
	return ""
}

const malformedTable = "its header table is malformed"

func deathHeader(name []byte) bool {
	s := string(name)
	return s == "x-death" || strings.HasPrefix(s, "x-first-death-") || strings.HasPrefix(s, "x-last-death-")
}

// duplicateField finds a field that occurs twice in an entry of a list of tables. The list is complete: cutEntry has
// checked its length.
func duplicateField(header, value []byte) string {
	if value[0] != 'A' {
		return ""
	}
	list, _, _ := cutLong(value[1:])
	for n := 1; len(list) > 0; n++ {
		entry := list
		var ok bool
		if list, ok = skipValue(entry); !ok {
			return malformedTable
		}
		if entry[0] != 'F' {
			continue
		}
		fields, _, _ := cutLong(entry[1:])
		seen := map[string]bool{}
		for len(fields) > 0 {
			name, _, rest, ok := cutEntry(fields)
			if !ok {
				return malformedTable
			}
			if seen[string(name)] {
				return fmt.Sprintf("entry %d of its header %q has the field %q twice", n, header, name)
			}
			seen[string(name)] = true
			fields = rest
		}
	}
	return ""
}

// cutEntry cuts the first entry off a table that is not empty; value begins with its type. ok is false if it is
// malformed; cutEntry does not look into the value.
func cutEntry(table []byte) (name, value, rest []byte, ok bool) {
	n := 1 + int(table[0])
	if len(table) < n+1 {
		return nil, nil, nil, false
	}
	rest, ok = skipValue(table[n:])
	return table[1:n], table[n : len(table)-len(rest)], rest, ok
}

// skipValue returns what follows a value, whose first byte is its type; ok is false if the value is longer than p.
func skipValue(p []byte) (rest []byte, ok bool) {
	if n, sized := valueSizes[p[0]]; sized {
		if len(p) < 1+n {
			return nil, false
		}
		return p[1+n:], true
	}
	_, rest, ok = cutLong(p[1:])
	return rest, ok
}
