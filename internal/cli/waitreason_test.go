package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

func TestQueuesShowsEachWaitReason(t *testing.T) {
	shown := map[throttle.WaitReason]string{
		throttle.WhyPerson: "paused", throttle.WhyBreaker: "breaker open: 9 of 10 failed", throttle.WhyNoConsumer: "paused: no consumers",
		throttle.WhyRate: "yes, limited by rate", throttle.WhyInFlight: "yes, limited by in_flight", throttle.WhyUnreachable: "no: the queue is full",
	}
	now := time.Now()
	for _, why := range throttle.WaitReasons {
		var out strings.Builder
		queues(&out, []inspect.Queue{webtest.WaitingQueue(why, now)}, now)
		if want := shown[why]; want == "" || !strings.Contains(out.String(), "\t"+want) {
			t.Errorf("%s: %q is not in\n%s", why, want, out.String())
		}
	}
}
