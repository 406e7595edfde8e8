package retry_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// queueOrder confirms each batch after a moment, and notes its queue.
type queueOrder struct{ sent []string }

func (*queueOrder) IsBinding(string) bool { return false }

func (q *queueOrder) Send(_ context.Context, queue string, claims []store.Claim) func(context.Context) []retry.Result {
	q.sent = append(q.sent, queue)
	return func(context.Context) []retry.Result {
		time.Sleep(10 * time.Millisecond) // of the fake clock
		results := make([]retry.Result, len(claims))
		for i := range results {
			results[i].Done = true
		}
		return results
	}
}

// A queue whose bodies are so large that one fills all that may be claimed ends each round
// early. The next round begins with the queues that had no turn, though its messages were due
// before theirs.
func TestARoundThatIsCutShortContinuesWithTheOtherQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sender := memstore.New(), &queueOrder{}
		large := record("large", "", time.Now())
		large.Message.Body = make([]byte, 32<<20)
		all := []*store.Record{record("small", "x", time.Now())}
		for range 4 {
			r := *large
			r.ID, r.Due = record("", "", r.Due).ID, time.Now().Add(-time.Minute)
			all = append(all, &r)
		}
		must(t, s.Add(t.Context(), all))
		run(t, retry.NewScheduler(s, sender, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {}), time.Second)
		if got := fmt.Sprint(sender.sent); got != "[large small large large large]" {
			t.Errorf("sent in the order %s; want the small one second", got)
		}
	})
}

// Where many targets have never confirmed anything, each has only a small part of what is
// free: 250 that hang leave something to the next one.
func TestNewTargetsThatHangHaveASmallPartEach(t *testing.T) {
	sender := &fakeTargets{unavailable: true}
	inScene(t, throttle.Rules{}, sender, func(t *testing.T, s *scene) {
		for i := range 250 {
			s.add(t, 20, "q", "stuck", fmt.Sprint("dead", i))
		}
		time.Sleep(time.Second)
		s.add(t, 100, "works", "retry", "")
		time.Sleep(time.Second)
		if n := sender.sentOf("retry"); n != 100 {
			t.Errorf("%d of 100 were retried, with %d claimed and stuck", n, sender.sentOf("stuck"))
		}
		if n := sender.sentOf("stuck"); n < 250 {
			t.Errorf("%d were sent to 250 targets", n)
		}
	})
}
