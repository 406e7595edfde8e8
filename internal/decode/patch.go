package decode

import (
	"bytes"
	"strings"
)

// patchJSON returns the original with what edited changed. Values, members and elements that edited keeps stay as their
// bytes are; those that it adds are laid out as the original is.
func patchJSON(original []byte, was, edited *value) []byte {
	at := len(original) - len(bytes.TrimLeft(original, jsonSpace))
	p := &patcher{layout: layoutOf(was)}
	p.b = append(p.b, original[:at]...)
	p.value(was, edited, "")
	return append(p.b, original[at+len(was.raw):]...)
}

type patcher struct {
	b []byte
	layout
}

// layout is how a document is written where it is not a copy.
type layout struct {
	colon string // with the spaces around it
	comma string // and the spaces after it, on one line
	line  string // "\n" or "\r\n"; "" for a document on one line
	tab   string // the indentation of one level
}

// layoutOf reads the layout from the first lists and objects that show it.
func layoutOf(v *value) layout {
	l := layout{}
	l.read(v)
	if l.colon == "" {
		l.colon = ":"
	}
	if l.comma == "" {
		l.comma = ","
	}
	return l
}

func (l *layout) read(v *value) {
	items, end := v.pieces()
	for i, it := range items {
		line, indent, broken := lastLine(it.lead)
		switch {
		case broken && l.line == "":
			_, outer, _ := lastLine(end)
			l.line, l.tab = line, strings.TrimPrefix(indent, outer)
		case !broken && i > 0 && l.comma == "":
			l.comma = "," + it.lead
		}
		if l.colon == "" {
			l.colon = it.colon
		}
		l.read(&v.items[i])
	}
}

// lastLine splits white space at its last end of line.
func lastLine(space string) (line, indent string, broken bool) {
	i := strings.LastIndexByte(space, '\n')
	if line = "\n"; i > 0 && space[i-1] == '\r' {
		line = "\r\n"
	}
	return line, space[i+1:], i >= 0
}

// piece is the white space around an item of a list or an object, and what is between its key and its value.
type piece struct{ lead, colon, tail string }

// pieces returns the white space of a list or an object. end is what is before the closing bracket.
func (v *value) pieces() (all []piece, end string) {
	if len(v.items) == 0 {
		return nil, ""
	}
	rest, all := v.raw[1:], make([]piece, len(v.items))
	space := func(more string) string {
		n := len(rest) - len(bytes.TrimLeft(rest, jsonSpace+more))
		s := string(rest[:n])
		rest = rest[n:]
		return s
	}
	for i := range v.items {
		all[i].lead = space("")
		if v.kind == object {
			rest = rest[len(v.keys[i].raw):]
			all[i].colon = space(":")
		}
		rest = rest[len(v.items[i].raw):]
		all[i].tail = space("")
		rest = rest[1:] // the comma, or the closing bracket
	}
	last := &all[len(all)-1]
	end, last.tail = last.tail, ""
	return all, end
}

// value writes edited, with the bytes of was for what is the same. indent is that of the line it begins on.
func (p *patcher) value(was, edited *value, indent string) {
	switch {
	case was.same(edited):
		p.b = append(p.b, was.raw...)
	case was.kind != edited.kind || len(was.items) == 0 || len(edited.items) == 0:
		p.fresh(edited, indent)
	default:
		p.items(was, edited, indent)
	}
}

func (p *patcher) items(was, edited *value, indent string) {
	pieces, end := was.pieces()
	next := p.comma[1:] // before an item that is not the first
	if len(pieces) > 1 {
		next = pieces[1].lead
	} else if _, _, broken := lastLine(pieces[0].lead); broken {
		next = pieces[0].lead
	}
	p.b = append(p.b, was.raw[0])
	for i, from := range align(was, edited) {
		it := piece{lead: next, colon: pieces[0].colon}
		if from >= 0 {
			if it = pieces[from]; from == 0 {
				it.lead = next
			}
		}
		if i == 0 {
			it.lead = pieces[0].lead
		} else {
			p.b = append(p.b, ',')
		}
		p.b = append(p.b, it.lead...)
		inner := indent
		if _, own, broken := lastLine(it.lead); broken {
			inner = own
		}
		if was.kind == object {
			k := edited.keys[i]
			if from >= 0 && sameText(was.keys[from].text, k.text, was.keys[from].raw, k.raw) {
				k = was.keys[from]
			}
			p.b = append(append(p.b, k.raw...), it.colon...)
		}
		if from >= 0 {
			p.value(&was.items[from], &edited.items[i], inner)
		} else {
			p.fresh(&edited.items[i], inner)
		}
		if i < len(edited.items)-1 {
			p.b = append(p.b, it.tail...)
		}
	}
	p.b = append(append(p.b, end...), was.raw[len(was.raw)-1])
}

// fresh writes a value that has no original: its texts and numbers as typed, in the layout of the document.
func (p *patcher) fresh(v *value, indent string) {
	if v.kind != array && v.kind != object {
		p.b = append(p.b, v.raw...)
		return
	}
	p.b = append(p.b, v.raw[0])
	for i := range v.items {
		switch {
		case p.line != "" && i > 0:
			p.b = append(p.b, ","+p.line+indent+p.tab...)
		case p.line != "":
			p.b = append(p.b, p.line+indent+p.tab...)
		case i > 0:
			p.b = append(p.b, p.comma...)
		}
		if v.kind == object {
			p.b = append(append(p.b, v.keys[i].raw...), p.colon...)
		}
		p.fresh(&v.items[i], indent+p.tab)
	}
	if p.line != "" && len(v.items) > 0 {
		p.b = append(p.b, p.line+indent...)
	}
	p.b = append(p.b, v.raw[len(v.raw)-1])
}

// same reports whether two values are the same: numbers digit by digit, texts and keys whatever their escapes.
func (v *value) same(o *value) bool {
	if bytes.Equal(v.raw, o.raw) {
		return true
	}
	if v.kind != o.kind || len(v.items) != len(o.items) {
		return false
	}
	switch v.kind {
	case number, boolean:
		return v.text == o.text
	case text:
		return sameText(v.text, o.text, v.raw, o.raw)
	}
	for i := range v.items {
		if v.kind == object && !sameText(v.keys[i].text, o.keys[i].text, v.keys[i].raw, o.keys[i].raw) ||
			!v.items[i].same(&o.items[i]) {
			return false
		}
	}
	return true
}

// sameText compares texts. All halves of surrogate pairs are read as U+FFFD, so then how they are typed counts.
func sameText(a, b string, rawA, rawB []byte) bool {
	return a == b && (!strings.ContainsRune(a, '\uFFFD') || bytes.Equal(rawA, rawB))
}

// align returns for each item of edited which item of was it is, or -1: members by their keys, elements of a list that
// are the same in order. What is left between them is taken to be changed in its place.
func align(was, edited *value) []int {
	from := make([]int, len(edited.items))
	taken := make([]bool, len(was.items))
	match := func(i, j int) { from[i], taken[j] = j, true }
	for i := range from {
		from[i] = -1
	}
	name := func(v *value, i int) string { return v.keys[i].text }
	start, a, b := 0, len(was.items), len(edited.items)
	if was.kind == array {
		for start < min(a, b) && was.items[start].same(&edited.items[start]) {
			match(start, start)
			start++
		}
		for a > start && b > start && was.items[a-1].same(&edited.items[b-1]) {
			a, b = a-1, b-1
			match(b, a)
		}
		name = func(v *value, i int) string {
			p := printer{compact: true}
			p.value(&v.items[i], 0)
			return string(p.b)
		}
	}
	places := map[string][]int{}
	if start < a && start < b {
		for j := start; j < a; j++ {
			n := name(was, j)
			places[n] = append(places[n], j)
		}
	}
	last := start - 1
	for i := start; i < b && len(places) > 0; i++ {
		n := name(edited, i)
		at := places[n]
		for was.kind == array && len(at) > 0 && at[0] <= last {
			at = at[1:]
		}
		if len(at) > 0 {
			last = at[0]
			match(i, last)
			places[n] = at[1:]
		}
	}
	next := 0
	for i, j := range from {
		if j < 0 && next < len(taken) && !taken[next] {
			match(i, next)
			j = next
		}
		if j >= 0 {
			next = j + 1
		}
	}
	return from
}

// patchXML returns was with what edited changed of it as it is shown. Pieces that edited keeps stay as their bytes are,
// with the space before them; new ones have the space of edited, or none where was is on one line.
func patchXML(was, shown, edited *xmlReader) []byte {
	raw := func(x *xmlReader, i int) []byte { return x.s[x.pieces[i][0]:x.pieces[i][1]] }
	space := func(x *xmlReader, i int) []byte {
		from, to := 0, len(x.s)
		if i > 0 {
			from = x.pieces[i-1][1]
		}
		if i < len(x.pieces) {
			to = x.pieces[i][0]
		}
		return x.s[from:to]
	}
	n, m := len(was.pieces), len(edited.pieces)
	lines := false
	for i := 1; i < n && !lines; i++ {
		lines = bytes.Contains(space(was, i), []byte("\n"))
	}
	is := alignPieces(n, m, func(i, j int) bool { return bytes.Equal(raw(was, i), raw(edited, j)) })
	var b []byte
	for j := range m {
		typed := bytes.ReplaceAll(space(edited, j), []byte("\r"), nil)
		switch old := is[j]; {
		case j == 0: // around the document
			b = append(b, space(was, 0)...)
		case old > 0 && bytes.Equal(typed, space(shown, old)):
			b = append(b, space(was, old)...)
		case old >= 0 || lines:
			b = append(b, typed...)
		}
		b = append(b, raw(edited, j)...)
	}
	return append(b, space(was, n)...)
}

const maxAligned = 4 << 20

// alignPieces returns for each of m new pieces which of n old ones it is, in their order, or -1. As many new ones as
// old ones between two that are the same are those, changed.
func alignPieces(n, m int, same func(i, j int) bool) []int {
	is := make([]int, m)
	start, a, b := 0, n, m
	for ; start < min(a, b) && same(start, start); start++ {
		is[start] = start
	}
	for ; a > start && b > start && same(a-1, b-1); a, b = a-1, b-1 {
		is[b-1] = a - 1
	}
	rows, columns := a-start, b-start
	for j := range columns {
		is[start+j] = -1
	}
	if rows*columns <= maxAligned {
		// longest[i][j] is how many of the old from i and the new from j on can be the same.
		longest := make([][]int32, rows+1)
		for i := range longest {
			longest[i] = make([]int32, columns+1)
		}
		for i := rows - 1; i >= 0; i-- {
			for j := columns - 1; j >= 0; j-- {
				if longest[i][j] = max(longest[i+1][j], longest[i][j+1]); same(start+i, start+j) {
					longest[i][j] = longest[i+1][j+1] + 1
				}
			}
		}
		for i, j := 0, 0; i < rows && j < columns; {
			switch {
			case same(start+i, start+j):
				is[start+j] = start + i
				i, j = i+1, j+1
			case longest[i+1][j] >= longest[i][j+1]:
				i++
			default:
				j++
			}
		}
	}
	for from, old := start, start; from < b; from++ {
		to := from
		for to < b && is[to] < 0 {
			to++
		}
		next := a
		if to < b {
			next = is[to]
		}
		for j := from; j < to && to-from == next-old; j++ {
			is[j] = old + j - from
		}
		from, old = to, next+1
	}
	return is
}
