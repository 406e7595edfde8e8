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

// content is the part of a fingerprint that is a hash; the rest is when the message
// was dead-lettered.
type content [12]byte

func contentOf(f [16]byte) content { return content(f[:12]) }

// diedAt is what died was of the message that has this fingerprint.
func diedAt(f [16]byte) time.Time {
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
		b = printString(b, s)
	}
	b = printInt(b, m.Timestamp.UnixNano())
	b = printInt(b, int64(m.DeliveryMode)<<8|int64(m.Priority))
	b = printTable(b, m.Headers, "x-death", "x-delivery-count", "x-acquired-count")
	deaths, head := deathsOf(m)
	if head != nil {
		b = printTable(b, head, "time")
		deaths = deaths[1:]
	}
	b = printValue(b, deaths)
	*scratch = b
	h := sha256.New()
	h.Write(b)
	h.Write(m.Body)
	copy(f[:12], h.Sum(b[:0]))
	binary.BigEndian.PutUint32(f[12:], uint32(max(died(m).Unix(), 0)))
	return f
}

// deathsOf is x-death, and its newest entry when it is as RabbitMQ writes it.
func deathsOf(m *wire.Message) (all []any, head amqp.Table) {
	if all, _ = m.Headers["x-death"].([]any); len(all) > 0 {
		head, _ = all[0].(amqp.Table)
	}
	return all, head
}

// died is when the message was dead-lettered, by RabbitMQ's clock in whole seconds.
func died(m *wire.Message) time.Time {
	_, head := deathsOf(m)
	t, _ := head["time"].(time.Time)
	return t
}

// deathQueue is the queue that the newest entry of x-death names.
func deathQueue(m *wire.Message) string {
	_, head := deathsOf(m)
	q, _ := head["queue"].(string)
	return q
}

// printTable prints all of a table but the fields named.
func printTable(b []byte, t amqp.Table, without ...string) []byte {
	keys := make([]string, 0, 16)
	for k := range t {
		if !slices.Contains(without, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		b = printValue(printString(b, k), t[k])
	}
	return printInt(b, int64(len(keys)))
}

func printValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return printString(b, v)
	case []byte:
		return append(printInt(b, int64(len(v))), v...)
	case int64:
		return printInt(append(b, 'l'), v)
	case time.Time:
		return printInt(b, v.Unix())
	case amqp.Table:
		return printTable(b, v)
	case []any:
		for _, e := range v {
			b = printValue(b, e)
		}
		return printInt(b, int64(len(v)))
	}
	return fmt.Appendf(b, "%T%v;", v, v)
}

func printString(b []byte, s string) []byte { return append(printInt(b, int64(len(s))), s...) }

func printInt(b []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }
