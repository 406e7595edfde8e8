package inspect

import (
	"fmt"
	"math"
	"strings"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// policyWords says in sentences what a policy does with a message.
func policyWords(p *policy.Policy, f *PolicyInForce, r throttle.Rules) string {
	all := []string{}
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch n := len(p.Rules); {
	case n == 1:
		add("Its rule decides first, where it applies.")
	case n > 1:
		add("Its %d rules decide first, where one applies.", n)
	}
	end := map[policy.Action]string{policy.Park: "parked", policy.Discard: "discarded", policy.Forward: "forwarded to " + p.Exhausted.Destination.String()}[p.Exhausted.Action]
	if p.Attempts <= 1 {
		add("A message is %s at its first failure.", end)
	} else {
		all = append(all, retryWords(p, end, f.Reasons)...)
	}
	var limits []string
	if r.Rate > 0 {
		limits = append(limits, throttle.FormatRate(r.Rate))
	}
	if r.InFlight > 0 {
		limits = append(limits, fmt.Sprintf("%d in flight", r.InFlight))
	}
	if len(limits) > 0 && p.Attempts > 1 {
		add("Each queue gets at most %s.", strings.Join(limits, " and "))
	}
	if p.RetryPriority != nil {
		add("Retries have the priority %d.", *p.RetryPriority)
	}
	if f.Retention != "" {
		add("What is parked is discarded after %s.", f.Retention)
	}
	for _, d := range f.Redirects {
		add("What fails in queue %q is retried to %q.", d.From, d.To)
	}
	return strings.Join(all, " ")
}

// retryWords are the sentences about retries.
func retryWords(p *policy.Policy, end string, reasons []string) []string {
	times := fmt.Sprintf("up to %d times", p.Attempts-1)
	if p.Attempts == 2 {
		times = "once"
	}
	text := fmt.Sprintf("A failed message is retried %s, after %s", times, delayWords(p))
	if j := p.Jitter.String(); j != "none" {
		text += fmt.Sprintf(" (jitter %s)", j)
	}
	when := fmt.Sprintf("When attempt %d fails", p.Attempts)
	if p.MaxAge > 0 {
		when += fmt.Sprintf(", or the next would be later than %s after the first failure", policy.FormatDuration(p.MaxAge))
	}
	return []string{text + ".", when + ", it is " + end + ".",
		fmt.Sprintf("This is for messages with the reason %s, and for reports; others are parked at once.", anyOf(reasons))}
}

// delayWords lists the first delays of a policy and its last.
func delayWords(p *policy.Policy) string {
	const shown = 4
	delay := func(n int) string { return policy.FormatDuration(p.Backoff.Delay(n)) }
	last := p.Attempts - 1
	var all []string
	same := true
	for n := 1; n <= min(last, shown); n++ {
		all = append(all, delay(n))
		same = same && delay(n) == all[0]
	}
	switch {
	case last == 1:
		return all[0]
	case same && delay(last) == all[0]:
		return all[0] + " each"
	case last > shown+1:
		return strings.Join(all, ", ") + ", … and at last " + delay(last)
	case last > shown:
		all = append(all, delay(last))
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

func anyOf(all []string) string {
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// breakerWords says when a breaker opens and closes.
func breakerWords(b *throttle.Breaker) string {
	wait := policy.FormatDuration(b.Wait)
	if b.MaxWait > b.Wait {
		wait += fmt.Sprintf(", later up to %s,", policy.FormatDuration(b.MaxWait))
	}
	return fmt.Sprintf("It opens when %g %% of at least %d retries within %s fail again. After %s it probes with %d, and once these do not fail it retries more and more for %s.",
		math.Round(1000*b.FailureRatio)/10, b.MinRetries, policy.FormatDuration(b.Window), wait, b.Probes, policy.FormatDuration(b.Ramp))
}
