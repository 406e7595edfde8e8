package config

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// shortestDynamic is what delays of the way dynamic are rounded up to at least.
const shortestDynamic = 100 * time.Millisecond

const mostLevels = 100

// checkWay refuses a policy whose way cannot keep it, and takes away what the way does not have.
func (v value) checkWay(p *policy.Policy, way delay.Way, c *Config) {
	l := way.Limits()
	if err := l.Check(p); err != nil {
		wait, _ := v.at("wait")
		v.refuse(wait.node, err)
	}
	if l.DropsWhenFull {
		c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: with %s a retry that comes due while its work queue is full or has no leader is lost; levels, binary and disk keep it", p.Name, l.Name))
	}
	if !l.Spreads() {
		if _, set := v.at("jitter"); set && p.Jitter != policy.None {
			c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: its jitter has no effect: %s waits only what it waits", p.Name, l.Name))
		}
		p.Jitter = policy.None
	}
}

// warnOfLimits warns of limits that apply to replays alone, and of a rate that in_flight does not allow.
func (c *Config) warnOfLimits(p *policy.Policy, way delay.Way, r throttle.Rules) {
	if way != nil && (r.Rate > 0 || r.InFlight > 0 || r.Breaker != nil) {
		c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: rate, in_flight and breaker apply to replays alone: RabbitMQ itself retries messages that wait in it (%s); with wait: disk they apply to all", p.Name, way.Limits().Name))
	}
	if through := float64(r.InFlight) / r.Settle.Seconds(); r.InFlight > 0 && through < r.Rate {
		c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: in_flight %d and settle %s allow %s, less than rate: in_flight must be at least rate times settle", p.Name, r.InFlight, policy.FormatDuration(r.Settle), throttle.FormatRate(math.Round(through*3600)/3600)))
	}
}

// rounded are a policy's waits as its way rounds them.
func rounded(p *policy.Policy, way delay.Way) []time.Duration {
	waits := p.Waits()
	if way == nil {
		return waits
	}
	rounded := slices.Clone(waits)
	for i, w := range waits {
		if i > 0 && w == waits[i-1] {
			rounded[i] = rounded[i-1]
		} else if t, err := way.Ticket("", w); err == nil {
			rounded[i] = t.Delay
		}
	}
	return rounded
}
