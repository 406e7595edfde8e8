package hint

import "strings"

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
