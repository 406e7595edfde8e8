package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// PolicyInForce is a policy, and the waits it gives.
type PolicyInForce struct {
	Name          string        `json:"name"`
	Queues        []string      `json:"queues"`
	Attempts      int           `json:"attempts"`
	Backoff       string        `json:"backoff"`
	Jitter        string        `json:"jitter"`
	Reasons       []string      `json:"reasons"`
	Exhausted     string        `json:"exhausted"`
	Way           string        `json:"wait"`
	Rules         []RuleInForce `json:"rules" doc:"Cases within it: the first that applies to a failure decides."`
	MaxAge        string        `json:"max_age,omitempty" doc:"How long after its first failure a message is retried at the latest."`
	Retention     string        `json:"retention,omitempty" doc:"How long parked messages are kept before they are discarded. Absent: until a person does."`
	RetryPriority *uint8        `json:"retry_priority,omitempty" doc:"The AMQP priority of retries. Absent: that of the message."`
	Redirects     []Redirect    `json:"redirects,omitempty" doc:"What fails in other queues, and is retried to one of this policy."`
	Limits        string        `json:"throttle" doc:"Limits on retries: rate, in flight, breaker. Empty: none. (Retries also wait for consumers.)"`
	Breaker       string        `json:"breaker,omitempty" doc:"When its circuit breaker opens and closes, in words."`
	Words         string        `json:"in_words" doc:"What it does with a message, in sentences."`
	YAML          string        `json:"yaml,omitempty" doc:"As the config file has it; absent where there is none."`
	// Waits is the delay after each failure but the last.
	Waits   []Wait   `json:"waits"`
	Matches *Matches `json:"matches,omitempty" doc:"The queues whose policy it is now; absent while the store does not answer."`
}

// RuleInForce is a rule of a policy, in words.
type RuleInForce struct {
	Name string `json:"name"`
	When string `json:"when,omitempty" doc:"The query about the failed message. Absent: it applies to every failure."`
	Then string `json:"then" doc:"What happens to the message."`
	Why  string `json:"why,omitempty" doc:"What is shown with messages that it parks."`
}

// Redirect has what fails in one queue retried to another one.
type Redirect struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Matches are the queues whose policy is a certain one.
type Matches struct {
	Count  int      `json:"count"`
	Queues []string `json:"queues" doc:"The first 10, ordered by name."`
}

// mostMatches is how many queues of a policy are named.
const mostMatches = 10

// Wait is a delay of a policy: with jitter, from least to most.
type Wait struct {
	Attempt int    `json:"attempt"`
	Least   string `json:"least"`
	Most    string `json:"most"`
}

// mostWaits is how many of a policy's waits are shown; those after are like the
// last, or the list is too long to read.
const mostWaits = 100

// Policies are those in force, in the order in which they are tried. A caller who is
// limited to queues sees those that apply to them, without other queues' names.
func (in *Inspector) Policies(ctx context.Context, by auth.Caller) ([]PolicyInForce, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	mine, unread := in.enrolledToo(ctx, by)
	if unread != nil && (by.Queues != nil || ctx.Err() != nil) {
		return nil, unread
	}
	all := []PolicyInForce{}
	set := in.policies()
	for i := range set {
		p := &set[i]
		f := in.inForce(p, by)
		if by.Queues != nil {
			f.YAML = "" // has patterns of others' queues
			f.Queues = slices.DeleteFunc(slices.Clone(p.Queues), func(pattern string) bool {
				return !slices.ContainsFunc(mine.counts, func(n store.QueueCount) bool { return policy.MatchQueue(pattern, n.Queue) })
			})
			if len(f.Queues) == 0 {
				continue
			}
		}
		all = append(all, f)
	}
	if unread == nil {
		countMatches(all, set, mine.counts)
	}
	return all, nil
}

// countMatches sets which of the queues each policy is for.
func countMatches(all []PolicyInForce, set policy.Set, queues []store.QueueCount) {
	of := map[string]*Matches{}
	for i := range all {
		of[all[i].Name] = &Matches{Queues: []string{}}
		all[i].Matches = of[all[i].Name]
	}
	for _, n := range queues {
		p, ok := set.Match(n.Queue)
		if !ok || of[p.Name] == nil {
			continue
		}
		m := of[p.Name]
		if m.Count++; m.Count <= mostMatches {
			m.Queues = append(m.Queues, n.Queue)
		}
	}
}

func (in *Inspector) policies() policy.Set {
	if in.Config.Policies == nil {
		return nil
	}
	return in.Config.Policies()
}

// HasPolicy tells whether a policy names the queue, so that its messages can be retried.
// Where no policies are known, it is taken to.
func (in *Inspector) HasPolicy(queue string) bool {
	if in.Config.Policies == nil {
		return true
	}
	_, ok := in.Config.Policies().Match(queue)
	return ok
}

// redirects are those to queues of a policy, of queues that the caller sees.
func (in *Inspector) redirects(p *policy.Policy, by auth.Caller) (all []Redirect) {
	if in.Redirects == nil {
		return nil
	}
	set, redirects := in.policies(), in.Redirects()
	for _, from := range slices.Sorted(maps.Keys(redirects)) {
		to := redirects[from]
		if of, ok := set.Match(to); ok && of.Name == p.Name && by.Sees(from) && by.Sees(to) {
			all = append(all, Redirect{from, to})
		}
	}
	return all
}

func (in *Inspector) inForce(p *policy.Policy, by auth.Caller) PolicyInForce {
	way := in.way(p.Name)
	f := PolicyInForce{Name: p.Name, Queues: p.Queues, Attempts: p.Attempts, Backoff: p.Backoff.String(), Jitter: p.Jitter.String(), Reasons: p.Reasons,
		Exhausted: p.Exhausted.Action.String(), Way: wayName(way), Waits: []Wait{}}
	var rules throttle.Rules
	if in.Rules != nil {
		rules = in.Rules(p.Name)
	}
	if f.Limits = rules.String(); rules.Breaker != nil {
		f.Breaker = breakerWords(rules.Breaker)
	}
	if in.PolicyYAML != nil {
		f.YAML = in.PolicyYAML(p.Name)
	}
	f.Rules, f.RetryPriority, f.Redirects = rulesInForce(p), p.RetryPriority, in.redirects(p, by)
	if p.MaxAge > 0 {
		f.MaxAge = policy.FormatDuration(p.MaxAge)
	}
	if p.Retention > 0 {
		f.Retention = policy.FormatDuration(p.Retention)
	}
	if len(f.Reasons) == 0 {
		f.Reasons = policy.DefaultReasons
	}
	if p.Exhausted.Action == policy.Forward {
		f.Exhausted += " to " + p.Exhausted.Destination.String()
	}
	for n := 1; n < p.Attempts && n <= mostWaits; n++ {
		least, most := waits(p, way, n)
		f.Waits = append(f.Waits, Wait{Attempt: n, Least: policy.FormatDuration(least), Most: policy.FormatDuration(most)})
	}
	f.Words = policyWords(p, &f, rules)
	return f
}

func rulesInForce(p *policy.Policy) []RuleInForce {
	all := make([]RuleInForce, len(p.Rules))
	for i := range p.Rules {
		r := &p.Rules[i]
		all[i] = RuleInForce{Name: r.Name, Then: r.Outcome(), Why: r.Why}
		if when, ok := r.When.(fmt.Stringer); ok {
			all[i].When = when.String()
		}
	}
	return all
}

// waits are the shortest and the longest wait after a failure, as it comes out where
// messages wait.
func waits(p *policy.Policy, way delay.Way, failure int) (least, most time.Duration) {
	d := p.Backoff.Delay(failure)
	least, most = p.Jitter.Shortest(d), p.Jitter.Longest(d)
	if way == nil {
		return least, most
	}
	for _, d := range []*time.Duration{&least, &most} {
		if t, err := way.Ticket("", *d); err == nil {
			*d = t.Delay
		}
	}
	return least, most
}

func (in *Inspector) way(policy string) delay.Way {
	if in.Way == nil {
		return nil
	}
	return in.Way(policy)
}

func wayName(way delay.Way) string {
	if way == nil {
		return retry.InStore
	}
	return way.Limits().Name
}
