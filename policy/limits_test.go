package policy

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// validates checks that what is possible is accepted, and nothing beyond it.
func validates(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

func TestABackoffIsWithinItsLimits(t *testing.T) {
	s := time.Second
	for name, c := range map[string]struct {
		b    Backoff
		want string
	}{
		"the longest wait":         {Fixed(LongestDelay), ""},
		"a longer one":             {Fixed(LongestDelay + 1), "longer than ten years"},
		"a negative wait":          {Fixed(-1), "negative"},
		"a negative step":          {Linear(s, -1, s), "negative"},
		"a list":                   {List(s, 0), ""},
		"an empty list":            {List(), "empty"},
		"a negative wait in it":    {List(s, -1), "negative"},
		"factor 1":                 {Exponential(s, 1, s), ""},
		"factor 1000":              {Exponential(s, 1000, s), ""},
		"a factor below 1":         {Exponential(s, 0.99, s), "from 1 to 1000"},
		"a factor above 1000":      {Exponential(s, 1001, s), "from 1 to 1000"},
		"no number as factor":      {Exponential(s, math.NaN(), s), "from 1 to 1000"},
		"linear below its initial": {Linear(2*s, s, s), "shorter than initial"},
		"as long as its initial":   {Linear(2*s, s, 2*s), ""},
	} {
		validates(t, name, c.b.Validate(), c.want)
	}
}

func TestAJitterIsWithinItsLimits(t *testing.T) {
	for f, want := range map[float64]string{0: "", 0.5: "", 1: "", -0.01: "from 0 to 1", 1.01: "from 0 to 1", math.Inf(1): "from 0 to 1"} {
		validates(t, Fraction(f).String(), Fraction(f).Validate(), want)
	}
	validates(t, "no number", Fraction(math.NaN()).Validate(), "from 0 to 1")
	for _, j := range []Jitter{{}, None, Full, Equal} {
		validates(t, j.String(), j.Validate(), "")
	}
}

func TestAPolicyIsWithinItsLimits(t *testing.T) {
	p := Policy{Name: "p", Queues: []string{"q"}, Attempts: 1, Backoff: Fixed(time.Second)}
	for name, c := range map[string]struct {
		change func(*Policy)
		want   string
	}{
		"the least":               {func(*Policy) {}, ""},
		"no name":                 {func(p *Policy) { p.Name = "" }, "needs a name"},
		"no queues":               {func(p *Policy) { p.Queues = nil }, "names no queues"},
		"a queue without a name":  {func(p *Policy) { p.Queues = []string{"q", ""} }, "empty queue name"},
		"no attempts":             {func(p *Policy) { p.Attempts = 0 }, "from 1 to 1000000"},
		"the most attempts":       {func(p *Policy) { p.Attempts = MaxAttempts }, ""},
		"one more":                {func(p *Policy) { p.Attempts = MaxAttempts + 1 }, "from 1 to 1000000"},
		"an unknown reason":       {func(p *Policy) { p.Reasons = []string{"rejected", "reported"} }, "not a reason RabbitMQ gives"},
		"all reasons":             {func(p *Policy) { p.Reasons = knownReasons }, ""},
		"a backoff that is none":  {func(p *Policy) { p.Backoff = List() }, "backoff"},
		"a jitter that is none":   {func(p *Policy) { p.Jitter = Fraction(2) }, "jitter"},
		"a negative retry-after":  {func(p *Policy) { p.MaxRetryAfter = -1 }, "up to ten years"},
		"the longest retry-after": {func(p *Policy) { p.MaxRetryAfter = LongestDelay }, ""},
		"a longer one":            {func(p *Policy) { p.MaxRetryAfter = LongestDelay + 1 }, "up to ten years"},
		"a negative age":          {func(p *Policy) { p.MaxAge = -1 }, "max_age is"},
		"the longest age":         {func(p *Policy) { p.MaxAge = LongestDelay }, ""},
		"a longer one still":      {func(p *Policy) { p.MaxAge = LongestDelay + 1 }, "max_age is"},
		"negative replays":        {func(p *Policy) { p.MaxReplays = -1 }, "most replays"},
		"the most replays":        {func(p *Policy) { p.MaxReplays = MaxAttempts }, ""},
		"one more replay":         {func(p *Policy) { p.MaxReplays = MaxAttempts + 1 }, "most replays"},
		"the longest name":        {func(p *Policy) { p.Queues = []string{strings.Repeat("q", 255)} }, ""},
		"a retry at the end":      {func(p *Policy) { p.Exhausted.Action = Retry }, "cannot be a retry"},
		"a forward to nowhere":    {func(p *Policy) { p.Exhausted.Action = Forward }, "needs an exchange or a queue"},
		"the default":             {func(p *Policy) { *p = Default() }, ""},
	} {
		changed := p
		c.change(&changed)
		validates(t, name, changed.Validate(), c.want)
	}
}

func TestTheDefaultIsEightAttemptsInTwoMinutes(t *testing.T) {
	p, sum := Default(), time.Duration(0)
	for i, wait := range p.Waits() {
		sum += wait
		if want := time.Second << i; wait != want {
			t.Errorf("wait %d is %s, want %s", i+1, wait, want)
		}
	}
	if sum != 127*time.Second || p.Backoff.Max() != 10*time.Minute {
		t.Errorf("it waits %s in all, at most %s at once", sum, p.Backoff.Max())
	}
}

func TestTheLongestAndTheShortestWait(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		b    Backoff
		want time.Duration
	}{{List(5*s, s), 5 * s}, {List(s, 5*s, 2*s), 5 * s}, {List(), 0}, {Fixed(3 * s), 3 * s}, {Linear(s, s, 9*s), 9 * s}, {Exponential(s, 2, 7*s), 7 * s},
		{Linear(1<<53+1, 0, 1<<53+1), 1<<53 + 1}, // more than a float64 has digits for
		{Exponential(0, 2, time.Hour), 0}} {
		expect.Equal(t, c.b.Max(), c.want, "%s: the longest", c.b)
	}
	// A consumer may ask for the longest wait that comes before the last attempt.
	p := Policy{Attempts: 3, Backoff: List(s, 2*s, 50*s)}
	expect.Equal(t, p.LongestRetryAfter(), 2*s, "a consumer may ask for")
	for _, c := range []struct {
		j              Jitter
		short, longest time.Duration
	}{{Jitter{}, 8 * s, 12 * s}, {Fraction(0.5), 5 * s, 15 * s}, {None, 10 * s, 10 * s}, {Equal, 5 * s, 10 * s}, {Full, 0, 10 * s}} {
		if a, b := c.j.Shortest(10*s), c.j.Longest(10*s); a != c.short || b != c.longest {
			t.Errorf("%s makes %s to %s of 10 s, want %s to %s", c.j, a, b, c.short, c.longest)
		}
	}
	expect.Equal(t, Fraction(1).Longest(LongestDelay), LongestDelay, "jitter makes … of the longest wait")
}

// The seed alone decides, in each version the same way: what waits is not spread again by an
// update. The first two are the published values of splitmix64.
func TestASeedHasItsPlaceInTheRange(t *testing.T) {
	for seed, want := range map[uint64]uint64{0: 0xe220a8397b1dcdaf, 0x9e3779b97f4a7c15: 0x6e789e6aa1b965f4} {
		if u := float64(want>>11) / (1 << 53); unit(seed) != u {
			t.Errorf("seed %x is at %v, want %v", seed, unit(seed), u)
		}
	}
	for _, c := range []struct {
		j    Jitter
		want time.Duration
	}{{Fraction(0.2), 11_533_243_000}, {Full, 8_833_108_000}, {Equal, 9_416_554_000}, {None, 10 * time.Second}} {
		if got := c.j.apply(10*time.Second, 0); got.Round(time.Microsecond) != c.want {
			t.Errorf("%s: 10 s with seed 0 are %s, want %s", c.j, got, c.want)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"ab", "xy", false}, {"ab", "abc", false}, {"abc", "ab", false}, {"", "", true}, {"", "a", false},
		{"*", "", true}, {"*c", "abc", true}, {"*c", "abcd", false}, {"a*c", "aac", true}, {"a*c", "ac", true}, {"a*c", "acb", false},
		{"a*b*c", "aXbXbc", true}, {"a**c", "abc", true}, {"*aab", "aaaab", true},
		{"?", "", false}, {"?", "é", true}, {"??", "é", false}, {"a?*", "a", false}, {"*?a", "aa", true}, {"*?a", "a", false},
	} {
		expect.Equal(t, MatchQueue(c.pattern, c.name), c.want, "%q matches %q", c.pattern, c.name)
	}
	s := Set{{Name: "a", Queues: []string{"orders.*", "mail"}}}
	for queue, want := range map[string]bool{"mail": true, "orders.paid": false, "orders.*": false, "unknown": false, "unknown*": false} {
		if s.Exact(queue) != want {
			t.Errorf("%q is named exactly: %v", queue, !want)
		}
	}
}

func TestPoliciesInWords(t *testing.T) {
	s := time.Second
	for want, got := range map[string]string{
		"fixed at 5s":                  Fixed(5 * s).String(),
		"linear from 1s by 2s to 1m":   Linear(s, 2*s, time.Minute).String(),
		"1s, 5s x2":                    List(s, 5*s, 5*s).String(),
		"±20%":                         Jitter{}.String(),
		"±25%":                         Fraction(0.25).String(),
		"none":                         None.String(),
		"full":                         Full.String(),
		"equal":                        Equal.String(),
		`queue "dead"`:                 Destination{RoutingKey: "dead"}.String(),
		`exchange "dlx"`:               Destination{Exchange: "dlx", RoutingKey: "dead"}.String(),
		"park retry discard forward":   Park.String() + " " + Retry.String() + " " + Discard.String() + " " + Forward.String(),
		"exponential from 1s, times 2": strings.Split(Exponential(s, 2, s).String(), ", to")[0],
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", -90 * s: "-1m 30s", 12_340 * time.Millisecond: "12.3s", 9_996 * time.Millisecond: "10s", 9_994 * time.Millisecond: "9.99s",
		1_234_567 * time.Microsecond: "1.23s", 999_994 * time.Microsecond: "999.99ms", 1_234_567 * time.Nanosecond: "1.23ms", 123_456 * time.Nanosecond: "123.456µs",
	} {
		expect.Equal(t, FormatDuration(d), want, "%d", d)
	}
}
