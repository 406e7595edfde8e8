package doctor

import (
	"slices"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// delayQueues are the queues in which messages wait for a work queue, by a recipe of RabbitMQ alone:
// nothing consumes them, and what expires there dead-letters back. With an x-delayed-message
// exchange, and where a program publishes what is due, there are none.
func (s *Scene) delayQueues() map[string]bool {
	bound := s.boundQueues()
	of := map[string]*management.QueueState{}
	for i := range s.Queues {
		of[s.Queues[i].Name] = &s.Queues[i]
	}
	all := map[string]bool{}
	for name, q := range of {
		to, has := setting(q, "dead-letter-exchange").(string)
		if !has || q.Consumers > 0 || wire.OwnQueue(name) || to == wire.ExchangeDeadLetters || s.Config.Policies.Exact(name) {
			continue
		}
		expires := setting(q, "message-ttl") != nil
		all[name] = slices.ContainsFunc(s.deadLettersTo(q, to, bound), func(back string) bool {
			w := of[back]
			// Without a TTL of its own it is a delay queue for messages that have one: then the next
			// is none, or this is the work queue before a delay queue.
			return back != name && w != nil && s.isWorkQueue(w) && (expires || setting(w, "message-ttl") == nil)
		})
	}
	return all
}

// deadLettersTo are the queues that the dead letters of a queue can reach.
func (s *Scene) deadLettersTo(q *management.QueueState, exchange string, bound map[string][]string) []string {
	key, fixed := setting(q, "dead-letter-routing-key").(string)
	switch {
	case exchange != "":
		return bound[exchange]
	case fixed:
		return []string{key}
	}
	// The default exchange routes a dead letter by the key that it was published with, which is the
	// work queue's name; so it came through an exchange.
	var all []string
	for _, b := range s.Bindings {
		if b.DestinationType == "queue" && b.Destination == q.Name && b.Source != "" {
			all = append(all, b.RoutingKey)
		}
	}
	return all
}

// isWorkQueue tells whether a queue to which another dead-letters is a work queue, rather than the
// end of dead letters: it is consumed, or dead-letters itself.
func (s *Scene) isWorkQueue(q *management.QueueState) bool {
	_, deadLetters := setting(q, "dead-letter-exchange").(string)
	return q.Consumers > 0 || deadLetters || s.Config.Policies.Exact(q.Name)
}
