package actions

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
	var d fields
	if was.Value == nil && is.Value == nil {
		d.compare("body", was.Text, is.Text)
	} else {
		d.compare("body", orNone(was.Value), orNone(is.Value))
	}
	d.compare("header", orNone(headersWere), orNone(headers))
	return d.all
}

// fields finds where two documents differ. Its paths are as long as people read, and
// made only where something differs: a key may have a megabyte, and a thousand below it.
type fields struct{ all []Change }

// none is what is not there: what only the other has, a body without structure, and
// a table without headers.
type none struct{}

func orNone(v any) any {
	if t, ok := v.(amqp.Table); v == nil || ok && len(t) == 0 {
		return none{}
	}
	return v
}

// longestPath is how many bytes of a path are shown.
const longestPath = 500

func (d *fields) compare(path string, a, b any) {
	if len(d.all) > mostFields {
		return
	}
	if len(path) > longestPath {
		path = strings.ToValidUTF8(path[:longestPath], "") + "…"
	}
	switch aIs, bIs := shapeOf(a), shapeOf(b); {
	case aIs == aMap && (bIs == aMap || bIs == absent), aIs == absent && bIs == aMap:
		am, bm := asMap(a), asMap(b)
		names := slices.AppendSeq(slices.Collect(maps.Keys(am)), maps.Keys(bm))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			d.compare(path+"."+name, member(am, name), member(bm, name))
		}
	case aIs == aList && (bIs == aList || bIs == absent), aIs == absent && bIs == aList:
		al, _ := a.([]any)
		bl, _ := b.([]any)
		for i := range max(len(al), len(bl)) {
			d.compare(fmt.Sprintf("%s[%d]", path, i), nth(al, i), nth(bl, i))
		}
	case aIs != bIs && aIs != absent && bIs != absent:
		d.compare(path, a, none{})
		d.compare(path, none{}, b)
	default:
		d.leaf(path, a, b)
	}
}

func (d *fields) leaf(path string, a, b any) {
	before, after := leafText(a), leafText(b)
	switch {
	case shapeOf(a) == shapeOf(b) && before == after:
	case len(d.all) == mostFields:
		d.all = append(d.all, Change{Path: "…", After: "there are more differences"})
	default:
		d.all = append(d.all, Change{Path: path, Before: Short(before), After: Short(after)})
	}
}

type shape int

const (
	absent shape = iota
	aLeaf        // also what is empty
	aMap
	aList
)

func shapeOf(v any) shape {
	list, _ := v.([]any)
	switch {
	case v == none{}:
		return absent
	case len(asMap(v)) > 0:
		return aMap
	case len(list) > 0:
		return aList
	}
	return aLeaf
}

func asMap(v any) map[string]any {
	if t, ok := v.(amqp.Table); ok {
		return t
	}
	m, _ := v.(map[string]any)
	return m
}

func member(m map[string]any, name string) any {
	if v, ok := m[name]; ok {
		return v
	}
	return none{}
}

func nth(l []any, i int) any {
	if i < len(l) {
		return l[i]
	}
	return none{}
}

func leafText(v any) string {
	switch v := v.(type) {
	case none:
		return ""
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case []byte:
		return fmt.Sprintf("%x", v)
	case string:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		b = fmt.Append(nil, v)
	}
	return string(b)
}

// Short is the beginning of a text that comes from a message.
func Short(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if utf8.RuneCountInString(s) <= fieldText {
		return s
	}
	return string([]rune(s)[:fieldText]) + "…"
}
