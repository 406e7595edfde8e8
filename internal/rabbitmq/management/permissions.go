package management

// The least rights that a user of RabbitMQ needs for Redrive, as patterns for `rabbitmqctl
// set_permissions`. The tests' service runs with exactly these.
//
// RabbitMQ asks for write on an exchange to publish there, and on a queue to bind
// it; for read on an exchange to bind to it, and on a queue to consume it; for
// configure to declare either. What is declared with a dead-letter or alternate
// exchange also needs read on itself and write on that one.

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Rights of one user in one virtual host.
type Rights struct {
	Role      string `json:"role"`
	For       string `json:"for"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
	// Topics narrow by routing key what may be published to a topic exchange.
	Topics []Topic `json:"topics,omitempty"`
	// Tags are of the user, in all virtual hosts.
	Tags  []string `json:"tags,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Topic is a topic permission.
type Topic struct {
	Exchange string `json:"exchange"`
	Write    string `json:"write"`
	Read     string `json:"read"`
}

// Roles in the order in which people meet them.
const (
	RoleService    = "service"
	RoleConsumer   = "consumer"
	RoleReporter   = "reporter"
	RoleGoReporter = "go-reporter"
	RoleGoConsumer = "go-consumer"
	RoleDeclarer   = "declarer"
)

const (
	nothing = "^$"
	ours    = `redrive(\..*)?`
	// delaying matches what the library's ways to wait declare and publish to.
	delaying = `redrive\.(due|parked|delayed|lane(\..*)?|delay\..*)`
)

// AllRights are the rights of every role, for the queues of policies; the service adopts from the others.
func AllRights(policies policy.Set, adopts ...string) []Rights {
	queues := queuesOf(policies)
	return []Rights{ServiceRights(policies, adopts...), ConsumerRights(queues...), ReporterRights(queues...),
		GoReporterRights(queues...),
		GoConsumerRights(queues...), DeclarerRights(queues...)}
}

// ServiceRights returns the rights of `redrive serve`: all of its own names; write on work
// queues, to bind them to their retry exchanges, and no read on them; and write
// on where its policies forward. From a dead-letter queue that it adopts it needs read,
// and write on the default exchange to put messages back.
func ServiceRights(policies policy.Set, adopts ...string) Rights {
	write := append([]string{`redrive\..*`}, patterns(queuesOf(policies))...)
	for i := range policies {
		for _, to := range ForwardExchanges(&policies[i]) {
			write = append(write, regexp.QuoteMeta(to))
		}
	}
	if len(adopts) > 0 {
		write = append(write, regexp.QuoteMeta("amq.default"))
	}
	r := Rights{Role: RoleService, For: "the service, `redrive serve`", Configure: whole(ours), Write: whole(write...),
		Read: whole(append([]string{ours}, patterns(adopts)...)...), Tags: []string{"management"},
		Notes: []string{"With the tag management it finds out which queues dead-letter to redrive, and retries " +
			"reports of their failures; without it such reports wait until a policy names the queue, or it has had a " +
			"dead letter. With monitoring, `redrive doctor` also sees alarms and disk room, and the page " +
			"unacknowledged messages; `redrive enroll` needs policymaker, with configure, write and read on what it " +
			"makes. Users with a tag can sign in on the page where auth is set."}}
	if slices.Contains(queuesOf(policies), "*") {
		r.Notes = append(r.Notes, "A policy takes every queue (*), so write is on everything: name your queues in "+
			"the policies, or here by --queue, to narrow it.")
	}
	return r
}

// ForwardExchanges returns the exchanges to which a policy and its rules forward, as RabbitMQ calls them where it
// checks rights.
func ForwardExchanges(p *policy.Policy) (exchanges []string) {
	for _, to := range p.Forwards() {
		exchanges = append(exchanges, cmp.Or(to.Exchange, "amq.default"))
	}
	return exchanges
}

// ConsumerRights is a consumer in any language that rejects what fails. Some frameworks publish to the
// exchange of a delivery, which after a retry is the retry exchange.
func ConsumerRights(queues ...string) Rights {
	return Rights{Role: RoleConsumer, For: "a consumer in any language that rejects what fails",
		Configure: nothing, Write: whole(retryExchanges(queues)...), Read: whole(patterns(queues)...),
		Notes: []string{"set_permissions replaces what the user has: add what your program publishes to and " +
			"declares. Write is for frameworks that publish to the exchange of a delivery, such as Celery's retries: " +
			"a retry exchange leads to its queue alone."}}
}

// ReporterRights is a consumer in any language that reports its failures itself: for its
// own queues alone.
func ReporterRights(queues ...string) Rights {
	own := whole(patterns(queues)...)
	return Rights{Role: RoleReporter, For: "a consumer in any language that reports failures to " +
		wire.ExchangeFailures,
		Configure: nothing, Write: whole(append(retryExchanges(queues), `redrive\.failures`)...), Read: own,
		Topics: []Topic{{Exchange: wire.ExchangeFailures, Write: own, Read: nothing}},
		Notes: []string{"After the service has started once: RabbitMQ 4.3 refuses topic permissions for an exchange " +
			"that is not there."}}
}

// GoReporterRights is the library's consumer that lets the service wait.
func GoReporterRights(queues ...string) Rights {
	r := ReporterRights(queues...)
	r.Role, r.For = RoleGoReporter, "a consumer of the Go library that lets the service wait (redrive.Service()), "+
		"with Config.Verify"
	r.Write = whole(`redrive\.(failures|parked)`)
	return r
}

// GoConsumerRights is the library's consumer that waits in RabbitMQ.
func GoConsumerRights(queues ...string) Rights {
	with := whole(append([]string{delaying}, patterns(queues)...)...)
	return Rights{Role: RoleGoConsumer, For: "a consumer of the Go library that waits in RabbitMQ (redrive.Levels() " +
		"and others)",
		Configure: whole(delaying), Write: with, Read: with,
		Notes: []string{"With Config.Verify, where `redrive topology` has declared what it needs: configure " +
			nothing + ", write " + whole(delaying) + ", read " + whole(patterns(queues)...) + "."}}
}

// DeclarerRights is a program that declares its work queues with x-dead-letter-exchange:
// redrive.
func DeclarerRights(queues ...string) Rights {
	own := whole(patterns(queues)...)
	return Rights{Role: RoleDeclarer, For: "a program that declares work queues with x-dead-letter-exchange: redrive",
		Configure: own, Write: whole("redrive"), Read: own}
}

func queuesOf(policies policy.Set) (all []string) {
	for i := range policies {
		all = append(all, policies[i].Queues...)
	}
	return all
}

// patterns are regular expressions of names in which * and ? are as in policies.
func patterns(names []string) (all []string) {
	for _, name := range names {
		all = append(all, strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(name)))
	}
	return all
}

// retryExchanges are patterns of the retry exchanges of queues.
func retryExchanges(queues []string) []string {
	var names []string
	for _, q := range queues {
		if !strings.ContainsAny(q, "*?") {
			q = strings.TrimPrefix(wire.RetryExchange(q), wire.RetryExchange(""))
		}
		names = append(names, wire.RetryExchange("")+q)
	}
	return patterns(names)
}

// whole matches any of the alternatives, from the first character to the last.
func whole(alternatives ...string) string {
	if slices.Contains(alternatives, ".*") {
		return ".*"
	}
	switch all := unique(alternatives); len(all) {
	case 0:
		return nothing
	case 1:
		return "^" + all[0] + "$"
	default:
		return "^(" + strings.Join(all, "|") + ")$"
	}
}

func unique(all []string) (kept []string) {
	for _, s := range all {
		if !slices.Contains(kept, s) {
			kept = append(kept, s)
		}
	}
	return kept
}
