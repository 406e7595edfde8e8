package model

import (
	"encoding/binary"
	"fmt"
	"strings"
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

// raw is a value of fixed length, or of bytes, which the model carries on as it came.
type raw struct {
	kind byte
	b    string
}

// sizes are the lengths of fixed values, by the type of the field.
var sizes = map[byte]int{'t': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'l': 8, 'L': 8, 'f': 4, 'd': 8, 'D': 5, 'T': 8, 'V': 0}

func boolean(is bool) raw { return raw{'t', string([]byte{truth(is)})} }

func integer(n int64) raw { return raw{'l', string(binary.BigEndian.AppendUint64(nil, uint64(n)))} }

// seconds is the time as AMQP writes it.
func seconds(t time.Time) raw {
	return raw{'T', string(binary.BigEndian.AppendUint64(nil, uint64(t.Unix())))}
}

func truth(is bool) byte {
	if is {
		return 1
	}
	return 0
}

func (t table) get(key string) (any, bool) {
	for _, f := range t {
		if f.key == key {
			return f.value, true
		}
	}
	return nil, false
}

// text is a value that is text, or "".
func (t table) text(key string) string {
	value, _ := t.get(key)
	text, _ := value.(string)
	return text
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
	b   []byte
	err error
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
func (r *reader) sub(n int) *reader { return &reader{r.take(n), r.err} }

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
	kind := r.octet()
	size, fixed := sizes[kind]
	switch {
	case fixed:
		return raw{kind, string(r.take(size))}
	case kind == 'S':
		return r.longstr()
	case kind == 'x':
		return raw{kind, r.longstr()}
	case kind == 'A':
		return r.array()
	case kind == 'F':
		return r.table()
	case r.err == nil:
		r.err = fmt.Errorf("field type %q", kind)
	}
	return nil
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

func (w *writer) bool(v bool) { w.octet(truth(v)) }

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
	case raw:
		if w.octet(v.kind); v.kind == 'x' {
			w.long(uint32(len(v.b)))
		}
		w.b = append(w.b, v.b...)
	case string:
		w.tag('S').longstr(v)
	case array:
		w.tag('A').sized(func() {
			for _, e := range v {
				w.value(e)
			}
		})
	case table:
		w.tag('F').table(v)
	default:
		panic(fmt.Sprintf("a %T in a table", value))
	}
}

// whole is the value of an integer field, of any size.
func whole(value any) (n int64, is bool) {
	v, _ := value.(raw)
	if v.kind == 0 || !strings.ContainsRune("bBsuIil", rune(v.kind)) {
		return 0, false
	}
	if strings.ContainsRune("bsIl", rune(v.kind)) && v.b[0] >= 0x80 {
		n = -1
	}
	for _, b := range []byte(v.b) {
		n = n<<8 | int64(b)
	}
	return n, true
}

// content is a message's properties and body.
type content struct {
	texts   [14]string // short strings, and values of fixed length as they came, by the number of their flag
	has     uint16     // which properties are there: bit 15-n for the nth
	headers table
	body    []byte
}

// properties are the types of basic's properties, in the order of their flags: those of fields in a table, but
// that S is a short string here.
const properties = "SSFBBSSSSTSSSS"

// Some of them by their number.
const (
	headers    = 2
	priority   = 4
	expiration = 7
	userID     = 11
)

func bit(property int) uint16 { return 1 << (15 - property) }

func (c *content) is(property int) bool { return c.has&bit(property) != 0 }

func (c *content) remove(property int) {
	c.has &^= bit(property)
	c.texts[property] = ""
}

func (c *content) setHeaders(t table) {
	c.headers = t
	c.has |= bit(headers)
}

// copy shares the body, which is never changed.
func (c *content) copy() *content {
	other := *c
	return &other
}

func readProperties(r *reader) *content {
	c := &content{has: r.short()}
	for property, kind := range []byte(properties) {
		switch {
		case !c.is(property):
		case kind == 'F':
			c.headers = r.table()
		case kind == 'S':
			c.texts[property] = r.shortstr()
		default:
			c.texts[property] = string(r.take(sizes[kind]))
		}
	}
	return c
}

func (c *content) write(w *writer) {
	w.short(c.has)
	for property, kind := range []byte(properties) {
		switch {
		case !c.is(property):
		case kind == 'F':
			w.table(c.headers)
		case kind == 'S':
			w.shortstr(c.texts[property])
		default:
			w.b = append(w.b, c.texts[property]...)
		}
	}
}
