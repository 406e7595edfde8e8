package policy

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// Rule is a case within a policy. Of a policy's rules the first that matches decides about a failure,
// whatever its reason; where none matches, the policy does.
type Rule struct {
	Name string // for people and metrics; "": its number
	When Matcher
	Then RuleOutcome
	// Notify is how important the message is, for the service's notifications. The first rule that matches
	// and has one counts, up to the one that decides.
	Notify Importance
}

// Importance is whether people are notified when a message is parked.
type Importance uint8

const (
	Unsaid Importance = iota // as Normal, unless a later rule says more
	Normal
	Urgent // at once, also in quiet hours
	Never
)

func (i Importance) String() string { return [...]string{"", "normal", "urgent", "never"}[i] }

// Matcher matches failures. It must be quick, have no effects, and be safe for concurrent use.
type Matcher interface {
	Matches(*Failure) bool
	String() string // as people read it
}

// MatchFunc is a Matcher in Go, such as one that calls errors.As with Failure.Err.
type MatchFunc func(*Failure) bool

// Matches implements Matcher.
func (f MatchFunc) Matches(of *Failure) bool { return f(of) }

func (f MatchFunc) String() string { return "a function" }

// RuleOutcome is a rule's decision.
type RuleOutcome struct {
	Action      Action
	Destination Destination // of Forward
	// Backoff of Retry, with the policy's jitter.
	Backoff Backoff
	// Attempts of Retry, in all, the first one included; 0: the policy's. After the last, Policy.Exhausted follows.
	Attempts int
}

// String describes it for people: "retry, fixed at 30s".
func (o RuleOutcome) String() string {
	switch {
	case o.Action == Forward:
		return "forward to " + o.Destination.String()
	case o.Action == Retry && o.Attempts > 0:
		return fmt.Sprintf("retry, %s, %d attempts", o.Backoff, o.Attempts)
	case o.Action == Retry:
		return "retry, " + o.Backoff.String()
	case o.Action == Undecided:
		return ""
	}
	return o.Action.String()
}

// Failure describes one failure of a message.
type Failure struct {
	Queue  string
	Reason string
	// Attempt is which attempt of the message failed, from 1.
	Attempt int
	// Replays is how often people replayed the message.
	Replays int
	// Suggested is the delay that a consumer asks for; 0 is none. It counts up to
	// Policy.LongestRetryAfter and is not jittered, and no rule is asked.
	Suggested time.Duration
	// Park is why a consumer asks to park the message; "": it does not. No rule is asked.
	Park string
	// Seed chooses the jitter: the same seed, the same jitter.
	Seed uint64

	// For rules: the error's text, where the consumer reports one; in the library the error itself; the
	// message, which may be nil; and, also for Policy.MaxAge, when it failed first, and now.
	Error           string
	Err             error
	Message         *wire.Message
	FirstFailed, At time.Time
	// Decoded returns the message's body as the service decodes it, for the queries of its rules; nil in the library.
	Decoded func() any
}

// RuleFor returns which rule decides about a failure, counted from 0 (-1: none), and how important it is.
func (p *Policy) RuleFor(f *Failure) (decides int, notify Importance) {
	asked := f.Suggested > 0 || f.Park != ""
	for i := range p.Rules {
		r := &p.Rules[i]
		says := r.Notify != Unsaid && notify == Unsaid
		if !says && (asked || r.Then.Action == Undecided) || !r.When.Matches(f) {
			continue
		}
		if says {
			notify = r.Notify
		}
		if r.Then.Action != Undecided && !asked {
			return i, notify
		}
	}
	return -1, notify
}

// RuleName returns the name of a rule, or its number from 1 where it has none.
func (p *Policy) RuleName(i int) string { return cmp.Or(p.Rules[i].Name, strconv.Itoa(i+1)) }

// Cases returns the policy without its rules, and then with what each rule that retries has instead of its
// own backoff and attempts.
func (p *Policy) Cases() []Policy {
	of := *p
	of.Rules = nil
	all := []Policy{of}
	for i := range p.Rules {
		if then := &p.Rules[i].Then; then.Action == Retry {
			one := of
			one.Backoff, one.Attempts = then.Backoff, cmp.Or(then.Attempts, p.Attempts)
			all = append(all, one)
		}
	}
	return all
}

// Forwards returns where the policy and its rules forward.
func (p *Policy) Forwards() (all []Destination) {
	if p.Exhausted.Action == Forward {
		all = append(all, p.Exhausted.Destination)
	}
	for i := range p.Rules {
		if then := &p.Rules[i].Then; then.Action == Forward {
			all = append(all, then.Destination)
		}
	}
	return all
}

// MaxRules is the largest number of rules of a policy.
const MaxRules = 100

// validateRules returns all that makes it impossible to keep the rules, or nil.
func (p *Policy) validateRules() error {
	var wrong []error
	if len(p.Rules) > MaxRules {
		wrong = append(wrong, fmt.Errorf("policy %q has %d rules, and may have %d", p.Name, len(p.Rules), MaxRules))
	}
	names := map[string]bool{}
	for i := range p.Rules {
		r, name := &p.Rules[i], p.RuleName(i)
		fail := func(format string, args ...any) {
			wrong = append(wrong, fmt.Errorf("policy %q: rule %s: %w", p.Name, name, fmt.Errorf(format, args...)))
		}
		if names[name] {
			fail("a rule before it has that name")
		}
		names[name] = true
		if r.When == nil {
			fail("it does not say when")
		}
		if r.Then.Action == Undecided && r.Notify == Unsaid {
			fail("it neither decides nor says how important the message is")
		}
		switch then := r.Then; then.Action {
		case Retry:
			if err := then.Backoff.Validate(); err != nil {
				fail("backoff: %w", err)
			}
			if then.Attempts < 0 || then.Attempts > MaxAttempts {
				fail("attempts is %d, and must be from 1 to %d", then.Attempts, MaxAttempts)
			}
		case Forward:
			wrong = append(wrong, p.checkForward(fmt.Sprintf("policy %q: rule %s", p.Name, name), then.Destination))
		}
	}
	return errors.Join(wrong...)
}
