package retry_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// slowStore is a store on a busy machine: Next answers late.
type slowStore struct {
	*memstore.Member
	late func() time.Duration
}

func (b slowStore) Next(ctx context.Context) ([]store.NextDue, error) {
	time.Sleep(b.late())
	return b.Member.Next(ctx)
}

// sentAt runs some schedulers over one store in fake time, each with its part of a rate,
// and returns when each of more messages than the rate has room for was sent.
func sentAt(t *testing.T, replicas int, rate float64, late time.Duration, length time.Duration) (began time.Time, at []time.Time) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		together, rules := memstore.NewReplicas(), throttle.Rules{Rate: rate, NoConsumer: throttle.RetryWithoutConsumers}
		g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
		began = g.began
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var first *memstore.Member
		for i := range replicas {
			random := rand.New(rand.NewPCG(uint64(i), uint64(rate)))
			member := together.Join()
			first = member
			throttled := throttle.New(func(string) throttle.Rules { return rules }, random.Float64, func(throttle.Transition) {})
			throttled.SetShare(throttle.Share{N: replicas, I: i}, time.Now())
			scheduler := retry.NewScheduler(slowStore{member, func() time.Duration { return time.Duration(random.Int64N(int64(late) + 1)) }}, g, throttled,
				func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
			running.Go(func() { scheduler.Run(ctx, time.Second) })
		}
		var all []*store.Record
		for range int(1.2 * rate * length.Seconds()) {
			all = append(all, record("q", "m", g.began))
		}
		if err := first.Add(ctx, all); err != nil {
			t.Fatal(err)
		}
		time.Sleep(length) // of the fake clock
		cancel()
		running.Wait()
		for _, s := range g.sent {
			var after string
			if _, err := fmt.Sscan(s, new(string), &after); err != nil {
				t.Fatal(err)
			}
			d, err := time.ParseDuration(after)
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, began.Add(d))
		}
	})
	return began, at
}

// A scheduler that a busy machine wakes late, each time by up to half a second, keeps the rate:
// within 5 % over any ten seconds, with one replica and with several. Nor does it catch up with
// more than a burst of 0.55 s, and two messages per replica.
func TestASchedulerThatIsWokenLateKeepsTheRate(t *testing.T) {
	const late, length = 500 * time.Millisecond, 30 * time.Second
	for _, replicas := range []int{1, 2, 3} {
		for _, rate := range []float64{5, 40, 80} {
			t.Run(fmt.Sprintf("%d replicas, %v a second", replicas, rate), func(t *testing.T) {
				began, at := sentAt(t, replicas, rate, late, length)
				least, most := 1<<30, 0
				for from := began.Add(time.Second); !from.Add(10 * time.Second).After(began.Add(length)); from = from.Add(100 * time.Millisecond) {
					n := 0
					for _, a := range at {
						if !a.Before(from) && a.Before(from.Add(10*time.Second)) {
							n++
						}
					}
					least, most = min(least, n), max(most, n)
				}
				t.Logf("over ten seconds from %d to %d were sent, at a rate of %v", least, most, 10*rate)
				if float64(least) < 0.95*10*rate || float64(most) > 1.05*10*rate {
					t.Errorf("over ten seconds from %d to %d were sent; want %v, within 5 %%", least, most, 10*rate)
				}
				slices.SortFunc(at, time.Time.Compare)
				for i, from := range at {
					for j := i; j < len(at) && at[j].Sub(from) <= time.Second; j++ {
						if n, may := float64(j-i+1), rate*at[j].Sub(from).Seconds()+0.55*rate+float64(2*replicas); n > may {
							t.Fatalf("%v were sent within %s; want at most %.1f", n, at[j].Sub(from), may)
						}
					}
				}
			})
		}
	}
}
