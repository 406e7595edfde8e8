package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

var shownByte = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// unshown puts the bytes back that shown has written as \xHH.
func unshown(s string) []byte {
	return shownByte.ReplaceAllFunc([]byte(s), func(b []byte) []byte {
		c, _ := strconv.ParseUint(string(b[2:]), 16, 8)
		return []byte{byte(c)}
	})
}

var xmlCharset = regexp.MustCompile(`^<\?xml [^>]*encoding=["']([^"']+)`)

// isText tells whether bytes are UTF-8 that people can read.
func isText(s []byte) bool { return utf8.Valid(s) && readable(s, 0) }

// readable tells whether at most bad bytes are no characters that people can read.
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

// recode makes UTF-8 of text in another charset, and removes a byte order mark.
func (r *reading) recode() bool {
	if r.charset || len(r.data) > mostOutput {
		return false
	}
	name := strings.ToLower(r.params["charset"])
	if m := xmlCharset.FindSubmatch(r.data[:min(len(r.data), 100)]); m != nil && name == "" {
		name = strings.ToLower(string(m[1]))
	}
	var order binary.ByteOrder
	mark := []byte{}
	switch {
	case bytes.HasPrefix(r.data, []byte("\xef\xbb\xbf")):
		mark, name = r.data[:3], "UTF-8"
	case bytes.HasPrefix(r.data, []byte("\xff\xfe")) && len(r.data)%2 == 0:
		mark, name, order = r.data[:2], "UTF-16, little endian", binary.LittleEndian
	case bytes.HasPrefix(r.data, []byte("\xfe\xff")) && len(r.data)%2 == 0:
		mark, name, order = r.data[:2], "UTF-16, big endian", binary.BigEndian
	case name == "utf-16le" || name != "utf-16be" && zeros(r.data, 1):
		name, order = "UTF-16, little endian", binary.LittleEndian
	case name == "utf-16be" || name == "utf-16" || zeros(r.data, 0):
		name, order = "UTF-16, big endian", binary.BigEndian
	case name == "iso-8859-1" || name == "latin1":
		return r.latin1()
	default:
		return false
	}
	out := r.data[len(mark):]
	if order != nil {
		var ok bool
		if out, ok = fromUTF16(out, order); !ok {
			return false
		}
	} else if !isText(out) {
		return false
	}
	found := name + " text"
	if len(mark) > 0 {
		found += " that begins with a byte order mark"
	}
	r.inside("text", found, out, func(inner []byte) ([]byte, error) {
		if order == nil {
			return append(bytes.Clone(mark), inner...), nil
		}
		if !utf8.Valid(inner) {
			return nil, errors.New("what is not UTF-8 cannot become UTF-16")
		}
		return toUTF16(bytes.Clone(mark), inner, order), nil
	})
	r.charset = true
	return true
}

// zeros tells whether the first (0) or the second (1) byte of each pair is mostly zero, as in
// UTF-16 of western text.
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

// fromUTF16 refuses what would not come back the same, or is not text.
func fromUTF16(s []byte, order binary.ByteOrder) ([]byte, bool) {
	if len(s)%2 != 0 {
		return nil, false
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i += 2 {
		c := rune(order.Uint16(s[i:]))
		if utf16.IsSurrogate(c) {
			if i += 2; i >= len(s) {
				return nil, false
			}
			if c = utf16.DecodeRune(c, rune(order.Uint16(s[i:]))); c == utf8.RuneError {
				return nil, false
			}
		}
		out = utf8.AppendRune(out, c)
	}
	return out, isText(out) && len(out) <= mostOutput
}

func toUTF16(out, s []byte, order binary.ByteOrder) []byte {
	for _, c := range utf16.Encode([]rune(string(s))) {
		var b [2]byte
		order.PutUint16(b[:], c)
		out = append(out, b[:]...)
	}
	return out
}

func (r *reading) latin1() bool {
	if utf8.Valid(r.data) {
		return false // it is ASCII, or the charset is wrong
	}
	var out []byte
	for _, c := range r.data {
		out = utf8.AppendRune(out, rune(c))
	}
	if len(out) > mostOutput {
		return false
	}
	r.inside("text", "ISO-8859-1 text", out, func(inner []byte) ([]byte, error) {
		out := make([]byte, 0, len(inner))
		for _, c := range string(inner) {
			if c > 0xff {
				return nil, fmt.Errorf("%q is not in ISO-8859-1", c)
			}
			out = append(out, byte(c))
		}
		return out, nil
	})
	r.charset = true
	return true
}

// text reads what is mostly readable, or anything where the message says that it is text.
func (r *reading) text(said bool) bool {
	most := r.data[:min(len(r.data), mostOutput)]
	valid := utf8.Valid(r.data)
	if !said && !isText(most) {
		// A line in another charset, or with a few bytes gone wrong; a null is in no text.
		if bytes.IndexByte(most, 0) >= 0 || !readable(most, len(most)/10) {
			return false
		}
	}
	r.result.Format = "text"
	r.result.Text, r.result.Truncated = cut(shown(string(most)))
	r.result.Truncated = r.result.Truncated || len(r.data) > mostOutput
	found := "UTF-8 text"
	if !valid {
		found = `text with bytes that are not UTF-8, shown as \xHH`
	}
	r.step("text", found)
	ambiguous := !valid && shownByte.Match(r.data)
	r.encode = func(document string) ([]byte, []string, error) {
		switch {
		case ambiguous:
			return nil, nil, errors.New(`the body has bytes that are not UTF-8, and also the text \xHH that they are shown as: edit its raw bytes elsewhere`)
		case valid:
			return []byte(document), []string{"text"}, nil
		}
		return unshown(document), []string{`text; \xHH is a byte again`}, nil
	}
	return true
}
