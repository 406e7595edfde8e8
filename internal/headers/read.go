// Package headers reads and writes what a failing message carries in its headers from attempt
// to attempt: its id, how often it failed, where it was first published. The service and the
// library write the same headers, so a team can use one and add the other.
package headers

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Ignored returns the header that should be a number and is none; "": all are. The delay counts in
// a report only.
func Ignored(m *wire.Message, reported bool) string {
	if _, note := SuggestedDelay(m); reported && note != "" {
		return wire.HeaderDelay
	}
	if v, there := m.Headers[wire.HeaderAttempt]; there {
		if _, ok := failures(v); !ok {
			return wire.HeaderAttempt
		}
	}
	return ""
}

// SuggestedDelay returns the delay that a consumer asks for, which its header has in
// milliseconds, rounded up.
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

// Read returns the history of a message that was delivered from queue; false: it has none, or
// another message's, as frameworks copy the headers of a delivery to what its handler publishes. Ours
// are believed if they name queue, and an id of NewID fits the content. An id from elsewhere (an
// earlier version's) fits any content, so it counts only if viaOurs: the message came to the queue
// through an exchange of Redrive's, or a client reports it. That of a replayed message has 0 failures.
//
// x-death[].count is never used: RabbitMQ 4 does not grow it over a republish, and on RabbitMQ 3 a
// publisher can set it.
func Read(m *wire.Message, queue string, viaOurs bool, now time.Time) (t History, ok bool, note string) {
	attempt, counted := m.Headers[wire.HeaderAttempt]
	id, identified := idOf(m)
	if !counted && !identified {
		return t, false, ""
	}
	if t.Queue, _ = m.Headers[wire.HeaderQueue].(string); t.Queue != queue || !fits(id, viaOurs, m) {
		return History{}, false, foreign
	}
	if identified {
		t.ID = id.String()
	}
	if t.Failures, ok = failures(attempt); counted && !ok {
		note = fmt.Sprintf("its %s header was not a number from 0 to %d and counted as 0",
			wire.HeaderAttempt, wire.MaxAttempt)
	}
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

const foreign = "its x-redrive-* headers do not count: nothing proves them its own, " +
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

// number reads a number in any type that a client may write it as, rounded up: .NET and Python write
// 8000.0, and others text.
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

func failures(v any) (n int, ok bool) {
	i, ok := number(v)
	if !ok || i < 0 || i > wire.MaxAttempt {
		return 0, false
	}
	return int(i), true
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
