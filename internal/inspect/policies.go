package inspect

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// PolicyInForce is a policy, and the waits it gives.
type PolicyInForce struct {
	Name      string   `json:"name"`
	Queues    []string `json:"queues"`
	Attempts  int      `json:"attempts"`
	Backoff   string   `json:"backoff"`
	Jitter    string   `json:"jitter"`
	Reasons   []string `json:"reasons"`
	Exhausted string   `json:"exhausted"`
	Way       string   `json:"wait"`
	Limits    string   `json:"throttle" doc:"Limits on retries: rate, in flight, breaker. Empty: none."`
	// Settings are made by the policy.
	Settings []policy.Setting `json:"settings" doc:"Limits that are set, with the config's keys."`
	Rules    []Rule           `json:"rules" doc:"In the order in which they are tried."`
	Failures int64            `json:"failures" doc:"About which it decided since this service started."`
	NoError  int64            `json:"without_error" doc:"Of these, without an error text that a rule could match."`
	Waits    []Wait           `json:"waits" doc:"The delay after each failure but the last; the first hundred."`
	Settled  int              `json:"settled" doc:"The failure from which on all waits are the same."`
	Total    string           `json:"total" doc:"Of all waits, those left out here included, on average."`
}

// Rule is a rule of a policy.
type Rule struct {
	Name    string `json:"name" doc:"Or its number."`
	When    string `json:"when"`
	Then    string `json:"then,omitempty"`
	Notify  string `json:"notify,omitempty" enum:"urgent,normal,never"`
	Matches int64  `json:"matches" doc:"Failures about which it decided since this service started."`
}

// Decisions counts what policies decide. It is safe for concurrent use; its zero value is ready.
type Decisions struct {
	mu sync.Mutex
	of map[string]*decided
}

type decided struct {
	failures, noError int64
	rules             map[string]int64
}

// Event counts an event.
func (d *Decisions) Event(e retry.Event) {
	if e.Kind != retry.Failed || e.Policy == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.of[e.Policy]
	if n == nil {
		if d.of == nil {
			d.of = map[string]*decided{}
		}
		n = &decided{rules: map[string]int64{}}
		d.of[e.Policy] = n
	}
	n.failures++
	if e.Error == "" {
		n.noError++
	}
	if e.Rule != "" {
		n.rules[e.Rule]++
	}
}

// count adds counts to a policy.
func (d *Decisions) count(f *PolicyInForce) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.of[f.Name]; n != nil {
		f.Failures, f.NoError = n.failures, n.noError
		for i := range f.Rules {
			f.Rules[i].Matches = n.rules[f.Rules[i].Name]
		}
	}
}

// Wait is a delay of a policy: with jitter, from least to most.
type Wait struct {
	Attempt int    `json:"attempt"`
	Least   string `json:"least"`
	Most    string `json:"most"`
}

// maxWaits is how many of a policy's waits are shown; those after are like the
// last, or the list is too long to read.
const maxWaits = 100

// Policies are those in force, in the order in which they are tried. A caller who is
// limited to queues sees those that apply to them, without other queues' names.
func (in *Inspector) Policies(ctx context.Context, by auth.Caller) ([]PolicyInForce, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	var mine visibleQueues
	if by.Queues != nil {
		var err error
		if mine, err = in.visibleQueues(ctx, by); err != nil {
			return nil, err
		}
	}
	all := []PolicyInForce{}
	set := in.policies()
	for i := range set {
		p := &set[i]
		f := in.inForce(p)
		if by.Queues != nil {
			f.Queues = slices.DeleteFunc(slices.Clone(p.Queues), func(pattern string) bool {
				return !slices.ContainsFunc(mine.counts,
					func(n store.QueueCount) bool { return policy.MatchQueue(pattern, n.Queue) })
			})
			if len(f.Queues) == 0 {
				continue
			}
		}
		all = append(all, f)
	}
	return all, nil
}

func (in *Inspector) policies() policy.Set {
	if in.Config.Policies == nil {
		return nil
	}
	return in.Config.Policies()
}

// HasPolicy reports whether a policy names the queue, so that its messages can be retried.
// Where no policies are known, it is taken to.
func (in *Inspector) HasPolicy(queue string) bool {
	if in.Config.Policies == nil {
		return true
	}
	_, ok := in.Config.Policies().Match(queue)
	return ok
}

// NamedExactly reports whether a policy names the queue, and not only a pattern that matches it.
func (in *Inspector) NamedExactly(queue string) bool {
	return in.Config.Policies == nil || in.Config.Policies().Exact(queue)
}

// RefusesReplay returns why the policy of a parked record's queue keeps it parked when a person replays it; "": it
// does not.
func (in *Inspector) RefusesReplay(r *store.Record) string {
	if p, ok := in.policies().Match(r.Queue); ok {
		return p.RefusesReplay(r.Replays)
	}
	return ""
}

func (in *Inspector) inForce(p *policy.Policy) PolicyInForce {
	way := in.way(p.Name)
	f := PolicyInForce{Name: p.Name, Queues: p.Queues, Attempts: p.Attempts, Backoff: p.Backoff.String(),
		Jitter: p.Jitter.String(), Reasons: p.Reasons,
		Exhausted: p.Exhausted.Action.String(), Settings: p.Settings(),
		Way: in.wayName(way), Rules: []Rule{}, Waits: []Wait{}}
	for i, r := range p.Rules {
		f.Rules = append(f.Rules, Rule{Name: p.RuleName(i), When: strings.TrimSpace(r.When.String()),
			Then: r.Then.String(), Notify: r.Notify.String()})
	}
	if in.Decisions != nil {
		in.Decisions.count(&f)
	}
	if in.Limits != nil {
		f.Limits = in.Limits(p.Name)
	}
	if len(f.Reasons) == 0 {
		f.Reasons = policy.DefaultReasons
	}
	if p.Exhausted.Action == policy.Forward {
		f.Exhausted += " to " + p.Exhausted.Destination.String()
	}
	for n := 1; n < p.Attempts && n <= maxWaits; n++ {
		least, most := waits(p, way, n)
		f.Waits = append(f.Waits, Wait{Attempt: n, Least: policy.FormatDuration(least),
			Most: policy.FormatDuration(most)})
	}
	f.Settled = p.Backoff.Settles(p.Attempts - 1)
	f.Total = total(p, way, f.Settled)
	return f
}

// total returns the sum of all waits, with the average of jitter. A million waits of years are more than a Duration.
func total(p *policy.Policy, way delay.Way, settled int) string {
	var sum float64
	for n := 1; n < p.Attempts && n <= settled; n++ {
		least, most := waits(p, way, n)
		times := 1
		if n == settled {
			times = p.Attempts - n
		}
		sum += float64(times) * (float64(least) + float64(most)) / 2
	}
	if sum >= math.MaxInt64 {
		return "more than " + policy.FormatDuration(math.MaxInt64)
	}
	return policy.FormatDuration(time.Duration(sum).Round(time.Second))
}

// waits returns the shortest and the longest wait after a failure, as rounded by the way the messages wait.
func waits(p *policy.Policy, way delay.Way, failure int) (shortest, longest time.Duration) {
	d := p.Backoff.Delay(failure)
	shortest, longest = p.Jitter.Shortest(d), p.Jitter.Longest(d)
	if way == nil {
		return shortest, longest
	}
	for _, d := range []*time.Duration{&shortest, &longest} {
		if t, err := way.Ticket("", *d); err == nil {
			*d = t.Delay
		}
	}
	return shortest, longest
}

func (in *Inspector) way(policy string) delay.Way {
	if in.Way == nil {
		return nil
	}
	return in.Way(policy)
}

// wayName is where the messages of a way wait: of nil, in the store.
func (in *Inspector) wayName(way delay.Way) string {
	switch {
	case way != nil:
		return way.Limits().Name
	case in.Replicas != nil:
		return "redis"
	}
	return retry.InStore
}
