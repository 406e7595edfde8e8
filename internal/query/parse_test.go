package query

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestTheCanonicalForm(t *testing.T) {
	for text, want := range map[string]string{
		"":         "",
		"  \t\n ":  "",
		"ACME":     "text:ACME",
		`"ACME"`:   "text:ACME",
		`"AC ME"`:  `text:"AC ME"`,
		`"a\"\\b"`: `text:"a\"\\b"`,
		`"C:\new"`: `text:C:\new`,
		"*":        "text:*",
		`"*"`:      `text:"*"`,
		"10..20":   `text:"10..20"`,
		`queue:orders.* state:parked reason:rejected error:"timeout" attempt:>3 age:>2h header.tenant:acme body.order.total:>100 text:"ACME"`: `queue:orders.* state:parked reason:rejected error:timeout attempt:>3 age:>2h header.tenant:acme body.order.total:>100 text:ACME`,
		"before:2026-11-21":               "failed:<2026-11-21",
		"after:2026-11-21T10:00Z":         "failed:>=2026-11-21T10:00Z",
		"attempt:1..5":                    "attempt:1..5",
		"age:1h..2h":                      "age:1h..2h",
		`body.n:"7"`:                      `body.n:"7"`,
		`body.n:"x"`:                      `body.n:x`,
		`body.n:"a*b"`:                    `body.n:"a*b"`,
		`header."a b":*`:                  `header."a b":*`,
		`header."a.b":c`:                  `header.a.b:c`,
		`body.s:""`:                       `body.s:""`,
		"-state:parked":                   "-state:parked",
		"NOT state:parked":                "-state:parked",
		"NOT NOT NOT state:parked":        "-state:parked",
		"a b OR c d":                      "(text:a text:b) OR (text:c text:d)",
		"a (b OR (c OR d)) AND e":         "text:a (text:b OR text:c OR text:d) text:e",
		"(a b) c":                         "text:a text:b text:c",
		"-(a b)":                          "-(text:a text:b)",
		"-(a)":                            "-text:a",
		"or and not":                      "text:or text:not",
		"a or b and c OR d":               "text:a OR (text:b text:c) OR text:d",
		"(a or) b and":                    "text:a text:or text:b text:and",
		"error:/a|b c/ d":                 "error:/a|b c/ text:d",
		`error:/a\/b/`:                    `error:/a\/b/`,
		"key:/orders/1":                   "key:/orders/1",
		`key:"/orders/"`:                  `key:"/orders/"`,
		"key:/orders":                     "key:/orders",
		"key:// x":                        "key:// text:x",
		"ORDER ANDROID":                   "text:ORDER text:ANDROID",
		`a "OR" b`:                        `text:a text:OR text:b`,
		"queue:größe.*":                   "queue:größe.*",
		"id:0193E0A4-0000-7000-8000-0001": "id:0193E0A4-0000-7000-8000-0001",
	} {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := q.String(); got != want {
			t.Errorf("%s\n is %s\nnot %s", text, got, want)
		}
		if (q.root == nil) != (want == "") {
			t.Errorf("%s is empty: %v", text, q.root == nil)
		}
	}
}

func TestErrorsPointAtTheCharacter(t *testing.T) {
	for text, want := range map[string]string{
		// the caret stands below the character
		"qeue:orders":             "^ there is no field \"qeue\"",
		"is:parked":               "^ there is no field \"is\"; expected one of: queue, state, reason, ",
		"ok stat:parked":          "   ^ there is no field \"stat\", perhaps state",
		"queue:":                  "      ^ expected a value, as in queue:orders.*",
		"queue: orders":           "      ^ expected a value",
		"queue:>a":                "      ^ queue takes no >",
		"state:gone":              `      ^ "gone": expected one of waiting, retried, parked, discarded`,
		"reason:tired":            `       ^ "tired": expected one of rejected, expired`,
		"attempt:>x":              `         ^ "x": expected a number`,
		"attempt:1..x":            `           ^ "x": expected a number`,
		"attempt:1..":             `        ^ expected a range`,
		"age:>2":                  `      ^`[1:] + ` "2": expected a duration`,
		"age:2h":                  "    ^ expected age:>2h, age:<2h or a range",
		"failed:yesterday":        `       ^ "yesterday": expected a date`,
		"before:>2026-11-21":      "       ^ before takes no >",
		"group:12":                `      ^ "12": expected a group's id`,
		"size:>1xb":               `      ^ "1xb": expected a size`,
		"header:x":                "^ expected a name or a path, as in header.tenant:acme",
		"header.:x":               "       ^ expected a name after header.",
		`body."a b"x`:             `          ^ expected a : and a value`,
		"body.a:>x":               `        ^ "x" is neither a number nor a time`,
		"body.a:1..x":             `       ^ expected a range of numbers or of times`,
		"(a":                      "^ there is no ) for this (",
		"a)":                      " ^ there is no ( before this )",
		"()":                      " ^ there is nothing between ( and )",
		"a OR":                    "    ^ the query ends here",
		"OR a":                    "^ something should stand before it",
		"a AND OR b":              "      ^ something should stand before it",
		"- a":                     " ^"[1:] + " something should follow the -",
		`error:"x`:                "      ^ there is no second quote",
		`"a"b`:                    "   ^ expected a space before this",
		`a"b"`:                    " ^ expected a space before this",
		`""`:                      "^ expected something between the quotes",
		"error:/a(/":              "      ^ not a regular expression: missing closing ): a(",
		"error:/(a{900}){900}/":   "      ^ not a regular expression: invalid repeat count",
		"error:/(.{9}x?){99}/":    "      ^ the regular expression is too large",
		"error:/a/\"b\"":          "         ^ expected a space before this",
		":x":                      "^ expected a field before the :",
		"größe:>1":                "^ there is no field \"größe\"",
		"ö größe:1":               "  ^ there is no field",
		strings.Repeat("(", 60):   strings.Repeat(" ", maxDepth+1) + "^ nested more than 50 deep",
		strings.Repeat("-", 60):   strings.Repeat(" ", maxDepth+1) + "^ nested more than 50 deep",
		strings.Repeat("a", 4001): strings.Repeat(" ", 4000) + "^ the query is longer than 4000 characters",
	} {
		_, err := Parse(text)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: no error", text)
			continue
		}
		line, below, _ := strings.Cut(e.Show(text), "\n")
		if line != text || !strings.HasPrefix(below, want) {
			t.Errorf("%.80s\n%s\nnot\n%s", line, below, want)
		}
	}
	e := &Error{At: 2, Msg: "x"}
	expect.Equal(t, e.Show("a\x1b\nb"), "a  b\n  ^ x", "control characters reach the terminal")
}

// queries of every form.
func queries() *rapid.Generator[string] {
	bare := rapid.StringMatching(`[a-zö*?.:\\<>=-]{1,6}`)
	quoted := rapid.Custom(func(t *rapid.T) string {
		return Quote(rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-c*?.\\"<> ]{1,5}`)).Draw(t, "text"))
	})
	value := rapid.OneOf(bare, quoted, rapid.SampledFrom([]string{"*", "parked", "rejected", "1h", "2026-11-21", "2026-11-21T10:00:00.5+01:00", "-1.50e3", "1kb", "5a1f0c2b9e3d4a76", "1..2", "1h..2h", "/a|b/", `/[a c]\/(?i)T/`,
		`"1".."2"`, "2026-11-01..2026-11-21"}))
	name := rapid.Custom(func(t *rapid.T) string {
		f := rapid.SampledFrom(append(fields[:len(fields):len(fields)], headerField, bodyField)).Draw(t, "field")
		if f.kind == anything {
			return f.name + rapid.OneOf(rapid.StringMatching(`[a-z.]{1,5}`), quoted).Draw(t, "path")
		}
		return f.name
	})
	term := rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 4).Draw(t, "bare") == 0 {
			return value.Draw(t, "word")
		}
		return name.Draw(t, "name") + ":" + rapid.SampledFrom([]string{"", ">", ">=", "<", "<="}).Draw(t, "op") + value.Draw(t, "value")
	})
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		open := 0
		for i := range rapid.IntRange(0, 6).Draw(t, "terms") {
			if i > 0 {
				b.WriteString(rapid.SampledFrom([]string{" ", " OR ", " AND ", " NOT ", " -"}).Draw(t, "with"))
			}
			if rapid.IntRange(0, 3).Draw(t, "(") == 0 {
				b.WriteString("(")
				open++
			}
			b.WriteString(term.Draw(t, "term"))
			if open > 0 && rapid.Bool().Draw(t, ")") {
				b.WriteString(")")
				open--
			}
		}
		return b.String() + strings.Repeat(")", open)
	})
}

// checkQuery checks any text: it parses to a query whose canonical form parses to the same,
// or fails with an error at a place in the text.
func checkQuery(t interface{ Fatalf(string, ...any) }, text string) {
	q, err := Parse(text)
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.At < 0 || e.At > utf8.RuneCountInString(text) || e.Msg == "" || e.Show(text) == "" {
			t.Fatalf("%q: %#v", text, err)
		}
		return
	}
	form := q.String()
	again, err := Parse(form)
	if err != nil {
		if utf8.RuneCountInString(form) > maxLength {
			return // quotes and text: can make it longer
		}
		t.Fatalf("%q has the form %q: %v", text, form, err)
	}
	if got := again.String(); got != form {
		t.Fatalf("%q has the form %q, and that %q", text, form, got)
	}
	for _, l := range corpus {
		if a, b := matches(q, l), matches(again, l); a != b {
			t.Fatalf("%q matches %v, its form %q %v: %+v", text, a, form, b, l.Record)
		}
	}
}

func TestTheCanonicalFormMeansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkQuery(t, queries().Draw(t, "query")) })
}

func FuzzParse(f *testing.F) {
	for _, d := range Fields() {
		f.Add(d.Example)
	}
	f.Add(`-(queue:a OR NOT "b\"") body."x y":1..2 age:>1d2h`)
	f.Fuzz(func(t *testing.T, text string) { checkQuery(t, text) })
}

func TestEachExampleParses(t *testing.T) {
	for _, d := range Fields() {
		expect.Err(t, expect.ErrOf(Parse(d.Example)), nil, "%s", d.Name)
	}
}

func TestComplete(t *testing.T) {
	for text, want := range map[string]string{
		"sta":             "state:",
		"queue:orders st": "state:",
		"(state:p":        "state:parked",
		"-reason:e":       "-reason:expired",
		"-(a OR -he":      "-header.",
		"state:parked":    "",
		"state:x":         "",
		`error:"st`:       "",
		"nowhere":         "",
		"queue:o":         "",
		"p":               "parked: policy:",
		"state:":          "state:waiting state:retried state:parked state:discarded",
	} {
		var got []string
		for _, s := range Complete(text) {
			got = append(got, s.Text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	expect.Equal(t, len(Complete("")), len(Fields()), "for nothing")
}
