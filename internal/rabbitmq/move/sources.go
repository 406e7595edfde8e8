package move

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// A hand-made retry queue dead-letters to the old queue by its name, through the default exchange.
// No binding shows that, so none can be moved, and RabbitMQ drops what expires after the old queue
// is deleted. So the move waits until such queues are empty, and stops while anything but the old
// queue feeds them.

// Source is a queue whose dead letters reach the old queue by its name, directly or through others.
type Source struct {
	Queue    string
	Messages int
	// TTL is the queue's; 0: it has none.
	TTL time.Duration
	// FedBy is what feeds it besides the old queue, in words.
	FedBy []string

	grew time.Time // when Messages last grew
}

func (q *Source) String() string {
	text := fmt.Sprintf("queue %q, %d messages", q.Queue, q.Messages)
	switch {
	case q.Messages == 0:
	case q.TTL > 0:
		text += ", the last expires by " + q.grew.Add(q.TTL).Format(time.TimeOnly)
	default:
		text += ", which expire as each says, if at all"
	}
	if len(q.FedBy) > 0 {
		text += "; fed by " + strings.Join(q.FedBy, ", ")
	}
	return text
}

// lookAtSources finds the sources. Their counts are RabbitMQ's statistics, some seconds old.
func (m *Move) lookAtSources(ctx context.Context) ([]*Source, error) {
	queues, err := m.API.QueueStates(ctx)
	if err != nil {
		return nil, err
	}
	bindings, err := m.API.Bindings(ctx)
	if err != nil {
		return nil, err
	}
	exchanges, err := m.API.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := m.API.Policies(ctx)
	if err != nil {
		return nil, err
	}
	r := newRoutes(queues, bindings, exchanges, policies)
	sources, seen := r.sourcesOf(m.From), map[string]*Source{}
	for _, q := range sources {
		q.grew = time.Now()
		if was := m.sources[q.Queue]; was != nil && was.Messages >= q.Messages {
			q.grew = was.grew
		}
		seen[q.Queue] = q
	}
	m.sources = seen
	return sources, nil
}

// exhausted reports whether all sources are empty. While anything else feeds one it returns
// ErrConsumers.
func (m *Move) exhausted(ctx context.Context, c *broker.Mover) (bool, error) {
	sources, err := m.lookAtSources(ctx)
	if err != nil {
		return false, err
	}
	var waits, fed []string
	for _, q := range sources {
		ready, consumers, err := c.Depth(q.Queue) // statistics may be older, or switched off
		if err != nil {
			return false, err
		}
		q.Messages = max(q.Messages, ready)
		if by := "publishers, as it has consumers"; consumers > 0 && !slices.Contains(q.FedBy, by) {
			q.FedBy = append(q.FedBy, by)
		}
		switch {
		case len(q.FedBy) > 0:
			fed = append(fed, "    "+q.String())
		case q.Messages > 0:
			waits = append(waits, "    "+q.String())
		}
	}
	if len(fed) > 0 {
		return false, fmt.Errorf("queue %q stays: these dead-letter to it by its name, and RabbitMQ would drop "+
			"their messages without it:\n%s\npoint them elsewhere, or stop what feeds them; %w", m.From, strings.Join(fed, "\n"), ErrConsumers)
	}
	if text := strings.Join(waits, "\n"); len(waits) > 0 && text != m.said {
		m.said = text
		m.Report(fmt.Sprintf("waits for what dead-letters to queue %q by its name:\n%s", m.From, text))
	}
	return len(waits) == 0, nil
}

func writeSources(w io.Writer, from string, sources []*Source) {
	if len(sources) == 0 {
		return
	}
	fmt.Fprintf(w, "- waits until nothing is left in the queues that dead-letter to %q by its name; delete them then:\n", from)
	for _, q := range sources {
		fmt.Fprintf(w, "    %s\n", q)
	}
}

// routes are where messages go in a virtual host, as far as RabbitMQ shows it.
type routes struct {
	queues   map[string]*management.QueueState
	bindings map[string][]management.Binding // by source
	types    map[string]string               // by exchange
	other    map[string]string               // alternate exchanges
	keys     map[string][]string             // routing keys of a queue's messages, as far as known
}

func newRoutes(queues []management.QueueState, bindings []management.Binding, exchanges []management.Exchange, policies []management.Policy) *routes {
	r := &routes{queues: map[string]*management.QueueState{}, bindings: map[string][]management.Binding{}, types: map[string]string{},
		other: map[string]string{}, keys: map[string][]string{}}
	for i := range queues {
		r.queues[queues[i].Name] = &queues[i]
		r.keys[queues[i].Name] = []string{queues[i].Name}
	}
	for _, b := range bindings {
		if b.Source == "" {
			continue // the default exchange: each queue by its name
		}
		r.bindings[b.Source] = append(r.bindings[b.Source], b)
		if b.DestinationType == "queue" {
			r.add(b.Destination, b.RoutingKey)
		}
	}
	for _, e := range exchanges {
		r.types[e.Name] = e.Type
		if p := management.PolicyNamed(policies, e.Policy); p != nil {
			r.other[e.Name], _ = p.Definition["alternate-exchange"].(string)
		}
		if to, ok := e.Arguments["alternate-exchange"].(string); ok {
			r.other[e.Name] = to
		}
	}
	for again := true; again; { // keys travel with dead letters
		again = false
		for name := range r.queues {
			to, _, keys := r.deadLetters(name)
			for t := range to {
				again = r.add(t, keys...) || again
			}
		}
	}
	return r
}

func (r *routes) add(queue string, keys ...string) (added bool) {
	for _, k := range keys {
		if !slices.Contains(r.keys[queue], k) {
			r.keys[queue], added = append(r.keys[queue], k), true
		}
	}
	return added
}

// deadLetters returns the queues and exchanges that a queue's dead letters reach, and their keys.
func (r *routes) deadLetters(queue string) (to, through map[string]bool, keys []string) {
	to, through = map[string]bool{}, map[string]bool{}
	exchange, ok := r.queues[queue].Setting("dead-letter-exchange").(string)
	if !ok {
		return to, through, nil
	}
	keys = r.keys[queue]
	if key, ok := r.queues[queue].Setting("dead-letter-routing-key").(string); ok {
		keys = []string{key}
	}
	r.follow(exchange, keys, to, through, map[string]bool{})
	return to, through, keys
}

// follow adds where messages with these keys go. seen ends circles of exchanges.
func (r *routes) follow(exchange string, keys []string, to, through, seen map[string]bool) {
	if exchange == "" {
		for _, k := range keys {
			if r.queues[k] != nil {
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
	for _, b := range r.bindings[exchange] {
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

// wild reports whether a key is a pattern, of a topic binding: it stands for any that matches.
func wild(key string) bool { return strings.ContainsAny(key, "*#") }

// matches reports whether a message with that key may take a binding.
func matches(kind, bound, key string) bool {
	switch kind {
	case "direct":
		return bound == key
	case "topic":
		return wild(key) || matchesTopic(strings.Split(bound, "."), strings.Split(key, "."))
	}
	return true
}

func matchesTopic(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return matchesTopic(pattern[1:], key) || len(key) > 0 && matchesTopic(pattern, key[1:])
	}
	return len(key) > 0 && (pattern[0] == "*" || pattern[0] == key[0]) && matchesTopic(pattern[1:], key[1:])
}

// grow adds queues to a set, until joins reports true for no other.
func (r *routes) grow(set map[string]bool, joins func(queue string) bool) {
	for again := true; again; {
		again = false
		for name := range r.queues {
			if !set[name] && joins(name) {
				set[name], again = true, true
			}
		}
	}
}

// sourcesOf finds the sources of a queue, sorted by name.
func (r *routes) sourcesOf(queue string) (all []*Source) {
	to, through := map[string]map[string]bool{}, map[string]map[string]bool{}
	sources := map[string]bool{}
	for name, q := range r.queues {
		var keys []string
		to[name], through[name], keys = r.deadLetters(name)
		if q.Setting("dead-letter-exchange") == "" && name != queue && slices.Contains(keys, queue) {
			sources[name] = true
		}
	}
	leadsTo := func(from string, set map[string]bool) bool {
		for name := range to[from] {
			if set[name] {
				return true
			}
		}
		return false
	}
	r.grow(sources, func(name string) bool { return name != queue && leadsTo(name, sources) })
	fed := map[string]bool{queue: true} // by the queue, directly or through others
	r.grow(fed, func(name string) bool {
		for from := range fed {
			if to[from][name] {
				return true
			}
		}
		return false
	})
	ours := map[string]bool{} // exchanges that the queue and its sources dead-letter through
	maps.Copy(ours, through[queue])
	for name := range sources {
		maps.Copy(ours, through[name])
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		q := r.queues[name]
		s := &Source{Queue: name, Messages: max(q.Messages, q.Ready+q.Unacked+q.Dead), TTL: q.TTL()}
		switch {
		case q.Consumers > 0:
			s.FedBy = append(s.FedBy, "publishers, as it has consumers")
		case s.TTL == 0 && !fed[name]: // a work queue, whose dead letters come here
			s.FedBy = append(s.FedBy, "publishers, as it has no time to live")
		}
		for from := range to {
			if to[from][name] && from != queue && !sources[from] {
				s.FedBy = append(s.FedBy, fmt.Sprintf("dead letters of queue %q", from))
			}
		}
		for exchange, bindings := range r.bindings {
			if !ours[exchange] && slices.ContainsFunc(bindings, func(b management.Binding) bool { return b.DestinationType == "queue" && b.Destination == name }) {
				s.FedBy = append(s.FedBy, fmt.Sprintf("exchange %q", exchange))
			}
		}
		slices.Sort(s.FedBy)
		all = append(all, s)
	}
	return all
}
