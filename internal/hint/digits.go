package hint

import (
	"fmt"
	"strings"
)

// Size is bytes for people.
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
