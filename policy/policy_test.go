package policy

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestWaitsOfEachBackoff(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		name string
		b    Backoff
		want []time.Duration

		settled int
	}{
		{"fixed", Fixed(10 * s), []time.Duration{10 * s, 10 * s, 10 * s, 10 * s}, 1},
		{"linear", Linear(s, 2*s, 4*s), []time.Duration{s, 3 * s, 4 * s, 4 * s}, 3},
		{"exponential", Exponential(s, 2, 5*s), []time.Duration{s, 2 * s, 4 * s, 5 * s}, 4},
		{"list", List(s, 5*s, 2*s), []time.Duration{s, 5 * s, 2 * s, 2 * s}, 3},
		{"zero", Fixed(0), []time.Duration{0, 0, 0, 0}, 1},
	} {
		p := Policy{Attempts: 5, Backoff: c.b}
		for i, got := range p.Waits() {
			expect.Equal(t, got, c.want[i], "%s: wait %d", c.name, i+1)
		}
		for n, settled := range map[int]int{0: 1, 2: min(2, c.settled), 4: c.settled, MaxAttempts: c.settled} {
			expect.Equal(t, c.b.Settles(n), settled, "%s: of %d the first that is as the last", c.name, n)
		}
	}
}

func TestVerdicts(t *testing.T) {
	p := Policy{Name: "orders", Queues: []string{"orders"}, Attempts: 3, Backoff: Exponential(time.Second, 10, time.Minute), Jitter: None}
	for _, c := range []struct {
		name string
		f    Failure
		want Action
		wait time.Duration
	}{
		{"first failure waits", Failure{Reason: "rejected", Attempt: 1}, Retry, time.Second},
		{"second waits longer", Failure{Reason: "delivery_limit", Attempt: 2}, Retry, 10 * time.Second},
		{"the third is the last", Failure{Reason: "rejected", Attempt: 3}, Park, 0},
		{"expired is parked unless asked for", Failure{Reason: "expired", Attempt: 1}, Park, 0},
		{"a report is retried", Failure{Reason: Reported, Attempt: 1}, Retry, time.Second},
		{"a wish counts", Failure{Reason: Reported, Attempt: 1, Suggested: 5 * time.Second}, Retry, 5 * time.Second},
		{"up to the longest wait of this policy", Failure{Reason: Reported, Attempt: 1, Suggested: time.Hour}, Retry, 10 * time.Second},
	} {
		if v := p.Decide(c.f); v.Action != c.want || v.Delay != c.wait {
			t.Errorf("%s: got %s after %s, want %s after %s", c.name, v.Action, v.Delay, c.want, c.wait)
		}
	}
	if v := p.Decide(Failure{Reason: Reported, Attempt: 1, Suggested: time.Hour}); v.Asked != time.Hour {
		t.Errorf("a delay longer than the longest wait is not in Asked: %+v", v)
	}
	p.MaxRetryAfter = 2 * time.Hour
	if v := p.Decide(Failure{Reason: Reported, Attempt: 1, Suggested: time.Hour}); v.Delay != time.Hour || v.Asked != 0 {
		t.Errorf("a wish that the policy allows: %+v", v)
	}
	p.Exhausted = Exhausted{Forward, Destination{"dead", "k"}}
	if v := p.Decide(Failure{Reason: "rejected", Attempt: 3}); v.Action != Forward || v.Forward != p.Exhausted.Destination {
		t.Errorf("exhausted: %+v", v)
	}
}

func TestAMessageHasSoManyReplays(t *testing.T) {
	p := Policy{Name: "orders", MaxReplays: 2}
	for replays, refused := range []bool{false, false, true, true} {
		why := p.RefusesReplay(replays)
		if (why != "") != refused || refused && !strings.Contains(why, `policy "orders" allows 2 replays`) {
			t.Errorf("after %d replays: %q", replays, why)
		}
	}
	p.MaxReplays = 0
	expect.Equal(t, p.RefusesReplay(MaxAttempts), "", "without a limit it is refused for")
}

func TestVerdictIsTheSameWhenAskedTwiceAndWithinBounds(t *testing.T) {
	backoffs := rapid.Custom(func(t *rapid.T) Backoff {
		d := rapid.Int64Range(0, int64(LongestDelay))
		initial := time.Duration(d.Draw(t, "initial"))
		most := time.Duration(rapid.Int64Range(int64(initial), int64(LongestDelay)).Draw(t, "max"))
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return Fixed(initial)
		case 1:
			return Linear(initial, time.Duration(d.Draw(t, "step")), most)
		case 2:
			return Exponential(initial, rapid.Float64Range(1, 1000).Draw(t, "factor"), most)
		}
		return List(initial, most)
	})
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.Float64Range(0, 1).Draw(t, "share")
		jitter := rapid.SampledFrom([]Jitter{{}, None, Full, Equal, Fraction(share)}).Draw(t, "jitter")
		p := Policy{Name: "p", Queues: []string{"*"}, Attempts: MaxAttempts, Backoff: backoffs.Draw(t, "backoff"), Jitter: jitter}
		expect.NoError(t, p.Validate())
		f := Failure{Reason: "rejected", Attempt: rapid.IntRange(1, MaxAttempts-1).Draw(t, "attempt"), Seed: rapid.Uint64().Draw(t, "seed")}
		v := p.Decide(f)
		if v != p.Decide(f) {
			t.Fatal("a second asking gave another answer")
		}
		plain := p.Backoff.Delay(f.Attempt)
		low, high := time.Duration(0), plain
		switch jitter.kind {
		case none:
			low = plain
		case equal:
			low = plain/2 - time.Microsecond
		case fraction, byDefault:
			low = time.Duration(float64(plain) * (1 - jitter.share()) * 0.999999)
			high = time.Duration(float64(plain)*(1+jitter.share())*1.000001) + 1
		}
		if v.Delay < low || v.Delay > min(high, LongestDelay) || v.Delay < 0 {
			t.Fatalf("wait %s is outside %s to %s", v.Delay, low, high)
		}
	})
}

// Messages that failed together are not retried together.
func TestJitterSpreadsMessagesOverItsWholeRange(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		jitter    Jitter
		low, high time.Duration
	}{{Jitter{}, 8 * s, 12 * s}, {Fraction(0.5), 5 * s, 15 * s}, {Equal, 5 * s, 10 * s}, {Full, 0, 10 * s}} {
		p := Policy{Attempts: 2, Backoff: Fixed(10 * s), Jitter: c.jitter}
		const messages, parts = 1000, 10
		var in [parts]int
		for seed := range uint64(messages) {
			delay := p.Decide(Failure{Reason: "rejected", Attempt: 1, Seed: seed}).Delay
			in[min(max((delay-c.low)*parts/(c.high-c.low), 0), parts-1)]++
		}
		for i, n := range in {
			if n < messages/parts/2 || n > messages/parts*2 {
				t.Errorf("%s: of %d delays %d are in part %d of %d", c.jitter, messages, n, i+1, parts)
			}
		}
	}
}

func TestFirstMatchWins(t *testing.T) {
	s := Set{{Name: "a", Queues: []string{"orders.created", "x?z"}}, {Name: "b", Queues: []string{"orders.*"}}}
	for queue, want := range map[string]string{"orders.created": "a", "orders.paid": "b", "xyz": "a", "xéz": "a", "xz": "", "orders": ""} {
		p, ok := s.Match(queue)
		if ok != (want != "") || ok && p.Name != want {
			t.Errorf("%q matched %v, want %q", queue, p, want)
		}
	}
	if !s.Exact("orders.created") || s.Exact("orders.paid") {
		t.Error("Exact must be true only for a queue named without wildcards")
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("orders.*", "orders.created")
	f.Add("a*b?c**", "axxbycz")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 50 || len(name) > 200 || !utf8.ValidString(pattern) || !utf8.ValidString(name) {
			t.Skip("the model knows only valid text")
		}
		model := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(pattern))
		want := regexp.MustCompile(`(?s)\A` + model + `\z`).MatchString(name)
		expect.Equal(t, MatchQueue(pattern, name), want, "MatchQueue(%q, %q) =", pattern, name)
	})
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		math.MinInt64: "-106751d 23h", 59960 * time.Millisecond: "1m", 9996 * time.Millisecond: "10s",
		0: "0s", 1500 * time.Millisecond: "1.5s", 64 * time.Second: "1m 4s", time.Hour: "1h",
		17*time.Minute + 3*time.Second: "17m 3s", 52 * time.Hour: "2d 4h", time.Hour + time.Second: "1h",
	} {
		expect.Equal(t, FormatDuration(d), want, "%d", d)
	}
}

func BenchmarkDecide(b *testing.B) {
	p := Default()
	for i := 0; b.Loop(); i++ {
		p.Decide(Failure{Queue: "orders", Reason: "rejected", Attempt: 1 + i%7, Seed: uint64(i)})
	}
}

func BenchmarkMatch(b *testing.B) {
	s := Set{{Queues: []string{"billing.*"}}, {Queues: []string{"*.created.?"}}, {Queues: []string{"orders.*"}}}
	for b.Loop() {
		s.Match("orders.created.eu")
	}
}

// A forward to the queue itself would be called again without a wait, for ever.
func TestAForwardToTheQueueItselfIsRefused(t *testing.T) {
	of := func(queue string, to Destination) *Policy {
		return &Policy{Name: "p", Queues: []string{queue}, Attempts: 1, Backoff: Fixed(time.Second), Exhausted: Exhausted{Forward, to}}
	}
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		p    *Policy
		want string
	}{
		{of("orders", Destination{RoutingKey: "orders"}), "which is the queue it is for"},
		{of("orders", Destination{RoutingKey: "redrive.intake"}), "which is Redrive's own"},
		{of("orders", Destination{Exchange: "redrive"}), "which is Redrive's own"},
		{of("orders", Destination{Exchange: "redrive.failures", RoutingKey: "orders"}), "which is Redrive's own"},
		{of("orders", Destination{RoutingKey: long}), "at most 255"},
		{of("orders", Destination{Exchange: long}), "at most 255"},
		{of(long, Destination{RoutingKey: "dead"}), "at most 255"},
		{of("orders", Destination{RoutingKey: "orders.dead"}), ""},
		{of("*", Destination{RoutingKey: "dead"}), ""},
		{of("orders", Destination{Exchange: "redriven"}), ""},
	} {
		if err := c.p.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v to %+v: %v, want %q", c.p.Queues, c.p.Exhausted.Destination, err, c.want)
		}
	}
	// A pattern cannot tell before.
	v := of("*", Destination{RoutingKey: "dead"}).Decide(Failure{Queue: "dead", Reason: Reported, Attempt: 1})
	if v.Action != Park || !strings.Contains(v.Why, "not forwarded to the queue it failed in") {
		t.Errorf("what fails in its own destination: %+v", v)
	}
}
