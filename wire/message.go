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
