// Package policy decides what happens to a failed message: a failure in, a verdict out. It is arithmetic: no clock, no
// network and no randomness of its own, so the same call always gives the same answer.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// LongestDelay is the longest delay of a policy: RabbitMQ's own limit for a message's time to live, ten years.
const LongestDelay = 315_360_000_000 * time.Millisecond

// Reported is the reason of a failure that a consumer reported itself. It is retried whatever
// Policy.Reasons has: its consumer reported it to have it retried.
const Reported = "reported"

// MaxAttempts is the largest number of attempts of a policy.
const MaxAttempts = 1_000_000

// Policy says for which queues it is, how many attempts their messages have, how long the delays between those are, and
// what happens after the last. A Policy is not changed after Validate; it may then be used from many goroutines.
type Policy struct {
	Name string
	// Queues are names of work queues, where * stands for any characters and ? for one.
	Queues []string
	// Attempts is the number of deliveries to a consumer in all, the first one included: at least 1.
	Attempts int
	Backoff  Backoff
	Jitter   Jitter
	// Rules decide about some failures: the first that matches.
	Rules []Rule
	// Reasons of RabbitMQ's that are retried; others are parked. Empty means rejected and delivery_limit.
	Reasons   []string
	Exhausted Exhausted
	// MaxRetryAfter is the longest delay that a consumer may ask for itself (redrive.RetryAfter,
	// x-redrive-delay); 0: the longest of the policy's own delays.
	MaxRetryAfter time.Duration
	// Retention is how long the service keeps a parked message; then it is discarded, and can be restored for
	// a while as any other. 0: for ever. ExpireNoted: also one of an error group that has a person's note.
	Retention   time.Duration
	ExpireNoted bool
	// MaxAge is how long after its first failure a message may be retried: one whose delay would end later is
	// parked, whoever asks for the delay. 0: no limit. It does not limit a message that a person replayed.
	MaxAge time.Duration
	// MaxReplays is how often people may replay a message; it then stays parked. 0: no limit. The service
	// alone replays messages, by its own policies.
	MaxReplays int
}

// Setting is a key of a policy in the service's config, and its value.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Settings returns the limits that are set, in words.
func (p *Policy) Settings() []Setting {
	all := []Setting{}
	if p.MaxAge > 0 {
		all = append(all, Setting{"max_age", FormatDuration(p.MaxAge)})
	}
	if p.MaxReplays > 0 {
		all = append(all, Setting{"max_replays", strconv.Itoa(p.MaxReplays)})
	}
	if p.Retention > 0 {
		all = append(all, Setting{"retention", FormatDuration(p.Retention)})
	}
	return all
}

// DefaultReasons are retried when a policy names none. A message that expired or overflowed its queue has reached no
// consumer; retrying it to a queue that is too slow for it is rarely meant.
var DefaultReasons = []string{"rejected", "delivery_limit"}

var knownReasons = []string{"rejected", "expired", "maxlen", "delivery_limit"}

// Default is the policy without a configuration: every queue, eight attempts within about two minutes.
func Default() Policy {
	return Policy{Name: "default", Queues: []string{"*"}, Attempts: 8,
		Backoff: Exponential(time.Second, 2, 10*time.Minute), Jitter: Fraction(0.2)}
}

// Action is the action of a verdict.
type Action uint8

const (
	Park    Action = iota // keep it until a person decides; the zero value, since it loses nothing
	Retry                 // publish it to its queue after the delay
	Discard               // delete it
	Forward               // publish it to another exchange or queue
	// Undecided is only for a Rule's outcome: a later rule decides, or the policy.
	Undecided
)

func (a Action) String() string {
	return [...]string{"park", "retry", "discard", "forward", "undecided"}[a]
}

// Exhausted is the action after the last attempt: Park (the zero value), Discard, or Forward to a Destination.
type Exhausted struct {
	Action      Action
	Destination Destination
}

// Destination is an exchange and a routing key. The empty exchange with a queue's name is that queue.
type Destination struct {
	Exchange   string
	RoutingKey string
}

func (d Destination) String() string {
	if d.Exchange == "" {
		return fmt.Sprintf("queue %q", d.RoutingKey)
	}
	return fmt.Sprintf("exchange %q", d.Exchange)
}

// Verdict is a decision about a failed message.
type Verdict struct {
	Action Action
	Delay  time.Duration // Retry: how long to wait first
	// Asked is the delay that a consumer asked for, where that is longer than the
	// policy allows and Delay is shorter; else 0.
	Asked   time.Duration
	Why     string // in words, for the person who looks at the message
	Forward Destination
	Policy  string // the policy's name
	Rule    string // the rule that decided; "": none
	Notify  Importance
}

// Decide gives the verdict for a failure: what its consumer asks for, or what the first rule that matches
// says, or else what the policy does. The number of attempts and MaxAge limit all of them.
func (p *Policy) Decide(f Failure) Verdict {
	rule, notify := p.RuleFor(&f)
	v := Verdict{Policy: p.Name, Notify: notify}
	by, backoff, attempts := fmt.Sprintf("policy %q", p.Name), p.Backoff, p.Attempts
	switch {
	case f.Park != "":
		v.Why = "its consumer parked it: " + f.Park
		return v
	case rule >= 0:
		then := p.Rules[rule].Then
		v.Rule = p.RuleName(rule)
		by = fmt.Sprintf("rule %q of %s", v.Rule, by)
		if then.Action != Retry {
			v.Action, v.Forward, v.Why = then.Action, then.Destination, by+" decided"
			return v.notInCircles(&f)
		}
		backoff, attempts = then.Backoff, cmp.Or(then.Attempts, p.Attempts)
	case f.Reason != Reported && !slices.Contains(p.reasons(), f.Reason):
		v.Why = fmt.Sprintf("its reason is %s, which %s does not retry", f.Reason, by)
		return v
	}
	if f.Attempt >= attempts {
		v.Action, v.Forward = p.Exhausted.Action, p.Exhausted.Destination
		v.Why = fmt.Sprintf("it failed %d times, and %s allows %d attempts", f.Attempt, by, attempts)
		return v.notInCircles(&f)
	}
	v.Action = Retry
	if f.Suggested == 0 {
		v.Delay = p.Jitter.apply(backoff.Delay(f.Attempt), f.Seed)
	} else if v.Delay = min(f.Suggested, p.LongestRetryAfter()); v.Delay < f.Suggested {
		v.Asked = f.Suggested
	}
	if p.MaxAge > 0 && f.Replays == 0 && !f.FirstFailed.IsZero() && f.At.Sub(f.FirstFailed) > p.MaxAge-v.Delay {
		v.Action = Park
		v.Why = fmt.Sprintf("it would be retried in %s, later than %s after its first failure (max_age of policy %q)",
			FormatDuration(v.Delay), FormatDuration(p.MaxAge), p.Name)
		v.Delay, v.Asked = 0, 0
	}
	return v
}

// notInCircles parks what would be forwarded to the queue that it failed in: it would fail and be forwarded
// again without a wait, for ever.
func (v Verdict) notInCircles(f *Failure) Verdict {
	if v.Action == Forward && v.Forward == (Destination{RoutingKey: f.Queue}) {
		v.Action, v.Why = Park, v.Why+"; it is not forwarded to the queue it failed in"
	}
	return v
}

// LongestRetryAfter is the longest delay that a consumer may ask for: MaxRetryAfter, or else the
// longest of the policy's own delays.
func (p *Policy) LongestRetryAfter() time.Duration {
	if p.MaxRetryAfter > 0 {
		return p.MaxRetryAfter
	}
	return p.Backoff.maxOf(p.Attempts - 1)
}

// RefusesReplay returns why a parked message that people replayed so often is not replayed again; "": it may be.
func (p *Policy) RefusesReplay(replays int) string {
	if p.MaxReplays == 0 || replays < p.MaxReplays {
		return ""
	}
	return fmt.Sprintf("policy %q allows %d replays of a message, and it had them: raise max_replays, "+
		"or edit the message", p.Name, p.MaxReplays)
}

func (p *Policy) reasons() []string {
	if len(p.Reasons) == 0 {
		return DefaultReasons
	}
	return p.Reasons
}

// Waits returns the delays between attempts, before jitter: Attempts-1 of them.
func (p *Policy) Waits() []time.Duration {
	w := make([]time.Duration, max(p.Attempts-1, 0))
	for i := range w {
		w[i] = p.Backoff.Delay(i + 1)
	}
	return w
}

// Validate returns all that makes it impossible to keep a policy, by errors.Join; otherwise nil.
func (p *Policy) Validate() error {
	var wrong []error
	fail := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if p.Name == "" {
		fail("a policy needs a name")
	}
	if len(p.Queues) == 0 {
		fail("policy %q names no queues: give at least one name or pattern, such as \"orders.*\"", p.Name)
	}
	if slices.Contains(p.Queues, "") {
		fail("policy %q has an empty queue name", p.Name)
	}
	if p.Attempts < 1 || p.Attempts > MaxAttempts {
		fail("policy %q: attempts is %d, and must be from 1 to %d", p.Name, p.Attempts, MaxAttempts)
	}
	for _, r := range p.Reasons {
		if !slices.Contains(knownReasons, r) {
			fail("policy %q: %q is not a reason RabbitMQ gives; use some of %v", p.Name, r, knownReasons)
		}
	}
	if err := p.Backoff.Validate(); err != nil {
		fail("policy %q: backoff: %w", p.Name, err)
	}
	if err := p.Jitter.Validate(); err != nil {
		fail("policy %q: %w", p.Name, err)
	}
	if p.MaxRetryAfter < 0 || p.MaxRetryAfter > LongestDelay {
		fail("policy %q: the longest delay that consumers may ask for is %s, and must be up to ten years", p.Name,
			FormatDuration(p.MaxRetryAfter))
	}
	if p.Retention < 0 || p.Retention > LongestDelay {
		fail("policy %q: retention is %s, and must be up to ten years", p.Name, FormatDuration(p.Retention))
	}
	if p.MaxAge < 0 || p.MaxAge > LongestDelay {
		fail("policy %q: max_age is %s, and must be up to ten years", p.Name, FormatDuration(p.MaxAge))
	}
	if p.MaxReplays < 0 || p.MaxReplays > MaxAttempts {
		fail("policy %q: the most replays are %d, and must be from 1 to %d, or 0 for no limit",
			p.Name, p.MaxReplays, MaxAttempts)
	}
	wrong = append(wrong, p.validateRules())
	e := p.Exhausted
	if e.Action == Retry || e.Action == Undecided {
		fail("policy %q: exhausted cannot be a %s", p.Name, e.Action)
	}
	names := slices.Clone(p.Queues)
	for _, to := range p.Forwards() {
		names = append(names, to.Exchange, to.RoutingKey)
	}
	for _, name := range names {
		if len(name) > maxNameBytes {
			fail("policy %q: the name %.40q… has %d bytes, and RabbitMQ's have at most %d", p.Name, name, len(name),
				maxNameBytes)
		}
	}
	if e.Action == Forward {
		wrong = append(wrong, p.checkForward(fmt.Sprintf("policy %q", p.Name), e.Destination))
	}
	return errors.Join(wrong...)
}

// checkForward returns an error for a forward to nothing, to the policy's own queues, or to
// Redrive's. who forwards is for the error.
func (p *Policy) checkForward(who string, to Destination) error {
	switch {
	case to == Destination{}:
		return fmt.Errorf("%s: forward needs an exchange or a queue", who)
	case to.Exchange == "" && slices.Contains(p.Queues, to.RoutingKey):
		return fmt.Errorf("%s forwards to %s, which is the queue it is for: the message would fail and be forwarded "+
			"again, without a wait; use more attempts, or another queue", who, to)
	case to.Exchange == "redrive" || strings.HasPrefix(to.Exchange, ownPrefix),
		to.Exchange == "" && strings.HasPrefix(to.RoutingKey, ownPrefix):
		return fmt.Errorf("%s forwards to %s, which is Redrive's own: use park, or a queue of yours", who, to)
	}
	return nil
}

const (
	ownPrefix    = "redrive." // begins the names of Redrive's exchanges and queues
	maxNameBytes = 255        // of an exchange or queue, in AMQP
)

// FormatDuration writes a duration for people: "1.5s", "17m 3s", "2d 4h". From a
// minute on it shows the two largest units only.
func FormatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + FormatDuration(-max(d, -math.MaxInt64)) // the least of all has no opposite
	}
	if d < time.Minute {
		if d = d.Round(roundTo(d)); d < time.Minute {
			return d.String()
		}
	}
	d = d.Round(time.Second)
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	var parts []string
	for _, u := range units {
		n := d / u.size
		d %= u.size
		if n > 0 {
			parts = append(parts, strconv.FormatInt(int64(n), 10)+u.name)
		}
		if len(parts) == 2 || len(parts) == 1 && n == 0 {
			break
		}
	}
	return strings.Join(parts, " ")
}

func roundTo(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return 100 * time.Millisecond
	case d >= time.Second:
		return 10 * time.Millisecond
	case d >= time.Millisecond:
		return 10 * time.Microsecond
	}
	return 1
}

// Set is a list of policies: the first one that matches a queue is its policy.
type Set []Policy

// Match returns the policy of a queue; false: it has none, so nothing is retried to it.
func (s Set) Match(queue string) (*Policy, bool) {
	for i := range s {
		for _, pattern := range s[i].Queues {
			if MatchQueue(pattern, queue) {
				return &s[i], true
			}
		}
	}
	return nil, false
}

// Exact reports whether the policy of a queue names it without * and ?: then the author of the
// policy meant exactly this queue.
func (s Set) Exact(queue string) bool {
	p, ok := s.Match(queue)
	return ok && !strings.ContainsAny(queue, "*?") && slices.Contains(p.Queues, queue)
}

// MatchQueue reports whether a pattern, as in Policy.Queues, matches the whole name of a queue: *
// stands for any bytes, ? for one character, and all else for itself. After a mismatch only the
// last * is tried again, so hostile names cost no more than pattern × name.
func MatchQueue(pattern, name string) bool {
	p, n := 0, 0
	star, retry := -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, retry = p, n
			p++
		case p < len(pattern) && pattern[p] == '?':
			_, size := utf8.DecodeRuneInString(name[n:]) // 1 for an invalid byte
			p, n = p+1, n+size
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			retry++
			p, n = star+1, retry
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
