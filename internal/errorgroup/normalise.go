package errorgroup

import (
	"net/netip"
	"regexp"
	"strings"
)

// maxPattern is enough for two lines that grew: a time of four bytes becomes "<time>".
const maxPattern = 3*maxLine + 8

const aNumber = "#" // also ids: a hexadecimal one may happen to have no letter

// rules replace parts of an error's text. Where several match, the first decides; what none
// matches stays. Codes stay: they tell errors apart.
var rules = []struct {
	matches string
	becomes func(part string) string
}{
	{`\b(?i:http(?:/[\d.]+)?|sqlstate|ora|signal|errno|utf|status|(?:status|exit|error|err|return)?[ _]?code)` +
		`["':=# \[(-]{0,3}[0-9A-Z]{1,5}\b`, stays},
	{`\b(?i:error)[ -]\d{1,5}\b`, stays},
	{`(?i:utf8mb4|iso-8859-\d+|latin-?1|base64|md5|sha\d+|s3|ec2|http[23]|ipv[46]|oauth2|x509|` +
		`u?int\d+|float\d+|k8s|log4j)\b`, stays},
	{`[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b`, as("<uuid>")},
	{`[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+`, as("<email>")},
	{`\b(?:` + date + `(?:(?:T|,? |:)` + clock + `|\b)(?: \d{4}\b)?|` + clock + `)`, as("<time>")},
	{`\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+\b)?`, as("<ip>")},
	{`[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}\b`, address},
	{`\.[a-z]{1,6}(?::\d+)+\b`, counted}, // lines of a file, or a host's port
	{`\d+(?:[.,]\d+)*(?:, ?\d+(?:[.,]\d+)*)+\b`,
		as(aNumber)}, // a list: the next may be longer
	{`(?:\d+(?:\.\d+)?(?:[nuµm]?s|secs?|min|[mhd]|[kKMG]i?B?|B))+\b`, as(aNumber)}, // 1m30.5s, 12MB
	{`\d+(?:[.,]\d+)+(?:[eE][+-]?\d+)?\b`, as(aNumber)},
	{`\d+ (?:ms|s|secs?|seconds?|minutes?|[KMG]i?B|bytes)\b`, counted},
	{`(?:4(?:0\d|1[0-8]|2[1-689]|31|5[0-245])|5(?:0\d|1[01]|2[13]|3[0458]|41|5[0-6]))\b`, stays}, // HTTP, SMTP
	{`\d\d[A-Z]\d\d\b`, stays}, // SQLSTATE
	{`0[xX][0-9a-fA-F]+|[0-9a-fA-F]{8,}\b`, as(aNumber)},
	{`[A-Za-z]*\d[A-Za-z0-9]*`, word},
	{`\pN+`, as(aNumber)},
	{`[\x00-\x20\x7f]+`, as(" ")},
}

const (
	month = `(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*`
	date  = `(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|` +
		`(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?(?:\d{1,2}[ /-]` + month + `|` + month +
		` \d{1,2})(?:,?[ /-]\d{4})?)`
	clock = `\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z| ?(?:UTC|GMT|CES?T|[EP][SD]T|[AP]M)| ?[+-]\d\d:?\d\d|[+-]\d\d)?\b`
)

// rule is the alternation of all rules: submatch i+1 is rules[i]'s.
var rule = func() *regexp.Regexp {
	var all []string
	for _, r := range rules {
		all = append(all, "("+r.matches+")")
	}
	return regexp.MustCompile(strings.Join(all, "|"))
}()

var digits = regexp.MustCompile(`[0-9]+`)

func stays(part string) string { return part }

func as(what string) func(string) string { return func(string) string { return what } }

func counted(part string) string { return digits.ReplaceAllLiteralString(part, aNumber) }

// address replaces an IPv6 or MAC address, but not names such as std::a and positions such as 10:15:.
func address(part string) string {
	if _, err := netip.ParseAddr(part); err == nil && strings.ContainsAny(part, "0123456789") ||
		strings.Count(part, ":") == 5 {
		return "<ip>"
	}
	return counted(part)
}

// word replaces a word with digits: by one # when it is long and has digits in several places, as ids do.
func word(part string) string {
	if numbered := counted(part); len(part) < 8 || strings.Count(numbered, aNumber) < 2 {
		return numbered
	}
	return aNumber
}

// normalise replaces what differs between failures of the same error, so that the same error
// always gives the same text.
func normalise(text string) string {
	first, second := tellingLines(text)
	first = normaliseLine(first)
	if second = normaliseLine(second); second != "" {
		return first + " | " + second
	}
	return first
}

func normaliseLine(line string) string {
	line = strings.ToValidUTF8(line, "\ufffd")
	out := make([]byte, 0, len(line)+len(line)/4)
	last := 0
	for _, at := range rule.FindAllStringSubmatchIndex(line, -1) {
		out = append(out, line[last:at[0]]...)
		last = at[1]
		for i := range rules {
			if at[2*i+2] >= 0 {
				out = append(out, rules[i].becomes(line[at[0]:at[1]])...)
				break
			}
		}
	}
	return strings.Trim(string(append(out, line[last:]...)), " ")
}
