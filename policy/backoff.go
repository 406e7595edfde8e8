package policy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Backoff is how delays grow from attempt to attempt. Make one with Fixed, Linear, Exponential
// or List; the zero value has no delays.
type Backoff struct {
	kind          kind
	initial, step time.Duration
	factor        float64
	max           time.Duration
	list          []time.Duration
}

type kind uint8

const (
	fixed kind = iota
	linear
	exponential
	list
)

// Fixed has the same delay each time.
func Fixed(d time.Duration) Backoff { return Backoff{kind: fixed, initial: d, max: d} }

// Linear begins with initial, and adds step each time, up to max.
func Linear(initial, step, max time.Duration) Backoff {
	return Backoff{kind: linear, initial: initial, step: step, max: max}
}

// Exponential begins with initial, and multiplies by factor each time, up to max.
func Exponential(initial time.Duration, factor float64, max time.Duration) Backoff {
	return Backoff{kind: exponential, initial: initial, factor: factor, max: max}
}

// List has one delay after the other, and repeats the last.
func List(delays ...time.Duration) Backoff {
	return Backoff{kind: list, list: slices.Clone(delays)}
}

// Delay returns the delay after the n-th failure, n from 1.
func (b Backoff) Delay(n int) time.Duration {
	n = max(n, 1)
	var d float64
	switch b.kind {
	case list:
		if len(b.list) == 0 {
			return 0
		}
		return b.list[min(n, len(b.list))-1]
	case linear:
		d = float64(b.initial) + float64(b.step)*float64(n-1)
	case exponential:
		if b.initial > 0 { // 0 times infinity is no number
			d = float64(b.initial) * math.Pow(b.factor, float64(n-1))
		}
	default:
		return b.initial
	}
	if !(d < float64(b.max)) { // also for what overflowed to infinity
		return b.max
	}
	return time.Duration(d)
}

// maxOf returns the longest of the first n delays, or the first when n is 0.
func (b Backoff) maxOf(n int) time.Duration {
	n = max(n, 1)
	if b.kind == list && len(b.list) > 0 {
		return slices.Max(b.list[:min(n, len(b.list))])
	}
	return b.Delay(n) // the others never shrink
}

// Settles returns the failure, n at most, from which on all delays are the same.
func (b Backoff) Settles(n int) int {
	if b.kind == list {
		return max(1, min(n, len(b.list)))
	}
	return 1 + sort.Search(n-1, func(i int) bool { return b.Delay(i+1) == b.Delay(n) }) // the others never shrink
}

// Max returns the longest delay, after however many failures.
func (b Backoff) Max() time.Duration { return b.maxOf(math.MaxInt) }

// String describes how delays grow: "fixed at 30s", or "1s, 10m x3".
func (b Backoff) String() string {
	f := FormatDuration
	switch b.kind {
	case linear:
		return fmt.Sprintf("linear from %s by %s to %s", f(b.initial), f(b.step), f(b.max))
	case exponential:
		return fmt.Sprintf("exponential from %s, times %v, to %s", f(b.initial), b.factor, f(b.max))
	case list:
		var all []string
		for rest := b.list; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n] == rest[0] {
				n++
			}
			text := f(rest[0])
			if n > 1 {
				text += fmt.Sprintf(" x%d", n)
			}
			all, rest = append(all, text), rest[n:]
		}
		return strings.Join(all, ", ")
	}
	return "fixed at " + f(b.initial)
}

// Validate returns an error for an impossible backoff.
func (b Backoff) Validate() error {
	for _, d := range append([]time.Duration{b.initial, b.step, b.max}, b.list...) {
		if d < 0 {
			return fmt.Errorf("%s is negative", FormatDuration(d))
		}
		if d > LongestDelay {
			return fmt.Errorf("%s is longer than ten years, the longest wait", FormatDuration(d))
		}
	}
	switch {
	case b.kind == list && len(b.list) == 0:
		return errors.New("the list of waits is empty")
	case b.kind == exponential && !(b.factor >= 1 && b.factor <= 1000):
		return fmt.Errorf("factor is %v, and must be from 1 to 1000", b.factor)
	case b.kind != list && b.max < b.initial:
		return fmt.Errorf("max (%s) is shorter than initial (%s)", FormatDuration(b.max), FormatDuration(b.initial))
	}
	return nil
}

// Jitter spreads delays, so that messages that failed together are not retried together. Make
// one with Fraction, or use None, Full or Equal. The zero value is Fraction(0.2).
type Jitter struct {
	kind     jitterKind
	fraction float64
}

type jitterKind uint8

const (
	byDefault jitterKind = iota
	none
	full
	equal
	fraction
)

var (
	// None keeps delays as they are.
	None = Jitter{kind: none}
	// Full makes a delay anything from 0 to itself.
	Full = Jitter{kind: full}
	// Equal makes a delay anything from half of itself to itself.
	Equal = Jitter{kind: equal}
)

// Fraction makes a delay shorter or longer by up to f of itself: 0.2 turns 10 s into 8 to 12 s. f is from 0 to 1.
func Fraction(f float64) Jitter { return Jitter{kind: fraction, fraction: f} }

const defaultFraction = 0.2

// Validate returns an error for an impossible jitter.
func (j Jitter) Validate() error {
	if j.kind == fraction && !(j.fraction >= 0 && j.fraction <= 1) {
		return fmt.Errorf("jitter is %v, and must be none, full, equal or a fraction from 0 to 1", j.fraction)
	}
	return nil
}

func (j Jitter) String() string {
	switch j.kind {
	case none:
		return "none"
	case full:
		return "full"
	case equal:
		return "equal"
	}
	return "±" + strconv.FormatFloat(j.share()*100, 'f', -1, 64) + "%"
}

func (j Jitter) share() float64 {
	if j.kind == byDefault {
		return defaultFraction
	}
	return j.fraction
}

// apply returns the delay that the seed chooses for d, at most LongestDelay.
func (j Jitter) apply(d time.Duration, seed uint64) time.Duration {
	u := unit(seed)
	f := float64(d)
	switch j.kind {
	case none:
		return d
	case full:
		f *= u
	case equal:
		f = f/2 + f/2*u
	default:
		f += f * j.share() * (2*u - 1)
	}
	return min(time.Duration(f), LongestDelay)
}

// Longest returns the longest delay that jitter makes of d.
func (j Jitter) Longest(d time.Duration) time.Duration {
	if j.kind == byDefault || j.kind == fraction {
		d = time.Duration(min(float64(d)*(1+j.share()), float64(LongestDelay)))
	}
	return d
}

// Shortest returns the shortest delay that jitter makes of d.
func (j Jitter) Shortest(d time.Duration) time.Duration {
	switch j.kind {
	case none:
		return d
	case full:
		return 0
	case equal:
		return d / 2
	}
	return time.Duration(float64(d) * (1 - j.share()))
}

// unit spreads seeds evenly over [0, 1) (the splitmix64 finaliser: seeds that differ in one bit give unrelated values).
func unit(x uint64) float64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}
