package retry

import (
	"strings"
	"testing"
)

// Text for people keeps what is UTF-8, shows other bytes, and has at most maxText bytes.
func TestTextForPeople(t *testing.T) {
	full := strings.Repeat("x", maxText)
	for s, want := range map[string]string{
		"":                      "",
		"größe":                 "größe",
		"a\xffb":                `a\xffb`,
		"\uFFFD":                "\uFFFD", // the character itself, and no byte that is not UTF-8
		"\xc3":                  `\xc3`,
		full:                    full,
		full + "y":              full,
		full[1:] + "ö":          full[1:],
		full[2:] + "ö":          full[2:] + "ö",
		full[3:] + "\xffyy":     full[3:],
		full[4:] + "\xff":       full[4:] + `\xff`,
		strings.Repeat(full, 3): full,
	} {
		if got := printable(s); got != want {
			t.Errorf("%.20q…, %d bytes: %.20q…, %d bytes; want %.20q…, %d", s, len(s), got, len(got), want, len(want))
		}
	}
}
