package doctor

import (
	"fmt"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

func lifetime(s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		if !s.enrolled(q) && !s.Config.Policies.Exact(q.Name) {
			continue
		}
		if v := q.Setting("expires"); v != nil {
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("RabbitMQ deletes it, with its messages, when it has not been used for %s ms", management.Text(v)), Remedy: s.unset(q, "expires")})
		}
		for _, is := range []struct {
			so   bool
			what string
		}{
			{q.AutoDelete, "it is auto-delete: RabbitMQ deletes it, with its messages, when its last consumer goes"},
			{q.Exclusive, "it is exclusive: it goes with its connection, and no other connection can bind it"},
			{!q.Durable, "it is not durable: a restart of RabbitMQ takes it and its messages"},
		} {
			if is.so {
				all = append(all, Finding{Queue: q.Name, Status: Wrong, What: is.what, Remedy: "Delete it and declare it again, durable, not auto-delete and not exclusive: RabbitMQ cannot change that."})
			}
		}
	}
	return all
}

func (s *Scene) noConsumer(queue string, messages int) Finding {
	return Finding{Queue: queue, Status: Warning, What: fmt.Sprintf("it has no consumer, and %d messages; RabbitMQ does not record since when", messages),
		Remedy: "Start its consumer; meanwhile pause its retries:", Commands: []string{s.call() + " pause " + Quote(queue)}}
}

func consumers(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		if q.Consumers > 0 || q.Exclusive {
			continue
		}
		f := s.noConsumer(q.Name, q.Messages)
		if q.IdleSince != "" {
			f.What += ", but nothing was delivered or came in since " + q.IdleSince
		}
		all = append(all, f)
	}
	return all
}

func consumersByAMQP(s *Scene) (all []Finding) {
	for _, q := range s.Probed.Named {
		if q.Exists && q.Consumers == 0 {
			all = append(all, s.noConsumer(q.Name, q.Ready))
		}
	}
	return all
}

// The consumers of a queue requeue in a circle where it redelivers this often a second, and this
// share of what it delivers. After a crash of a consumer messages are redelivered only once.
const (
	fastRequeue  = 1.0
	shareRequeue = 0.5
)

func requeue(s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		again, delivered := q.Stats.Redelivered.Rate, q.Stats.Delivered.Rate
		if again < fastRequeue || again < shareRequeue*delivered {
			continue
		}
		all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("%.0f of %.0f deliveries a second are of messages that were delivered before%s", again, max(again, delivered), s.ends(q)),
			Remedy: "Let consumers reject without requeue (basic.reject or basic.nack, requeue=false) what they cannot do now: Redrive retries it later."})
	}
	return all
}

// ends says what ends the redeliveries of a queue.
func (s *Scene) ends(q *management.QueueState) string {
	limit, limited := q.LimitInForce(s.Version)
	switch {
	case limited && s.versionAtLeast(4, 3):
		return fmt.Sprintf("; after basic.reject the delivery limit (%d) ends that, after basic.nack nothing does", limit)
	case limited:
		return fmt.Sprintf("; the delivery limit (%d) ends that for each", limit)
	}
	return ", and no delivery limit ends that"
}
