package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// A record as bytes: a version, the size of the body, then the fields in a fixed order, the body last so that a listing
// need not read it. Lengths and integers are varints; header values have AMQP 0-9-1's letter of their type, so that
// they keep it.

const (
	// recordVersion is written. Version 1, which is still read, has no flags from
	// flagMadeFrom on.
	recordVersion = 2
	// maxDepth bounds nested header tables: more than fits one AMQP frame, so only
	// damaged data reaches it.
	maxDepth = 100_000
)

const (
	flagProven = 1 << iota
	flagForward
	flagMadeFrom
	flagMadeInto
	flagRule
	flagFormat // the format follows, then 1 and an envelope's properties, or 0
	flagReplays
	flagAdopted
)

// ErrTorn: the bytes of a record are cut short or damaged.
var ErrTorn = errors.New("record is cut short or damaged")

// AppendRecord appends r to dst. It fails only for a header value of a Go type without
// an AMQP type, or that is nested too deep.
func AppendRecord(dst []byte, r *Record) ([]byte, error) {
	b, err := AppendHead(dst, r)
	if err != nil {
		return dst, err
	}
	return append(b, r.Message.Body...), nil
}

// AppendHead is AppendRecord without the body, which follows it: this saves a copy of a large one. After an error dst
// is unchanged.
func AppendHead(dst []byte, r *Record) ([]byte, error) {
	m := &r.Message
	b := append(dst, recordVersion)
	b = binary.AppendUvarint(b, uint64(len(m.Body)))
	b = append(b, byte(r.State))
	b = append(b, r.ID[:]...)
	b = append(b, r.Fingerprint[:]...)
	b = AppendTexts(b, r.Queue)
	b = appendTime(b, r.Due)
	b = binary.AppendVarint(b, int64(r.Failures))
	b = AppendTexts(b, r.Reason, r.Error, r.Policy)
	b = appendTime(b, r.FirstFailed)
	b = appendTime(b, r.FailedAt)
	b = AppendTexts(b, r.ParkedFor)
	b = binary.AppendUvarint(b, uint64(len(r.Notes)))
	b = AppendTexts(b, r.Notes...)
	var flags byte
	at := len(b)
	b = append(b, 0)
	if r.Proven {
		flags |= flagProven
	}
	if r.Forward != nil {
		flags |= flagForward
		b = AppendTexts(b, r.Forward.Exchange, r.Forward.RoutingKey)
	}
	if r.MadeFrom != uuid.Nil {
		flags |= flagMadeFrom
		b = append(b, r.MadeFrom[:]...)
	}
	if r.MadeInto != uuid.Nil {
		flags |= flagMadeInto
		b = append(b, r.MadeInto[:]...)
	}
	if r.Rule != "" || r.Notify != AsUsual {
		flags |= flagRule
		b = append(AppendTexts(b, r.Rule), byte(r.Notify))
	}
	var err error
	if r.Format != "" || r.Envelope != nil {
		flags |= flagFormat
		b = AppendTexts(b, r.Format)
		if r.Envelope == nil {
			b = append(b, 0)
		} else if b, err = appendProperties(append(b, 1), r.Envelope); err != nil {
			return dst, err
		}
	}
	if r.Replays != 0 {
		flags |= flagReplays
		b = binary.AppendVarint(b, int64(r.Replays))
	}
	if r.AdoptedFrom != "" {
		flags |= flagAdopted
		b = appendTime(AppendTexts(b, r.AdoptedFrom), r.HeldUntil)
	}
	b[at] = flags
	if b, err = appendProperties(b, m); err != nil {
		return dst, err
	}
	return b, nil
}

func appendProperties(b []byte, m *wire.Message) ([]byte, error) {
	b = AppendTexts(b, m.Exchange, m.RoutingKey, m.ContentType, m.ContentEncoding, m.CorrelationID,
		m.ReplyTo, m.Expiration, m.MessageID, m.Type, m.UserID, m.AppID)
	b = append(b, m.DeliveryMode, m.Priority)
	b = appendTime(b, m.Timestamp)
	if m.Headers == nil {
		return append(b, 0), nil
	}
	return appendTable(append(b, 1), m.Headers, 0)
}

// DecodeRecord reads what AppendRecord wrote; bodySize is the body's size even when the
// body is left out. The record shares no memory with data. The error is ErrFormat for an
// unknown version, or ErrTorn.
func DecodeRecord(data []byte, withBody bool) (r *Record, bodySize int, err error) {
	d := Decode(data)
	if err := d.version(); err != nil {
		return nil, 0, err
	}
	bodySize = d.length()
	body := d.data[len(d.data)-bodySize:]
	d.data = d.data[:len(d.data)-bodySize]
	if r, err = d.record(); err != nil {
		return nil, 0, err
	}
	if withBody && bodySize > 0 {
		r.Message.Body = append([]byte(nil), body...)
	}
	return r, bodySize, nil
}

func DecodeHead(data []byte) (r *Record, bodySize int, err error) {
	d := Decode(data)
	if err := d.version(); err != nil {
		return nil, 0, err
	}
	size := d.Uvarint() // of the absent body
	if size > math.MaxInt32 {
		return nil, 0, ErrTorn
	}
	r, err = d.record()
	return r, int(size), err
}

func (d *Decoder) version() error {
	if v := d.Byte(); (v < 1 || v > recordVersion) && !d.torn {
		return fmt.Errorf("record version %d: %w", v, ErrFormat)
	}
	return nil
}

// record reads the fields between the body's size and the body.
func (d *Decoder) record() (*Record, error) {
	// One copy serves all strings: a record has some fifty.
	d.text = string(d.data)
	r := &Record{State: State(d.Byte())}
	copy(r.ID[:], d.take(len(uuid.UUID{})))
	copy(r.Fingerprint[:], d.take(len(r.Fingerprint)))
	r.Queue = d.Text()
	r.Due = d.time()
	r.Failures = int(d.Varint())
	r.Reason = d.Text()
	r.Error = d.Text()
	r.Policy = d.Text()
	r.FirstFailed = d.time()
	r.FailedAt = d.time()
	r.ParkedFor = d.Text()
	for n := d.length(); n > 0 && !d.torn; n-- {
		r.Notes = append(r.Notes, d.Text())
	}
	flags := d.Byte()
	r.Proven = flags&flagProven != 0
	if flags&flagForward != 0 {
		r.Forward = &Destination{d.Text(), d.Text()}
	}
	if flags&flagMadeFrom != 0 {
		copy(r.MadeFrom[:], d.take(len(r.MadeFrom)))
	}
	if flags&flagMadeInto != 0 {
		copy(r.MadeInto[:], d.take(len(r.MadeInto)))
	}
	if flags&flagRule != 0 {
		r.Rule, r.Notify = d.Text(), Notify(d.Byte())
	}
	if flags&flagFormat != 0 {
		if r.Format = d.Text(); d.Byte() == 1 {
			r.Envelope = new(wire.Message)
			d.properties(r.Envelope)
		}
	}
	if flags&flagReplays != 0 {
		r.Replays = int(d.Varint())
	}
	if flags&flagAdopted != 0 {
		r.AdoptedFrom, r.HeldUntil = d.Text(), d.time()
	}
	d.properties(&r.Message)
	if d.torn || len(d.data) != 0 {
		return nil, ErrTorn
	}
	return r, nil
}

func (d *Decoder) properties(m *wire.Message) {
	for _, s := range [...]*string{&m.Exchange, &m.RoutingKey, &m.ContentType, &m.ContentEncoding, &m.CorrelationID,
		&m.ReplyTo, &m.Expiration, &m.MessageID, &m.Type, &m.UserID, &m.AppID} {
		*s = d.Text()
	}
	m.DeliveryMode, m.Priority = d.Byte(), d.Byte()
	m.Timestamp = d.time()
	if d.Byte() == 1 {
		m.Headers = d.table(0)
	}
}

// appendTime keeps microseconds, and distinguishes the zero time from the epoch.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	b = append(b, 1)
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()/1000))
}

func (d *Decoder) time() time.Time {
	if d.Byte() == 0 {
		return time.Time{}
	}
	sec := d.Varint()
	micros := d.Uvarint()
	if micros >= 1e6 {
		d.take(-1)
	}
	return time.Unix(sec, int64(micros)*1000)
}

// Decoder reads what AppendTexts and encoding/binary appended. After something does not fit, each read returns zero, so
// callers check Torn once.
type Decoder struct {
	data []byte
	text string // if not "", a copy that ends where data does: texts share its memory
	torn bool
}

func Decode(b []byte) *Decoder { return &Decoder{data: b} }

func (d *Decoder) More() bool { return len(d.data) > 0 }

func (d *Decoder) Torn() bool { return d.torn }

// take returns n bytes; nil when there are fewer.
func (d *Decoder) take(n int) []byte {
	if n < 0 || n > len(d.data) {
		d.torn, d.data = true, nil
		return nil
	}
	b := d.data[:n]
	d.data = d.data[n:]
	return b
}

func (d *Decoder) Byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.data)
	d.skip(n)
	return v
}

func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	d.skip(n)
	return v
}

// skip skips a varint of n bytes; n ≤ 0 means that it is damaged.
func (d *Decoder) skip(n int) {
	if n <= 0 {
		n = -1
	}
	d.take(n)
}

// length reads a count of things that each take at least one byte, so that damaged data
// cannot ask for more memory than its size.
func (d *Decoder) length() int {
	v := d.Uvarint()
	if v > uint64(len(d.data)) {
		d.take(-1)
		return 0
	}
	return int(v)
}

func (d *Decoder) Text() string {
	b := d.take(d.length())
	if d.text == "" {
		return string(b)
	}
	end := len(d.text) - len(d.data)
	return d.text[end-len(b) : end]
}

// AppendTexts appends texts, each after its length.
func AppendTexts(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// ReadTexts reads what AppendTexts wrote, and returns the rest; ok is false when the data is cut
// short or damaged.
func ReadTexts(b []byte, into ...*string) (rest []byte, ok bool) {
	d := Decode(b)
	for _, s := range into {
		*s = d.Text()
	}
	return d.data, !d.torn
}

func appendTable(b []byte, t amqp.Table, depth int) ([]byte, error) {
	b = binary.AppendUvarint(b, uint64(len(t)))
	for k, v := range t {
		b = AppendTexts(b, k)
		var err error
		if b, err = appendValue(b, v, depth+1); err != nil {
			return b, fmt.Errorf("header %.100q: %w", k, err)
		}
	}
	return b, nil
}

func appendValue(b []byte, v any, depth int) ([]byte, error) {
	if depth > maxDepth {
		return b, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	be := binary.BigEndian
	switch v := v.(type) {
	case nil:
		return append(b, 'V'), nil
	case bool:
		if v {
			return append(b, 't', 1), nil
		}
		return append(b, 't', 0), nil
	case uint8:
		return append(b, 'B', v), nil
	case int8:
		return append(b, 'b', byte(v)), nil
	case int16:
		return be.AppendUint16(append(b, 's'), uint16(v)), nil
	case uint16:
		return be.AppendUint16(append(b, 'u'), v), nil
	case int32:
		return be.AppendUint32(append(b, 'I'), uint32(v)), nil
	case uint32:
		return be.AppendUint32(append(b, 'i'), v), nil
	case int64:
		return be.AppendUint64(append(b, 'l'), uint64(v)), nil
	case float32:
		return be.AppendUint32(append(b, 'f'), math.Float32bits(v)), nil
	case float64:
		return be.AppendUint64(append(b, 'd'), math.Float64bits(v)), nil
	case amqp.Decimal:
		return be.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value)), nil
	case string:
		return AppendTexts(append(b, 'S'), v), nil
	case []byte:
		b = binary.AppendUvarint(append(b, 'x'), uint64(len(v)))
		return append(b, v...), nil
	case time.Time:
		return be.AppendUint64(append(b, 'T'), uint64(v.Unix())), nil
	case amqp.Table:
		return appendTable(append(b, 'F'), v, depth)
	case []any:
		b = binary.AppendUvarint(append(b, 'A'), uint64(len(v)))
		for _, e := range v {
			var err error
			if b, err = appendValue(b, e, depth+1); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	return b, fmt.Errorf("AMQP has no type for a Go %T", v)
}

func (d *Decoder) table(depth int) amqp.Table {
	n := d.length()
	t := make(amqp.Table, min(n, 8)) // damaged data may claim many, at each depth
	for ; n > 0 && !d.torn; n-- {
		k := d.Text()
		t[k] = d.value(depth + 1)
	}
	return t
}

func (d *Decoder) uint(size int) (v uint64) {
	for _, b := range d.take(size) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (d *Decoder) value(depth int) any {
	if depth > maxDepth {
		d.take(-1)
	}
	switch d.Byte() {
	case 'V':
		return nil
	case 't':
		return d.Byte() != 0
	case 'B':
		return d.Byte()
	case 'b':
		return int8(d.Byte())
	case 's':
		return int16(d.uint(2))
	case 'u':
		return uint16(d.uint(2))
	case 'I':
		return int32(d.uint(4))
	case 'i':
		return uint32(d.uint(4))
	case 'l':
		return int64(d.uint(8))
	case 'f':
		return math.Float32frombits(uint32(d.uint(4)))
	case 'd':
		return math.Float64frombits(d.uint(8))
	case 'D':
		return amqp.Decimal{Scale: d.Byte(), Value: int32(d.uint(4))}
	case 'S':
		return d.Text()
	case 'x':
		return append([]byte{}, d.take(d.length())...)
	case 'T':
		return time.Unix(int64(d.uint(8)), 0)
	case 'F':
		return d.table(depth)
	case 'A':
		n := d.length()
		a := make([]any, 0, min(n, 8))
		for ; n > 0 && !d.torn; n-- {
			a = append(a, d.value(depth+1))
		}
		return a
	}
	d.take(-1)
	return nil
}
