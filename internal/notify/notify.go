// Package notify sends notifications: which events of which queues, by which route, how often, and in quiet hours only
// critical ones. Read it in this order:
//
//	notify.go   the events, the settings and the routes; passes conditions, and what was parked, to the
//	            routes that want them
//	route.go    one route: a loop that collects, plans and sends
//	pending.go  what was parked since the ledger was last read; what a route has to send, and when, also by
//	            its quiet hours: pure, time is passed in
//	message.go  the text of a notification, and hostile text made harmless
//	services.go where to send: a row for each service; the HTTP client, which dials no private addresses
//
// A route whose service does not answer keeps its pending notifications, and continues to count. It delays neither
// messages nor the end of this service.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Kind is the kind of an event.
type Kind string

// Parked and ParkedUrgent are counted; all others are conditions, which begin and end.
const (
	Parked         Kind = "parked"
	ParkedUrgent   Kind = "parked_urgent" // a rule of the policy makes them urgent
	ParkedBurst    Kind = "parked_burst"
	QueuePaused    Kind = "queue_paused" // by a person, or because it is unreachable
	ForwardStopped Kind = "forward_stopped"
	FollowStopped  Kind = "follow_stopped"
	BreakerOpen    Kind = "breaker_open"
	NoConsumer     Kind = "no_consumer"
	QueueStanding  Kind = "queue_standing"
	QueueLong      Kind = "queue_long"
	QueueUnacked   Kind = "queue_unacked"
	GroupReopened  Kind = "group_reopened"
	IntakeStopped  Kind = "intake_stopped"
	BrokerBlocked  Kind = "broker_blocked"
	OldestWaiting  Kind = "oldest_waiting"
	LedgerOff      Kind = "ledger_off"
)

func (k Kind) counted() bool { return k == Parked || k == ParkedUrgent }

// once reports whether a route that groups sends it once: not again while it lasts, nor when it is over.
func (k Kind) once() bool { return k == GroupReopened }

// Meaning is a kind with its texts.
type Meaning struct {
	Kind     Kind
	Severity Severity
	Means    string // the text of a notification
	Over     string // the text when it is over
}

// Kinds lists all kinds, with their texts.
var Kinds = []Meaning{
	{Parked, Warning, "messages parked", ""},
	{ParkedUrgent, Critical, "urgent messages parked", ""},
	{ParkedBurst, Critical, "many messages are parked", "no longer many messages are parked"},
	{QueuePaused, Warning, "the retries are paused", "the retries go on"},
	{ForwardStopped, Warning, "messages are not forwarded", "messages are forwarded again"},
	{FollowStopped, Warning, "a dead-letter queue is not followed: its messages stay in it", "it is followed again"},
	{BreakerOpen, Critical, "the circuit breaker is open", "the circuit breaker is closed again"},
	{NoConsumer, Critical, "the queue has no consumers", "messages no longer wait for a consumer"},
	{QueueStanding, Warning, "messages stand in the queue", "messages no longer stand in the queue"},
	{QueueLong, Warning, "the queue is too long", "the queue is no longer too long"},
	{QueueUnacked, Warning, "messages stay unacknowledged", "messages no longer stay unacknowledged"},
	{GroupReopened, Warning, "an error group has reopened", "a person has seen to the error group"},
	{IntakeStopped, Critical, "failed messages stay in RabbitMQ: the intake has stopped", "the intake goes on"},
	{BrokerBlocked, Critical, "an alarm of RabbitMQ's blocks publishing", "RabbitMQ's alarm is over"},
	{OldestWaiting, Warning, "messages wait too long", "messages no longer wait too long"},
	{LedgerOff, Critical, "the ledger is off: messages came in that are neither retried, parked, discarded nor waiting",
		"the ledger is right again"},
}

// KindNames returns the names of the kinds in a config.
func KindNames() (names []string) {
	for _, k := range Kinds {
		names = append(names, string(k.Kind))
	}
	return names
}

// Severity is the severity of an event.
type Severity int

const (
	Info Severity = iota
	Warning
	Critical
)

var severities = []string{"info", "warning", "critical"}

func (s Severity) String() string { return severities[s] }

// ParseSeverity parses what String returns.
func ParseSeverity(s string) (Severity, error) {
	if i := slices.Index(severities, s); i >= 0 {
		return Severity(i), nil
	}
	return 0, fmt.Errorf("%.40q is not a severity; expected info, warning or critical", s)
}

// Settings are the thresholds and the routes.
type Settings struct {
	// VHost is the virtual host, if there are several.
	VHost        string
	Page         string         // URL of the page for people; "": no links
	AllowPrivate []netip.Prefix // private addresses that routes may reach
	Critical     []string       // patterns of queues whose events are all critical
	// NoConsumer, OldestWaiting and Burst are the thresholds of their events.
	NoConsumer    time.Duration
	OldestWaiting time.Duration
	Burst         int // parked in a minute
	Routes        []Route
}

// DefaultSettings returns settings without routes.
func DefaultSettings() Settings {
	return Settings{NoConsumer: 15 * time.Minute, OldestWaiting: 24 * time.Hour, Burst: 100}
}

// Secret is a URL that may contain a password: it prints as "(hidden)".
type Secret string

func (Secret) String() string               { return "(hidden)" }
func (Secret) GoString() string             { return "(hidden)" }
func (Secret) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// Route is a receiver of notifications: a team's channel, a pager, a mailbox.
type Route struct {
	Name        string
	URL         Secret
	Kinds       []Kind   // none: all
	Queues      []string // patterns; none: all
	MinSeverity Severity
	// GroupWait is how long to gather events before sending them, and Repeat the time between two notifications of one
	// condition.
	GroupWait, Repeat time.Duration
	Quiet             Quiet
	Resolved          bool // notify when it is over
	// Body is the body of a generic webhook; its strings are templates. nil: all fields.
	Body map[string]any
}

// DefaultRoute returns a route without name and URL.
func DefaultRoute() Route {
	return Route{GroupWait: 30 * time.Second, Repeat: 4 * time.Hour, Resolved: true}
}

// leavesGrouping reports whether the route leaves grouping and repeating to its receiver.
func (r *Route) leavesGrouping() bool {
	d := DefaultRoute()
	return r.GroupWait == d.GroupWait && r.Repeat == d.Repeat && r.Resolved && r.Quiet.Zone == nil
}

func (s *Settings) severity(k key) Severity {
	if k.Queue != "" && matches(s.Critical, k.Queue) {
		return Critical
	}
	return meaningOf(k.Kind).Severity
}

// wants reports whether a route receives an event. Events without a queue go to all routes that
// include the event, and urgent messages to those that include parked ones.
func (s *Settings) wants(r *Route, k key) bool {
	return (len(r.Kinds) == 0 || slices.Contains(r.Kinds, k.Kind) ||
		k.Kind == ParkedUrgent && slices.Contains(r.Kinds, Parked)) &&
		(len(r.Queues) == 0 || k.Queue == "" || matches(r.Queues, k.Queue)) &&
		s.severity(k) >= r.MinSeverity
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

// Options are the options of an Engine.
type Options struct {
	Store interface {
		store.SideTable
		store.Bookkeeper
		store.Scanner
	}
	// Conditions returns all present conditions, by the thresholds of the settings. It is called every 15 seconds; on
	// an error the last known conditions are kept.
	Conditions func(context.Context, *Settings) ([]Condition, error)
	Count      func(route, result string)      // result: sent or failed
	Mask       func(queue, text string) string // of errors; nil: as they are
	Log        *slog.Logger

	open func(*Route) (*target, error) // for tests; nil: open
}

// pollEvery is the time between two calls of Conditions.
const pollEvery = 15 * time.Second

// Engine passes conditions, and what was parked, to the routes. Of several replicas, only the leader runs it.
type Engine struct {
	Options
	change, wake chan struct{}
	current      atomic.Pointer[routeSet]
	ran          bool // Run was called before
}

type routeSet struct {
	settings Settings
	routes   []*route
	base     parkedCounts // from the ledger when they were set; nil: it could not be read
}

// New returns an Engine. It checks the routes' URLs.
func New(s Settings, o Options) (*Engine, error) {
	if o.open == nil {
		o.open = open
	}
	e := &Engine{Options: o, change: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	return e, e.SetSettings(s)
}

// SetSettings replaces the settings, by which pending notifications are sent from then on.
func (e *Engine) SetSettings(s Settings) error {
	c, out := &routeSet{settings: s}, newClient(s.AllowPrivate)
	for i := range c.settings.Routes {
		to, err := e.open(&c.settings.Routes[i])
		if err != nil {
			return fmt.Errorf("notify: route %q: its URL %w", c.settings.Routes[i].Name, err)
		}
		r := &route{engine: e, client: out, Route: c.settings.Routes[i], to: to, wake: make(chan struct{}, 1)}
		r.pending = newPending(&c.settings, &r.Route, to.groups)
		c.routes = append(c.routes, r)
	}
	if len(c.routes) > 0 {
		c.base = e.readBase()
	}
	e.current.Store(c)
	signal(e.change)
	return nil
}

// Routes returns how many routes there are.
func (e *Engine) Routes() int { return len(e.current.Load().routes) }

// Look makes Run read the ledger soon: something was parked.
func (e *Engine) Look() { signal(e.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (e *Engine) wants(r *route, k key) bool { return r.pending.settings.wants(&r.Route, k) }

// Run sends notifications until ctx ends; then it stores the pending ones, without waiting for a service. A replica
// that leads again starts with the stored ones.
func (e *Engine) Run(ctx context.Context) {
	if e.ran {
		if err := e.SetSettings(e.current.Load().settings); err != nil { // unlikely: its URLs were accepted before
			e.Log.Error("no notifications are sent", "error", err)
			return
		}
	}
	e.ran = true
	for {
		select {
		case <-e.change:
		default:
		}
		c := e.current.Load()
		e.forget(ctx, c)
		e.run(ctx, c)
		if ctx.Err() != nil {
			return
		}
	}
}

// run runs a set of routes until ctx ends or SetSettings replaces it.
func (e *Engine) run(ctx context.Context, c *routeSet) {
	// The routes end after the ledger is read for the last time, so that they store what was found.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var routes sync.WaitGroup
	in := &parkedReader{Engine: e, set: c}
	for _, r := range c.routes {
		r.reader = in
		routes.Go(func() { r.run(running) })
	}
	defer routes.Wait()
	defer stop()
	unknown, unread := false, false
	var next time.Time
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for poll := true; ; {
		if poll && len(c.routes) > 0 {
			all, err := e.Conditions(ctx, &c.settings)
			switch {
			case err == nil:
				for _, r := range c.routes {
					r.conditions(all)
				}
			case ctx.Err() == nil && !unknown:
				e.Log.Warn("conditions cannot be read: none begins or ends until they can", "error", err)
			}
			unknown = err != nil
		}
		if len(c.routes) > 0 {
			wait(ctx, time.Until(next))
			began := time.Now()
			err := in.read(ctx)
			next = time.Now().Add(max(minRound, 20*time.Since(began))) // reading many queues takes long
			if err != nil && ctx.Err() == nil && !unread {
				e.Log.Warn("what was parked cannot be read: no notifications about it until it can", "error", err)
			}
			unread = err != nil
		}
		poll = false
		select {
		case <-ctx.Done():
			return
		case <-e.change:
			if e.current.Load() != c {
				return
			}
		case <-e.wake:
		case <-tick.C:
			poll = true
		}
	}
}

// forget deletes the stored state of routes that no longer exist.
func (e *Engine) forget(ctx context.Context, c *routeSet) {
	there, gone := map[string]bool{seen: len(c.routes) > 0, seenUrgent: len(c.routes) > 0}, map[string]bool{}
	for _, r := range c.routes {
		there[r.Name] = true
	}
	_ = e.Store.Entries(ctx, prefix, "", func(en store.Entry) (bool, error) {
		if name, _, _ := strings.Cut(strings.TrimPrefix(en.Name, prefix), "/"); !there[name] {
			gone[name] = true
		}
		return true, nil
	})
	for name := range gone {
		if err := e.Store.DeleteEntries(ctx, prefix+name+"/"); err != nil && ctx.Err() == nil {
			e.Log.Warn("the state of a removed route is not deleted", "route", name, "error", err)
		}
	}
}

// Test sends a notification marked as a test.
func Test(ctx context.Context, s *Settings, r *Route, k Kind) error {
	to, err := open(r)
	if err != nil {
		return fmt.Errorf("its URL %w", err)
	}
	now, severity := time.Now(), meaningOf(k).Severity
	i := Item{Kind: k, Queue: "test", Since: now, Text: "this is a test, sent by `redrive notify test`",
		Severity: severity}
	if k.counted() {
		i.N, i.Errors = 1000, []ErrorCount{{i.Text, 1000}}
	}
	i.Link = link(s.Page, &Message{Kind: k, Items: []Item{i}})
	m := &Message{Kind: k, Test: true, At: now, Severity: severity, Items: []Item{i}, Link: i.Link, VHost: s.VHost}
	return to.deliver(ctx, newClient(s.AllowPrivate), m)
}
