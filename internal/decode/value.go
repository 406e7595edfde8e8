package decode

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

type kind byte

const (
	null kind = iota
	boolean
	number
	text
	array
	object
)

// value is a piece of a document in whatever format: what JSON can say, in the
// order of the document, with duplicate keys.
type value struct {
	kind  kind
	text  string // of a number or boolean its literal; of a text itself, perhaps not UTF-8
	items []value
	keys  []key  // of an object, one for each item
	raw   []byte // of JSON, as it is typed
}

type key struct {
	text string
	raw  []byte
}

// values are the document for queries: exact, and made of Go's own types alone.
func (v *value) values() any {
	switch v.kind {
	case boolean:
		return v.text == "true"
	case number:
		return json.Number(v.text)
	case text:
		return shown(v.text)
	case array:
		out := make([]any, len(v.items))
		for i := range v.items {
			out[i] = v.items[i].values()
		}
		return out
	case object:
		out := make(map[string]any, len(v.items))
		for i := range v.items {
			out[shown(v.keys[i].text)] = v.items[i].values()
		}
		return out
	}
	return nil
}

// describe says what a document is, for people.
func (v *value) describe() string {
	switch v.kind {
	case array:
		return fmt.Sprintf("a list of %d", len(v.items))
	case object:
		if len(v.items) == 1 {
			return "an object with 1 key"
		}
		return fmt.Sprintf("an object with %d keys", len(v.items))
	}
	return [...]string{"null", "a boolean", "a number", "a text"}[v.kind]
}

// duplicates names the first key that an object has twice.
func (v *value) duplicates() string {
	seen := map[string]bool(nil)
	if len(v.keys) > 8 {
		seen = make(map[string]bool, len(v.keys))
	}
	for i := range v.items {
		if v.kind == object {
			k := v.keys[i].text
			twice := seen[k]
			if seen != nil {
				seen[k] = true
			} else {
				twice = slices.ContainsFunc(v.keys[:i], func(o key) bool { return o.text == k })
			}
			if twice {
				return shown(k)
			}
		}
		if d := v.items[i].duplicates(); d != "" && v.kind == object {
			return path(shown(v.keys[i].text), d)
		} else if d != "" {
			return path(fmt.Sprintf("[%d]", i), d)
		}
	}
	return ""
}

func path(at, name string) string {
	name = shown(name)
	if at == "" || strings.HasPrefix(name, "[") {
		return at + name
	}
	return at + "." + name
}

// printer writes a document as indented JSON, up to the limit of a text. encoding/json would
// lose keys that are there twice, the digits of numbers, and bytes that are not UTF-8.
type printer struct {
	b        []byte
	verbatim bool // raw is JSON: texts stay as they are typed
	compact  bool // in one line
}

func (p *printer) full() bool { return len(p.b) > mostOutput }

func (p *printer) line(depth int) {
	if p.compact {
		return
	}
	p.b = append(p.b, '\n')
	for range depth {
		p.b = append(p.b, "  "...)
	}
}

func (p *printer) value(v *value, depth int) {
	switch v.kind {
	case null:
		p.b = append(p.b, "null"...)
	case text:
		p.text(v.text, v.raw)
	case array, object:
		brackets := "[]"
		if v.kind == object {
			brackets = "{}"
		}
		p.b = append(p.b, brackets[0])
		for i := range v.items {
			if p.full() {
				return
			}
			if i > 0 {
				p.b = append(p.b, ',')
			}
			p.line(depth + 1)
			if v.kind == object {
				p.text(v.keys[i].text, v.keys[i].raw)
				p.b = append(p.b, ": "...)
			}
			p.value(&v.items[i], depth+1)
		}
		if len(v.items) > 0 {
			p.line(depth)
		}
		p.b = append(p.b, brackets[1])
	default:
		p.b = append(p.b, v.text...)
	}
}

func (p *printer) text(s string, raw []byte) {
	if p.verbatim {
		p.b = append(p.b, shown(string(raw))...)
		return
	}
	p.b = append(p.b, '"')
	for i := 0; i < len(s) && !p.full(); {
		c, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case c == utf8.RuneError && n == 1:
			p.b = showByte(p.b, s[i])
		case c == '"' || c == '\\':
			p.b = append(p.b, '\\', byte(c))
		case c == '\n':
			p.b = append(p.b, `\n`...)
		case c < ' ' || c == 0x7f:
			p.b = fmt.Appendf(p.b, `\u%04x`, c)
		default:
			p.b = append(p.b, s[i:i+n]...)
		}
		i += n
	}
	p.b = append(p.b, '"')
}

// shown is a text as valid UTF-8, as far as a text may go.
func shown(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b []byte
	for i := 0; i < len(s) && len(b) <= mostOutput; {
		c, n := utf8.DecodeRuneInString(s[i:])
		if c == utf8.RuneError && n == 1 {
			b = showByte(b, s[i])
		} else {
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return string(b)
}

func showByte(b []byte, c byte) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'x', digits[c>>4], digits[c&15])
}

// cut returns as much of a text as a result may have, and whether there is more.
func cut(s string) (string, bool) {
	if len(s) <= mostOutput {
		return s, false
	}
	return strings.ToValidUTF8(s[:mostOutput], ""), true // without half a character
}

// document makes v the result.
func (r *reading) document(format string, v *value, verbatim bool) {
	p := printer{verbatim: verbatim}
	p.value(v, 0)
	r.result.Format, r.result.Value = format, v.values()
	r.result.Text, r.result.Truncated = cut(string(p.b))
}
