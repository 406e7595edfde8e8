package model

import (
	"fmt"
	"slices"
)

const (
	longestTTL           = 315_360_000_000 // ms
	defaultDeliveryLimit = 20              // of quorum queues since RabbitMQ 4.0
)

// settings are what a queue's arguments say.
type settings struct {
	ttl, expires  int64 // ms; -1 without
	limited       bool  // by deliveryLimit
	deliveryLimit int64
	deadExchange  string
	deadKey       string
	hasDead       bool
	hasDK         bool
}

// The arguments that each type of queue has, in the order in which they are compared.
var (
	classicArguments = []string{"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
		"x-overflow", "x-queue-type"}
	quorumArguments = []string{"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires",
		"x-overflow", "x-queue-type", "x-delivery-limit", "x-message-ttl"}
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
	for _, a := range q.arguments {
		if f := q.check(a.key, a.value); f != nil {
			return f
		}
	}
	if q.quorum {
		if f := q.declareQuorum(); f != nil {
			return f
		}
	}
	if !q.durable {
		return unknown("queue that is not durable")
	}
	q.readSettings()
	return nil
}

func (q *queue) check(key string, value any) *fault {
	wrong := func(why string) *fault {
		return faultf(406, "invalid arg '%s' for %s: %s", key, q.b.in("queue", q.name), why)
	}
	if !slices.Contains(q.argumentNames(), key) {
		return unknown("argument %s for this type of queue", key)
	}
	text, isText := value.(string)
	n, isNumber := whole(value)
	switch key {
	case "x-message-ttl", "x-expires", "x-delivery-limit":
		switch {
		case !isNumber:
			return unknown("%s = %v", key, value)
		case n == 0 && key == "x-expires":
			return wrong("{value_zero,0}")
		case n < 0 && key != "x-delivery-limit":
			return wrong(fmt.Sprintf("{value_negative,%d}", n))
		case n > longestTTL && key != "x-delivery-limit":
			return wrong(fmt.Sprintf("{value_too_large,%d}", n))
		}
		return nil
	case "x-dead-letter-strategy", "x-overflow":
		if !slices.Contains([]string{"at-most-once", "at-least-once", "drop-head", "reject-publish"}, text) {
			return unknown("%s = %v", key, value)
		}
	}
	if !isText {
		return unknown("%s = %v", key, value)
	}
	return nil
}

// readSettings reads what holds.
func (q *queue) readSettings() {
	number := func(name string) int64 {
		value, _ := q.arguments.get(name)
		if n, is := whole(value); is {
			return n
		}
		return -1
	}
	text := func(name string) (string, bool) {
		value, _ := q.arguments.get(name)
		text, is := value.(string)
		return text, is
	}
	s := settings{ttl: number("x-message-ttl"), expires: number("x-expires"), deliveryLimit: number("x-delivery-limit")}
	_, has := q.arguments.get("x-delivery-limit")
	if !has && q.b.since4() {
		s.deliveryLimit = defaultDeliveryLimit
	}
	s.limited = q.quorum && (s.deliveryLimit >= 0 || has && !q.b.since4())
	s.deadExchange, s.hasDead = text("x-dead-letter-exchange")
	s.deadKey, s.hasDK = text("x-dead-letter-routing-key")
	overflow, _ := text("x-overflow")
	if strategy, _ := text("x-dead-letter-strategy"); q.quorum && s.hasDead && overflow == "reject-publish" && strategy == "at-least-once" {
		q.worker = &worker{q: q}
	}
	q.settings = s
}
