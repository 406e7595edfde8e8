package hint

import (
	"fmt"
	"strings"
)

// Meant asks whether the nearest of names was meant; "" if none is near.
func Meant(name string, names []string) string {
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}

// Nearest returns the first of names that differs least from name, of which case does not count; "" if all differ by
// more than two letters, or wholly.
func Nearest(name string, names []string) string {
	name = strings.ToLower(name)
	for n := range min(3, len(name)) {
		for _, other := range names {
			if near(name, strings.ToLower(other), n) {
				return other
			}
		}
	}
	return ""
}

// near reports whether a becomes b when at most n letters are added, taken away or changed.
func near(a, b string, n int) bool {
	switch {
	case n < 0:
		return false
	case a == "" || b == "":
		return len(a)+len(b) <= n
	case a[0] == b[0]:
		return near(a[1:], b[1:], n)
	}
	return near(a[1:], b, n-1) || near(a, b[1:], n-1) || near(a[1:], b[1:], n-1)
}
