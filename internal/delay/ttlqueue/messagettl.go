package ttlqueue

import (
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// MessageTTL waits in one queue for each work queue, each message with a time to live of its own.
// RabbitMQ expires messages at the head only, so one with a short delay stays until those of the
// same work queue before it have expired.
type MessageTTL struct {
	kind  Type
	mixed bool
}

// NewMessageTTL with mixed accepts different delays, and that a short one waits behind a long one.
func NewMessageTTL(kind Type, mixed bool) *MessageTTL { return &MessageTTL{kind, mixed} }

// Limits implements delay.Way.
func (m *MessageTTL) Limits() delay.Limits {
	return delay.Limits{Name: "message-ttl", Longest: longest, Step: time.Millisecond, Blocks: true, AcceptsBlocking: m.mixed, DropsWhenFull: m.kind == Classic, ChangesRoutingKey: true, Survives: m.kind.survives(),
		Declares: "one queue and one exchange for each work queue"}
}

// queue is the name of a work queue's delay queue.
func (m *MessageTTL) queue(work string) string {
	prefix := wire.DelayPrefix + "message-ttl." + string(m.kind) + "."
	return prefix + delay.NameIn(work, 255-len(prefix))
}

// Topology implements delay.Way.
func (m *MessageTTL) Topology(queue string) delay.Topology {
	args := amqp.Table{"x-queue-type": string(m.kind), "x-dead-letter-exchange": wire.ExchangeDue}
	if m.kind == Quorum {
		// Straight to redrive.due: the queue is of one work queue, whose trouble is its own.
		args = delay.AtLeastOnce(wire.ExchangeDue, 0)
		delete(args, "x-message-ttl")
	}
	return delay.Due(queue).With(queueBehind(m.queue(queue), args))
}

// Ticket implements delay.Way.
func (m *MessageTTL) Ticket(queue string, wait time.Duration) (delay.Ticket, error) {
	if wait > longest {
		return delay.Ticket{}, fmt.Errorf("a delay of %s is longer than RabbitMQ's longest time to live, ten years", policy.FormatDuration(wait))
	}
	wait = roundUp(wait, time.Millisecond)
	return delay.Ticket{Exchange: m.queue(queue), RoutingKey: queue, Delay: wait, Expiration: strconv.FormatInt(wait.Milliseconds(), 10)}, nil
}
