package broker

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// RabbitMQ quotes names in its texts, and clients choose names. [texts of 3.10.8 and 4.3.6]
func TestAMissingExchangeIsNoMissingQueue(t *testing.T) {
	for _, c := range []struct {
		text string
		gone bool
	}{
		{"NOT_FOUND - no queue 'q' in vhost '/'", true},
		{"NOT_FOUND - no queue 'no exchange' in vhost '/'", true},
		{"NOT_FOUND - no exchange 'redrive.retry.q' in vhost '/'", false},
		{"NOT_FOUND - no exchange 'redrive.retry.a no queue b' in vhost '/'", false},
		{"NOT_FOUND - no exchange 'NOT_FOUND - no queue 'q' in vhost '/'", false},
	} {
		err := explain(&amqp.Error{Code: amqp.NotFound, Reason: c.text, Server: true})
		if gone := errors.Is(err, wire.ErrQueueGone); gone != c.gone || gone == errors.Is(err, wire.ErrUnroutable) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}
