package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// A dead-letter queue fills up when nothing consumes it and it has so many messages, or that share of
// its limit.
const (
	manyDead = 1000
	nearFull = 0.8
)

// deadLetterQueues looks at the queues to which others dead-letter, not by Redrive.
func deadLetterQueues(s *Scene) (all []Finding) {
	delays := s.delayQueues()
	bound := s.boundQueues()
	from := map[string][]*management.QueueState{}
	for _, q := range s.workQueues() {
		if to, ok := setting(q, "dead-letter-exchange").(string); ok && to != wire.ExchangeDeadLetters && !strings.HasPrefix(to, "redrive.") && !delays[q.Name] {
			for _, name := range s.deadLettersTo(q, to, bound) {
				from[name] = append(from[name], q)
			}
		}
	}
	for _, q := range s.workQueues() {
		_, passesOn := setting(q, "dead-letter-exchange").(string)
		if len(from[q.Name]) == 0 || q.Consumers > 0 || delays[q.Name] || passesOn {
			continue
		}
		l, full := fullest(q, nearFull)
		if !full && q.Ready < manyDead {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("%d dead letters are in it, and nothing consumes it", q.Ready), alike: "it has many dead letters, and nothing consumes it"}
		if full {
			f.What += fmt.Sprintf("; it is nearly full (%s)", l)
			if l.has >= l.most {
				f.Status = Wrong
				f.What = strings.Replace(f.What, "nearly full", "full", 1) + ": " + lostWhenFull(q)
			}
			f.Commands = s.raiseLength(q, l)
		}
		f.Remedy = "Consume it, and have Redrive retry what fails from now on: enroll the queues that dead-letter to it."
		for _, work := range from[q.Name] {
			if !isArgument(work, "dead-letter-exchange") && len(f.Commands) < shown {
				f.Commands = append(f.Commands, s.redrive("enroll", work.Name))
			}
		}
		all = append(all, f)
	}
	return all
}

// lostWhenFull says which dead letters are lost when a dead-letter queue is full.
func lostWhenFull(q *management.QueueState) string {
	if overflow, _ := setting(q, "overflow").(string); strings.HasPrefix(overflow, "reject-publish") {
		return "further dead letters are lost, or stand still in their queue where that is at-least-once"
	}
	return "each further one deletes the oldest"
}

// boundQueues are the queues to which each exchange leads.
func (s *Scene) boundQueues() map[string][]string {
	bound := map[string][]string{}
	for _, b := range s.Bindings {
		if b.Source != "" && b.DestinationType == "queue" && !slices.Contains(bound[b.Source], b.Destination) {
			bound[b.Source] = append(bound[b.Source], b.Destination)
		}
	}
	return bound
}
