package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// field is one entry of a table. Tables are lists, so that what is written does not depend
// on the order of a map.
type field struct {
	key   string
	value any
}

type table []field

// array is a field array; its own type tells it from a byte array.
type array []any

// decimal is kept as it came.
type decimal [5]byte

// timestamp is in seconds.
type timestamp uint64

// unsignedLong is of the field type L, which RabbitMQ 4 takes for a signed one.
type unsignedLong uint64

func (t table) get(key string) (any, bool) {
	for _, f := range t {
		if f.key == key {
			return f.value, true
		}
	}
	return nil, false
}

// with is the table with this value, in the place of the former one or at the end.
func (t table) with(key string, value any) table {
	next := make(table, 0, len(t)+1)
	found := false
	for _, f := range t {
		if f.key == key {
			f.value, found = value, true
		}
		next = append(next, f)
	}
	if !found {
		next = append(next, field{key, value})
	}
	return next
}

// reader decodes AMQP's types. The first error stays, and all later values are zero.
type reader struct {
	b      []byte
	err    error
	signed bool // unsigned long integers are taken for signed ones
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		if r.err == nil {
			r.err = fmt.Errorf("%d bytes are wanted, %d are left", n, len(r.b))
		}
		return nil
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) integer(size int) uint64 {
	var all [8]byte
	copy(all[8-size:], r.take(size))
	return binary.BigEndian.Uint64(all[:])
}

func (r *reader) octet() byte       { return byte(r.integer(1)) }
func (r *reader) short() uint16     { return uint16(r.integer(2)) }
func (r *reader) long() uint32      { return uint32(r.integer(4)) }
func (r *reader) longlong() uint64  { return r.integer(8) }
func (r *reader) shortstr() string  { return string(r.take(int(r.octet()))) }
func (r *reader) longstr() string   { return string(r.take(int(r.long()))) }
func (r *reader) flags() flags      { return flags(r.octet()) }
func (r *reader) sub(n int) *reader { return &reader{r.take(n), r.err, r.signed} }

// flags are the bits of a method, in the order of their fields.
type flags byte

func (f flags) bit(n int) bool { return f&(1<<n) != 0 }

func (r *reader) table() (t table) {
	inner := r.sub(int(r.long()))
	for inner.err == nil && len(inner.b) > 0 {
		t = append(t, field{inner.shortstr(), inner.value()})
	}
	r.err = inner.err
	return t
}

func (r *reader) array() (a array) {
	inner := r.sub(int(r.long()))
	for inner.err == nil && len(inner.b) > 0 {
		a = append(a, inner.value())
	}
	r.err = inner.err
	return a
}

func (r *reader) value() any {
	switch tag := r.octet(); tag {
	case 't':
		return r.octet() != 0
	case 'b':
		return int8(r.octet())
	case 'B':
		return r.octet()
	case 's':
		return int16(r.short())
	case 'u':
		return r.short()
	case 'I':
		return int32(r.long())
	case 'i':
		return r.long()
	case 'l':
		return int64(r.longlong())
	case 'L':
		if r.signed {
			return int64(r.longlong())
		}
		return unsignedLong(r.longlong())
	case 'f':
		return math.Float32frombits(r.long())
	case 'd':
		return math.Float64frombits(r.longlong())
	case 'D':
		return decimal(append(r.take(5), make([]byte, 5)...)[:5])
	case 'S':
		return r.longstr()
	case 'x':
		return []byte(r.longstr())
	case 'T':
		return timestamp(r.longlong())
	case 'A':
		return r.array()
	case 'F':
		return r.table()
	case 'V':
		return nil
	default:
		if r.err == nil {
			r.err = fmt.Errorf("field type %q", tag)
		}
		return nil
	}
}

// writer encodes AMQP's types.
type writer struct{ b []byte }

func (w *writer) octet(v byte)      { w.b = append(w.b, v) }
func (w *writer) short(v uint16)    { w.b = binary.BigEndian.AppendUint16(w.b, v) }
func (w *writer) long(v uint32)     { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) longlong(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }

func (w *writer) shortstr(s string) {
	s = s[:min(len(s), 255)]
	w.octet(byte(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) longstr(s string) {
	w.long(uint32(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) bool(v bool) {
	if v {
		w.octet(1)
	} else {
		w.octet(0)
	}
}

// sized writes a length before what write writes.
func (w *writer) sized(write func()) {
	at := len(w.b)
	w.long(0)
	write()
	binary.BigEndian.PutUint32(w.b[at:], uint32(len(w.b)-at-4))
}

func (w *writer) table(t table) {
	w.sized(func() {
		for _, f := range t {
			w.shortstr(f.key)
			w.value(f.value)
		}
	})
}

func (w *writer) tag(tag byte) *writer { w.octet(tag); return w }

func (w *writer) value(value any) {
	switch v := value.(type) {
	case bool:
		w.tag('t').bool(v)
	case int8:
		w.tag('b').octet(byte(v))
	case byte:
		w.tag('B').octet(v)
	case int16:
		w.tag('s').short(uint16(v))
	case uint16:
		w.tag('u').short(v)
	case int32:
		w.tag('I').long(uint32(v))
	case uint32:
		w.tag('i').long(v)
	case int64:
		w.tag('l').longlong(uint64(v))
	case unsignedLong:
		w.tag('L').longlong(uint64(v))
	case float32:
		w.tag('f').long(math.Float32bits(v))
	case float64:
		w.tag('d').longlong(math.Float64bits(v))
	case decimal:
		w.b = append(w.tag('D').b, v[:]...)
	case string:
		w.tag('S').longstr(v)
	case []byte:
		w.tag('x').longstr(string(v))
	case timestamp:
		w.tag('T').longlong(uint64(v))
	case array:
		w.tag('A').sized(func() {
			for _, e := range v {
				w.value(e)
			}
		})
	case table:
		w.tag('F').table(v)
	case nil:
		w.octet('V')
	default:
		panic(fmt.Sprintf("a %T in a table", value))
	}
}

// seconds is the time as AMQP writes it.
func seconds(t time.Time) timestamp { return timestamp(t.Unix()) }

// whole is the value of an integer field, of any size.
func whole(value any) (int64, bool) {
	switch v := value.(type) {
	case int8:
		return int64(v), true
	case byte:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int64:
		return v, true
	}
	return 0, false
}

// typeName is what RabbitMQ calls the type of a field in its errors.
func typeName(value any) string {
	switch value.(type) {
	case bool:
		return "bool"
	case int8:
		return "byte"
	case byte:
		return "unsignedbyte"
	case int16:
		return "short"
	case uint16:
		return "unsignedshort"
	case int32:
		return "signedint"
	case uint32:
		return "unsignedint"
	case int64:
		return "long"
	case float32:
		return "float"
	case float64:
		return "double"
	case decimal:
		return "decimal"
	case string:
		return "longstr"
	case []byte:
		return "binary"
	case timestamp:
		return "timestamp"
	case array:
		return "array"
	case table:
		return "table"
	}
	return "void"
}
