package query

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

type op string

const (
	is      op = ""
	greater op = ">"
	atLeast op = ">="
	less    op = "<"
	atMost  op = "<="
	between op = ".."
	exists  op = "*"
)

type term struct {
	field *field
	path  string // of header. and body.
	op    op
	a, b  literal // b: the upper end for between
	at    int     // character in the text
}

type literal struct {
	text   string
	quoted bool // * ? and .. are literal
	lower  string
	// borders is bordersOf(lower) where a part of a text is searched for.
	borders []int
	// expression is set for a text between slashes; it matches any part.
	expression *expression

	number   decimal
	isNumber bool
	span     time.Duration
	from, to time.Time // a date is a whole day
	isTime   bool
	state    store.State
	group    errorgroup.ID
	id       uuid.UUID
	isID     bool
}

// Quote quotes a text for use as a literal in a query.
func Quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// plain reports whether a text means the same without its quotes.
func plain(s string) bool {
	return s != "" && !strings.ContainsFunc(s, ends) && !strings.ContainsAny(s, "*?") && !strings.Contains(s, "..") &&
		!strings.ContainsRune("<>=/", rune(s[0]))
}

// ends reports whether a character ends a text without quotes.
func ends(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == '(' || r == ')' }

// understand parses a literal for a field, or returns what was expected.
func (l *literal) understand(f *field) (expected string) {
	if l.expression != nil {
		return ""
	}
	l.lower = strings.ToLower(l.text)
	switch f.kind {
	case partOf:
		l.borders = bordersOf(l.lower)
	case wholeName:
		l.id, l.isID = ParseID(l.text)
		if f.values != nil && !strings.ContainsAny(l.text, "*?") && !slices.Contains(f.values, l.text) {
			return "expected one of " + strings.Join(f.values, ", ")
		}
	case aState:
		if l.state = stateNamed[l.text]; l.state == 0 {
			return "expected one of " + strings.Join(f.values, ", ")
		}
	case aGroup:
		var err error
		if l.group, err = errorgroup.Parse(l.text); err != nil {
			return "expected a group's id: 16 of the characters 0 to 9 and a to f"
		}
	case aNumber:
		if l.number, l.isNumber = parseDecimal(l.text); !l.isNumber {
			return "expected a number"
		}
	case aSize:
		if l.number, l.isNumber = parseSize(l.text); !l.isNumber {
			return "expected a size such as 200, 1kb or 4MiB"
		}
	case anAge:
		var ok bool
		if l.span, ok = ParseDuration(l.text); !ok {
			return "expected a duration such as 90s, 2h or 1d"
		}
	case aMoment:
		if !l.when() {
			return "expected a date such as 2026-11-21 or a time such as 2026-11-21T10:00Z"
		}
	case aMomentSoon:
		var ok bool
		if l.span, ok = ParseDuration(l.text); !ok && !l.when() {
			return "expected a duration such as 10m, or a time such as 2026-11-21T10:00Z"
		}
	case anything:
		l.number, l.isNumber = parseDecimal(l.text)
		l.when()
	}
	return ""
}

func (l *literal) when() bool {
	l.from, l.to, l.isTime = parseTime(l.text)
	return l.isTime
}

// ParseID parses a message's id as it is shown; no other form of a UUID.
func ParseID(s string) (uuid.UUID, bool) {
	if len(s) != 36 {
		return uuid.Nil, false
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}

// layouts of times, and the span that each means. Without a zone it is UTC.
var layouts = []struct {
	layout string
	spans  time.Duration
}{
	{"2006-01-02", 24 * time.Hour},
	{"2006-01-02T15:04", time.Minute}, {"2006-01-02T15:04Z07:00", time.Minute},
	{"2006-01-02T15:04:05", time.Second}, {"2006-01-02T15:04:05Z07:00", time.Second},
}

func parseTime(s string) (from, to time.Time, ok bool) {
	if len(s) > 40 { // a body may hold any text
		return from, to, false
	}
	for _, l := range layouts {
		if t, err := time.Parse(l.layout, strings.ToUpper(s)); err == nil {
			spans := l.spans
			if t.Nanosecond() != 0 {
				spans = time.Microsecond // the precision of stores
			}
			return t, t.Add(spans), true
		}
	}
	return time.Time{}, time.Time{}, false
}

var units = map[string]time.Duration{"ns": 1, "us": time.Microsecond, "µs": time.Microsecond, "ms": time.Millisecond,
	"s": time.Second,
	"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}

// ParseAgo parses a time, a date, or how long before now something was, such as 2h.
func ParseAgo(s string, now time.Time) (time.Time, bool) {
	if d, ok := ParseDuration(s); ok && d >= 0 {
		return now.Add(-d), true
	}
	at, _, ok := parseTime(s)
	return at, ok
}

// ParseDuration parses numbers with units, such as 1d12h or -5m.
func ParseDuration(s string) (time.Duration, bool) {
	rest, negative := strings.CutPrefix(s, "-")
	var total float64
	for first := true; rest != "" || first; first = false {
		n := strings.IndexFunc(rest, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if n <= 0 {
			return 0, false
		}
		value, err := strconv.ParseFloat(rest[:n], 64)
		rest = rest[n:]
		u := strings.IndexAny(rest, ".0123456789")
		if u < 0 {
			u = len(rest)
		}
		unit, ok := units[rest[:u]]
		if err != nil || !ok {
			return 0, false
		}
		total += value * float64(unit)
		rest = rest[u:]
	}
	if total >= math.MaxInt64/4 { // so that it can be subtracted from a time
		return 0, false
	}
	if negative {
		total = -total
	}
	return time.Duration(total), true
}

var sizes = []struct {
	unit string
	by   int
}{{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"b", 1}, {"", 1}}

func parseSize(s string) (decimal, bool) {
	s = strings.ToLower(s)
	for _, u := range sizes {
		if number, ok := strings.CutSuffix(s, u.unit); ok {
			n, err := strconv.ParseFloat(number, 64)
			if err != nil || !allDigits(strings.Replace(number, ".", "", 1)) || n*float64(u.by) > 1<<53 {
				return decimal{}, false
			}
			return fromInt(int64(math.Ceil(n * float64(u.by)))), true
		}
	}
	return decimal{}, false
}

// decimal is an exact number of any size: digits × 10^exp. It is never expanded, since a
// message may contain 1e999999999.
type decimal struct {
	negative bool
	digits   string // without leading and trailing zeros; "" is zero
	exp      int64
}

// maxExponent bounds exponents: larger numbers of one sign compare as equal.
const maxExponent = 1 << 60

// parseDecimal parses a number as in JSON, and also +1, 007 and .5.
func parseDecimal(s string) (d decimal, ok bool) {
	rest := s
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		d.negative = rest[0] == '-'
		rest = rest[1:]
	}
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		n, err := strconv.ParseInt(rest[i+1:], 10, 64) // takes a + too
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return d, false
		}
		d.exp = min(max(n, -maxExponent), maxExponent)
		rest = rest[:i]
	}
	whole, fraction, dot := strings.Cut(rest, ".")
	if whole == "" && fraction == "" || dot && fraction == "" || !allDigits(whole) || !allDigits(fraction) {
		return d, false
	}
	d.exp -= int64(len(fraction))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(d.digits, "0")
	d.exp += int64(len(d.digits) - len(short))
	if d.digits = short; d.digits == "" {
		d = decimal{}
	}
	return d, true
}

func allDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

func (d decimal) compare(o decimal) int {
	bySize := d.magnitude(o)
	if d.negative {
		bySize = -bySize
	}
	return cmp.Or(cmp.Compare(d.sign(), o.sign()), bySize)
}

func (d decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// magnitude compares absolute values. No digits begin with 0, so the place of the point
// decides first.
func (d decimal) magnitude(o decimal) int {
	a, b := d.exp+int64(len(d.digits)), o.exp+int64(len(o.digits))
	return cmp.Or(cmp.Compare(a, b), strings.Compare(d.digits, o.digits))
}

func fromInt(n int64) decimal {
	d, _ := parseDecimal(strconv.FormatInt(n, 10))
	return d
}
