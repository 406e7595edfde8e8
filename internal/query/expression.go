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

// maxInstructions bounds a compiled regular expression: each byte of a text costs up to so many steps.
const maxInstructions = 1000

// expression is a regular expression. Most texts contain none of its needed words, and looking for
// them costs a hundredth of a match.
type expression struct {
	*regexp.Regexp
	needs []string // each matching text contains one of them; nil: not known
}

func newExpression(text string) (*expression, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		var wrong *syntax.Error
		errors.As(err, &wrong)
		return nil, fmt.Errorf("not a regular expression: %s: %s", wrong.Code, wrong.Expr)
	}
	if program, err := syntax.Compile(parsed.Simplify()); err != nil || len(program.Inst) > maxInstructions {
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

// wordsOf returns words of which each matching text contains one; nil: not known.
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
			if words := wordsOf(sub); minLength(words) > minLength(best) {
				best = words
			}
		}
		return best
	}
	return nil
}

func minLength(words []string) int {
	n := 0
	for i, word := range words {
		if i == 0 || len(word) < n {
			n = len(word)
		}
	}
	return n
}
