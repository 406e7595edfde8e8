package decode

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonReader reads JSON strictly, but for texts that are not UTF-8. encoding/json
// replaces what is not UTF-8, forgets duplicates and where a value stood, and goes
// 10,000 deep.
type jsonReader struct {
	s  []byte
	at int
	b  *budget
	// bytes: \xHH is a byte, as Text shows one that is not UTF-8.
	bytes bool
}

func parseJSON(s []byte, b *budget, bytes bool) (*value, error) {
	p := &jsonReader{s: s, b: b, bytes: bytes}
	v, err := p.value(0)
	if err == nil {
		if p.space(); p.at < len(s) {
			err = p.unexpected("after the end of the document")
		}
	}
	if err != nil {
		line := 1 + bytesCount(s[:p.at], '\n')
		column := 1 + utf8.RuneCount(s[bytesLast(s[:p.at], '\n')+1:p.at])
		return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return &v, nil
}

func bytesCount(s []byte, c byte) int { return bytes.Count(s, []byte{c}) }
func bytesLast(s []byte, c byte) int  { return bytes.LastIndexByte(s, c) }

func (p *jsonReader) space() {
	for p.at < len(p.s) && (p.s[p.at] == ' ' || p.s[p.at] == '\n' || p.s[p.at] == '\r' || p.s[p.at] == '\t') {
		p.at++
	}
}

func (p *jsonReader) peek() byte {
	if p.at < len(p.s) {
		return p.s[p.at]
	}
	return 0
}

func (p *jsonReader) unexpected(where string) error {
	if p.at >= len(p.s) {
		return errors.New("it ends " + where)
	}
	c, n := utf8.DecodeRune(p.s[p.at:])
	if c == utf8.RuneError && n == 1 {
		return fmt.Errorf(`\x%02x %s`, p.s[p.at], where)
	}
	return fmt.Errorf("%q %s", c, where)
}

func (p *jsonReader) value(depth int) (v value, err error) {
	if err := p.b.take(depth); err != nil {
		return v, err
	}
	p.space()
	start := p.at
	switch c := p.peek(); {
	case c == '{' || c == '[':
		v, err = p.list(depth, c)
	case c == '"':
		v.kind = text
		v.text, err = p.text()
	case c == '-' || c >= '0' && c <= '9':
		v.kind = number
		err = p.number()
		v.text = string(p.s[start:p.at])
	default:
		for _, literal := range []string{"true", "false", "null"} {
			if bytes.HasPrefix(p.s[p.at:], []byte(literal)) {
				p.at += len(literal)
				if literal != "null" {
					v.kind, v.text = boolean, literal
				}
				v.raw = p.s[start:p.at]
				return v, nil
			}
		}
		err = p.unexpected("where a value should be")
	}
	v.raw = p.s[start:p.at]
	return v, err
}

func (p *jsonReader) list(depth int, open byte) (v value, err error) {
	v.kind = array
	end := byte(']')
	if open == '{' {
		v.kind, end = object, '}'
	}
	p.at++
	if p.space(); p.peek() == end {
		p.at++
		return v, nil
	}
	for {
		if v.kind == object {
			if p.space(); p.peek() != '"' {
				return v, p.unexpected("where a key in quotes should be")
			}
			start := p.at
			k, err := p.text()
			if err != nil {
				return v, err
			}
			v.keys = append(v.keys, key{text: k, raw: p.s[start:p.at]})
			if p.space(); p.peek() != ':' {
				return v, p.unexpected("where a colon should be")
			}
			p.at++
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		p.space()
		switch p.peek() {
		case ',':
			p.at++
		case end:
			p.at++
			return v, nil
		default:
			return v, p.unexpected(fmt.Sprintf("where a comma or %q should be", end))
		}
	}
}

func (p *jsonReader) digits() error {
	start := p.at
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.at++
	}
	if p.at == start {
		return p.unexpected("where a digit should be")
	}
	return nil
}

func (p *jsonReader) number() error {
	if p.peek() == '-' {
		p.at++
	}
	if p.peek() == '0' {
		p.at++
	} else if err := p.digits(); err != nil {
		return err
	}
	if p.peek() == '.' {
		p.at++
		if err := p.digits(); err != nil {
			return err
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		return p.digits()
	}
	return nil
}

func (p *jsonReader) text() (string, error) {
	p.at++
	start := p.at
	var out []byte // nil as long as nothing was escaped
	for p.at < len(p.s) {
		switch c := p.s[p.at]; {
		case c == '"':
			p.at++
			if out == nil {
				return string(p.s[start : p.at-1]), nil
			}
			return string(out), nil
		case c < ' ':
			return "", p.unexpected("in a text; it must be escaped")
		case c == '\\':
			if out == nil {
				out = append([]byte{}, p.s[start:p.at]...)
			}
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
		default:
			if out != nil {
				out = append(out, c)
			}
			p.at++
		}
	}
	return "", p.unexpected("in a text")
}

func (p *jsonReader) escape(out []byte) ([]byte, error) {
	p.at++
	c := p.peek()
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), c); i >= 0 && p.at < len(p.s) {
		p.at++
		return append(out, "\"\\/\b\f\n\r\t"[i]), nil
	}
	switch {
	case c == 'u':
		r, err := p.hex(4)
		if utf16.IsSurrogate(r) && err == nil {
			low, at := rune(-1), p.at
			if bytes.HasPrefix(p.s[p.at:], []byte(`\u`)) {
				p.at++
				low, err = p.hex(4)
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				p.at = at // half a pair, alone
			}
		}
		return utf8.AppendRune(out, r), err
	case c == 'x' && p.bytes:
		r, err := p.hex(2)
		return append(out, byte(r)), err
	}
	return out, p.unexpected("after a backslash")
}

// hex reads digits after the letter that announces them.
func (p *jsonReader) hex(n int) (rune, error) {
	p.at++
	if p.at+n > len(p.s) {
		p.at = len(p.s)
		return 0, p.unexpected("in an escaped character")
	}
	v, err := strconv.ParseUint(string(p.s[p.at:p.at+n]), 16, 32)
	if err != nil {
		return 0, p.unexpected("in an escaped character: not hexadecimal")
	}
	p.at += n
	return rune(v), nil
}

// looksJSON: an object or a list; no one would call a lone number or word JSON who
// does not say so.
func looksJSON(s []byte) bool {
	s = bytes.TrimLeft(s, " \t\r\n")
	return len(s) > 0 && (s[0] == '{' || s[0] == '[')
}

func (r *reading) json(said bool) bool {
	if !said && !looksJSON(r.data) {
		return false
	}
	v, err := parseJSON(r.data, r.budget(), false)
	if err != nil {
		if said || refused(err) {
			r.step("json", "not read as JSON: "+err.Error())
		}
		return false
	}
	valid := utf8.Valid(r.data)
	found := "JSON, " + v.describe()
	if d := v.duplicates(); d != "" {
		found += fmt.Sprintf("; %q is there twice, and readers differ on which counts", d)
	}
	if !valid {
		found += `; bytes that are not UTF-8 are shown as \xHH`
	}
	r.document("json", v, true)
	r.step("json", found)
	r.encode = func(document string) ([]byte, []string, error) {
		v, err := parseJSON([]byte(document), r.budget(), !valid)
		if err != nil {
			return nil, nil, fmt.Errorf("not JSON: %w", err)
		}
		checks := []string{"JSON, " + v.describe()}
		if d := v.duplicates(); d != "" {
			checks = append(checks, fmt.Sprintf("%q is there twice", d))
		}
		if valid {
			return []byte(document), checks, nil
		}
		return unshown(document), checks, nil
	}
	return true
}
