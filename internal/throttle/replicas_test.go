package throttle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// The shares of all replicas add up to the limits, and none has nothing of a rate.
func TestReplicasShareTheLimits(t *testing.T) {
	for _, replicas := range []int{1, 2, 3, 4, 7} {
		sum := 0
		for i := range replicas {
			b := newScene(t, throttle.Rules{InFlight: 10})
			b.SetShare(throttle.Share{N: replicas, I: i}, b.now)
			sum += len(b.goes(512))
			b = newScene(t, throttle.Rules{Rate: 100})
			b.SetShare(throttle.Share{N: replicas, I: i}, b.now)
			b.goes(512)
			if n, retryAt := b.Allow("q", 1, b.now); n != 0 || retryAt.Sub(b.now) != time.Duration(replicas)*10*time.Millisecond {
				t.Errorf("replica %d of %d may retry the next one after %s", i, replicas, retryAt.Sub(b.now))
			}
		}
		if sum != 10 {
			t.Errorf("%d replicas have %d in flight, want 10", replicas, sum)
		}
	}
}

// Only the leader retries probes, also where the replicas share fewer messages in flight than they are.
func TestTheLeaderProbesWithWhatIsInFlightOfAll(t *testing.T) {
	r := withBreaker()
	r.InFlight, r.Breaker.Probes = 1, 5
	b := newScene(t, r)
	b.Force("q", string(throttle.Open), "a person", "", b.now)
	b.SetShare(throttle.Share{N: 2, I: 1}, b.now)
	b.Force("q", throttle.ForceAuto, "a person", "", b.now)
	b.is(throttle.HalfOpen)
	b.Receive("another", map[string]throttle.RetryStats{"q": {InFlight: 1}}, b.now)
	b.allows(512, 0, time.Second)
	b.Receive("another", nil, b.now)
	b.allows(512, 1, never)
	b.allows(512, 0, never)
	b.SetLeads(false)
	b.NotRetried("q", 1, b.now)
	b.allows(512, 0, never)
}

func TestAShareExpires(t *testing.T) {
	b := newScene(t, throttle.Rules{InFlight: 10})
	for _, c := range []struct {
		share throttle.Share
		want  bool
	}{
		{throttle.Share{N: 1}, false}, {throttle.Share{N: 2}, true}, {throttle.Share{N: 2, I: 1}, true}, {throttle.Share{N: 2, I: 1}, false},
		{throttle.Share{}, true}, {throttle.Share{N: 2, I: 0, Until: b.now}, false}, {throttle.Share{N: 2, I: 0, Until: b.now.Add(1)}, true},
	} {
		if got := b.SetShare(c.share, b.now); got != c.want {
			t.Errorf("%+v changes what may be retried: %v", c.share, got)
		}
	}
	if n := len(b.goes(512)); n != 5 {
		t.Errorf("%d go, want 5", n)
	}
	b = newScene(t, throttle.Rules{InFlight: 10})
	b.SetShare(throttle.Share{N: 2, Until: b.now.Add(1)}, b.now)
	b.after(1)
	b.allows(512, 0, never)
	if v := b.View("q", b.now); v.WaitReason != throttle.WhyRate {
		t.Errorf("it waits because of %q", v.WaitReason)
	}
}

// two are the leader's throttle and a follower's, of the queues that rules knows.
func two(rules func(string) throttle.Rules) (leader, follower *throttle.Throttle, told func() []string) {
	var transitions []string
	random := func() float64 { return 0.5 }
	leader = throttle.New(rules, random, func(throttle.Transition) {})
	follower = throttle.New(rules, random, func(tr throttle.Transition) {
		transitions = append(transitions, fmt.Sprintf("%s %s %v", tr.Queue, tr.To, tr.OnFollower))
	})
	follower.SetLeads(false)
	return leader, follower, func() []string {
		defer func() { transitions = nil }()
		slices.Sort(transitions)
		return transitions
	}
}

func failTwenty(th *throttle.Throttle, queue string, now time.Time) {
	for range 20 {
		id := uuid.New()
		th.Allow(queue, 1, now)
		th.Retried(queue, []uuid.UUID{id}, now)
		th.Failed(queue, id, now)
	}
}

// A follower decides about no breaker. It does what the leader has decided, also about queues
// that it has not heard of, and leaves alone what a person has set at it.
func TestAFollowerFollows(t *testing.T) {
	leader, follower, told := two(func(string) throttle.Rules { return withBreaker() })
	now := time.Unix(1_700_000_000, 0)
	failTwenty(follower, "q", now)
	if v := follower.View("q", now); v.State != throttle.Closed {
		t.Fatalf("a follower has decided: %+v", v)
	}
	if n, _ := follower.Allow("q", 5, now); n != 5 {
		t.Errorf("closed, and %d of 5 go", n)
	}
	if all := leader.BreakerStates(now); len(all) != 0 {
		t.Errorf("the leader announces %+v of no queue", all)
	}
	const queues = 9
	var want []string
	for i := range queues {
		failTwenty(leader, fmt.Sprint("q", i), now)
		want = append(want, fmt.Sprintf("q%d open true", i))
	}
	leader.Allow("closed", 1, now)
	states := leader.BreakerStates(now)
	if len(states) != queues {
		t.Fatalf("%d breakers are announced, want %d", len(states), queues)
	}
	follower.Follow(states, now)
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("the follower's breakers: %q", got)
	}
	for i := range queues {
		name := fmt.Sprint("q", i)
		if a, b := leader.View(name, now), follower.View(name, now); a.State != b.State || a.Until != b.Until || a.Since != b.Since || a.Reason != b.Reason {
			t.Errorf("%s: the leader has %+v, the follower %+v", name, a, b)
		}
	}
	follower.Follow(states, now.Add(time.Second))
	if got := told(); len(got) != 0 {
		t.Errorf("the same again changes %q", got)
	}
	leader.Follow(nil, now) // it leads
	if len(leader.BreakerStates(now)) != queues {
		t.Error("the leader follows")
	}

	// The wait is over at the leader: the follower sends no probe.
	now = now.Add(10 * time.Second)
	if n, _ := follower.Allow("q1", 5, now); n != 0 {
		t.Errorf("a follower lets %d through by itself", n)
	}
	follower.Follow(leader.BreakerStates(now), now)
	if v := follower.View("q1", now); v.State != throttle.HalfOpen {
		t.Errorf("%+v", v)
	}
	if n, retryAt := follower.Allow("q1", 5, now); n != 0 || !retryAt.IsZero() {
		t.Errorf("a follower sends %d probes", n)
	}
	if n, _ := leader.Allow("q1", 5, now); n != 3 {
		t.Errorf("the leader sends %d probes", n)
	}
	told()

	// Closed for all but those that a person has set.
	for _, name := range []string{"q0", "q2", "q4", "q6"} {
		must(t, follower.Force(name, "open", "anna", "", now))
	}
	told()
	follower.Follow(nil, now)
	if got := told(); !slices.Equal(got, []string{"q1 closed true", "q3 closed true", "q5 closed true", "q7 closed true", "q8 closed true"}) {
		t.Errorf("closed are %q", got)
	}
	follower.Follow(nil, now)
	if got := told(); len(got) != 0 {
		t.Errorf("closed again: %q", got)
	}
	// What it is after a person let it decide again, the leader says.
	must(t, follower.Force("q0", "auto", "anna", "", now))
	follower.Follow(nil, now)
	if v := follower.View("q0", now); v.State != throttle.Closed || v.Forced {
		t.Errorf("%+v", v)
	}
}

// What other replicas have retried counts as one's own, while they report it and as long as it
// is of the same state.
func TestReportsOfOtherReplicasCount(t *testing.T) {
	leader, other, _ := two(func(queue string) throttle.Rules {
		if queue == "free" {
			return throttle.Rules{Rate: 1e6}
		}
		return withBreaker()
	})
	now := time.Unix(1_700_000_000, 0)
	for _, name := range []string{"free", "idle", "q", "r"} {
		other.Allow(name, 3, now)
	}
	other.NotRetried("idle", 3, now)
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	other.Retried("q", ids, now)
	other.Failed("q", ids[1], now)
	for range 20 { // the order of the queues is random
		stats := other.RetryStats(now)
		if len(stats) != 2 || stats["q"] != (throttle.RetryStats{Finished: 2, Failed: 1, InFlight: 2}) || stats["r"] != (throttle.RetryStats{InFlight: 3}) {
			t.Fatalf("it reports %+v", stats)
		}
	}
	other.Failed("q", ids[0], now)
	other.NotRetried("q", 1, now)
	if stats := other.RetryStats(now)["q"]; stats != (throttle.RetryStats{Finished: 2, Failed: 2}) {
		t.Fatalf("where nothing is in flight it reports %+v", stats)
	}

	report := func(n, failed, inFlight int, number int64) map[string]throttle.RetryStats {
		return map[string]throttle.RetryStats{"q": {Number: number, Finished: n, Failed: failed, InFlight: inFlight}}
	}
	leader.Receive("b", report(10, 4, 5, 0), now)
	leader.Receive("c", report(8, 4, 6, 0), now)
	leader.Receive("d", report(100, 100, 0, 12345), now) // of another state
	v := leader.View("q", now)
	if v.State != throttle.Closed || v.InFlight != 11 || v.Finished != 18 || v.FailedShare != 8.0/18 {
		t.Errorf("%+v", v)
	}
	leader.Receive("c", nil, now)
	if v := leader.View("q", now); v.InFlight != 5 || v.Finished != 10 {
		t.Errorf("a replica that reports nothing of the queue any more: %+v", v)
	}
	if v := leader.View("q", now.Add(3*time.Second-1)); v.Finished != 10 {
		t.Errorf("before 3 s: %+v", v)
	}
	if v := leader.View("q", now.Add(3*time.Second)); v.Finished != 0 || v.InFlight != 0 {
		t.Errorf("after 3 s: %+v", v)
	}
	leader.Receive("b", report(10, 5, 0, 0), now.Add(4*time.Second))
	leader.Receive("c", report(10, 5, 0, 0), now.Add(4*time.Second))
	if v := leader.View("q", now.Add(4*time.Second)); v.State != throttle.Open {
		t.Errorf("20 of all replicas, of which 10 failed: %+v", v)
	}
	if stats := leader.BreakerStates(now.Add(4 * time.Second))["q"]; stats.Number == 0 {
		t.Errorf("its state has no number: %+v", stats)
	}
}
