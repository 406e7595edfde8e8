package query

import (
	"fmt"
	"strings"
	"unicode"
)

// Limits of a query: more than people type, and little enough for each message
// to be asked quickly.
const (
	longest = 4000 // characters
	deepest = 50   // parentheses and negations within each other, and parts of a path
	// mostInBodies is how many conditions are about bodies, and mostWild how many
	// characters the patterns with * or ? have together that headers and bodies are
	// compared with: each costs a look at the whole of a body.
	mostInBodies = 30
	mostWild     = 200
	// mostExpressions is how many regular expressions a query has.
	mostExpressions = 10
)

// Error points at what is wrong.
type Error struct {
	At  int // the character, counted from 0
	Msg string
}

func (e *Error) Error() string { return fmt.Sprintf("query, character %d: %s", e.At+1, e.Msg) }

// Show is the query with a caret below what is wrong, and why.
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
	if len(p.in) > longest {
		p.fail(longest, "the query is longer than %d characters", longest)
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

// bounded refuses what would take long for each message, whatever it holds.
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
		case strings.Count(t.path, ".") >= deepest:
			p.fail(t.at, "its path has more than %d parts", deepest)
		case inBodies > mostInBodies:
			p.fail(t.at, "more than %d conditions are about bodies", mostInBodies)
		case expressions > mostExpressions:
			p.fail(t.at, "more than %d regular expressions", mostExpressions)
		case wild > mostWild:
			p.fail(t.at, "the patterns for headers and bodies have more than %d characters together", mostWild)
		}
	})
}

// parser goes through a query once. It ends early by panicking with an *Error.
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

// peek tells whether s is next.
func (p *parser) peek(s string) bool {
	for i, r := range s {
		if p.at+i >= len(p.in) || p.in[p.at+i] != r {
			return false
		}
	}
	return true
}

// word takes an operator that is written as a word.
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

// operator takes an operator between two conditions, in capitals or not.
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

// flat adds a part; what is of the same kind is taken in.
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
	if depth > deepest {
		p.fail(at, "nested more than %d deep", deepest)
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

// bare takes what is written without quotes, up to a space, a quote, a parenthesis
// or one of the characters in until.
func (p *parser) bare(until string) string {
	from := p.at
	for !p.end() && !ends(p.in[p.at]) && !strings.ContainsRune(until, p.in[p.at]) {
		p.at++
	}
	return string(p.in[from:p.at])
}

// quoted takes a text in quotes, where \" is a quote and \\ a backslash.
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

// expression takes a regular expression, in the syntax of RE2: what is between two slashes, where \/ is a
// slash. nil: what comes is something else, such as a path.
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

// text is a word or a text without a field.
func (p *parser) text(t *term, from int, l literal) node {
	t.field, t.a = fieldNamed["text"], l
	if l.text == "" {
		p.fail(from, "expected something between the quotes")
	}
	p.interpret(t, &t.a, from)
	p.close()
	return t
}

// close refuses what follows a term without a space.
func (p *parser) close() {
	if !p.end() && (p.peek(`"`) || p.peek("(") || !ends(p.in[p.at])) {
		p.fail(p.at, "expected a space before this")
	}
	p.space()
}

// named finds the field.
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
	p.fail(from, "there is no field %q%s; to search for the text itself, put it in quotes", word, nearest(word))
}

// nearest proposes a field that begins like a word that is none.
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

// value reads what stands behind the colon.
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

// interpret gives a value its meaning, and takes off quotes that change nothing.
func (p *parser) interpret(t *term, l *literal, from int) {
	if expected := l.understand(t.field); expected != "" {
		p.fail(from, "%q: %s", l.text, expected)
	}
	if l.quoted && plain(l.text) {
		l.quoted = t.field.kind == anything && l.isNumber // "7" is a text, 7 a number
	}
}
