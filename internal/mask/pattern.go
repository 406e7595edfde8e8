package mask

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// pattern finds the parts of a text that are hidden, as pairs of their start and end.
type pattern func(s string) [][]int

var builtIn = map[string]pattern{
	"card_number": candidates(`\b[2-6]`, leastDigits, cardAt), // no issuer's numbers begin otherwise
	"email":       emails,
	"iban":        candidates(`\b[A-Za-z]{2}\d\d`, 2, ibanAt),
}

// candidates finds what begins with a match of start, if at, which gets all from there on, returns its length. Texts
// with fewer digits have none.
func candidates(start string, digits int, at func(s string) int) pattern {
	re := regexp.MustCompile(start)
	return func(s string) (found [][]int) {
		left, done := digits, 0
		for i := 0; i < len(s) && left > 0; i++ {
			if s[i] >= '0' && s[i] <= '9' {
				left--
			}
		}
		if left > 0 {
			return nil
		}
		for _, c := range re.FindAllStringIndex(s, -1) {
			if c[0] < done {
				continue
			}
			if n := at(s[c[0]:]); n > 0 {
				done = c[0] + n
				found = append(found, []int{c[0], done})
			}
		}
		return found
	}
}

// Patterns are the names of the built-in patterns.
func Patterns() []string { return []string{"card_number", "email", "iban"} }

// CheckPattern returns what is wrong with a pattern.
func CheckPattern(p string) error {
	_, err := compile(p)
	return err
}

func compile(p string) (pattern, error) {
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
	return func(s string) [][]int { return re.FindAllStringIndex(s, -1) }, nil
}

// mask replaces each part that the pattern finds by what hide returns.
func (p pattern) mask(s string, hide func(string) string) string {
	done := 0
	var out strings.Builder
	for _, at := range p(s) {
		if at[0] < at[1] {
			out.WriteString(s[done:at[0]])
			out.WriteString(hide(s[at[0]:at[1]]))
			done = at[1]
		}
	}
	if done == 0 {
		return s
	}
	return out.String() + s[done:]
}

const beforeAt = "._%+'#~!$&*/=?^{|}<>-" // besides letters and digits

var email = regexp.MustCompile(`^[\pL\pN` + beforeAt + `]+(?:@|%40)[\pL\pN#-]+(?:\.[\pL\pN#-]+)*`)

// emails finds addresses from their @ on, since the expression is slow where there is none.
func emails(s string) (found [][]int) {
	part := func(r rune) bool {
		return unicode.In(r, unicode.L, unicode.N) || strings.ContainsRune(beforeAt, r)
	}
	for done := 0; ; {
		at := strings.IndexByte(s[done:], '@')
		if coded := strings.Index(s[done:], "%40"); at < 0 || coded >= 0 && coded < at {
			at = coded
		}
		if at < 0 {
			return found
		}
		at += done
		start := at
		for start > done {
			r, size := utf8.DecodeLastRuneInString(s[done:start])
			if !part(r) {
				break
			}
			start -= size
		}
		if match := email.FindStringIndex(s[start:]); match != nil {
			done = start + match[1]
			found = append(found, []int{start, done})
			continue
		}
		for done = at + 1; s[at] == '%' && done < len(s); { // none begins in what could have been before an @
			r, size := utf8.DecodeRuneInString(s[done:])
			if !part(r) {
				break
			}
			done += size
		}
	}
}

const leastDigits = 12 // of a card number

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
		if ends && len(digits) >= leastDigits && luhn(digits) {
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
