package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// changePolicy changes keys of the policy in force of a queue; nil takes one away. Where there is
// no policy it sets one.
func (s *Scene) changePolicy(q *management.QueueState, changes map[string]any) []string {
	p := management.Policy{Name: "limits." + q.Name, Pattern: "^" + regexp.QuoteMeta(q.Name) + "$"}
	if is := management.PolicyNamed(s.Policies, q.Policy); is != nil {
		p = *is
	}
	is := map[string]any{}
	maps.Copy(is, p.Definition)
	maps.Copy(is, changes)
	maps.DeleteFunc(is, func(_ string, v any) bool { return v == nil })
	p.Definition = is
	return []string{s.setPolicy("policy", p)}
}

// unsetting takes keys out of the policy in force of a queue; nil where the first is an argument.
func (s *Scene) unsetting(q *management.QueueState, keys ...string) []string {
	changes := map[string]any{}
	for _, key := range keys {
		changes[key] = nil
	}
	if isArgument(q, keys[0]) || q.Policy == "" {
		return nil
	}
	return s.changePolicy(q, changes)
}

// byOperator tells whether an operator policy alone sets a key: policy-in-force reports that.
func (s *Scene) byOperator(q *management.QueueState, key string) bool {
	p := management.PolicyNamed(s.OperatorPolicies, q.OperatorPolicy)
	return p != nil && p.Definition[key] != nil && !isArgument(q, key)
}

const newQueue = "It is an argument, which no policy can change: declare a new queue without it."

// queueLimits finds what takes retries out of a work queue before a consumer had them.
func queueLimits(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		p, _ := s.Config.Policies.Match(q.Name)
		retried := func(reason string) bool { return p != nil && slices.Contains(p.Reasons, reason) }
		if ttl := setting(q, "message-ttl"); ttl != nil && !retried("expired") && !s.byOperator(q, "message-ttl") {
			f := Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("its messages expire after %s ms (message-ttl): a retry that waits longer in it comes back as expired, and is parked", management.Text(ttl)),
				alike:  "its messages expire (message-ttl): a retry that waits longer in it comes back as expired, and is parked",
				Remedy: "Add expired to the reasons of its policy in Redrive's config, or take the limit away. " + newQueue}
			if f.Commands = s.unsetting(q, "message-ttl"); f.Commands != nil {
				f.Remedy = "Add expired to the reasons of its policy in Redrive's config, or take the limit away:"
			}
			all = append(all, f)
		}
		if f, ok := s.overflow(q, retried("maxlen")); ok {
			all = append(all, f)
		}
	}
	return all
}

// overflow is about a queue that drops messages when it is full; meant: the config says so.
func (s *Scene) overflow(q *management.QueueState, meant bool) (f Finding, found bool) {
	limits := lengths(q)
	overflow, _ := setting(q, "overflow").(string)
	if len(limits) == 0 || overflow == "reject-publish" || s.byOperator(q, "overflow") {
		return f, false
	}
	if limits = slices.DeleteFunc(limits, func(l length) bool { return s.byOperator(q, l.key) }); len(limits) == 0 {
		return f, false
	}
	f = Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("when it is full (%s), each message drops the oldest, which may be a retry: that comes back as maxlen, and is parked", limits[0]),
		alike: "when it is full, each message drops the oldest, which may be a retry: that comes back as maxlen, and is parked"}
	if overflow == "reject-publish-dlx" && q.Type == "classic" {
		f.Status, meant = Wrong, false
		f.What = fmt.Sprintf("when it is full (%s), RabbitMQ dead-letters a retry that it refuses (overflow: reject-publish-dlx): Redrive keeps that one, and gets a copy each time", limits[0])
		f.alike = "when it is full, RabbitMQ dead-letters a retry that it refuses (overflow: reject-publish-dlx): Redrive keeps that one, and gets a copy each time"
	}
	f.Remedy = "Have it refuse messages when it is full: retries then wait. " + newQueue
	if !isArgument(q, "overflow") {
		f.Remedy = "Have it refuse messages when it is full: retries then wait."
		f.Commands = s.changePolicy(q, map[string]any{"overflow": "reject-publish"})
	}
	return f, !meant
}

// length is a limit of a queue, and how much of it is used.
type length struct {
	key       string
	most, has float64
}

func (l length) String() string { return l.key + ": " + management.Text(l.most) }

// lengths are the limits of a queue. Messages that a consumer has do not count.
func lengths(q *management.QueueState) (all []length) {
	for _, l := range []length{{key: "max-length", has: float64(q.Ready)}, {key: "max-length-bytes", has: float64(q.Bytes)}} {
		l.most = -1
		for _, v := range []any{q.Arguments["x-"+l.key], q.Effective[l.key]} { // RabbitMQ takes the least
			if most, ok := v.(float64); ok && (l.most < 0 || most < l.most) {
				l.most = most
			}
		}
		if l.most >= 0 {
			all = append(all, l)
		}
	}
	return all
}

// fullest is the limit of which a queue has used the most, when that is at least a share.
func fullest(q *management.QueueState, share float64) (l length, is bool) {
	for _, one := range lengths(q) {
		if one.has >= share*one.most && (!is || one.has*l.most > l.has*one.most) {
			l, is = one, true
		}
	}
	return l, is
}

// raise doubles a limit, where a policy sets it.
func (s *Scene) raiseLength(q *management.QueueState, l length) []string {
	if isArgument(q, l.key) || s.byOperator(q, l.key) {
		return nil
	}
	return s.changePolicy(q, map[string]any{l.key: 2 * max(l.most, l.has, 1)})
}

func fullQueues(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		l, full := fullest(q, 1)
		if !full {
			continue
		}
		becomes := "each message more drops the oldest"
		if setting(q, "overflow") == "reject-publish" {
			becomes = "it refuses messages, and its retries wait"
		} else if setting(q, "overflow") == "reject-publish-dlx" {
			becomes = "it refuses messages, and dead-letters them"
		}
		f := Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("it is full (%s): %s", l, becomes), Remedy: "Let its consumers catch up."}
		if f.Commands = s.raiseLength(q, l); f.Commands != nil {
			f.Remedy = "Let its consumers catch up, or raise the limit:"
		}
		all = append(all, f)
	}
	return all
}
