package management

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// Routes are where messages go in a virtual host, as far as RabbitMQ shows it.
type Routes struct {
	Queues   map[string]*QueueState
	Bindings map[string][]Binding // by source
	types    map[string]string    // by exchange
	other    map[string]string    // alternate exchanges
	keys     map[string][]string  // routing keys of a queue's messages, as far as known
}

// NewRoutes makes the routes of a virtual host, of which all is given.
func NewRoutes(queues []QueueState, bindings []Binding, exchanges []Exchange, policies []Policy) *Routes {
	r := &Routes{Queues: map[string]*QueueState{}, Bindings: map[string][]Binding{}, types: map[string]string{},
		other: map[string]string{}, keys: map[string][]string{}}
	for i := range queues {
		r.Queues[queues[i].Name] = &queues[i]
		r.keys[queues[i].Name] = []string{queues[i].Name}
	}
	for _, b := range bindings {
		if b.Source == "" {
			continue // the default exchange: each queue by its name
		}
		r.Bindings[b.Source] = append(r.Bindings[b.Source], b)
		if b.DestinationType == "queue" {
			r.add(b.Destination, b.RoutingKey)
		}
	}
	for _, e := range exchanges {
		r.types[e.Name] = e.Type
		if p := PolicyNamed(policies, e.Policy); p != nil {
			r.other[e.Name], _ = p.Definition["alternate-exchange"].(string)
		}
		if to, ok := e.Arguments["alternate-exchange"].(string); ok {
			r.other[e.Name] = to
		}
	}
	for again := true; again; { // keys travel with dead letters
		again = false
		for name := range r.Queues {
			to, _, keys := r.DeadLetters(name)
			for t := range to {
				again = r.add(t, keys...) || again
			}
		}
	}
	return r
}

// maxKeys is how many keys of a queue are distinguished; one with more may have any.
const maxKeys = 100

func (r *Routes) add(queue string, keys ...string) (added bool) {
	for _, k := range keys {
		switch {
		case slices.Contains(r.keys[queue], anyKey):
			return added
		case k == anyKey || len(r.keys[queue]) >= maxKeys:
			r.keys[queue], added = []string{anyKey}, true
			return added
		}
		if !slices.Contains(r.keys[queue], k) {
			r.keys[queue], added = append(r.keys[queue], k), true
		}
	}
	return added
}

// DeadLetters returns the queues and exchanges that a queue's dead letters reach, and their keys.
func (r *Routes) DeadLetters(queue string) (to, through map[string]bool, keys []string) {
	to, through = map[string]bool{}, map[string]bool{}
	exchange, ok := r.Queues[queue].Setting("dead-letter-exchange").(string)
	if !ok {
		return to, through, nil
	}
	keys = r.keys[queue]
	if key, ok := r.Queues[queue].Setting("dead-letter-routing-key").(string); ok {
		keys = []string{key}
	}
	r.follow(exchange, keys, to, through, map[string]bool{})
	return to, through, keys
}

// Leads returns for each queue the others that dead-letter to it, sorted, without Redrive's own, which lead back.
func (r *Routes) Leads() map[string][]string {
	leads := map[string][]string{}
	for _, from := range slices.Sorted(maps.Keys(r.Queues)) {
		to, _, _ := r.DeadLetters(from)
		for queue := range to {
			if queue != from && !wire.OwnQueue(from) {
				leads[queue] = append(leads[queue], from)
			}
		}
	}
	return leads
}

// Suspect says why a queue looks like one of dead letters, "" if it does not, and of which work queues. leads is what
// Leads has of it.
func (r *Routes) Suspect(queue string, leads []string) (why string, of []string) {
	if len(leads) > 0 {
		if r.Queues[queue].Setting("dead-letter-exchange") != nil {
			return "", leads // a queue to wait in, or a work queue
		}
		return "other queues dead-letter to it", leads
	}
	work, is := NamedLikeDeadLetters(queue)
	switch {
	case r.Queues[work] != nil:
		return fmt.Sprintf("its name is that of the dead-letter queue of %s", work), []string{work}
	case is:
		return "its name is that of a dead-letter queue", nil
	}
	return "", nil
}

// NamedLikeDeadLetters reports whether frameworks give dead-letter queues such a name (MassTransit _error and _skipped,
// Spring Cloud Stream .dlq, Wolverine, EasyNetQ, NServiceBus and Rebus error). of is the work queue in the name, or "".
func NamedLikeDeadLetters(queue string) (of string, is bool) {
	name := strings.ToLower(queue)
	for _, end := range []string{"_error", "_skipped", ".dlq", "-dlq", "_dlq", "-dead-letter", ".dead-letter"} {
		if strings.HasSuffix(name, end) {
			return queue[:len(queue)-len(end)], true
		}
	}
	whole := []string{"error", "errors", "dlq", "wolverine-dead-letter-queue", "easynetq_default_error_queue"}
	return "", slices.Contains(whole, name)
}

// follow adds where messages with these keys go. seen ends circles of exchanges.
func (r *Routes) follow(exchange string, keys []string, to, through, seen map[string]bool) {
	if exchange == "" {
		for _, k := range keys {
			if r.Queues[k] != nil {
				to[k] = true
			}
		}
		return
	}
	at := exchange + "\x00" + strings.Join(keys, "\x00")
	if seen[at] {
		return
	}
	seen[at], through[exchange] = true, true
	kind, routed := r.types[exchange], map[string]bool{}
	for _, b := range r.Bindings[exchange] {
		taken := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !matches(kind, b.RoutingKey, k) })
		for _, k := range taken {
			routed[k] = slices.Contains([]string{"direct", "fanout", "topic"}, kind) && !wild(k)
		}
		switch {
		case len(taken) == 0:
		case b.DestinationType == "queue":
			to[b.Destination] = true
		default:
			r.follow(b.Destination, taken, to, through, seen)
		}
	}
	unrouted := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return routed[k] })
	if other := r.other[exchange]; other != "" && len(unrouted) > 0 {
		r.follow(other, unrouted, to, through, seen)
	}
}

// anyKey stands for any key.
const anyKey = "#"

// wild reports whether a key is a pattern, of a topic binding: it stands for any that matches.
func wild(key string) bool { return strings.ContainsAny(key, "*#") }

// matches reports whether a message with that key may take a binding.
func matches(kind, bound, key string) bool {
	switch kind {
	case "direct":
		return bound == key || key == anyKey
	case "topic":
		return wild(key) || matchesTopic(strings.Split(bound, "."), strings.Split(key, "."))
	}
	return true
}

func matchesTopic(pattern, key []string) bool {
	matched := make([]bool, len(key)+1) // what of the key the pattern matches so far, by its length
	matched[0] = true
	for _, word := range pattern {
		next := make([]bool, len(key)+1)
		for n := range next {
			switch {
			case word == "#":
				next[n] = matched[n] || n > 0 && next[n-1]
			case n > 0:
				next[n] = matched[n-1] && (word == "*" || word == key[n-1])
			}
		}
		matched = next
	}
	return matched[len(key)]
}
