// Package headers reads and writes what a failing message carries in its headers from attempt
// to attempt: its id, how often it failed, where it was first published. The service and the
// library write the same headers, so a team can use one and add the other.
package headers

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Failures returns how often the message had failed before this time. x-death[].count is never
// used: RabbitMQ 4 does not grow it over a republish, and on RabbitMQ 3 a publisher can set it.
func Failures(m *wire.Message) (n int, note string) {
	v, there := m.Headers[wire.HeaderAttempt]
	if !there {
		return 0, ""
	}
	i, ok := Integer(v)
	if !ok || i < 0 || i > wire.MaxAttempt {
		return 0, fmt.Sprintf("its %s header was not a number from 0 to %d and counted as 0", wire.HeaderAttempt, wire.MaxAttempt)
	}
	return int(i), ""
}

// SuggestedDelay returns the delay that a consumer asks for, in milliseconds in that header.
func SuggestedDelay(m *wire.Message, header string) (d time.Duration, note string) {
	v, there := m.Headers[header]
	if !there {
		return 0, ""
	}
	ms, ok := Integer(v)
	if !ok || ms < 0 {
		return 0, fmt.Sprintf("its %s header was not a number of milliseconds and was ignored", header)
	}
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, ""
	}
	return time.Duration(ms) * time.Millisecond, ""
}

// ID returns the id in a message's headers; false: there is none, or none of ours.
func ID(m *wire.Message) (uuid.UUID, bool) {
	s, ok := m.Headers[wire.HeaderID].(string)
	if !ok || len(s) != 36 { // Parse also takes longer forms, which are not ours
		return uuid.Nil, false
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}

// FirstFailed returns when the message first failed, by our header, or now if that is
// impossible.
func FirstFailed(m *wire.Message, now time.Time) time.Time {
	if t, ok := m.Headers[wire.HeaderFirstFailed].(time.Time); ok && t.Unix() > 0 && t.Before(now) {
		return t
	}
	return now
}

// Read returns the history in a message's headers; false: there is none, or its number of failures
// cannot be believed. That of a replayed message has 0 failures.
func Read(h amqp.Table, now time.Time) (t History, ok bool) {
	m := &wire.Message{Headers: h}
	n, note := Failures(m)
	if _, there := h[wire.HeaderAttempt]; !there || note != "" {
		return t, false
	}
	t.Failures = n
	if id, ok := ID(m); ok {
		t.ID = id.String()
	}
	t.FirstFailed = FirstFailed(m, now)
	t.Queue, _ = h[wire.HeaderQueue].(string)
	t.Exchange, _ = h[wire.HeaderExchange].(string)
	t.RoutingKey, _ = h[wire.HeaderRoutingKey].(string)
	t.Reason, _ = h[wire.HeaderReason].(string)
	t.Error, _ = h[wire.HeaderError].(string)
	t.UserID, _ = h[wire.HeaderUserID].(string)
	return t, true
}

// Deliveries returns how often a quorum queue has delivered the message before.
func Deliveries(h amqp.Table) int64 {
	n, _ := Integer(h["x-delivery-count"])
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

// Integer returns a header that is a whole number, of whatever size.
func Integer(v any) (int64, bool) {
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
