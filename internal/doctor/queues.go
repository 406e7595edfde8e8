package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

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

// overflow finds queues with a limit that take a retry by dead-lettering something: their oldest
// message or, with reject-publish-dlx on a classic queue, the retry, which waits as well.
func overflow(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		how, _ := q.Setting("overflow").(string)
		limit := cmp.Or(reached(q), limits(q))
		if limit == "" || how == "reject-publish" || q.Type == "stream" {
			continue
		}
		what := "its oldest message for each new one, also for a retry"
		if how == "reject-publish-dlx" && q.Type == "classic" {
			what = "each message that it refuses: a retry then waits twice"
		}
		f := Finding{Queue: q.Name, Status: Warning,
			What: fmt.Sprintf("full (%s), it dead-letters %s (overflow %s)", limit, what, cmp.Or(how, "drop-head")),
			Remedy: "Let its overflow be reject-publish: retries then wait until there is room, and publishers' messages " +
				"are refused, for which these need confirms. Or raise the limit."}
		if reached(q) != "" {
			f.Status, f.What = Wrong, "it is full now; "+f.What
		}
		switch {
		case isArgument(q, "overflow"):
			f.Remedy += " " + s.unset(q, "overflow")
		case q.Type == "quorum":
			f.Commands = []string{s.redrive("enroll --at-least-once", q.Name)}
		default:
			f.Commands = []string{s.refusing(q)}
		}
		all = append(all, f)
	}
	return all
}

// limits are those of a queue's length; "": it has none.
func limits(q *management.QueueState) string {
	var all []string
	for _, key := range []string{"max-length", "max-length-bytes"} {
		if v := q.Setting(key); v != nil {
			all = append(all, key+": "+management.Text(v))
		}
	}
	return strings.Join(all, ", ")
}

// reached is a limit that a queue has reached; "": none.
func reached(q *management.QueueState) string {
	for key, has := range map[string]int64{"max-length": int64(q.Messages), "max-length-bytes": q.Bytes} {
		if most, ok := q.Setting(key).(float64); ok && has >= int64(most) {
			return key + ": " + management.Text(most)
		}
	}
	return ""
}

// refusing is a command that sets overflow reject-publish on one queue, with what its policy sets.
func (s *Scene) refusing(q *management.QueueState) string {
	name, priority, definition := "redrive."+q.Name, 0, map[string]any{}
	if p := management.PolicyNamed(s.Policies, q.Policy); p != nil {
		maps.Copy(definition, p.Definition)
		if priority = p.Priority; p.Name != name {
			priority++
		}
	}
	definition["overflow"] = "reject-publish"
	text, _ := json.Marshal(definition) // it came as JSON
	return s.rabbitmqctl("set_policy", name, pattern(q.Name), string(text),
		"--priority", strconv.Itoa(priority), "--apply-to", "queues")
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

// deliveries finds queues whose consumers are connected and take nothing of what is ready.
func deliveries(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		if q.Ready == 0 || q.Consumers == 0 || q.Stats.Delivered.InMinute() > 0 {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning,
			What: fmt.Sprintf("messages ready: %d, unacknowledged: %d, consumers: %d; and none was delivered in the last minute",
				q.Ready, q.Unacked, q.Consumers),
			Remedy: "See what its consumers do, and stop those that hang: RabbitMQ delivers their messages again. " +
				"Where a handler takes that long, do nothing. To list them:",
			Commands: []string{s.rabbitmqctl("list_consumers", "queue_name", "channel_pid", "consumer_tag", "prefetch_count", "active")}}
		if q.Arguments["x-single-active-consumer"] == true {
			f.What += ". It has a single active consumer: the others wait until that one ends"
		}
		all = append(all, f)
	}
	return all
}

// minRequeues are the redeliveries in a minute from which consumers may requeue in a circle.
const minRequeues = 5

// requeue finds queues whose consumers requeue in a circle. When a consumer ends, each of its messages
// is redelivered once: at most half of all deliveries, and only then.
func requeue(s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		again, delivered := q.Stats.Redelivered, q.Stats.Delivered.InMinute()
		n := again.InMinute()
		steady := n >= 6*minRequeues && again.Now >= again.Average/2 && again.Now <= 2*again.Average
		if n < minRequeues || 3*n < 2*delivered && !steady {
			continue
		}
		all = append(all, Finding{Queue: q.Name, Status: Warning,
			What: fmt.Sprintf("%d of %d deliveries in the last minute were of messages that were delivered before%s",
				n, max(n, delivered), s.ends(q)),
			Remedy: "Let consumers reject without requeue (basic.reject or basic.nack, requeue=false) what they cannot do now: " +
				"Redrive retries it later."})
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
