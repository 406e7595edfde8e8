package mask

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pattern finds parts of a text.
type pattern struct {
	*regexp.Regexp
	// at returns how much of a text is hidden, which begins with a match; nil: the match.
	at func(s string) int
}

var builtIn = map[string]*pattern{
	"card_number": {regexp.MustCompile(`\b[2-6]`), cardAt}, // no issuer's numbers begin otherwise
	"email":       {Regexp: regexp.MustCompile(`[\pL\pN._%+'#~!$&*/=?^{|}<>-]+(?:@|%40)[\pL\pN#-]+(?:\.[\pL\pN#-]+)*`)},
	"iban":        {regexp.MustCompile(`\b[A-Za-z]{2}\d\d`), ibanAt},
}

// Patterns are the names of the built-in patterns.
func Patterns() []string { return []string{"card_number", "email", "iban"} }

// CheckPattern returns what is wrong with a pattern.
func CheckPattern(p string) error {
	_, err := compile(p)
	return err
}

func compile(p string) (*pattern, error) {
	if b := builtIn[p]; b != nil {
		return b, nil
	}
	if len(p) < 3 || p[0] != '/' || p[len(p)-1] != '/' {
		return nil, fmt.Errorf("%q is no pattern: expected %s or a regular expression such as /cust-[0-9]+/", p,
			strings.Join(Patterns(), ", "))
	}
	re, err := regexp.Compile(p[1 : len(p)-1])
	if err != nil {
		return nil, err
	}
	if re.MatchString("") {
		return nil, errors.New("the regular expression matches an empty text, so it would match everywhere")
	}
	return &pattern{Regexp: re}, nil
}

// mask replaces each part that the pattern finds by what hide returns.
func (p *pattern) mask(s string, hide func(string) string) string {
	if p.at == nil {
		return p.ReplaceAllStringFunc(s, func(match string) string {
			if match == "" {
				return ""
			}
			return hide(match)
		})
	}
	done := 0
	var out strings.Builder
	for _, start := range p.FindAllStringIndex(s, -1) {
		if start[0] < done {
			continue
		}
		if n := p.at(s[start[0]:]); n > 0 {
			out.WriteString(s[done:start[0]])
			out.WriteString(hide(s[start[0] : start[0]+n]))
			done = start[0] + n
		}
	}
	if done == 0 {
		return s
	}
	return out.String() + s[done:]
}

// cardAt returns the length of the longest card number at the start of a text, or 0. It ends where a group of digits
// does.
func cardAt(s string) (found int) {
	var digits []int
	for i := range len(s) {
		if digit := s[i] >= '0' && s[i] <= '9'; !digit && strings.IndexByte(" .-", s[i]) < 0 {
			break
		} else if !digit && i > 0 && strings.IndexByte(" .-", s[i-1]) >= 0 {
			break
		} else if !digit {
			continue
		}
		if digits = append(digits, int(s[i]-'0')); len(digits) > 19 {
			break
		}
		ends := i+1 == len(s) || s[i+1] < '0' || s[i+1] > '9'
		if ends && len(digits) >= 12 && luhn(digits) {
			found = i + 1
		}
	}
	return found
}

func luhn(digits []int) bool {
	sum := 0
	for i, d := range digits {
		if (len(digits)-i)%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}

// capitals is written like an IBAN. Its check digits may be wrong, which may be why it failed.
var capitals = regexp.MustCompile(`^[A-Z]{2}\d\d(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?\b`)

// ibanAt returns the length of the IBAN at the start of a text, or 0.
func ibanAt(s string) (found int) {
	if found = len(capitals.FindString(s)); found > 0 {
		return found
	}
	var read []byte
	for i := range len(s) {
		c := s[i] | 0x20 // in small letters
		if s[i] == ' ' || s[i] == '-' {
			continue
		}
		if c < '0' || c > '9' && c < 'a' || c > 'z' || len(read) == 34 {
			break
		}
		if read = append(read, c); len(read) >= 15 && ibanValid(read) {
			found = i + 1
		}
	}
	return found
}

func ibanValid(s []byte) bool {
	rest := 0
	for _, c := range slices.Concat(s[4:], s[:4]) {
		if c >= 'a' {
			rest = (rest*100 + int(c-'a') + 10) % 97
		} else {
			rest = (rest*10 + int(c-'0')) % 97
		}
	}
	return rest == 1
}
