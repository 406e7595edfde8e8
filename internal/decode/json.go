package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonReader reads JSON that is valid into a value. encoding/json itself replaces what is
// not UTF-8, forgets duplicates and where a value stood, and goes 10,000 deep.
type jsonReader struct {
	s  []byte
	at int
	b  *budget
}

// parseJSON reads JSON strictly, but for texts that are not UTF-8.
func parseJSON(s []byte, b *budget) (*value, error) {
	if !json.Valid(s) {
		return nil, syntaxError(s)
	}
	p := &jsonReader{s: s, b: b}
	v, err := p.value(0)
	return &v, err
}

// syntaxError says where and why JSON is not valid.
func syntaxError(s []byte) error {
	err := json.Unmarshal(s, new(json.RawMessage))
	var at *json.SyntaxError
	before := s
	switch {
	case !errors.As(err, &at):
		return err
	case strings.Contains(err.Error(), "max depth"):
		return errNesting
	case !strings.HasPrefix(err.Error(), "unexpected end"):
		before = s[:at.Offset-1]
	}
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

const jsonSpace = " \t\r\n"

// next is the first byte that is no space, from which on reading continues.
func (p *jsonReader) next() byte {
	for strings.IndexByte(jsonSpace, p.s[p.at]) >= 0 {
		p.at++
	}
	return p.s[p.at]
}

func (p *jsonReader) value(depth int) (v value, err error) {
	if err := p.b.take(depth); err != nil {
		return v, err
	}
	c := p.next()
	start := p.at
	switch c {
	case '{', '[':
		v, err = p.list(depth, c)
	case '"':
		v.kind, v.text = text, p.text()
	default:
		for p.at < len(p.s) && strings.IndexByte(jsonSpace+",]}", p.s[p.at]) < 0 {
			p.at++
		}
		switch c {
		case 'n':
		case 't', 'f':
			v.kind, v.text = boolean, string(p.s[start:p.at])
		default:
			v.kind, v.text = number, string(p.s[start:p.at])
		}
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
	for p.next() != end {
		if v.kind == object {
			start := p.at
			k := p.text()
			v.keys = append(v.keys, key{text: k, raw: p.s[start:p.at]})
			p.next()
			p.at++ // the colon
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		if p.next() == ',' {
			p.at++
		}
	}
	p.at++
	return v, nil
}

func (p *jsonReader) text() string {
	start, escaped := p.at+1, false
	for p.at++; p.s[p.at] != '"'; p.at++ {
		if p.s[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	typed := p.s[start : p.at-1]
	if !escaped {
		return string(typed)
	}
	return string(unescaped(typed))
}

// unescaped is a text without its escapes. Half a surrogate pair becomes U+FFFD.
func unescaped(typed []byte) (out []byte) {
	for i := 0; i < len(typed); i++ {
		if typed[i] != '\\' {
			out = append(out, typed[i])
			continue
		}
		i++
		if c := typed[i]; c != 'u' {
			out = append(out, "\"\\/\b\f\n\r\t"[strings.IndexByte(`"\/bfnrt`, c)])
			continue
		}
		r := codeUnit(typed[i+1:])
		i += 4
		if low := typed[i+1:]; utf16.IsSurrogate(r) && bytes.HasPrefix(low, []byte(`\u`)) {
			if r = utf16.DecodeRune(r, codeUnit(low[2:])); r != utf8.RuneError {
				i += 6
			}
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

// codeUnit reads four hexadecimal digits.
func codeUnit(digits []byte) rune {
	v, _ := strconv.ParseUint(string(digits[:4]), 16, 32)
	return rune(v)
}

// looksJSON tells whether it begins as an object or a list does: a lone number or word is JSON only
// where the message says so.
func looksJSON(s []byte) bool {
	s = bytes.TrimLeft(s, jsonSpace)
	return len(s) > 0 && (s[0] == '{' || s[0] == '[')
}

func (r *reading) json(said bool) bool {
	if !said && !looksJSON(r.data) {
		return false
	}
	v, err := parseJSON(r.data, r.budget())
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
		out := []byte(document)
		if !valid {
			out = unshown(document)
		}
		v, err := parseJSON(out, r.budget())
		if err != nil {
			return nil, nil, fmt.Errorf("not JSON: %w", err)
		}
		checks := []string{"JSON, " + v.describe()}
		if d := v.duplicates(); d != "" {
			checks = append(checks, fmt.Sprintf("%q is there twice", d))
		}
		return out, checks, nil
	}
	return true
}
