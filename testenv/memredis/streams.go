package memredis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// stream keeps its entries, the oldest first.
type stream struct {
	entries []streamEntry
	last    place
}

type streamEntry struct {
	at     place
	fields []any
	bytes  int
}

// place is an entry's id: milliseconds, and a number within.
type place struct{ ms, n uint64 }

func (p place) String() string { return fmt.Sprintf("%d-%d", p.ms, p.n) }

func (p place) before(q place) bool { return p.ms < q.ms || p.ms == q.ms && p.n < q.n }

func newStream() *stream { return &stream{} }

func (s *stream) memory() (sum int) {
	for _, e := range s.entries {
		sum += partOverhead/2 + e.bytes
	}
	return sum
}

func entriesOf(d *database, key string) []streamEntry {
	if s := read[*stream](d, key); s != nil {
		return s.entries
	}
	return nil
}

// streamNode is how many entries Redis keeps together: with MAXLEN ~ it drops as many at once.
const streamNode = 100

func xadd(d *database, a []string) answer {
	most := -1
	rest := a[1:]
	if len(rest) > 3 && isOption(rest[0], "MAXLEN") && rest[1] == "~" {
		most, rest = integer(rest[2]), rest[3:]
	}
	if len(rest) < 3 || len(rest)%2 == 0 || rest[0] != "*" {
		return syntaxError
	}
	s := open(d, a[0], newStream)
	at := place{ms: uint64(d.now.UnixMilli())}
	if at.ms <= s.last.ms {
		at = place{s.last.ms, s.last.n + 1}
	}
	e := streamEntry{at: at}
	for _, f := range rest[1:] {
		e.fields, e.bytes = append(e.fields, f), e.bytes+len(f)
	}
	s.last, s.entries = at, append(s.entries, e)
	for most >= 0 && len(s.entries)-streamNode >= most {
		s.entries = s.entries[streamNode:]
	}
	return at.String()
}

func xlen(d *database, a []string) answer { return int64(len(entriesOf(d, a[0]))) }

// xrange and xrevrange are the entries between two ids, or - and +; "(" leaves out the id itself.
func xrange(d *database, a []string) answer { return entriesBetween(d, a[0], a[1], a[2], a[3:], false) }

func xrevrange(d *database, a []string) answer {
	return entriesBetween(d, a[0], a[2], a[1], a[3:], true)
}

func entriesBetween(d *database, key, first, last string, options []string, down bool) answer {
	count := -1
	switch {
	case len(options) == 2 && isOption(options[0], "COUNT"):
		count = integer(options[1])
	case len(options) > 0:
		return syntaxError
	}
	from, fromOpen := placeOf(first, 0)
	to, toOpen := placeOf(last, ^uint64(0))
	some := []any{}
	all := entriesOf(d, key)
	if down {
		all = slices.Clone(all)
		slices.Reverse(all)
	}
	for _, e := range all {
		if e.at.before(from) || to.before(e.at) || fromOpen && e.at == from || toOpen && e.at == to {
			continue
		}
		if len(some) == count {
			break
		}
		some = append(some, []any{e.at.String(), e.fields})
	}
	return some
}

// placeOf reads an id; n is its number within the millisecond where it has none.
func placeOf(text string, n uint64) (p place, open bool) {
	text, open = strings.CutPrefix(text, "(")
	switch text {
	case "-":
		return place{}, open
	case "+":
		return place{^uint64(0), ^uint64(0)}, open
	}
	ms, within, has := strings.Cut(text, "-")
	p.n = n
	var err, err2 error
	if p.ms, err = strconv.ParseUint(ms, 10, 64); has {
		p.n, err2 = strconv.ParseUint(within, 10, 64)
	}
	if err != nil || err2 != nil {
		panic(failure("ERR Invalid stream ID specified as stream command argument"))
	}
	return p, open
}
