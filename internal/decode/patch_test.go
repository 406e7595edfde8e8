package decode

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAnEditChangesOnlyWhatOneChanged(t *testing.T) {
	d := decoder(t, Options{})
	const compact = `{"id":5,"price":1.0,"big":1e3,"name":"caf\u00e9 \/","items":[{"n":1},{"n":2},{"n":3}],"id":6}`
	const lines = "{\r\n\t\"a\" : [1, 2,3],\r\n\t\"b\" : {\r\n\t\t\"c\" : 1.50\r\n\t}\r\n}\r\n"
	const xml = "<a  x='1'><n>1</n><n>2</n><c/><p>t <b>u</b></p><e> </e></a>\n"
	for _, c := range []struct{ name, body, from, to, want string }{
		{"a value of compact JSON", compact, `"price": 1.0`, `"price": 2`,
			strings.Replace(compact, "1.0", "2", 1)},
		{"the first of two with one key", compact, `"id": 5`, `"id": 7`, strings.Replace(compact, ":5", ":7", 1)},
		{"the second of two with one key", compact, `"id": 6`, `"id": 7`, strings.Replace(compact, ":6", ":7", 1)},
		{"the digits of a number", compact, `1.0,`, `1.00,`, strings.Replace(compact, "1.0", "1.00", 1)},
		{"a key", compact, `"price"`, `"cost"`, strings.Replace(compact, "price", "cost", 1)},
		{"a member goes", compact, `  "price": 1.0,` + "\n", "", strings.Replace(compact, `"price":1.0,`, "", 1)},
		{"the last member goes", `{ "a": 1, "b": 2 }`, ",\n  \"b\": 2", "", `{ "a": 1 }`},
		{"the first member goes", `{ "a": 1,"b": 2 }`, "  \"a\": 1,\n", "", `{ "b": 2 }`},
		{"a member comes", compact, `"big"`, `"new": {"x": [1, 2]}, "big"`,
			strings.Replace(compact, `"big"`, `"new":{"x":[1,2]},"big"`, 1)},
		{"an element goes", compact, "    {\n      \"n\": 2\n    },\n", "", strings.Replace(compact, `{"n":2},`, "", 1)},
		{"an element comes", compact, "\"items\": [", `"items": ["x",`, strings.Replace(compact, `[{`, `["x",{`, 1)},
		{"elements of a list change, come and go", `[ 1.0, 2,3, {"a":  1}, 5]`, "", `[0, 1.0, 3, {"a": 2}, 5, 6]`,
			`[ 0, 1.0,3, {"a":  2}, 5, 6]`},
		{"the order", `{"a":1, "b":"\u0061"}`, "", `{"b": "a", "a": 1}`, `{"b":"\u0061", "a":1}`},
		{"an escape is no change", compact, `"caf\u00e9 \/"`, `"café /"`, compact},
		{"half a pair is another half", `["\ud800"]`, `\ud800`, `\ud801`, `["\ud801"]`},
		{"in lines", lines, "1.50", `{"d": [1]}`,
			strings.Replace(lines, "1.50", "{\r\n\t\t\t\"d\" : [\r\n\t\t\t\t1\r\n\t\t\t]\r\n\t\t}", 1)},
		{"a member comes in lines", lines, `"b"`, `"x": [], "b"`,
			strings.Replace(lines, "\t\"b\"", "\t\"x\" : [],\r\n\t\"b\"", 1)},
		{"all of it", " [1] \n", "", `{"a": [1, {}]}`, ` {"a":[1,{}]} ` + "\n"},
		{"of nothing", `{}`, "", `{"a": [1, {}]}`, `{"a":[1,{}]}`},
		{"to nothing", `{"a":[ 1 ]}`, "1", "", `{"a":[]}`},
		{"text in compact XML", xml, "<n>1<", "<n>one<", strings.Replace(xml, ">1<", ">one<", 1)},
		{"an attribute, and an element goes", xml, "", "<a y='2'>\n  <n>2</n>\n  <c/>\n  <p>t <b>u</b></p>\n  <e></e>\n</a>",
			"<a y='2'><n>2</n><c/><p>t <b>u</b></p><e> </e></a>\n"},
		{"an element comes in compact XML", xml, "<c/>", "<c/>\n  <new><x/></new>",
			strings.Replace(xml, "<c/>", "<c/><new><x/></new>", 1)},
		{"one comes in XML in lines", "<a>\r\n\t<b/>\r\n</a>", "<b/>", "<b/>\n  <c/>", "<a>\r\n\t<b/>\n  <c/>\r\n</a>"},
		{"an element changes places", xml, "", "<a  x='1'>\r\n  <c/>\r\n  <n>1</n>\r\n  <n>2</n>\r\n  <p>t <b>u</b></p>\r\n  <e></e>\r\n</a>",
			"<a  x='1'><c/><n>1</n><n>2</n><p>t <b>u</b></p><e> </e></a>\n"},
		{"a space", xml, "<n>1</n>", "<n> </n>", strings.Replace(xml, ">1<", "> <", 1)},
		{"a space goes", "<a><b>x</b></a>", "x", "", "<a><b></b></a>"},
		{"beside bytes that are not UTF-8", "{\"a\":\"caf\xe9\",\"b\":1}", "1", "2", "{\"a\":\"caf\xe9\",\"b\":2}"},
	} {
		b := Body{Bytes: []byte(c.body), ContentType: "application/json"}
		if c.body[0] == '<' {
			b.ContentType = "text/xml"
		}
		edited := d.Decode(t.Context(), b).Text
		if c.from != "" {
			edited = strings.Replace(edited, c.from, c.to, 1)
		} else {
			edited = c.to
		}
		if out, _, err := d.Encode(t.Context(), b, edited); err != nil || string(out) != c.want {
			t.Errorf("%s: %v, %s\nbecame %q\nwant   %q", c.name, err, edited, out, c.want)
		}
		// Compressed with another level: the bytes are kept too where nothing is changed.
		b.Bytes = []byte(gzipped(t, c.body))
		b.Bytes[8] = 2 // a level that this package does not write
		again := edited
		if c.want != c.body {
			again = d.Decode(t.Context(), b).Text + "\n"
		}
		if out, _, err := d.Encode(t.Context(), b, again); err != nil || !bytes.Equal(out, b.Bytes) {
			t.Errorf("%s: in gzip, not changed: %v, and other bytes", c.name, err)
		}
	}
}

// typed writes a document with random white space, escapes and duplicate keys.
func typed(t *rapid.T, v *value) string {
	lines := rapid.Bool().Draw(t, "white space")
	space := func() string {
		if !lines {
			return ""
		}
		return rapid.SampledFrom([]string{"", " ", "\n  ", "\r\n\t", "  "}).Draw(t, "space")
	}
	quoted := func(s string) string {
		p := printer{}
		p.text(s, nil)
		if s = string(p.b); rapid.Bool().Draw(t, "escaped") {
			s = strings.NewReplacer("/", `\/`, "k", `\u006B`, "é", `\u00e9`).Replace(s)
		}
		return s
	}
	var write func(v *value) string
	write = func(v *value) string {
		switch v.kind {
		case text:
			return quoted(v.text)
		case array, object:
			var items []string
			for i := range v.items {
				key := ""
				if v.kind == object {
					name := v.keys[i].text
					if rapid.IntRange(0, 3).Draw(t, "twice") == 0 {
						name = "k"
					}
					key = quoted(name) + space() + ":" + space()
				}
				items = append(items, space()+key+write(&v.items[i])+space())
			}
			if v.kind == object {
				return "{" + strings.Join(items, ",") + "}"
			}
			return "[" + strings.Join(items, ",") + "]"
		}
		p := printer{}
		p.value(v, 0)
		return string(p.b)
	}
	return space() + write(v) + space()
}

// One edit anywhere in a random document: the bytes before and after it stay, and the result is read as
// the edited document.
func TestAnEditLeavesTheBytesAroundIt(t *testing.T) {
	d := decoder(t, Options{})
	parse := func(rt *rapid.T, s []byte) *value {
		v, err := parseJSON(s, d.read(t.Context(), Body{}).budget())
		if err != nil {
			rt.Fatalf("%s: %v", s, err)
		}
		return v
	}
	canonical := func(v *value) string {
		p := printer{compact: true}
		p.value(v, 0)
		return string(p.b)
	}
	rapid.Check(t, func(rt *rapid.T) {
		first, second := document(rt, 0), document(rt, 1)
		original := []byte(typed(rt, &first))
		was := parse(rt, original)
		b := Body{Bytes: original, ContentType: "application/json"}
		shown := d.Decode(t.Context(), b).Text
		edited := parse(rt, []byte(shown))
		// Go down to a value in both.
		at, in := was, edited
		for len(at.items) > 0 && rapid.IntRange(0, 3).Draw(rt, "deeper") > 0 {
			i := rapid.IntRange(0, len(at.items)-1).Draw(rt, "item")
			at, in = &at.items[i], &in.items[i]
		}
		new := parse(rt, []byte(typed(rt, &second)))
		i := rapid.IntRange(0, len(in.items)).Draw(rt, "where")
		switch verb := rapid.SampledFrom([]string{"replace", "insert", "remove", "nothing"}).Draw(rt, "verb"); {
		case verb == "replace":
			*in = *new
		case verb == "insert" && (in.kind == array || in.kind == object):
			if in.kind == object {
				in.keys = append(in.keys[:i:i], append([]key{{text: "new", raw: []byte(`"new"`)}}, in.keys[i:]...)...)
			}
			in.items = append(in.items[:i:i], append([]value{*new}, in.items[i:]...)...)
		case verb == "remove" && i < len(in.items):
			if in.kind == object {
				in.keys = append(in.keys[:i:i], in.keys[i+1:]...)
			}
			in.items = append(in.items[:i:i], in.items[i+1:]...)
		}
		p := printer{verbatim: true}
		p.value(edited, 0)
		out, _, err := d.Encode(t.Context(), b, string(p.b))
		if err != nil {
			rt.Fatal(err)
		}
		start := cap(original) - cap(at.raw)
		before, after := original[:start], original[start+len(at.raw):]
		if !bytes.HasPrefix(out, before) || !bytes.HasSuffix(out, after) {
			rt.Fatalf("%q\nbecame\n%q\nand only %q was edited", original, out, at.raw)
		}
		if got := parse(rt, out); canonical(got) != canonical(edited) {
			rt.Fatalf("%q\nbecame\n%q\nwant\n%s", original, out, p.b)
		}
		if string(p.b) == shown && !bytes.Equal(out, original) {
			rt.Fatalf("%q was not edited, and became\n%q", original, out)
		}
		if !bytes.ContainsAny(original, jsonSpace) && verbatimSpace(parse(rt, out)) {
			rt.Fatalf("%q\nis compact, and became\n%q", original, out)
		}
	})
}

// verbatimSpace reports whether there is white space between the parts of a document.
func verbatimSpace(v *value) bool {
	pieces, end := v.pieces()
	spaces := end
	for i, it := range pieces {
		if spaces += it.lead + it.tail + strings.Trim(it.colon, ":"); verbatimSpace(&v.items[i]) {
			return true
		}
	}
	return spaces != ""
}
