package retry_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// When all pauses are set at once, the queues that are no longer among them are retried at once.
func TestSettingAllPausesResumesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		scheduler.SetPauses(map[string]bool{"p": true, "q": true})
		must(t, s.Add(t.Context(), []*store.Record{record("q", "a", time.Now()), record("p", "b", time.Now())}))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		time.Sleep(time.Minute)
		scheduler.SetPauses(map[string]bool{"p": true})
		time.Sleep(time.Second)
		if paused := scheduler.Paused(); !slices.Equal(paused, []string{"p"}) || !slices.Equal(g.sent, []string{"a 1m0s"}) {
			t.Errorf("%q are paused, sent %q; want p, and a after a minute", paused, g.sent)
		}
		cancel()
		running.Wait()
	})
}

// slowEntries is a store whose entries take long to be read.
type slowEntries struct{ retry.Store }

func (s slowEntries) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	defer time.Sleep(5 * time.Second)
	return s.Store.Entries(ctx, prefix, after, visit)
}

// While pauses are read from a store that is slow, who asks for them does not wait, and a queue that is
// resumed meanwhile is.
func TestPausesAreReadWhileTheyAreAskedForAndChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		must(t, s.PutEntries(t.Context(), []store.Entry{{Name: store.PausePrefix + "p", Value: []byte("{}")}, {Name: store.PausePrefix + "q", Value: []byte("{}")}}))
		scheduler := retry.NewScheduler(slowEntries{s}, &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		time.Sleep(time.Second)
		began := time.Now()
		if scheduler.Paused(); time.Since(began) > 0 {
			t.Errorf("they are known after %s", time.Since(began))
		}
		scheduler.Pause("q", false)
		time.Sleep(10 * time.Second)
		if paused := scheduler.Paused(); !slices.Equal(paused, []string{"p"}) {
			t.Errorf("%q are paused; want p", paused)
		}
		cancel()
		running.Wait()
	})
}
