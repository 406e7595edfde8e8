package retry_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Whether messages can be retried to a queue is known from its policy, or once RabbitMQ has
// answered; it is asked only about queues that a policy allows.
func TestWhetherAQueueIsATargetIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{latency: time.Second, there: map[string]bool{"enrolled": true}, lookups: map[string]int{}}
		g := retry.NewSender(b, func() policy.Set {
			return policy.Set{{Name: "p", Queues: []string{"exact", "enrolled*", "missing*", "redrive*"}}}
		}, func(retry.Event) {})
		defer g.Close()
		for _, c := range []struct {
			queue              string
			yes, known         bool // at once
			yesLater, knowLate bool // when RabbitMQ has answered
			lookups            int
		}{
			{"exact", true, true, true, true, 0},
			{"no policy", false, true, false, true, 0},
			{wire.QueueIntake, false, true, false, true, 0},
			{"enrolled", false, false, true, true, 1},
			{"missing", false, false, false, true, 1},
		} {
			if yes, known := g.MayRetryTo(c.queue); yes != c.yes || known != c.known {
				t.Errorf("%s: %v, known: %v", c.queue, yes, known)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if yes, known := g.MayRetryTo(c.queue); yes != c.yesLater || known != c.knowLate || b.lookups[c.queue] != c.lookups {
				t.Errorf("%s, later: %v, known: %v; looked up %d times", c.queue, yes, known, b.lookups[c.queue])
			}
		}
	})
}

// That a queue has no retry exchange counts for a minute; that it has one counts for ever.
func TestHowLongAnAnswerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{there: map[string]bool{"enrolled": true}, lookups: map[string]int{}}
		g := retry.NewSender(b, anyQueue, func(retry.Event) {})
		defer g.Close()
		for _, c := range []struct {
			after   time.Duration
			missing int // lookups of a missing one
		}{{0, 1}, {30 * time.Second, 1}, {30 * time.Second, 1}, {1, 2}, {time.Hour, 3}} {
			time.Sleep(c.after)
			g.MayRetryTo("enrolled")
			g.MayRetryTo("missing")
			synctest.Wait()
			if b.lookups["missing"] != c.missing || b.lookups["enrolled"] != 1 {
				t.Errorf("%s later: looked up %v; want %d times what is missing", c.after, b.lookups, c.missing)
			}
		}
	})
}
