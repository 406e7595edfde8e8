// Package doctor finds what is wrong with Redrive's surroundings: RabbitMQ, its
// queues and their policies, the service's rights and disk. Read it in this order:
//
//	doctor.go  findings, checks that cannot run, and --fix
//	scene.go   what the checks look at, and where it comes from
//
// service.go and queues.go have the checks. A check is pure: a scene in, findings out.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
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
	// Queues are the work queues of a finding about several.
	Queues []string `json:"queues,omitempty"`
	What   string   `json:"what"`
	// Why it matters.
	Why string `json:"why,omitempty"`
	// Remedy says what to do; Commands do it.
	Remedy   string   `json:"remedy,omitempty"`
	Commands []string `json:"commands,omitempty"`
	// Fixable: --fix repairs it. --fix only adds.
	Fixable bool `json:"fixable,omitempty"`
	fix     fix
	// Title is the check's.
	Title string `json:"-"`
}

// Check looks at one thing in a scene.
type Check struct {
	Name string
	// Title says what it looks at, as docs/reference/doctor.md does, and Why gives the reason.
	Title, Why string
	// Needs are the parts of a scene without which it cannot run.
	Needs []Part
	Run   func(*Scene) []Finding
	// ByAMQP checks what it can by AMQP alone, if a part is missing; may be nil.
	ByAMQP func(*Scene) []Finding
}

// Report has the findings of all checks.
type Report struct {
	Status  Status `json:"status"`
	Broker  string `json:"broker"`
	VHost   string `json:"vhost"`
	Version string `json:"version,omitempty"`
	// Queues and how many of them are enrolled; nil where it is unknown.
	Queues   *int      `json:"queues,omitempty"`
	Enrolled *int      `json:"enrolled,omitempty"`
	Findings []Finding `json:"findings"`
	// Looked are the queues that were checked, and whether each is enrolled; nil: unknown.
	Looked map[string]bool `json:"-"`
}

// Examine runs every check. A check without problems has one finding, OK.
func Examine(s *Scene) Report { return examine(s, Checks) }

// ExamineQueues runs the checks of work queues.
func ExamineQueues(s *Scene) Report { return examine(s, queueChecks) }

func examine(s *Scene, checks []Check) Report {
	r := Report{Status: OK, Broker: s.Broker, VHost: s.VHost, Version: s.Version}
	if s.Missing[Queues] == nil {
		all, enrolled := len(s.workQueues()), len(s.enrolledQueues())
		r.Queues, r.Enrolled, r.Looked = &all, &enrolled, map[string]bool{}
		for _, q := range s.workQueues() {
			r.Looked[q.Name] = s.enrolled(q)
		}
	}
	for _, c := range checks {
		for _, f := range c.make(s) {
			if f.Queue != "" && !s.selected(f.Queue) {
				continue
			}
			f.Check, f.Title = c.Name, c.Title
			if f.Why == "" && f.Status != OK && f.Status != Unknown {
				f.Why = c.Why
			}
			r.Findings = append(r.Findings, f)
			if f.Status.rank() > r.Status.rank() {
				r.Status = f.Status
			}
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return hint.Natural(a.Queue, b.Queue) })
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

// Checks are all of them, in the order in which they are shown.
var Checks = slices.Concat(serviceChecks, queueChecks)

// fix does what --fix does about a finding: it only adds.
type fix struct {
	topology bool   // what the service declares when it starts
	queue    string // make and bind its retry exchange
}

func (f fix) String() string {
	if f.topology {
		return "declare the exchange redrive, the queue redrive.intake and what else the service declares when " +
			"it starts"
	}
	return fmt.Sprintf("make the retry exchange of queue %q and bind it to that queue", f.queue)
}

// Plan lists what --fix will do, in order.
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

// Queues are those that the plan makes something for.
func (p Plan) Queues() (all []string) {
	for _, f := range p {
		all = append(all, cmp.Or(f.queue, wire.QueueIntake))
	}
	return all
}

// Apply repairs by AMQP as the service's user, who has the rights. It returns the name of RabbitMQ's cluster.
func (p Plan) Apply(ctx context.Context, c *config.Config) (cluster string, err error) {
	l, err := broker.NewProbe(ctx, broker.Config{URL: c.Broker.URL, Credentials: c.Broker.Credentials,
		Name: "redrive doctor --fix"})
	if err != nil {
		return "", err
	}
	defer l.Close()
	for _, f := range p {
		if f.topology {
			err = l.DeclareAll()
		} else {
			err = l.BindRetryExchange(f.queue)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", f, err)
		}
	}
	return l.Cluster(), nil
}
