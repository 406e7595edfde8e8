package webui

import (
	"fmt"
	"strings"
)

// command is a command line with its words quoted for a shell: people paste it.
func command(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellWord(w)
	}
	return strings.Join(quoted, " ")
}

// positional is a query as an argument: one that begins with a - is no flag.
func positional(query string) []string {
	switch {
	case query == "":
		return nil
	case strings.HasPrefix(query, "-"):
		return []string{"--", query}
	}
	return []string{query}
}

// plain tells whether a text has only letters of ASCII, digits and some other characters.
func plain(s, others string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

// shellWord quotes a word for a shell, if it has to be.
func shellWord(s string) string {
	switch {
	case plain(s, "._-/:=,@%+"):
		return s
	case clean(s) == s && !strings.ContainsAny(s, "\n\t"):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	// A terminal acts on control characters as they are pasted, quoted or not.
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}
