package broker

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

func Received(d *amqp.Delivery) wire.Message {
	return wire.Message{
		Exchange: d.Exchange, RoutingKey: d.RoutingKey, Headers: d.Headers,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority:      d.Priority,
		CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageID: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, UserID: d.UserId, AppID: d.AppId, Body: d.Body,
	}
}

// publishing returns m for amqp091-go, always persistent: what was safe on Redrive's disk must not be lost in a queue's
// memory.
func publishing(m *wire.Message) amqp.Publishing {
	return amqp.Publishing{
		Headers: m.Headers, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding,
		DeliveryMode: amqp.Persistent,
		Priority:     m.Priority, CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, Expiration: m.Expiration,
		MessageId: m.MessageID, Timestamp: m.Timestamp, Type: m.Type, UserId: m.UserID, AppId: m.AppID, Body: m.Body,
	}
}

// headerSize returns the bytes of the frame with the properties. A frame larger than the negotiated size makes RabbitMQ
// end the connection (501).
func headerSize(m *wire.Message) int {
	n := frameHead + 1 + 14 + 4 + 1 + 1 // frame, content header, table length, delivery mode, priority
	for _, s := range [...]string{m.ContentType, m.ContentEncoding, m.CorrelationID, m.ReplyTo, m.Expiration,
		m.MessageID, m.Type, m.UserID, m.AppID} {
		n += 1 + len(s)
	}
	return n + 8 + tableSize(m.Headers)
}

func tableSize(t amqp.Table) (n int) {
	for k, v := range t {
		n += 1 + len(k) + valueSize(v)
	}
	return n
}

func valueSize(v any) int {
	switch v := v.(type) {
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case amqp.Table:
		return 5 + tableSize(v)
	case []any:
		n := 5
		for _, e := range v {
			n += valueSize(e)
		}
		return n
	}
	return 9 // the largest of the others
}

// maxKey is the maximum length of a table's key, in bytes.
const maxKey = 255

// checkHeaders returns an error for headers that the client cannot send: it would notice in the middle of a frame and
// close the connection, or recurse forever into a table that contains itself.
func checkHeaders(t amqp.Table, depth int) error {
	for k, v := range t {
		if len(k) > maxKey {
			return fmt.Errorf("the key %.60q has %d bytes, and %d are the most", k, len(k), maxKey)
		}
		if err := checkValue(v, depth); err != nil {
			return fmt.Errorf("header %.60q: %w", k, err)
		}
	}
	return nil
}

func checkValue(v any, depth int) error {
	switch v := v.(type) {
	case nil, bool, string, []byte, int32, int64, float64, time.Time: // nearly all
		return nil
	case amqp.Table, []any:
		if depth++; depth > maxNesting {
			return fmt.Errorf("nested more than %d deep", maxNesting)
		}
		if t, ok := v.(amqp.Table); ok {
			return checkHeaders(t, depth)
		}
		for _, e := range v.([]any) {
			if err := checkValue(e, depth); err != nil {
				return err
			}
		}
		return nil
	}
	return amqp.Table{"": v}.Validate()
}
