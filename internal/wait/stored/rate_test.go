package stored_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/flow"
	"github.com/redrive-mq/redrive/internal/release"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/wait/stored"
)

// pump sends each message at once, is answered a little later, and has another come
// due for it; it counts what went in each minute.
type pump struct {
	store   *memstore.Store
	began   time.Time
	minutes []int
}

func (p *pump) Send(ctx context.Context, queue string, claims []store.Claim) func(context.Context) []flow.Fate {
	p.minutes[int(time.Since(p.began)/time.Minute)] += len(claims)
	fates := make([]flow.Fate, len(claims))
	for i := range fates {
		fates[i].Done = true
	}
	err := p.store.Add(ctx, dueNow(queue, len(claims)))
	return func(context.Context) []flow.Fate {
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		if err != nil {
			panic(err)
		}
		return fates
	}
}

func dueNow(queue string, n int) (all []*store.Record) {
	for range n {
		all = append(all, record(queue, "x", time.Now()))
	}
	return all
}

// The loop keeps a policy's rate within 5 % in each minute of an hour, by the gate's
// own clock, while more is due all the time than may return.
func TestTheRateHoldsInEachMinuteOfAnHour(t *testing.T) {
	for _, rate := range []float64{0.5, 3, 10} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const minutes = 60
				s := memstore.New()
				p := &pump{store: s, began: time.Now(), minutes: make([]int, minutes+1)}
				gate := release.New(func(string) release.Rules { return release.Rules{Rate: rate} }, rand.Float64, func(release.Transition) {})
				l := stored.New(s, p, gate, func(flow.Event) {}, slog.New(slog.DiscardHandler), func(string, error) {})
				if err := s.Add(t.Context(), dueNow("q", 20)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { l.Run(ctx, time.Second) })
				time.Sleep(minutes * time.Minute) // of the fake clock
				cancel()
				running.Wait()
				want, all := rate*60, 0
				for i, n := range p.minutes[:minutes] {
					all += n
					if float64(n) < 0.95*want-1 || float64(n) > 1.05*want+1 {
						t.Errorf("minute %d: %d return, want %v", i, n, want)
					}
				}
				if want *= minutes; float64(all) < 0.99*want || float64(all) > 1.01*want {
					t.Errorf("%d return in an hour, want %v", all, want)
				}
			})
		})
	}
}
