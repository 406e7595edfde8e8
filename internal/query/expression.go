package query

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// mostInstructions is how large a regular expression is once compiled: what it costs for each byte that it
// looks at.
const mostInstructions = 1000

// expression is a regular expression. Most texts have none of the words that it needs, and finding that out
// costs a hundredth of asking it.
type expression struct {
	*regexp.Regexp
	needs []string // one of them is in each text that it matches; nil: not known
}

func newExpression(text string) (*expression, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		var wrong *syntax.Error
		errors.As(err, &wrong)
		return nil, fmt.Errorf("not a regular expression: %s: %s", wrong.Code, wrong.Expr)
	}
	if program, err := syntax.Compile(parsed.Simplify()); err != nil || len(program.Inst) > mostInstructions {
		return nil, errors.New("the regular expression is too large: make it shorter, or its repeats fewer")
	}
	return &expression{regexp.MustCompile(text), wordsOf(parsed)}, nil
}

func (e *expression) matches(text string) bool {
	return e.may(func(word string) bool { return strings.Contains(text, word) }) && e.MatchString(text)
}

func (e *expression) matchesBytes(text []byte) bool {
	return e.may(func(word string) bool { return bytes.Contains(text, []byte(word)) }) && e.Match(text)
}

func (e *expression) may(has func(word string) bool) bool {
	return e.needs == nil || slices.ContainsFunc(e.needs, has)
}

// wordsOf returns words of which each text that matches has one; nil: not known.
func wordsOf(e *syntax.Regexp) []string {
	switch e.Op {
	case syntax.OpLiteral:
		if e.Flags&syntax.FoldCase == 0 {
			return []string{string(e.Rune)}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return wordsOf(e.Sub[0])
	case syntax.OpRepeat:
		if e.Min > 0 {
			return wordsOf(e.Sub[0])
		}
	case syntax.OpAlternate:
		var all []string
		for _, sub := range e.Sub {
			words := wordsOf(sub)
			if words == nil {
				return nil
			}
			all = append(all, words...)
		}
		return all
	case syntax.OpConcat:
		var best []string
		for _, sub := range e.Sub {
			if words := wordsOf(sub); shortest(words) > shortest(best) {
				best = words
			}
		}
		return best
	}
	return nil
}

func shortest(words []string) int {
	n := 0
	for i, word := range words {
		if i == 0 || len(word) < n {
			n = len(word)
		}
	}
	return n
}
