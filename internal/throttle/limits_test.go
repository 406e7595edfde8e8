package throttle_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// allows checks what Allow says: how many, and when to ask again.
func (b *scene) allows(most, want int, again time.Duration) {
	b.t.Helper()
	n, retryAt := b.Allow("q", most, b.now)
	if is := retryAt.Sub(b.now); n != want || (retryAt.IsZero() != (again < 0)) || again >= 0 && is != again {
		b.t.Errorf("%d of %d may go, ask again at %s (in %s); want %d, and %s", n, most, retryAt, is, want, again)
	}
}

const never = -1 // something must happen first

// A caller learns when a message may go, or a few if many wait; not at once, nor much later.
func TestWhenToAskAgain(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 100})
	b.allows(512, 1, 10*time.Millisecond) // one has gone: the next one
	b.allows(512, 0, 20*time.Millisecond) // none has: two together
	b.allows(1, 0, 10*time.Millisecond)
	b.after(time.Second)
	b.allows(10, 10, never) // all that were asked for
	b.after(time.Second)
	b.allows(11, 10, 10*time.Millisecond)
}

func TestABurstIsATenthOfASecond(t *testing.T) {
	for rate, want := range map[float64]int{0.5: 1, 1: 1, 2: 2, 7: 2, 20: 2, 21: 3, 100: 10, 101: 11} {
		b := newScene(t, throttle.Rules{Rate: rate})
		b.goes(512)
		b.after(5 * time.Minute)
		if n := len(b.goes(512)); n != want {
			t.Errorf("at %v a second %d go at once, want %d", rate, n, want)
		}
	}
}

func TestWhatWasNotSentMayGoStill(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 100})
	b.goes(512)
	b.after(time.Second)
	b.allows(5, 5, never)
	b.NotRetried("q", 2, b.now)
	b.NotRetried("unknown", 2, b.now)
	b.allows(512, 7, 10*time.Millisecond)
}

// The scheduler reports 0 unsent after each batch: that does not say that nothing waits.
func TestNothingUnsentChangesNothing(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 100})
	b.SetCatchUp(250 * time.Millisecond)
	b.goes(512)
	b.NotRetried("q", 0, b.now)
	b.after(210 * time.Millisecond)
	if n := len(b.goes(512)); n != 21 {
		t.Errorf("after 210 ms %d go, want 21", n)
	}
}

func TestANewRateCountsAtOnce(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 1})
	b.goes(512)
	b.rules.Rate = 100
	b.allows(512, 0, 20*time.Millisecond)
	b.after(20 * time.Millisecond)
	b.allows(512, 2, 10*time.Millisecond)
}

// The rate of a queue that nothing may go to begins when something may.
func TestARateBeginsWithOneMessageAlsoAfterAPause(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 200})
	b.Consumers("q", 0, b.now)
	b.allows(512, 0, never)
	b.after(time.Minute)
	b.Consumers("q", 1, b.now)
	if n := len(b.goes(512)); n != 1 {
		t.Errorf("%d go at once", n)
	}
}

// Without a rate to rise to, a ramp doubles the rate twelve times.
func TestARampWithoutARate(t *testing.T) {
	b := newScene(t, withBreaker())
	b.fail(b.goes(20))
	b.after(10 * time.Second)
	b.goes(1)
	for _, c := range []struct {
		after time.Duration
		rate  float64
		state throttle.State
	}{{30 * time.Second, 5, throttle.Ramp}, {5 * time.Second, 10, throttle.Ramp}, {25 * time.Second, 320, throttle.Ramp}, {30 * time.Second, 0, throttle.Closed}} {
		if v := b.after(c.after); v.State != c.state || v.Rate != c.rate {
			t.Errorf("%s at %v a second, want %s at %v", v.State, v.Rate, c.state, c.rate)
		}
	}
}

func TestFailuresInARampOpenTheBreaker(t *testing.T) {
	b := newScene(t, withBreaker())
	b.fail(b.goes(20))
	b.after(10 * time.Second)
	b.goes(1)
	b.after(30 * time.Second)
	b.is(throttle.Ramp)
	for range 30 {
		b.after(time.Second)
		b.fail(b.goes(1))
	}
	b.is(throttle.Open)
}

// Half of them is as many as the ratio says, and the window ends to the slot.
func TestTheRatioAndTheWindowAreExact(t *testing.T) {
	b := newScene(t, withBreaker())
	ids := b.goes(20)
	b.fail(ids[10:19])
	b.is(throttle.Closed)
	b.fail(ids[19:])
	b.is(throttle.Open)

	b = newScene(t, withBreaker())
	b.fail(b.goes(19))
	if v := b.after(time.Minute - time.Nanosecond); v.Finished != 19 {
		t.Errorf("within the window %d have finished", v.Finished)
	}
	if v := b.after(time.Nanosecond); v.Finished != 0 {
		t.Errorf("after the window %d have finished", v.Finished)
	}
	b.fail(b.goes(1))
	b.is(throttle.Closed)
}

func TestTheBreakersWaitVaries(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 8 * time.Second, 0.5: 10 * time.Second, 0.75: 11 * time.Second} {
		now := time.Unix(1_700_000_000, 0)
		th := throttle.New(func(string) throttle.Rules { return withBreaker() }, func() float64 { return random }, func(throttle.Transition) {})
		for range 20 {
			id := uuid.New()
			th.Allow("q", 1, now)
			th.Retried("q", []uuid.UUID{id}, now)
			th.Failed("q", id, now)
		}
		if v := th.View("q", now); v.Until.Sub(now) != want {
			t.Errorf("it waits %s, want %s", v.Until.Sub(now), want)
		}
	}
}

// What was retried before the breaker opened says nothing of its probes.
func TestLateFailuresAreNoProbes(t *testing.T) {
	b := newScene(t, withBreaker())
	ids := b.goes(25)
	b.fail(ids[:20])
	b.after(10 * time.Second)
	b.is(throttle.HalfOpen)
	b.fail(ids[20:])
	b.is(throttle.HalfOpen)
}

// A probe that is being published is one.
func TestProbesThatAreReservedCount(t *testing.T) {
	b := newScene(t, withBreaker())
	b.fail(b.goes(20))
	b.after(10 * time.Second)
	b.allows(2, 2, never)
	b.allows(10, 1, never)
	b.allows(10, 0, never)
}

// A message's own first failures are no failures of its later retry; one that fails before
// RabbitMQ's answer to us is read is, also when other answers come first.
func TestFailuresBeforeTheAnswer(t *testing.T) {
	b := newScene(t, withBreaker())
	b.goes(1)
	ids := make([]uuid.UUID, 40)
	for i := range ids {
		ids[i] = uuid.New()
	}
	b.fail(ids)
	b.Allow("q", 40, b.now)
	b.Retried("q", ids, b.now)
	if v := b.after(0); v.State != throttle.Closed || v.FailedShare != 0 {
		t.Errorf("first failures count: %+v", v)
	}

	b = newScene(t, withBreaker())
	b.Allow("q", 40, b.now)
	b.fail(ids[20:])
	b.Retried("q", ids[:20], b.now)
	b.is(throttle.Closed)
	b.Retried("q", ids[20:], b.now)
	b.is(throttle.Open)
}

// Without rules nothing is remembered of a queue, and no failure matters.
func TestAQueueWithoutRulesIsNotRemembered(t *testing.T) {
	b := newScene(t, throttle.Rules{})
	b.SetShare(throttle.Share{}, b.now) // no share limits it
	b.allows(512, 512, never)
	if b.Failed("q", uuid.New(), b.now) || len(b.Queues()) != 0 {
		t.Errorf("%q are remembered", b.Queues())
	}
	if v := b.View("q", b.now); v != (throttle.View{State: throttle.Closed, Consumers: -1}) {
		t.Errorf("%+v", v)
	}
	b.SetShare(throttle.Share{N: 1}, b.now)
	b.rules.Rate = 1 // needs no one to know what became of a message
	b.goes(1)
	if b.Failed("q", uuid.New(), b.now) || len(b.RetryStats(b.now)) != 0 {
		t.Error("failures of a queue with a rate alone matter")
	}
	if v := b.View("q", b.now); v.Consumers != -1 || v.HasBreaker || v.FailedShare != 0 || v.Rate != 1 {
		t.Errorf("%+v", v)
	}
	b.rules = withBreaker()
	b.rules.InFlight = 7
	if v := b.View("another", b.now); !v.HasBreaker || v.MaxInFlight != 7 || v.Consumers != -1 {
		t.Errorf("%+v", v)
	}
	if !b.Failed("another", uuid.New(), b.now) {
		t.Error("a failure that another replica may have retried does not matter")
	}
	b.goes(3)
	if v := b.View("q", b.now); !v.HasBreaker || v.InFlight != 3 || v.FailedShare != 0 {
		t.Errorf("%+v", v)
	}
	b.rules = throttle.Rules{Rate: 1} // loaded again
	if v := b.View("q", b.now); v.HasBreaker || v.InFlight != 0 {
		t.Errorf("%+v", v)
	}
}

// Where two things stop a queue, the first of them is named.
func TestTheFirstReasonIsNamed(t *testing.T) {
	b := newScene(t, withBreaker())
	b.Consumers("q", 0, b.now)
	if err := b.Force("q", "open", "anna", "", b.now); err != nil {
		t.Fatal(err)
	}
	if v := b.View("q", b.now); v.WaitReason != throttle.WhyNoConsumer {
		t.Errorf("it waits because of %s", v.WaitReason)
	}
}

// Queues are forgotten at these times, and not what a person or a message on its way needs.
func TestWhenQueuesAreForgotten(t *testing.T) {
	b := newScene(t, withBreaker())
	began := b.now
	remembered := func(after time.Duration, want ...string) {
		t.Helper()
		b.now = began.Add(after)
		b.View("asked about", b.now) // looks for queues to forget, and is none that is remembered
		is := map[string]bool{}
		for _, name := range b.Queues() {
			is[name] = true
		}
		for _, name := range want {
			if !is[name] {
				t.Errorf("after %s %s is forgotten", after, name)
			}
		}
		if len(is) != len(want) {
			t.Errorf("after %s these are remembered: %q, want %q", after, b.Queues(), want)
		}
	}
	for _, name := range []string{"closed", "open", "forced", "reserved"} {
		ids := []uuid.UUID{uuid.New()}
		b.Allow(name, 1, b.now)
		if name == "reserved" {
			continue
		}
		b.Retried(name, ids, b.now)
	}
	b.rules.Breaker.MinRetries = 1
	for range 2 {
		id := uuid.New()
		b.Allow("open", 1, b.now)
		b.Retried("open", []uuid.UUID{id}, b.now)
		b.Failed("open", id, b.now)
	}
	if err := b.Force("forced", "open", "anna", "", b.now); err != nil {
		t.Fatal(err)
	}
	b.Consumers("unconsumed", 0, b.now)
	remembered(9*time.Minute, "closed", "open", "forced", "reserved", "unconsumed")
	remembered(10*time.Minute, "open", "forced", "reserved", "unconsumed")
	remembered(24*time.Hour-time.Minute, "open", "forced", "reserved", "unconsumed")
	remembered(24*time.Hour, "forced", "reserved")
	remembered(100*time.Hour, "forced", "reserved")
}

func TestRulesInWords(t *testing.T) {
	for want, r := range map[string]throttle.Rules{
		"":                          {},
		"150/min":                   {Rate: 2.5},
		"5/s, 7 in flight, breaker": {Rate: 5, InFlight: 7, Breaker: &throttle.Breaker{}},
		"30/min":                    {Rate: 0.5},
		"1/min":                     {Rate: 1.0 / 60},
		"1/h":                       {Rate: 1.0 / 3600},
		"90/h":                      {Rate: 0.025},
		"7 in flight":               {InFlight: 7},
		"breaker":                   {Breaker: &throttle.Breaker{}},
		"100/s":                     {Rate: 100},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A limit lets messages continue to be retried; all other reasons hold them back.
func TestALimitIsNoPause(t *testing.T) {
	limits := map[throttle.WaitReason]bool{throttle.WhyRate: true, throttle.WhyInFlight: true}
	for _, why := range throttle.WaitReasons {
		if why.IsLimit() != limits[why] {
			t.Errorf("%s: a limit: %t", why, why.IsLimit())
		}
	}
}
