// Package simulate shows what retries do to an upstream that is down for a while:
// the same messages with four ways to retry them, on a virtual clock. It runs
// the policy and the throttle that the service runs; only time, RabbitMQ, the consumer
// and the upstream are simulated. Equal options give equal results. Read it in this
// order:
//
//	simulate.go  Options, Run
//	queue.go     messages that fail and are retried, tick by tick; the upstream
//	result.go    the numbers that result, for people and programs
//	chart.go     the chart
package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// tick is how far the clock goes at a time.
const tick = 100 * time.Millisecond

const ticksPerSecond = int(time.Second / tick)

// The most messages and ticks of a simulation: with more it takes minutes.
const (
	mostMessages = 20_000_000
	mostTicks    = 4_000_000
)

// Options are what is simulated. Fill sets those that are 0.
type Options struct {
	Policy policy.Policy
	Rules  throttle.Rules // how the policy's retries are limited
	// Rate is how many messages a second are published, and Capacity how many
	// calls a second the upstream can serve.
	Rate, Capacity float64
	// Refusing is what a call beyond its capacity costs the upstream, as a share of what a call
	// costs that it serves.
	Refusing float64
	// Consumers is how many calls a second the consumers make at most.
	Consumers float64
	// Fixed is the delay of the variant with a fixed one.
	Fixed time.Duration
	// All is well for Before, the upstream is down for Outage, and for Limp after that a share of
	// the calls fails, which falls from all to none. A negative Limp is none.
	Before, Outage, Limp time.Duration
	// Duration is the time that is simulated, Before included.
	Duration time.Duration
	Seed     uint64
}

// Fill sets what is 0 to its default. Call it once: it makes a negative Limp 0.
func (o Options) Fill() Options {
	o.Capacity = or(o.Capacity, 2*o.Rate)
	o.Consumers = or(o.Consumers, max(25*o.Capacity, 50))
	o.Fixed = or(o.Fixed, 30*time.Second)
	o.Before = or(o.Before, max(o.Outage/12, 10*time.Second)).Round(tick)
	if o.Limp == 0 {
		o.Limp = (o.Outage / 12).Round(tick)
	}
	o.Limp = max(o.Limp, 0)
	if o.Duration == 0 {
		best, ok := o.bestDrain()
		if !ok {
			best = o.Outage
		}
		// With a rate of next to nothing the drain takes years: its end is not simulated.
		best = min(best, mostOutages*o.Outage)
		// Room to see others drain, or not.
		o.Duration = (o.Before + o.Outage + o.Limp + max(best*5/4+o.Outage/6, o.Outage/2)).Round(time.Minute)
	}
	return o
}

// mostOutages is how many times as long as the outage a drain is simulated by default.
const mostOutages = 10

// Brief returns the options of a simulation that is quick enough for a page: as many messages a
// second as the policy retries, and the shorter an outage the more these are.
func Brief(p policy.Policy, r throttle.Rules) Options {
	rate := min(max(or(r.Rate, 10), 1), 200)
	outage := time.Duration(30_000 / rate * float64(time.Second)).Round(time.Minute)
	return Options{Policy: p, Rules: r, Rate: rate, Outage: min(max(outage, 3*time.Minute), time.Hour), Seed: 1}
}

func or[T float64 | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// Validate returns an error for filled options that cannot be simulated.
func (o Options) Validate() error {
	switch {
	case !(o.Rate > 0 && o.Rate <= 1e6):
		return errors.New("the rate of messages must be above 0, and at most 1,000,000 a second")
	case o.Outage < time.Second:
		return errors.New("the outage must last a second at least")
	case !(o.Capacity > 0 && o.Capacity <= 1e7):
		return errors.New("the upstream's capacity must be above 0, and at most 10,000,000 a second")
	case !(o.Refusing >= 0 && o.Refusing <= 1):
		return errors.New("what a refused call costs must be from 0 to 1")
	case o.Consumers < o.Rate:
		return errors.New("the consumers must be able to make as many calls as there are messages")
	case o.Fixed < tick:
		return fmt.Errorf("the fixed delay must be %s at least", tick)
	case o.Duration <= o.Before+o.Outage:
		return fmt.Errorf("the duration must be longer than the outage and the %s before it", policy.FormatDuration(o.Before))
	case o.Rate*o.Duration.Seconds() > mostMessages || o.Duration/tick > mostTicks:
		return fmt.Errorf("%.0f messages in %s are more than can be simulated (%d messages, %s): lower the rate, or shorten outage or duration",
			o.Rate*o.Duration.Seconds(), policy.FormatDuration(o.Duration), mostMessages, policy.FormatDuration(mostTicks*tick))
	}
	return o.Policy.Validate()
}

// Run fills the options, and simulates each way with them. It ends with an error when ctx does.
func Run(ctx context.Context, o Options) (*Result, error) {
	o = o.Fill()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Result{Options: o}
	if best, ok := o.bestDrain(); ok {
		r.Best = &best
	}
	for _, v := range []struct {
		way Way
		run func(context.Context, Options, *record) error
	}{
		{Way{"requeue", "requeue at once"}, requeue},
		{Way{"fixed", "a fixed delay of " + policy.FormatDuration(o.Fixed)}, fixedDelay},
		{Way{"backoff", "backoff alone"}, backoff},
		{Way{"redrive", "backoff, " + limits(o.Rules)}, throttled},
	} {
		rec := newRecord(o)
		if err := v.run(ctx, o, rec); err != nil {
			return nil, err
		}
		r.Ways = append(r.Ways, rec.outcome(v.way))
	}
	r.compare()
	return r, nil
}

// limits names what a policy has beyond its backoff.
func limits(r throttle.Rules) string {
	switch {
	case r.Breaker != nil && r.Rate > 0:
		return "breaker and rate"
	case r.Breaker != nil:
		return "breaker"
	case r.Rate > 0:
		return "rate"
	case r.InFlight > 0:
		return "in_flight"
	}
	return "no breaker, no rate"
}

func ptr[T any](v T) *T { return &v }
