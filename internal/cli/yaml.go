package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// yamlOf is v as YAML, with the names and the order of its JSON. Texts are quoted as in JSON,
// which YAML reads. (Libraries write characters that control a terminal unescaped.)
func yamlOf(v any) (string, error) {
	text, err := jsonOf(v, "")
	if err != nil {
		return "", err
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var out strings.Builder
	if err := yamlValue(&out, d, "", true); err != nil {
		return "", err
	}
	return strings.TrimPrefix(out.String(), "\n"), nil
}

// yamlValue writes the next value of d. What has several lines begins with a new
// one, except in a list (at its dash).
func yamlValue(out *strings.Builder, d *json.Decoder, indent string, fresh bool) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	open, isOpen := t.(json.Delim)
	if !isOpen {
		fmt.Fprintf(out, " %s\n", yamlScalar(t))
		return nil
	}
	empty := " {}\n"
	if open == '[' {
		empty = " []\n"
	}
	for first := true; d.More(); first = false {
		empty = ""
		switch {
		case first && fresh:
			out.WriteString("\n" + indent)
		case first:
			out.WriteString(" ")
		default:
			out.WriteString(indent)
		}
		if open == '[' {
			out.WriteString("-")
			err = yamlValue(out, d, indent+"  ", false)
		} else {
			var name json.Token
			if name, err = d.Token(); err == nil {
				out.WriteString(yamlScalar(name) + ":")
				err = yamlValue(out, d, indent+"  ", true)
			}
		}
		if err != nil {
			return err
		}
	}
	out.WriteString(empty)
	_, err = d.Token() // its end
	return err
}

// bare is text that needs no quotes in YAML, unless it is one of yamlWords.
var bare = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_/-]*$`)

var yamlWords = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)

func yamlScalar(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case string:
		if bare.MatchString(t) && !yamlWords.MatchString(t) {
			return t
		}
		text, _ := jsonOf(t, "")
		return beyond.ReplaceAllStringFunc(strings.TrimSuffix(text, "\n"), func(pair string) string {
			var high, low rune
			_, _ = fmt.Sscanf(pair, `\u%04x\u%04x`, &high, &low)
			return fmt.Sprintf(`\U%08x`, (high-0xd800)<<10+(low-0xdc00)+0x10000)
		})
	}
	return fmt.Sprint(t)
}

// beyond is a character beyond 0xffff as JSON escapes it, and YAML does not.
var beyond = regexp.MustCompile(`\\u[dD][89abAB][0-9a-f]{2}\\u[dD][c-fC-F][0-9a-f]{2}`)
