package doctor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Part of a scene that may be missing.
type Part string

const (
	AMQP        Part = "amqp"
	Queues      Part = "queues"
	Exchanges   Part = "exchanges"
	Bindings    Part = "bindings"
	Policies    Part = "policies"
	Operator    Part = "operator policies"
	Nodes       Part = "nodes"
	Permissions Part = "permissions"
	Clock       Part = "clock"
	Store       Part = "store"
	DeadLetters Part = "dead letters"
)

// Scene is all that the checks look at, as it was at one time.
type Scene struct {
	Config *config.Config
	// File is the config's, for commands; "": there is none.
	File string
	// Call is how our command is called, for the commands of findings; "": redrive.
	Call string
	// Only are patterns of the work queues to look at; none: all.
	Only []string

	Broker, VHost, User string // Broker without its password
	Version             string // "" when not known
	FrameMax            int    // 0: any
	// Unreached is why some of several addresses do not answer.
	Unreached []error
	// Manage makes the URLs of commands.
	Manage *management.Client
	// Missing says why a part could not be gathered.
	Missing map[Part]error

	Queues           []management.QueueState
	Exchanges        []management.Exchange
	Bindings         []management.Binding
	Policies         []management.Policy
	OperatorPolicies []management.Policy
	Nodes            []management.Node
	Permissions      []management.Permission

	// Standing is how many dead letters a queue keeps and has not released while it was
	// watched, by queue.
	Standing map[string]int

	Ahead, Within time.Duration // the broker's clock against this one, and how exact that is
	StoreFree     uint64        // bytes
	// Redis are the primaries of the store; Failover: a replica may replace one of them.
	Redis    []redisstore.Server
	Failover bool

	Probed Probed
	// Guest: RabbitMQ has accepted the user guest with the password guest from another machine.
	Guest   bool
	Service Service
	// Insecure: the environment allows to send tokens without TLS.
	Insecure bool
}

// Probed is what AMQP shows without the management API.
type Probed struct {
	Exchange, Intake   error // as broker.Probe.IntakeQueue returns them
	Parked, Quarantine Depth
	Consumers          int // of redrive.intake
	Named              []NamedQueue
}

// Depth of a queue.
type Depth struct {
	Exists           bool
	Consumers, Ready int
}

// NamedQueue is a queue that a policy names without * or ?.
type NamedQueue struct {
	Name string
	Depth
	RetryExchange bool // it exists
}

// Service is what the service says about itself.
type Service struct {
	Asked    string   // the URL; "" when no service was asked
	Named    bool     // its address was given: that nothing answers there is a problem
	Err      error    // nothing answers
	Problems []string // of a service that is not ready
	Notices  []string
}

func (s *Scene) selected(queue string) bool {
	return len(s.Only) == 0 || slices.ContainsFunc(s.Only, func(p string) bool { return policy.MatchQueue(p, queue) })
}

// workQueues are the queues that could be work queues.
func (s *Scene) workQueues() (all []*management.QueueState) {
	for i := range s.Queues {
		if q := &s.Queues[i]; !wire.OwnQueue(q.Name) && s.selected(q.Name) {
			all = append(all, q)
		}
	}
	return all
}

// enrolledQueues are those whose dead letters go to Redrive.
func (s *Scene) enrolledQueues() (all []*management.QueueState) {
	return slices.DeleteFunc(s.workQueues(), func(q *management.QueueState) bool { return !s.enrolled(q) })
}

func (s *Scene) enrolled(q *management.QueueState) bool {
	return !wire.OwnQueue(q.Name) && q.Setting("dead-letter-exchange") == wire.ExchangeDeadLetters
}

func (s *Scene) queue(name string) *management.QueueState {
	return first(s.Queues, func(q *management.QueueState) bool { return q.Name == name })
}

func (s *Scene) exchange(name string) *management.Exchange {
	return first(s.Exchanges, func(e *management.Exchange) bool { return e.Name == name })
}

// first returns the first of all that is; nil when none is.
func first[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

func isArgument(q *management.QueueState, key string) bool {
	_, ok := q.Arguments["x-"+key]
	return ok
}

// versionAtLeast tells whether RabbitMQ is of that version or later; false when it is not known.
func (s *Scene) versionAtLeast(major, minor int) bool {
	yes, _ := version.AtLeast(s.Version, major, minor)
	return yes
}

// call is how our command is called.
func (s *Scene) call() string { return cmp.Or(s.Call, "redrive") }

// redrive is a command line of ours, for people to copy.
func (s *Scene) redrive(command string, args ...string) string {
	var b strings.Builder
	b.WriteString(s.call() + " " + command)
	if s.File != "" {
		b.WriteString(" --config " + Quote(s.File))
	}
	if len(args) > 0 && strings.HasPrefix(args[len(args)-1], "-") {
		b.WriteString(" --") // a queue's name, not a flag
	}
	for _, a := range args {
		b.WriteString(" " + Quote(a))
	}
	return b.String()
}

// deleteCommand is a command line that deletes what is at a URL of the management API; it asks for
// the password.
func (s *Scene) deleteCommand(at string) string {
	return "curl -u " + Quote(s.Manage.User()) + " -X DELETE " + Quote(at)
}

func (s *Scene) rabbitmqctl(command string, args ...string) string {
	out := "rabbitmqctl " + command + " -p " + Quote(s.VHost)
	for _, a := range args {
		out += " " + Quote(a)
	}
	return out
}
