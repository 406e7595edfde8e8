package errorgroup

import "strings"

// keptWords have digits that are no number.
var keptWords = map[string]bool{"utf8": true, "utf16": true, "utf-8": true, "utf-16": true, "latin1": true, "latin-1": true,
	"iso-8859-1": true, "base64": true, "md5": true, "sha1": true, "sha256": true, "sha512": true, "s3": true, "ec2": true, "http2": true,
	"http3": true, "ipv4": true, "ipv6": true, "oauth2": true, "x509": true, "int8": true, "int16": true, "int32": true, "int64": true,
	"uint8": true, "uint16": true, "uint32": true, "uint64": true, "float32": true, "float64": true, "k8s": true, "log4j": true, "utf8mb4": true}

func kept(w string) bool { return len(w) <= 10 && keptWords[strings.ToLower(w)] }

// namers come before the quoted name of a thing, which tells troubles apart.
var namers = map[string]bool{"constraint": true, "relation": true, "table": true, "column": true, "key": true, "index": true, "field": true,
	"property": true, "attribute": true, "queue": true, "exchange": true, "type": true, "class": true, "module": true, "method": true, "function": true}

// named tells whether the word just before announces a name.
func (s *scanner) named() bool {
	return s.wordEnd > 0 && s.at-s.wordEnd == 1 && s.in[s.wordEnd] == ' ' && namers[s.in[s.word:s.wordEnd]]
}

// coders come before a number that tells troubles apart.
var coders = map[string]bool{"status": true, "code": true, "statuscode": true, "exitcode": true, "errorcode": true, "errcode": true,
	"returncode": true, "errno": true, "sqlstate": true, "ora": true, "signal": true, "http": true, "error": true, "utf": true}

// code tells whether the number up to end is a code, such as HTTP's.
func (s *scanner) code(end int) bool {
	if s.wordEnd == 0 || end-s.at > 5 || s.at-s.wordEnd > 6 || s.wordEnd-s.word > 10 || end < len(s.in)-1 && s.in[end] == '.' && digit(s.in[end+1]) {
		return false
	}
	word := strings.ToLower(s.in[s.word:s.wordEnd])
	between := s.in[s.wordEnd:s.at]
	switch {
	case !coders[word]:
		return false
	case word == "error":
		return between == " " || between == "-"
	case word == "http" && strings.HasPrefix(between, "/"): // HTTP/1.1 500
		return strings.HasSuffix(between, " ") && end-s.at == 3
	}
	return strings.Trim(between, " :=[(-\"'") == ""
}

func (s *scanner) email() bool {
	for s.mail >= 0 && s.mail < s.at {
		next := strings.IndexByte(s.in[s.at:], '@')
		if s.mail = next; next >= 0 {
			s.mail += s.at
		}
	}
	if s.mail < 0 || s.mail-s.at > 64 {
		return false
	}
	for i := s.at; i < s.mail; i++ {
		if !alnum(s.in[i]) && strings.IndexByte("._%+-", s.in[i]) < 0 {
			return false
		}
	}
	end, dots := s.mail+1, 0
	for ; end < len(s.in) && (alnum(s.in[end]) || s.in[end] == '-' || s.in[end] == '.' && !s.free(end+1)); end++ {
		if s.in[end] == '.' {
			dots++
		}
	}
	if dots == 0 {
		return false
	}
	s.put(aMail)
	s.at = end
	return true
}

func (s *scanner) uuid() bool {
	const size = 36
	if len(s.in)-s.at < size || !s.free(s.at+size) {
		return false
	}
	for i := range size {
		c := s.in[s.at+i]
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (c == '-') || !dash && !isHex(c) {
			return false
		}
	}
	s.put(aUUID)
	s.at += size
	return true
}

// address reads an IPv6 address, or that of a network card.
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
	if digits == 0 || colons < 2 || !double && colons < 5 || !s.free(end) || !s.free(s.at-1) {
		return false
	}
	s.put(anIP)
	s.at = end
	return true
}

// ip4 reads an address, with its port.
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
	if !s.free(end) || end+1 < len(s.in) && s.in[end] == '.' && digit(s.in[end+1]) {
		return false
	}
	if end < len(s.in) && s.in[end] == ':' {
		if n := s.digits(end + 1); n > 0 && s.free(end+1+n) {
			end += 1 + n
		}
	}
	s.put(anIP)
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

// duration reads 1m30.5s, 800ms, 12MB.
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
	s.put(aNumber)
	s.at = end
	return true
}
