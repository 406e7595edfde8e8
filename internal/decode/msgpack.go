package decode

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"
)

func (r *reading) messagepack(said bool) bool {
	return r.packedLeaf("messagepack", "MessagePack", said, func(p *packed) (value, error) { return p.messagepack(0) }, &messagePacker)
}

func (p *packed) messagepack(depth int) (v value, err error) {
	if err := p.b.take(depth); err != nil {
		return v, err
	}
	start := p.at
	defer func() { v.raw = p.s[start:p.at] }()
	b, err := p.next(1)
	if err != nil {
		return v, err
	}
	c := b[0]
	// sized takes a length of 1, 2 or 4 bytes; which is in the type.
	sized := func(first byte) (uint64, error) { return p.uint(1 << (c - first)) }
	var n uint64
	switch {
	case c <= 0x7f:
		return integer(uint64(c)), nil
	case c >= 0xe0:
		return integer(int64(int8(c))), nil
	case c <= 0x8f:
		return p.messagepackMap(uint64(c&0x0f), depth)
	case c <= 0x9f:
		return p.messagepackList(uint64(c&0x0f), depth)
	case c <= 0xbf:
		return p.messagepackText(uint64(c & 0x1f))
	case c == 0xc0:
		return v, nil
	case c == 0xc2 || c == 0xc3:
		return value{kind: boolean, text: strconv.FormatBool(c == 0xc3)}, nil
	case c >= 0xc4 && c <= 0xc6:
		if n, err = sized(0xc4); err != nil {
			return v, err
		}
		b, err = p.next(n)
		return bytesValue(b), err
	case c >= 0xc7 && c <= 0xc9:
		if n, err = sized(0xc7); err != nil {
			return v, err
		}
		return p.extension(n)
	case c == 0xca:
		n, err = p.uint(4)
		return float(float64(math.Float32frombits(uint32(n))), 32), err
	case c == 0xcb:
		n, err = p.uint(8)
		return float(math.Float64frombits(n), 64), err
	case c >= 0xcc && c <= 0xcf:
		n, err = sized8(p, c-0xcc)
		return integer(n), err
	case c >= 0xd0 && c <= 0xd3:
		n, err = sized8(p, c-0xd0)
		shift := 64 - 8<<(c-0xd0)
		return integer(int64(n) << shift >> shift), err
	case c >= 0xd4 && c <= 0xd8:
		return p.extension(1 << (c - 0xd4))
	case c >= 0xd9 && c <= 0xdb:
		if n, err = sized(0xd9); err != nil {
			return v, err
		}
		return p.messagepackText(n)
	case c == 0xdc || c == 0xdd:
		if n, err = p.uint(2 << (c - 0xdc)); err != nil {
			return v, err
		}
		return p.messagepackList(n, depth)
	case c == 0xde || c == 0xdf:
		if n, err = p.uint(2 << (c - 0xde)); err != nil {
			return v, err
		}
		return p.messagepackMap(n, depth)
	}
	return v, fmt.Errorf("0x%02x is no type of MessagePack's", c)
}

func sized8(p *packed, log byte) (uint64, error) { return p.uint(1 << log) }

func (p *packed) messagepackText(n uint64) (value, error) {
	b, err := p.next(n)
	return value{kind: text, text: string(b)}, err
}

func (p *packed) messagepackList(n uint64, depth int) (value, error) {
	v := value{kind: array}
	for range n {
		item, err := p.messagepack(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
	}
	return v, nil
}

func (p *packed) messagepackMap(n uint64, depth int) (value, error) {
	v := value{kind: object}
	for range n {
		k, err := p.messagepack(depth + 1)
		if err != nil {
			return v, err
		}
		item, err := p.messagepack(depth + 1)
		if err != nil {
			return v, err
		}
		name, err := keyOf(&k)
		if err != nil {
			return v, err
		}
		v.keys, v.items = append(v.keys, name), append(v.items, item)
	}
	return v, nil
}

func (p *packed) extension(n uint64) (value, error) {
	p.b.values += 2
	t, err := p.next(1)
	if err != nil {
		return value{}, err
	}
	b, err := p.next(n)
	if err != nil {
		return value{}, err
	}
	if int8(t[0]) == -1 {
		if at, ok := timestamp(b); ok {
			return special(keyTime, at.UTC().Format(time.RFC3339Nano)), nil
		}
	}
	return special(keyExt, integer(int64(int8(t[0]))), keyBytes, base64.StdEncoding.EncodeToString(b)), nil
}

func timestamp(b []byte) (time.Time, bool) {
	var seconds int64
	var nanos uint64
	switch len(b) {
	case 4:
		seconds = int64(binary.BigEndian.Uint32(b))
	case 8:
		n := binary.BigEndian.Uint64(b)
		seconds, nanos = int64(n&(1<<34-1)), n>>34
	case 12:
		seconds, nanos = int64(binary.BigEndian.Uint64(b[4:])), uint64(binary.BigEndian.Uint32(b))
	default:
		return time.Time{}, false
	}
	// Years of four digits: what RFC 3339 can say.
	return time.Unix(seconds, int64(nanos)), nanos < 1e9 && seconds > -62135596800 && seconds < 253402300800
}

var messagePacker = packer{
	null: 0xc0, boolean: [2]byte{0xc2, 0xc3}, single: 0xca, double: 0xcb,
	head: func(out []byte, major byte, n uint64) []byte {
		// The types for 4 or 5 bits of length, then 8, 16 and 32 bits.
		t := map[byte][5]byte{majorBytes: {0, 0, 0xc4, 0xc5, 0xc6}, majorText: {0xa0, 31, 0xd9, 0xda, 0xdb}, majorArray: {0x90, 15, 0, 0xdc, 0xdd}, majorMap: {0x80, 15, 0, 0xde, 0xdf}}[major]
		switch {
		case t[0] != 0 && n <= uint64(t[1]):
			return append(out, t[0]|byte(n))
		case t[2] != 0 && n <= math.MaxUint8:
			return append(out, t[2], byte(n))
		case n <= math.MaxUint16:
			return binary.BigEndian.AppendUint16(append(out, t[3]), uint16(n))
		}
		return binary.BigEndian.AppendUint32(append(out, t[4]), uint32(n))
	},
	integer: func(out []byte, literal string) ([]byte, error) {
		if n, err := strconv.ParseUint(literal, 10, 64); err == nil {
			switch {
			case n <= 0x7f:
				return append(out, byte(n)), nil
			case n <= math.MaxUint8:
				return append(out, 0xcc, byte(n)), nil
			case n <= math.MaxUint16:
				return binary.BigEndian.AppendUint16(append(out, 0xcd), uint16(n)), nil
			case n <= math.MaxUint32:
				return binary.BigEndian.AppendUint32(append(out, 0xce), uint32(n)), nil
			}
			return binary.BigEndian.AppendUint64(append(out, 0xcf), n), nil
		}
		n, err := strconv.ParseInt(literal, 10, 64)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%.40s is not an integer of 64 bits, the largest in MessagePack", literal)
		case n >= -32:
			return append(out, byte(n)), nil
		case n >= math.MinInt8:
			return append(out, 0xd0, byte(n)), nil
		case n >= math.MinInt16:
			return binary.BigEndian.AppendUint16(append(out, 0xd1), uint16(n)), nil
		case n >= math.MinInt32:
			return binary.BigEndian.AppendUint32(append(out, 0xd2), uint32(n)), nil
		}
		return binary.BigEndian.AppendUint64(append(out, 0xd3), uint64(n)), nil
	},
	numeric: func(c byte) bool { return c < 0x80 || c >= 0xe0 || c >= 0xcc && c <= 0xd3 },
	special: func(p *packer, out []byte, v, _ *value, at string) ([]byte, bool, error) {
		if s := v.find(keyTime); s != nil && len(v.items) == 1 {
			t, err := time.Parse(time.RFC3339Nano, s.text)
			if err != nil {
				return nil, true, fmt.Errorf("%s is %.40q; expected a time such as 2026-11-21T10:00:00Z", path(at, keyTime), s.text)
			}
			out = binary.BigEndian.AppendUint32(append(out, 0xc7, 12, 0xff), uint32(t.Nanosecond()))
			return binary.BigEndian.AppendUint64(out, uint64(t.Unix())), true, nil
		}
		t := v.find(keyExt)
		s := v.find(keyBytes)
		if t == nil || s == nil || len(v.items) != 2 {
			return p.common(out, v, at)
		}
		n, err := strconv.ParseInt(t.text, 10, 8)
		b, err2 := base64.StdEncoding.DecodeString(s.text)
		if err != nil || err2 != nil {
			return nil, true, fmt.Errorf("%s: expected %s from -128 to 127, and %s in base64", orRoot(at), keyExt, keyBytes)
		}
		out = binary.BigEndian.AppendUint32(append(out, 0xc9), uint32(len(b)))
		return append(append(out, byte(n)), b...), true, nil
	},
}
