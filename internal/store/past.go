package store

import (
	"encoding/binary"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// PastFailuresKept is how many of the newest past failures a store keeps at least.
const PastFailuresKept = 200_000

// Ending is how an attempt's wait ended.
type Ending uint8

// Endings. Their numbers are on disk.
const (
	EndedRetried   Ending = 1 // RabbitMQ confirmed it in its work queue
	EndedForwarded Ending = 2 // RabbitMQ confirmed it where its policy, or a person, sent it
	EndedDiscarded Ending = 3 // for good: its time to be restored is over
)

// PastFailure is one attempt of a message that has ended: a failure that is no longer kept, because
// the message was retried, forwarded, or discarded for good. It has no body and no headers.
type PastFailure struct {
	ID       uuid.UUID
	Queue    string
	Failures int
	Reason   string
	Error    string // its first 200 bytes or so
	Policy   string
	FailedAt time.Time
	Due      time.Time // when it was to be retried
	Ended    time.Time
	Ending   Ending
}

// pastError is how much of an error a past failure keeps.
const pastError = 200

// PastFailureOf returns what is kept of a record that ended.
func PastFailureOf(r *Record, ended time.Time, how Ending) PastFailure {
	p := PastFailure{ID: r.ID, Queue: r.Queue, Failures: r.Failures, Reason: r.Reason, Error: r.Error, Policy: r.Policy,
		FailedAt: r.FailedAt, Due: r.Due, Ended: ended, Ending: how}
	if len(p.Error) > pastError {
		end := pastError
		for end > pastError-utf8.UTFMax && !utf8.RuneStart(p.Error[end]) {
			end--
		}
		p.Error = p.Error[:end]
	}
	return p
}

// AppendPastFailure appends a past failure.
func AppendPastFailure(b []byte, p PastFailure) []byte {
	b = append(append(b, byte(p.Ending)), p.ID[:]...)
	b = AppendTexts(b, p.Queue, p.Reason, p.Error, p.Policy)
	b = binary.AppendVarint(b, int64(p.Failures))
	for _, at := range [...]time.Time{p.FailedAt, p.Due, p.Ended} {
		b = binary.AppendVarint(b, at.UnixMicro())
	}
	return b
}

// ReadPastFailure reads what AppendPastFailure wrote.
func ReadPastFailure(text string) (p PastFailure, err error) {
	d := &Decoder{data: []byte(text), text: text}
	p.Ending = Ending(d.Byte())
	copy(p.ID[:], d.take(len(p.ID)))
	for _, s := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
		*s = d.Text()
	}
	p.Failures = int(d.Varint())
	for _, at := range [...]*time.Time{&p.FailedAt, &p.Due, &p.Ended} {
		*at = FromMicros(d.Varint())
	}
	if d.torn {
		return p, fmt.Errorf("a past failure: %w", ErrTorn)
	}
	return p, nil
}

// FromMicros is the time of microseconds since 1970, and keeps the zero time.
func FromMicros(n int64) time.Time {
	if n == (time.Time{}).UnixMicro() {
		return time.Time{}
	}
	return time.UnixMicro(n)
}
