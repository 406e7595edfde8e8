package query

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
)

// decimal is a number exactly as it is written, of any size: digits times ten to
// the power of exp. Nothing is ever multiplied out, since a message may well hold
// 1e999999999.
type decimal struct {
	negative bool
	digits   string // without zeros at either end; "" is zero
	exp      int64
}

// farthest bounds exponents; beyond it numbers of one sign are all alike.
const farthest = 1 << 60

// parseDecimal reads a number as JSON writes it; also with a sign or with zeros in
// front, and .5.
func parseDecimal(s string) (d decimal, ok bool) {
	rest := s
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		d.negative = rest[0] == '-'
		rest = rest[1:]
	}
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		n, err := strconv.ParseInt(rest[i+1:], 10, 64) // takes a + too
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return d, false
		}
		d.exp = min(max(n, -farthest), farthest)
		rest = rest[:i]
	}
	whole, fraction, dot := strings.Cut(rest, ".")
	if whole == "" && fraction == "" || dot && fraction == "" || !allDigits(whole) || !allDigits(fraction) {
		return d, false
	}
	d.exp -= int64(len(fraction))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(d.digits, "0")
	d.exp += int64(len(d.digits) - len(short))
	if d.digits = short; d.digits == "" {
		d = decimal{}
	}
	return d, true
}

func allDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// compare is -1, 0 or 1.
func (d decimal) compare(o decimal) int {
	bySize := d.magnitude(o)
	if d.negative {
		bySize = -bySize
	}
	return cmp.Or(cmp.Compare(d.sign(), o.sign()), bySize)
}

func (d decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// magnitude compares without the signs. The digits of both begin with another one
// than 0, so where the point is decides first.
func (d decimal) magnitude(o decimal) int {
	a, b := d.exp+int64(len(d.digits)), o.exp+int64(len(o.digits))
	return cmp.Or(cmp.Compare(a, b), strings.Compare(d.digits, o.digits))
}

func fromInt(n int64) decimal {
	d, _ := parseDecimal(strconv.FormatInt(n, 10))
	return d
}
