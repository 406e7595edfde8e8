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
	inBodies, wild, regexes, ops := 0, 0, 0, 0
	q.terms(func(t *term) {
		if t.field.needs&knowsBody != 0 {
			inBodies++
		}
		if t.a.regex != nil {
			regexes++
			ops += t.a.regex.ops
		} else if t.field.kind == anything && !t.a.quoted && strings.ContainsAny(t.a.text, "*?") {
			wild += len(t.a.text)
		}
		switch {
		case strings.Count(t.path, ".") >= deepest:
			p.fail(t.at, "its path has more than %d parts", deepest)
		case inBodies > mostInBodies:
			p.fail(t.at, "more than %d conditions are about bodies", mostInBodies)
		case wild > mostWild:
			p.fail(t.at, "the patterns for headers and bodies have more than %d characters together", mostWild)
		case regexes > mostRegexes:
			p.fail(t.at, "more than %d conditions are regular expressions", mostRegexes)
		case ops > mostRegexOps:
			p.fail(t.at, "the regular expressions are too large together: %d steps, and at most %d", ops, mostRegexOps)
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
	for p.word("OR") {
		all = flat(all, p.and(depth))
	}
	return single(all)
}

func (p *parser) and(depth int) node {
	all := flat[and](nil, p.not(depth))
	for {
		must := p.word("AND")
		if !must && (p.end() || p.peek(")") || p.isWord("OR")) {
			return single(all)
		}
		all = flat(all, p.not(depth))
	}
}

func (p *parser) isWord(s string) bool {
	at := p.at
	defer func() { p.at = at }()
	return p.word(s)
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
