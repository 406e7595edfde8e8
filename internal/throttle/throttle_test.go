package throttle_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// scene is a throttle of one queue, whose time the test sets.
type scene struct {
	*throttle.Throttle
	t           *testing.T
	rules       throttle.Rules
	now         time.Time
	transitions []string
}

func newScene(t *testing.T, r throttle.Rules) *scene {
	b := &scene{t: t, rules: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	b.Throttle = throttle.New(func(string) throttle.Rules { return b.rules }, func() float64 { return 0.5 },
		func(tr throttle.Transition) { b.transitions = append(b.transitions, string(tr.To)) })
	return b
}

// goes returns as many as it may of most.
func (b *scene) goes(most int) []uuid.UUID {
	n, _ := b.Allow("q", most, b.now)
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	b.Retried("q", ids, b.now)
	return ids
}

func (b *scene) fail(ids []uuid.UUID) {
	for _, id := range ids {
		b.Failed("q", id, b.now)
	}
}

func (b *scene) after(d time.Duration) throttle.View {
	b.now = b.now.Add(d)
	return b.View("q", b.now)
}

func (b *scene) is(want throttle.State) {
	b.t.Helper()
	if v := b.View("q", b.now); v.State != want {
		b.t.Fatalf("%s: %+v, want %s", b.now.Format("15:04:05"), v, want)
	}
}

// ramps opens the breaker, and lets its probe go well.
func (b *scene) ramps() {
	b.t.Helper()
	b.fail(b.goes(20))
	b.after(10 * time.Second)
	b.goes(1)
	b.after(30 * time.Second)
	b.is(throttle.Ramp)
}

func withBreaker() throttle.Rules {
	d := throttle.DefaultBreaker()
	return throttle.Rules{Settle: 30 * time.Second, Breaker: &d}
}

func TestABreakerOpensProbesRampsAndCloses(t *testing.T) {
	b := newScene(t, withBreaker())
	b.rules.Rate = 100
	for range 12 {
		b.fail(b.goes(2))
		b.after(100 * time.Millisecond)
	}
	b.is(throttle.Open)
	if len(b.goes(10)) > 0 {
		t.Fatal("open, and something goes")
	}
	b.after(10 * time.Second)
	b.is(throttle.HalfOpen)
	expect.Equal(t, b.after(0).Reason, "up to 3 probes are sent", "why")
	probes := b.goes(10)
	if len(probes) != 3 || len(b.goes(10)) != 0 {
		t.Fatalf("%d probes", len(probes))
	}
	b.after(time.Second)
	b.fail(probes[:1])
	b.is(throttle.Open)
	b.after(10 * time.Second)
	b.is(throttle.HalfOpen)
	if probes = b.goes(10); len(probes) != 3 {
		t.Fatalf("%d probes", len(probes))
	}
	b.after(29 * time.Second)
	b.is(throttle.HalfOpen)
	if v := b.after(time.Second); v.State != throttle.Ramp || v.Rate != 5 {
		t.Fatalf("%+v", v)
	}
	if v := b.after(30 * time.Second); v.Rate < 50 || v.Rate > 55 {
		t.Fatalf("half of the ramp: %+v", v)
	}
	if v := b.after(30 * time.Second); v.State != throttle.Closed || v.Rate != 100 {
		t.Fatalf("%+v", v)
	}
	if want := "[open half-open open half-open ramp closed]"; fmt.Sprint(b.transitions) != want {
		t.Errorf("%v, want %s", b.transitions, want)
	}
}

// The longer a breaker is open, up to max_wait, the rarer are its probes.
func TestTheBreakersWaitGrowsWithTheOutage(t *testing.T) {
	b := newScene(t, withBreaker())
	b.fail(b.goes(20))
	began, probes := b.now, 0
	for b.now.Sub(began) < 2*time.Hour {
		v := b.View("q", b.now)
		want := min(max(10*time.Second, b.now.Sub(began)/20), 2*time.Minute)
		if is := v.Until.Sub(b.now); v.State != throttle.Open || is != want {
			t.Fatalf("after %s: it waits %s, want %s: %+v", b.now.Sub(began), is, want, v)
		}
		b.after(want)
		ids := b.goes(10)
		probes += len(ids)
		b.after(time.Second)
		b.fail(ids[:1])
	}
	if probes > 400 {
		t.Errorf("%d probes in two hours", probes)
	}
	// Opened by a person and left to itself, or closed and opened again, it begins again.
	must(t, b.Force("q", "open", "anna", "", b.now))
	must(t, b.Force("q", throttle.ForceAuto, "anna", "", b.now))
	b.fail(b.goes(10))
	if v := b.View("q", b.now); v.State != throttle.Open || v.Until.Sub(b.now) != 10*time.Second {
		t.Errorf("%+v", v)
	}
	must(t, b.Force("q", "closed", "anna", "", b.now))
	must(t, b.Force("q", throttle.ForceAuto, "anna", "", b.now))
	b.fail(b.goes(20))
	if v := b.View("q", b.now); v.Until.Sub(b.now) != 10*time.Second {
		t.Errorf("%+v", v)
	}
}

// One in ten fails, each sooner than the others are known to have settled.
func TestAFewFailuresDoNotOpenTheBreaker(t *testing.T) {
	b := newScene(t, withBreaker())
	for range 300 {
		b.fail(b.goes(10)[9:])
		b.after(100 * time.Millisecond)
		b.is(throttle.Closed)
	}
	if v := b.after(0); v.FailedShare < 0.09 || v.FailedShare > 0.11 {
		t.Errorf("%+v", v)
	}
}

// Messages that wait in the work queue behind others do not show that those succeeded.
func TestFailuresOpenTheBreakerWhileManyRetriesAreInFlight(t *testing.T) {
	b := newScene(t, withBreaker())
	ids := b.goes(2500)
	b.after(time.Second)
	b.fail(ids[:19])
	b.is(throttle.Closed)
	b.fail(ids[19:20])
	b.is(throttle.Open)
}

func TestNoMoreThanInFlightAreAllowed(t *testing.T) {
	b := newScene(t, throttle.Rules{InFlight: 50})
	ids := b.goes(512)
	if len(ids) != 50 {
		t.Fatal(len(ids))
	}
	b.after(10 * time.Second)
	b.fail(ids[:5])
	if n := len(b.goes(512)); n != 5 {
		t.Fatal(n)
	}
	if n, retryAt := b.Allow("q", 512, b.now); n != 0 || !retryAt.Equal(b.now.Add(20*time.Second)) {
		t.Fatal(n, retryAt)
	}
	b.after(20 * time.Second)
	if n := len(b.goes(512)); n != 45 {
		t.Fatal(n)
	}
}

// A queue without consumers gets a probe, by default one, and another when that is gone.
func TestAQueueWithoutConsumersGetsProbes(t *testing.T) {
	for _, c := range []struct {
		probes, foreign, want int
		share                 throttle.Share
	}{
		{0, 0, 1, throttle.Share{N: 1}}, {5, 0, 5, throttle.Share{N: 1}}, {5, 2, 3, throttle.Share{N: 1}}, {0, 1, 0, throttle.Share{N: 1}}, {0, 7, 0, throttle.Share{N: 1}},
		{0, 0, 1, throttle.Share{N: 3}}, {0, 0, 0, throttle.Share{N: 3, I: 1}}, {0, 0, 0, throttle.Share{}},
	} {
		b := newScene(t, throttle.Rules{Probes: c.probes})
		b.SetShare(c.share, b.now)
		goes := func(want int) {
			t.Helper()
			expect.Equal(t, len(b.goes(512))+len(b.goes(512)), want, "%+v: were retried", c)
		}
		b.Consumers("q", 0, c.foreign, true, b.now)
		goes(c.want)
		b.Consumers("q", 0, c.foreign, true, b.now) // asked before the probes were confirmed
		goes(0)
		b.after(time.Second)
		b.Consumers("q", 0, c.foreign+c.want, true, b.now)
		goes(0)
		b.after(time.Second)
		b.Consumers("q", 0, c.foreign, true, b.now) // something took them
		goes(c.want)
		b.Consumers("q", 2, 9, true, b.now)
		if n, _ := b.Allow("q", 5, b.now); n != 5 {
			t.Errorf("%+v: with consumers %d are retried", c, n)
		}
	}
}

// Retries are reported as paused while messages wait for a consumer and a probe is in the queue.
func TestWhenRetriesArePausedForLackOfAConsumer(t *testing.T) {
	b := newScene(t, throttle.Rules{})
	for _, c := range []struct {
		consumers, ready int
		waits            bool
		paused           throttle.WaitReason
		transitions      string
	}{
		{0, 0, true, "", "[]"},
		{0, 1, false, "", "[]"},
		{0, 1, true, throttle.WhyNoConsumer, "[no-consumer]"},
		{0, 0, true, throttle.WhyNoConsumer, "[no-consumer]"},
		{0, 1, false, "", "[no-consumer consumer-back]"},
		{0, 1, true, throttle.WhyNoConsumer, "[no-consumer consumer-back no-consumer]"},
		{1, 0, true, "", "[no-consumer consumer-back no-consumer consumer-back]"},
	} {
		b.Consumers("q", c.consumers, c.ready, c.waits, b.now)
		v := b.View("q", b.now)
		if v.WaitReason != c.paused || v.NoConsumersSince.IsZero() != (c.paused == "") || fmt.Sprint(b.transitions) != c.transitions {
			t.Errorf("%+v: %+v, %v", c, v, b.transitions)
		}
	}
	b.rules.NoConsumer = throttle.RetryWithoutConsumers
	b.Consumers("q", 0, 1, true, b.now)
	if n, _ := b.Allow("q", 5, b.now); n != 5 {
		t.Errorf("%d are retried to a queue that is read with basic.get", n)
	}
}

// No event says that a queue has a consumer again when that is not known. RabbitMQ is not asked
// about a queue whose new policy retries without consumers, and that is the reason then.
func TestWhyRetriesAreNoLongerPausedForLackOfAConsumer(t *testing.T) {
	const unknown, regardless = "it is not known any more whether the queue has consumers", "its policy retries without consumers"
	for _, c := range []struct {
		consumers  int
		noConsumer string
		want       string
	}{
		{2, "", "consumers of the queue: 2"},
		{0, "", "no message waits for a consumer"},
		{-1, "", unknown},
		{0, throttle.RetryWithoutConsumers, regardless},
		{-1, throttle.RetryWithoutConsumers, regardless},
	} {
		var why string
		var r throttle.Rules
		th := throttle.New(func(string) throttle.Rules { return r }, func() float64 { return 0.5 }, func(tr throttle.Transition) { why = tr.Reason })
		now := time.Unix(1_700_000_000, 0)
		th.Consumers("q", 0, 1, true, now)
		r.NoConsumer = c.noConsumer
		if th.Consumers("q", c.consumers, 1, false, now); why != c.want {
			t.Errorf("%d consumers: %q, want %q", c.consumers, why, c.want)
		}
	}
}

func TestAPersonForcesABreaker(t *testing.T) {
	b := newScene(t, withBreaker())
	force := func(to string, want throttle.State) {
		t.Helper()
		must(t, b.Force("q", to, "anna", "the bank is down", b.now))
		b.is(want)
	}
	if err := b.Force("q", "half-open", "anna", "", b.now); err == nil {
		t.Fatal("half-open by force")
	}
	force("open", throttle.Open)
	b.after(time.Hour)
	b.is(throttle.Open)
	if len(b.goes(5)) > 0 {
		t.Fatal("open, and something goes")
	}
	force("auto", throttle.HalfOpen)
	force("closed", throttle.Closed)
	b.fail(b.goes(100))
	b.is(throttle.Closed)
	force("auto", throttle.Closed)
	b.rules.Breaker = nil
	force("open", throttle.Open)
	force("auto", throttle.Closed)
}

// The rate is exact in each minute, though the caller is late, gets less than it wants and returns some.
func TestTheRateIsExactOverAMinute(t *testing.T) {
	for _, rate := range []float64{0.5, 1, 3, 20, 200, 5000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			b := newScene(t, throttle.Rules{Rate: rate})
			began, i := b.now, 0
			sent := make([]int, 60) // by minute
			if rate > 1000 {
				sent = sent[:5]
			}
			for b.now.Sub(began) < time.Duration(len(sent))*time.Minute {
				minute := int(b.now.Sub(began) / time.Minute)
				n, retryAt := b.Allow("q", 512, b.now)
				if keep := min(n, 300-i%7); keep < n {
					b.NotRetried("q", n-keep, b.now)
					n = keep
				}
				b.Retried("q", make([]uuid.UUID, n), b.now)
				sent[minute] += n
				b.now = b.now.Add(time.Millisecond)
				if retryAt.After(b.now) {
					b.now = retryAt.Add(time.Duration(i%15) * time.Millisecond)
				}
				i++
			}
			for minute, n := range sent {
				if want := rate * 60; float64(n) < 0.95*want-1 || float64(n) > 1.05*want+1 {
					t.Errorf("minute %d: %d, want %v", minute, n, want)
				}
			}
		})
	}
}

// allows checks what Allow says: how many, and when to ask again.
func (b *scene) allows(most, want int, again time.Duration) {
	b.t.Helper()
	n, retryAt := b.Allow("q", most, b.now)
	if is := retryAt.Sub(b.now); n != want || (retryAt.IsZero() != (again < 0)) || again >= 0 && is != again {
		b.t.Errorf("%d of %d may go, ask again at %s (in %s); want %d, and %s", n, most, retryAt, is, want, again)
	}
}

const never = -1 // something must happen first

// A caller learns when a message may be retried, or a few if many wait: not too early, nor much later.
func TestWhenToAskAgain(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 100})
	// A rate begins with one message, else each restart would begin with a burst.
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
		expect.Equal(t, len(b.goes(512)), want, "at %v a second … go at once", rate)
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

// The scheduler reports 0 unsent after each batch, which does not mean that nothing waits.
func TestNothingUnsentChangesNothing(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 100})
	b.SetCatchUp(250 * time.Millisecond)
	b.goes(512)
	b.NotRetried("q", 0, b.now)
	b.after(210 * time.Millisecond)
	expect.Equal(t, len(b.goes(512)), 21, "after 210 ms … go")
}

func TestANewRateCountsAtOnce(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 1})
	b.goes(512)
	b.rules.Rate = 100
	b.allows(512, 0, 20*time.Millisecond)
	b.after(20 * time.Millisecond)
	b.allows(512, 2, 10*time.Millisecond)
}

// The rate of a blocked queue begins when it is unblocked.
func TestARateBeginsWithOneMessageAlsoAfterAPause(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 200})
	b.Consumers("q", 0, 1, true, b.now)
	b.allows(512, 0, never)
	b.after(time.Minute)
	b.Consumers("q", 1, 1, true, b.now)
	expect.Equal(t, len(b.goes(512)), 1, "go at once")
}

// Without a rate to rise to, a ramp doubles the rate twelve times.
func TestARampWithoutARate(t *testing.T) {
	b := newScene(t, withBreaker())
	b.ramps()
	for _, c := range []struct {
		after time.Duration
		rate  float64
		state throttle.State
	}{
		{0, 5, throttle.Ramp}, {5 * time.Second, 10, throttle.Ramp},
		{25 * time.Second, 320, throttle.Ramp}, {30 * time.Second, 0, throttle.Closed},
	} {
		if v := b.after(c.after); v.State != c.state || v.Rate != c.rate {
			t.Errorf("%s at %v a second, want %s at %v", v.State, v.Rate, c.state, c.rate)
		}
	}
}

func TestFailuresInARampOpenTheBreaker(t *testing.T) {
	b := newScene(t, withBreaker())
	b.ramps()
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
		failTwenty(th, "q", now)
		if v := th.View("q", now); v.Until.Sub(now) != want {
			t.Errorf("it waits %s, want %s", v.Until.Sub(now), want)
		}
	}
}

// Retries from before the breaker opened do not count as probes.
func TestLateFailuresAreNoProbes(t *testing.T) {
	b := newScene(t, withBreaker())
	ids := b.goes(25)
	b.fail(ids[:20])
	b.after(10 * time.Second)
	b.is(throttle.HalfOpen)
	b.fail(ids[20:])
	b.is(throttle.HalfOpen)
}

// A probe that is being published counts as a probe.
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

// If two reasons stop a queue, the first is shown.
func TestTheFirstReasonIsNamed(t *testing.T) {
	b := newScene(t, withBreaker())
	b.Consumers("q", 0, 1, true, b.now)
	must(t, b.Force("q", "open", "anna", "", b.now))
	if v := b.View("q", b.now); v.WaitReason != throttle.WhyNoConsumer {
		t.Errorf("it waits because of %s", v.WaitReason)
	}
}

// Idle queues are forgotten at these times, except what a person or a message on its way needs.
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
	must(t, b.Force("forced", "open", "anna", "", b.now))
	b.Consumers("unconsumed", 0, 1, true, b.now)
	remembered(9*time.Minute, "closed", "open", "forced", "reserved", "unconsumed")
	remembered(10*time.Minute, "open", "forced", "reserved", "unconsumed")
	remembered(24*time.Hour-time.Minute, "open", "forced", "reserved", "unconsumed")
	b.transitions = nil
	remembered(24*time.Hour, "forced", "reserved")
	expect.Equal(t, strings.Join(b.transitions, " "), "closed", "of the forgotten breaker others hear")
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

var must = expect.NoError

// legal are the changes that no person forced.
var legal = map[throttle.State][]throttle.State{
	throttle.Closed:   {throttle.Open},
	throttle.Open:     {throttle.HalfOpen, throttle.Closed},
	throttle.HalfOpen: {throttle.Open, throttle.Ramp, throttle.Closed},
	throttle.Ramp:     {throttle.Open, throttle.Closed},
}

// Whatever happens in whatever order: never faster than the rate, nor with more than a burst
// of a quarter of a second where the caller is late, never more than in_flight, nothing while
// open or without consumers, each change a legal one.
func TestTheThrottleKeepsItsLimitsWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := throttle.DefaultBreaker()
		b.MinRetries = rapid.IntRange(1, 30).Draw(t, "least")
		r := throttle.Rules{Settle: 10 * time.Second, NoConsumer: throttle.PauseWithoutConsumers, Rate: rapid.SampledFrom([]float64{0, 0.1, 1, 7, 40, 100, 1000}).Draw(t, "rate"),
			InFlight: rapid.IntRange(0, 40).Draw(t, "in flight")}
		if rapid.Bool().Draw(t, "breaker") {
			r.Breaker = &b
		}
		now := time.Unix(1_700_000_000, 0)
		state, last := throttle.Closed, now
		var forcing bool
		th := throttle.New(func(string) throttle.Rules { return r }, func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "random") }, func(tr throttle.Transition) {
			if tr.To == throttle.NoConsumer || tr.To == throttle.ConsumerBack {
				return
			}
			ok := forcing
			for _, to := range legal[state] {
				ok = ok || to == tr.To
			}
			if !ok || tr.From != state || tr.At.Before(last) || tr.Reason == "" {
				t.Fatalf("from %s: %+v", state, tr)
			}
			state, last = tr.To, tr.At
		})
		burst := max(2, math.Ceil(r.Rate/10))
		if rapid.Bool().Draw(t, "catches up") {
			th.SetCatchUp(250 * time.Millisecond)
			burst = max(2, 0.3*r.Rate+1)
		}
		type gone struct {
			id uuid.UUID
			at time.Time
		}
		var out []gone       // retried, and neither failed again nor settled
		var goings []gone    // all that were let through
		var reserved, id int // reserved: allowed, and neither retried nor unsent yet
		consumers, ready := -1, 0
		fresh := func() uuid.UUID { id++; return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, id)) }
		forget := func() {
			kept := out[:0]
			for _, o := range out {
				if now.Sub(o.at) < r.Settle {
					kept = append(kept, o)
				}
			}
			out = kept
		}
		t.Repeat(map[string]func(*rapid.T){
			"allow": func(t *rapid.T) {
				n, retryAt := th.Allow("q", rapid.IntRange(1, 512).Draw(t, "most"), now)
				if n > 0 && state == throttle.Open || consumers == 0 && n > max(0, 1-ready-reserved) {
					t.Fatalf("%d go, %s with %d consumers, %d ready, %d under way", n, state, consumers, ready, reserved)
				}
				if n == 0 && retryAt.Before(now) && !retryAt.IsZero() {
					t.Fatalf("ask again at %s, %s ago", retryAt, now.Sub(retryAt))
				}
				for range n {
					goings = append(goings, gone{at: now})
				}
				reserved += n
			},
			"retried": func(t *rapid.T) {
				forget()
				n := rapid.IntRange(0, reserved).Draw(t, "n")
				ids := make([]uuid.UUID, n)
				for i := range ids {
					ids[i] = fresh()
					out = append(out, gone{ids[i], now})
				}
				th.Retried("q", ids, now)
				reserved -= n
			},
			"unsent": func(t *rapid.T) {
				n := rapid.IntRange(0, reserved).Draw(t, "n")
				th.NotRetried("q", n, now)
				reserved -= n
				goings = goings[:len(goings)-n] // any will do: what counts is how many
			},
			"failed": func(t *rapid.T) {
				forget()
				if len(out) == 0 || rapid.Bool().Draw(t, "a stranger") {
					th.Failed("q", fresh(), now)
					return
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				th.Failed("q", out[i].id, now)
				out = append(out[:i], out[i+1:]...)
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(math.Pow(10, rapid.Float64Range(5, 11).Draw(t, "log ns"))))
			},
			"consumers": func(t *rapid.T) {
				consumers, ready = rapid.IntRange(-1, 2).Draw(t, "n"), rapid.IntRange(0, 1).Draw(t, "ready")
				th.Consumers("q", consumers, ready, rapid.Bool().Draw(t, "waits"), now)
			},
			"force": func(t *rapid.T) {
				forcing = true
				defer func() { forcing = false }()
				must(t, th.Force("q", rapid.SampledFrom([]string{"open", "closed", "auto"}).Draw(t, "to"), "anna", "why", now))
			},
			"": func(t *rapid.T) {
				forget()
				v := th.View("q", now)
				if v.State != state || v.InFlight < 0 || v.FailedShare < 0 || v.FailedShare > 1 {
					t.Fatalf("%s: %+v", state, v)
				}
				if r.InFlight > 0 && len(out)+reserved > r.InFlight {
					t.Fatalf("%d under way of %d", len(out)+reserved, r.InFlight)
				}
				if r.Rate == 0 {
					return
				}
				for i := range goings {
					if n, took := len(goings)-i, now.Sub(goings[i].at).Seconds(); float64(n) > r.Rate*took+burst+1e-6 {
						t.Fatalf("%d within %.3f s at a rate of %v", n, took, r.Rate)
					}
				}
			},
		})
	})
}

// Memory grows neither with the retries nor with the queues.
func TestMemoryIsBounded(t *testing.T) {
	b := newScene(t, withBreaker())
	b.rules.Settle, b.rules.Breaker.Window = time.Hour, time.Hour
	for range 400 {
		b.fail(b.goes(512)[:1])
		b.after(time.Millisecond)
	}
	if v := b.after(0); v.InFlight > throttle.MaxTracked || v.InFlight < throttle.MaxTracked-1 {
		t.Errorf("%d are remembered of %d", v.InFlight, 400*512)
	}
	if n, _ := b.Allow("q", 1, b.now); n != 1 {
		t.Fatal("paused")
	}
	for range 3 * throttle.MaxTracked { // of which none has finished
		b.Failed("q", uuid.New(), b.now)
	}
	b.NotRetried("q", 1, b.now)
	for i := range 10_000 {
		b.now = b.now.Add(time.Second)
		name := fmt.Sprint("queue ", i)
		n, _ := b.Allow(name, 1, b.now)
		b.NotRetried(name, n, b.now)
	}
	if n := len(b.Queues()); n > 4000 {
		t.Errorf("%d queues are remembered", n)
	}
}

// A late caller gets what a rate allowed meanwhile, up to SetCatchUp, unless something else stopped it.
func TestALateCallerCatchesUp(t *testing.T) {
	const rate = 100
	for name, c := range map[string]struct {
		late  time.Duration
		doing func(b *scene)
		least int
		most  int
	}{
		"in time":           {0, func(*scene) {}, 1, 2},
		"late":              {200 * time.Millisecond, func(*scene) {}, 21, 22},
		"later than may be": {time.Minute, func(*scene) {}, 27, 27},
		"nothing waited":    {200 * time.Millisecond, func(b *scene) { b.goesBut(1) }, 10, 10},
		"no consumers":      {200 * time.Millisecond, func(b *scene) { b.Consumers("q", 0, 1, true, b.now); b.goes(512); b.Consumers("q", 1, 0, true, b.now) }, 10, 10},
		"it had no share":   {200 * time.Millisecond, func(b *scene) { b.share(0); b.goes(512); b.share(1) }, 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			b := newScene(t, throttle.Rules{Rate: rate})
			b.SetCatchUp(250 * time.Millisecond)
			b.goes(512)
			b.after(time.Second)
			b.goes(512)
			c.doing(b)
			b.after(10*time.Millisecond + c.late)
			if n := len(b.goes(512)); n < c.least || n > c.most {
				t.Errorf("%d go, want %d to %d", n, c.least, c.most)
			}
		})
	}
}

// goesBut returns all that it may but n, which do not wait.
func (b *scene) goesBut(n int) {
	b.after(20 * time.Millisecond)
	may, _ := b.Allow("q", 512, b.now)
	b.NotRetried("q", n, b.now)
	b.Retried("q", make([]uuid.UUID, may-n), b.now)
}

func (b *scene) share(n int) { b.SetShare(throttle.Share{N: n}, b.now) }

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
		expect.Equal(t, sum, 10, "%d replicas have … in flight", replicas)
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
		expect.Equal(t, b.SetShare(c.share, b.now), c.want, "%+v changes what may be retried", c.share)
	}
	expect.Equal(t, len(b.goes(512)), 5, "go")
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

// A follower decides about no breaker: it does what the leader says, except where a person has forced one.
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
	expect.Equal(t, len(leader.BreakerStates(now)), queues, "the leader follows")

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

// What other replicas report of the same state counts as one's own, while they report it.
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
