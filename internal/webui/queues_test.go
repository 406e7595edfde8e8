package webui_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// A queue that waits looks as if it worked, unless the page says why.
func TestThePageShowsEachWaitReason(t *testing.T) {
	now := time.Now()
	shown := map[throttle.WaitReason]string{
		throttle.WhyPerson: `<span class="state paused">paused</span>`, throttle.WhyBreaker: "breaker open", throttle.WhyNoConsumer: "no consumers",
		throttle.WhyRate: "limited by rate", throttle.WhyInFlight: "limited by in_flight", throttle.WhyUnreachable: "the queue is full",
	}
	for _, why := range throttle.WaitReasons {
		shop := &webtest.Shop{Now: now, Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}, QueueList: []inspect.Queue{webtest.WaitingQueue(why, now)}}
		page := get(scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Viewer}}.handler(), "/queues").Body.String()
		if want := shown[why]; want == "" || !strings.Contains(page, want) || strings.Contains(page, "as due") {
			t.Errorf("%s: the page of the queues does not show %q", why, want)
		}
	}
}

// What only the management API knows is not shown as none.
func TestThePageShowsWhatIsNotKnown(t *testing.T) {
	unacked := 0
	for want, at := range map[string]*inspect.AtBroker{
		`<td class="n">5</td><td class="n">0</td>`:                                  {Exists: true, Kind: "quorum", Consumers: 2, Ready: 5, Unacked: &unacked},
		`<td class="n">5</td><td class="n"><span class="dim">not known</span></td>`: {Exists: true, Consumers: 2, Ready: 5},
	} {
		shop := &webtest.Shop{Now: time.Now(), Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}, QueueList: []inspect.Queue{{Name: "orders", Broker: at}}}
		if page := get(scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Viewer}}.handler(), "/queues").Body.String(); !strings.Contains(page, want) {
			t.Errorf("the page of the queues does not show %q", want)
		}
	}
}

// The overview names the queues whose breaker keeps retries back, and not one that a person has closed.
func TestTheOverviewNamesWhatIsPaused(t *testing.T) {
	for to, named := range map[string]bool{"closed": false, "open": true} {
		queue := inspect.Queue{Name: "orders", Throttle: &inspect.ThrottleView{State: to, Forced: &inspect.Forced{To: to, By: "dana"}}}
		shop := &webtest.Shop{Now: time.Now(), Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}, QueueList: []inspect.Queue{queue}}
		if page := get(scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Viewer}}.handler(), "/").Body.String(); strings.Contains(page, "Retries held back") != named {
			t.Errorf("with a breaker set to %s the overview says that retries are paused: %t", to, !named)
		}
		if page := get(scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Viewer}}.handler(), "/health").Body.String(); strings.Contains(page, "retries work for all queues") == named {
			t.Errorf("with a breaker set to %s the page of health says that all retries work: %t", to, named)
		}
	}
}
