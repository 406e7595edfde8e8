// Package digits writes numbers for people.
package digits

import "strings"

// Group separates the thousands of a whole number: "-1,204".
func Group(number string) string {
	first := 0
	if strings.HasPrefix(number, "-") {
		first = 1
	}
	for i := len(number) - 3; i > first; i -= 3 {
		number = number[:i] + "," + number[i:]
	}
	return number
}
