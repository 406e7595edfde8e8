package redrive

import (
	"bytes"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// Message is one attempt at a message: the message as it was first published, and what
// became of it since. Its Expiration is "" from the second attempt on, with all ways but
// Native: it would expire in its queue again. It belongs to the handler until that returns.
type Message struct {
	wire.Message

	// Queue is the work queue.
	Queue string
	// ID is the same at every attempt from the second one on; also on a duplicate after a
	// crash, if the publisher has set a message id. It is "" before the first failure, and at
	// all attempts with Native.
	ID string
	// Attempt is 1 at the first one, and one more after each failure. Once a person has
	// replayed a parked message it begins with 1 again, and ID, FirstFailed and LastError stay.
	Attempt int
	// FirstFailed is when it first failed; zero before.
	FirstFailed time.Time
	// LastError is the text of the error of the attempt before, up to 2 KiB; "" before the
	// first failure.
	LastError string
	// Redelivered is whether RabbitMQ has delivered it before, and got no acknowledgement.
	Redelivered bool
}

// message reads a delivery. queueCounts is the limit QueueCounts of the consumer's way to wait.
func message(d *amqp.Delivery, queue string, queueCounts bool) *Message {
	m := &Message{Queue: queue, Attempt: 1, Redelivered: d.Redelivered, Message: broker.Received(d)}
	m.Headers = clone(d.Headers)
	switch {
	case len(d.Headers) == 0:
	case queueCounts:
		// On the first delivery RabbitMQ's count would be a publisher's header.
		if d.Redelivered {
			m.Attempt = int(headers.Deliveries(d.Headers)) + 1
			m.Headers = headers.Clean(m.Headers)
		}
	// Our headers count only in what has come through an exchange of Redrive's: every publisher of
	// the queue can write them, and frameworks copy them. Other messages are as first published.
	case strings.HasPrefix(d.Exchange, "redrive."):
		t, ok, _ := headers.Read(&m.Message, queue, true, time.Now())
		if !ok {
			return m
		}
		m.ID, m.Attempt, m.FirstFailed, m.LastError = t.ID, t.Failures+1, t.FirstFailed, t.Error
		m.Exchange, m.RoutingKey = t.Exchange, t.RoutingKey
		if m.UserID == "" {
			m.UserID = t.UserID
		}
		m.Headers = headers.Clean(m.Headers)
	}
	return m
}

// clone copies headers, so that a handler's changes do not change the delivery.
func clone(t amqp.Table) amqp.Table {
	if t == nil {
		return nil
	}
	c := make(amqp.Table, len(t))
	for k, v := range t {
		c[k] = cloneValue(v)
	}
	return c
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		return clone(v)
	case []any:
		c := make([]any, len(v))
		for i := range v {
			c[i] = cloneValue(v[i])
		}
		return c
	case []byte:
		return bytes.Clone(v)
	}
	return v
}
