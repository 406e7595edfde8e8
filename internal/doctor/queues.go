package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// queueChecks look at work queues, and at what leads to and from them.
var queueChecks = []Check{
	{Name: "existence", Title: "queues that policies, watch or --queue name exist", Needs: []Part{Queues},
		Run: existence, ByAMQP: existenceByAMQP,
		Why: "A policy for a queue that does not exist has no effect, nothing is told of a watched one, and a " +
			"misspelt --queue leaves all other checks with nothing to look at."},
	{Name: "dead-lettering", Title: "queues dead-letter to Redrive", Needs: []Part{Queues, Exchanges, Bindings},
		Run: deadLettering,
		Why: "Messages that a consumer rejects, that expire or that pass the delivery limit are dropped, or go " +
			"elsewhere."},
	{Name: "at-least-once", Title: "dead-lettering is at-least-once", Needs: []Part{Queues}, Run: atLeastOnce,
		Why: "At-most-once dead-lettering drops what fails while redrive.intake has no leader, as just after a " +
			"restart of RabbitMQ."},
	{Name: "standing", Title: "dead letters leave their queue", Needs: []Part{Queues, DeadLetters, Exchanges, Bindings},
		Run: standing,
		Why: "With at-least-once, RabbitMQ keeps a dead letter in its queue until its target has confirmed it. While " +
			"it stays there nothing is lost, and Redrive does not receive it."},
	{Name: "policy-in-force", Title: "the policy that enrols a queue is in force", Needs: []Part{Queues, Policies},
		Run: policyInForce,
		Why: "RabbitMQ applies one policy to a queue: one of higher priority silently replaces ours. An operator " +
			"policy is applied as well."},
	{Name: "retry-policy", Title: "a policy of Redrive's matches each enrolled queue", Needs: []Part{Queues},
		Run: unmatched,
		Why: "A message that no policy matches is parked at its first failure."},
	{Name: "forwards", Title: "what policies forward to exists", Needs: []Part{Queues, Exchanges}, Run: forwards,
		Why: "A message that is to be forwarded to what does not exist is parked."},
	{Name: "reports", Title: "the management API says which queues' reports are retried", Needs: []Part{Queues},
		Run: func(*Scene) []Finding { return nil }, ByAMQP: reportsByAMQP,
		Why: "A report is retried where the queue's dead-letter exchange is redrive. While the management API cannot " +
			"be asked about that, reports for queues that are not enrolled and that no policy names exactly wait."},
	{Name: "native-retry", Title: "no delayed retry of RabbitMQ's on top", Needs: []Part{Queues}, Run: nativeRetry,
		Why: "RabbitMQ 4.3 then delays requeued messages itself, besides Redrive's delays."},
	{Name: "lifetime", Title: "work queues stay, and their messages", Needs: []Part{Queues}, Run: lifetime,
		Why: "A queue that deletes itself takes its messages with it, and its waiting messages are parked."},
	{Name: "overflow", Title: "a full queue refuses, and pushes nothing out", Needs: []Part{Queues, Policies},
		Run: overflow,
		Why: "A retry into a queue that drops its oldest message for each new one costs another message, which " +
			"counts as failed: in the end good messages are parked."},
	{Name: "consumers", Title: "enrolled queues have consumers", Needs: []Part{Queues}, Run: consumers,
		ByAMQP: consumersByAMQP,
		Why:    "Retried messages stay in the queue unnoticed; RabbitMQ raises no alarm for that."},
	{Name: Forgotten, Title: "other queues with messages have a consumer", Needs: []Part{Queues, Exchanges, Bindings},
		Run: forgotten,
		Why: "A queue that nobody reads any more keeps what comes in, and grows unnoticed."},
	{Name: "deliveries", Title: "consumers take what is ready", Needs: []Part{Queues}, Run: deliveries,
		Why: "Retries stand behind what a consumer that hangs keeps. Of a single-active-consumer queue it keeps all " +
			"messages, and the other consumers look well."},
	{Name: "retry-exchange", Title: "retry exchanges lead to their queue alone",
		Needs: []Part{Queues, Exchanges, Bindings, Policies}, Run: retryExchange, ByAMQP: retryExchangeByAMQP,
		Why: "Redrive publishes retries to it, and may publish to no queue without one. Bound to more queues, each " +
			"receives a copy of every retry; bound to none, nothing is retried."},
	{Name: "delivery-limit", Title: "delivery limits fit the policies", Needs: []Part{Queues, Bindings},
		Run: deliveryLimit,
		Why: "A message that a consumer requeues, or crashes on, is dead-lettered when RabbitMQ's limit is passed, " +
			"and each time counts as one attempt of Redrive's."},
	{Name: "requeue", Title: "consumers do not requeue in a circle", Needs: []Part{Queues}, Run: requeue,
		Why: "A requeued message is delivered again at once, as fast as its consumer allows, and never reaches " +
			"Redrive. From RabbitMQ 4.3 on a basic.nack with requeue counts towards no limit; on classic queues " +
			"nothing does."},
}

func existence(s *Scene) (all []Finding) {
	var names []string
	for i := range s.Queues {
		names = append(names, s.Queues[i].Name)
	}
	for _, named := range s.namedQueues() {
		if !slices.ContainsFunc(names, func(q string) bool { return policy.MatchQueue(named, q) }) {
			all = append(all, s.absent(named, names))
		}
	}
	if s.Config.Notify.VHost != "" { // of several, and another may have it
		return all
	}
	for _, w := range s.Config.Watch {
		for _, q := range w.Queues {
			if !strings.ContainsAny(q, "*?") && !slices.Contains(names, q) &&
				!slices.ContainsFunc(all, func(f Finding) bool { return f.Queue == q }) {
				all = append(all, Finding{Queue: q, Status: Warning,
					What:   "watch names it, and it does not exist" + hint.Meant(q, names),
					Remedy: "Declare it, or remove it from the config."})
			}
		}
	}
	return all
}

func existenceByAMQP(s *Scene) (all []Finding) {
	for _, q := range s.Probed.Named {
		if !q.Exists {
			all = append(all, s.absent(q.Name, nil))
		}
	}
	return all
}

// absent is the finding that none of the queues that exist has a name.
func (s *Scene) absent(name string, exist []string) Finding {
	f := Finding{Queue: name, Status: Warning, What: "no queue of this virtual host matches it",
		Remedy: "Correct the name after --queue, or the virtual host."}
	if s.Config.Policies.Exact(name) {
		f.What, f.Remedy = "a policy names it, and it does not exist", "Declare it, or remove it from the config."
	}
	f.What += hint.Meant(name, exist)
	return f
}

func lifetime(s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		if !s.enrolled(q) && !s.Config.Policies.Exact(q.Name) {
			continue
		}
		if v := q.Setting("expires"); v != nil {
			all = append(all, Finding{Queue: q.Name, Status: Wrong,
				What: fmt.Sprintf("RabbitMQ deletes it, with its messages, when it has not been used for %s ms",
					management.Text(v)), Remedy: s.unset(q, "expires")})
		}
		// Of one that an operator policy sets, policyInForce tells.
		operator := management.PolicyNamed(s.OperatorPolicies, q.OperatorPolicy)
		if ttl := q.TTL(); q.Setting("message-ttl") != nil && s.enrolled(q) &&
			(operator == nil || operator.Definition["message-ttl"] == nil) {
			all = append(all, Finding{Queue: q.Name, Status: Warning,
				What: fmt.Sprintf("a message that no consumer takes within %s expires (message-ttl), a retry too",
					policy.FormatDuration(ttl)),
				Why: "What expires is parked, or counts as failed if the policy's reasons name expired, and no " +
					"consumer had it.",
				Remedy: "Let it be longer than consumers are ever away or behind, or do without. " +
					s.unset(q, "message-ttl")})
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
				all = append(all, Finding{Queue: q.Name, Status: Wrong, What: is.what,
					Remedy: "Delete it and declare it again, durable, not auto-delete and not exclusive: RabbitMQ " +
						"cannot change that."})
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
			Remedy: "Let its overflow be reject-publish: retries then wait until there is room, and publishers' " +
				"messages are refused, for which these need confirms. Or raise the limit."}
		if reached(q) != "" {
			f.Status, f.What = Wrong, "it is full now; "+f.What
		}
		switch {
		case isArgument(q, "overflow"):
			f.Remedy += " " + s.unset(q, "overflow")
		case q.Type == "quorum" && prevents(q) == "":
			f.Commands = []string{s.redrive("enroll --at-least-once", q.Name)}
		default:
			f.Commands = []string{s.refusing(q)}
		}
		all = append(all, f)
	}
	return all
}

// limits returns the limits of a queue's length; "": it has none.
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
	what := "it has no consumer"
	if messages > 0 {
		what += fmt.Sprintf(", and %d messages", messages)
	}
	return Finding{Queue: queue, Status: Warning,
		What:     what + "; RabbitMQ does not record since when",
		Remedy:   "Start its consumer; meanwhile pause its retries:",
		Commands: []string{s.call() + " pause " + Quote(queue)}}
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

// Forgotten is the check of queues that hold messages and have no consumer.
const Forgotten = "forgotten"

// forgotten looks at queues that are not enrolled, except dead-letter queues and queues to wait in.
func forgotten(s *Scene) (all []Finding) {
	var queues, said []string
	routes := management.NewRoutes(s.Queues, s.Bindings, s.Exchanges, s.Policies)
	leads := routes.Leads()
	for _, q := range s.workQueues() {
		suspect, _ := routes.Suspect(q.Name, leads[q.Name])
		waits := q.Setting("dead-letter-exchange") != nil && (q.TTL() > 0 || len(leads[q.Name]) > 0)
		matches := func(pattern string) bool { return policy.MatchQueue(pattern, q.Name) }
		if q.Ready == 0 || q.Consumers > 0 || q.Type == "stream" || s.enrolled(q) || suspect != "" || waits ||
			slices.ContainsFunc(s.Config.FollowedQueues(), matches) {
			continue
		}
		queues, said = append(queues, q.Name), append(said, fmt.Sprintf("%s (%d)", q.Name, q.Ready))
	}
	if len(queues) == 0 {
		return nil
	}
	return []Finding{{Queues: queues, Status: Warning, What: "messages, and no consumer: " + few(said),
		Remedy: "Start a consumer, or delete the queue with what is in it. -o json lists them all."}}
}

func consumersByAMQP(s *Scene) (all []Finding) {
	for _, q := range s.Probed.Named {
		if q.Exists && q.Consumers == 0 {
			all = append(all, s.noConsumer(q.Name, q.Ready))
		}
	}
	return all
}

// deliveries finds queues whose consumers are connected and take no ready messages.
func deliveries(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		if q.Ready == 0 || q.Consumers == 0 || q.Stats.Delivered.InMinute() > 0 {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning,
			What: fmt.Sprintf("messages ready: %d, unacknowledged: %d, consumers: %d; and none was delivered in the "+
				"last minute",
				q.Ready, q.Unacked, q.Consumers),
			Remedy: "See what its consumers do, and stop those that hang: RabbitMQ delivers their messages again. " +
				"Where a handler takes that long, do nothing. To list them:",
			Commands: []string{s.rabbitmqctl("list_consumers", "queue_name", "channel_pid", "consumer_tag",
				"prefetch_count", "active")}}
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
			Remedy: "Let consumers reject without requeue (basic.reject or basic.nack, requeue=false) what they " +
				"cannot do now: Redrive retries it later."})
	}
	return all
}

// ends says what ends the redeliveries of a queue.
func (s *Scene) ends(q *management.QueueState) string {
	limit, limited := q.LimitInForce(s.Version)
	switch {
	case limited && s.versionAtLeast(4, 3):
		return fmt.Sprintf("; after basic.reject the delivery limit (%d) ends that, after basic.nack nothing does",
			limit)
	case limited:
		return fmt.Sprintf("; the delivery limit (%d) ends that for each", limit)
	}
	return ", and no delivery limit ends that"
}

// deadLettering looks at the queues that policies match. A problem of one that a policy names
// exactly is Wrong; one that only a pattern matches may not be meant, so there it is a Warning. Of other
// queues it looks only whether their dead-letter exchange exists.
func deadLettering(s *Scene) (all []Finding) {
	handled := s.handled()
	routes := management.NewRoutes(s.Queues, s.Bindings, s.Exchanges, s.Policies)
	for _, q := range s.workQueues() {
		_, matched := s.Config.Policies.Match(q.Name)
		matched = matched && !q.Exclusive && q.Type != "stream" // which cannot be enrolled
		exact := s.Config.Policies.Exact(q.Name)
		status := Warning
		if exact {
			status = Wrong
		}
		suspect, _ := routes.Suspect(q.Name, nil) // what others dead-letter to is handled
		to, has := q.Setting("dead-letter-exchange").(string)
		lost := to != "" && s.exchange(to) == nil && to != wire.ExchangeDeadLetters &&
			!strings.HasPrefix(to, wire.DelayPrefix)
		switch {
		case !matched && !lost:
			// No policy is for it.
		case !has && (q.AutoDelete && !exact || handled[q.Name]):
			// A reply queue; the library's; somebody's own dead-letter queue.
		case !has && management.PolicyNamed(s.Policies, "redrive."+q.Name) != nil:
			// See policyInForce.
		case suspect != "" && !has && !exact:
			if q.Ready > 0 {
				all = append(all, Finding{Queue: q.Name, Status: Warning,
					What:   fmt.Sprintf("it looks like a dead-letter queue: %s; messages: %d", suspect, q.Ready),
					Why:    "Adopted, they are seen and can be replayed.",
					Remedy: "Adopt them:", Commands: []string{s.call() + " adopt " + Quote(q.Name)}})
			}
		case !has:
			all = append(all, Finding{Queue: q.Name, Status: status, What: "it has no dead-letter exchange: " +
				s.dropped(q), Remedy: "Point it at Redrive:", Commands: []string{s.redrive("enroll", q.Name)}})
		case to == wire.ExchangeDeadLetters:
			if key := q.Setting("dead-letter-routing-key"); key != nil {
				all = append(all, Finding{Queue: q.Name, Status: Warning,
					What:   fmt.Sprintf("its dead letters get the routing key %q, and are retried with it", key),
					Why:    "Redrive retries a message with its own routing key, and this one replaces it.",
					Remedy: s.unset(q, "dead-letter-routing-key")})
			}
		case q.RetriedAlone() && !lost:
			// RabbitMQ alone retries them.
		case lost:
			becomes := "are dropped"
			if keepsDeadLetters(q) {
				becomes = "stand still in it"
			}
			f := s.elsewhere(q, Wrong, fmt.Sprintf("it dead-letters to the exchange %s, which does not exist: its "+
				"dead letters %s", to, becomes))
			if !matched {
				f.Status, f.Commands = Warning, nil
				f.Remedy = "Declare the exchange and bind it, or do without. " + s.unset(q, "dead-letter-exchange")
			}
			all = append(all, f)
		default:
			all = append(all, s.elsewhere(q, status,
				fmt.Sprintf("it dead-letters to the exchange %q, not to Redrive", to)))
		}
	}
	return all
}

func (s *Scene) elsewhere(q *management.QueueState, st Status, what string) Finding {
	f := Finding{Queue: q.Name, Status: st, What: what, Remedy: "Point it at Redrive by a policy of higher priority:",
		Commands: []string{s.redrive("enroll", q.Name)}}
	if isArgument(q, "dead-letter-exchange") {
		f.What += " (by its argument)"
		f.Remedy = "No policy can change an argument. Move it to a new queue, with its bindings and messages, or " +
			"leave it as it is. What a move would do:"
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

// keepsDeadLetters reports whether a queue's dead-lettering is at-least-once.
func keepsDeadLetters(q *management.QueueState) bool {
	return q.Type == "quorum" && q.Setting("dead-letter-strategy") == "at-least-once" &&
		q.Setting("overflow") == "reject-publish"
}

// prevents is the setting of a queue whose argument prevents at-least-once dead-lettering; "": none.
func prevents(q *management.QueueState) string {
	for _, must := range [][2]string{{"dead-letter-strategy", "at-least-once"}, {"overflow", "reject-publish"}} {
		if isArgument(q, must[0]) && q.Setting(must[0]) != must[1] {
			return must[0]
		}
	}
	return ""
}

func atLeastOnce(s *Scene) (all []Finding) {
	var others []string // which have no at-least-once dead-lettering
	for _, q := range s.enrolledQueues() {
		strategy, overflow := q.Setting("dead-letter-strategy"), q.Setting("overflow")
		switch {
		case q.Type != "quorum":
			others = append(others, q.Name)
		case strategy != "at-least-once" || overflow != "reject-publish":
			f := Finding{Queue: q.Name, Status: Warning, What: "its dead-lettering is at-most-once",
				Remedy:   "Make it at-least-once (its overflow becomes reject-publish):",
				Commands: []string{s.redrive("enroll --at-least-once", q.Name)}}
			if strategy == "at-least-once" {
				f.What = "its dead-lettering says at-least-once and is at-most-once, since its overflow is not " +
					"reject-publish"
				f.Remedy = "Make it both:"
			}
			if key := prevents(q); key != "" {
				f.Remedy, f.Commands = s.unset(q, key), nil
			}
			all = append(all, f)
		}
	}
	if len(others) > 0 {
		all = append(all, Finding{Queues: others, Status: Warning,
			What:   fmt.Sprintf("dead-lettering is at-most-once for all but quorum queues: %s", few(others)),
			Remedy: "Where no message may be lost, declare a quorum queue instead. -o json lists them all."})
	}
	return all
}

// watchFor is how long dead letters are watched: RabbitMQ tells of a quorum queue every 5 s,
// so this is three times. Those that are only on their way become fewer between two of them.
const watchFor = 15 * time.Second

// watchDeadLetters watches the queues that keep dead letters, until each has released some or the
// time is over.
func (s *Scene) watchDeadLetters(ctx context.Context, long time.Duration) (map[string]int, error) {
	left := map[string]int{}
	for _, q := range s.Queues {
		if q.Dead > 0 {
			left[q.Name] = q.Dead
		}
	}
	for until := time.Now().Add(long); len(left) > 0 && time.Now().Before(until); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(time.Second, long)):
		}
		now, err := s.Manage.QueueStates(ctx)
		if err != nil {
			return nil, err
		}
		still := map[string]int{}
		for _, q := range now {
			if was, ok := left[q.Name]; ok && q.Dead >= was {
				still[q.Name] = q.Dead
			}
		}
		left = still
	}
	return left, nil
}

// standing finds dead letters that stand still: their target is missing, or the process in
// RabbitMQ that publishes them, one beside each queue's leader, does not go on.
func standing(s *Scene) (all []Finding) {
	for i := range s.Queues {
		q := &s.Queues[i]
		n := s.Standing[q.Name]
		if n == 0 {
			continue
		}
		f := Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("%d of its dead letters stand still in it", n)}
		to, _ := q.Setting("dead-letter-exchange").(string)
		if missing := s.nowhere(q, to); missing != "" {
			f.What += ": " + missing
			f.Remedy = "Give it a target. RabbitMQ tries again every three minutes, by itself, and loses none. Do " +
				"not make it at-most-once meanwhile, which deletes them."
			switch {
			case to == wire.ExchangeDeadLetters:
				f.Commands, f.Fixable, f.fix = []string{s.redrive("doctor --fix")}, true, fix{topology: true}
			case !wire.OwnQueue(q.Name) && !isArgument(q, "dead-letter-exchange"):
				f.Commands = []string{s.redrive("enroll --at-least-once", q.Name)}
			}
			all = append(all, f)
			continue
		}
		if at, ok := s.unavailable(q, n); ok {
			all = append(all, at)
			continue
		}
		f.What += ", and their target is there"
		f.Remedy, f.Commands = s.anotherLeader(q)
		all = append(all, f)
	}
	return all
}

// nowhere says why a dead letter of a queue cannot be routed; "" if it can. It does not look at the
// routing keys of bindings.
func (s *Scene) nowhere(q *management.QueueState, to string) string {
	key, named := q.Setting("dead-letter-routing-key").(string)
	if to == "" && !named {
		return ""
	}
	if gone := s.gone(to, key); gone != "" {
		return "they go to " + gone
	}
	if to != "" && s.alternate(s.exchange(to)) == nil &&
		!slices.ContainsFunc(s.Bindings, func(b management.Binding) bool { return b.Source == to }) {
		return fmt.Sprintf("they go to the exchange %s, which is bound to nothing", to)
	}
	return ""
}

// gone names an exchange, or the queue behind the default exchange, that does not exist; "": it exists.
func (s *Scene) gone(exchange, key string) string {
	switch {
	case exchange == "" && s.queue(key) == nil:
		return fmt.Sprintf("the queue %s, which does not exist", key)
	case exchange != "" && s.exchange(exchange) == nil:
		return fmt.Sprintf("the exchange %s, which does not exist", exchange)
	}
	return ""
}

// alternate returns the alternate exchange that an exchange's argument names; nil when it
// returns that.
func (s *Scene) alternate(x *management.Exchange) *management.Exchange {
	if to, named := x.Arguments["alternate-exchange"].(string); named && to != x.Name {
		return s.exchange(to)
	}
	return nil
}

// anotherLeader returns how to start the process again: it begins again on the node of a new leader.
// RabbitMQ has no command for that for a single queue, so this calls its code.
func (s *Scene) anotherLeader(q *management.QueueState) (remedy string, commands []string) {
	for _, node := range q.Online {
		if node != q.Leader {
			return "Let another node lead the queue, on any of RabbitMQ's machines; RabbitMQ then begins again, and " +
					"loses none. Do not make it at-most-once meanwhile, which deletes them.",
				[]string{"rabbitmqctl eval " + Quote(fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, "+
					"queue, %s)), rabbit_quorum_queue:transfer_leadership(Q, %s).", binary(s.VHost), binary(q.Name),
					atom(node)))}
		}
	}
	return "It has no replica on another node that runs: start those that are down, or restart the node of its " +
		"leader. Do not make it at-most-once meanwhile, which deletes them.", nil
}

// binary and atom are names as Erlang reads them.
func binary(s string) string { return `<<"` + erlang(s, `"`) + `"/utf8>>` }
func atom(s string) string   { return `'` + erlang(s, `'`) + `'` }

func erlang(s, quote string) string {
	return strings.NewReplacer(`\`, `\\`, quote, `\`+quote).Replace(s)
}

// operatorKeys are keys of operator policies that change what happens to messages.
var operatorKeys = []string{"message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit"}

func policyInForce(s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		ours := management.PolicyNamed(s.Policies, "redrive."+q.Name)
		enrolled := s.enrolled(q)
		if ours != nil && !enrolled && !isArgument(q, "dead-letter-exchange") {
			by := "nothing applies"
			if q.Policy != "" {
				by = fmt.Sprintf("policy %q is", q.Policy)
				if other := management.PolicyNamed(s.Policies, q.Policy); other != nil {
					by = fmt.Sprintf("policy %q of priority %d is", q.Policy, other.Priority)
				}
			}
			command := "enroll"
			if ours.Definition["dead-letter-strategy"] == "at-least-once" && q.Type == "quorum" && prevents(q) == "" {
				command += " --at-least-once"
			}
			all = append(all, Finding{Queue: q.Name, Status: Wrong,
				What:   fmt.Sprintf("its enrolment, a policy of priority %d, is not in force: %s", ours.Priority, by),
				Remedy: "Merge both, above the other:", Commands: []string{s.redrive(command, q.Name)}})
		}
		if q.OperatorPolicy == "" || !enrolled {
			continue
		}
		if operator := management.PolicyNamed(s.OperatorPolicies, q.OperatorPolicy); operator != nil {
			if keys := management.Settings(operator.Definition, operatorKeys); len(keys) > 0 {
				all = append(all, Finding{Queue: q.Name, Status: Warning,
					What: fmt.Sprintf("the operator policy %q puts %s on it, whatever its own policy says",
						q.OperatorPolicy, strings.Join(keys, ", ")),
					Remedy:   "Ask who set it, or take it away:",
					Commands: []string{s.rabbitmqctl("clear_operator_policy", q.OperatorPolicy)}})
			}
		}
	}
	return all
}

func unmatched(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		if _, ok := s.Config.Policies.Match(q.Name); !ok {
			f := Finding{Queue: q.Name, Status: Warning, What: "no policy of Redrive's config matches it",
				Remedy: "Add it to the queues of a policy, then:"}
			if s.File != "" {
				f.Commands = []string{"redrive check " + Quote(s.File)} // not as s.Call: check accepts no --vhost
			}
			all = append(all, f)
		}
	}
	return all
}

func forwards(s *Scene) (all []Finding) {
	for i := range s.Config.Policies {
		p := &s.Config.Policies[i]
		for _, to := range p.Forwards() {
			gone := s.gone(to.Exchange, to.RoutingKey)
			what := fmt.Sprintf("policy %q forwards to %s", p.Name, gone)
			if gone == "" || slices.ContainsFunc(all, func(f Finding) bool { return f.What == what }) {
				continue
			}
			f := Finding{Status: Wrong, What: what,
				Remedy: "Declare it, or correct the policy. Then replay what was parked meanwhile."}
			if to.Exchange == "" {
				f.Remedy = "Correct the policy, or declare the queue. Then replay what was parked meanwhile."
				f.Commands = []string{"curl -u " + Quote(s.Manage.User()) + " -X PUT -d " +
					Quote(`{"durable":true,"arguments":{"x-queue-type":"quorum"}}`) + " " +
					Quote(s.Manage.URL("queues", to.RoutingKey))}
			}
			all = append(all, f)
		}
	}
	return all
}

func nativeRetry(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		kind, _ := q.Setting("delayed-retry-type").(string)
		if kind == "" || kind == "disabled" || q.Type != "quorum" {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning,
			What: fmt.Sprintf("RabbitMQ delays what its consumers requeue (delayed-retry-type: %s), and Redrive "+
				"what they reject", kind),
			Remedy: "Leave it on only if consumers requeue on purpose. " + s.unset(q, "delayed-retry-type")}
		if !s.versionAtLeast(4, 3) {
			f.What = fmt.Sprintf("it asks for RabbitMQ's delayed retry (delayed-retry-type: %s), which RabbitMQ %s "+
				"ignores and 4.3 applies", kind, s.Version)
		}
		all = append(all, f)
	}
	return all
}

func deliveryLimit(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		p, ok := s.Config.Policies.Match(q.Name)
		limit, limited := q.LimitInForce(s.Version)
		if !ok || !limited || limit >= p.Attempts {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning,
			What:   fmt.Sprintf("its delivery limit is %d, and policy %q has %d attempts", limit, p.Name, p.Attempts),
			Remedy: "Reject without requeue what fails, or raise the limit. " + s.raise(q)}
		if reasons := p.Reasons; len(reasons) > 0 && !slices.Contains(reasons, "delivery_limit") {
			f.Status = Wrong
			f.What += " and no reason delivery_limit: what passes the limit is parked at once"
			f.Remedy = "Add delivery_limit to the policy's reasons, or raise the limit. " + s.raise(q)
		}
		all = append(all, f)
	}
	return append(all, s.ofTheLibrary()...)
}

// ofTheLibrary looks at the queues whose consumers use the Go library: those bound to redrive.due.
func (s *Scene) ofTheLibrary() (all []Finding) {
	for _, q := range s.workQueues() {
		ours := slices.ContainsFunc(s.Bindings,
			func(b management.Binding) bool { return b.Source == wire.ExchangeDue && b.Destination == q.Name })
		if !ours || s.enrolled(q) {
			continue
		}
		limit, limited := q.LimitInForce(s.Version)
		switch {
		case q.Type == "classic":
			all = append(all, Finding{Queue: q.Name, Status: Warning,
				What: "it is classic, and counts no deliveries: a message that ends its consumer's process is " +
					"delivered again for ever",
				Remedy: "Declare it as a quorum queue: then Consumer.MaxDeliveries of the Go library parks such a " +
					"message."})
		case limited && limit <= defaultMaxDeliveries && q.Setting("dead-letter-exchange") == nil:
			all = append(all, Finding{Queue: q.Name, Status: Wrong,
				What: fmt.Sprintf("its delivery limit is %d, and it has no dead-letter exchange: a message that "+
					"ends its consumer's process is dropped", limit),
				Remedy: "Raise the limit above Consumer.MaxDeliveries of the Go library (10 unless it is set), or " +
					"lower that. " + s.raise(q)})
		}
	}
	return all
}

// defaultMaxDeliveries is the library's: from there on it parks.
const defaultMaxDeliveries = 10

func (s *Scene) raise(q *management.QueueState) string {
	if isArgument(q, "delivery-limit") {
		return "The queue was declared with it (x-delivery-limit), which no policy can raise."
	}
	return fmt.Sprintf("It is delivery-limit in the RabbitMQ policy %q.", q.Policy)
}

func retryExchange(s *Scene) (all []Finding) {
	of := map[string]bool{} // retry exchanges of queues that exist
	from := map[string][]management.Binding{}
	for _, b := range s.Bindings {
		from[b.Source] = append(from[b.Source], b)
	}
	for i := range s.Queues {
		q := &s.Queues[i]
		name := wire.RetryExchange(q.Name)
		of[name] = true
		if wire.OwnQueue(q.Name) || !s.selected(q.Name) {
			continue
		}
		x := s.exchange(name)
		if x == nil {
			// Declared with the argument, a queue gets it with its first dead letter.
			if s.enrolled(q) && management.PolicyNamed(s.Policies, "redrive."+q.Name) != nil {
				all = append(all, s.bind(q.Name, fmt.Sprintf("its retry exchange %s does not exist", name)))
			}
			continue
		}
		if not := differs(x, "fanout", false); not != "" {
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its retry exchange %s is %s",
				name, not), Remedy: "Delete it, and declare it again:",
				Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", name)), s.redrive("doctor --fix")}})
			continue
		}
		bound := false
		for _, b := range from[name] {
			if b.DestinationType == "queue" && b.Destination == q.Name {
				bound = true
				continue
			}
			if b.DestinationType == "exchange" && strings.HasPrefix(b.Destination, "federation: ") {
				continue // see foreign
			}
			all = append(all, Finding{Queue: q.Name, Status: Wrong,
				What: fmt.Sprintf("its retry exchange also leads to the %s %s, which gets a copy of each "+
					"retried message", b.DestinationType, b.Destination), Remedy: "Remove the binding:",
				Commands: []string{s.deleteCommand(s.Manage.BindingURL(b))}})
		}
		if !bound {
			all = append(all, s.bind(q.Name, fmt.Sprintf("its retry exchange %s does not lead to it", name)))
		}
	}
	var gone []string
	for _, x := range s.Exchanges {
		if strings.HasPrefix(x.Name, wire.RetryExchange("")) && !of[x.Name] {
			gone = append(gone, x.Name)
		}
	}
	if len(gone) > 0 && len(s.Only) == 0 {
		all = append(all, Finding{Status: Warning, What: "retry exchanges without a queue of their name: " + few(gone) +
			"; messages wait 5 minutes for such a queue (no_queue), and are parked then",
			Remedy: "Declare the queues again, or do nothing: a running service deletes such an exchange when " +
				"nothing waits for it."})
	}
	return all
}

func (s *Scene) bind(queue, what string) Finding {
	return Finding{Queue: queue, Status: Wrong, What: what, Remedy: "Declare it and bind it:",
		Commands: []string{s.redrive("doctor --fix --queue=" + Quote(queue))}, Fixable: true, fix: fix{queue: queue}}
}

func retryExchangeByAMQP(s *Scene) (all []Finding) {
	for _, q := range s.Probed.Named {
		if q.Exists && !q.RetryExchange {
			all = append(all, Finding{Queue: q.Name, Status: OK,
				What: "it has no retry exchange yet; it gets one with its first dead letter"})
		}
	}
	return all
}

// unavailable is a finding about a queue in which the due messages of one work queue stay
// while that one does not accept them: it names the work queue, which is what needs
// repairing. Other queues' messages do not wait behind these.
func (s *Scene) unavailable(q *management.QueueState, n int) (Finding, bool) {
	work := s.queue(workQueueOf(q))
	if work == nil {
		return Finding{}, false
	}
	return Finding{Queue: work.Name, Status: Wrong,
		What: fmt.Sprintf("%d of its retries are due and stay in %s, since %s", n, q.Name, refuses(work)),
		Remedy: "Let its consumers catch up, raise its limit, or bring its nodes back. RabbitMQ tries again every " +
			"three minutes, by itself, and loses none; other queues' retries continue."}, true
}

// workQueueOf is the work queue that a queue of ours alone dead-letters to; "": none.
func workQueueOf(q *management.QueueState) (work string) {
	if strings.HasPrefix(q.Name, wire.ExchangeLane+".") {
		work, _ = q.Arguments["x-dead-letter-routing-key"].(string)
	} else if name, ok := strings.CutPrefix(q.Name, wire.DelayPrefix+"message-ttl.quorum."); ok {
		work = name
	}
	return work
}

// refuses says why a queue accepts nothing, as far as RabbitMQ shows it.
func refuses(q *management.QueueState) string {
	if overflow, _ := q.Setting("overflow").(string); strings.HasPrefix(overflow, "reject-publish") {
		if limit := reached(q); limit != "" {
			return fmt.Sprintf("it is full (%s) and its overflow is %s", limit, overflow)
		}
	}
	if q.Type == "quorum" && (q.Leader == "" || len(q.Online) <= len(q.Members)/2) {
		return fmt.Sprintf("%d of its %d replicas run, so it has no leader", len(q.Online), len(q.Members))
	}
	return "it does not accept them"
}

// reportsByAMQP is asked where the management API is missing: the service then lacks it, too.
func reportsByAMQP(s *Scene) []Finding {
	var patterns []string
	for i := range s.Config.Policies {
		for _, q := range s.Config.Policies[i].Queues {
			if !s.Config.Policies.Exact(q) {
				patterns = append(patterns, fmt.Sprintf("%q", q))
			}
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	f := Finding{Status: Warning, What: fmt.Sprintf("reports of failures for queues that only %s matches, and that "+
		"have no retry exchange yet, wait: %v", strings.Join(patterns, ", "), s.Missing[Queues]),
		Remedy: "Let the service ask the management API (broker.management), or name the queues in a policy."}
	// Not for a wrong password, nor for one that has a tag.
	if err := s.Missing[Queues]; errors.Is(err, management.ErrDenied) && s.Manage != nil &&
		strings.Contains(err.Error(), "Not management user") {
		f.Remedy = "Give the user of broker.management a tag, if it has none, or name the queues in a policy."
		f.Commands = []string{"rabbitmqctl set_user_tags " + Quote(s.Manage.User()) + " management"}
	}
	return []Finding{f}
}
