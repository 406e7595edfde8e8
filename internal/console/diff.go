package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/redrive-mq/redrive/internal/decode"
)

const (
	diffBytes  = 1 << 20 // of each body that are compared
	diffText   = 256 << 10
	mostFields = 1000
	fieldText  = 1000
)

// bytesDiff is how two bodies differ, as a unified diff of lines of up to 16 bytes
// in hex. A line ends after bytes that often end something, so that what follows an
// insertion lines up again.
func bytesDiff(was, is []byte) string {
	d := diff.Diff("before", hexLines(was), "after", hexLines(is))
	if d == nil && string(was) != string(is) {
		return fmt.Sprintf("the first %d KiB are equal", diffBytes>>10)
	}
	if _, after, ok := strings.Cut(string(d), "\n"); ok { // without the line "diff before after"
		d = []byte(after)
	}
	if len(d) > diffText {
		d = append(d[:diffText], "\n…"...)
	}
	return string(d)
}

func hexLines(b []byte) []byte {
	b = b[:min(len(b), diffBytes)]
	var out []byte
	for len(b) > 0 {
		n := min(len(b), 16)
		for i, x := range b[:n] {
			if strings.IndexByte("\n,;>}\x00", x) >= 0 {
				n = i + 1
				break
			}
		}
		out = fmt.Appendf(out, "%-47s  ", fmt.Sprintf("% x", b[:n]))
		for _, x := range b[:n] {
			if x < ' ' || x > '~' {
				x = '.'
			}
			out = append(out, x)
		}
		out, b = append(out, '\n'), b[n:]
	}
	return out
}

// fieldsDiff is how decoded bodies and headers differ, field by field.
func fieldsDiff(was, is *decode.Result, headersWere, headers amqp.Table) []Change {
	before, after := map[string]string{}, map[string]string{}
	flatten(before, "body", was.Value)
	flatten(after, "body", is.Value)
	if was.Value == nil && is.Value == nil && was.Text != is.Text {
		before["body"], after["body"] = was.Text, is.Text
	}
	flatten(before, "header", headersWere)
	flatten(after, "header", headers)
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	var all []Change
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		a, had := before[p]
		b, has := after[p]
		if a == b && had == has {
			continue
		}
		if len(all) == mostFields {
			return append(all, Change{Path: "…", After: "there are more differences"})
		}
		all = append(all, Change{Path: p, Before: short(a), After: short(b)})
	}
	return all
}

// flatten gives each leaf its path and its value as JSON.
func flatten(into map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			flatten(into, path+"."+k, e)
		}
		if len(v) == 0 && path != "header" {
			into[path] = "{}"
		}
	case amqp.Table:
		flatten(into, path, map[string]any(v))
	case []any:
		for i, e := range v {
			flatten(into, fmt.Sprintf("%s[%d]", path, i), e)
		}
		if len(v) == 0 {
			into[path] = "[]"
		}
	case nil:
		if path != "body" { // no structure, or nothing
			into[path] = "null"
		}
	case time.Time:
		into[path] = v.UTC().Format(time.RFC3339)
	case []byte:
		into[path] = fmt.Sprintf("%x", v)
	case string:
		into[path] = v
	default:
		b, err := json.Marshal(v)
		if err != nil {
			b = fmt.Append(nil, v)
		}
		into[path] = string(b)
	}
}

func short(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if utf8.RuneCountInString(s) <= fieldText {
		return s
	}
	return string([]rune(s)[:fieldText]) + "…"
}
