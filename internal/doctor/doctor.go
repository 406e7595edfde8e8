// Package doctor finds what is wrong with Redrive's surroundings: RabbitMQ, its
// queues and their policies, the service's rights and disk. Read it in this order:
//
//	doctor.go  the checks in order, findings, what is shown of a check that cannot run, and what --fix does
//	scene.go   what the checks look at, and where it comes from
//
// The checks are in the other files, by subject.
//
// A check is pure: a scene in, findings out.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// Status of a finding, best first.
type Status string

const (
	OK      Status = "ok"
	Unknown Status = "unknown" // it could not be found out
	Warning Status = "warning"
	Wrong   Status = "wrong"
)

func (s Status) rank() int { return slices.Index([]Status{OK, Unknown, Warning, Wrong}, s) }

// Finding is one result of a check: about one work queue, the broker or the service.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Queue is the work queue; "" for the broker and the service.
	Queue string `json:"queue,omitempty"`
	What  string `json:"what"`
	// Why it matters.
	Why string `json:"why,omitempty"`
	// Remedy is what to do, in words; Commands do it.
	Remedy   string   `json:"remedy,omitempty"`
	Commands []string `json:"commands,omitempty"`
	// Fixable: --fix repairs it. It only adds what is missing.
	Fixable bool `json:"fixable,omitempty"`
	fix     fix
}

// Check looks at one thing in a scene.
type Check struct {
	Name string
	// Title is what it looks at, Why the reason, as docs/reference/doctor.md has them.
	Title, Why string
	// Needs are the parts of a scene without which it cannot run.
	Needs []Part
	Run   func(*Scene) []Finding
	// ByAMQP is what AMQP alone can show of it, for when a part is missing; may be nil.
	ByAMQP func(*Scene) []Finding
}

// Report is what all checks found.
type Report struct {
	Status  Status `json:"status"`
	Broker  string `json:"broker"`
	VHost   string `json:"vhost"`
	Version string `json:"version,omitempty"`
	// Queues and how many of them are enrolled; nil where it is unknown.
	Queues   *int      `json:"queues,omitempty"`
	Enrolled *int      `json:"enrolled,omitempty"`
	Findings []Finding `json:"findings"`
}

// Examine runs every check. A check without problems has one finding, OK.
func Examine(s *Scene) Report {
	r := Report{Status: OK, Broker: s.Broker, VHost: s.VHost, Version: s.Version}
	if s.Missing[Queues] == nil {
		all, enrolled := len(s.workQueues()), len(s.enrolledQueues())
		r.Queues, r.Enrolled = &all, &enrolled
	}
	for _, c := range Checks {
		for _, f := range c.make(s) {
			if f.Queue != "" && !s.selected(f.Queue) {
				continue
			}
			f.Check = c.Name
			if f.Why == "" && f.Status != OK && f.Status != Unknown {
				f.Why = c.Why
			}
			r.Findings = append(r.Findings, f)
			if f.Status.rank() > r.Status.rank() {
				r.Status = f.Status
			}
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Queue, b.Queue) })
	return r
}

func (c *Check) make(s *Scene) (all []Finding) {
	var why []string
	for _, p := range c.Needs {
		if err := s.Missing[p]; err != nil && !slices.Contains(why, err.Error()) {
			why = append(why, err.Error())
		}
	}
	if len(why) == 0 {
		if all = c.Run(s); len(all) == 0 {
			all = []Finding{{Status: OK, What: c.Title}}
		}
		return all
	}
	unknown := Finding{Status: Unknown, What: "not looked at: " + c.Title, Why: strings.Join(why, "; ")}
	if c.ByAMQP != nil && s.Missing[AMQP] == nil {
		all = c.ByAMQP(s)
		unknown.What = "looked at only as far as AMQP shows it: " + c.Title
	}
	return append(all, unknown)
}

// Checks are all of them, in the order in which they are shown. docs/reference/doctor.md has
// each, and a test holds it to this list.
var Checks = []Check{
	{Name: "connection", Title: "RabbitMQ takes connections by AMQP", Run: connection,
		Why: "The service does all its work by AMQP."},
	{Name: "rabbitmq-version", Title: "RabbitMQ's version", Run: rabbitmqVersion,
		Why: "On RabbitMQ 3 a publisher can forge x-death: one that is malformed ends each connection that consumes the dead letter, or at-least-once dead-lettering for the whole node. RabbitMQ 4 replaces such headers."},
	{Name: "alarms", Title: "alarms of RabbitMQ's nodes", Needs: []Part{Nodes}, Run: alarms,
		Why: "During an alarm RabbitMQ accepts no messages, so nothing is retried until it ends."},
	{Name: "disk-room", Title: "room on the disks of RabbitMQ", Needs: []Part{Nodes}, Run: diskRoom,
		Why: "Below its limit a node raises an alarm and accepts no messages."},
	{Name: "redis", Title: "how safe messages are in Redis", Needs: []Part{Store}, Run: redis,
		Why: "A message is acknowledged to RabbitMQ once Redis has it, as safely as durability says: what Redis then loses is lost."},
	{Name: "store-room", Title: "room for messages in the store", Needs: []Part{Store}, Run: storeRoom,
		Why: "Below store.reserve the intake stops, and failed messages stay in RabbitMQ."},
	{Name: "clock", Title: "RabbitMQ's clock against this one", Needs: []Part{Clock}, Run: clock,
		Why: "The times of failures are RabbitMQ's and due times are the service's: where the clocks differ, the page's history is out of order, and tokens and sessions end at another time than people expect."},
	{Name: "sizes", Title: "limits of frames and messages", Needs: []Part{AMQP, Queues}, Run: sizes, ByAMQP: frames,
		Why: "All headers of a message must fit into one frame, ours too, and a stored message that is larger than RabbitMQ accepts today cannot be retried."},
	{Name: "transport", Title: "TLS where others could listen", Run: transport,
		Why: "Passwords, tokens and messages would pass other machines in the clear, or go to an impostor."},
	{Name: "guest", Title: "the user guest", Run: guest,
		Why: "Its password is public."},
	{Name: "permissions", Title: "the rights of the service's user, and of consumers that publish where their messages came from", Run: userPermissions,
		Why: "Without them messages stay in RabbitMQ, or cannot be retried; and what a framework such as Celery publishes to the exchange of a retried message is lost."},
	{Name: "service", Title: "the service answers and is ready", Run: running,
		Why: "While it is not, failed messages pile up in RabbitMQ, or are not retried."},
	{Name: "dead-letter-exchange", Title: "the exchange redrive: internal, durable, fanout, bound to redrive.intake", Needs: []Part{Exchanges, Bindings}, Run: deadLetterExchange, ByAMQP: deadLetterExchangeByAMQP,
		Why: "What arrives through it counts as dead-lettered by RabbitMQ itself. Where it is missing or bound to nothing, dead letters are lost; where clients can publish to it, any client can forge them."},
	{Name: "intake", Title: "the queue redrive.intake: quorum, durable, and no policy that lowers its delivery limit", Needs: []Part{Queues}, Run: intake, ByAMQP: intakeByAMQP,
		Why: "All failed messages pass through it."},
	{Name: "foreign-policies", Title: "no policy of others changes Redrive's exchanges and queues", Needs: []Part{Queues, Exchanges, Policies}, Run: foreign,
		Why: "Messages that expire or overflow in our queues are lost, or retried early. With an alternate exchange a retry to a deleted queue goes to others and counts as retried. With federation another cluster gets a copy of each retry and each report, and handles it too."},
	{Name: "replicas", Title: "our quorum queues have a replica on each node, up to three", Needs: []Part{Queues, Nodes}, Run: replicas,
		Why: "A queue that was declared before a node joined has no replica there: with one replica the intake stops while that node is down, and is lost with its disk."},
	{Name: "quarantine", Title: "redrive.quarantine is empty", Needs: []Part{AMQP}, Run: quarantine,
		Why: "RabbitMQ failed to deliver these to the intake. The service parks them, unless it cannot receive them here either."},
	{Name: "another-service", Title: "one service consumes redrive.intake", Needs: []Part{AMQP}, Run: others,
		Why: "Services with stores of their own on one virtual host each receive a part of the failed messages: neither shows, counts or limits those of the other."},
	{Name: "parked-in-rabbitmq", Title: "redrive.parked is collected", Needs: []Part{AMQP}, Run: parked,
		Why: "Messages that the library parks can be shown and replayed only once the service has collected them."},
	{Name: "dead-lettering", Title: "queues dead-letter to Redrive", Needs: []Part{Queues, Exchanges, Bindings}, Run: deadLettering,
		Why: "Messages that a consumer rejects, that expire or that pass the delivery limit are dropped, or go elsewhere."},
	{Name: "at-least-once", Title: "dead-lettering is at-least-once", Needs: []Part{Queues}, Run: atLeastOnce,
		Why: "At-most-once dead-lettering drops what fails while redrive.intake has no leader, as just after a restart of RabbitMQ."},
	{Name: "standing", Title: "dead letters leave their queue", Needs: []Part{Queues, DeadLetters, Exchanges, Bindings}, Run: standing,
		Why: "With at-least-once, RabbitMQ keeps a dead letter in its queue until its target has confirmed it. While it stays there nothing is lost, and Redrive does not receive it."},
	{Name: "policy-in-force", Title: "the policy that enrols a queue is in force", Needs: []Part{Queues, Policies}, Run: policyInForce,
		Why: "RabbitMQ applies one policy to a queue: one of higher priority silently replaces ours. An operator policy is applied as well."},
	{Name: "retry-policy", Title: "a policy of Redrive's matches each enrolled queue", Needs: []Part{Queues}, Run: unmatched,
		Why: "A message that no policy matches is parked at its first failure."},
	{Name: "reports", Title: "the management API says which queues' reports are retried", Needs: []Part{Queues}, Run: func(*Scene) []Finding { return nil }, ByAMQP: reportsByAMQP,
		Why: "A report is retried where the queue's dead-letter exchange is redrive. While the management API cannot be asked about that, reports for queues that are not enrolled and that no policy names exactly wait."},
	{Name: "native-retry", Title: "no delayed retry of RabbitMQ's on top", Needs: []Part{Queues}, Run: nativeRetry,
		Why: "RabbitMQ 4.3 then delays requeued messages itself, besides Redrive's delays."},
	{Name: "lifetime", Title: "work queues stay", Needs: []Part{Queues}, Run: lifetime,
		Why: "A queue that deletes itself takes its messages with it, and its waiting messages are parked."},
	{Name: "overflow", Title: "a full queue refuses, and pushes nothing out", Needs: []Part{Queues, Policies}, Run: overflow,
		Why: "A retry into a queue that drops its oldest message for each new one costs another message, which counts as failed: in the end good messages are parked."},
	{Name: "consumers", Title: "enrolled queues have consumers", Needs: []Part{Queues}, Run: consumers, ByAMQP: consumersByAMQP,
		Why: "Retried messages stay in the queue unnoticed; RabbitMQ raises no alarm for that."},
	{Name: "deliveries", Title: "consumers take what is ready", Needs: []Part{Queues}, Run: deliveries,
		Why: "Retries stand behind what a consumer that hangs keeps. Of a single-active-consumer queue it keeps all messages, and the other consumers look well."},
	{Name: "retry-exchange", Title: "retry exchanges lead to their queue alone", Needs: []Part{Queues, Exchanges, Bindings, Policies}, Run: retryExchange, ByAMQP: retryExchangeByAMQP,
		Why: "Redrive publishes retries to it, and may publish to no queue without one. Bound to more queues, each receives a copy of every retry; bound to none, nothing is retried."},
	{Name: "delivery-limit", Title: "delivery limits fit the policies", Needs: []Part{Queues, Bindings}, Run: deliveryLimit,
		Why: "A message that a consumer requeues, or crashes on, is dead-lettered when RabbitMQ's limit is passed, and each time counts as one attempt of Redrive's."},
	{Name: "requeue", Title: "consumers do not requeue in a circle", Needs: []Part{Queues}, Run: requeue,
		Why: "A requeued message is delivered again at once, as fast as its consumer allows, and never reaches Redrive. From RabbitMQ 4.3 on a basic.nack with requeue counts towards no limit; on classic queues nothing does."},
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
	f := Finding{Status: Warning, What: fmt.Sprintf("reports of failures for queues that only %s matches, and that have no retry exchange yet, wait: %v", strings.Join(patterns, ", "), s.Missing[Queues]),
		Remedy: "Let the service ask the management API (broker.management), or name the queues in a policy."}
	if errors.Is(s.Missing[Queues], management.ErrDenied) && s.Manage != nil {
		f.Remedy = "Give the user of broker.management a tag, if it has none, or name the queues in a policy."
		f.Commands = []string{"rabbitmqctl set_user_tags " + Quote(s.Manage.User()) + " management"}
	}
	return []Finding{f}
}

// fix is what --fix does about a finding: it only makes what is missing.
type fix struct {
	topology bool   // what the service declares when it starts
	queue    string // make and bind its retry exchange
}

func (f fix) String() string {
	if f.topology {
		return "declare the exchange redrive, the queue redrive.intake and what else the service declares when it starts"
	}
	return fmt.Sprintf("make the retry exchange of queue %q and bind it to that queue", f.queue)
}

// Plan is what --fix will do, in order.
type Plan []fix

// Plan of the findings that can be repaired safely.
func (r *Report) Plan() (p Plan) {
	done := map[fix]bool{}
	for _, f := range r.Findings {
		if f.Fixable && !done[f.fix] {
			done[f.fix] = true
			p = append(p, f.fix)
		}
	}
	return p
}

// Steps are the plan in words.
func (p Plan) Steps() (all []string) {
	for _, f := range p {
		all = append(all, f.String())
	}
	return all
}

// Apply carries it out by AMQP, as the service's user, who has the rights for it.
func (p Plan) Apply(ctx context.Context, c *config.Config) error {
	l, err := broker.NewProbe(ctx, broker.Config{URL: c.Broker.URL, Credentials: c.Broker.Credentials, Name: "redrive doctor --fix"})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, f := range p {
		if f.topology {
			err = l.DeclareAll()
		} else {
			err = l.BindRetryExchange(f.queue)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}
