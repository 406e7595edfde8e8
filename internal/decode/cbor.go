package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
)

func (r *reading) cbor(said bool) bool {
	return r.packedLeaf("cbor", "CBOR", said, func(p *packed) (value, error) { return p.cbor(0) }, &cborPacker)
}

const (
	majorTag    = 6
	majorSimple = 7
	indefinite  = 31
	// mostBig is how many bytes a number may have: making decimals of it takes time
	// that grows with the square.
	mostBig = 1 << 10
)

var errBreak = errors.New("a break where nothing is open")

func (p *packed) cbor(depth int) (v value, err error) {
	if err := p.b.take(depth); err != nil {
		return v, err
	}
	start := p.at
	defer func() { v.raw = p.s[start:p.at] }()
	major, info, n, err := p.cborHead()
	if err != nil {
		return v, err
	}
	open := info == indefinite
	switch major {
	case 0:
		return integer(n), nil
	case 1:
		big := new(big.Int).SetUint64(n)
		return value{kind: number, text: big.Not(big).String()}, nil
	case majorBytes, majorText:
		b, err := p.cborString(major, n, open)
		if major == majorText {
			return value{kind: text, text: string(b)}, err
		}
		return bytesValue(b), err
	case majorArray, majorMap:
		v.kind = array
		if major == majorMap {
			v.kind = object
		}
		for i := uint64(0); open || i < n; i++ {
			if open && p.at < len(p.s) && p.s[p.at] == 0xff {
				p.at++
				break
			}
			if major == majorMap {
				k, err := p.cbor(depth + 1)
				if err != nil {
					return v, err
				}
				name, err := keyOf(&k)
				if err != nil {
					return v, err
				}
				v.keys = append(v.keys, name)
			}
			item, err := p.cbor(depth + 1)
			if err != nil {
				return v, err
			}
			v.items = append(v.items, item)
		}
		return v, nil
	case majorTag:
		return p.cborTag(n, depth)
	}
	switch info {
	case 20, 21:
		return value{kind: boolean, text: strconv.FormatBool(info == 21)}, nil
	case 22:
		return v, nil
	case 25:
		return float(half(uint16(n)), 32), nil
	case 26:
		return float(float64(math.Float32frombits(uint32(n))), 32), nil
	case 27:
		return float(math.Float64frombits(n), 64), nil
	case indefinite:
		return v, errBreak
	}
	return special(keySimple, integer(n)), nil
}

func (p *packed) cborHead() (major, info byte, n uint64, err error) {
	b, err := p.next(1)
	if err != nil {
		return 0, 0, 0, err
	}
	major, info = b[0]>>5, b[0]&31
	switch {
	case info < 24:
		return major, info, uint64(info), nil
	case info < 28:
		n, err = p.uint(1 << (info - 24))
		return major, info, n, err
	case info == indefinite && major != 0 && major != 1 && major != majorTag:
		return major, info, 0, nil
	}
	return 0, 0, 0, fmt.Errorf("0x%02x is no type of CBOR's", b[0])
}

// cborString takes a string, which may be in pieces of the same type.
func (p *packed) cborString(major byte, n uint64, open bool) (out []byte, err error) {
	if !open {
		return p.next(n)
	}
	for {
		if p.at < len(p.s) && p.s[p.at] == 0xff {
			p.at++
			return out, nil
		}
		m, info, n, err := p.cborHead()
		if err == nil && (m != major || info == indefinite) {
			err = errors.New("a string in pieces has a piece of another type")
		}
		if err != nil {
			return nil, err
		}
		piece, err := p.next(n)
		if err != nil {
			return nil, err
		}
		out = append(out, piece...)
	}
}

func (p *packed) cborTag(tag uint64, depth int) (value, error) {
	if at := p.at; tag == 2 || tag == 3 {
		major, info, n, err := p.cborHead()
		if err == nil && major == majorBytes && info != indefinite && n <= mostBig {
			b, err := p.next(n)
			big := new(big.Int).SetBytes(b)
			if tag == 3 {
				big.Not(big)
			}
			return value{kind: number, text: big.String()}, err
		}
		p.at = at
	}
	inner, err := p.cbor(depth + 1)
	if err != nil {
		return inner, err
	}
	return special(keyTag, integer(tag), keyValue, inner), nil
}

// half is a float of 16 bits.
func half(n uint16) float64 {
	exponent, mantissa := int(n>>10&31), float64(n&1023)
	f := math.Ldexp(mantissa+1024, exponent-25)
	switch {
	case exponent == 0:
		f = math.Ldexp(mantissa, -24)
	case exponent == 31 && mantissa == 0:
		f = math.Inf(1)
	case exponent == 31:
		f = math.NaN()
	}
	if n>>15 == 1 {
		f = -f
	}
	return f
}

func cborNumber(out []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(out, major<<5|byte(n))
	case n <= math.MaxUint8:
		return append(out, major<<5|24, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(out, major<<5|25), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(out, major<<5|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(out, major<<5|27), n)
}

var cborPacker = packer{
	null: 0xf6, boolean: [2]byte{0xf4, 0xf5}, single: 0xfa, double: 0xfb,
	head: cborNumber,
	integer: func(out []byte, literal string) ([]byte, error) {
		n, ok := new(big.Int), len(literal) <= 2*mostBig
		if ok {
			_, ok = n.SetString(literal, 10)
		}
		if !ok {
			return nil, fmt.Errorf("%.40s is not an integer of up to %d digits", literal, 2*mostBig)
		}
		major := byte(0)
		if n.Sign() < 0 {
			major = 1
			n.Not(n)
		}
		if n.IsUint64() {
			return cborNumber(out, major, n.Uint64()), nil
		}
		b := n.Bytes()
		return append(cborNumber(append(out, majorTag<<5|2|major), majorBytes, uint64(len(b))), b...), nil
	},
	numeric: func(c byte) bool { return c < 0x40 },
	special: func(p *packer, out []byte, v, old *value, at string) ([]byte, bool, error) {
		if t := v.find(keySimple); t != nil && len(v.items) == 1 {
			n, err := strconv.ParseUint(t.text, 10, 8)
			if err != nil || n >= 20 && n < 32 && n != 23 {
				return nil, true, fmt.Errorf("%s is %.20s; expected 0 to 19, 23, or 32 to 255", path(at, keySimple), t.text)
			}
			return cborNumber(out, majorSimple, n), true, nil
		}
		t := v.find(keyTag)
		inner := v.find(keyValue)
		if t == nil || inner == nil || len(v.items) != 2 {
			return p.common(out, v, at)
		}
		n, err := strconv.ParseUint(t.text, 10, 64)
		if err != nil {
			return nil, true, fmt.Errorf("%s is not a whole number", path(at, keyTag))
		}
		before := old.find(keyValue)
		out, err = p.write(cborNumber(out, majorTag, n), inner, before, path(at, keyValue))
		return out, true, err
	},
}
