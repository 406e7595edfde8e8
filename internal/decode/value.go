package decode

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	unicodes "golang.org/x/text/encoding/unicode"
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

// value is a part of a document of any format: the types of JSON, in the order of the document, with duplicate keys.
type value struct {
	kind  kind
	text  string // the literal of a number or boolean; a text, perhaps not UTF-8
	items []value
	keys  []key  // of an object, one for each item
	raw   []byte // of JSON, as typed
}

type key struct {
	text string
	raw  []byte
}

// values converts the document for queries: exact, in Go's own types.
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

// describe describes a document for people.
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

// duplicates returns the path of the first duplicate key, or "".
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

// printer writes a document as indented JSON, up to the limit of a text. encoding/json would lose duplicate keys,
// digits of numbers, and bytes that are not UTF-8.
type printer struct {
	b        []byte
	verbatim bool // raw is JSON: texts stay as typed
	compact  bool // on one line
}

func (p *printer) full() bool { return len(p.b) > maxOutput }

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

// shown returns a text as valid UTF-8, with other bytes as \xHH, up to maxOutput.
func shown(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b []byte
	for i := 0; i < len(s) && len(b) <= maxOutput; {
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

func cut(s string) (text string, more bool) {
	if len(s) <= maxOutput {
		return s, false
	}
	return strings.ToValidUTF8(s[:maxOutput], ""), true // without half a character
}

func (r *reading) document(format string, v *value, verbatim bool) {
	p := printer{verbatim: verbatim}
	p.value(v, 0)
	r.result.Format, r.result.Value = format, v.values()
	r.result.Text, r.result.Truncated = cut(string(p.b))
}

// A value that JSON cannot express is an object with one of these keys:
//
//	{"$bytes": "base64"}              bytes
//	{"$float": "NaN"}                 NaN, Infinity, -Infinity
//	{"$time": "2026-11-21T10:00:00Z"} a time
//	{"$ext": 5, "$bytes": "base64"}   MessagePack's other extensions
//	{"$tag": 32, "$value": …}         CBOR's other tags
//	{"$simple": 16}                   its simple values
const (
	keyBytes, keyFloat, keyTime, keyExt  = "$bytes", "$float", "$time", "$ext"
	keyTag, keyValue, keySimple          = "$tag", "$value", "$simple"
	infinity, negativeInfinity, notANumb = "Infinity", "-Infinity", "NaN"
)

func special(pairs ...any) value {
	v := value{kind: object}
	for i := 0; i < len(pairs); i += 2 {
		item := pairs[i+1]
		if s, ok := item.(string); ok {
			item = value{kind: text, text: s}
		}
		v.keys, v.items = append(v.keys, key{text: pairs[i].(string)}), append(v.items, item.(value))
	}
	return v
}

func bytesValue(b []byte) value { return special(keyBytes, base64.StdEncoding.EncodeToString(b)) }

func integer[T int64 | uint64](n T) value { return value{kind: number, text: fmt.Sprint(n)} }

// float writes 1.0 with its point, so that it stays a float.
func float(f float64, bits int) value {
	switch {
	case math.IsNaN(f):
		return special(keyFloat, notANumb)
	case math.IsInf(f, 1):
		return special(keyFloat, infinity)
	case math.IsInf(f, -1):
		return special(keyFloat, negativeInfinity)
	}
	s := strconv.FormatFloat(f, 'g', -1, bits)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return value{kind: number, text: s}
}

// keyOf returns a map's key as a text; a key of another type as JSON. It refuses lists and nested
// maps: each level would double the escapes.
func keyOf(v *value) (key, error) {
	switch v.kind {
	case text:
		return key{v.text, v.raw}, nil
	case array:
		return key{}, errKey
	}
	for i := range v.items {
		if k := v.items[i].kind; k == array || k == object {
			return key{}, errKey
		}
	}
	p := printer{compact: true}
	p.value(v, 0)
	return key{string(p.b), v.raw}, nil
}

var errKey = errors.New("a key is a list or a map")

// convincing reports whether a document may be MessagePack or CBOR though the content type does not
// say so: it needs texts or named keys, since half of all bytes are a number in both.
func convincing(v *value) bool {
	switch v.kind {
	case object:
		for _, k := range v.keys {
			if k.text == "" || !isText([]byte(k.text)) || strings.HasPrefix(k.text, "{") {
				return false
			}
		}
		return len(v.keys) > 0
	case array:
		for i := range v.items {
			if it := &v.items[i]; it.kind == text && len(it.text) > 3 && isText([]byte(it.text)) || convincing(it) {
				return true
			}
		}
	}
	return false
}

// packedLeaf makes a document the result. It cannot be edited: the libraries lose which of
// several encodings a value had.
func (r *reading) packedLeaf(format, name string, said bool, read func() (v value, twice string, err error)) bool {
	v, twice, err := read()
	if err == nil && !said && !convincing(&v) {
		return false
	}
	if err != nil {
		if said {
			r.step(format, fmt.Sprintf("not read as %s: %v", name, err))
		}
		return false
	}
	found := name + ", " + v.describe()
	if twice != "" {
		found += fmt.Sprintf("; %q is there twice", twice)
	}
	r.document(format, &v, false)
	r.step(format, found)
	return true
}

var shownByte = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// unshown reverses shown: each \xHH becomes a byte.
func unshown(s string) []byte {
	return shownByte.ReplaceAllFunc([]byte(s), func(b []byte) []byte {
		c, _ := strconv.ParseUint(string(b[2:]), 16, 8)
		return []byte{byte(c)}
	})
}

var xmlCharset = regexp.MustCompile(`^<\?xml [^>]*encoding=["']([^"']+)`)

// isText reports whether bytes are UTF-8 that people can read.
func isText(s []byte) bool { return utf8.Valid(s) && readable(s, 0) }

// readable reports whether at most bad bytes are unprintable.
func readable(s []byte, bad int) bool {
	for len(s) > 0 && bad >= 0 {
		c, size := rune(s[0]), 1
		if c >= utf8.RuneSelf {
			c, size = utf8.DecodeRune(s)
		}
		switch {
		case c >= ' ' && c < 0x7f, c == '\n', c == '\r', c == '\t', c == '\x1b':
		case c < utf8.RuneSelf, c == utf8.RuneError && size == 1, !unicode.IsGraphic(c) && !unicode.Is(unicode.Cf, c):
			bad -= size
		}
		s = s[size:]
	}
	return bad >= 0
}

// recode converts text in another charset to UTF-8, and removes a byte order mark.
func (r *reading) recode() bool {
	if r.charset || len(r.data) > maxOutput {
		return false
	}
	name := strings.ToLower(r.params["charset"])
	if m := xmlCharset.FindSubmatch(r.data[:min(len(r.data), 100)]); m != nil && name == "" {
		name = strings.ToLower(string(m[1]))
	}
	mark, from := "", encoding.Nop
	little, big := unicodes.UTF16(unicodes.LittleEndian, unicodes.IgnoreBOM),
		unicodes.UTF16(unicodes.BigEndian, unicodes.IgnoreBOM)
	even := len(r.data)%2 == 0
	switch {
	case bytes.HasPrefix(r.data, []byte("\xef\xbb\xbf")):
		mark, name = "\xef\xbb\xbf", "UTF-8"
	case bytes.HasPrefix(r.data, []byte("\xff\xfe")) && even:
		mark, name, from = "\xff\xfe", "UTF-16, little endian", little
	case bytes.HasPrefix(r.data, []byte("\xfe\xff")) && even:
		mark, name, from = "\xfe\xff", "UTF-16, big endian", big
	case name == "utf-16le" || name != "utf-16be" && zeros(r.data, 1):
		name, from = "UTF-16, little endian", little
	case name == "utf-16be" || name == "utf-16" || zeros(r.data, 0):
		name, from = "UTF-16, big endian", big
	case (name == "iso-8859-1" || name == "latin1") &&
		!utf8.Valid(r.data): // valid UTF-8 is ASCII, or the charset is wrong
		name, from = "ISO-8859-1", charmap.ISO8859_1
	default:
		return false
	}
	coded := r.data[len(mark):]
	out, err := from.NewDecoder().Bytes(coded)
	again, errAgain := from.NewEncoder().Bytes(out)
	if err != nil || errAgain != nil || !bytes.Equal(again, coded) || len(out) > maxOutput ||
		!isText(out) && from != charmap.ISO8859_1 {
		return false
	}
	found := name + " text"
	if mark != "" {
		found += " that begins with a byte order mark"
	}
	r.inside("text", found, out, func(inner []byte) ([]byte, error) {
		coded, err := from.NewEncoder().Bytes(inner)
		if err != nil || !utf8.Valid(inner) {
			return nil, errors.New("the text has characters that are not in " + name)
		}
		return append([]byte(mark), coded...), nil
	})
	r.charset = true
	return true
}

// zeros reports whether the first (0) or the second (1) byte of pairs is often zero and the other never, as in UTF-16
// of western text.
func zeros(s []byte, which int) bool {
	if len(s) < 8 || len(s)%2 != 0 {
		return false
	}
	var n [2]int
	for i, c := range s[:min(len(s), 1<<10)] {
		if c == 0 {
			n[i%2]++
		}
	}
	return n[which] > min(len(s), 1<<10)/3 && n[1-which] == 0
}

// text accepts mostly readable bytes, or any bytes where the content type says text.
func (r *reading) text(said bool) bool {
	start := r.data[:min(len(r.data), maxOutput)]
	valid := utf8.Valid(r.data)
	if !said && !isText(start) {
		// Accept a line in another charset, or with a few damaged bytes; text has no NUL.
		if bytes.IndexByte(start, 0) >= 0 || !readable(start, len(start)/10) {
			return false
		}
	}
	r.result.Format = "text"
	r.result.Text, r.result.Truncated = cut(shown(string(start)))
	r.result.Truncated = r.result.Truncated || len(r.data) > maxOutput
	found := "UTF-8 text"
	if !valid {
		found = `text with bytes that are not UTF-8, shown as \xHH`
	}
	r.step("text", found)
	ambiguous := !valid && shownByte.Match(r.data)
	r.encode = func(document string) ([]byte, []string, error) {
		switch {
		case ambiguous:
			return nil, nil, errors.New(`the body has bytes that are not UTF-8, and also the text \xHH that they ` +
				`are shown as: edit its raw bytes elsewhere`)
		case valid:
			return []byte(document), []string{"text"}, nil
		}
		return unshown(document), []string{`text; \xHH is a byte again`}, nil
	}
	return true
}
