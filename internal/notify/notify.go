// Package notify sends notifications: which events, of which queues, by which route, how
// often, and not in quiet hours unless critical. Read it in this order:
//
//	kinds.go    the events, with their severities
//	notify.go   the settings and the routes
//	engine.go   passes events and conditions to the routes that want them
//	route.go    one route: a loop that collects, plans and sends
//	relay.go    counts of parked messages, on their way from a replica to the leader
//	severity.go rules: the severity of an event by its queue and its message
//	pending.go  what a route has to send, and when: pure, time is passed in
//	quiet.go    hours in which only critical notifications are sent
//	message.go  the text of a notification; clean.go: hostile text made harmless
//	target.go   where to send: a URL; webhook.go, chat.go, mail.go, pagerduty.go
//	alertmanager.go  conditions as alerts, sent again while they last
//	client.go   the HTTP client; guard.go: no private addresses
//
// A route whose service does not answer keeps its pending notifications, and continues to
// count. It delays no message, and does not delay the end of the service.
package notify

import (
	"net/netip"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/policy"
)

// Settings are the thresholds and the routes.
type Settings struct {
	// VHost is which virtual host's service this is, where there are several.
	VHost        string
	Page         string         // where people open the page; "": no links
	AllowPrivate []netip.Prefix // private addresses that routes may reach
	Critical     []string       // patterns of queues whose events are all critical
	Rules        []Rule         // the severity of an event is that of the first one that applies
	Watch        []string       // patterns of queues that should have consumers, enrolled or not
	// These are the thresholds of their events.
	NoConsumer    time.Duration
	OldestWaiting time.Duration
	Filling       time.Duration // how long a queue without consumers must grow
	Burst         int           // parked in a minute
	Rising        int           // more in an hour, at least
	Routes        []Route
}

// DefaultSettings have no routes.
func DefaultSettings() Settings {
	return Settings{NoConsumer: 15 * time.Minute, OldestWaiting: 24 * time.Hour, Filling: 6 * time.Hour, Burst: 100, Rising: 100}
}

// LongestFilling is the most that Filling may be: see internal/watch.
const LongestFilling = 24 * time.Hour

// Secret is a URL that may contain a password, or a key; it does not print.
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
	// Keys are PagerDuty's integration keys of some queues; of all others it is in the URL.
	Keys []RoutingKey
}

// RoutingKey is the integration key of the queues that match a pattern.
type RoutingKey struct {
	Queues []string
	Key    Secret
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
	if ruled, err := ParseSeverity(k.Severity); err == nil {
		return ruled
	}
	if k.Queue != "" {
		for i := range s.Rules {
			if s.Rules[i].appliesToAll(k.Queue) {
				return s.Rules[i].Is
			}
		}
		if matches(s.Critical, k.Queue) {
			return Critical
		}
	}
	return meaningOf(k.Kind).Severity
}

// wants tells whether a route receives an event.
func (s *Settings) wants(r *Route, k key) bool { return r.includes(k) && s.severity(k) >= r.Least }

// includes tells whether a route receives an event if that is severe enough. Events without a queue
// go to all routes that include the event.
func (r *Route) includes(k key) bool {
	return (len(r.Kinds) == 0 || slices.Contains(r.Kinds, k.Kind)) &&
		(len(r.Queues) == 0 || k.Queue == "" || matches(r.Queues, k.Queue))
}

func matches(patterns []string, queue string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return policy.MatchQueue(p, queue) })
}
