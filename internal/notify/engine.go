package notify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// Options of an Engine.
type Options struct {
	Store store.SideTable
	// Conditions are all that are present now, by the thresholds of the settings. It is called
	// every 15 seconds; after an error, the conditions of before continue.
	Conditions func(context.Context, *Settings) ([]Condition, error)
	Count      func(route, result string) // result: sent or failed
	Log        *slog.Logger
	// Decode decodes the body of a message, where a rule asks for it.
	Decode func(*store.Record) *decode.Result
	// Replica, when not "", is the id of this replica of several: counts of parked messages
	// go through the store to the leader, see relay.go, and only the leader calls Run.
	Replica string

	open func(*Route) (*target, error) // nil but in tests
}

const (
	pollEvery     = 15 * time.Second // between two calls of Conditions
	longestReason = 1 << 10          // bytes of an error that are read
)

// Engine passes events and conditions to the routes. Make it with New, call Event for each
// event, and Run it.
type Engine struct {
	Options
	change chan struct{}

	mu      sync.RWMutex
	current *routeSet
	ran     bool

	relay relay
}

// routeSet are the routes of one configuration.
type routeSet struct {
	settings Settings
	routes   []*route
}

// New checks the routes' URLs.
func New(s Settings, o Options) (*Engine, error) {
	if o.open == nil {
		o.open = open
	}
	e := &Engine{Options: o, change: make(chan struct{}, 1), relay: relay{arrivals: newArrivals()}}
	return e, e.SetSettings(s)
}

// SetSettings replaces the settings; pending notifications are sent by the new ones.
func (e *Engine) SetSettings(s Settings) error {
	c, out := &routeSet{settings: s}, newClient(s.AllowPrivate)
	for i := range c.settings.Routes {
		to, err := e.open(&c.settings.Routes[i])
		if err != nil {
			return fmt.Errorf("notify: route %q: its URL %w", c.settings.Routes[i].Name, err)
		}
		r := &route{engine: e, client: out, Route: c.settings.Routes[i], to: to, arrivals: newArrivals()}
		r.pending = newPending(&c.settings, &r.Route)
		c.routes = append(c.routes, r)
	}
	e.mu.Lock()
	e.current = c
	e.mu.Unlock()
	select {
	case e.change <- struct{}{}:
	default:
	}
	return nil
}

func (e *Engine) routeSet() *routeSet {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.current
}

// Settings are those in force. They are not changed, but replaced.
func (e *Engine) Settings() *Settings { return &e.routeSet().settings }

func (e *Engine) wants(r *route, k key) bool { return r.pending.settings.wants(&r.Route, k) }

// Event counts an event; it never waits for a route.
func (e *Engine) Event(ev retry.Event) {
	if ev.Kind != retry.Parked {
		return
	}
	k, why := key{Kind: Parked, Queue: ev.Queue}, parkReason{text: ev.Error}
	if why.text == "" {
		why = parkReason{text: ev.Why, ours: true}
	}
	why.text = why.text[:min(len(why.text), longestReason)]
	e.mu.RLock() // until it is counted: a route that ends stores what it has counted
	defer e.mu.RUnlock()
	asked := false
	for _, r := range e.current.routes {
		if !r.includes(k) {
			continue
		}
		if !asked {
			k.Severity, asked = e.current.settings.severityOf(&ev, e.Decode), true
		}
		switch {
		case !e.wants(r, k):
		case e.Replica != "":
			e.relay.count(k, int64(max(1, ev.N)), why, ev.At)
			return
		default:
			r.count(k, int64(max(1, ev.N)), why, ev.At)
		}
	}
}

// Run sends notifications until ctx ends; then it stores the pending ones, and waits for no
// service. A replica that leads again starts with the stored ones.
func (e *Engine) Run(ctx context.Context) {
	e.mu.Lock()
	again, settings := e.ran, e.current.settings
	e.ran = true
	e.mu.Unlock()
	if again {
		if err := e.SetSettings(settings); err != nil { // its URLs were accepted before
			e.Log.Error("no notifications are sent", "error", err)
			return
		}
	}
	in := &collector{last: map[string]string{}}
	for {
		select {
		case <-e.change:
		default:
		}
		c := e.routeSet()
		e.forget(ctx, c)
		e.run(ctx, c, in)
		if ctx.Err() != nil {
			return
		}
	}
}

// run runs a set of routes until ctx ends or SetSettings replaces it.
func (e *Engine) run(ctx context.Context, c *routeSet, in *collector) {
	ctx, stop := context.WithCancel(ctx)
	var routes sync.WaitGroup
	for _, r := range c.routes {
		routes.Go(func() { r.run(ctx) })
	}
	defer routes.Wait()
	defer stop()
	unknown := false
	if e.Replica != "" && len(c.routes) > 0 {
		routes.Go(func() { e.collect(ctx, c, in) })
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if len(c.routes) > 0 {
			all, err := e.Conditions(ctx, &c.settings)
			if err != nil && ctx.Err() == nil && !unknown {
				e.Log.Warn("conditions cannot be read: none begins or ends until they can", "error", err)
			}
			if unknown = err != nil; !unknown {
				for _, r := range c.routes {
					r.conditions(all)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-e.change:
			if e.routeSet() != c {
				return
			}
		case <-tick.C:
		}
	}
}

// forget deletes the stored state of routes that no longer exist.
func (e *Engine) forget(ctx context.Context, c *routeSet) {
	there, gone := map[string]bool{}, map[string]bool{}
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

// Test sends a notification that says that it is a test; to PagerDuty one by each key, with a
// pattern of it as the queue.
func Test(ctx context.Context, s *Settings, r *Route, k Kind) error {
	to, err := open(r)
	if err != nil {
		return fmt.Errorf("its URL %w", err)
	}
	err = sendTest(ctx, s, to, k, "test")
	for _, key := range r.Keys {
		if err == nil {
			err = sendTest(ctx, s, to, k, key.Queues[0])
		}
	}
	return err
}

func sendTest(ctx context.Context, s *Settings, to *target, k Kind, queue string) error {
	m := &Message{Kind: k, Test: true, At: time.Now(), Severity: meaningOf(k).Severity}
	i := Item{Kind: k, Queue: queue, Since: m.At, Text: "this is a test, sent by `redrive notify test`"}
	if k == Parked {
		i.N, i.Errors = 1000, []ErrorCount{{i.Text, 1000}}
	}
	m.Items = []Item{i}
	m.Link, m.VHost = link(s.Page, m), s.VHost
	m.Items[0].Severity, m.Items[0].Link = m.Severity, m.Link
	return to.deliver(ctx, newClient(s.AllowPrivate), m)
}
