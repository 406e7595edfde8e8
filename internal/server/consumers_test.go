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

// asked is a RabbitMQ that tells what it is configured to.
type asked struct {
	mu   sync.Mutex
	n    map[string]int
	due  []string
	mute bool
	asks int
}

func (a *asked) set(change func()) { a.mu.Lock(); change(); a.mu.Unlock() }

// watching runs a watch in fake time until f ends.
func watching(t *testing.T, a *asked, rules throttle.Rules, f func(c *consumers, allowed func() int)) {
	synctest.Test(t, func(t *testing.T) {
		gate := throttle.New(func(string) throttle.Rules { return rules }, func() float64 { return 0 }, func(throttle.Transition) {})
		c := &consumers{Throttle: gate, rules: func(string) throttle.Rules { return rules }, ready: func() bool { return true }, wake: func() {},
			nudged: make(chan struct{}, 1), queues: map[string]*watched{}, unsure: map[string]time.Time{},
			enrolled: func(string) (yes, known bool) { return true, true },
			due: func(context.Context) (all []store.NextDue, err error) {
				a.mu.Lock()
				defer a.mu.Unlock()
				for _, q := range a.due {
					all = append(all, store.NextDue{Lane: store.Lane{Queue: q}, Due: time.Now()})
				}
				return all, nil
			},
			ask: func(ctx context.Context, queues []string, tell func(string, int)) error {
				for _, q := range queues {
					a.mu.Lock()
					a.asks++
					n, mute := a.n[q], a.mute
					a.mu.Unlock()
					if mute {
						return context.DeadlineExceeded
					}
					tell(q, n)
				}
				return nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		f(c, func() int {
			n, _ := c.Allow("q", 5, time.Now())
			c.Unsent("q", n, time.Now())
			return n
		})
		cancel()
		running.Wait()
	})
}

// Nothing goes before it is known that somebody is there; then it goes on being
// known, and within a second when they come back.
func TestReturnsWaitUntilItIsKnownThatSomebodyIsThere(t *testing.T) {
	a := &asked{n: map[string]int{"q": 1}}
	watching(t, a, throttle.Rules{}, func(c *consumers, allowed func() int) {
		var got []int
		step := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
			got = append(got, allowed())
		}
		step(0) // nudges
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
			t.Errorf("%v, want %s", got, want)
		}
		if a.asks < 20 || a.asks > 45 {
			t.Errorf("asked %d times in two minutes", a.asks)
		}
	})
}

// RabbitMQ not telling delays the returns, and does not stop them.
func TestReturnsGoOnWhenRabbitMQDoesNotTell(t *testing.T) {
	a := &asked{mute: true, due: []string{"q"}}
	watching(t, a, throttle.Rules{}, func(c *consumers, allowed func() int) {
		n, again := c.Allow("q", 5, time.Now())
		if n != 0 || again.Sub(time.Now()) != mostUnknown {
			t.Errorf("%d, again in %s", n, time.Until(again))
		}
		time.Sleep(mostUnknown)
		synctest.Wait()
		if n := allowed(); n != 5 {
			t.Errorf("%d after %s", n, mostUnknown)
		}
	})
}

// A queue that nothing is due for any more is held from no one, and not asked for.
func TestAQueueWithNothingDueIsForgotten(t *testing.T) {
	a := &asked{n: map[string]int{}, due: []string{"q"}}
	watching(t, a, throttle.Rules{}, func(c *consumers, allowed func() int) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := allowed(); n != 0 || c.View("q", time.Now()).Paused != throttle.WhyNoConsumer {
			t.Errorf("%d, %+v", n, c.View("q", time.Now()))
		}
		a.set(func() { a.due = nil })
		time.Sleep(2 * watchedFor)
		synctest.Wait()
		asks := 0
		a.set(func() { asks = a.asks })
		time.Sleep(time.Hour)
		if v := c.View("q", time.Now()); v.Paused != "" || !v.NoConsumersSince.IsZero() {
			t.Errorf("%+v", v)
		}
		if a.set(func() {}); a.asks != asks {
			t.Errorf("asked %d times in vain", a.asks-asks)
		}
	})
}

func TestQueuesThatAreReadWithBasicGetAreNotAskedFor(t *testing.T) {
	a := &asked{n: map[string]int{}, due: []string{"q"}}
	watching(t, a, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(c *consumers, allowed func() int) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := allowed(); n != 5 || a.asks != 0 {
			t.Errorf("%d, asked %d times", n, a.asks)
		}
	})
}
