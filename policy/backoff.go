package policy

import (
	"errors"
	"fmt"
	"math"
	"slices"
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
	unset kind = iota // of the zero value
	fixed
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

// IsZero tells whether it is the zero value, which is no backoff: Fixed(0) is one.
func (b Backoff) IsZero() bool { return b.kind == unset }

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

// longestOf returns the longest of the first n delays, or the first when n is 0.
func (b Backoff) longestOf(n int) time.Duration {
	n = max(n, 1)
	if b.kind == list && len(b.list) > 0 {
		return slices.Max(b.list[:min(n, len(b.list))])
	}
	return b.Delay(n) // the others never shrink
}

// Max returns the longest delay, after however many failures.
func (b Backoff) Max() time.Duration { return b.longestOf(math.MaxInt) }

// String describes how delays grow: "fixed at 30s".
func (b Backoff) String() string {
	f := FormatDuration
	switch b.kind {
	case linear:
		return fmt.Sprintf("linear from %s by %s to %s", f(b.initial), f(b.step), f(b.max))
	case exponential:
		return fmt.Sprintf("exponential from %s, times %v, to %s", f(b.initial), b.factor, f(b.max))
	case list:
		return fmt.Sprintf("a list of %d", len(b.list))
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
