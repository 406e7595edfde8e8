package query

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
)

func TestRegularExpressions(t *testing.T) {
	for text, want := range map[string]bool{
		"error:/timeout|refused/":    true, // in capitals or not
		"error:/(?-i)timeout/":       false,
		"error:/(?-i)Timeout/":       true,
		"error:/^connection/":        true,
		"error:/^timeout/":           false,
		`error:/after \d+s$/`:        true,
		`error:/after \d{3}s/`:       false,
		"error:/refused|unreach.*/":  false,
		"-error:/refused/":           true,
		"queue:/^orders[.]/":         true,
		"queue:/ORDERS/":             false, // names are compared exactly
		"header.tenant:/^ac/":        true,
		"header.n:/^7$/":             true,
		"header.deep.list.k:/v/":     true,
		"body.order.items.sku:/B-?/": true,
		"body.order.items.sku:/^X/":  false,
		"text:/acme (ltd|inc)/":      true,
		"text:/größe/":               true,
		"note:/^another$/":           false, // a message's notes are one text
		"note:/another/":             true,
		"type:/Placed$/":             true,
		`exchange:/sh\/op|shop/`:     true,
		"why:/failed [0-9]+ times/":  true,
		"error:*timeout*":            true,
		"error:conn*after":           true,
		"error:after*conn":           false,
		"error:time?ut":              true,
		`error:"time?ut"`:            false,
	} {
		if got := matches(parse(t, text), parked()); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for text, want := range map[string]string{
		`error:/a b\/c/  x`: `error:/a b\/c/ text:x`,
		`error:/\\\//`:      `error:/\\\//`,
		`error:/\d/`:        `error:/\d/`,
	} {
		if got := parse(t, text).String(); got != want || parse(t, want).String() != want {
			t.Errorf("%s is %s, not %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"error:/abc":     "character 7: there is no second /",
		"error:/a":       "put it in quotes",
		"error://":       "character 7: expected a regular expression",
		"error:/(/":      "character 7: missing closing )",
		"error:/*/":      "missing argument to repetition",
		"error:/a/b":     "character 10: expected a space",
		"attempt:/1/":    "attempt takes no regular expression, only a number",
		"age:/1/":        "age takes no",
		"state:/parked/": "state takes no",
		"group:/a/":      "group takes no",
		"error:/" + strings.Repeat("(a|b)?", 400) + "/":         "too large together",
		strings.Repeat("error:/a/ ", mostRegexes) + "error:/a/": "more than 10 conditions are regular expressions",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

// What tells without running an expression that it matches nothing is never wrong.
func TestAnExpressionIsLeftOutOnlyWhereItMatchesNothing(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "B", "K", "s", "ſ", "K", "timeout", "time", "(ab|c)", "(?:x|)", "y*", "z+", "q{0,2}", "w{2}", "[ab]", ".", "^", "$", "(?-i:Kq)", "é", `\d`, "|"})
	text := rapid.SampledFrom([]string{"a", "b", "k", "K", "S", "ſ", "K", "TIMEOUT", "time", "ab", "x", "yy", "z", "q", "ww", "é", "É", "1", " "})
	rapid.Check(t, func(t *rapid.T) {
		source := strings.Join(rapid.SliceOfN(piece, 1, 6).Draw(t, "expression"), "")
		in := strings.Join(rapid.SliceOfN(text, 0, 8).Draw(t, "text"), "")
		insensitive := rapid.Bool().Draw(t, "fold")
		x, err := compileRegex(source, insensitive)
		if err != nil {
			t.Skip("not an expression")
		}
		flags := ""
		if insensitive {
			flags = "(?i)"
		}
		f := fold(in)
		if want := regexp.MustCompile(flags + source).MatchString(in); x.in(&env{}, &f) != want {
			t.Fatalf("/%s/ in %q is not %v; it needs one of %q", source, in, want, x.needs)
		}
	})
}

func ask(l *store.Listed, r *decode.Result, why string) *Asked {
	return Ask(l, func() (*decode.Result, string) { return r, why })
}

// A rule means a message only where that is certain.
func TestWhatCannotBeKnownIsNeitherTrueNorFalse(t *testing.T) {
	text := &decode.Result{Format: "text", Text: "hello", Inner: []byte("hello")}
	binary := &decode.Result{Format: "binary", Inner: []byte{0xff}}
	for _, c := range []struct {
		query    string
		body     *decode.Result
		notTried string
		means    bool
		why      string
	}{
		{"body.order.total:>100", decoded(), "", true, ""},
		{"body.order.total:>200", decoded(), "", false, ""},
		{"-body.order.total:>200", decoded(), "", true, ""},
		{"-body.none:*", decoded(), "", true, ""}, // a document has no such value
		{"-body.none:*", text, "", false, ""},     // no document at all
		{"body.none:1", text, "", false, ""},
		{"-body.none:*", binary, "", false, ""},
		{"-text:nowhere", binary, "", false, ""},
		{"-text:nowhere", text, "", true, ""},
		{"text:timeout", binary, "", true, ""}, // its error
		{"body.a:1", nil, "too large", false, "too large"},
		{"-body.a:1", nil, "too large", false, "too large"},
		{"-text:nowhere", nil, "too large", false, "too large"},
		{"body.a:1 error:nowhere", nil, "too large", false, ""}, // false, whatever the body has
		{"body.a:1 OR error:timeout", nil, "too large", true, ""},
		{"-(body.a:1 error:timeout)", nil, "too large", false, "too large"},
		{"", nil, "too large", true, ""},
	} {
		a := ask(parked(), c.body, c.notTried)
		for range 2 { // asked again it answers the same
			if means, why := a.Means(parse(t, c.query)); means != c.means || why != c.why {
				t.Errorf("%s: %v %q, want %v %q", c.query, means, why, c.means, c.why)
			}
		}
	}
}

// The expressions of all rules look at a bounded part of a message.
func TestExpressionsOfRulesAreBounded(t *testing.T) {
	l := parked()
	l.Record.Message.Headers["long"] = strings.Repeat("x", mostByRules-100)
	a := ask(l, nil, "")
	q := parse(t, "header.long:/x.y/")
	if means, why := a.Means(q); means || why != "" {
		t.Errorf("the first is %v %q", means, why)
	}
	for _, text := range []string{"header.long:/x.y/", "-header.long:/x.y/"} {
		if means, why := a.Means(parse(t, text)); means || !strings.Contains(why, "64 KiB") {
			t.Errorf("%s: %v %q", text, means, why)
		}
	}
	if means, why := a.Means(parse(t, "error:timeout")); !means || why != "" {
		t.Errorf("a rule without an expression: %v %q", means, why)
	}
	if means, why := a.Means(parse(t, "error:/refused/")); means || why != "" {
		t.Errorf("one that is left out without running it: %v %q", means, why)
	}
}

func TestWhatIsLackingIsNotKnown(t *testing.T) {
	a := ask(parked(), nil, "")
	a.Lacks("not shown", "header.", "type")
	for text, want := range map[string]string{"header.x:1": "not shown", "-header.x:1": "not shown", "type:OrderPlaced": "not shown", "queue:orders.eu": ""} {
		if means, why := a.Means(parse(t, text)); means != (want == "") || why != want {
			t.Errorf("%s: %v %q", text, means, why)
		}
	}
}

func TestWhatRulesCannotAskFor(t *testing.T) {
	for _, text := range []string{"state:parked", "age:>1h", "due:<1h", "parked:*", "failed:*", "before:2026-01-01", "after:2026-01-01", "why:x", "note:x", "policy:x", "rule:x", "error:x -state:parked"} {
		var at *Error
		if err := parse(t, text).OnlyRules(); !errors.As(err, &at) || !strings.HasPrefix(at.Msg, "a rule decides before a message has ") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, f := range Fields() {
		if err := parse(t, f.Example).OnlyRules(); (err == nil) != inRules[strings.TrimSuffix(f.Name, ".")] && (err == nil) != inRules[f.Name] {
			t.Errorf("%s: %v", f.Example, err)
		}
	}
}

func FuzzAsked(f *testing.F) {
	for _, text := range []string{"error:/a|b/ OR -body.x:/y/", "text:/(a*)*b/", "header.deep.list:>0", `error:/\//`} {
		f.Add(text, "an error", []byte(`{"x":"y"}`))
	}
	f.Fuzz(func(t *testing.T, text, failed string, body []byte) {
		q, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(q.String()); err != nil || again.String() != q.String() {
			t.Fatalf("%q has the form %q: %v", text, q, err)
		}
		l := parked()
		l.Record.Error, l.Record.Message.Body = failed, body
		r := &decode.Result{Format: "text", Text: string(body), Inner: body}
		yes, why := ask(l, r, "").Means(q)
		if yes && why != "" {
			t.Fatalf("%q means it, and why is %q", text, why)
		}
		if no, _ := ask(l, r, "").Means(&Query{negate(orEverything(q))}); yes && no {
			t.Fatalf("%q is true, and so is its opposite", text)
		}
	})
}

func orEverything(q *Query) node {
	if q.root == nil {
		return and{}
	}
	return q.root
}
