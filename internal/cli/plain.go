package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// plain makes foreign text safe for a terminal: no control or invisible
// characters, which could move the cursor, hide text or run commands.
func plain(s string) string { return strings.ReplaceAll(plainLines(s), "\n", "\uFFFD") }

// cell is a text in a table, which tableWriter cuts where it does not fit.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return cut(plain(s), longestOnRow)
}

// lines writes a text of several lines, each of them plain.
func lines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")
		if _, err := fmt.Fprintln(w, plain(line)); err != nil {
			return err
		}
	}
	return nil
}

// harmless escapes in JSON all characters that control a terminal: encoding/json leaves some
// of them, and those that change the direction of text. The JSON means the same.
func harmless(s string) string {
	var out strings.Builder
	for _, c := range s {
		switch {
		case c == '\n' || unicode.IsPrint(c):
			out.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String()
}

// jsonOf is v as harmless JSON that ends its line.
func jsonOf(v any, indent string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return harmless(b.String()), nil
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// harmlessWriter passes text through to, which makes it harmless, whole characters at a time.
type harmlessWriter struct {
	w    io.Writer
	to   func(string) string
	part []byte // of a character
}

func (h *harmlessWriter) Write(b []byte) (int, error) {
	text := append(h.part, b...)
	whole := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if tail := text[len(text)-i:]; utf8.RuneStart(tail[0]) && !utf8.FullRune(tail) {
			whole = len(text) - i
			break
		}
	}
	h.part = bytes.Clone(text[whole:])
	if _, err := io.WriteString(h.w, h.to(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// plainLines is plain for a text of lines.
func plainLines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
