package policy

import (
	"fmt"
	"strconv"
	"time"
)

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

// Fraction makes a delay shorter or longer by up to f of itself: 0.2 turns 10 s into 8 to 12 s.
// f is from 0 to 1.
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

// unit spreads seeds evenly over [0, 1) (the splitmix64 finaliser: seeds that
// differ in one bit give unrelated values).
func unit(x uint64) float64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}
