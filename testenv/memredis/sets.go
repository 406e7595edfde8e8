package memredis

import (
	"maps"
	"slices"
)

type members struct{ of map[string]bool }

func newMembers() *members { return &members{map[string]bool{}} }

func (s *members) size() int { return len(s.of) }

func (s *members) memory() (sum int) {
	for m := range s.of {
		sum += partOverhead + len(m)
	}
	return sum
}

func sadd(d *database, a []string) answer {
	s := open(d, a[0], newMembers)
	was := len(s.of)
	for _, m := range a[1:] {
		s.of[m] = true
	}
	return int64(len(s.of) - was)
}

func srem(d *database, a []string) answer {
	s := read[*members](d, a[0])
	if s == nil {
		return int64(0)
	}
	was := len(s.of)
	for _, m := range a[1:] {
		delete(s.of, m)
	}
	d.deleteEmpty(a[0], s)
	return int64(was - len(s.of))
}

func smembers(d *database, a []string) answer {
	all := []any{}
	if s := read[*members](d, a[0]); s != nil {
		for _, m := range slices.Sorted(maps.Keys(s.of)) {
			all = append(all, m)
		}
	}
	return all
}
