package flow

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// takenOff are headers that a returned message must not carry: the routing
// headers would copy it to other queues, the broker's own history would be
// believed or counted again, and ours are set anew.
var takenOff = map[string]bool{
	"CC": true, "BCC": true,
	"x-death": true, "x-delay": true, "x-delivery-count": true, "x-acquired-count": true,
	"x-first-death-exchange": true, "x-first-death-queue": true, "x-first-death-reason": true,
	"x-last-death-exchange": true, "x-last-death-queue": true, "x-last-death-reason": true,
	wire.HeaderID: true, wire.HeaderAttempt: true, wire.HeaderQueue: true,
	wire.HeaderExchange: true, wire.HeaderRoutingKey: true, wire.HeaderFirstFailed: true,
	wire.HeaderReason: true, wire.HeaderError: true, wire.HeaderUserID: true, wire.HeaderDelay: true,
}

// returnedMessage is the message as it goes back: what was published, with our
// headers in place of the broker's.
func returnedMessage(r *store.Record) *wire.Message {
	m := r.Message
	headers := make(amqp.Table, len(r.Message.Headers)+9)
	for k, v := range r.Message.Headers {
		if !takenOff[k] {
			headers[k] = v
		}
	}
	headers[wire.HeaderID] = r.ID.String()
	headers[wire.HeaderAttempt] = int64(r.Attempt)
	headers[wire.HeaderQueue] = r.Queue
	headers[wire.HeaderExchange] = m.Exchange
	headers[wire.HeaderRoutingKey] = m.RoutingKey
	headers[wire.HeaderFirstFailed] = r.FirstFailed
	headers[wire.HeaderReason] = r.Reason
	if r.Error != "" {
		headers[wire.HeaderError] = r.Error
	}
	if m.UserID != "" {
		headers[wire.HeaderUserID] = m.UserID
		m.UserID = "" // the broker refuses anybody else's
	}
	m.Headers = headers
	m.Expiration = "" // the broker takes it off a dead letter; a reported one still has it, and would expire again
	return &m
}
