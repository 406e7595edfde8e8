package headers

import (
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// removed are headers that a retried message must not carry: routing headers would copy it to
// other queues, the broker's own history would be believed or counted again, and ours are set
// again.
var removed = map[string]bool{
	"CC": true, "BCC": true,
	"x-death": true, "x-delay": true, "x-delivery-count": true, "x-acquired-count": true,
	"x-first-death-exchange": true, "x-first-death-queue": true, "x-first-death-reason": true,
	"x-last-death-exchange": true, "x-last-death-queue": true, "x-last-death-reason": true,
	wire.HeaderID: true, wire.HeaderAttempt: true, wire.HeaderQueue: true,
	wire.HeaderExchange: true, wire.HeaderRoutingKey: true, wire.HeaderFirstFailed: true,
	wire.HeaderReason: true, wire.HeaderError: true, wire.HeaderUserID: true, wire.HeaderDelay: true, wire.HeaderPark: true, wire.HeaderParkReason: true,
	wire.AnnotationError: true, wire.AnnotationDelay: true, wire.AnnotationPark: true,
}

// History is what a message carries to its next attempt.
type History struct {
	ID          string // stable over all attempts
	Failures    int    // failures so far
	Queue       string // the work queue
	FirstFailed time.Time
	Reason      string
	Error       string // "" when it is not known

	// Read fills these too; ApplyTo takes them from the message.
	Exchange, RoutingKey, UserID string
}

// ApplyTo returns the message as it is published for its next attempt: as first published, with
// our headers in place of the broker's. m.Exchange and m.RoutingKey are those of its first
// publication.
func (h History) ApplyTo(m wire.Message) *wire.Message {
	headers := Clean(m.Headers)
	headers[wire.HeaderID] = h.ID
	headers[wire.HeaderAttempt] = int64(h.Failures)
	headers[wire.HeaderQueue] = h.Queue
	headers[wire.HeaderExchange] = m.Exchange
	headers[wire.HeaderRoutingKey] = m.RoutingKey
	headers[wire.HeaderFirstFailed] = h.FirstFailed
	headers[wire.HeaderReason] = h.Reason
	if h.Error != "" {
		headers[wire.HeaderError] = h.Error
	}
	if m.UserID != "" {
		headers[wire.HeaderUserID] = m.UserID
		m.UserID = "" // the broker refuses another user's
	}
	m.Headers = headers
	m.Expiration = "" // the broker removes it from a dead letter; a reported one still has it, and would expire again
	return &m
}
