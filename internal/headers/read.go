// Package headers reads and writes what a failing message carries in its headers from attempt
// to attempt: its id, how often it failed, where it was first published. The service and the
// library write the same headers, so a team can use one and add the other.
package headers

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// ByConsumer reports whether a consumer may have described a failure with this reason: in a report, or in
// annotations that RabbitMQ 4 adds to a dead letter.
func ByConsumer(reason string) bool {
	return reason == wire.ReasonReported || reason == wire.ReasonRejected || reason == wire.ReasonDeliveryLimit
}

// Ignored returns the header that should be a number and is not, or "". The delay counts only if ByConsumer.
func Ignored(m *wire.Message, reason string) string {
	if _, note := SuggestedDelay(m); note != "" && ByConsumer(reason) {
		return wire.HeaderDelay
	}
	for _, header := range []string{wire.HeaderAttempt, wire.HeaderReplays} {
		if _, note := count(m, header); note != "" {
			return header
		}
	}
	return ""
}

// SuggestedDelay returns the delay that a consumer asks for in its header, in milliseconds, rounded up.
func SuggestedDelay(m *wire.Message) (d time.Duration, note string) {
	v, there := m.Headers[wire.HeaderDelay]
	if !there {
		return 0, ""
	}
	ms, ok := number(v)
	if !ok || ms < 0 {
		return 0, fmt.Sprintf("its %s header was not a number of milliseconds and was ignored", wire.HeaderDelay)
	}
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, ""
	}
	return time.Duration(ms) * time.Millisecond, ""
}

// Read returns the history of a message that was delivered from queue. ok is false if it has none, or another
// message's: frameworks copy the headers of a delivery to what its handler publishes. Our headers count if they name
// queue, and an id of NewID fits the content. Another id (an earlier version's) fits any content, so it counts only if
// viaOurs: the message came to the queue through an exchange of Redrive's, or a client reports it. A replayed message
// has 0 failures.
//
// x-death[].count is never used: RabbitMQ 4 does not grow it over a republish, and on RabbitMQ 3 a
// publisher can set it.
func Read(m *wire.Message, queue string, viaOurs bool, now time.Time) (t History, ok bool, note string) {
	_, counted := m.Headers[wire.HeaderAttempt]
	id, identified := idOf(m)
	if !counted && !identified {
		return t, false, ""
	}
	if t.Queue, _ = m.Headers[wire.HeaderQueue].(string); t.Queue != queue || !fits(id, viaOurs, m) {
		return History{}, false, Foreign
	}
	if identified {
		t.ID = id.String()
	}
	t.Failures, note = count(m, wire.HeaderAttempt)
	var replaysNote string
	t.Replays, replaysNote = count(m, wire.HeaderReplays)
	note = cmp.Or(note, replaysNote)
	t.FirstFailed = now
	if at, is := m.Headers[wire.HeaderFirstFailed].(time.Time); is && at.Unix() > 0 && at.Before(now) {
		t.FirstFailed = at
	}
	t.Exchange, _ = m.Headers[wire.HeaderExchange].(string)
	t.RoutingKey, _ = m.Headers[wire.HeaderRoutingKey].(string)
	t.Reason, _ = m.Headers[wire.HeaderReason].(string)
	t.Error, _ = m.Headers[wire.HeaderError].(string)
	t.UserID, _ = m.Headers[wire.HeaderUserID].(string)
	return t, true, note
}

// Foreign is the note of a message whose headers are not its own.
const Foreign = "its x-redrive-* headers do not count: nothing proves them its own, " +
	"and frameworks copy headers from one message to another"

func idOf(m *wire.Message) (uuid.UUID, bool) {
	s, ok := m.Headers[wire.HeaderID].(string)
	if !ok || len(s) != 36 { // Parse also takes longer forms, which are not ours
		return uuid.Nil, false
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}

// Deliveries returns how often a quorum queue has delivered the message before.
func Deliveries(h amqp.Table) int64 {
	n, _ := integer(h["x-delivery-count"])
	return min(max(n, 0), wire.MaxAttempt)
}

// Clean returns headers without those that RabbitMQ and Redrive added.
func Clean(h amqp.Table) amqp.Table {
	out := make(amqp.Table, len(h))
	for k, v := range h {
		if !removed[k] {
			out[k] = v
		}
	}
	return out
}

// number reads a number of any type that a client may write, rounded up: .NET and Python write 8000.0, others write a
// string.
func number(v any) (int64, bool) {
	var f float64
	switch n := v.(type) {
	case float64:
		f = n
	case float32:
		f = float64(n)
	case amqp.Decimal:
		f = float64(n.Value) / math.Pow10(int(n.Scale))
	case string:
		var err error
		if f, err = strconv.ParseFloat(strings.TrimSpace(n), 64); err != nil {
			return 0, false
		}
	default:
		return integer(v)
	}
	switch f = math.Ceil(f); {
	case math.IsNaN(f), math.IsInf(f, 0):
		return 0, false
	case f >= math.MaxInt64:
		return math.MaxInt64, true
	}
	return int64(max(f, math.MinInt64)), true
}

// count reads a header that counts something; one that is absent is 0.
func count(m *wire.Message, header string) (n int, note string) {
	v, there := m.Headers[header]
	if !there {
		return 0, ""
	}
	i, ok := number(v)
	if !ok || i < 0 || i > wire.MaxAttempt {
		return 0, fmt.Sprintf("its %s header was not a number from 0 to %d and counted as 0", header, wire.MaxAttempt)
	}
	return int(i), ""
}

func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case int16:
		return int64(n), true
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case uint32:
		return int64(n), true
	}
	return 0, false
}

// removed lists the headers that a retried message must not carry: routing headers would copy it to other queues,
// RabbitMQ's history would be believed or counted again, and ours are set again.
var removed = map[string]bool{
	"CC": true, "BCC": true,
	"x-death": true, "x-delay": true, "x-delivery-count": true, "x-acquired-count": true,
	"x-first-death-exchange": true, "x-first-death-queue": true, "x-first-death-reason": true,
	"x-last-death-exchange": true, "x-last-death-queue": true, "x-last-death-reason": true,
	wire.HeaderID: true, wire.HeaderAttempt: true, wire.HeaderQueue: true,
	wire.HeaderExchange: true, wire.HeaderRoutingKey: true, wire.HeaderFirstFailed: true,
	wire.HeaderReason: true, wire.HeaderError: true, wire.HeaderReplays: true, wire.HeaderUserID: true,
	wire.HeaderDelay: true, wire.HeaderPark: true, wire.HeaderParkReason: true, wire.HeaderRejectReason: true,
}

// Ours reports whether Redrive sets a header of that name.
func Ours(name string) bool {
	return strings.HasPrefix(name, "x-redrive-") && removed[name] || name == wire.HeaderUnreadable
}

// History is the state that a message carries to its next attempt.
type History struct {
	ID          string // stable over all attempts
	Failures    int    // failures so far
	Queue       string // the work queue
	FirstFailed time.Time
	Reason      string
	Error       string // "" if not known
	Replays     int    // how often people replayed it

	// Read fills these too; ApplyTo takes them from the message.
	Exchange, RoutingKey, UserID string
}

// ApplyTo returns the message to publish for its next attempt: as first published, with our headers in place of
// RabbitMQ's. m.Exchange and m.RoutingKey are those of its first publication.
func (h History) ApplyTo(m wire.Message) *wire.Message {
	headers := Clean(m.Headers)
	headers[wire.HeaderID] = h.ID
	headers[wire.HeaderAttempt] = int64(h.Failures)
	headers[wire.HeaderQueue] = h.Queue
	headers[wire.HeaderExchange] = m.Exchange
	headers[wire.HeaderRoutingKey] = m.RoutingKey
	headers[wire.HeaderFirstFailed] = h.FirstFailed
	headers[wire.HeaderReason] = h.Reason
	if h.Error != "" {
		headers[wire.HeaderError] = h.Error
	}
	if h.Replays > 0 {
		headers[wire.HeaderReplays] = int64(h.Replays)
	}
	if m.UserID != "" {
		headers[wire.HeaderUserID] = m.UserID
		m.UserID = "" // RabbitMQ refuses another user's
	}
	m.Headers = headers
	m.Expiration = "" // RabbitMQ removes it from a dead letter; a reported message still has it, and would expire again
	return &m
}

func NewID(m *wire.Message) uuid.UUID { return BindID(uuid.New(), m) }

// BindID binds an id to one message: it ends in a checksum of what a retry changes least, the body and message-id, so
// that the headers of a message prove themselves. It keeps 78 bits of id. The version is 8 (custom), and the 12 bits
// after it tell such an id from others.
func BindID(id uuid.UUID, m *wire.Message) uuid.UUID {
	id[6], id[7] = boundMark[0], boundMark[1]
	id[8] = id[8]&0x3f | 0x80
	sum := crc32.Checksum(id[:12], castagnoli)
	sum = crc32.Update(sum, castagnoli, []byte(m.MessageID+"\x00"))
	sum = crc32.Update(sum, castagnoli, m.Body)
	binary.BigEndian.PutUint32(id[12:], sum)
	return id
}

var (
	boundMark  = [2]byte{0x8e, 0xd1}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// fits reports whether a message may have this id; unbound is the answer for an id without a checksum.
func fits(id uuid.UUID, unbound bool, m *wire.Message) bool {
	if [2]byte(id[6:8]) != boundMark {
		return unbound
	}
	return id == BindID(id, m)
}
