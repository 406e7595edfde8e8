package server

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// consumerCounts is a RabbitMQ that answers what the test has set.
type consumerCounts struct {
	mu   sync.Mutex
	n    map[string]int
	due  []string
	mute bool
	asks int
}

func (a *consumerCounts) set(change func()) { a.mu.Lock(); change(); a.mu.Unlock() }

// watching runs a consumerThrottle in fake time until f ends.
func watching(t *testing.T, a *consumerCounts, rules throttle.Rules, f func(c *consumerThrottle, allowed func() int)) {
	synctest.Test(t, func(t *testing.T) {
		plain := throttle.New(func(string) throttle.Rules { return rules }, func() float64 { return 0 }, func(throttle.Transition) {})
		c := &consumerThrottle{Throttle: plain, rules: func(string) throttle.Rules { return rules }, ready: func() bool { return true }, wake: func() {},
			pollNow: make(chan struct{}, 1), queues: map[string]*watchedQueue{}, unknownSince: map[string]time.Time{},
			mayRetryTo: func(string) (yes, known bool) { return true, true },
			due: func(context.Context) (all []store.NextDue, err error) {
				a.mu.Lock()
				defer a.mu.Unlock()
				for _, q := range a.due {
					all = append(all, store.NextDue{Lane: store.Lane{Queue: q}, Due: time.Now()})
				}
				return all, nil
			},
			ask: func(ctx context.Context, queues []string, answer func(string, int)) error {
				for _, q := range queues {
					a.mu.Lock()
					a.asks++
					n, mute := a.n[q], a.mute
					a.mu.Unlock()
					if mute {
						return context.DeadlineExceeded
					}
					answer(q, n)
				}
				return nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		f(c, func() int {
			n, _ := c.Allow("q", 5, time.Now())
			c.NotRetried("q", n, time.Now())
			return n
		})
		cancel()
		running.Wait()
	})
}

// Nothing is retried before it is known that the queue has consumers. That stays known, and
// consumers that are back are noticed within a second.
func TestRetriesWaitUntilTheQueueIsKnownToHaveConsumers(t *testing.T) {
	a := &consumerCounts{n: map[string]int{"q": 1}}
	watching(t, a, throttle.Rules{}, func(c *consumerThrottle, allowed func() int) {
		var got []int
		step := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
			got = append(got, allowed())
		}
		step(0) // asks
		step(time.Millisecond)
		a.set(func() { a.due = []string{"q"} })
		for range 10 {
			step(10 * time.Second)
		}
		a.set(func() { a.n["q"] = 0 })
		step(6 * time.Second)
		a.set(func() { a.n["q"] = 1 })
		step(1100 * time.Millisecond)
		if want := "[0 5 5 5 5 5 5 5 5 5 5 5 0 5]"; fmt.Sprint(got) != want {
			t.Errorf("allowed %v, want %s", got, want)
		}
		if a.asks < 20 || a.asks > 45 {
			t.Errorf("asked %d times in two minutes", a.asks)
		}
	})
}

// A RabbitMQ that does not answer delays the retries, and does not stop them.
func TestRetriesContinueWhenRabbitMQDoesNotAnswer(t *testing.T) {
	a := &consumerCounts{mute: true, due: []string{"q"}}
	watching(t, a, throttle.Rules{}, func(c *consumerThrottle, allowed func() int) {
		n, retryAt := c.Allow("q", 5, time.Now())
		if n != 0 || time.Until(retryAt) != maxAnswerWait {
			t.Errorf("%d, again in %s", n, time.Until(retryAt))
		}
		time.Sleep(maxAnswerWait)
		synctest.Wait()
		if n := allowed(); n != 5 {
			t.Errorf("%d after %s", n, maxAnswerWait)
		}
	})
}

// A queue without due messages is no longer paused, and not asked for.
func TestAQueueWithNothingDueIsForgotten(t *testing.T) {
	a := &consumerCounts{n: map[string]int{}, due: []string{"q"}}
	watching(t, a, throttle.Rules{}, func(c *consumerThrottle, allowed func() int) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := allowed(); n != 0 || c.View("q", time.Now()).WaitReason != throttle.WhyNoConsumer {
			t.Errorf("%d, %+v", n, c.View("q", time.Now()))
		}
		a.set(func() { a.due = nil })
		time.Sleep(2 * watchedFor)
		synctest.Wait()
		asks := 0
		a.set(func() { asks = a.asks })
		time.Sleep(time.Hour)
		if v := c.View("q", time.Now()); v.WaitReason != "" || !v.NoConsumersSince.IsZero() {
			t.Errorf("%+v", v)
		}
		if a.set(func() {}); a.asks != asks {
			t.Errorf("asked %d times for a queue without due messages", a.asks-asks)
		}
	})
}

func TestQueuesThatAreReadWithBasicGetAreNotAskedFor(t *testing.T) {
	a := &consumerCounts{n: map[string]int{}, due: []string{"q"}}
	watching(t, a, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(c *consumerThrottle, allowed func() int) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := allowed(); n != 5 || a.asks != 0 {
			t.Errorf("%d, asked %d times", n, a.asks)
		}
	})
}
