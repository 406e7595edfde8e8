package memredis

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// sortedSet has its members in order: by score, and those with one score by name.
type sortedSet struct {
	scores map[string]float64
	order  []scored
}

type scored struct {
	score float64
	name  string
}

func newSortedSet() *sortedSet { return &sortedSet{scores: map[string]float64{}} }

func (z *sortedSet) size() int { return len(z.order) }

func (z *sortedSet) memory() (sum int) {
	for _, m := range z.order {
		sum += 2*partOverhead + len(m.name)
	}
	return sum
}

func compare(a, b scored) int {
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
}

func (z *sortedSet) remove(name string) bool {
	score, ok := z.scores[name]
	if ok {
		i, _ := slices.BinarySearchFunc(z.order, scored{score, name}, compare)
		z.order = slices.Delete(z.order, i, i+1)
		delete(z.scores, name)
	}
	return ok
}

func (z *sortedSet) add(name string, score float64) (added bool) {
	added = !z.remove(name)
	i, _ := slices.BinarySearchFunc(z.order, scored{score, name}, compare)
	z.order = slices.Insert(z.order, i, scored{score, name})
	z.scores[name] = score
	return added
}

func orderOf(d *database, key string) []scored {
	if z := read[*sortedSet](d, key); z != nil {
		return z.order
	}
	return nil
}

func zadd(d *database, a []string) answer {
	if len(a)%2 == 0 {
		return syntaxError
	}
	for i := 1; i < len(a); i += 2 {
		float(a[i]) // all or none
	}
	z, added := open(d, a[0], newSortedSet), int64(0)
	for i := 1; i < len(a); i += 2 {
		if z.add(a[i+1], float(a[i])) {
			added++
		}
	}
	return added
}

func zrem(d *database, a []string) answer {
	z, removed := read[*sortedSet](d, a[0]), int64(0)
	if z == nil {
		return removed
	}
	for _, name := range a[1:] {
		if z.remove(name) {
			removed++
		}
	}
	d.deleteEmpty(a[0], z)
	return removed
}

func zcard(d *database, a []string) answer { return int64(len(orderOf(d, a[0]))) }

func zscore(d *database, a []string) answer {
	if z := read[*sortedSet](d, a[0]); z != nil {
		if score, ok := z.scores[a[1]]; ok {
			return floatText(score)
		}
	}
	return nil
}

func zcount(d *database, a []string) answer {
	from, to := byScore(orderOf(d, a[0]), a[1], a[2])
	return int64(to - from)
}

// byScore is the range of the scores between two bounds such as -inf, 12 and (12.
func byScore(all []scored, least, most string) (from, to int) {
	from = firstBehind(all, func(m scored) bool { f, open := bound(least); return m.score < f || open && m.score == f })
	to = firstBehind(all, func(m scored) bool { f, open := bound(most); return m.score < f || !open && m.score == f })
	return from, max(from, to)
}

// byName is the range of the names between two bounds such as -, [a and (a.
func byName(all []scored, least, most string) (from, to int) {
	behind := func(b string, included bool) func(scored) bool {
		switch {
		case b == "-" || b == "+":
			return func(scored) bool { return b == "+" }
		case strings.HasPrefix(b, "["):
			return func(m scored) bool { return m.name < b[1:] || included && m.name == b[1:] }
		case strings.HasPrefix(b, "("):
			return func(m scored) bool { return m.name < b[1:] || !included && m.name == b[1:] }
		}
		panic(failure("ERR min or max not valid string range item"))
	}
	from, to = firstBehind(all, behind(least, false)), firstBehind(all, behind(most, true))
	return from, max(from, to)
}

// firstBehind is the place of the first member that is not before.
func firstBehind(all []scored, before func(scored) bool) int {
	i, _ := slices.BinarySearchFunc(all, true, func(m scored, _ bool) int {
		if before(m) {
			return -1
		}
		return 1
	})
	return i
}

func bound(text string) (f float64, open bool) {
	text, open = strings.CutPrefix(text, "(")
	switch text {
	case "-inf":
		return math.Inf(-1), open
	case "+inf", "inf":
		return math.Inf(1), open
	}
	return float(text), open
}

func zrange(d *database, a []string) answer {
	by, skip, most, withScores := "", 0, -1, false
	for i := 3; i < len(a); i++ {
		switch {
		case isOption(a[i], "BYSCORE") || isOption(a[i], "BYLEX"):
			by = strings.ToUpper(a[i])
		case isOption(a[i], "LIMIT") && i+2 < len(a):
			skip, most = integer(a[i+1]), integer(a[i+2])
			i += 2
		case isOption(a[i], "WITHSCORES"):
			withScores = true
		default:
			return syntaxError
		}
	}
	all := orderOf(d, a[0])
	var from, to int
	switch by {
	case "BYSCORE":
		from, to = byScore(all, a[1], a[2])
	case "BYLEX":
		from, to = byName(all, a[1], a[2])
	default:
		if most >= 0 {
			return failure("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX")
		}
		from, to = between(integer(a[1]), integer(a[2]), len(all))
	}
	from = min(from+skip, to)
	if most >= 0 {
		to = min(to, from+most)
	}
	some := []any{}
	for _, m := range all[from:to] {
		if some = append(some, m.name); withScores {
			some = append(some, floatText(m.score))
		}
	}
	return some
}
