package doctor

import (
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// deadLettering looks at the queues that policies match. A problem of one that a policy names
// exactly is Wrong; one that only a pattern matches may not be meant, so there it is a Warning.
func deadLettering(s *Scene) (all []Finding) {
	handled := s.handled()
	for _, q := range s.workQueues() {
		if _, ok := s.Config.Policies.Match(q.Name); !ok {
			continue
		}
		exact := s.Config.Policies.Exact(q.Name)
		status := Warning
		if exact {
			status = Wrong
		}
		to, has := q.Setting("dead-letter-exchange").(string)
		switch {
		case !has && ((q.Exclusive || q.AutoDelete) && !exact || handled[q.Name]):
			// A reply queue; the library's; somebody's own dead-letter queue.
		case !has:
			all = append(all, Finding{Queue: q.Name, Status: status, What: "it has no dead-letter exchange: " + s.dropped(q), Remedy: "Point it at Redrive:", Commands: []string{s.redrive("enroll", q.Name)}})
		case to == wire.ExchangeDeadLetters:
			if key := q.Setting("dead-letter-routing-key"); key != nil {
				all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("its dead letters get the routing key %q, and are retried with it", key),
					Why: "Redrive retries a message with its own routing key, and this one replaces it.", Remedy: s.unset(q, "dead-letter-routing-key")})
			}
		case strings.HasPrefix(to, wire.DelayPrefix):
			// RabbitMQ alone retries them.
		case to != "" && s.exchange(to) == nil:
			becomes := "are dropped"
			if keepsDeadLetters(q) {
				becomes = "stand still in it"
			}
			all = append(all, s.elsewhere(q, Wrong, fmt.Sprintf("it dead-letters to the exchange %s, which does not exist: its dead letters %s", to, becomes)))
		default:
			all = append(all, s.elsewhere(q, status, fmt.Sprintf("it dead-letters to the exchange %q, not to Redrive", to)))
		}
	}
	return all
}

func (s *Scene) elsewhere(q *management.QueueState, st Status, what string) Finding {
	f := Finding{Queue: q.Name, Status: st, What: what, Remedy: "Point it at Redrive by a policy of higher priority:", Commands: []string{s.redrive("enroll", q.Name)}}
	if isArgument(q, "dead-letter-exchange") {
		f.What += " (by its argument)"
		f.Remedy = "No policy can change an argument. Move it to a new queue, with its bindings and messages, or leave it as it is. What a move would do:"
		f.Commands = []string{s.redrive("move --dry-run --to="+Quote(q.Name+".v2"), q.Name)}
	}
	return f
}

// dropped says which messages of a queue are lost without a dead-letter exchange.
func (s *Scene) dropped(q *management.QueueState) string {
	if q.Type == "quorum" && s.versionAtLeast(4, 0) {
		return "what consumers reject is gone, and what they requeue too often as well"
	}
	return "what consumers reject is gone"
}

// handled are the queues that need no dead-letter exchange: their consumers use the Go library,
// which retries by itself, or they are what other queues dead-letter to.
func (s *Scene) handled() map[string]bool {
	all, to := map[string]bool{}, map[string]bool{wire.ExchangeDue: true}
	for i := range s.Queues {
		from := &s.Queues[i]
		exchange, has := from.Setting("dead-letter-exchange").(string)
		if key, ok := from.Setting("dead-letter-routing-key").(string); has && exchange == "" && ok {
			all[key] = true
		}
		to[exchange] = to[exchange] || exchange != ""
	}
	for _, b := range s.Bindings {
		if to[b.Source] && b.DestinationType == "queue" {
			all[b.Destination] = true
		}
	}
	return all
}

// unset says how a setting of a queue is taken away.
func (s *Scene) unset(q *management.QueueState, key string) string {
	if isArgument(q, key) {
		return fmt.Sprintf("It is an argument (x-%s), which no policy can change: declare a new queue without it.", key)
	}
	return fmt.Sprintf("Take %s out of the RabbitMQ policy %q.", key, q.Policy)
}

// keepsDeadLetters tells whether a queue's dead-lettering is at-least-once.
func keepsDeadLetters(q *management.QueueState) bool {
	return q.Type == "quorum" && q.Setting("dead-letter-strategy") == "at-least-once" && q.Setting("overflow") == "reject-publish"
}

func atLeastOnce(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		strategy, overflow := q.Setting("dead-letter-strategy"), q.Setting("overflow")
		switch {
		case q.Type != "quorum":
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("it is %s, whose dead-lettering is at-most-once", q.Type), Remedy: "Where no message may be lost, declare it as a quorum queue."})
		case strategy != "at-least-once":
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: "its dead-lettering is at-most-once", Remedy: "Make it at-least-once (its overflow becomes reject-publish):", Commands: []string{s.redrive("enroll --at-least-once", q.Name)}})
		case overflow != "reject-publish":
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: "its dead-lettering says at-least-once and is at-most-once, since its overflow is not reject-publish", Remedy: "Make it both:", Commands: []string{s.redrive("enroll --at-least-once", q.Name)}})
		}
	}
	return all
}
