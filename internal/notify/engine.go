package notify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Options of an Engine.
type Options struct {
	Store interface {
		store.SideTable
		store.Bookkeeper
		store.Scanner
	}
	// Conditions are all that are present now, by the thresholds of the settings. It is called
	// every 15 seconds; after an error, the conditions of before continue.
	Conditions func(context.Context, *Settings) ([]Condition, error)
	Count      func(route, result string) // result: sent or failed
	Log        *slog.Logger

	open func(*Route) (*target, error) // nil but in tests
}

// pollEvery is the time between two calls of Conditions.
const pollEvery = 15 * time.Second

// Engine passes conditions, and what was parked, to the routes. Of several replicas only the leader runs it.
type Engine struct {
	Options
	change, wake chan struct{}

	mu      sync.RWMutex
	current *routeSet
	ran     bool
}

// routeSet are the routes of one configuration.
type routeSet struct {
	settings Settings
	routes   []*route
	base     parkedCounts // of the ledger when they were set; nil: it could not be read
}

// New checks the routes' URLs.
func New(s Settings, o Options) (*Engine, error) {
	if o.open == nil {
		o.open = open
	}
	e := &Engine{Options: o, change: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
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
		r := &route{engine: e, client: out, Route: c.settings.Routes[i], to: to, wake: make(chan struct{}, 1)}
		r.pending = newPending(&c.settings, &r.Route, to.groups)
		c.routes = append(c.routes, r)
	}
	if len(c.routes) > 0 {
		c.base = e.readBase()
	}
	e.mu.Lock()
	e.current = c
	e.mu.Unlock()
	signal(e.change)
	return nil
}

// Look makes Run read the ledger soon: something was parked.
func (e *Engine) Look() { signal(e.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (e *Engine) routeSet() *routeSet {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.current
}

func (e *Engine) wants(r *route, k key) bool { return r.pending.settings.wants(&r.Route, k) }

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
	for {
		select {
		case <-e.change:
		default:
		}
		c := e.routeSet()
		e.forget(ctx, c)
		e.run(ctx, c)
		if ctx.Err() != nil {
			return
		}
	}
}

// run runs a set of routes until ctx ends or SetSettings replaces it.
func (e *Engine) run(ctx context.Context, c *routeSet) {
	// The routes end after the last reading of the ledger, so that they store what it has found.
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
			if err != nil && ctx.Err() == nil && !unknown {
				e.Log.Warn("conditions cannot be read: none begins or ends until they can", "error", err)
			}
			if unknown = err != nil; !unknown {
				for _, r := range c.routes {
					r.conditions(all)
				}
			}
		}
		if len(c.routes) > 0 {
			wait(ctx, time.Until(next))
			began := time.Now()
			err := in.read(ctx)
			next = time.Now().Add(max(minRound, 20*time.Since(began))) // of many queues it takes long
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
			if e.routeSet() != c {
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
	there, gone := map[string]bool{seen: len(c.routes) > 0}, map[string]bool{}
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

// Test sends a notification that says that it is a test.
func Test(ctx context.Context, s *Settings, r *Route, k Kind) error {
	to, err := open(r)
	if err != nil {
		return fmt.Errorf("its URL %w", err)
	}
	m := &Message{Kind: k, Test: true, At: time.Now(), Severity: meaningOf(k).Severity}
	i := Item{Kind: k, Queue: "test", Since: m.At, Text: "this is a test, sent by `redrive notify test`"}
	if k == Parked {
		i.N, i.Errors = 1000, []ErrorCount{{i.Text, 1000}}
	}
	m.Items = []Item{i}
	m.Link, m.VHost = link(s.Page, m), s.VHost
	m.Items[0].Severity, m.Items[0].Link = m.Severity, m.Link
	return to.deliver(ctx, newClient(s.AllowPrivate), m)
}
