package model

import (
	"maps"
	"slices"
	"strings"
)

// exchange routes by its bindings, which are in the order in which they were made.
type exchange struct {
	name, kind                    string
	durable, autoDelete, internal bool
	arguments                     table
	bindings                      []*binding
}

// binding leads to a queue or to an exchange.
type binding struct {
	source    *exchange
	queue     *queue
	exchange  *exchange
	key       string
	arguments table
}

func (x *exchange) alternate() string {
	name, _ := x.arguments.get("alternate-exchange")
	text, _ := name.(string)
	return text
}

// route finds the queues of a message, each once.
func (b *Broker) route(from *exchange, m *message) (to []*queue) {
	visited := map[*exchange]bool{}
	var visit func(x *exchange)
	visit = func(x *exchange) {
		if x == nil || visited[x] {
			return
		}
		visited[x] = true
		if x.name == "" {
			if q := b.queues[m.key]; q != nil && !slices.Contains(to, q) {
				to = append(to, q)
			}
			return
		}
		routed := false
		for _, bound := range x.bindings {
			switch {
			case !bound.matches(m.key):
				continue
			case bound.exchange != nil:
				visit(bound.exchange)
			case !slices.Contains(to, bound.queue):
				to = append(to, bound.queue)
			}
			routed = true
		}
		if alternate := x.alternate(); !routed && alternate != "" {
			visit(b.exchanges[alternate])
		}
	}
	visit(from)
	return to
}

func (bound *binding) matches(key string) bool {
	switch bound.source.kind {
	case "fanout":
		return true
	case "topic":
		return topicMatches(words(bound.key), words(key))
	}
	return bound.key == key
}

func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

func topicMatches(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return topicMatches(pattern[1:], key) || len(key) > 0 && topicMatches(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && topicMatches(pattern[1:], key[1:])
}

// sorted are the keys of a map, which is walked in no other order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
