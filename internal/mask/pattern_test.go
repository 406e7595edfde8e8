package mask

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Addresses are found as the expression alone would find them.
func TestEmailsAreThoseOfTheExpression(t *testing.T) {
	whole := regexp.MustCompile(strings.TrimPrefix(email.String(), "^"))
	parts := []string{"a", "Ü", "1", "@", "@", "%40", "%", "4", "0", ".", "-", " ", "\n", "\xff", "#", "<", "\u0301", "x.org"}
	for range 200_000 {
		var s strings.Builder
		for range rand.IntN(12) {
			s.WriteString(parts[rand.IntN(len(parts))])
		}
		equal := slices.EqualFunc(emails(s.String()), whole.FindAllStringIndex(s.String(), -1), slices.Equal)
		if !equal {
			t.Fatalf("in %q: %v; the expression finds %v", s.String(), emails(s.String()),
				whole.FindAllStringIndex(s.String(), -1))
		}
	}
}
