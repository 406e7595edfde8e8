package retry

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// content is the hash in a fingerprint; the rest is when the message was dead-lettered.
type content [12]byte

func contentOf(f [16]byte) content { return content(f[:12]) }

// timeOf returns the dead-lettering time in a fingerprint.
func timeOf(f [16]byte) time.Time {
	s := binary.BigEndian.Uint32(f[12:])
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(int64(s), 0)
}

// fingerprint is a hash of all that a delivery holds, and when it was dead-lettered.
// The hash leaves out what differs between two deliveries of one dead letter:
// x-delivery-count and x-acquired-count, and x-death[0].time, which is new when
// at-least-once dead-lettering publishes it again. scratch is reused when it is large
// enough.
func fingerprint(m *wire.Message, scratch *[]byte) (f [16]byte) {
	b := (*scratch)[:0]
	for _, s := range [...]string{m.Exchange, m.RoutingKey, m.ContentType, m.ContentEncoding, m.CorrelationID,
		m.ReplyTo, m.Expiration, m.MessageID, m.Type, m.UserID, m.AppID} {
		b = appendString(b, s)
	}
	b = appendInt(b, m.Timestamp.UnixNano())
	b = appendInt(b, int64(m.DeliveryMode)<<8|int64(m.Priority))
	b = appendTable(b, m.Headers, "x-death", "x-delivery-count", "x-acquired-count")
	deaths, head := deathsOf(m)
	if head != nil {
		b = appendTable(b, head, "time")
		deaths = deaths[1:]
	}
	b = appendValue(b, deaths)
	*scratch = b
	h := sha256.New()
	h.Write(b)
	h.Write(m.Body)
	copy(f[:12], h.Sum(b[:0]))
	binary.BigEndian.PutUint32(f[12:], uint32(max(deadLetteredAt(m).Unix(), 0)))
	return f
}

// deathsOf is x-death, and its newest entry when it is as RabbitMQ writes it.
func deathsOf(m *wire.Message) (all []any, head amqp.Table) {
	if all, _ = m.Headers["x-death"].([]any); len(all) > 0 {
		head, _ = all[0].(amqp.Table)
	}
	return all, head
}

// deadLetteredAt is when the message was dead-lettered, by RabbitMQ's clock in whole seconds.
func deadLetteredAt(m *wire.Message) time.Time {
	_, head := deathsOf(m)
	t, _ := head["time"].(time.Time)
	return t
}

// deadLetteredFrom is the queue that the newest entry of x-death names.
func deadLetteredFrom(m *wire.Message) string {
	_, head := deathsOf(m)
	q, _ := head["queue"].(string)
	return q
}

// appendTable appends all of a table but the fields named.
func appendTable(b []byte, t amqp.Table, without ...string) []byte {
	keys := make([]string, 0, 16)
	for k := range t {
		if !slices.Contains(without, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		b = appendValue(appendString(b, k), t[k])
	}
	return appendInt(b, int64(len(keys)))
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return appendString(b, v)
	case []byte:
		return append(appendInt(b, int64(len(v))), v...)
	case int64:
		return appendInt(append(b, 'l'), v)
	case time.Time:
		return appendInt(b, v.Unix())
	case amqp.Table:
		return appendTable(b, v)
	case []any:
		for _, e := range v {
			b = appendValue(b, e)
		}
		return appendInt(b, int64(len(v)))
	}
	return fmt.Appendf(b, "%T%v;", v, v)
}

func appendString(b []byte, s string) []byte { return append(appendInt(b, int64(len(s))), s...) }

func appendInt(b []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }
