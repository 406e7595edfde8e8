package decode

import (
	"bytes"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	unicodes "golang.org/x/text/encoding/unicode"
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
	mark, from := "", encoding.Nop
	little, big := unicodes.UTF16(unicodes.LittleEndian, unicodes.IgnoreBOM), unicodes.UTF16(unicodes.BigEndian, unicodes.IgnoreBOM)
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
	case (name == "iso-8859-1" || name == "latin1") && !utf8.Valid(r.data): // otherwise it is ASCII, or the charset is wrong
		name, from = "ISO-8859-1", charmap.ISO8859_1
	default:
		return false
	}
	coded := r.data[len(mark):]
	out, err := from.NewDecoder().Bytes(coded)
	again, errAgain := from.NewEncoder().Bytes(out)
	if err != nil || errAgain != nil || !bytes.Equal(again, coded) || len(out) > mostOutput || !isText(out) && from != charmap.ISO8859_1 {
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
