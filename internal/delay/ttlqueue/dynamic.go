package ttlqueue

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
)

// Dynamic waits in a queue for each delay. It is declared when it is needed, and expires when it is
// idle (x-expires).
//
// x-expires deletes a queue with the messages in it. Declaring the queue again postpones that for
// classic queues, but not for quorum queues [measured on 3.10.8 and 4.3.6], so these queues are
// classic. Each publish comes soon after a declaration, the expiry is well past the delay, and a
// message counts as waiting only if it was confirmed while that declaration still covered its
// whole wait.
type Dynamic struct {
	step time.Duration
	// Spare is how much longer than its delay a queue exists when it is not used. Half of it is
	// for the time from declaration to confirm, half for a broker that dead-letters slowly.
	// Tests shorten it.
	Spare func(time.Duration) time.Duration
}

// NewDynamic rounds delays up to two significant digits, and to at least step, which is 1 ms or
// more. That makes at most 90 queues for each power of ten.
func NewDynamic(step time.Duration) (*Dynamic, error) {
	if step < time.Millisecond || step%time.Millisecond != 0 {
		return nil, fmt.Errorf("a step of %s is not a number of whole milliseconds from 1 ms", step)
	}
	return &Dynamic{step, spare}, nil
}

func spare(d time.Duration) time.Duration { return max(10*time.Minute, d/10) }

// longestDynamic leaves room for the expiry, which has the same limit.
const longestDynamic = longest / 2

// Limits implements delay.Way.
func (d *Dynamic) Limits() delay.Limits {
	return delay.Limits{Name: "dynamic", Longest: longestDynamic, Step: d.step, DropsWhenFull: true, ChangesRoutingKey: true, Survives: Classic.survives(),
		Declares: fmt.Sprintf("one queue and one exchange per delay in use, rounded up to two digits: at most %d for delays up to an hour; gone when not used for ten minutes more than the delay", d.most(time.Hour))}
}

// Topology implements delay.Way.
func (d *Dynamic) Topology(queue string) delay.Topology { return delay.Due(queue) }

// Ticket implements delay.Way.
func (d *Dynamic) Ticket(queue string, wait time.Duration) (delay.Ticket, error) {
	if wait > longestDynamic {
		return delay.Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the longest of dynamic queues", policy.FormatDuration(wait), policy.FormatDuration(longestDynamic))
	}
	wait = d.round(wait)
	name := Classic.name("dynamic." + label(wait))
	first := Classic.delayQueue(name, wait, amqp.Table{"x-expires": (wait + d.Spare(wait)).Milliseconds()})
	first.Exchanges[0].AutoDelete = true
	return delay.Ticket{Exchange: name, RoutingKey: queue, Delay: wait, DeclareFirst: &first, ConfirmWithin: d.Spare(wait) / 2}, nil
}

// round rounds up to two significant digits: with more, jitter would make a queue for each
// message.
func (d *Dynamic) round(wait time.Duration) time.Duration {
	step := d.step
	for step*100 < wait {
		step *= 10
	}
	return max(roundUp(wait, step), d.step)
}

// most is how many different delays there are up to longest, each with a queue.
func (d *Dynamic) most(longest time.Duration) (n int) {
	for wait := d.step; wait <= longest; wait = d.round(wait + 1) {
		n++
	}
	return n
}
