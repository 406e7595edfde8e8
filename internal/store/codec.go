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
// integers are varints; header values carry the type letter AMQP 0-9-1 gives them,
// so that they come back with the very type they had.

const (
	// recordVersion is what is written of messages that were not adopted, and adoptedVersion of
	// those that were: builds before there were any read all others. Version 1, which is still
	// read, has no flagMadeFrom and flagMadeInto.
	recordVersion, adoptedVersion = 2, 3
	// deepest is how far header tables may nest: more than fits one AMQP frame, so
	// that only damaged data meets it.
	deepest = 100_000
)

const (
	flagProven = 1 << iota
	flagForward
	flagMadeFrom
	flagMadeInto
	flagAdopted
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
	version := byte(recordVersion)
	if r.Adopted != nil {
		version = adoptedVersion
	}
	b := append(dst, version)
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
	if r.Adopted != nil {
		flags |= flagAdopted
		b = AppendTexts(b, r.Adopted.Queue, r.Adopted.Preset)
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

// DecodeHead reads what AppendRecord wrote of which the body was left out.
func DecodeHead(data []byte) (r *Record, bodySize int, err error) {
	d := Decode(data)
	if err := d.version(); err != nil {
		return nil, 0, err
	}
	size := d.Uvarint() // of what is not there
	if size > math.MaxInt32 {
		return nil, 0, ErrTorn
	}
	r, err = d.record()
	return r, int(size), err
}

func (d *Decoder) version() error {
	if v := d.Byte(); (v < 1 || v > adoptedVersion) && !d.torn {
		return fmt.Errorf("record version %d: %w", v, ErrFormat)
	}
	return nil
}

// record reads what is between the size of the body and the body.
func (d *Decoder) record() (*Record, error) {
	// One copy serves all strings: there are some fifty in a record.
	d.text = string(d.data)
	r := &Record{State: State(d.Byte())}
	m := &r.Message
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
	if flags&flagAdopted != 0 {
		r.Adopted = &Adopted{d.Text(), d.Text()}
	}
	for _, s := range [...]*string{&m.Exchange, &m.RoutingKey, &m.ContentType, &m.ContentEncoding, &m.CorrelationID,
		&m.ReplyTo, &m.Expiration, &m.MessageID, &m.Type, &m.UserID, &m.AppID} {
		*s = d.Text()
	}
	m.DeliveryMode, m.Priority = d.Byte(), d.Byte()
	m.Timestamp = d.time()
	if d.Byte() == 1 {
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
