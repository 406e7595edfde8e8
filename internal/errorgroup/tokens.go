package errorgroup

import (
	"strings"

	"github.com/google/uuid"
)

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
