package query

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// Limits of regular expressions. RE2 takes time in proportion to the text and to the size of the
// expression, so that both are bounded.
const (
	mostRegexes  = 10        // in a query
	mostRegexOps = 1000      // steps of all of them together, as they are compiled
	mostSearched = 256 << 10 // bytes of a text that one of them looks at
)

// regex is a regular expression, and what a text must have for it to match.
type regex struct {
	re  *regexp.Regexp
	ops int
	// needs are in small letters and ASCII: a text in which none of them is found does not match. nil:
	// that is not known.
	needs []string
}

// compileRegex compiles one; fold: in capitals or not.
func compileRegex(text string, fold bool) (*regex, error) {
	flags := syntax.Perl
	if fold {
		flags |= syntax.FoldCase
	}
	tree, err := syntax.Parse(text, flags)
	if err != nil {
		return nil, err
	}
	if fold {
		text = "(?i)" + text
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	tree = tree.Simplify()
	prog, err := syntax.Compile(tree)
	if err != nil {
		return nil, err
	}
	return &regex{re: re, ops: len(prog.Inst), needs: needsOf(tree)}, nil
}

// needsOf returns texts of which each match has one, or nil. It saves most messages the expression
// itself.
func needsOf(tree *syntax.Regexp) []string {
	switch tree.Op {
	case syntax.OpLiteral:
		s := strings.ToLower(string(tree.Rune))
		if !isASCII(s) {
			return nil
		}
		return []string{s}
	case syntax.OpCapture, syntax.OpPlus:
		return needsOf(tree.Sub[0])
	case syntax.OpRepeat:
		if tree.Min > 0 {
			return needsOf(tree.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, sub := range tree.Sub {
			if all := needsOf(sub); shortest(all) > shortest(best) {
				best = all
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range tree.Sub {
			some := needsOf(sub)
			if some == nil {
				return nil
			}
			all = append(all, some...)
		}
		return all
	}
	return nil
}

func shortest(all []string) int {
	least := 0
	for i, s := range all {
		if i == 0 || len(s) < least {
			least = len(s)
		}
	}
	return least
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// folded is a text with its small letters, for the needs of several expressions.
type folded struct {
	text, lower string
	done        bool
}

// fold has ſ as s, which it is in capitals; every other letter that ASCII's match is ASCII in small.
func fold(text string) folded {
	return folded{text: text, lower: strings.ReplaceAll(strings.ToLower(text), "ſ", "s"), done: true}
}

// canMatch is false where the expression matches no part of the text, which it tells without
// running it.
func (x *regex) canMatch(f *folded) bool {
	if x.needs == nil {
		return true
	}
	for _, s := range x.needs {
		if strings.Contains(f.lower, s) {
			return true
		}
	}
	return false
}

// in tells whether the expression matches a part of the text.
func (x *regex) in(e *env, f *folded) bool {
	return x.canMatch(f) && e.mayRun(len(f.text)) && x.re.MatchString(f.text[:min(len(f.text), mostSearched)])
}

// inBytes is in for the text of a body.
func (x *regex) inBytes(e *env, text []byte) bool {
	return e.mayRun(len(text)) && x.re.Match(text[:min(len(text), mostSearched)])
}

// regexLiteral reads /…/, in which \/ is a slash.
func (p *parser) regexLiteral(t *term) {
	from := p.at
	var b strings.Builder
	for p.at++; ; p.at++ {
		switch {
		case p.end():
			p.fail(from, `there is no second / for this one; to search for a text that begins with /, put it in quotes`)
		case p.in[p.at] == '/':
			p.at++
			p.regex(t, from, b.String())
			return
		case p.peek(`\/`):
			p.at++
		case p.peek(`\`) && p.at+1 < len(p.in):
			b.WriteRune(p.in[p.at])
			p.at++
		}
		b.WriteRune(p.in[p.at])
	}
}

func (p *parser) regex(t *term, from int, text string) {
	switch {
	case t.field.kind != partOf && t.field.kind != wholeName && t.field.kind != anything:
		p.fail(from, "%s takes no regular expression, only %s", t.field.name, strings.ReplaceAll(t.field.takes(), "`", ""))
	case text == "":
		p.fail(from, "expected a regular expression between / and /")
	}
	x, err := compileRegex(text, t.field.kind == partOf)
	if err != nil {
		p.fail(from, "%s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	t.a = literal{text: text, regex: x}
}
