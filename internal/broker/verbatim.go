package broker

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
)

// A message that moves from queue to queue keeps its properties byte for byte,
// which amqp091-go cannot do: it does not send priority 0, empty texts, or all
// that it does not know. So the client that consumes sees no properties at all,
// and the client that publishes sends none; their bytes go past both.

// propertiesOffset is where in a content header the properties begin: flags, then values.
const propertiesOffset = 12

// keepRaw keeps the properties of the content header in frame for takeRaw, and
// hides them from the client.
func (c *consumingConn) keepRaw(payload []byte) []byte {
	if len(payload) < propertiesOffset+2 {
		return c.frame
	}
	c.mu.Lock()
	c.raw[c.headers] = append([]byte(nil), payload[propertiesOffset:]...)
	c.mu.Unlock()
	return reframe(c.frame, append(payload[:propertiesOffset:propertiesOffset], 0, 0))
}

// takeRaw returns the properties of a delivery, once.
func (c *consumingConn) takeRaw(tag uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.raw[tag]
	delete(c.raw, tag)
	return p
}

// verbatimConn gives each message that the client publishes the properties that
// were pushed for it, in the order of publishing.
type verbatimConn struct {
	net.Conn
	pending []byte // the beginning of a frame
	mu      sync.Mutex
	next    [][]byte
}

func (c *verbatimConn) push(properties []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = append(c.next, properties)
}

func (c *verbatimConn) pop() (p []byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.next) == 0 {
		return nil, false
	}
	p, c.next = c.next[0], c.next[1:]
	return p, true
}

// Write is called by one goroutine at a time, as the client does.
func (c *verbatimConn) Write(b []byte) (int, error) {
	c.pending = append(c.pending, b...)
	if len(c.pending) >= 4 && string(c.pending[:4]) == "AMQP" { // the greeting is no frame
		return len(b), c.pass(8)
	}
	for len(c.pending) >= frameHead {
		total := frameHead + int(binary.BigEndian.Uint32(c.pending[3:])) + 1
		if len(c.pending) < total {
			break
		}
		if c.pending[0] == frameHeader {
			p, ok := c.pop()
			if !ok {
				return 0, fmt.Errorf("a message without the properties it came with")
			}
			frame := reframe(c.pending[:total], append(c.pending[frameHead:frameHead+propertiesOffset:frameHead+propertiesOffset], p...))
			if _, err := c.Conn.Write(frame); err != nil {
				return 0, err
			}
			c.pending = c.pending[total:]
			continue
		}
		if err := c.pass(total); err != nil {
			return 0, err
		}
	}
	if len(c.pending) == 0 {
		c.pending = nil // or what was passed on would stay in memory
	}
	return len(b), nil
}

func (c *verbatimConn) pass(n int) error {
	n = min(n, len(c.pending))
	_, err := c.Conn.Write(c.pending[:n])
	c.pending = c.pending[n:]
	return err
}

// Properties in their order, from the highest flag. Only the headers are a table,
// and three others no text.
const (
	flagHeaders      = 1 << 13
	flagDeliveryMode = 1 << 12
	flagPriority     = 1 << 11
	flagTimestamp    = 1 << 6
	flagUserID       = 1 << 4
	flagLast         = 1 << 2
)

// republishable returns properties without what RabbitMQ added for this delivery, and without
// the user-id of another user, which RabbitMQ would refuse: then lost is true. What cannot be
// parsed stays as it is.
func republishable(p []byte, user string) (out []byte, lost bool) {
	if len(p) < 2 {
		return p, false
	}
	flags := binary.BigEndian.Uint16(p)
	out = append(make([]byte, 0, len(p)), p[:2]...)
	rest := p[2:]
	for bit := uint16(1 << 15); bit >= flagLast; bit >>= 1 {
		if flags&bit == 0 {
			continue
		}
		n := 1 // delivery mode and priority
		switch bit {
		case flagHeaders:
			table, after, ok := cutLong(rest)
			if !ok {
				return p, false
			}
			rest = after
			kept := withoutCounts(table)
			if len(kept) == 0 && len(table) > 0 { // there were no others
				binary.BigEndian.PutUint16(out, binary.BigEndian.Uint16(out)&^flagHeaders)
				continue
			}
			out = append(binary.BigEndian.AppendUint32(out, uint32(len(kept))), kept...)
			continue
		case flagTimestamp:
			n = 8
		case flagDeliveryMode, flagPriority:
		default:
			if len(rest) > 0 {
				n = 1 + int(rest[0])
			}
		}
		if len(rest) < n {
			return p, false
		}
		if bit == flagUserID && string(rest[1:n]) != user {
			lost = true
			binary.BigEndian.PutUint16(out, binary.BigEndian.Uint16(out)&^flagUserID)
		} else {
			out = append(out, rest[:n]...)
		}
		rest = rest[n:]
	}
	return append(out, rest...), lost
}

// withoutCounts returns a header table without RabbitMQ's counts of deliveries, which would
// look as if they were counts of the new queue.
func withoutCounts(table []byte) []byte {
	out := make([]byte, 0, len(table))
	for t := table; len(t) > 0; {
		name, _, after, ok := cutEntry(t)
		if !ok {
			return table
		}
		if name := string(name); name != "x-delivery-count" && name != "x-acquired-count" {
			out = append(out, t[:len(t)-len(after)]...)
		}
		t = after
	}
	return out
}

// skipValue returns what follows a value, whose first byte is its type; ok is false where it is
// longer than p.
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
