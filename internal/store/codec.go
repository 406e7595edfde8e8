package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
)

// A record as bytes: a version, the size of the body, then its fields in a fixed
// order, the body last so that a listing can leave it where it is. Lengths and
// integers are varints;
// header values carry the type letter AMQP 0-9-1 gives them, so that they come
// back with the very type they had.

const (
	// recordVersion is what is written. Version 1, which is still read, has no
	// flagMadeFrom and flagMadeInto.
	recordVersion = 2
	// deepest is how far header tables may nest: more than fits one AMQP frame, so
	// that only damaged data meets it.
	deepest = 100_000
)

const (
	flagProven = 1 << iota
	flagForward
	flagMadeFrom
	flagMadeInto
)

// ErrTorn: the bytes of a record are cut short or damaged.
var ErrTorn = errors.New("record is cut short or damaged")

// AppendRecord appends r to dst. It fails only for a header value of a Go type
// that AMQP has no type for, or one that is nested too deep.
func AppendRecord(dst []byte, r *Record) ([]byte, error) {
	b, err := AppendHead(dst, r)
	if err != nil {
		return dst, err
	}
	return append(b, r.Message.Body...), nil
}

// AppendHead is AppendRecord without the body, which follows it: a large one need not be
// copied once more. After an error dst is as it was.
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
	b[at] = flags
	b = AppendTexts(b, m.Exchange, m.RoutingKey, m.ContentType, m.ContentEncoding, m.CorrelationID,
		m.ReplyTo, m.Expiration, m.MessageID, m.Type, m.UserID, m.AppID)
	b = append(b, m.DeliveryMode, m.Priority)
	b = appendTime(b, m.Timestamp)
	if m.Headers == nil {
		b = append(b, 0)
	} else {
		var err error
		if b, err = appendTable(append(b, 1), m.Headers, 0); err != nil {
			return dst, err
		}
	}
	return b, nil
}

// DecodeRecord reads what AppendRecord wrote; bodySize is the length of the body
// even when it is left out. The record shares no memory with data. Damaged data
// gives an error that is ErrFormat for an unknown version.
func DecodeRecord(data []byte, withBody bool) (r *Record, bodySize int, err error) {
	d := &decoder{data: data}
	if err := d.version(); err != nil {
		return nil, 0, err
	}
	bodySize = min(d.length(), len(d.data)) // too large a size leaves nothing for the rest
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

// DecodeHead reads what AppendRecord wrote of which the body was left out.
func DecodeHead(data []byte) (r *Record, bodySize int, err error) {
	d := &decoder{data: data}
	if err := d.version(); err != nil {
		return nil, 0, err
	}
	size, n := binary.Uvarint(d.data)
	if n <= 0 || size > math.MaxInt32 {
		return nil, 0, ErrTorn
	}
	d.take(n)
	r, err = d.record()
	return r, int(size), err
}

func (d *decoder) version() error {
	if v := d.byte(); (v < 1 || v > recordVersion) && !d.torn {
		return fmt.Errorf("record version %d: %w", v, ErrFormat)
	}
	return nil
}

// record reads what is between the size of the body and the body.
func (d *decoder) record() (*Record, error) {
	// One copy serves all strings: there are some fifty in a record.
	d.text = string(d.data)
	r := &Record{State: State(d.byte())}
	m := &r.Message
	copy(r.ID[:], d.take(len(uuid.UUID{})))
	copy(r.Fingerprint[:], d.take(len(r.Fingerprint)))
	r.Queue = d.string()
	r.Due = d.time()
	r.Failures = int(d.varint())
	r.Reason = d.string()
	r.Error = d.string()
	r.Policy = d.string()
	r.FirstFailed = d.time()
	r.FailedAt = d.time()
	r.ParkedFor = d.string()
	for n := d.length(); n > 0 && !d.torn; n-- {
		r.Notes = append(r.Notes, d.string())
	}
	flags := d.byte()
	r.Proven = flags&flagProven != 0
	if flags&flagForward != 0 {
		r.Forward = &Destination{d.string(), d.string()}
	}
	if flags&flagMadeFrom != 0 {
		copy(r.MadeFrom[:], d.take(len(r.MadeFrom)))
	}
	if flags&flagMadeInto != 0 {
		copy(r.MadeInto[:], d.take(len(r.MadeInto)))
	}
	for _, s := range [...]*string{&m.Exchange, &m.RoutingKey, &m.ContentType, &m.ContentEncoding, &m.CorrelationID,
		&m.ReplyTo, &m.Expiration, &m.MessageID, &m.Type, &m.UserID, &m.AppID} {
		*s = d.string()
	}
	m.DeliveryMode, m.Priority = d.byte(), d.byte()
	m.Timestamp = d.time()
	if d.byte() == 1 {
		m.Headers = d.table(0)
	}
	if d.torn || len(d.data) != 0 {
		return nil, ErrTorn
	}
	return r, nil
}

// appendTime keeps microseconds, and keeps the zero time apart from the epoch.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	b = append(b, 1)
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()/1000))
}

// decoder reads from data until something does not fit: then torn stays true and
// every further read gives zero, so that callers check once.
type decoder struct {
	data []byte
	text string // ends where data does, and is as long or longer
	torn bool
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.data) {
		d.torn, d.data = true, nil
		return nil
	}
	b := d.data[:n]
	d.data = d.data[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.data)
	if n <= 0 {
		n = -1
	}
	d.take(n)
	return v
}

// length is a count of things that each take at least one byte, so it can never
// be used to ask for more memory than the data has.
func (d *decoder) length() int {
	v, n := binary.Uvarint(d.data)
	if n <= 0 || v > uint64(len(d.data)) {
		n, v = -1, 0
	}
	d.take(n)
	return int(v)
}

func (d *decoder) string() string {
	n := len(d.take(d.length()))
	end := len(d.text) - len(d.data)
	return d.text[end-n : end]
}

func (d *decoder) time() time.Time {
	if d.byte() == 0 {
		return time.Time{}
	}
	sec := d.varint()
	micros, n := binary.Uvarint(d.data)
	if n <= 0 || micros >= 1e6 {
		n, micros = -1, 0
	}
	d.take(n)
	return time.Unix(sec, int64(micros)*1000)
}

// AppendTexts appends texts, each with its length in front.
func AppendTexts(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// ReadTexts reads what AppendTexts wrote, and returns what follows; ok is false when it is cut
// short or damaged.
func ReadTexts(b []byte, into ...*string) (rest []byte, ok bool) {
	d := &decoder{data: b, text: string(b)}
	for _, s := range into {
		*s = d.string()
	}
	return d.data, !d.torn
}
