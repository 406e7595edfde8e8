package wire

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is one AMQP 0-9-1 message with everything a publisher can set, and
// where it was published. Headers hold the Go types of amqp091-go: nil, bool,
// the sized integers and floats, amqp.Decimal, string, []byte, time.Time (whole
// seconds), []any and amqp.Table, nested.
//
// AMQP cannot tell an empty string property from an absent one through
// amqp091-go, nor priority 0, delivery mode 0 or the timestamp 0 from an absent
// one: those come back absent.
type Message struct {
	Exchange   string
	RoutingKey string

	Headers         amqp.Table
	ContentType     string
	ContentEncoding string
	DeliveryMode    uint8 // 0 absent, 1 transient, 2 persistent
	Priority        uint8 // 0 absent
	CorrelationID   string
	ReplyTo         string
	Expiration      string // milliseconds, as a decimal string
	MessageID       string
	Timestamp       time.Time // zero: absent; whole seconds on the wire
	Type            string
	UserID          string
	AppID           string

	Body []byte
}

// Delivery is one failed message as RabbitMQ delivered it to Redrive, from redrive.intake or
// redrive.parked.
type Delivery struct {
	Message     Message // its Exchange is the one that it came through
	Redelivered bool    // RabbitMQ delivered it before and got no acknowledgement

	// The AMQP client cannot read every header that RabbitMQ can deliver. These say what was
	// done about that; "" where nothing was.

	Note            string // a header was changed; the message can still be retried
	CannotRepublish string // why it cannot be retried unchanged, so it is parked
	DuplicateHeader string // why its x-death proves no queue: a name is in the headers twice, or they are malformed
}

// Outgoing is one message to publish. It is published persistent and with confirms; what
// came of it is nil once RabbitMQ has confirmed and routed it, or else one of this
// package's errors, wrapped: ErrUnroutable, ErrNacked, ErrUnacceptable, ErrForbidden or
// ErrNoAnswer. Only ErrNoAnswer leaves open whether the message arrived.
type Outgoing struct {
	Exchange, RoutingKey string
	// ID is the message's HeaderID, by which RabbitMQ's basic.return of an unroutable message
	// is distinguished from others. It must stand in the headers as well.
	ID string
	// Message has the properties and the body. Its own Exchange, RoutingKey and DeliveryMode
	// are not used.
	Message *Message
	// Unchecked publishes without the mandatory flag: a message without a bound queue is
	// confirmed and lost, and its result is never ErrUnroutable. It is for exchanges of the
	// delayed-message plugin, which keep messages themselves.
	Unchecked bool
}
