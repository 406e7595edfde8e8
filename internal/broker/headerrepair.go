package broker

import (
	"encoding/binary"
	"fmt"

	"github.com/redrive-mq/redrive/wire"
)

// What amqp091-go refuses to read, and ends the connection over. [read.go of
// v1.16]
const (
	maxNesting  = 32
	maxElements = 8192
)

// headerRepair is what was changed in a message's headers so that the client can read it.
type headerRepair struct {
	note            string // it can be published again, except for this
	cannotRepublish string // it cannot be published again as it was, for this reason
	duplicateHeader string // its death headers prove nothing, for this reason: see duplicateheaders.go
}

// repairHeader changes what the client cannot read in the header table of a
// content header, mostly in place, and says what it did. What RabbitMQ would not
// send is left to the client to judge.
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
			m.cannotRepublish = fmt.Sprintf("its header %.60q is nested more than %d deep or has more than %d entries, which the AMQP client cannot send; it is kept as bytes", name, maxNesting, maxElements)
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
	return append(out, after...), headerRepair{duplicateHeader: m.duplicateHeader, cannotRepublish: fmt.Sprintf("it has %d headers, more than the %d that the AMQP client can send; they are kept as bytes", entries, maxElements)}
}

// cutLong cuts off a 32 bit length and that many bytes.
func cutLong(p []byte) (content, rest []byte, ok bool) {
	if len(p) < 4 || uint64(len(p)-4) < uint64(binary.BigEndian.Uint32(p)) {
		return nil, nil, false
	}
	n := 4 + int(binary.BigEndian.Uint32(p))
	return p[4:n], p[n:], true
}

// valueSizes are the sizes, in bytes, of the value types that have a fixed one.
var valueSizes = map[byte]int{'t': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'l': 8, 'L': 8, 'f': 4, 'd': 8, 'D': 5, 'T': 8, 'V': 0}

// repairValue turns L into l within a value, and tells whether the client can read
// it at this depth. ok is false when it is not well formed.
func repairValue(p []byte, depth int, m *headerRepair) (rest []byte, fits, ok bool) {
	if len(p) == 0 {
		return nil, false, false
	}
	kind, v := p[0], p[1:]
	if n, sized := valueSizes[kind]; sized {
		if kind == 'L' {
			p[0] = 'l'
			m.note = "it had a header of AMQP type L (unsigned 64 bit), which became l (signed), as RabbitMQ 4 does itself"
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
