package simulate

import (
	"testing"
	"time"

	"github.com/redrive-mq/redrive/policy"
)

// The error of the calls that fail chooses among the rules, and no retry comes later than the
// longest age.
func TestRulesAndTheLongestAgeInAnOutage(t *testing.T) {
	o := small(1)
	o.Outage, o.Limp = 20*time.Minute, -1
	plain := outcomeOf(t, backoff, o.Fill())
	is := func(text string) policy.Condition {
		return policy.If(func(f *policy.Failure) bool { return f.Error == text })
	}
	o.Policy.Rules = []policy.Rule{{Name: "invalid", When: is("invalid"), Then: policy.Park}, {Name: "slow", When: is("slow"), Then: policy.Retry, Backoff: policy.Fixed(time.Hour)}}
	for text, right := range map[string]func(Outcome) bool{
		"other": func(is Outcome) bool {
			return is.Parked == plain.Parked && is.Retries == plain.Retries && is.Retries > 0
		},
		"invalid": func(is Outcome) bool { return is.Parked > 0 && is.Retries == 0 },
		"slow":    func(is Outcome) bool { return is.Parked == 0 && is.Retries == 0 },
	} {
		o.Error = text
		if is := outcomeOf(t, backoff, o.Fill()); !right(is) {
			t.Errorf("%s: %d arrived, %d retries while it is down, %d parked; without rules %d retries, %d parked", text, is.Arrived, is.Retries, is.Parked, plain.Retries, plain.Parked)
		}
	}
	o.Error, o.Policy.MaxAge = "", 5*time.Minute
	if is := outcomeOf(t, backoff, o.Fill()); is.Parked == 0 || is.Parked >= is.Arrived {
		t.Errorf("with a longest age %d of %d are parked", is.Parked, is.Arrived)
	}
}
