package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Rule is a case within a policy: what happens to failures of one kind. The first rule of a
// policy that applies decides; where none does, the policy itself.
type Rule struct {
	Name string
	// When tells to which failures the rule applies; nil: to all.
	When Condition
	// Then is what happens to them. AsPolicy is what happens without the rule, so that only
	// Severity counts. Retry is also for reasons that Policy.Reasons leaves out.
	Then Action
	// Why is shown to the person who looks at the message, beside the rule's name.
	Why string
	// Destination is that of Forward.
	Destination Destination
	// Attempts and Backoff are those of Retry; 0 and the zero value: the policy's.
	Attempts int
	Backoff  Backoff
	// Severity of notifications about messages that it parks: info, warning or critical; "": as
	// they are.
	Severity string
}

// Outcome says in words what happens to failures that the rule applies to: "park", or
// "retry, fixed at 5m, 20 attempts".
func (r *Rule) Outcome() string {
	s := r.Then.String()
	if r.Then == Forward {
		s += " to " + r.Destination.String()
	}
	if !r.Backoff.IsZero() {
		s += ", " + r.Backoff.String()
	}
	if r.Attempts > 0 {
		s += fmt.Sprintf(", %d attempts", r.Attempts)
	}
	if r.Severity != "" {
		s += ", severity " + r.Severity
	}
	return s
}

// Condition tells whether a rule applies to a failure. An error says why that cannot be told; the
// rule does then not apply, and the next one is asked.
type Condition interface {
	Applies(f *Failure) (bool, error)
}

// If is a condition as a function. One that panics does not apply.
type If func(f *Failure) bool

// Applies calls the function.
func (c If) Applies(f *Failure) (bool, error) { return c(f), nil }

// ErrorIs applies to failures whose error is target, as errors.Is tells.
func ErrorIs(target error) Condition {
	return If(func(f *Failure) bool { return errors.Is(f.Err, target) })
}

// ErrorAs applies to failures whose error is an E, as errors.As tells.
func ErrorAs[E error]() Condition {
	return If(func(f *Failure) bool { return errors.As(f.Err, new(E)) })
}

// Severities of a rule.
var severities = []string{"info", "warning", "critical"}

// ruleFor returns the rule that applies; nil: none does. note says which could not be evaluated.
func (p *Policy) ruleFor(f *Failure) (rule *Rule, note string) {
	for i := range p.Rules {
		r := &p.Rules[i]
		applies, err := r.applies(f)
		if err != nil {
			if note != "" {
				note += "; "
			}
			note += fmt.Sprintf("rule %q of policy %q was passed over: %v", r.Name, p.Name, err)
		}
		if applies {
			return r, note
		}
	}
	return nil, note
}

// applies is When, also where that panics.
func (r *Rule) applies(f *Failure) (applies bool, err error) {
	if r.When == nil {
		return true, nil
	}
	defer func() {
		if p := recover(); p != nil {
			applies, err = false, fmt.Errorf("its condition panics: %.200v", p)
		}
	}()
	applies, err = r.When.Applies(f)
	return applies && err == nil, err
}

// Under returns the policy with the number of attempts and the backoff of one of its rules.
func (p Policy) Under(r *Rule) Policy {
	if r.Attempts > 0 {
		p.Attempts = r.Attempts
	}
	if !r.Backoff.IsZero() {
		p.Backoff = r.Backoff
	}
	return p
}

// decideBy is the verdict of a rule whose Then is not AsPolicy.
func (p *Policy) decideBy(r *Rule, f *Failure) Verdict {
	if r.Then == Retry {
		under := p.Under(r)
		v := under.retry(f)
		if v.Action != Retry {
			v.Why += fmt.Sprintf("; rule %q", r.Name)
		}
		return v
	}
	v := Verdict{Action: r.Then, Forward: r.Destination, Why: fmt.Sprintf("rule %q of policy %q", r.Name, p.Name)}
	if r.Why != "" {
		v.Why = r.Why + " (" + v.Why + ")"
	}
	return v.notToItself(f)
}

// ValidateRules returns an error for impossible rules. Validate calls it.
func (p *Policy) ValidateRules() error {
	names := map[string]bool{}
	for i := range p.Rules {
		r := &p.Rules[i]
		if err := p.validateRule(r); err != nil {
			return err
		}
		if names[r.Name] {
			return fmt.Errorf("policy %q: a second rule is named %q", p.Name, r.Name)
		}
		names[r.Name] = true
		if i > 0 && p.Rules[i-1].When == nil {
			return fmt.Errorf("policy %q: rule %q is never asked: rule %q before it applies to every failure", p.Name, r.Name, p.Rules[i-1].Name)
		}
	}
	return nil
}

func (p *Policy) validateRule(r *Rule) error {
	of := fmt.Sprintf("policy %q: rule %q", p.Name, r.Name)
	retries := r.Attempts != 0 || !r.Backoff.IsZero()
	switch {
	case r.Name == "" || strings.Contains(r.Name, "\x00"):
		return fmt.Errorf("policy %q: a rule needs a name, without a zero byte: %q", p.Name, r.Name)
	case r.Then > AsPolicy:
		return fmt.Errorf("%s has no such action: %d", of, r.Then)
	case retries && r.Then != Retry:
		return fmt.Errorf("%s has attempts or a backoff, and does not retry but %s", of, r.Then)
	case r.Attempts < 0 || r.Attempts > MaxAttempts:
		return fmt.Errorf("%s: attempts is %d, and must be from 1 to %d", of, r.Attempts, MaxAttempts)
	case r.Destination != Destination{} && r.Then != Forward:
		return fmt.Errorf("%s has a destination, and does not forward but %s", of, r.Then)
	case r.Severity != "" && !slices.Contains(severities, r.Severity):
		return fmt.Errorf("%s: %q is not a severity; use one of %v", of, r.Severity, severities)
	}
	if err := r.Backoff.Validate(); !r.Backoff.IsZero() && err != nil {
		return fmt.Errorf("%s: backoff: %w", of, err)
	}
	if r.Then != Forward {
		return nil
	}
	if err := p.checkNames(r.Destination.Exchange, r.Destination.RoutingKey); err != nil {
		return err
	}
	return p.checkForward(r.Destination)
}
