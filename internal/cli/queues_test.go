package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/throttle"
)

func TestQueuesShowsEachWaitReason(t *testing.T) {
	shown := map[throttle.WaitReason]string{
		throttle.WhyPerson: "paused", throttle.WhyBreaker: "breaker open: 9 of 10 failed", throttle.WhyNoConsumer: "paused: no consumers",
		throttle.WhyRate: "yes, limited by rate", throttle.WhyInFlight: "yes, limited by in_flight", throttle.WhyUnreachable: "no: the queue is full",
	}
	now := time.Now()
	for _, why := range throttle.WaitReasons {
		var out strings.Builder
		queues(&out, []inspect.Queue{inspecttest.WaitingQueue(why, now)}, now)
		if want := shown[why]; want == "" || !strings.Contains(out.String(), "\t"+want) {
			t.Errorf("%s: %q is not in\n%s", why, want, out.String())
		}
	}
}

// What only the management API knows is not shown as none.
func TestQueuesShowsWhatIsNotKnown(t *testing.T) {
	unacked := 7
	for want, at := range map[string]*inspect.AtBroker{
		"\tquorum\t2\t5\t7\t":    {Exists: true, Kind: "quorum", Consumers: 2, Ready: 5, Unacked: &unacked},
		"\t?\t2\t5\t?\t":         {Exists: true, Consumers: 2, Ready: 5},
		"\tnot there\t-\t-\t-\t": {},
		"\t?\t?\t?\t?\t":         nil,
	} {
		var out strings.Builder
		if queues(&out, []inspect.Queue{{Name: "orders", Broker: at}}, time.Now()); !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// A breaker that a person has closed keeps nothing back.
func TestQueuesShowsAForcedBreaker(t *testing.T) {
	for to, want := range map[string]string{"closed": "\tyes, breaker set to closed by dana", "open": "\tbreaker set to open by dana"} {
		var out strings.Builder
		view := inspect.ThrottleView{State: to, Forced: &inspect.Forced{To: to, By: "dana"}}
		if queues(&out, []inspect.Queue{{Name: "orders", Throttle: &view}}, time.Now()); !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// A queue whose first message cannot be read has no time of its failure.
func TestStatusOfADamagedStore(t *testing.T) {
	var out strings.Builder
	now := time.Now()
	failing(&out, inspect.Overview{Queues: []inspect.Queue{{Name: "orders", Waiting: 1, NextDue: &now}, {Name: "mail", Waiting: 1}}}, now)
	if !strings.Contains(out.String(), "orders") || !strings.Contains(out.String(), "mail") {
		t.Errorf("the queues are\n%s", out.String())
	}
}
