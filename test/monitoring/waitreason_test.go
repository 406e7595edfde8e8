package monitoring_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// RedriveOverdue is silent while a queue rightly waits: a person has paused it, or another
// alert speaks of it. A limit or an unreachable queue must not silence it.
func TestTheRulesKnowEachWaitReason(t *testing.T) {
	silences := map[throttle.WaitReason]bool{
		throttle.WhyPerson: true, throttle.WhyBreaker: true, throttle.WhyNoConsumer: true,
		throttle.WhyRate: false, throttle.WhyInFlight: false, throttle.WhyUnreachable: false,
	}
	var expected []string
	for _, why := range throttle.WaitReasons {
		silent, known := silences[why]
		if !known {
			t.Errorf("say whether %s silences RedriveOverdue", why)
		}
		if silent {
			expected = append(expected, string(why))
		}
	}
	label := regexp.MustCompile(`redrive_queue_paused\{why=~?"([^"]*)"\}`)
	for _, r := range rules(t) {
		for _, m := range label.FindAllStringSubmatch(r.Expr, -1) {
			named := strings.Split(m[1], "|")
			for _, why := range named {
				if !slices.Contains(throttle.WaitReasons, throttle.WaitReason(why)) {
					t.Errorf("%s names the reason %q, which does not exist", r.Alert, why)
				}
			}
			if r.Alert == "RedriveOverdue" && !slices.Equal(named, expected) {
				t.Errorf("RedriveOverdue is silenced by %s, want %s", named, expected)
			}
		}
		if r.Alert == "RedriveOverdue" && !label.MatchString(r.Expr) {
			t.Error("RedriveOverdue does not look at redrive_queue_paused")
		}
	}
}
