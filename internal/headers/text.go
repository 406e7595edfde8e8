package headers

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Printable returns text for people, of at most most bytes: bytes that are not UTF-8 become \xNN.
func Printable(s string, most int) string {
	if len(s) <= most && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		piece := s[:size]
		if r == utf8.RuneError && size == 1 {
			piece = fmt.Sprintf(`\x%02x`, s[0])
		}
		if b.Len()+len(piece) > most {
			break
		}
		b.WriteString(piece)
		s = s[size:]
	}
	return b.String()
}
