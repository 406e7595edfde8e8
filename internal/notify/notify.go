// Package notify sends notifications: which events, of which queues, by which route, how
// often, and not in quiet hours unless critical. Read it in this order:
//
//	notify.go   the events, the settings and the routes
//	engine.go   passes conditions, and what was parked, to the routes that want them
//	parked.go   what was parked since the ledger was last read
//	route.go    one route: a loop that collects, plans and sends
//	pending.go  what a route has to send, and when, also by its quiet hours: pure, time is passed in
//	message.go  the text of a notification, and hostile text made harmless
//	services.go where to send: a row for each service
//	client.go   the HTTP client, which dials no private addresses
//
// A route whose service does not answer keeps its pending notifications, and continues to
// count. It delays no message, and does not delay the end of the service.
package notify

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/policy"
)

// Kind of an event.
type Kind string

// Parked is an event that is counted; all others are conditions, which begin and end.
const (
	Parked         Kind = "parked"
	ParkedBurst    Kind = "parked_burst"
	QueuePaused    Kind = "queue_paused" // by a person, or because it is unreachable
	ForwardStopped Kind = "forward_stopped"
	BreakerOpen    Kind = "breaker_open"
	NoConsumer     Kind = "no_consumer"
	IntakeStopped  Kind = "intake_stopped"
	BrokerBlocked  Kind = "broker_blocked"
	OldestWaiting  Kind = "oldest_waiting"
	LedgerOff      Kind = "ledger_off"
)

// Meaning is a kind with its texts.
type Meaning struct {
	Kind     Kind
	Severity Severity
	Means    string // of a queue, where it concerns one
	Over     string // the same when it is over
}

// Kinds are all of them, with their texts.
var Kinds = []Meaning{
	{Parked, Warning, "messages parked", ""},
	{ParkedBurst, Critical, "many messages are parked", "no longer many messages are parked"},
	{QueuePaused, Warning, "the retries are paused", "the retries go on"},
	{ForwardStopped, Warning, "messages are not forwarded", "messages are forwarded again"},
	{BreakerOpen, Critical, "the circuit breaker is open", "the circuit breaker is closed again"},
	{NoConsumer, Critical, "the queue has no consumers", "messages no longer wait for a consumer"},
	{IntakeStopped, Critical, "failed messages stay in RabbitMQ: the intake has stopped", "the intake goes on"},
	{BrokerBlocked, Critical, "an alarm of RabbitMQ's blocks publishing", "RabbitMQ's alarm is over"},
	{OldestWaiting, Warning, "messages wait too long", "messages no longer wait too long"},
	{LedgerOff, Critical, "the ledger is off: messages came in that are neither retried, parked, discarded nor waiting", "the ledger is right again"},
}

// KindNames are their names in a config.
func KindNames() (names []string) {
	for _, k := range Kinds {
		names = append(names, string(k.Kind))
	}
	return names
}

// Severity of an event.
type Severity int

const (
	Info Severity = iota
	Warning
	Critical
)

var severities = []string{"info", "warning", "critical"}

func (s Severity) String() string { return severities[s] }

// ParseSeverity reads what String writes.
func ParseSeverity(s string) (Severity, error) {
	if i := slices.Index(severities, s); i >= 0 {
		return Severity(i), nil
	}
	return 0, fmt.Errorf("%.40q is not a severity; expected info, warning or critical", s)
}

// Settings are the thresholds and the routes.
type Settings struct {
	// VHost is which virtual host's service this is, where there are several.
	VHost        string
	Page         string         // where people open the page; "": no links
	AllowPrivate []netip.Prefix // private addresses that routes may reach
	Critical     []string       // patterns of queues whose events are all critical
	// NoConsumer, OldestWaiting and Burst are the thresholds of their events.
	NoConsumer    time.Duration
	OldestWaiting time.Duration
	Burst         int // parked in a minute
	Routes        []Route
}

// DefaultSettings have no routes.
func DefaultSettings() Settings {
	return Settings{NoConsumer: 15 * time.Minute, OldestWaiting: 24 * time.Hour, Burst: 100}
}

// Secret is a URL that may contain a password; it does not print.
type Secret string

func (Secret) String() string               { return "(hidden)" }
func (Secret) GoString() string             { return "(hidden)" }
func (Secret) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// Route is a receiver of notifications: a team's channel, a pager, a mailbox.
type Route struct {
	Name   string
	URL    Secret
	Kinds  []Kind   // none: all
	Queues []string // patterns; none: all
	Least  Severity
	// GroupWait is how long events are gathered before they are sent, and Repeat the time
	// between two notifications of one condition.
	GroupWait, Repeat time.Duration
	Quiet             Quiet
	Resolved          bool // notify when it is over
	// Body of a generic webhook; its strings are templates. nil: all fields.
	Body map[string]any
}

// DefaultRoute has neither a name nor a URL.
func DefaultRoute() Route {
	return Route{GroupWait: 30 * time.Second, Repeat: 4 * time.Hour, Resolved: true}
}

// plain tells whether the route leaves grouping and repeating to its receiver.
func (r *Route) plain() bool {
	d := DefaultRoute()
	return r.GroupWait == d.GroupWait && r.Repeat == d.Repeat && r.Resolved && r.Quiet.Zone == nil
}

// severity of a kind in a queue.
func (s *Settings) severity(k key) Severity {
	if k.Queue != "" && matches(s.Critical, k.Queue) {
		return Critical
	}
	return meaningOf(k.Kind).Severity
}

// wants tells whether a route receives an event. Events without a queue go to all routes that
// include the event.
func (s *Settings) wants(r *Route, k key) bool {
	return (len(r.Kinds) == 0 || slices.Contains(r.Kinds, k.Kind)) &&
		(len(r.Queues) == 0 || k.Queue == "" || matches(r.Queues, k.Queue)) &&
		s.severity(k) >= r.Least
}

func matches(patterns []string, queue string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return policy.MatchQueue(p, queue) })
}

func meaningOf(k Kind) Meaning {
	if i := slices.IndexFunc(Kinds, func(m Meaning) bool { return m.Kind == k }); i >= 0 {
		return Kinds[i]
	}
	return Meaning{Kind: k, Means: strings.ReplaceAll(string(k), "_", " ")}
}
