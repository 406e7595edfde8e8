package simulate

import (
	"math"
	"time"
)

// failing returns the share of calls that fail at a tick, whatever the load.
func (o Options) failing(t int) float64 {
	at := time.Duration(t) * tick
	since := at - o.Before - o.Outage // since it is back
	switch {
	case at < o.Before || since >= o.Limp:
		return 0
	case since < 0:
		return 1
	}
	return 1 - float64(since)/float64(o.Limp)
}

// upstream is what the consumers call. Capacity that was not used can be used for a second, since
// few calls make no even flow.
type upstream struct {
	Options
	able float64 // how many calls it can serve now
}

// serves returns how many of the calls in a tick succeed. Those beyond its capacity fail, and use
// some of it where refusing costs something.
func (u *upstream) serves(t int, calls float64) float64 {
	u.able = min(u.able+u.Capacity/float64(ticksPerSecond), max(u.Capacity, 1))
	able := u.able
	if calls > able && u.Refusing > 0 {
		able = max(able-u.Refusing*calls, 0) / max(1-u.Refusing, 1e-9)
	}
	u.able = max(u.able-calls, 0)
	return min(calls, able) * (1 - u.failing(t))
}

// down tells whether the upstream serves nothing at a tick.
func (o Options) down(t int) bool {
	at := time.Duration(t) * tick
	return at >= o.Before && at < o.Before+o.Outage
}

// longestDrain bounds the length of a drain: with a rate of next to nothing it would be longer than
// a Duration can hold.
const longestDrain = 100 * 365 * 24 * time.Hour

// drained is the part of what the outage left that may wait when it counts as drained.
const drained = 1.0 / 1000

// bestDrain returns how long after the outage its messages would be drained by one who knew when
// it ends, made no call that fails, and kept to the policy's rate; false: never, since new messages
// take all that the upstream can serve.
func (o Options) bestDrain() (time.Duration, bool) {
	left := o.Rate * o.Outage.Seconds()
	small := left * drained
	spare := o.Capacity
	if o.Rules.Rate > 0 {
		spare = min(spare, o.Rate+o.Rules.Rate)
	}
	if spare <= o.Rate {
		return 0, false
	}
	back := int((o.Before + o.Outage) / tick)
	t := back
	for ; left > small && o.failing(t) > 0; t++ {
		serves := min(spare, o.Capacity*(1-o.failing(t)))
		left += (o.Rate - serves) / float64(ticksPerSecond)
	}
	rest := math.Ceil(max(left-small, 0) / (spare - o.Rate) * float64(ticksPerSecond))
	return min(time.Duration(t-back)*tick+time.Duration(min(rest, float64(longestDrain/tick)))*tick, longestDrain), true
}

// carry turns a flow into whole numbers, and carries the rest over to the next.
type carry struct{ rest float64 }

func (c *carry) whole(v float64) int {
	c.rest += v
	n := math.Floor(c.rest + 1e-9)
	c.rest -= n
	return int(n)
}
