package notify

import (
	"strings"
	"unicode"
)

const (
	longestError = 200 // characters
	longestQueue = 120
	longestText  = 300
)

// clean makes hostile text one harmless line: no control, invisible or direction-changing
// characters, no mentions (@here, <!channel>), no links, at most most characters. A service's
// markup is left to its format.
func clean(s string, most int) string {
	if len(s) > 8*most { // 4 bytes a character, and as many that are left out
		s = s[:8*most]
	}
	var b strings.Builder
	n, space, marks := 0, false, 0
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if unicode.IsSpace(r) {
			space = n > 0
			continue
		}
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) {
			if marks++; marks > 2 || n == 0 {
				continue // they pile up over other lines
			}
		} else {
			marks = 0
		}
		switch {
		case unicode.Is(unicode.Cf, r):
			continue
		case r == '@':
			r = '＠'
		case r == '<': // <!channel>, <b>
			r = '‹'
		case r == '>':
			r = '›'
		case !unicode.IsPrint(r):
			r = '\uFFFD'
		}
		if space {
			b.WriteByte(' ')
			n, space = n+1, false
		}
		if n >= most {
			return unlinked(b.String()) + "…"
		}
		b.WriteRune(r)
		n++
	}
	return unlinked(b.String())
}

// unlinked keeps services from making links of what a message says.
func unlinked(s string) string { return strings.ReplaceAll(s, "://", "[:]//") }
