package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/wire"
)

const startIt = "The service makes it when it starts; --fix makes it now:"

// missing is a finding about what the service itself declares.
func (s *Scene) missing(what string) []Finding {
	return []Finding{{Status: Wrong, What: what, Remedy: startIt, Commands: []string{s.redrive("doctor --fix")}, Fixable: true, fix: fix{topology: true}}}
}

func deadLetterExchange(s *Scene) (all []Finding) {
	x := s.exchange(wire.ExchangeDeadLetters)
	if x == nil {
		return s.missing("the exchange redrive does not exist")
	}
	if not := differs(x, "fanout", true); not != "" {
		all = append(all, Finding{Status: Wrong, What: "the exchange redrive is " + not, Remedy: "Delete it and start the service, which declares it as it must be. Stop the consumers whose messages fail meanwhile: dead letters are lost while it is missing.",
			Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", wire.ExchangeDeadLetters)), s.redrive("doctor --fix")}})
	}
	bound := false
	for _, b := range s.Bindings {
		switch {
		case b.Source != wire.ExchangeDeadLetters:
		case b.DestinationType == "queue" && b.Destination == wire.QueueIntake:
			bound = true
		default:
			all = append(all, Finding{Status: Warning, What: fmt.Sprintf("the exchange redrive also leads to the %s %s, which gets a copy of every dead letter", b.DestinationType, b.Destination), Remedy: "Take the binding away, unless you want it.",
				Commands: []string{s.deleteCommand(s.Manage.BindingURL(b))}})
		}
	}
	if !bound {
		all = append(all, s.missing("the exchange redrive is not bound to redrive.intake")...)
	}
	return all
}

// differs says what an exchange is that it should not be.
func differs(x *management.Exchange, kind string, internal bool) string {
	var not []string
	if x.Internal != internal {
		not = append(not, map[bool]string{true: "not internal", false: "internal"}[internal])
	}
	if !x.Durable {
		not = append(not, "not durable")
	}
	if x.AutoDelete {
		not = append(not, "auto-delete")
	}
	if x.Type != kind {
		not = append(not, "of type "+x.Type+", not "+kind)
	}
	return strings.Join(not, ", ")
}

func deadLetterExchangeByAMQP(s *Scene) []Finding {
	switch err := s.Probed.Exchange; {
	case errors.Is(err, wire.ErrUnroutable):
		return s.missing("the exchange redrive does not exist")
	case errors.Is(err, wire.ErrDiffers):
		return []Finding{{Status: Wrong, What: fmt.Sprintf("the exchange redrive is not as it must be: %v", err), Remedy: "Delete it on RabbitMQ's management page, and start the service."}}
	case err != nil && !errors.Is(err, wire.ErrForbidden):
		return []Finding{{Status: Unknown, What: fmt.Sprintf("the exchange redrive: %v", err)}}
	}
	return nil
}

// deleteEmpty is for one of our queues that was declared with other arguments.
const deleteEmpty = "Stop the consumers whose messages fail, have the version of the service that declared it empty it, and delete it when it shows 0 messages; the service then declares it as it must be:"

func (s *Scene) deleteWhenEmpty(queue string) []string {
	return []string{s.rabbitmqctl("list_queues", "name", "messages"), s.rabbitmqctl("delete_queue", queue), s.redrive("doctor --fix")}
}

func intake(s *Scene) (all []Finding) {
	q := s.queue(wire.QueueIntake)
	if q == nil {
		return s.missing("the queue redrive.intake does not exist")
	}
	var not []string
	if q.Type != "quorum" {
		not = append(not, q.Type+", not quorum")
	}
	if !q.Durable {
		not = append(not, "not durable")
	}
	if to := q.Arguments["x-dead-letter-exchange"]; to != wire.ExchangeQuarantine {
		not = append(not, fmt.Sprintf("declared with x-dead-letter-exchange %v, not %s", to, wire.ExchangeQuarantine))
	}
	if len(not) > 0 {
		all = append(all, Finding{Status: Wrong, What: "redrive.intake is " + strings.Join(not, ", "), Remedy: deleteEmpty,
			Commands: s.deleteWhenEmpty(wire.QueueIntake)})
	}
	return append(all, s.smallLimits()...)
}

// smallLimits are of the delivery limits in force, whatever our queues were declared with.
func (s *Scene) smallLimits() (all []Finding) {
	for name, becomes := range map[string]string{
		wire.QueueIntake:     "after that many lost connections RabbitMQ moves good messages to redrive.quarantine",
		wire.QueueQuarantine: "after that many lost connections RabbitMQ drops a message",
	} {
		q := s.queue(name)
		if q == nil {
			continue
		}
		if limit, limited := q.LimitInForce(s.Version); limited && limit < broker.DeliveryLimit {
			names, commands := s.leavingOut(q.Policy, q.OperatorPolicy)
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the delivery limit in force of our queue %s is %d, by a RabbitMQ policy (%s): %s", name, limit, strings.Join(names, ", "), becomes),
				Remedy: leaveOut, Commands: commands})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return all
}

// others finds services with a store of their own beside this config's. Replicas that share a store
// know each other, so nothing is said of them here.
func others(s *Scene) []Finding {
	if n := s.Probed.Consumers; n > 1 && s.Config.Store.OnDisk() {
		return []Finding{{Status: Wrong, What: fmt.Sprintf("redrive.intake has %d consumers, and a service with its store on disk is one: each takes a part of the failed messages", n),
			Remedy: "Stop the other services of this virtual host, or give all of them one store (store.redis). To list the consumers:", Commands: []string{s.rabbitmqctl("list_consumers", "queue_name", "channel_pid")}}}
	}
	return nil
}

// foreign finds what policies of others change of what is ours.
func foreign(s *Scene) (all []Finding) {
	for _, f := range management.FindForeign(s.Exchanges, s.Queues, s.Policies) {
		finding := Finding{Status: Wrong, What: f.String(), Remedy: leaveOut}
		if _, finding.Commands = s.leavingOut(f.Policy, f.OperatorPolicy); f.Cluster != "" {
			finding.Remedy = "Let the pattern of the policy there leave out the names redrive and redrive.*, as " + oursLeftOut + ".* does. Do not delete its binding or queue here: they are that cluster's, and the queue may hold messages."
		}
		all = append(all, finding)
	}
	return all
}

const (
	leaveOut = "Let the policy's pattern leave out the names redrive and redrive.*:"
	// oursLeftOut begins a pattern that matches no name of ours.
	oursLeftOut = `^(?!redrive(\.|$))`
)

// leavingOut are policies, and commands after which they match nothing of ours.
func (s *Scene) leavingOut(policy, operatorPolicy string) (names, commands []string) {
	for _, from := range []struct {
		command, name string
		all           []management.Policy
	}{{"set_policy", policy, s.Policies}, {"set_operator_policy", operatorPolicy, s.OperatorPolicies}} {
		if from.name == "" {
			continue
		}
		names = append(names, from.name)
		if p := management.PolicyNamed(from.all, from.name); p != nil {
			definition, _ := json.Marshal(p.Definition) // it came as JSON
			commands = append(commands, s.rabbitmqctl(from.command, p.Name, oursLeftOut+`.*?(?:`+p.Pattern+`)`, string(definition), "--priority", strconv.Itoa(p.Priority), "--apply-to", p.ApplyTo))
		}
	}
	return names, commands
}

func intakeByAMQP(s *Scene) []Finding {
	switch err := s.Probed.Intake; {
	case errors.Is(err, wire.ErrQueueGone):
		return s.missing("the queue redrive.intake does not exist")
	case errors.Is(err, wire.ErrDiffers):
		return []Finding{{Status: Wrong, What: fmt.Sprintf("redrive.intake is not as it must be: %v", err), Remedy: deleteEmpty, Commands: s.deleteWhenEmpty(wire.QueueIntake)}}
	case err != nil && !errors.Is(err, wire.ErrForbidden):
		return []Finding{{Status: Unknown, What: fmt.Sprintf("redrive.intake: %v", err)}}
	}
	return nil
}

func quarantine(s *Scene) []Finding {
	if n := s.Probed.Quarantine.Ready; n > 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.quarantine: %d", n), Remedy: "The service parks them. Where they stay while it runs, RabbitMQ cannot deliver the first; this shows it and removes it:",
			Commands: []string{broker.RemoveQuarantined(s.VHost)}}}
	}
	return nil
}

func parked(s *Scene) []Finding {
	p := s.Probed.Parked
	if p.Exists && p.Ready > 0 && p.Consumers == 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.parked: %d, and no service collects them", p.Ready), Remedy: "Run the service, which collects, shows and replays them:", Commands: []string{s.redrive("serve")}}}
	}
	return nil
}

func running(s *Scene) (all []Finding) {
	v := s.Service
	switch {
	case v.Asked == "":
		return []Finding{{Status: OK, What: "not asked: no address is configured"}}
	case v.Err != nil && !v.Named:
		return []Finding{{Status: OK, What: "not asked: nothing answers at " + v.Asked + ", and no address is configured"}}
	case v.Err != nil:
		return []Finding{{Status: Warning, What: fmt.Sprintf("no service answers at %s: %v", v.Asked, v.Err), Remedy: "Start it, or give the address of one by --address.", Commands: []string{s.redrive("serve")}}}
	}
	// Not as s.Call, whose --vhost is in the address already.
	status := []string{"redrive status --address " + Quote(v.Asked)}
	for _, p := range v.Problems {
		f := Finding{Status: Wrong, What: "not ready: " + p}
		if condition.LineReady(p) {
			f = Finding{Status: Warning, What: p}
		}
		f.Commands = status
		all = append(all, f)
	}
	for _, n := range v.Notices {
		all = append(all, Finding{Status: Warning, What: n, Commands: status})
	}
	return all
}

func connection(s *Scene) (all []Finding) {
	if err := s.Missing[AMQP]; err != nil {
		return []Finding{{Status: Wrong, What: err.Error(), Remedy: "Check broker.url: host, port, user, password, virtual host. As RabbitMQ sees the user:",
			Commands: []string{"rabbitmqctl authenticate_user " + Quote(s.User), "rabbitmqctl list_user_permissions " + Quote(s.User)}}}
	}
	for _, err := range s.Unreached {
		all = append(all, Finding{Status: Warning, What: fmt.Sprintf("one of several addresses does not answer: %v", err), Why: "The others serve meanwhile, and one less is left to go to.",
			Remedy: "Start that node, or repair its address in broker.url or broker.management."})
	}
	return all
}

func rabbitmqVersion(s *Scene) []Finding {
	supported, ok := version.AtLeast(s.Version, 3, 10)
	switch {
	case !ok:
		return []Finding{{Status: Unknown, What: "RabbitMQ did not say its version"}}
	case !supported:
		return []Finding{{Status: Wrong, What: "RabbitMQ " + s.Version + " is too old: Redrive needs 3.10", Remedy: "Upgrade RabbitMQ."}}
	case !s.versionAtLeast(4, 0):
		return []Finding{{Status: Warning, What: "RabbitMQ " + s.Version + " fails over a malformed x-death",
			Remedy: "Upgrade to RabbitMQ 4. Until then let only users publish whom you trust, look at redrive.quarantine, and prefer at-most-once where publishers are strangers."}}
	}
	return []Finding{{Status: OK, What: "RabbitMQ " + s.Version}}
}

// parsed are the URLs of a text.
func parsed(urls string) (all []*url.URL) {
	for _, s := range addresses.Split(urls) {
		if u, err := url.Parse(s); err == nil {
			all = append(all, u)
		}
	}
	return all
}

// hosts are theirs.
func hosts(urls string) (all []string) {
	for _, u := range parsed(urls) {
		all = append(all, u.Hostname())
	}
	return all
}

// away tells whether a host is another machine.
func away(host string) bool { return host != "" && !auth.Loopback(net.JoinHostPort(host, "0")) }

func transport(s *Scene) (all []Finding) {
	for _, at := range []struct{ key, url, plain, secure string }{
		{"broker.url", s.Config.Broker.URL, "amqp", "amqps://…:5671/"},
		{"broker.management", s.Config.Broker.Management, "http", "https://…:15671"},
	} {
		var plain []string
		unverified := false
		for _, u := range parsed(at.url) {
			if u.Scheme == at.plain && away(u.Hostname()) {
				plain = append(plain, u.Hostname())
			}
			unverified = unverified || strings.HasPrefix(u.Query().Get("verify"), "verify_none")
		}
		if len(plain) > 0 {
			all = append(all, Finding{Status: Warning, What: fmt.Sprintf("%s speaks to %s without TLS", at.key, strings.Join(plain, ", ")), Remedy: fmt.Sprintf("Set %s to %s, with a listener for TLS in RabbitMQ.", at.key, at.secure)})
		}
		if unverified {
			all = append(all, Finding{Status: Warning, What: at.key + " says verify=verify_none, which Redrive ignores: it always checks RabbitMQ's certificate", Remedy: "Take it out, and name the authority by cacertfile=."})
		}
	}
	if s.Insecure {
		all = append(all, Finding{Status: Warning, What: "REDRIVE_INSECURE=1: the command line sends tokens and passwords without TLS to other machines", Remedy: "Reach the service by https://.", Commands: []string{"unset REDRIVE_INSECURE"}})
	}
	return all
}

func guest(s *Scene) (all []Finding) {
	if s.Guest {
		all = append(all, Finding{Status: Wrong, What: "RabbitMQ lets guest in from other machines, with the password guest",
			Remedy: "Delete the user, or change its password and take it out of use; keep loopback_users.guest = true.", Commands: []string{"rabbitmqctl delete_user guest"}})
	}
	if far := slices.DeleteFunc(hosts(s.Config.Broker.URL), func(h string) bool { return !away(h) }); s.User == "guest" && len(far) > 0 {
		all = append(all, Finding{Status: Warning, What: "the service connects as guest to " + strings.Join(far, ", "),
			Remedy: "Make a user for it alone, with the rights it needs:", Commands: []string{s.redrive("permissions")}})
	}
	return all
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
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its retry exchange %s is %s", name, not), Remedy: "Delete it, and declare it again:", Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", name)), s.redrive("doctor --fix")}})
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
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its retry exchange also leads to the %s %s, which gets a copy of each retried message", b.DestinationType, b.Destination), Remedy: "Remove the binding:", Commands: []string{s.deleteCommand(s.Manage.BindingURL(b))}})
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
		all = append(all, Finding{Status: Warning, What: "retry exchanges without a queue of their name: " + few(gone) + "; messages wait 5 minutes for such a queue (no_queue), and are parked then",
			Remedy: "Declare the queues again, or do nothing: a running service deletes such an exchange when nothing waits for it."})
	}
	return all
}

func (s *Scene) bind(queue, what string) Finding {
	return Finding{Queue: queue, Status: Wrong, What: what, Remedy: "Declare it and bind it:", Commands: []string{s.redrive("doctor --fix --queue=" + Quote(queue))}, Fixable: true, fix: fix{queue: queue}}
}

func retryExchangeByAMQP(s *Scene) (all []Finding) {
	for _, q := range s.Probed.Named {
		switch {
		case !q.Exists:
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: "a policy names it, and it does not exist", Remedy: "Declare it, or remove it from the config."})
		case !q.RetryExchange:
			all = append(all, Finding{Queue: q.Name, Status: OK, What: "it has no retry exchange yet; it gets one with its first dead letter"})
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
	return Finding{Queue: work.Name, Status: Wrong, What: fmt.Sprintf("%d of its retries are due and stay in %s, since %s", n, q.Name, refuses(work)),
		Remedy: "Let its consumers catch up, raise its limit, or bring its nodes back. RabbitMQ tries again every three minutes, by itself, and loses none; other queues' retries continue."}, true
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

// userPermissions checks that the service's user has what it needs at present: for its own names,
// the queues that are enrolled, and what its policies forward to.
func userPermissions(s *Scene) []Finding {
	if s.Missing[Permissions] != nil {
		return s.permissionsUnseen()
	}
	var p management.Permission // none
	var all []Finding
	for _, other := range s.Permissions {
		if other.User == s.User {
			p = other
		} else {
			all = append(all, s.publishesBack(other)...)
		}
	}
	var lacks []string
	for _, right := range []struct {
		name, pattern string
		on            []string
	}{
		{"configure", p.Configure, []string{wire.ExchangeDeadLetters, wire.QueueIntake, wire.ExchangeFailures, wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}},
		{"read", p.Read, []string{wire.ExchangeDeadLetters, wire.QueueIntake, wire.ExchangeFailures, wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}},
		{"write", p.Write, append([]string{wire.QueueIntake, wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}, s.written()...)},
	} {
		may, err := regexp.Compile(right.pattern)
		if err != nil {
			return append(all, Finding{Status: Unknown, What: fmt.Sprintf("the pattern of %s is not one that can be judged here: %s", right.name, right.pattern)})
		}
		var on []string
		for _, name := range right.on {
			if right.pattern == "" || !may.MatchString(name) { // RabbitMQ takes "" for nothing
				on = append(on, name)
			}
		}
		if len(on) > 0 {
			lacks = append(lacks, right.name+" on "+few(on))
		}
	}
	if len(lacks) > 0 {
		all = append(all, s.grant("it lacks "+strings.Join(lacks, "; ")))
	}
	return all
}

// publishesBack names a user that may read an enrolled queue and publish to an exchange that leads there,
// and not to its retry exchange, which after a retry is the exchange of the delivery. Patterns that cannot
// be judged here match nothing.
func (s *Scene) publishesBack(p management.Permission) []Finding {
	read, _ := regexp.Compile(p.Read)
	write, _ := regexp.Compile(p.Write)
	if p.Read == "" || p.Write == "" || read == nil || write == nil {
		return nil
	}
	var queues []string
	for _, q := range s.enrolledQueues() {
		leads := func(b management.Binding) bool {
			return b.DestinationType == "queue" && b.Destination == q.Name && write.MatchString(cmp.Or(b.Source, "amq.default"))
		}
		if read.MatchString(q.Name) && slices.ContainsFunc(s.Bindings, leads) && !write.MatchString(wire.RetryExchange(q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	if len(queues) == 0 {
		return nil
	}
	return []Finding{{Status: Warning, What: fmt.Sprintf("user %q consumes %s and publishes there, but may not publish to %s", p.User, few(queues), wire.RetryExchange("<queue>")),
		Remedy:   "Where a framework such as Celery publishes to the exchange of a delivery, allow that: a retry exchange leads to its queue alone (this replaces the user's rights in the virtual host):",
		Commands: []string{s.rabbitmqctl("set_permissions", p.User, p.Configure, p.Write+"|"+permissions.Consumer(queues...).Write, p.Read)}}}
}

// written are the queues that the service has to bind, and the exchanges to which its policies
// forward.
func (s *Scene) written() (all []string) {
	for _, q := range s.enrolledQueues() {
		all = append(all, q.Name)
	}
	for i := range s.Config.Policies {
		for _, to := range permissions.Forwards(&s.Config.Policies[i]) {
			if !slices.Contains(all, to) {
				all = append(all, to)
			}
		}
	}
	return all
}

// permissionsUnseen is for when the permissions cannot be read. It reports what RabbitMQ has refused;
// a service that is ready has declared, bound and consumes what is its own.
func (s *Scene) permissionsUnseen() []Finding {
	for _, err := range []error{s.Probed.Exchange, s.Probed.Intake} {
		if errors.Is(err, wire.ErrForbidden) {
			return []Finding{s.grant(err.Error())}
		}
	}
	if v := s.Service; v.Asked != "" && v.Err == nil && len(v.Problems) == 0 {
		return []Finding{{Status: OK, What: "the service is ready, so its user may do what it does now"}}
	}
	return []Finding{{Status: Unknown, What: "not looked at: the rights of the service's user", Why: s.Missing[Permissions].Error()}}
}

// grant is the finding that the service's user lacks something, with the command that grants it.
func (s *Scene) grant(lacks string) Finding {
	r := permissions.Service(s.Config.Policies)
	return Finding{Status: Wrong, What: fmt.Sprintf("user %q: %s", s.User, lacks),
		Remedy:   "Grant what the service needs for the queues of its policies (this replaces the user's rights in the virtual host):",
		Commands: []string{s.rabbitmqctl("set_permissions", s.User, r.Configure, r.Write, r.Read)}}
}

// few are the first of some names.
func few(names []string) string {
	const most = 4
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
