package hint

import (
	"cmp"
	"fmt"
	"strings"
)

func Size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// Natural orders names as people count, orders.2 before orders.10. It returns 0 for equal names alone.
func Natural(a, b string) int {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	i := 0 // where the number begins in which they differ
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	for i > 0 && digit(a[i-1]) {
		i--
	}
	number := func(s string) string {
		n := 0
		for n < len(s) && digit(s[n]) {
			n++
		}
		return strings.TrimLeft(s[:n], "0")
	}
	if i < len(a) && i < len(b) && digit(a[i]) && digit(b[i]) {
		x, y := number(a[i:]), number(b[i:])
		if order := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); order != 0 {
			return order
		}
	}
	return cmp.Compare(a, b)
}

// Few returns the first of some names, at most so many, and how many others there are.
func Few(names []string, most int) string {
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Thousands separates the thousands of a whole number: "-1,204".
func Thousands(number string) string {
	first := 0
	if strings.HasPrefix(number, "-") {
		first = 1
	}
	for i := len(number) - 3; i > first; i -= 3 {
		number = number[:i] + "," + number[i:]
	}
	return number
}
