// Package notify tells people what happens: which event, of which queues, by which
// route, how often, and not at night when it can wait. Read it in this order:
//
//	notify.go   what can be told, and by which routes
//	engine.go   events and conditions in, to the routes that ask for them
//	route.go    one route: a loop that gathers, plans and sends
//	relay.go    what replicas see parked, on its way to the one that tells
//	book.go     what a route has to tell, and when: pure, time is passed in
//	quiet.go    hours in which only what is critical is told
//	message.go  what is told; clean.go: text of strangers, made harmless
//	target.go   where to: a URL; webhook.go, chat.go, mail.go, pagerduty.go
//	alertmanager.go  what goes on as alerts, sent again and again
//	client.go   the one way out; guard.go: not to private addresses
//
// A route that does not answer keeps what it has to tell, and counts on. It delays
// no message, and no end of the service.
package notify

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/policy"
)

// Kind is what is told of.
type Kind string

// Parked is counted; all others are conditions, which begin and end.
const (
	Parked         Kind = "parked"
	ParkedBurst    Kind = "parked_burst"
	QueuePaused    Kind = "queue_paused"
	ForwardStopped Kind = "forward_stopped"
	BreakerOpen    Kind = "breaker_open"
	NoConsumer     Kind = "no_consumer"
	IntakeStopped  Kind = "intake_stopped"
	BrokerBlocked  Kind = "broker_blocked"
	OldestWaiting  Kind = "oldest_waiting"
	LedgerOff      Kind = "ledger_off"
)

// Kinds are all of them, with what they mean.
var Kinds = []struct {
	Kind     Kind
	Severity Severity
	Means    string // of a queue, where it concerns one
	Over     string
}{
	{Parked, Warning, "messages parked", ""},
	{ParkedBurst, Critical, "many messages are parked", "no longer many messages are parked"},
	{QueuePaused, Warning, "the retries are paused", "the retries go on"},
	{ForwardStopped, Warning, "messages are not forwarded", "messages are forwarded again"},
	{BreakerOpen, Critical, "the circuit breaker is open", "the circuit breaker is closed again"},
	{NoConsumer, Critical, "nobody consumes the queue", "no messages wait for a consumer any more"},
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

// Severity is how bad it is.
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
	return 0, fmt.Errorf("%.40q is no severity; expected info, warning or critical", s)
}

// Settings are what to tell, and to whom.
type Settings struct {
	// Of is which virtual host's service this is, where there are several.
	Of           string
	Page         string         // where people open the page; "": no links
	AllowPrivate []netip.Prefix // private addresses that routes may reach
	Critical     []string       // patterns of queues of which all is critical
	// NoConsumer, OldestWaiting and Burst are from when on it is told.
	NoConsumer    time.Duration
	OldestWaiting time.Duration
	Burst         int // parked in a minute
	Routes        []Route
}

// DefaultSettings have no routes.
func DefaultSettings() Settings {
	return Settings{NoConsumer: 15 * time.Minute, OldestWaiting: 24 * time.Hour, Burst: 100}
}

// Secret is a URL that may hold a password; it does not print.
type Secret string

func (Secret) String() string               { return "(hidden)" }
func (Secret) GoString() string             { return "(hidden)" }
func (Secret) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// Route is one way to somebody.
type Route struct {
	Name   string
	URL    Secret
	Kinds  []Kind   // none: all
	Queues []string // patterns; none: all
	Least  Severity
	// GroupWait is how long is gathered before it is told, and Repeat how long
	// nothing more is told of the same while it goes on.
	GroupWait, Repeat time.Duration
	Quiet             Quiet
	Resolved          bool // tell when it is over
	// Body is what a generic webhook is sent; its strings are templates. nil: all fields.
	Body map[string]any
}

// DefaultRoute has neither a name nor a URL.
func DefaultRoute() Route {
	return Route{GroupWait: 30 * time.Second, Repeat: 4 * time.Hour, Resolved: true}
}

// plain tells whether the route leaves to its other end when and how often it tells.
func (r *Route) plain() bool {
	d := DefaultRoute()
	return r.GroupWait == d.GroupWait && r.Repeat == d.Repeat && r.Resolved && r.Quiet.Zone == nil
}

// severity is that of a kind in a queue.
func (s *Settings) severity(k key) Severity {
	if k.Queue != "" && matches(s.Critical, k.Queue) {
		return Critical
	}
	return of(k.Kind).Severity
}

// wants tells whether a route is told. What concerns no queue goes to all routes that
// ask for the event.
func (s *Settings) wants(r *Route, k key) bool {
	return (len(r.Kinds) == 0 || slices.Contains(r.Kinds, k.Kind)) &&
		(len(r.Queues) == 0 || k.Queue == "" || matches(r.Queues, k.Queue)) &&
		s.severity(k) >= r.Least
}

func matches(patterns []string, queue string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return policy.MatchQueue(p, queue) })
}

func of(k Kind) (meaning struct {
	Kind        Kind
	Severity    Severity
	Means, Over string
}) {
	for _, m := range Kinds {
		if m.Kind == k {
			return m
		}
	}
	meaning.Kind, meaning.Means = k, strings.ReplaceAll(string(k), "_", " ")
	return meaning
}
