package model

import (
	"fmt"
	"slices"
)

const longestTTL = 315_360_000_000 // ms

// configure reads a queue's arguments.
func (q *queue) configure() *fault {
	for _, a := range q.arguments {
		if !slices.Contains(queueArguments, a.key) {
			return unknown("argument %s for a queue", a.key)
		}
	}
	for _, key := range queueArguments {
		if value, is := q.arguments.get(key); is {
			if f := q.set(key, value); f != nil {
				return f
			}
		}
	}
	return nil
}

func (q *queue) set(key string, value any) *fault {
	wrong := func(why string) *fault {
		return faultf(406, "invalid arg '%s' for %s: %s", key, q.b.in("queue", q.name), why)
	}
	text, isText := value.(string)
	switch key {
	case "x-message-ttl", "x-max-length":
		n, is := whole(value)
		switch {
		case !is:
			return wrong(fmt.Sprintf("\"expected integer, got %s\"", typeName(value)))
		case n < 0:
			return wrong(fmt.Sprintf("{value_negative,%d}", n))
		case key == "x-max-length":
			q.maxLength = n
		case n > longestTTL:
			return wrong(fmt.Sprintf("{value_too_large,%d}", n))
		default:
			q.ttl = n
		}
		return nil
	}
	if !isText {
		return unknown("%s of type %s", key, typeName(value))
	}
	switch key {
	case "x-dead-letter-exchange":
		q.deadExchange, q.hasDead = text, true
	case "x-dead-letter-routing-key":
		if !q.hasDead {
			return wrong("routing_key_but_no_dlx_defined")
		}
		q.deadKey, q.hasDK = text, true
	case "x-overflow":
		if text == "reject-publish-dlx" {
			return unknown("overflow %s", text)
		}
		if text != "drop-head" && text != "reject-publish" {
			return wrong("invalid_overflow")
		}
		q.rejects = text == "reject-publish"
	case "x-queue-type":
		if text != "classic" {
			return unknown("queue type %s", text)
		}
	}
	return nil
}
