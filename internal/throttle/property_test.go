package throttle_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// legal are the changes that no person forced.
var legal = map[throttle.State][]throttle.State{
	throttle.Closed:   {throttle.Open},
	throttle.Open:     {throttle.HalfOpen, throttle.Closed},
	throttle.HalfOpen: {throttle.Open, throttle.Ramp, throttle.Closed},
	throttle.Ramp:     {throttle.Open, throttle.Closed},
}

// Whatever happens in whatever order: never faster than the rate, never more than
// in_flight, nothing while open or without consumers, each change a legal one.
func TestTheThrottleKeepsItsLimitsWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := throttle.DefaultBreaker()
		b.MinRetries = rapid.IntRange(1, 30).Draw(t, "least")
		r := throttle.Rules{Settle: 10 * time.Second, Rate: rapid.SampledFrom([]float64{0, 0.1, 1, 7, 100}).Draw(t, "rate"),
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
		type gone struct {
			id uuid.UUID
			at time.Time
		}
		var out []gone       // retried, and neither failed again nor settled
		var goings []gone    // all that were let through
		var reserved, id int // reserved: allowed, and neither retried nor unsent yet
		consumers := -1
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
				n, retryAt := th.Allow("q", rapid.IntRange(1, 100).Draw(t, "most"), now)
				if n > 0 && (state == throttle.Open || consumers == 0) {
					t.Fatalf("%d go, %s with %d consumers", n, state, consumers)
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
				consumers = rapid.IntRange(-1, 2).Draw(t, "n")
				th.Consumers("q", consumers, now)
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
					if n, took := len(goings)-i, now.Sub(goings[i].at).Seconds(); float64(n) > r.Rate*took*1.05+max(2, math.Ceil(r.Rate/10)) {
						t.Fatalf("%d within %.3f s at a rate of %v", n, took, r.Rate)
					}
				}
			},
		})
	})
}

// Memory grows neither with the retries nor with the queues.
func TestMemoryIsBounded(t *testing.T) {
	r := withBreaker()
	r.Settle = time.Hour
	r.Breaker.Window = time.Hour
	now := time.Unix(1_700_000_000, 0)
	th := throttle.New(func(string) throttle.Rules { return r }, func() float64 { return 0.5 }, func(throttle.Transition) {})
	for range 400 {
		n, _ := th.Allow("q", 512, now)
		ids := make([]uuid.UUID, n)
		for i := range ids {
			ids[i] = uuid.New()
		}
		th.Retried("q", ids, now)
		th.Failed("q", ids[0], now)
		now = now.Add(time.Millisecond)
	}
	if v := th.View("q", now); v.InFlight > throttle.MaxTracked || v.InFlight < throttle.MaxTracked-1 {
		t.Errorf("%d are remembered of %d", v.InFlight, 400*512)
	}
	if n, _ := th.Allow("q", 1, now); n != 1 {
		t.Fatal("paused")
	}
	for range 3 * throttle.MaxTracked { // of which none has finished
		th.Failed("q", uuid.New(), now)
	}
	th.NotRetried("q", 1, now)
	for i := range 10_000 {
		now = now.Add(time.Second)
		name := fmt.Sprint("queue ", i)
		n, _ := th.Allow(name, 1, now)
		th.NotRetried(name, n, now)
	}
	if n := len(th.Queues()); n > 4000 {
		t.Errorf("%d queues are remembered", n)
	}
}

func BenchmarkAllow(b *testing.B) {
	for name, r := range map[string]throttle.Rules{"no rules": {}, "rate": {Rate: 1e9}, "breaker": withBreaker()} {
		b.Run(name, func(b *testing.B) {
			th := throttle.New(func(string) throttle.Rules { return r }, func() float64 { return 0.5 }, func(throttle.Transition) {})
			now := time.Unix(1_700_000_000, 0)
			b.ReportAllocs()
			for b.Loop() {
				n, _ := th.Allow("q", 512, now)
				th.NotRetried("q", n, now)
				now = now.Add(time.Microsecond)
			}
		})
	}
}

func BenchmarkFailedWithoutRules(b *testing.B) {
	th := throttle.New(func(string) throttle.Rules { return throttle.Rules{} }, func() float64 { return 0.5 }, func(throttle.Transition) {})
	id, now := uuid.New(), time.Unix(1_700_000_000, 0)
	b.ReportAllocs()
	for b.Loop() {
		th.Failed("q", id, now)
	}
}

// A thousand retries, and half of them fail again.
func BenchmarkRetriedAndFailed(b *testing.B) {
	r := withBreaker()
	r.Breaker.FailureRatio = 1.1
	th := throttle.New(func(string) throttle.Rules { return r }, func() float64 { return 0.5 }, func(throttle.Transition) {})
	ids, now := make([]uuid.UUID, 1000), time.Unix(1_700_000_000, 0)
	for i := range ids {
		ids[i] = uuid.New()
	}
	b.ReportAllocs()
	for b.Loop() {
		th.Allow("q", len(ids), now)
		th.Retried("q", ids, now)
		for i := 0; i < len(ids); i += 2 {
			th.Failed("q", ids[i], now)
		}
		now = now.Add(10 * time.Millisecond)
	}
}

// A caller who asks late has what a rate let through meanwhile, up to what SetCatchUp says.
// What was not used for another reason is not made up for.
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
		"no consumers":      {200 * time.Millisecond, func(b *scene) { b.Consumers("q", 0, b.now); b.goes(512); b.Consumers("q", 1, b.now) }, 10, 10},
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

// However late a caller is, and whatever it uses: in no time more than the rate and a
// burst of a quarter of a second go, and what it has come for.
func TestALateCallerHasNoMoreThanTheRateAndABurst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.SampledFrom([]float64{0.1, 1, 7, 40, 100, 1000}).Draw(t, "rate")
		th := throttle.New(func(string) throttle.Rules { return throttle.Rules{Rate: rate} }, func() float64 { return 0.5 }, func(throttle.Transition) {})
		th.SetCatchUp(250 * time.Millisecond)
		now := time.Unix(1_700_000_000, 0)
		var goings []time.Time
		t.Repeat(map[string]func(*rapid.T){
			"allow": func(t *rapid.T) {
				n, _ := th.Allow("q", rapid.IntRange(1, 512).Draw(t, "most"), now)
				sent := n
				if rapid.Bool().Draw(t, "fewer wait") {
					sent = rapid.IntRange(0, n).Draw(t, "sent")
				}
				th.NotRetried("q", n-sent, now)
				for range sent {
					goings = append(goings, now)
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(math.Pow(10, rapid.Float64Range(5, 11).Draw(t, "log ns"))))
			},
			"": func(t *rapid.T) {
				for i, at := range goings {
					if n, may := float64(len(goings)-i), rate*now.Sub(at).Seconds()+max(2, 0.3*rate+1); n > may+1e-6 {
						t.Fatalf("%v within %s at a rate of %v, and %.1f may", n, now.Sub(at), rate, may)
					}
				}
			},
		})
	})
}
