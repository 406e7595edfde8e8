// Package condition describes what is wrong or makes messages wait. A Set holds the present conditions.
package condition

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Kind is a kind of condition, as the API names it.
type Kind string

// The kinds. Those of a queue or lane can hold for each queue, or queue and forward target.
const (
	Intake           Kind = "intake"
	Parked           Kind = "parked"
	Publish          Kind = "retries"
	Delays           Kind = "delays"
	Store            Kind = "store"
	ParkedStore      Kind = "store_of_parked"
	Disk             Kind = "disk"
	Redis            Kind = "redis"
	Unread           Kind = "unread"
	Ledger           Kind = "ledger"
	Listener         Kind = "listener"
	Unreachable      Kind = "unreachable"
	Forward          Kind = "forward"
	Breaker          Kind = "breaker"
	NoConsumer       Kind = "no_consumer"
	Followed         Kind = "followed"
	Standing         Kind = "standing"
	Setup            Kind = "setup"
	Long             Kind = "long"
	Unacked          Kind = "unacked"
	DeliveryLimit    Kind = "delivery_limit"
	ForeignConsumers Kind = "foreign_consumers"
	ForeignPolicies  Kind = "foreign_policies"
	Clock            Kind = "clock"
	Management       Kind = "management"
)

// Connections stands for several of Intake, Parked, Publish and Delays: see Joined. No Set has it.
const Connections Kind = "connections"

// Silent is how the text of a connection begins when RabbitMQ does not answer.
const Silent = "RabbitMQ does not answer"

type Row struct {
	Says    string // begins the line; the queue or target follows
	Many    string // follows how many queues have it
	OfQueue bool   // of a queue or a lane
	Mild    string // what to say of one that only hides something
	// Ready reports whether it leaves the service ready. A load balancer cuts off the page of a service that is not
	// ready, so a queue's condition, or one that others must repair, leaves it ready.
	Ready        bool
	StopsStoring bool // stops the intake: see the metric redrive_intake_stopped
	// Event is the notification that it causes once it has lasted for After; "": none.
	Event string
	After time.Duration
}

// disconnectedFor is how long the intake or a follower may be without RabbitMQ before people are notified:
// longer than RabbitMQ takes to start again.
const disconnectedFor = 2 * time.Minute

var Kinds = map[Kind]Row{
	Intake:      {Says: "intake", Event: "intake_stopped", After: disconnectedFor},
	Parked:      {Says: "parked"},
	Publish:     {Says: "retries"},
	Delays:      {Says: "delays"},
	Store:       {Says: "store", StopsStoring: true, Event: "intake_stopped"},
	ParkedStore: {Says: "store of parked", Event: "intake_stopped"},
	Disk:        {Says: "disk", StopsStoring: true, Event: "intake_stopped"},
	Redis:       {Says: "redis", StopsStoring: true, Event: "intake_stopped"},
	Unread:      {Says: "what is kept is unknown"},
	Ledger:      {Says: "ledger"},
	Listener:    {Says: "events for "},
	Unreachable: {Says: "queue ", Many: "queues cannot be retried to", OfQueue: true, Ready: true,
		Event: "queue_paused"},
	Forward: {Says: "forwards of queue ", Many: "forwards of queues fail", OfQueue: true, Ready: true,
		Event: "forward_stopped"},
	Breaker: {Says: "breaker of queue ", Many: "queues' breakers hold retries back", OfQueue: true, Ready: true,
		Event: "breaker_open"},
	NoConsumer: {Says: "consumers of queue ", Many: "queues have no consumers", OfQueue: true, Ready: true,
		Event: "no_consumer"},
	Followed: {Says: "followed queue ", Many: "queues are not followed", OfQueue: true, Ready: true,
		Event: "follow_stopped", After: disconnectedFor},
	Standing: {Says: "standing queue ", Many: "queues stand", OfQueue: true, Ready: true, Event: "queue_standing"},
	Setup:    {Says: "setup of queue ", Many: "queues' setup parks messages", OfQueue: true, Ready: true},
	Long:     {Says: "long queue ", Many: "queues are too long", OfQueue: true, Ready: true, Event: "queue_long"},
	Unacked: {Says: "unacknowledged messages of queue ", Many: "queues' messages are not acknowledged", OfQueue: true,
		Ready: true, Event: "queue_unacked"},
	DeliveryLimit:    {Says: "delivery limit", Ready: true},
	ForeignConsumers: {Says: "another service", Ready: true},
	ForeignPolicies:  {Says: "policies of others", Ready: true},
	Clock:            {Says: "clock", Ready: true},
	Management:       {Says: "management API", Ready: true, Mild: "the management API does not answer"},
}

type Condition struct {
	Kind  Kind   `json:"kind"`
	Queue string `json:"queue,omitempty"`
	// Target is the forward target of the queue, or the name of a listener.
	Target string    `json:"target,omitempty" doc:"Of forward: where the queue's messages are to be forwarded."`
	Text   string    `json:"text"`
	Since  time.Time `json:"since"`
	// Grew is set where the config wants a notification of each increase.
	Grew time.Time `json:"grew,omitzero" doc:"Of long: when the queue last got more messages, where watch asks."`
	// Alarm reports whether an alarm of RabbitMQ blocks the connection.
	Alarm    bool `json:"alarm,omitempty" doc:"An alarm of RabbitMQ blocks publishing."`
	NotReady bool `json:"not_ready,omitempty" doc:"The service is not ready because of it."`
}

type key struct {
	kind          Kind
	queue, target string
}

func (c *Condition) key() key { return key{c.Kind, c.Queue, c.Target} }

func (c Condition) OfQueue() bool { return Kinds[c.Kind].OfQueue }

func (c Condition) String() string { return c.name() + ": " + c.Text }

func (c *Condition) name() string {
	if c.Kind == Connections {
		return "connections"
	}
	if c.Queue != "" && c.Target != "" {
		return Kinds[c.Kind].Says + c.Queue + " to " + c.Target
	}
	return Kinds[c.Kind].Says + c.Queue + c.Target
}

func compare(a, b Condition) int { return hint.Natural(a.name(), b.name()) }

func Lines(all []Condition) []string {
	lines := []string{}
	for _, c := range all {
		lines = append(lines, c.String())
	}
	return lines
}

// Brief shortens the text of a connection to Silent if RabbitMQ does not answer.
func Brief(text string) string {
	if strings.HasPrefix(text, Silent) {
		return Silent
	}
	return text
}

// Joined merges connections to RabbitMQ that are lost for the same reason into one condition. If RabbitMQ does not
// answer, it drops Management.
func Joined(all []Condition) (joined []Condition) {
	lost := map[string][]Condition{}
	for _, c := range all {
		if slices.Contains([]Kind{Intake, Parked, Publish, Delays}, c.Kind) {
			lost[Brief(c.Text)] = append(lost[Brief(c.Text)], c)
		} else if c.Kind != Management {
			joined = append(joined, c)
		}
	}
	for _, some := range lost {
		slices.SortFunc(some, compare)
		if is := some[0]; len(some) > 1 {
			is.Kind = Connections
			some = []Condition{is}
		}
		joined = append(joined, some...)
	}
	at := slices.IndexFunc(all, func(c Condition) bool { return c.Kind == Management })
	if at >= 0 && lost[Silent] == nil {
		joined = append(joined, all[at])
	}
	return joined
}

// Mild returns the verdict if the only condition hides something but stops nothing; otherwise "".
func Mild(all []Condition) string {
	if len(all) != 1 {
		return ""
	}
	return Kinds[all[0].Kind].Mild
}

const whilePaused = "; no probe is sent while it is paused"

// WhilePaused says in which state the breaker of a paused queue is, and why.
func WhilePaused(state, why string) string {
	if state == "half-open" {
		why = "" // it speaks of probes
	}
	return strings.TrimSuffix(state+": "+why, ": ") + whilePaused
}

const maxNames = 3

func Summary(all []Condition) (lines []string) {
	var many []string
	of := map[string][]Condition{}
	for _, c := range all {
		row := cmp.Or(Kinds[c.Kind].Many, string(c.Kind))
		if strings.HasSuffix(c.Text, whilePaused) {
			row = "queues are paused, and their breakers are not closed"
		}
		if of[row] == nil {
			many = append(many, row)
		}
		of[row] = append(of[row], c)
	}
	for _, row := range many {
		some := of[row]
		switch n := len(some); {
		case n > 1 && some[0].OfQueue():
			var names []string
			for _, c := range some {
				names = append(names, c.Queue)
			}
			lines = append(lines, fmt.Sprintf("%d %s: %s", n, row, hint.Few(names, maxNames)))
		case strings.HasPrefix(some[0].Text, Silent):
			lines = append(lines, Silent)
		default:
			lines = append(lines, Lines(some)...)
		}
	}
	return lines
}

// LineReady reports whether a condition leaves the service ready, from its line in /readyz. redrive
// doctor has no login, and sees only that.
func LineReady(line string) bool {
	for _, row := range Kinds {
		if row.Ready && strings.HasPrefix(line, row.Says) {
			return true
		}
	}
	return false
}

// Set holds the present conditions. It is safe for concurrent use.
type Set struct {
	changed func(ready, intakeStopped bool) // called when either may have changed
	paused  func() []string                 // the queues that people have paused

	mu    sync.Mutex
	holds map[key]Condition
	until map[key]time.Time // when those of PutFor end
}

func NewSet(changed func(ready, intakeStopped bool), paused func() []string) *Set {
	return &Set{changed: changed, paused: paused, holds: map[key]Condition{}, until: map[key]time.Time{}}
}

// Put adds or changes a condition, or removes it if c has no text. A condition that is there already keeps its Since; a
// new one without Since begins now. Put reports whether the text has changed.
func (s *Set) Put(c Condition) (changed bool) { return s.put(c, time.Time{}) }

// PutFor is Put for something that happened once: it removes the condition after d.
func (s *Set) PutFor(d time.Duration, c Condition) { s.put(c, time.Now().Add(d)) }

func (s *Set) put(c Condition, until time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	k := c.key()
	was, holds := s.holds[k]
	if holds {
		c.Since = was.Since
	} else if c.Since.IsZero() {
		c.Since = time.Now()
	}
	c.NotReady = !Kinds[c.Kind].Ready
	if s.holds[k] = c; c.Text == "" {
		delete(s.holds, k)
	}
	if !until.IsZero() {
		s.until[k] = until
	}
	if !c.OfQueue() { // there may be a hundred thousand of queues
		s.tell()
	}
	return was.Text != c.Text
}

// expire removes conditions of PutFor whose time is over. The caller holds mu.
func (s *Set) expire() {
	for k, until := range s.until {
		if time.Now().After(until) {
			delete(s.until, k)
			delete(s.holds, k)
			s.tell()
		}
	}
}

func (s *Set) tell() {
	stopped := false
	for _, c := range s.holds {
		stopped = stopped || Kinds[c.Kind].StopsStoring
	}
	s.changed(s.isReady(), stopped)
}

func (s *Set) isReady() bool {
	for _, e := range s.holds {
		if e.NotReady {
			return false
		}
	}
	return true
}

// Ready reports whether no condition makes the service not ready, for /readyz, metric, API, page, command
// line and replicas alike.
func (s *Set) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.isReady()
}

// Text returns the text of the condition with of's kind, queue and target, or "" if there is none.
func (s *Set) Text(of Condition) string {
	s.mu.Lock()
	c := s.holds[of.key()]
	s.mu.Unlock()
	return s.withPauses([]Condition{c})[0].Text
}

func (s *Set) All() []Condition {
	s.mu.Lock()
	s.expire()
	all := slices.Collect(maps.Values(s.holds))
	s.mu.Unlock()
	return s.withPauses(all)
}

// withPauses changes the texts of the breakers of paused queues. Call it without mu: paused has its own lock.
func (s *Set) withPauses(all []Condition) []Condition {
	var paused []string
	asked := false
	for i, c := range all {
		if c.Kind != Breaker {
			continue
		}
		if !asked {
			paused, asked = s.paused(), true
			slices.Sort(paused)
		}
		if _, is := slices.BinarySearch(paused, c.Queue); is {
			state, why, _ := strings.Cut(c.Text, ": ")
			all[i].Text = WhilePaused(state, why)
		}
	}
	return all
}

// maxOfQueues bounds the listed conditions of queues.
const maxOfQueues = 200

func (s *Set) List() []Condition { return Listed(s.All()) }

// Listed sorts conditions by name. It keeps at most maxOfQueues conditions of queues, and adds one that
// counts the others.
func Listed(all []Condition) []Condition {
	others, queues := []Condition{}, []Condition{}
	var last *Condition
	n := 0
	for _, c := range all {
		if !c.OfQueue() {
			others = append(others, c)
			continue
		}
		// Sort only the first of a hundred thousand.
		if n++; last != nil && compare(c, *last) > 0 {
			continue
		}
		if queues = append(queues, c); len(queues) == 2*maxOfQueues {
			slices.SortFunc(queues, compare)
			queues = queues[:maxOfQueues]
			last = &queues[maxOfQueues-1]
		}
	}
	slices.SortFunc(queues, compare)
	listed := append(others, queues[:min(maxOfQueues, len(queues))]...)
	slices.SortFunc(listed, compare)
	if n > maxOfQueues {
		more := fmt.Sprintf("%d more have problems", n-maxOfQueues)
		listed = append(listed, Condition{Kind: Unreachable, Queue: "(others)", Text: more})
	}
	return listed
}
