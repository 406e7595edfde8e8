package errorgroup

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
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

// time replaces a date, a time of day, or both; false: there is none here.
func (s *scanner) time() bool {
	end := s.date(s.at)
	if end < 0 {
		// In file.js:10:15 these are line and column.
		if s.at > 0 && s.in[s.at-1] == ':' && !bytes.HasSuffix(s.out[s.lineStart:], []byte(aTime+":")) {
			return false
		}
		if end = s.clock(s.at); end < 0 {
			return false
		}
	} else if end+1 < len(s.in) && (s.in[end]|0x20 == 't' || s.in[end] == ' ') {
		if clock := s.clock(end + 1); clock > 0 {
			end = clock
		}
	}
	if !s.atBoundary(end) {
		return false
	}
	s.replace(aTime)
	s.at = end
	return true
}

// date returns where a date ends (2026-11-21, 21.11.2026), or -1.
func (s *scanner) date(from int) int {
	end, sep, year := from, byte(0), 0
	for part := range 3 {
		if part > 0 {
			if end >= len(s.in) || strings.IndexByte("-/.", s.in[end]) < 0 || sep != 0 && s.in[end] != sep {
				return -1
			}
			sep = s.in[end]
			end++
		}
		n := s.digits(end)
		if n == 4 && part != 1 {
			year++
		} else if n == 0 || n > 2 {
			return -1
		}
		end += n
	}
	if year != 1 {
		return -1
	}
	return end
}

// clock returns where a time of day ends (10:42, 10:42:53.123Z, 10:42:53,123 +01:00), or -1.
func (s *scanner) clock(from int) int {
	hours := s.digits(from)
	if hours == 0 || hours > 2 {
		return -1
	}
	end := from + hours
	for part := range 2 {
		if end >= len(s.in) || s.in[end] != ':' || s.digits(end+1) != 2 {
			if part == 0 {
				return -1
			}
			break
		}
		end += 3
	}
	if end < len(s.in) && (s.in[end] == '.' || s.in[end] == ',') {
		if n := s.digits(end + 1); n > 0 {
			end += 1 + n
		}
	}
	zone := end
	if zone < len(s.in) && s.in[zone]|0x20 == 'z' {
		return zone + 1
	}
	if zone < len(s.in) && (s.in[zone] == '+' || s.in[zone] == '-') {
		switch n := s.digits(zone + 1); {
		case n == 4:
			return zone + 5
		case n == 2 && zone+3 < len(s.in) && s.in[zone+3] == ':' && s.digits(zone+4) == 2:
			return zone + 6
		case n == 2:
			return zone + 3
		}
	}
	return end
}

const calendarNames = "Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec "

// calendar tells whether a word is the name of a day or month in a date: a number
// follows, maybe after another name.
func (s *scanner) calendar(w string, end int) bool {
	for {
		if len(w) != 3 || w[0] > 'Z' || !strings.Contains(calendarNames, w) {
			return false
		}
		next := end
		for next < len(s.in) && next-end < 2 && strings.IndexByte(" ,/-", s.in[next]) >= 0 {
			next++
		}
		if next == end || next >= len(s.in) {
			return false
		}
		if digit(s.in[next]) {
			return true
		}
		if end = next + 3; end > len(s.in) || !s.atBoundary(end) {
			return false
		}
		w = s.in[next:end]
	}
}

// zone drops a time zone, AM or PM after a time; false: w is none.
func (s *scanner) zone(w string) bool {
	out := s.out[s.lineStart:]
	if len(w) > 4 || !bytes.HasSuffix(out, []byte(aTime+" ")) || !strings.Contains(" UTC GMT CET CEST EST EDT PST PDT AM PM ", " "+w+" ") {
		return false
	}
	s.out = s.out[:len(s.out)-1]
	return true
}

// keptWords have digits that belong to the word.
var keptWords = map[string]bool{"utf8": true, "utf16": true, "utf-8": true, "utf-16": true, "latin1": true, "latin-1": true,
	"iso-8859-1": true, "base64": true, "md5": true, "sha1": true, "sha256": true, "sha512": true, "s3": true, "ec2": true, "http2": true,
	"http3": true, "ipv4": true, "ipv6": true, "oauth2": true, "x509": true, "int8": true, "int16": true, "int32": true, "int64": true,
	"uint8": true, "uint16": true, "uint32": true, "uint64": true, "float32": true, "float64": true, "k8s": true, "log4j": true, "utf8mb4": true}

func keepsDigits(w string) bool { return len(w) <= 10 && keptWords[strings.ToLower(w)] }

// namingWords precede the quoted name of a thing, by which errors differ.
var namingWords = map[string]bool{"constraint": true, "relation": true, "table": true, "column": true, "key": true, "index": true, "field": true,
	"property": true, "attribute": true, "queue": true, "exchange": true, "type": true, "class": true, "module": true, "method": true, "function": true}

// isName tells whether the quoted value that begins here is the name of a thing.
func (s *scanner) isName() bool {
	return s.wordEnd > 0 && s.at-s.wordEnd == 1 && s.in[s.wordEnd] == ' ' && namingWords[s.in[s.word:s.wordEnd]]
}

// codeWords precede a number by which errors differ.
var codeWords = map[string]bool{"status": true, "code": true, "statuscode": true, "exitcode": true, "errorcode": true, "errcode": true,
	"returncode": true, "errno": true, "sqlstate": true, "ora": true, "signal": true, "http": true, "error": true, "utf": true}

// isCode tells whether the number up to end is a code, such as HTTP's.
func (s *scanner) isCode(end int) bool {
	if s.wordEnd == 0 || end-s.at > 5 || s.at-s.wordEnd > 6 || s.wordEnd-s.word > 10 || end < len(s.in)-1 && s.in[end] == '.' && digit(s.in[end+1]) {
		return false
	}
	word := strings.ToLower(s.in[s.word:s.wordEnd])
	between := s.in[s.wordEnd:s.at]
	switch {
	case !codeWords[word]:
		return false
	case word == "error":
		return between == " " || between == "-"
	case word == "http" && strings.HasPrefix(between, "/"): // HTTP/1.1 500
		return strings.HasSuffix(between, " ") && end-s.at == 3
	}
	return strings.Trim(between, " :=[(-\"'") == ""
}

func (s *scanner) email() bool {
	for s.atSign >= 0 && s.atSign < s.at {
		next := strings.IndexByte(s.in[s.at:], '@')
		if s.atSign = next; next >= 0 {
			s.atSign += s.at
		}
	}
	if s.atSign < 0 || s.atSign-s.at > 64 {
		return false
	}
	for i := s.at; i < s.atSign; i++ {
		if !alnum(s.in[i]) && strings.IndexByte("._%+-", s.in[i]) < 0 {
			return false
		}
	}
	end, dots := s.atSign+1, 0
	for ; end < len(s.in) && (alnum(s.in[end]) || s.in[end] == '-' || s.in[end] == '.' && !s.atBoundary(end+1)); end++ {
		if s.in[end] == '.' {
			dots++
		}
	}
	if dots == 0 {
		return false
	}
	s.replace(aMail)
	s.at = end
	return true
}

func (s *scanner) uuid() bool {
	const size = 36
	if len(s.in)-s.at < size || s.in[s.at+8] != '-' || !s.atBoundary(s.at+size) {
		return false // it is quicker than uuid's error
	}
	if uuid.Validate(s.in[s.at:s.at+size]) != nil {
		return false
	}
	s.replace(aUUID)
	s.at += size
	return true
}

// address replaces an IPv6 or MAC address; false: there is none here.
func (s *scanner) address() bool {
	end, colons, digits, group, double := s.at, 0, 0, 0, false
	for ; end < len(s.in) && (isHex(s.in[end]) || s.in[end] == ':'); end++ {
		switch c := s.in[end]; {
		case c == ':':
			double = double || end > s.at && s.in[end-1] == ':'
			colons++
			group = 0
		default:
			if digit(c) {
				digits++
			}
			if group++; group > 4 {
				return false
			}
		}
	}
	if end > s.at && s.in[end-1] == ':' && (end < s.at+2 || s.in[end-2] != ':') {
		end--
		colons--
	}
	if digits == 0 || colons < 2 || !double && colons < 5 || !s.atBoundary(end) || !s.atBoundary(s.at-1) {
		return false
	}
	s.replace(anIP)
	s.at = end
	return true
}

// ip4 replaces an IPv4 address, with its port; false: there is none here.
func (s *scanner) ip4() bool {
	end := s.at
	for part := range 4 {
		if part > 0 {
			if end >= len(s.in) || s.in[end] != '.' {
				return false
			}
			end++
		}
		n := s.digits(end)
		if n == 0 || n > 3 {
			return false
		}
		end += n
	}
	if !s.atBoundary(end) || end+1 < len(s.in) && s.in[end] == '.' && digit(s.in[end+1]) {
		return false
	}
	if end < len(s.in) && s.in[end] == ':' {
		if n := s.digits(end + 1); n > 0 && s.atBoundary(end+1+n) {
			end += 1 + n
		}
	}
	s.replace(anIP)
	s.at = end
	return true
}

func (s *scanner) digits(from int) (n int) {
	for from+n < len(s.in) && digit(s.in[from+n]) {
		n++
	}
	return n
}

var units = map[string]bool{"ns": true, "us": true, "ms": true, "s": true, "sec": true, "secs": true, "m": true, "min": true, "h": true, "d": true,
	"B": true, "kB": true, "KB": true, "MB": true, "GB": true, "KiB": true, "MiB": true, "GiB": true, "k": true, "K": true, "M": true, "G": true}

// duration replaces a number with its unit, or several: 1m30.5s, 800ms, 12MB.
func (s *scanner) duration() bool {
	end := s.at
	for end < len(s.in) && digit(s.in[end]) {
		end += s.digits(end)
		if end+1 < len(s.in) && s.in[end] == '.' && digit(s.in[end+1]) {
			end += 1 + s.digits(end+1)
		}
		if strings.HasPrefix(s.in[end:], "µs") {
			end += len("µs")
			continue
		}
		unit := end
		for end < len(s.in) && letter(s.in[end]) {
			end++
		}
		if end-unit > 4 || !units[s.in[unit:end]] {
			return false
		}
	}
	s.replace(aNumber)
	s.at = end
	return true
}
