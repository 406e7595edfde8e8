package errorgroup

import (
	"bytes"
	"strings"
)

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
