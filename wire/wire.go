// Package wire has what Redrive's service, its Go library and other programs must agree on: a
// message, as it is delivered and as it is published, the names of exchanges and queues, the
// headers that Redrive adds, and the errors of publishing, declaring and connecting.
package wire

import (
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is one AMQP 0-9-1 message with everything a publisher can set, and where it was published. Headers hold the
// Go types of amqp091-go: nil, bool, the sized integers and floats, amqp.Decimal, string, []byte, time.Time (whole
// seconds), []any and amqp.Table, nested.
//
// AMQP cannot tell an empty string property from an absent one through amqp091-go, nor priority 0, delivery mode 0 or
// the timestamp 0 from an absent one: those come back absent.
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

// Delivery is one failed message as RabbitMQ delivered it to Redrive, from redrive.intake or redrive.parked.
type Delivery struct {
	Message     Message // its Exchange is the one that it came through
	Redelivered bool    // RabbitMQ delivered it before and got no acknowledgement

	// The AMQP client cannot read every header that RabbitMQ can deliver. These say what was
	// done about that; "" where nothing was.

	Note            string // a header was changed; the message can still be retried
	CannotRepublish string // why it cannot be retried unchanged, so it is parked
	DuplicateHeader string // why its x-death proves no queue: a name is in the headers twice, or they are malformed
}

// Outgoing is one message to publish. It is published persistent and with confirms; what came of it is nil once
// RabbitMQ has confirmed and routed it, or else one of this package's errors, wrapped: ErrUnroutable, ErrNacked,
// ErrUnacceptable, ErrForbidden or ErrNoAnswer. Only ErrNoAnswer leaves open whether the message arrived.
type Outgoing struct {
	Exchange, RoutingKey string
	// ID is the message's HeaderID, by which RabbitMQ's basic.return of an unroutable message
	// is distinguished from others. It must stand in the headers as well.
	ID string
	// Message has the properties and the body. Its own Exchange, RoutingKey and DeliveryMode are not used.
	Message *Message
	// Unchecked publishes without the mandatory flag: a message without a bound queue is confirmed and lost, and its
	// result is never ErrUnroutable. It is for exchanges of the delayed-message plugin, which keep messages themselves.
	Unchecked bool
}

// Results of publishing a message that RabbitMQ has not confirmed, or has returned. Test for them with errors.Is.
var (
	// ErrUnroutable: the broker received the message and had no queue for it.
	ErrUnroutable = errors.New("no queue is bound there")
	// ErrNacked: the broker refused the message (a full queue that rejects
	// publishes, or an error in a queue). It may take it later.
	ErrNacked = errors.New("the broker refused the message")
	// ErrUnacceptable: the message will never be accepted: its properties do not fit one frame,
	// its body exceeds the broker's limit, or a header has a type that the client cannot send.
	ErrUnacceptable = errors.New("the broker or its client never takes such a message")
	// ErrNoAnswer: there is no answer, since the connection or the context ended first. The
	// message may have arrived or not. Lookups and declarations have this error too.
	ErrNoAnswer = errors.New("the broker has not answered")
	// ErrForbidden: the broker user lacks a permission, or its password is wrong. Declaring and
	// connecting have this error too.
	ErrForbidden = errors.New("permission denied by the broker")
)

// Why the broker cannot be connected to, or something cannot be declared there.
var (
	// ErrQueueGone: the work queue does not exist.
	ErrQueueGone = errors.New("the queue does not exist")
	// ErrExclusive: the queue is another connection's alone, and no other may bind it.
	ErrExclusive = errors.New("the queue is exclusive to another connection")
	// ErrDiffers: an exchange or queue of that name exists with other settings.
	ErrDiffers = errors.New("it exists with other settings")
	// ErrNoType: the broker has no exchange of that type.
	ErrNoType = errors.New("the broker has no such type of exchange: its plugin is missing or not enabled")
	// ErrTLS: TLS with the broker fails: one side refuses the other's certificate, or a file of ours cannot be used.
	ErrTLS = errors.New("TLS")
	// ErrNoVHost: the virtual host of the broker's URL does not exist.
	ErrNoVHost = errors.New("the virtual host does not exist")
)
