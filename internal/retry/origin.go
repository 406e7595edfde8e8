package retry

import (
	"fmt"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/wire"
)

// origin is where a message failed and what is known of its first publication.
type origin struct {
	queue  string
	reason string
	// proven: RabbitMQ itself wrote queue and reason, which makes the queue one of the retryTargets.
	proven bool
	// retried: Redrive published it last, or a consumer to the exchange that it came through.
	retried    bool
	exchange   string // as first published
	routingKey string
	refusal    string // not empty: no origin can be believed, and why
}

// originOf reads the origin from what a publisher cannot forge: the exchange that a message
// came through, and the head entry of x-death, which the broker writes itself on every version,
// unless a name stands there twice: RabbitMQ 3.10 writes to the first, and its client reads the
// last. x-first-death-* and x-last-death-* are never read: on RabbitMQ 3 a publisher can set
// them.
func originOf(d *wire.Delivery) origin {
	switch d.Message.Exchange {
	case wire.ExchangeDeadLetters:
		return deadLettered(d)
	case wire.ExchangeFailures:
		return reported(d)
	}
	return origin{refusal: fmt.Sprintf("it was published to the intake through exchange %q, not dead-lettered or reported", d.Message.Exchange)}
}

func deadLettered(d *wire.Delivery) origin {
	if d.DuplicateHeader != "" {
		return origin{refusal: d.DuplicateHeader + ", so the queue it failed in is not proven"}
	}
	deaths, _ := d.Message.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return origin{refusal: "its x-death header is missing or malformed, so the queue it failed in is unknown"}
	}
	head, _ := deaths[0].(amqp.Table)
	o := origin{proven: true}
	o.queue, _ = head["queue"].(string)
	o.reason, _ = head["reason"].(string)
	o.exchange, _ = head["exchange"].(string)
	if keys, _ := head["routing-keys"].([]any); len(keys) > 0 {
		o.routingKey, _ = keys[0].(string)
	}
	if o.queue == "" || o.reason == "" {
		return origin{refusal: "the head entry of its x-death header names no queue or no reason"}
	}
	// Of a retried message, whose x-death was removed, RabbitMQ names the retry exchange, or
	// the exchange where a wait in RabbitMQ ends. The exchange that it was first published to
	// is in our headers.
	o.retried = o.exchange == wire.RetryExchange(o.queue) || delay.EndsWait(o.exchange)
	return o.checked()
}

func reported(d *wire.Delivery) origin {
	return origin{queue: d.Message.RoutingKey, reason: wire.ReasonReported}.checked()
}

// firstPublished reads exchange and routing key from our own headers. They are
// shown and passed on, and never decide where a message goes.
func (o *origin) firstPublished(d *wire.Delivery) {
	if s, ok := d.Message.Headers[wire.HeaderExchange].(string); ok {
		o.exchange = s
	}
	if s, ok := d.Message.Headers[wire.HeaderRoutingKey].(string); ok {
		o.routingKey = s
	}
}

func (o origin) checked() origin {
	switch {
	case o.queue == "":
		o.refusal = "it was reported with an empty routing key, which must be the work queue's name"
	case len(o.queue) > 255:
		o.refusal = fmt.Sprintf("it names a queue of %d bytes, and RabbitMQ's have at most 255", len(o.queue))
		o.queue = ""
	case !utf8.ValidString(o.queue):
		// RabbitMQ takes any bytes as a routing key, but has no queue of such a name, and
		// ends the connection that asks for one (501).
		o.refusal = fmt.Sprintf("it names the queue %q, which is not valid UTF-8, so RabbitMQ has no such queue", o.queue)
		o.queue = ""
	case !utf8.ValidString(o.reason):
		o.refusal = fmt.Sprintf("its x-death header has the reason %q, which is not valid UTF-8 and no reason of RabbitMQ's", o.reason)
		o.reason = ""
	case wire.OwnQueue(o.queue):
		o.refusal = fmt.Sprintf("it failed in %q, which is one of Redrive's own queues", o.queue)
	}
	return o
}
