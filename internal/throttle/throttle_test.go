package throttle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/throttle"
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

// The longer it is open the rarer are the probes: as a part of that time, so that the
// end of a short outage is not noticed late, and no rarer than max_wait says.
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
	// Closed and opened again, it begins again.
	if err := b.Force("q", "closed", "anna", "", b.now); err != nil {
		t.Fatal(err)
	}
	if err := b.Force("q", throttle.ForceAuto, "anna", "", b.now); err != nil {
		t.Fatal(err)
	}
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

// What failed before the window of the breaker is not counted.
func TestOldFailuresDoNotOpenTheBreaker(t *testing.T) {
	b := newScene(t, withBreaker())
	b.fail(b.goes(19))
	b.after(5*time.Minute + 31*time.Second)
	b.fail(b.goes(10))
	b.is(throttle.Closed)
}

// What stands in the work queue behind others is no sign that the others went well.
func TestFailuresOpenTheBreakerWhileManyRetriesAreInFlight(t *testing.T) {
	b := newScene(t, withBreaker())
	ids := b.goes(2500)
	b.after(time.Second)
	b.fail(ids[:19])
	b.is(throttle.Closed)
	b.fail(ids[19:20])
	b.is(throttle.Open)
}

func TestFailuresOfMessagesThatWereNeverRetriedDoNotCount(t *testing.T) {
	b := newScene(t, withBreaker())
	b.goes(1)
	for range 1000 {
		b.Failed("q", uuid.New(), b.now)
	}
	b.is(throttle.Closed)
}

// A consumer can reject before RabbitMQ's answer to us is read.
func TestAFailureThatIsQuickerThanTheConfirmCounts(t *testing.T) {
	b := newScene(t, withBreaker())
	var ids []uuid.UUID
	for range 20 {
		ids = append(ids, uuid.New())
	}
	if n, _ := b.Allow("q", len(ids), b.now); n != len(ids) {
		t.Fatal(n)
	}
	b.fail(ids)
	b.is(throttle.Closed)
	b.Retried("q", ids, b.now)
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

func TestAQueueWithoutConsumersGetsNoRetries(t *testing.T) {
	b := newScene(t, throttle.Rules{})
	b.Consumers("q", 0, b.now)
	if n, retryAt := b.Allow("q", 5, b.now); n != 0 || !retryAt.IsZero() {
		t.Fatal(n, retryAt)
	}
	if v := b.after(time.Minute); v.WaitReason != throttle.WhyNoConsumer || b.now.Sub(v.NoConsumersSince) != time.Minute {
		t.Fatalf("%+v", v)
	}
	b.Consumers("q", 2, b.now)
	if n, _ := b.Allow("q", 5, b.now); n != 5 {
		t.Fatal(n)
	}
	b.rules.NoConsumer = throttle.RetryWithoutConsumers
	b.Consumers("q", 0, b.now)
	if n, _ := b.Allow("q", 5, b.now); n != 5 {
		t.Fatal(n)
	}
	if want := "[no-consumer consumer-back]"; fmt.Sprint(b.transitions) != want {
		t.Errorf("%v, want %s", b.transitions, want)
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
		{-1, "", unknown},
		{0, throttle.RetryWithoutConsumers, regardless},
		{-1, throttle.RetryWithoutConsumers, regardless},
	} {
		var why string
		var r throttle.Rules
		th := throttle.New(func(string) throttle.Rules { return r }, func() float64 { return 0.5 }, func(tr throttle.Transition) { why = tr.Reason })
		now := time.Unix(1_700_000_000, 0)
		th.Consumers("q", 0, now)
		r.NoConsumer = c.noConsumer
		if th.Consumers("q", c.consumers, now); why != c.want {
			t.Errorf("%d consumers: %q, want %q", c.consumers, why, c.want)
		}
	}
}

func TestAPersonForcesABreaker(t *testing.T) {
	b := newScene(t, withBreaker())
	force := func(to string, want throttle.State) {
		t.Helper()
		if err := b.Force("q", to, "anna", "the bank is down", b.now); err != nil {
			t.Fatal(err)
		}
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

// The rate is exact, in each minute of an hour, when the caller is late, gets less than
// it asked for and returns what it does not need.
func TestTheRateIsExactOverAMinute(t *testing.T) {
	for _, rate := range []float64{0.5, 1, 3, 20, 200, 5000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			b := newScene(t, throttle.Rules{Rate: rate})
			began, i := b.now, 0
			var sent [60]int // by minute
			for b.now.Sub(began) < time.Hour {
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

// A rate begins with one message, also where many wait: else each new one, as after a restart,
// would begin with a burst.
func TestARateBeginsWithOneMessage(t *testing.T) {
	b := newScene(t, throttle.Rules{Rate: 200})
	if n := len(b.goes(512)); n != 1 {
		t.Errorf("%d messages go at once", n)
	}
}

// A queue that no call was about for long is forgotten.
func TestUnusedQueuesAreForgotten(t *testing.T) {
	b := newScene(t, withBreaker())
	for i := range 1000 {
		b.Allow(fmt.Sprintf("invented.%d", i), 1, b.now)
		b.NotRetried(fmt.Sprintf("invented.%d", i), 1, b.now)
	}
	b.Consumers("unconsumed", 0, b.now)
	b.after(time.Hour)
	if left := b.Queues(); len(left) != 1 || left[0] != "unconsumed" { // it must show why that queue gets no retries
		t.Errorf("%d queues are remembered: %.10q", len(left), left)
	}
	b.after(24 * time.Hour)
	if left := b.Queues(); len(left) != 0 {
		t.Errorf("after a day %d queues are remembered: %.10q", len(left), left)
	}
}
