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
			for _, key := range m.keys() {
				if q := b.queues[key]; q != nil && !slices.Contains(to, q) {
					to = append(to, q)
				}
			}
			return
		}
		routed := false
		for _, bound := range x.bindings {
			switch {
			case !slices.ContainsFunc(m.keys(), func(key string) bool { return b.matches(bound, key, m.content.headers) }):
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

func (m *message) keys() []string { return append([]string{m.key}, m.copies...) }

func (b *Broker) matches(bound *binding, key string, headers table) bool {
	switch bound.source.kind {
	case "fanout":
		return true
	case "topic":
		return topicMatches(words(bound.key), words(key))
	case "headers":
		return headersMatch(bound.arguments, headers)
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

func headersMatch(pattern, headers table) bool {
	mode, _ := pattern.get("x-match")
	how, _ := mode.(string)
	anyOf := strings.HasPrefix(how, "any")
	for _, p := range pattern {
		if p.key == "x-match" || strings.HasPrefix(p.key, "x-") && !strings.HasSuffix(how, "-with-x") {
			continue
		}
		value, is := headers.get(p.key)
		switch is = is && (p.value == nil || p.value == value); {
		case is && anyOf:
			return true
		case !is && !anyOf:
			return false
		}
	}
	return !anyOf
}

// checkMatch checks the arguments of a binding of a headers exchange. Values that cannot be
// compared are refused.
func checkMatch(arguments table) *fault {
	for _, a := range arguments {
		switch v := a.value.(type) {
		case bool, string, int64, int32, nil:
		default:
			return unknown("%s as argument of a binding", typeName(v))
		}
	}
	mode, is := arguments.get("x-match")
	if !is {
		return nil
	}
	how, text := mode.(string)
	switch {
	case !text:
		return unknown("x-match of type %s", typeName(mode))
	case slices.Contains([]string{"all", "any", "all-with-x", "any-with-x"}, how):
		return nil
	}
	return faultf(406, "Invalid x-match field value <<\"%s\">>; expected all, any, all-with-x, or any-with-x", how)
}

// sorted are the keys of a map, which is walked in no other order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
