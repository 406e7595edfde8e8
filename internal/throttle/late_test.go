package throttle_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/throttle"
)

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
