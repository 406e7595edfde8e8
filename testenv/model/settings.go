package model

import (
	"fmt"
	"slices"
	"strings"
)

const (
	longestTTL = 315_360_000_000 // ms

	defaultDeliveryLimit = 20 // of quorum queues since RabbitMQ 4.0
)

// settings are what a queue's arguments and its policy say together.
type settings struct {
	ttl, expires  int64 // ms; -1 without
	maxLength     int64 // -1 without
	limited       bool  // by deliveryLimit
	deliveryLimit int64
	rejects       bool // overflow: reject-publish
	atLeastOnce   bool // dead-lettering, by a quorum queue that rejects
	deadExchange  string
	deadKey       string
	hasDead       bool
	hasDK         bool
	retry         delayedRetry

	consumerTimeout int64 // ms; -1 without
}

// The arguments that each type of queue has, in the order in which they are compared.
var (
	classicArguments = []string{"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
		"x-max-length", "x-overflow", "x-queue-type"}
	quorumArguments = []string{"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires",
		"x-max-length", "x-overflow", "x-queue-type", "x-delivery-limit", "x-message-ttl",
		"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", "x-consumer-timeout"}
	// checked is the order in which values are checked.
	checked = []string{"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
		"x-dead-letter-strategy", "x-max-length", "x-overflow", "x-delivery-limit",
		"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", "x-consumer-timeout"}
)

func (q *queue) argumentNames() []string {
	if q.quorum {
		return quorumArguments
	}
	return classicArguments
}

// configure reads the arguments of a new queue.
func (q *queue) configure() *fault {
	kind, isText := "classic", true
	if value, is := q.arguments.get("x-queue-type"); is {
		kind, isText = value.(string)
	} else if q.b.since4() {
		q.arguments = q.arguments.with("x-queue-type", kind)
	}
	if kind != "classic" && kind != "quorum" || !isText {
		return unknown("queue type %s", kind)
	}
	q.quorum = kind == "quorum"
	if f := q.knows(q.arguments); f != nil {
		return f
	}
	for _, key := range checked {
		if value, is := q.arguments.get(key); is {
			if f := q.check(key, value); f != nil {
				return f
			}
		}
	}
	for _, a := range q.arguments {
		if !slices.Contains(q.argumentNames(), a.key) && !q.ignores(a.key) {
			return faultf(406, "invalid arg '%s' for %s of queue type rabbit_%s_queue", a.key, q.b.in("queue", q.name), kind)
		}
	}
	if q.quorum {
		if f := q.declareQuorum(); f != nil {
			return f
		}
	}
	if !q.durable && q.exclusive == nil {
		return unknown("queue that is neither durable nor exclusive")
	}
	if _, several := q.matching(); several {
		return unknown("second policy of the same priority for queue %q", q.name)
	}
	q.applySettings()
	return nil
}

// knows refuses arguments that the model does not have.
func (q *queue) knows(arguments table) *fault {
	for _, a := range arguments {
		if !slices.Contains(classicArguments, a.key) && !slices.Contains(quorumArguments, a.key) && !q.ignores(a.key) {
			return unknown("argument %s for a queue", a.key)
		}
	}
	return nil
}

// ignores tells whether an argument is of a later version.
func (q *queue) ignores(key string) bool {
	return !q.b.since4() && (key == "x-consumer-timeout" || strings.HasPrefix(key, "x-delayed-retry-"))
}

func (q *queue) check(key string, value any) *fault {
	wrong := func(why string) *fault {
		return faultf(406, "invalid arg '%s' for %s: %s", key, q.b.in("queue", q.name), why)
	}
	text, isText := value.(string)
	switch key {
	case "x-delayed-retry-min", "x-delayed-retry-max", "x-consumer-timeout":
		if n, is := whole(value); !is || n <= 0 { // RabbitMQ does not look at it
			return unknown("%s = %v", key, value)
		}
		return nil
	case "x-message-ttl", "x-max-length", "x-expires", "x-delivery-limit":
		switch n, is := whole(value); {
		case !is && key == "x-delivery-limit": // RabbitMQ does not look at it
			return unknown("%s of type %s", key, typeName(value))
		case !is:
			return wrong(fmt.Sprintf("\"expected integer, got %s\"", typeName(value)))
		case key == "x-delivery-limit":
		case n == 0 && key == "x-expires":
			return wrong("{value_zero,0}")
		case n < 0:
			return wrong(fmt.Sprintf("{value_negative,%d}", n))
		case n > longestTTL && key != "x-max-length":
			return wrong(fmt.Sprintf("{value_too_large,%d}", n))
		}
		return nil
	}
	if !isText {
		return unknown("%s of type %s", key, typeName(value))
	}
	switch key {
	case "x-dead-letter-routing-key":
		if _, is := q.arguments.get("x-dead-letter-exchange"); !is {
			return wrong("routing_key_but_no_dlx_defined")
		}
	case "x-dead-letter-strategy":
		if text != "at-most-once" && text != "at-least-once" {
			return wrong("invalid_dlx_strategy")
		}
	case "x-delayed-retry-type":
		if !slices.Contains([]string{"disabled", "all", "failed", "returned"}, text) {
			return unknown("%s %s", key, text)
		}
	case "x-overflow":
		switch text {
		case "drop-head", "reject-publish":
		case "reject-publish-dlx":
			return unknown("overflow %s", text)
		default:
			return wrong("invalid_overflow")
		}
	}
	return nil
}

// applySettings reads what holds now.
func (q *queue) applySettings() {
	q.policy, _ = q.matching()
	s := settings{ttl: q.least("message-ttl"), expires: q.least("expires"), maxLength: q.least("max-length"),
		consumerTimeout: q.least("consumer-timeout")}
	s.deliveryLimit, s.limited = q.limitOf()
	overflow, _ := q.text("overflow")
	s.rejects = overflow == "reject-publish"
	s.deadExchange, s.hasDead = q.text("dead-letter-exchange")
	s.deadKey, s.hasDK = q.text("dead-letter-routing-key")
	strategy, _ := q.text("dead-letter-strategy")
	s.atLeastOnce = q.quorum && s.hasDead && s.rejects && strategy == "at-least-once"
	s.retry = q.readDelayedRetry()
	q.settings = s
	switch {
	case s.atLeastOnce && q.worker == nil:
		q.worker = &worker{q: q}
	case s.atLeastOnce:
		q.worker.redeliver()
	case q.worker != nil: // what it has is deleted
		q.worker.stop()
		q.worker = nil
	}
}
