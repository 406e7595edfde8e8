package ttlqueue

import (
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/internal/wait"
)

// MessageTTL waits in one queue, each message with a time to live of its own.
// RabbitMQ expires messages at the head only, so one with a short delay stays
// until those before it are gone.
type MessageTTL struct {
	kind  Type
	mixed bool
}

// NewMessageTTL with mixed takes different delays, and what that means.
func NewMessageTTL(kind Type, mixed bool) *MessageTTL { return &MessageTTL{kind, mixed} }

// Limits implements wait.Way.
func (m *MessageTTL) Limits() wait.Limits {
	return wait.Limits{Name: "message-ttl", Longest: longest, Step: time.Millisecond, Blocks: !m.mixed, Survives: m.kind.survives(),
		Makes: "one queue and one exchange, for all work queues together"}
}

func (m *MessageTTL) queue() string { return m.kind.name("message-ttl") }

// Topology implements wait.Way.
func (m *MessageTTL) Topology(queue string) wait.Topology {
	return wait.Due(queue).With(m.kind.delayQueue(m.queue(), 0, nil))
}

// Hold implements wait.Way.
func (m *MessageTTL) Hold(queue string, delay time.Duration) (wait.Ticket, error) {
	delay = roundUp(delay, time.Millisecond)
	return wait.Ticket{Exchange: m.queue(), RoutingKey: queue, Delay: delay, Expiration: strconv.FormatInt(delay.Milliseconds(), 10)}, nil
}
