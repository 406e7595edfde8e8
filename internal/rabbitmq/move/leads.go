package move

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// A retry queue of a hand-made recipe dead-letters to the old queue by its name, through the
// default exchange, which has no binding that could be moved: what waits in it when the old queue
// is deleted is lost at the end of its time to live. So the old queue stays until such queues are
// empty, and while anything but the old queue feeds them.

// Lead is a queue whose dead letters reach the old queue by its name, directly or through others.
type Lead struct {
	Queue    string
	Messages int
	// TTL is how long a message stays at most; 0: the queue does not say.
	TTL time.Duration
	// Feeders are what else brings it messages, in words.
	Feeders []string

	grew time.Time // when it last had more messages than before
}

func (l *Lead) String() string {
	text := fmt.Sprintf("queue %q, %d messages", l.Queue, l.Messages)
	switch {
	case l.Messages == 0:
	case l.TTL > 0:
		text += ", the last expires by " + l.grew.Add(l.TTL).Format(time.TimeOnly)
	default:
		text += ", which expire as each says, if at all"
	}
	if len(l.Feeders) > 0 {
		text += "; fed by " + strings.Join(l.Feeders, ", ")
	}
	return text
}

// lookAtLeads finds the queues that lead to the old one. Counts are RabbitMQ's statistics, some
// seconds old.
func (m *Move) lookAtLeads(ctx context.Context) ([]*Lead, error) {
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
	leads := r.leadsTo(m.From)
	for _, l := range leads {
		if was := m.leads[l.Queue]; was != nil && was.Messages >= l.Messages {
			l.grew = was.grew
		} else {
			l.grew = time.Now()
		}
	}
	m.leads = map[string]*Lead{}
	for _, l := range leads {
		m.leads[l.Queue] = l
	}
	return leads, nil
}

// exhausted reports whether nothing can come to the old queue any more through the queues that
// lead to it. It is an error for a person when something else feeds one of them.
func (m *Move) exhausted(ctx context.Context, c *broker.Mover) (bool, error) {
	leads, err := m.lookAtLeads(ctx)
	if err != nil {
		return false, err
	}
	var waits, fed []string
	for _, l := range leads {
		ready, _, err := c.Depth(l.Queue) // statistics may be older than the last message
		if err != nil {
			return false, err
		}
		l.Messages = max(l.Messages, ready)
		switch {
		case len(l.Feeders) > 0:
			fed = append(fed, "    "+l.String())
		case l.Messages > 0:
			waits = append(waits, "    "+l.String())
		}
	}
	if len(fed) > 0 {
		return false, fmt.Errorf("queue %q stays, since these dead-letter to it by its name, and would lose their messages without it:\n%s\npoint them elsewhere, or end what feeds them; %w",
			m.From, strings.Join(fed, "\n"), ErrConsumers)
	}
	if text := strings.Join(waits, "\n"); len(waits) > 0 && text != m.said {
		m.said = text
		m.Report(fmt.Sprintf("waits for what dead-letters to queue %q by its name:\n%s", m.From, text))
	}
	return len(waits) == 0, nil
}

// writeLeads shows them before anything is changed.
func writeLeads(w io.Writer, from string, leads []*Lead) {
	if len(leads) == 0 {
		return
	}
	fmt.Fprintf(w, "- waits until nothing is left in the queues that dead-letter to %q by its name; delete them then:\n", from)
	for _, l := range leads {
		fmt.Fprintf(w, "    %s\n", l)
	}
}

// routes are where messages go in a virtual host, as far as RabbitMQ shows it.
type routes struct {
	queues   map[string]*management.QueueState
	bindings map[string][]management.Binding // by source
	types    map[string]string               // of exchanges
	other    map[string]string               // alternate exchanges
	keys     map[string][]string             // that messages of a queue may have
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
	q := r.queues[queue]
	exchange, ok := q.Setting("dead-letter-exchange").(string)
	if !ok {
		return to, through, nil
	}
	keys = r.keys[queue]
	if key, ok := q.Setting("dead-letter-routing-key").(string); ok {
		keys = []string{key}
	}
	r.follow(exchange, keys, to, through)
	return to, through, keys
}

func (r *routes) follow(exchange string, keys []string, to, through map[string]bool) {
	if exchange == "" {
		for _, k := range keys {
			if r.queues[k] != nil {
				to[k] = true
			}
		}
		return
	}
	if through[exchange] {
		return
	}
	through[exchange] = true
	routed := map[string]bool{}
	for _, b := range r.bindings[exchange] {
		for _, k := range keys {
			if !matches(r.types[exchange], b.RoutingKey, k) {
				continue
			}
			routed[k] = r.types[exchange] != "headers"
			if b.DestinationType == "queue" {
				to[b.Destination] = true
			} else {
				r.follow(b.Destination, keys, to, through)
			}
		}
	}
	unrouted := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return routed[k] })
	if other := r.other[exchange]; other != "" && len(unrouted) > 0 {
		r.follow(other, unrouted, to, through)
	}
}

// matches reports whether a message with that key may take a binding. A key with wildcards is one
// of a topic binding, and stands for any that this takes.
func matches(kind, bound, key string) bool {
	switch kind {
	case "direct":
		return bound == key
	case "topic":
		return strings.ContainsAny(key, "*#") || matchesTopic(strings.Split(bound, "."), strings.Split(key, "."))
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

// leadsTo finds the queues whose dead letters reach one by its name, sorted.
func (r *routes) leadsTo(queue string) (all []*Lead) {
	leads, ours := map[string]bool{}, map[string]bool{} // ours: exchanges that they and the queue dead-letter through
	to := map[string]map[string]bool{}
	for name, q := range r.queues {
		var through map[string]bool
		var keys []string
		to[name], through, keys = r.deadLetters(name)
		if x, ok := q.Setting("dead-letter-exchange").(string); ok && x == "" && name != queue {
			leads[name] = slices.Contains(keys, queue)
		}
		if name == queue {
			ours = through
		}
	}
	for again := true; again; {
		again = false
		for name := range r.queues {
			for t := range to[name] {
				if name != queue && leads[t] && !leads[name] {
					leads[name], again = true, true
				}
			}
		}
	}
	fed := map[string]bool{queue: true} // by the queue, directly or through others
	for again := true; again; {
		again = false
		for name := range fed {
			for t := range to[name] {
				if !fed[t] {
					fed[t], again = true, true
				}
			}
		}
	}
	for name := range leads {
		if leads[name] {
			_, through, _ := r.deadLetters(name)
			for x := range through {
				ours[x] = true
			}
		}
	}
	for name, q := range r.queues {
		if !leads[name] {
			continue
		}
		l := &Lead{Queue: name, Messages: q.Messages, TTL: q.TTL()}
		switch {
		case q.Consumers > 0:
			l.Feeders = append(l.Feeders, "publishers, as it has consumers")
		case l.TTL == 0 && !fed[name]: // no retry queue, but one whose own dead letters come here
			l.Feeders = append(l.Feeders, "publishers, as it has no time to live")
		}
		for from := range to {
			if to[from][name] && from != queue && !leads[from] {
				l.Feeders = append(l.Feeders, fmt.Sprintf("dead letters of queue %q", from))
			}
		}
		for source, bindings := range r.bindings {
			if !ours[source] && slices.ContainsFunc(bindings, func(b management.Binding) bool { return b.DestinationType == "queue" && b.Destination == name }) {
				l.Feeders = append(l.Feeders, fmt.Sprintf("exchange %q", source))
			}
		}
		slices.Sort(l.Feeders)
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *Lead) int { return strings.Compare(a.Queue, b.Queue) })
	return all
}
