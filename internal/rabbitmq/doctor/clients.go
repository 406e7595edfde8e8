package doctor

import (
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// byQueue are the consumers of enrolled queues, with those queues in order.
func (s *Scene) byQueue() (queues []*management.QueueState, of map[string][]management.Consumer) {
	of = map[string][]management.Consumer{}
	for _, c := range s.Consumers {
		of[c.Queue.Name] = append(of[c.Queue.Name], c)
	}
	for _, q := range s.enrolledQueues() {
		if len(of[q.Name]) > 0 && q.Type != "stream" {
			queues = append(queues, q)
		}
	}
	return queues, of
}

// count counts those of some consumers that are so.
func count(all []management.Consumer, is func(management.Consumer) bool) (n int) {
	for _, c := range all {
		if is(c) {
			n++
		}
	}
	return n
}

func autoAck(s *Scene) (all []Finding) {
	queues, of := s.byQueue()
	for _, q := range queues {
		if n := count(of[q.Name], func(c management.Consumer) bool { return !c.AckRequired }); n > 0 {
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("%d of its %d consumers acknowledge automatically", n, len(of[q.Name])),
				alike: "consumers of it acknowledge automatically", Remedy: "Let them acknowledge what they have done, and reject what failed. To see which they are (ack_required is false):"}.repaired(s.consumersOf("ack_required")))
		}
	}
	return all
}

// consumersOf lists the consumers of the virtual host.
func (s *Scene) consumersOf(column string) func([]string) []string {
	return func([]string) []string {
		return []string{s.rabbitmqctl("list_consumers", "queue_name", "channel_pid", "consumer_tag", column)}
	}
}

func prefetch(s *Scene) (all []Finding) {
	unlimited := map[string]bool{} // channels; AMQP 1.0 has none, and RabbitMQ does not show its credit
	for _, c := range s.Channels {
		unlimited[c.Name] = c.GlobalPrefetch == 0
	}
	queues, of := s.byQueue()
	for _, q := range queues {
		if n := count(of[q.Name], func(c management.Consumer) bool { return c.AckRequired && c.Prefetch == 0 && unlimited[c.Channel.Name] }); n > 0 {
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("%d of its %d consumers have no prefetch limit", n, len(of[q.Name])),
				alike: "consumers of it have no prefetch limit", Remedy: "Set one (basic.qos), for example 20. To see which they are (prefetch_count is 0):"}.repaired(s.consumersOf("prefetch_count")))
		}
	}
	return all
}

// heldLong is how long a channel that does nothing may have unacknowledged messages: half of
// RabbitMQ's own limit (consumer_timeout).
const heldLong = 15 * time.Minute

// unacknowledged finds channels that have messages of enrolled queues and do nothing.
func unacknowledged(s *Scene) (all []Finding) {
	channels := map[string]management.Channel{}
	for _, c := range s.Channels {
		channels[c.Name] = c
	}
	queues, of := s.byQueue()
	for _, q := range queues {
		told := map[string]bool{}
		for _, c := range of[q.Name] {
			ch := channels[c.Channel.Name]
			since, ok := timeOf(ch.IdleSince)
			if !ok || ch.Unacked == 0 || s.Now.Sub(since) < s.Held || told[ch.Name] {
				continue
			}
			told[ch.Name] = true
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("a consumer (channel %s, user %q) has %d messages that it has not acknowledged, and has done nothing since %s", ch.Name, c.Channel.User, ch.Unacked, since.UTC().Format(time.RFC3339)),
				Remedy: "Find out what it waits for. To have RabbitMQ deliver them again, end its connection:", Commands: []string{s.deleteCommand(s.Manage.RootURL("connections", c.Channel.Connection))}})
		}
	}
	return all
}

// timeOf reads a time of the management API; RabbitMQ 3 has a form of its own.
func timeOf(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// A queue's own consumer_timeout is suspicious below the one, since hardly a consumer can promise
// that, and from the other on, since nothing ends a consumer that hangs.
const shortTimeout, longTimeout = time.Minute, 24 * time.Hour

// consumerTimeout looks at that of queues, which RabbitMQ has since 3.12; it does not show the one in
// rabbitmq.conf.
func consumerTimeout(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		ms, ok := setting(q, "consumer-timeout").(float64)
		if !ok || !s.versionAtLeast(3, 12) {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning}
		switch d := time.Duration(ms) * time.Millisecond; {
		case d > 0 && d < shortTimeout:
			f.What = fmt.Sprintf("RabbitMQ takes its messages from a consumer that has them for %s (consumer-timeout), prefetched ones too, and delivers them again", d)
		case d == 0 || d >= longTimeout:
			f.What = fmt.Sprintf("a consumer that hangs keeps its messages for %s (consumer-timeout)", map[bool]string{true: "ever", false: d.String()}[d == 0])
		default:
			continue
		}
		f.Remedy = "Set a time that is longer than any message takes. " + newQueue
		if f.Commands = s.unsetting(q, "consumer-timeout"); f.Commands != nil {
			f.Remedy = "Set a time that is longer than any message takes; without one the server's counts (consumer_timeout, 30 minutes by default):"
		}
		all = append(all, f)
	}
	return all
}
