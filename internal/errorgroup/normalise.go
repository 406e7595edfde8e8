package errorgroup

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPattern has room for two lines in which everything grew: a time of four bytes becomes aTime.
const maxPattern = 3*maxLine + 8

const (
	aNumber = "#" // also ids: one of hexadecimal digits may happen to have no letter
	aTime   = "<time>"
	anIP    = "<ip>"
	aMail   = "<email>"
	aUUID   = "<uuid>"
)

// normalise returns an error's text with what differs from one failure to the next replaced, so
// that the same error always gives the same text.
func normalise(text string) string {
	first, second := tellingLines(text)
	if first == "" {
		return ""
	}
	out := normaliseLine(make([]byte, 0, len(first)+len(second)+len(first)/4), first)
	if second != "" {
		n := len(out)
		if out = normaliseLine(append(out, " | "...), second); len(out) == n+3 {
			out = out[:n]
		}
	}
	return string(out)
}

func normaliseLine(out []byte, text string) []byte {
	s := scanner{in: text, out: out, lineStart: len(out), atSign: strings.IndexByte(text, '@')}
	for s.at < len(s.in) {
		s.step()
	}
	if n := len(s.out); n > s.lineStart && s.out[n-1] == ' ' {
		s.out = s.out[:n-1]
	}
	return s.out
}

type scanner struct {
	in        string
	at        int
	out       []byte
	lineStart int // where this line begins in out
	atSign    int // where the next @ is, or -1
	// The last word without digits: in[word:wordEnd].
	word, wordEnd int
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }
func alnum(c byte) bool  { return letter(c) || digit(c) }
func isHex(c byte) bool  { return digit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

// atBoundary tells whether no letter or digit is at i, where a word could begin or end.
func (s *scanner) atBoundary(i int) bool { return i < 0 || i >= len(s.in) || !alnum(s.in[i]) }

func (s *scanner) step() {
	c := s.in[s.at]
	switch {
	case c <= ' ' || c == 0x7f:
		if n := len(s.out); n > s.lineStart && s.out[n-1] != ' ' {
			s.out = append(s.out, ' ')
		}
		s.at++
	case alnum(c):
		s.token()
	case c >= utf8.RuneSelf:
		r, n := utf8.DecodeRuneInString(s.in[s.at:])
		if s.at += n; !unicode.IsDigit(r) {
			s.out = utf8.AppendRune(s.out, r)
		} else if !bytes.HasSuffix(s.out[s.lineStart:], []byte(aNumber)) {
			s.replace(aNumber)
		}
	case c == '"' || c == '\'' || c == '`':
		s.quote(c)
	case c == ':' && s.address():
	case (c == '-' || c == '+') && s.isSign():
		s.at++
	default:
		s.out = append(s.out, c)
		s.at++
	}
}

// isSign tells whether the next character is the sign of a number.
func (s *scanner) isSign() bool {
	if s.at+1 >= len(s.in) || !digit(s.in[s.at+1]) {
		return false
	}
	return s.at == 0 || strings.IndexByte(" ([{=:,<>", s.in[s.at-1]) >= 0
}

// quote replaces a quoted value that holds digits. A long one, one with slashes
// (a URL), and the name of a thing are read like other text.
func (s *scanner) quote(open byte) {
	rest := s.in[s.at+1:]
	end := strings.IndexByte(rest, open)
	if open == '`' { // Ruby closes `it' so
		end = strings.IndexAny(rest, "`'")
	}
	if s.atBoundary(s.at-1) && end > 0 && end <= 40 && s.atBoundary(s.at+end+2) && !s.isName() {
		if v := rest[:end]; strings.ContainsAny(v, "0123456789") && strings.IndexByte(v, '/') < 0 {
			if !keepsDigits(v) {
				v = aNumber
			}
			s.out = append(s.out, open)
			s.out = append(s.out, v...)
			s.out = append(s.out, rest[end])
			s.at += end + 2
			return
		}
	}
	s.out = append(s.out, open)
	s.at++
}

// token reads, and may replace, what begins with a letter or digit after something that is neither.
func (s *scanner) token() {
	if s.email() || isHex(s.in[s.at]) && (s.uuid() || s.address()) {
		return
	}
	if digit(s.in[s.at]) && (s.ip4() || s.time() || s.duration()) {
		return
	}
	end, runs, hex := s.at, 0, true
	for ; end < len(s.in) && alnum(s.in[end]); end++ {
		c := s.in[end]
		if hex = hex && isHex(c); digit(c) && (end == s.at || !digit(s.in[end-1])) {
			runs++
		}
	}
	w := s.in[s.at:end]
	switch {
	case runs == 0:
		if s.calendar(w, end) {
			s.replace(aTime)
		} else if !s.zone(w) {
			s.out = append(s.out, w...)
		}
		s.word, s.wordEnd = s.at, end
	case keepsDigits(w):
		s.out = append(s.out, w...)
	case runs == 1 && digit(w[0]) && digit(w[len(w)-1]):
		s.number(end)
		return
	case hex && len(w) >= 8, runs >= 2 && len(w) >= 8, w[0] == '0' && w[1]|0x20 == 'x':
		s.replace(aNumber)
	default:
		for i := range len(w) {
			if !digit(w[i]) {
				s.out = append(s.out, w[i])
			} else if i == 0 {
				s.replace(aNumber)
			} else if !digit(w[i-1]) {
				s.out = append(s.out, '#')
			}
		}
	}
	s.at = end
}

// number replaces a number, which may have a fraction and groups of digits, unless it is a code. end
// is where its first digits end.
func (s *scanner) number(end int) {
	if s.isCode(end) {
		s.out = append(s.out, s.in[s.at:end]...)
		s.at = end
		return
	}
	for end+1 < len(s.in) && (s.in[end] == '.' || s.in[end] == ',') && digit(s.in[end+1]) {
		for end++; end < len(s.in) && digit(s.in[end]); end++ {
		}
	}
	s.replace(aNumber)
	if s.at = end; end < len(s.in) && s.in[end]|0x20 == 'e' { // 1.5e-7
		for end++; end < len(s.in) && (digit(s.in[end]) || s.in[end] == '-' || s.in[end] == '+'); end++ {
		}
		if digit(s.in[end-1]) && s.atBoundary(end) {
			s.at = end
		}
	}
}

// replace appends a placeholder. A list of numbers becomes one placeholder, since the same error
// may have more of them or fewer the next time; so do the parts of a time.
func (s *scanner) replace(what string) {
	out := s.out[s.lineStart:]
	if trimmed := bytes.TrimRight(out, " ,/:-"); len(out)-len(trimmed) <= 2 {
		sep := out[len(trimmed):]
		switch {
		case len(sep) > 0 && bytes.HasSuffix(trimmed, []byte(aTime)) && (what == aNumber || what == aTime):
			s.out = s.out[:s.lineStart+len(trimmed)]
			return
		case what == aNumber && len(sep) > 0 && sep[0] == ',' && bytes.HasSuffix(trimmed, []byte(aNumber)):
			s.out = s.out[:s.lineStart+len(trimmed)]
			return
		case what == aTime && len(sep) == 1 && bytes.HasSuffix(trimmed, []byte(aNumber)): // 21 Nov 2026
			s.out = s.out[:s.lineStart+len(trimmed)-len(aNumber)]
		}
	}
	s.out = append(s.out, what...)
}
