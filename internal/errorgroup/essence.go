package errorgroup

import (
	"strings"
	"unicode/utf8"
)

const (
	// A client may send an error of any length.
	maxLine = 240     // bytes used of a line
	maxText = 8 << 10 // bytes searched for lines
)

// tellingLines returns the two lines that tell most about an error: the first line; and its root
// cause, the first line of its stack, or the line after a first line that ends with a colon. Of a
// Python traceback it returns the last line alone.
func tellingLines(s string) (first, second string) {
	s = strings.TrimLeft(s, " \t\r\n")
	if strings.HasPrefix(s, "Traceback (most recent call last)") {
		s = strings.TrimRight(s[max(0, len(s)-maxText):], " \t\r\n")
		return cut(strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])), ""
	}
	s = s[:min(len(s), maxText)]
	first, rest, more := strings.Cut(s, "\n")
	first = strings.TrimRight(first, " \t\r")
	if !more {
		return cut(first), ""
	}
	// Searching forward is many times faster than searching backward.
	const cause = "\nCaused by: "
	root := ""
	for at := strings.Index(s, cause); at >= 0; at = strings.Index(s, cause) {
		s = s[at+1:]
		root, _, _ = strings.Cut(s, "\n")
	}
	if root != "" {
		return cut(first), cut(strings.TrimSpace(root))
	}
	for range 4 {
		line, after, more := strings.Cut(rest, "\n")
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "at "):
			return cut(first), cut(line)
		case strings.HasPrefix(line, "goroutine "):
			line, _, _ = strings.Cut(after, "\n")
			return cut(first), cut(strings.TrimSpace(line))
		case line != "" && strings.HasSuffix(first, ":"):
			return cut(first), cut(line)
		}
		if rest = after; !more {
			break
		}
	}
	return cut(first), ""
}

// cut shortens a line at a space: half a number or id would not be recognised as one.
func cut(line string) string {
	if len(line) <= maxLine {
		return line
	}
	line = line[:maxLine]
	if at := strings.LastIndexAny(line, " \t"); at > maxLine/2 {
		return line[:at]
	}
	for i := 0; i < utf8.UTFMax && !utf8.ValidString(line[len(line)-i:]); i++ {
		if utf8.RuneStart(line[len(line)-i-1]) {
			return line[:len(line)-i-1]
		}
	}
	return line
}

// Exception returns the exception type at the start of an error's text, as most languages write it:
// "System.TimeoutException: …", "app.errors.NotFound: …", "*url.Error: …". "" where there is none.
func Exception(text string) string {
	first, _ := tellingLines(text)
	name, _, _ := strings.Cut(first, ": ")
	name = strings.TrimSuffix(name, ":")
	if strings.ContainsAny(name, " \t\"'()[]{}") || len(name) == maxLine {
		return ""
	}
	return name
}

// ExceptionName returns an exception's type without its package or namespace.
func ExceptionName(exception string) string {
	return exception[strings.LastIndexAny(exception, `.:\/$+*`)+1:]
}
