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
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// serviceChecks look at RabbitMQ, the store, the service and what it declares.
var serviceChecks = []Check{
	{Name: "connection", Title: "RabbitMQ takes connections by AMQP", Run: connection,
		Why: "The service does all its work by AMQP."},
	{Name: "rabbitmq-version", Title: "RabbitMQ's version", Run: rabbitmqVersion,
		Why: "On RabbitMQ 3 a publisher can forge x-death: one that is malformed ends each connection that consumes " +
			"the dead letter, or at-least-once dead-lettering for the whole node. RabbitMQ 4 replaces such headers."},
	{Name: "alarms", Title: "alarms of RabbitMQ's nodes", Needs: []Part{Nodes}, Run: alarms,
		Why: "During an alarm RabbitMQ accepts no messages, so nothing is retried until it ends."},
	{Name: "disk-room", Title: "room on the disks of RabbitMQ", Needs: []Part{Nodes}, Run: diskRoom,
		Why: "Below its limit a node raises an alarm and accepts no messages."},
	{Name: "redis", Title: "how safe messages are in Redis", Run: redis,
		Why: "A message is acknowledged to RabbitMQ once Redis has it, as safely as durability says: what Redis then " +
			"loses is lost."},
	{Name: "store-room", Title: "room for messages in the store", Needs: []Part{Store}, Run: storeRoom,
		Why: "Below store.reserve the intake stops, and failed messages stay in RabbitMQ."},
	{Name: "clock", Title: "RabbitMQ's clock against this one", Needs: []Part{Clock}, Run: clock,
		Why: "The times of failures are RabbitMQ's and due times are the service's: where the clocks differ, the " +
			"page's history is out of order, and tokens and sessions end at another time than people expect."},
	{Name: "sizes", Title: "limits of frames and messages", Needs: []Part{AMQP, Queues}, Run: sizes, ByAMQP: frames,
		Why: "All headers of a message must fit into one frame, ours too, and a stored message that is larger than " +
			"RabbitMQ accepts today cannot be retried."},
	{Name: "transport", Title: "TLS where others could listen", Run: transport,
		Why: "Passwords, tokens and messages would pass other machines in the clear, or go to an impostor."},
	{Name: "guest", Title: "the user guest", Run: guest, Why: "Its password is public."},
	{Name: "permissions", Title: "the rights of the service's user, and of consumers that publish where their " +
		"messages came from", Run: userPermissions,
		Why: "Without them messages stay in RabbitMQ, or cannot be retried; and what a framework such as Celery " +
			"publishes to the exchange of a retried message is lost."},
	{Name: "service", Title: "the service answers and is ready", Run: running,
		Why: "While the service is down or not ready, failed messages pile up in RabbitMQ, or are not retried."},
	{Name: "dead-letter-exchange", Title: "the exchange redrive: internal, durable, fanout, bound to redrive.intake",
		Needs: []Part{Exchanges, Bindings}, Run: deadLetterExchange, ByAMQP: deadLetterExchangeByAMQP,
		Why: "What arrives through it counts as dead-lettered by RabbitMQ itself. Where it is missing or bound to " +
			"nothing, dead letters are lost; where clients can publish to it, any client can forge them."},
	{Name: "intake", Title: "the queue redrive.intake: quorum, durable, and no policy that lowers its delivery limit",
		Needs: []Part{Queues}, Run: intake, ByAMQP: intakeByAMQP,
		Why: "All failed messages pass through it."},
	{Name: "foreign-policies", Title: "no policy of others changes Redrive's exchanges and queues",
		Needs: []Part{Queues, Exchanges, Policies}, Run: foreign,
		Why: "Messages that expire or overflow in our queues are lost, or retried early. With an alternate exchange " +
			"a retry to a deleted queue goes to others and counts as retried. With federation another cluster gets a " +
			"copy of each retry and each report, and handles it too."},
	{Name: "replicas", Title: "our quorum queues have a replica on each node, up to three",
		Needs: []Part{Queues, Nodes}, Run: replicas,
		Why: "A queue that was declared before a node joined has no replica there: with one replica the intake stops " +
			"while that node is down, and is lost with its disk."},
	{Name: "quarantine", Title: "redrive.quarantine is empty", Needs: []Part{AMQP}, Run: quarantine,
		Why: "RabbitMQ failed to deliver these to the intake. The service parks them, unless it cannot receive them " +
			"here either."},
	{Name: "another-service", Title: "one service consumes redrive.intake", Needs: []Part{AMQP}, Run: others,
		Why: "Services with stores of their own on one virtual host each receive a part of the failed messages: " +
			"neither shows, counts or limits those of the other."},
	{Name: "parked-in-rabbitmq", Title: "redrive.parked is collected", Needs: []Part{AMQP}, Run: parked,
		Why: "Messages that the library parks can be shown and replayed only once the service has collected them."},
}

// missing is a finding about what the service itself declares.
func (s *Scene) missing(what string) []Finding {
	return []Finding{{Status: Wrong, What: what, Fixable: true, fix: fix{topology: true},
		Remedy:   "The service makes it when it starts; --fix makes it now:",
		Commands: []string{s.redrive("doctor --fix")}}}
}

func deadLetterExchange(s *Scene) (all []Finding) {
	x := s.exchange(wire.ExchangeDeadLetters)
	if x == nil {
		return s.missing("the exchange redrive does not exist")
	}
	if not := differs(x, "fanout", true); not != "" {
		all = append(all, Finding{Status: Wrong, What: "the exchange redrive is " + not,
			Remedy: "Delete it and start the service, which declares it as it must be. Stop the consumers whose " +
				"messages fail meanwhile: dead letters are lost while it is missing.",
			Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", wire.ExchangeDeadLetters)),
				s.redrive("doctor --fix")}})
	}
	bound := false
	for _, b := range s.Bindings {
		switch {
		case b.Source != wire.ExchangeDeadLetters:
		case b.DestinationType == "queue" && b.Destination == wire.QueueIntake:
			bound = true
		default:
			all = append(all, Finding{Status: Warning,
				What: fmt.Sprintf("the exchange redrive also leads to the %s %s, which gets a copy of every "+
					"dead letter", b.DestinationType, b.Destination),
				Remedy:   "Take the binding away, unless you want it.",
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
		return []Finding{{Status: Wrong, What: fmt.Sprintf("the exchange redrive is not as it must be: %v", err),
			Remedy: "Delete it on RabbitMQ's management page, and start the service."}}
	case err != nil && !errors.Is(err, wire.ErrForbidden):
		return []Finding{{Status: Unknown, What: fmt.Sprintf("the exchange redrive: %v", err)}}
	}
	return nil
}

// deleteEmpty is for one of our queues that was declared with other arguments.
const deleteEmpty = "Stop the consumers whose messages fail, have the version of the service that declared it empty " +
	"it, and delete it when it shows 0 messages; the service then declares it as it must be:"

func (s *Scene) deleteWhenEmpty(queue string) []string {
	return []string{s.rabbitmqctl("list_queues", "name", "messages"), s.rabbitmqctl("delete_queue", queue),
		s.redrive("doctor --fix")}
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
		all = append(all, Finding{Status: Wrong, What: "redrive.intake is " + strings.Join(not, ", "),
			Remedy:   deleteEmpty,
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
			all = append(all, Finding{Status: Wrong,
				What: fmt.Sprintf("the delivery limit in force of our queue %s is %d, by a RabbitMQ policy (%s): %s",
					name, limit, strings.Join(names, ", "), becomes),
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
		return []Finding{{Status: Wrong, What: fmt.Sprintf("redrive.intake has %d consumers, and a service with its "+
			"store on disk is one: each takes a part of the failed messages", n),
			Remedy: "Stop the other services of this virtual host, or give all of them one store (store.redis). To " +
				"list the consumers:",
			Commands: []string{s.rabbitmqctl("list_consumers", "queue_name", "channel_pid")}}}
	}
	return nil
}

// foreign finds policies of others that change exchanges or queues of ours.
func foreign(s *Scene) (all []Finding) {
	for _, f := range management.FindForeign(s.Exchanges, s.Queues, s.Policies) {
		finding := Finding{Status: Wrong, What: f.String(), Remedy: leaveOut}
		if _, finding.Commands = s.leavingOut(f.Policy, f.OperatorPolicy); f.Cluster != "" {
			finding.Remedy = "Let the pattern of the policy there leave out the names redrive and redrive.*, as " +
				oursLeftOut + ".* does. Do not delete its binding or queue here: they are that cluster's, and the " +
				"queue may hold messages."
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
			commands = append(commands, s.rabbitmqctl(from.command, p.Name, oursLeftOut+`.*?(?:`+p.Pattern+`)`,
				string(definition), "--priority", strconv.Itoa(p.Priority), "--apply-to", p.ApplyTo))
		}
	}
	return names, commands
}

func intakeByAMQP(s *Scene) []Finding {
	switch err := s.Probed.Intake; {
	case errors.Is(err, wire.ErrQueueGone):
		return s.missing("the queue redrive.intake does not exist")
	case errors.Is(err, wire.ErrDiffers):
		return []Finding{{Status: Wrong, What: fmt.Sprintf("redrive.intake is not as it must be: %v", err),
			Remedy: deleteEmpty, Commands: s.deleteWhenEmpty(wire.QueueIntake)}}
	case err != nil && !errors.Is(err, wire.ErrForbidden):
		return []Finding{{Status: Unknown, What: fmt.Sprintf("redrive.intake: %v", err)}}
	}
	return nil
}

func quarantine(s *Scene) []Finding {
	if n := s.Probed.Quarantine.Ready; n > 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.quarantine: %d", n),
			Remedy: "The service parks them. Where they stay while it runs, RabbitMQ cannot deliver the first; " +
				"this shows it and removes it:",
			Commands: []string{broker.RemoveQuarantined(s.VHost)}}}
	}
	return nil
}

func parked(s *Scene) []Finding {
	p := s.Probed.Parked
	if p.Exists && p.Ready > 0 && p.Consumers == 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.parked: %d, and no service "+
			"collects them", p.Ready), Remedy: "Run the service, which collects, shows and replays them:",
			Commands: []string{s.redrive("serve")}}}
	}
	return nil
}

func running(s *Scene) (all []Finding) {
	v := s.Service
	switch {
	case v.Asked == "":
		return []Finding{{Status: OK, What: "not asked: no address is configured"}}
	case v.Err != nil && !v.Named:
		return []Finding{{Status: OK, What: "not asked: nothing answers at " + v.Asked +
			", and no address is configured"}}
	case v.Err != nil:
		return []Finding{{Status: Warning, What: fmt.Sprintf("no service answers at %s: %v", v.Asked, v.Err),
			Remedy: "Start it, or give the address of one by --address.", Commands: []string{s.redrive("serve")}}}
	}
	const itself = "The service warns of this itself."
	// Not as s.Call, whose --vhost is in the address already.
	status := []string{"redrive status --address " + Quote(v.Asked)}
	for _, p := range v.Problems {
		f := Finding{Status: Wrong, What: "not ready: " + p}
		if condition.LineReady(p) {
			f = Finding{Status: Warning, What: p, Why: itself}
		}
		f.Commands = status
		all = append(all, f)
	}
	for _, n := range v.Notices {
		all = append(all, Finding{Status: Warning, What: n, Why: itself, Commands: status})
	}
	return all
}

func connection(s *Scene) (all []Finding) {
	if err := s.Missing[AMQP]; err != nil {
		return []Finding{{Status: Wrong, What: err.Error(),
			Remedy: "Check broker.url: host, port, user, password, virtual host. As RabbitMQ sees the user:",
			Commands: []string{"rabbitmqctl authenticate_user " + Quote(s.User),
				"rabbitmqctl list_user_permissions " + Quote(s.User)}}}
	}
	for _, err := range s.Unreached {
		all = append(all, Finding{Status: Warning, What: fmt.Sprintf("one of several addresses does not answer: %v",
			err), Why: "The others serve meanwhile, and one less is left to go to.",
			Remedy: "Start that node, or repair its address in broker.url or broker.management."})
	}
	return all
}

func rabbitmqVersion(s *Scene) []Finding {
	supported, ok := delay.VersionAtLeast(s.Version, 3, 10)
	switch {
	case !ok:
		return []Finding{{Status: Unknown, What: "RabbitMQ did not say its version"}}
	case !supported:
		return []Finding{{Status: Wrong, What: "RabbitMQ " + s.Version + " is too old: Redrive needs 3.10",
			Remedy: "Upgrade RabbitMQ."}}
	case !s.versionAtLeast(4, 0):
		return []Finding{{Status: Warning, What: "RabbitMQ " + s.Version + " fails over a malformed x-death",
			Remedy: "Upgrade to RabbitMQ 4. Until then let only users publish whom you trust, look at " +
				"redrive.quarantine, and prefer at-most-once where publishers are strangers."}}
	}
	return []Finding{{Status: OK, What: "RabbitMQ " + s.Version}}
}

// parsed are the URLs of a text.
func parsed(urls string) (all []*url.URL) {
	for _, s := range connect.SplitURLs(urls) {
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

// away reports whether a host is another machine.
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
			all = append(all, Finding{Status: Warning, What: fmt.Sprintf("%s speaks to %s without TLS", at.key,
				strings.Join(plain, ", ")),
				Remedy: fmt.Sprintf("Set %s to %s, with a listener for TLS in RabbitMQ.", at.key, at.secure)})
		}
		if unverified {
			all = append(all, Finding{Status: Warning,
				What: at.key + " says verify=verify_none, which Redrive ignores: it always checks RabbitMQ's " +
					"certificate", Remedy: "Take it out, and name the authority by cacertfile=."})
		}
	}
	if s.Insecure {
		all = append(all, Finding{Status: Warning,
			What:   "REDRIVE_INSECURE=1: the command line sends tokens and passwords without TLS to other machines",
			Remedy: "Reach the service by https://.", Commands: []string{"unset REDRIVE_INSECURE"}})
	}
	return all
}

func guest(s *Scene) (all []Finding) {
	if s.Guest {
		all = append(all, Finding{Status: Wrong,
			What: "RabbitMQ lets guest in from other machines, with the password guest",
			Remedy: "Delete the user, or change its password and take it out of use; keep " +
				"loopback_users.guest = true.",
			Commands: []string{"rabbitmqctl delete_user guest"}})
	}
	if far := slices.DeleteFunc(hosts(s.Config.Broker.URL),
		func(h string) bool { return !away(h) }); s.User == "guest" && len(far) > 0 {
		all = append(all, Finding{Status: Warning, What: "the service connects as guest to " + strings.Join(far, ", "),
			Remedy:   "Make a user for it alone, with the rights it needs:",
			Commands: []string{s.redrive("permissions")}})
	}
	return all
}

// userPermissions checks that the service's user has what it needs at present: for its own names,
// the queues that are enrolled or followed, and what its policies forward to.
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
		{"configure", p.Configure, []string{wire.ExchangeDeadLetters, wire.QueueIntake, wire.ExchangeFailures,
			wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}},
		{"read", p.Read, append([]string{wire.ExchangeDeadLetters, wire.QueueIntake, wire.ExchangeFailures,
			wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}, s.followed()...)},
		{"write", p.Write, append([]string{wire.QueueIntake, wire.QueueQuarantine, wire.QueueParked,
			wire.RetryExchange("q")}, s.written()...)},
	} {
		may, err := regexp.Compile(right.pattern)
		if err != nil {
			return append(all, Finding{Status: Unknown,
				What: fmt.Sprintf("the pattern of %s is not one that can be judged here: %s", right.name,
					right.pattern)})
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
			return b.DestinationType == "queue" && b.Destination == q.Name &&
				write.MatchString(cmp.Or(b.Source, "amq.default"))
		}
		if read.MatchString(q.Name) && slices.ContainsFunc(s.Bindings, leads) &&
			!write.MatchString(wire.RetryExchange(q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	if len(queues) == 0 {
		return nil
	}
	return []Finding{{Status: Warning, What: fmt.Sprintf("user %q consumes %s and publishes there, but may not "+
		"publish to %s", p.User, few(queues), wire.RetryExchange("<queue>")),
		Remedy: "Where a framework such as Celery publishes to the exchange of a delivery, allow that: a retry " +
			"exchange leads to its queue alone (this replaces the user's rights in the virtual host):",
		Commands: []string{s.rabbitmqctl("set_permissions", p.User, p.Configure,
			p.Write+"|"+management.ConsumerRights(queues...).Write, p.Read)}}}
}

// followed are the dead-letter queues that the service consumes.
func (s *Scene) followed() (all []string) {
	for i := range s.Config.Adopt {
		f := &s.Config.Adopt[i]
		if !f.IsPattern() {
			all = append(all, f.Name)
			continue
		}
		for _, q := range s.Queues {
			if policy.MatchQueue(f.Name, q.Name) && !wire.OwnQueue(q.Name) && !slices.Contains(all, q.Name) {
				all = append(all, q.Name)
			}
		}
	}
	return all
}

// boundQueues are the queues that the service has to bind, also those that --queue leaves out.
func (s *Scene) boundQueues() (all []string) {
	for i := range s.Queues {
		if q := &s.Queues[i]; s.enrolled(q) {
			all = append(all, q.Name)
		}
	}
	for _, f := range s.Config.Adopt {
		if f.Then == config.ThenRetry && f.Queue != "" && !slices.Contains(all, f.Queue) {
			all = append(all, f.Queue)
		}
	}
	return all
}

// written are the queues that the service has to bind, and the exchanges to which its policies
// forward.
func (s *Scene) written() []string {
	all := s.boundQueues()
	for i := range s.Config.Policies {
		for _, to := range management.ForwardExchanges(&s.Config.Policies[i]) {
			if !slices.Contains(all, to) {
				all = append(all, to)
			}
		}
	}
	return all
}

// permissionsUnseen replaces the check when permissions cannot be read: it reports what RabbitMQ refused, and
// otherwise takes a ready service as proof that the rights suffice.
func (s *Scene) permissionsUnseen() []Finding {
	for _, err := range []error{s.Probed.Exchange, s.Probed.Intake} {
		if errors.Is(err, wire.ErrForbidden) {
			return []Finding{s.grant(err.Error())}
		}
	}
	if v := s.Service; v.Asked != "" && v.Err == nil && len(v.Problems) == 0 {
		return []Finding{{Status: OK, What: "the service is ready, so its user may do what it does now"}}
	}
	return []Finding{{Status: Unknown, What: "not looked at: the rights of the service's user",
		Why: s.Missing[Permissions].Error()}}
}

// grant is the finding that the service's user lacks something, with the command that grants it.
func (s *Scene) grant(lacks string) Finding {
	unnamed := policy.Policy{Queues: slices.DeleteFunc(s.boundQueues(), func(queue string) bool {
		_, ok := s.Config.Policies.Match(queue)
		return ok
	})}
	r := management.ServiceRights(append(slices.Clone(s.Config.Policies), unnamed), s.Config.FollowedQueues()...)
	return Finding{Status: Wrong, What: fmt.Sprintf("user %q: %s", s.User, lacks),
		Remedy: "Grant what the service needs for the queues of its policies, and for others that dead-letter to it " +
			"(this replaces the user's rights in the virtual host):",
		Commands: []string{s.rabbitmqctl("set_permissions", s.User, r.Configure, r.Write, r.Read)}}
}

func few(names []string) string { return hint.Few(names, 4) }

// usualFrame is RabbitMQ's default, in bytes.
const usualFrame = 131_072

// largest is RabbitMQ's default limit of a message, in bytes. The one in force it does not report.
func (s *Scene) largest() int64 {
	if s.versionAtLeast(4, 0) {
		return 16 << 20
	}
	return 128 << 20
}

// frames checks the limit of a frame, which AMQP shows.
func frames(s *Scene) (all []Finding) {
	if s.FrameMax > 0 && s.FrameMax < usualFrame {
		all = append(all, Finding{Status: Warning, What: fmt.Sprintf("frames are limited to %d bytes", s.FrameMax),
			Remedy: fmt.Sprintf("Set frame_max = %d, RabbitMQ's default, in rabbitmq.conf: messages with more "+
				"headers than fit are parked.", usualFrame)})
	}
	return all
}

func sizes(s *Scene) []Finding {
	all := frames(s)
	for _, q := range s.workQueues() {
		if q.Messages > 0 && q.Bytes/int64(q.Messages) > s.largest() {
			all = append(all, Finding{Queue: q.Name, Status: Warning,
				What: fmt.Sprintf("its messages have %s on average, and RabbitMQ %s takes %s unless "+
					"max_message_size says otherwise", size(q.Bytes/int64(q.Messages)), s.Version, size(s.largest())),
				Remedy: "Set max_message_size in rabbitmq.conf."})
		}
	}
	if len(all) == 0 {
		frames := "any size"
		if s.FrameMax > 0 {
			frames = size(int64(s.FrameMax))
		}
		all = []Finding{{Status: OK, What: fmt.Sprintf("frames of %s; messages of %s, unless max_message_size says "+
			"otherwise, which RabbitMQ does not tell", frames, size(s.largest()))}}
	}
	return all
}

// minReplicas is how many a quorum queue needs to survive the loss of one node; RabbitMQ's default.
const minReplicas = 3

// replicas finds our quorum queues that were declared when there were fewer nodes, or
// that lost one: RabbitMQ gives them no other by itself.
func replicas(s *Scene) []Finding {
	want := min(minReplicas, len(s.Nodes))
	var lack, few []string
	add := map[string][]string{} // queues, by the node that can have a replica
	for i := range s.Queues {
		q := &s.Queues[i]
		missing := want - len(q.Members)
		if q.Type != "quorum" || !wire.OwnQueue(q.Name) || missing <= 0 {
			continue
		}
		lack = append(lack, q.Name)
		few = append(few, fmt.Sprintf("%s has %d", q.Name, len(q.Members)))
		for _, n := range s.Nodes {
			if missing > 0 && n.Running && !slices.Contains(q.Members, n.Name) {
				add[n.Name] = append(add[n.Name], q.Name)
				missing--
			}
		}
	}
	if len(lack) == 0 {
		return nil
	}
	var commands []string
	for _, n := range s.Nodes {
		if on := add[n.Name]; len(on) > 0 {
			commands = append(commands,
				"rabbitmq-queues grow "+Quote(n.Name)+" all --vhost-pattern "+Quote(pattern(s.VHost))+
					" --queue-pattern "+Quote(pattern(on...)))
		}
	}
	f := Finding{Status: Warning, What: fmt.Sprintf("the cluster has %d nodes, and of our quorum queues some have "+
		"fewer than %d replicas: %s", len(s.Nodes), want, strings.Join(few, ", ")), Commands: commands}
	f.Remedy = "Give each a replica on one more node, one after the other, while all nodes are up:"
	if len(commands) == 0 {
		f.Remedy = "Start the nodes that are down, then give each queue its replicas."
	}
	return []Finding{f}
}

// pattern is a regular expression of exactly these names.
func pattern(names ...string) string {
	var quoted []string
	for _, n := range names {
		quoted = append(quoted, regexp.QuoteMeta(n))
	}
	if len(quoted) == 1 {
		return "^" + quoted[0] + "$"
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// redis says how safe messages are in Redis, and what can be lost.
func redis(s *Scene) (all []Finding) {
	c := s.Config.Store.Redis
	if c.URL == "" {
		return []Finding{{Status: OK, What: "messages are kept on this machine's disk, not in Redis"}}
	}
	if err := s.Missing[Store]; err != nil {
		return []Finding{{Status: Unknown, What: "not looked at: how safe messages are in Redis", Why: err.Error()}}
	}
	for i := range s.Redis {
		all = append(all, redisServer(&s.Redis[i], cmp.Or(c.Durability, string(redisstore.Synced)),
			max(1, c.Replicas))...)
	}
	if s.Failover && c.Durability != string(redisstore.Replicated) {
		all = append(all, Finding{Status: Warning,
			What:   "a server that is replaced by its replica loses what that did not have yet",
			Remedy: "Set store.redis.durability to replicated."})
	}
	return all
}

// redisServer says that of one server.
func redisServer(r *redisstore.Server, durability string, replicas int) (all []Finding) {
	at := "Redis at " + r.Addr
	set := func(name, value string) []string {
		host, port, _ := net.SplitHostPort(r.Addr)
		return []string{fmt.Sprintf("redis-cli -h %s -p %s CONFIG SET %s %s", Quote(host), Quote(port), name, value)}
	}
	const file = " and the same in its configuration file"
	if r.Eviction != "noeviction" {
		all = append(all, Finding{Status: Wrong,
			What:   fmt.Sprintf("%s deletes messages when its memory is full: maxmemory-policy is %s", at, r.Eviction),
			Remedy: "The service refuses it. This," + file + ":", Commands: set("maxmemory-policy", "noeviction")})
	}
	if r.Max == 0 {
		all = append(all, Finding{Status: Warning,
			What:   at + " has no maxmemory, so it may take all memory of its machine, and be ended for it",
			Remedy: "What it may take, for example 4 GiB," + file + ":", Commands: set("maxmemory", "4gb")})
	}
	safe := Finding{Status: OK}
	switch durability {
	case string(redisstore.Cached):
		safe.What = at + " keeps messages in memory (durability: cached): a crash or a failover loses the last moments"
	case string(redisstore.Replicated):
		safe.What = fmt.Sprintf("%s has %d replicas, and a write counts when %d have it in memory (durability: "+
			"replicated)", at, r.Replicas, replicas)
		if r.Replicas < replicas {
			safe.Status, safe.Remedy = Wrong,
				"Start the replicas: no message is accepted or retried until they are there."
		}
	default:
		switch safe.What = fmt.Sprintf("%s has a write on its disk when it counts (durability: synced; appendonly "+
			"%v, appendfsync %s)", at, r.AppendOnly, cmp.Or(r.Fsync, "unknown")); {
		case !r.AppendOnly:
			safe.Status, safe.What = Wrong, at+" writes nothing to its disk, as durability: synced needs"
			safe.Remedy, safe.Commands = "This,"+file+":",
				append(set("appendonly", "yes"), set("appendfsync", "always")...)
		case r.Fsync != "always" && (!r.TellsSyncs() || r.Fsync == "no"):
			safe.Status, safe.What = Wrong, fmt.Sprintf("%s does not confirm that a write is on its disk: "+
				"appendfsync is %s", at, cmp.Or(r.Fsync, "unknown"))
			safe.Remedy, safe.Commands = "This,"+file+":", set("appendfsync", "always")
		case r.Fsync == "everysec":
			safe.Status, safe.What = Warning, at+" syncs once a second, and each write waits for that"
			safe.Remedy, safe.Commands = "This,"+file+":", set("appendfsync", "always")
		}
	}
	return append(all, safe)
}

// redisRoom is the free space of the server that has the least, and its limit; 0, 0 when none has a
// limit.
func redisRoom(all []redisstore.Server) (free, limit uint64) {
	for _, r := range all {
		if is := r.Max - min(r.Max, r.Used); r.Max > 0 && (limit == 0 || is < free) {
			free, limit = is, r.Max
		}
	}
	return free, limit
}

func alarms(s *Scene) (all []Finding) {
	for _, n := range s.Nodes {
		if !n.Running {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("node %s is down", n.Name),
				Remedy:   "Start it: its quorum queues have fewer members to lose.",
				Commands: []string{"rabbitmqctl -n " + Quote(n.Name) + " status"}})
		}
		if n.MemAlarm {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("node %s has a memory alarm", n.Name),
				Remedy:   "Let consumers catch up, or give it more memory. What uses it:",
				Commands: []string{"rabbitmq-diagnostics -n " + Quote(n.Name) + " memory_breakdown"}})
		}
		if n.DiskAlarm {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("node %s has a disk alarm: %s free, limit %s",
				n.Name, size(n.DiskFree), size(n.DiskLimit)), Remedy: "Make room on its disk."})
		}
	}
	return all
}

func diskRoom(s *Scene) (all []Finding) {
	for _, n := range s.Nodes {
		if n.Running && !n.DiskAlarm && n.DiskLimit > 0 && n.DiskFree < 2*n.DiskLimit {
			all = append(all, Finding{Status: Warning,
				What: fmt.Sprintf("node %s has %s free, and its alarm comes at %s", n.Name, size(n.DiskFree),
					size(n.DiskLimit)), Remedy: "Make room on its disk."})
		}
	}
	return all
}

func storeRoom(s *Scene) []Finding {
	free, reserve := s.StoreFree, s.Config.Store.Reserve
	if s.Config.Store.Redis.URL != "" {
		free, limit := redisRoom(s.Redis)
		if limit == 0 {
			return nil
		}
		reserve = min(reserve, limit/10) // as the store has it
		what := fmt.Sprintf("Redis has %s of its maxmemory free, and %s of that are kept in reserve", size(int64(free)),
			size(int64(reserve)))
		return roomLeft(free, reserve, what, "Give Redis more maxmemory, or discard what is parked and not needed.")
	}
	what := fmt.Sprintf("the store's disk has %s free, and store.reserve is %s", size(int64(free)),
		size(int64(reserve)))
	remedy := fmt.Sprintf("Make room on the disk of %s, or discard what is parked and not needed.", s.Config.Store.Disk)
	return roomLeft(free, reserve, what, remedy)
}

func roomLeft(free, reserve uint64, what, remedy string) []Finding {
	switch {
	case free < reserve:
		return []Finding{{Status: Wrong, What: what + ": the intake has stopped", Remedy: remedy}}
	case free < 2*reserve:
		return []Finding{{Status: Warning, What: what, Remedy: remedy}}
	}
	return []Finding{{Status: OK, What: what}}
}

// tolerated is a difference of clocks that matters to no one.
const tolerated = 3 * time.Second

func clock(s *Scene) []Finding {
	by := s.Ahead.Abs()
	if by <= tolerated+s.Within {
		return nil
	}
	direction := "ahead of"
	if s.Ahead < 0 {
		direction = "behind"
	}
	return []Finding{{Status: Warning, What: fmt.Sprintf("RabbitMQ's clock is %s %s this one", by.Round(time.Second),
		direction),
		Remedy: "Synchronise the clocks of both machines (NTP).", Commands: []string{"timedatectl set-ntp true"}}}
}

var size = hint.Size
