package retry_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// counting is a throttle that opens at a time, allows a few at once, and counts.
type counting struct {
	mu      sync.Mutex
	opens   time.Time
	few     int
	allowed int
	unsent  int
	retried []uuid.UUID
}

func (g *counting) Allow(_ string, most int, now time.Time) (n int, retryAt time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.opens) {
		return 0, g.opens
	}
	n = min(most, g.few)
	g.allowed += n
	return n, time.Time{}
}

func (g *counting) SetCatchUp(time.Duration) {}

func (g *counting) NotRetried(_ string, n int, _ time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsent += n
}

func (g *counting) Retried(_ string, ids []uuid.UUID, _ time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retried = append(g.retried, ids...)
}

// batches notes how large each batch is.
type batches struct {
	*fakeSender
	sizes []int
}

func (*batches) IsBinding(string) bool { return false }

func (b *batches) Send(ctx context.Context, queue string, claims []store.Claim) func(context.Context) []retry.Result {
	b.sizes = append(b.sizes, len(claims))
	return b.fakeSender.Send(ctx, queue, claims)
}

// Nothing is sent before the throttle opens, and no more at once than it allows. It learns of
// each that was allowed whether it was retried: one that failed, was parked, or was not
// there, was not, and another may be in its place.
func TestTheThrottleIsObeyedAndReceivesEachResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		began := time.Now()
		g := &batches{fakeSender: &fakeSender{began: began, nth: map[string]int{}, answer: func(body string, nth int) retry.Result {
			switch {
			case body == "parked":
				return retry.Result{Park: "gone"}
			case body == "failed" && nth == 1:
				return retry.Result{Err: errors.New("full")}
			}
			return retry.Result{Done: true}
		}}}
		throttled := &counting{opens: began.Add(67500 * time.Millisecond), few: 3}
		scheduler := retry.NewScheduler(s, g, throttled, func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		var all []*store.Record
		var want []uuid.UUID
		for i, body := range []string{"a", "failed", "parked", "b", "c", "d"} {
			r := record("q", body, began.Add(time.Duration(i)*time.Millisecond))
			if body != "parked" {
				want = append(want, r.ID)
			}
			all = append(all, r)
		}
		must(t, s.Add(t.Context(), all))
		run(t, scheduler, time.Hour)
		if len(g.sent) != 7 || slices.Max(g.sizes) > throttled.few || g.sent[0] != "a 1m7.5s" {
			t.Errorf("sent %v in batches of %v", g.sent, g.sizes)
		}
		byID := func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
		slices.SortFunc(want, byID)
		slices.SortFunc(throttled.retried, byID)
		if !slices.Equal(throttled.retried, want) || throttled.allowed != len(want)+throttled.unsent {
			t.Errorf("of %d that it allowed, %d were reported to the throttle as not sent and %d as retried; want %d retried", throttled.allowed, throttled.unsent, len(throttled.retried), len(want))
		}
	})
}
