package query

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
)

// Limits of a query: more than people type, and few enough to evaluate quickly.
const (
	maxLength = 4000 // characters
	maxDepth  = 50   // nested parentheses and negations; parts of a path
	// Conditions on bodies, and characters of all patterns with * or ? for headers and
	// bodies: each may read a whole body.
	maxInBodies    = 30
	maxWild        = 200
	maxExpressions = 10 // regular expressions
)

// Error is a mistake in a query and its place.
type Error struct {
	At  int // the character, counted from 0
	Msg string
}

func (e *Error) Error() string { return fmt.Sprintf("query, character %d: %s", e.At+1, e.Msg) }

// Show returns the query with a caret below the mistake, and the message.
func (e *Error) Show(text string) string {
	line := []rune(strings.ToValidUTF8(text, "\uFFFD"))
	for i, r := range line {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			line[i] = ' '
		}
	}
	return string(line) + "\n" + strings.Repeat(" ", min(e.At, len(line))) + "^ " + e.Msg
}

// Parse reads a query. Its errors are *Error.
func Parse(text string) (q *Query, err error) {
	p := &parser{in: []rune(text)}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *Error:
			q, err = nil, e
		default:
			panic(e)
		}
	}()
	if len(p.in) > maxLength {
		p.fail(maxLength, "the query is longer than %d characters", maxLength)
	}
	if p.space(); p.end() {
		return &Query{}, nil
	}
	root := p.or(0)
	if !p.end() {
		p.fail(p.at, "there is no ( before this )")
	}
	q = &Query{root}
	p.bounded(q)
	return q, nil
}

// bounded rejects queries that could be slow to evaluate on a message.
func (p *parser) bounded(q *Query) {
	inBodies, wild, expressions := 0, 0, 0
	q.terms(func(t *term) {
		if t.a.expression != nil {
			expressions++
		}
		if t.field.needs&knowsBody != 0 {
			inBodies++
		}
		if t.field.kind == anything && !t.a.quoted && t.a.expression == nil && strings.ContainsAny(t.a.text, "*?") {
			wild += len(t.a.text)
		}
		switch {
		case strings.Count(t.path, ".") >= maxDepth:
			p.fail(t.at, "its path has more than %d parts", maxDepth)
		case inBodies > maxInBodies:
			p.fail(t.at, "more than %d conditions are about bodies", maxInBodies)
		case expressions > maxExpressions:
			p.fail(t.at, "more than %d regular expressions", maxExpressions)
		case wild > maxWild:
			p.fail(t.at, "the patterns for headers and bodies have more than %d characters together", maxWild)
		}
	})
}

// parser reads a query once. It stops at a mistake by panicking with an *Error.
type parser struct {
	in []rune
	at int
}

func (p *parser) fail(at int, format string, args ...any) {
	panic(&Error{at, fmt.Sprintf(format, args...)})
}

func (p *parser) end() bool { return p.at >= len(p.in) }

func (p *parser) space() {
	for !p.end() && unicode.IsSpace(p.in[p.at]) {
		p.at++
	}
}

// peek reports whether s is next.
func (p *parser) peek(s string) bool {
	for i, r := range s {
		if p.at+i >= len(p.in) || p.in[p.at+i] != r {
			return false
		}
	}
	return true
}

// word consumes an operator that is a word.
func (p *parser) word(s string) bool {
	if after := p.at + len(s); p.peek(s) && (after >= len(p.in) || ends(p.in[after])) {
		p.at = after
		p.space()
		return true
	}
	return false
}

func (p *parser) or(depth int) node {
	all := or(flat[or](nil, p.and(depth)))
	for p.operator("OR") {
		all = flat(all, p.and(depth))
	}
	return single(all)
}

func (p *parser) and(depth int) node {
	all := flat[and](nil, p.not(depth))
	for {
		must := p.operator("AND")
		if !must && (p.end() || p.peek(")") || p.isOperator("OR")) {
			return single(all)
		}
		all = flat(all, p.not(depth))
	}
}

// operator consumes an operator between two conditions, ignoring case.
func (p *parser) operator(s string) bool {
	if p.word(s) {
		return true
	}
	at := p.at
	if p.word(strings.ToLower(s)) && !p.end() && !p.peek(")") {
		return true
	}
	p.at = at
	return false
}

func (p *parser) isOperator(s string) bool {
	at := p.at
	defer func() { p.at = at }()
	return p.operator(s)
}

// flat appends a node; the parts of one of the same kind are appended one by one.
func flat[L and | or](all L, n node) L {
	if same, ok := any(n).(L); ok {
		return append(all, same...)
	}
	return append(all, n)
}

func single[L interface {
	and | or
	node
}](all L) node {
	if len(all) == 1 {
		return []node(all)[0]
	}
	return all
}

func (p *parser) not(depth int) node {
	at := p.at
	if depth > maxDepth {
		p.fail(at, "nested more than %d deep", maxDepth)
	}
	switch {
	case p.end():
		p.fail(at, "the query ends here, and something should follow")
	case p.word("OR"), p.word("AND"):
		p.fail(at, `something should stand before it; to search for the word itself, put it in quotes`)
	case p.word("NOT"):
		return negate(p.not(depth + 1))
	case p.peek("-"):
		p.at++
		if p.end() || unicode.IsSpace(p.in[p.at]) || p.peek(")") {
			p.fail(at, `something should follow the -; to search for it, put it in quotes`)
		}
		return negate(p.not(depth + 1))
	case p.peek("("):
		p.at++
		if p.space(); p.peek(")") {
			p.fail(p.at, "there is nothing between ( and )")
		}
		n := p.or(depth + 1)
		if !p.peek(")") {
			p.fail(at, "there is no ) for this (")
		}
		p.at++
		p.space()
		return n
	case p.peek(")"):
		p.fail(at, "there is no ( before this )")
	}
	return p.term()
}

func negate(n node) node {
	if twice, ok := n.(not); ok {
		return twice.of
	}
	return not{n}
}

// bare consumes a text without quotes, up to a space, a quote, a parenthesis or one of
// the characters in until.
func (p *parser) bare(until string) string {
	from := p.at
	for !p.end() && !ends(p.in[p.at]) && !strings.ContainsRune(until, p.in[p.at]) {
		p.at++
	}
	return string(p.in[from:p.at])
}

// quoted consumes a text in quotes, in which \" is a quote and \\ a backslash.
func (p *parser) quoted() string {
	from := p.at
	var b strings.Builder
	for p.at++; ; p.at++ {
		switch {
		case p.end():
			p.fail(from, "there is no second quote for this one")
		case p.in[p.at] == '"':
			p.at++
			return b.String()
		case p.peek(`\"`) || p.peek(`\\`):
			p.at++
		}
		b.WriteRune(p.in[p.at])
	}
}

// expression consumes a regular expression (RE2) between two slashes, in which \/ is a slash. It returns nil
// when something else follows, such as a path.
func (p *parser) expression() *expression {
	from := p.at
	if !p.peek("/") {
		return nil
	}
	end := from + 1
	for ; end < len(p.in) && p.in[end] != '/'; end++ {
		if p.in[end] == '\\' {
			end++
		}
	}
	if end >= len(p.in) || end == from+1 || end+1 < len(p.in) && !ends(p.in[end+1]) {
		return nil
	}
	text := string(p.in[from+1 : end])
	e, err := newExpression(text)
	if err != nil {
		p.fail(from, "%s", err.Error())
	}
	p.at = end + 1
	return e
}

// term reads one condition: a field with a value, or a text by itself.
func (p *parser) term() node {
	from := p.at
	t := &term{at: from}
	var word string
	if p.peek(`"`) {
		l := literal{text: p.quoted(), quoted: true}
		return p.text(t, from, l)
	}
	if word = p.bare(":"); !p.peek(":") && !(p.peek(`"`) && (word == headerField.name || word == bodyField.name)) {
		if word == "*" {
			t.op = exists
		}
		return p.text(t, from, literal{text: word, quoted: true})
	}
	p.named(t, from, word)
	if !p.peek(":") {
		p.fail(p.at, "expected a : and a value")
	}
	p.at++
	p.value(t)
	p.close()
	return t
}

// text completes a term that is a text without a field.
func (p *parser) text(t *term, from int, l literal) node {
	t.field, t.a = fieldNamed["text"], l
	if l.text == "" {
		p.fail(from, "expected something between the quotes")
	}
	p.interpret(t, &t.a, from)
	p.close()
	return t
}

// close fails unless a space, ) or the end follows a term.
func (p *parser) close() {
	if !p.end() && (p.peek(`"`) || p.peek("(") || !ends(p.in[p.at])) {
		p.fail(p.at, "expected a space before this")
	}
	p.space()
}

// named finds the field that a word names.
func (p *parser) named(t *term, from int, word string) {
	for _, f := range []*field{headerField, bodyField} {
		path, ok := strings.CutPrefix(word, f.name)
		if !ok {
			continue
		}
		if path == "" && p.peek(`"`) {
			path = p.quoted()
		}
		if path == "" {
			p.fail(p.at, "expected a name after %s, as in %s", f.name, f.example)
		}
		t.field, t.path = f, path
		return
	}
	if t.field = fieldNamed[word]; t.field != nil {
		return
	}
	switch word {
	case "":
		p.fail(from, "expected a field before the :")
	case "header", "body":
		p.fail(from, "expected a name or a path, as in %s",
			map[string]*field{"header": headerField, "body": bodyField}[word].example)
	}
	p.fail(from, "there is no field %q%s; to search for the text itself, put it in quotes", word,
		cmp.Or(nearest(word), oneOf(fieldNames(func(*field) bool { return true }))))
}

// nearest proposes a field that begins like an unknown word.
func nearest(word string) string {
	for n := min(len(word), 8); n >= 2; n-- {
		for _, f := range fields {
			if strings.HasPrefix(f.name, strings.ToLower(word[:n])) {
				return ", perhaps " + f.name
			}
		}
	}
	return ""
}

// value reads what follows the colon.
func (p *parser) value(t *term) {
	at := p.at
	for _, o := range []op{atLeast, atMost, greater, less} {
		if p.peek(string(o)) {
			p.at += len(o)
			t.op = o
			break
		}
	}
	if t.op != is && (t.field.kind < aNumber || t.field.short != "") {
		p.fail(at, "%s takes no %s, only %s", strings.TrimSuffix(t.field.name, "."), t.op,
			strings.ReplaceAll(t.field.takes(), "`", ""))
	}
	from := p.at
	if t.op == is && (t.field.kind <= partOf || t.field.kind == anything) {
		if t.a.expression = p.expression(); t.a.expression != nil {
			t.a.text = t.a.expression.String()
			return
		}
	}
	if p.peek(`"`) {
		t.a = literal{text: p.quoted(), quoted: true}
		// The second half of "a".."b".
		if p.peek("..") && t.field.kind >= aNumber && t.op == is {
			p.at += 2
			p.upper(t, from)
			return
		}
	} else {
		t.a = literal{text: p.bare("")}
		low, high, isRange := strings.Cut(t.a.text, "..")
		if isRange && t.field.kind >= aNumber && t.op == is {
			t.a.text = low
			p.at -= len([]rune(high))
			p.upper(t, from)
			return
		}
	}
	switch {
	case t.a.text == "" && !(t.a.quoted && t.field.kind == anything):
		p.fail(from, "expected a value, as in %s", t.field.example)
	case t.a.text == "*" && !t.a.quoted && t.op == is && t.field.short == "":
		t.op = exists
		return
	case t.field.kind == anAge && t.op == is:
		p.fail(from, "expected age:>%[1]s, age:<%[1]s or a range such as age:1h..2h", t.a.text)
	case t.field.short != "":
		t.op = t.field.short
		t.field = fieldNamed["failed"]
	}
	p.interpret(t, &t.a, from)
	if t.op != is && t.field.kind == anything && !t.a.isNumber && !t.a.isTime {
		p.fail(from, "%q is neither a number nor a time, so nothing can be %s it", t.a.text,
			map[op]string{greater: "above", atLeast: "above", less: "below", atMost: "below"}[t.op])
	}
}

// upper reads the upper end of a range whose lower one begins at from.
func (p *parser) upper(t *term, from int) {
	at := p.at
	t.op = between
	if p.peek(`"`) {
		t.b = literal{text: p.quoted(), quoted: true}
	} else {
		t.b = literal{text: p.bare("")}
	}
	if t.a.text == "" || t.b.text == "" || t.field.short != "" {
		p.fail(from, "expected a range such as 1..5, with something on both sides")
	}
	p.interpret(t, &t.a, from)
	p.interpret(t, &t.b, at)
	if t.field.kind == anything && !(t.a.isNumber && t.b.isNumber || t.a.isTime && t.b.isTime) {
		p.fail(from, "expected a range of numbers or of times")
	}
}

// interpret parses a value as its field needs, and drops quotes that change nothing.
func (p *parser) interpret(t *term, l *literal, from int) {
	if expected := l.understand(t.field); expected != "" {
		p.fail(from, "%q: %s", l.text, expected)
	}
	if l.quoted && plain(l.text) {
		l.quoted = t.field.kind == anything && l.isNumber // "7" is a text, 7 a number
	}
}
