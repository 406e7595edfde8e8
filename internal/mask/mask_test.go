package mask_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/mask"
)

func ofAll(e ...mask.Entry) mask.Of {
	return mask.New(e, mask.DefaultBodies()).Of(auth.Viewer, "orders", "")
}

func read(t *testing.T, b decode.Body) *decode.Result {
	t.Helper()
	d, err := decode.New(decode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d.Decode(t.Context(), b)
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct{ pattern, in, want string }{
		{"card_number", "card 4111 1111 1111 1111 failed", "card [masked] failed"},
		{"card_number", "4111111111111111", "[masked]"},
		{"card_number", "order 12 4111-1111-1111-1111", "order 12 [masked]"},
		{"card_number", "4111 1111 1111 1112", "4111 1111 1111 1112"},
		{"card_number", "1764309999999 and 20261128", "1764309999999 and 20261128"},
		{"card_number", "5500005555555559,340000000000009", "[masked],[masked]"},
		{"email", "to anna.b+c@example.co.uk: refused", "to [masked]: refused"},
		{"email", "?to=anna%40example.com", "[masked]"},
		{"iban", "from DE89 3704 0044 0532 0130 00 to FR1420041010050500013M02606", "from [masked] to [masked]"},
		{"iban", "IBAN DE00370400440532013000 is invalid", "IBAN [masked] is invalid"},
		{"iban", "de89370400440532013000 paid", "[masked] paid"},
		{"iban", "0198f0a0-ab12-7000-8000-000000000001", "0198f0a0-ab12-7000-8000-000000000001"},
		{"/cust-[0-9]+/", "for cust-17 é", "for [masked] é"},
	} {
		r := mask.New([]mask.Entry{{Patterns: []string{c.pattern}}}, mask.Bodies{})
		if got := r.Text("", c.in); got != c.want {
			t.Errorf("%s of %q: %q; want %q", c.pattern, c.in, got, c.want)
		}
	}
	for _, p := range []string{"", "iben", "/", "//", "/a*/", "/(/"} {
		if mask.CheckPattern(p) == nil {
			t.Errorf("the pattern %q is taken", p)
		}
	}
}

func TestPaths(t *testing.T) {
	const body = `{"customer": {"email": "SECRET", "Name": "Ann"}, "lines": [{"iban": "SECRET", "n": 1.50}, ` +
		`{"a": {"IBAN": ["SECRET", {"x": "SECRET"}]}}], "raw": "{\"iban\":\"SECRET\"}"}`
	of := ofAll(mask.Entry{Paths: []string{"body.customer.email", "body..iban"}})
	got := of.Body(read(t, decode.Body{Bytes: []byte(body)}))
	if strings.Contains(fmt.Sprint(*got), "SECRET") || strings.Count(got.Text, "[masked ") != 4 ||
		!strings.Contains(got.Text, `"n": 1.50`) || !strings.Contains(got.Text, `"Name": "Ann"`) {
		t.Errorf("%+v", got)
	}
	for _, p := range []string{"body.", "body...a", "header", "header.", "customer.email", "", "bodyx.a"} {
		if mask.CheckPath(p) == nil {
			t.Errorf("the path %q is taken", p)
		}
	}
}

// What cannot be masked is hidden, with its bytes and what the decoders say of it.
func TestWhatCannotBeMaskedIsHidden(t *testing.T) {
	paths, patterns := mask.Entry{Paths: []string{"body.iban"}}, mask.Entry{Patterns: []string{"/SECRET/"}}
	for _, c := range []struct {
		name  string
		body  decode.Body
		rules []mask.Entry
	}{
		{"no rule", decode.Body{Bytes: []byte(`{"iban":"SECRET"}`)}, nil},
		{"a rule of another queue", decode.Body{Bytes: []byte(`{"iban":"SECRET"}`)},
			[]mask.Entry{{Paths: []string{"body.iban"}, Queues: []string{"bills"}}}},
		{"only a header", decode.Body{Bytes: []byte(`{"iban":"SECRET"}`)}, []mask.Entry{{Paths: []string{"header.a"}}}},
		{"the body", decode.Body{Bytes: []byte(`{"iban":"SECRET"}`)}, []mask.Entry{{Paths: []string{"body"}}}},
		{"text", decode.Body{Bytes: []byte("iban SECRET")}, []mask.Entry{paths, patterns}},
		{"xml", decode.Body{Bytes: []byte("<iban>SECRET</iban>"), ContentType: "text/xml"}, []mask.Entry{paths}},
		{"a text of JSON", decode.Body{Bytes: []byte(`"SECRET"`), ContentType: "application/json"},
			[]mask.Entry{paths}},
		{"Protobuf without a schema",
			decode.Body{Bytes: []byte("\x0a\x06SECRET"), ContentType: "application/protobuf"}, []mask.Entry{paths}},
		{"bytes", decode.Body{Bytes: []byte("\x00\xff\x00SECRET\x00\x01")}, []mask.Entry{patterns}},
	} {
		of := ofAll(c.rules...)
		got := of.Body(read(t, c.body))
		if got.Text != "" || got.Hex != "" || got.Inner != nil || got.Value != nil || len(got.Steps) > 0 ||
			got.Masked == "" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	of := ofAll(patterns)
	long := &decode.Result{Format: "json", Text: `{"a": 1}`, Value: map[string]any{"a": 1}, Truncated: true}
	if got := of.Body(long); got.Text != "" || got.Masked == "" {
		t.Errorf("a part of a document: %+v", got)
	}
	of = ofAll(mask.Entry{Paths: []string{"body.iban"}, Patterns: []string{"/SECRET[0-9]/"}})
	// As decoded MessagePack and Protobuf.
	bytes := `{"b": {"$bytes": "U0VDUkVUMQ=="}, "c": {"@unknown": "CgZTRUNSRVQ="}}`
	if got, _ := of.Document(bytes); got != `{"b": {"$bytes": "[masked 1]"}, "c": {"@unknown": "[masked 2]"}}` {
		t.Errorf("bytes: %s", got)
	}
	hidden := mask.New([]mask.Entry{paths}, mask.Bodies{auth.Viewer: mask.NoBody})
	if of := hidden.Of(auth.Viewer, "orders", ""); !of.HidesBody() {
		t.Error("hidden shows the body")
	}
}

func TestHeaders(t *testing.T) {
	of := ofAll(mask.Entry{Paths: []string{"header.authorization", "header..iban"}, Patterns: []string{"/SECRET/"}})
	is := of.Headers(amqp.Table{"Authorization": int64(7), "t": amqp.Table{"IBAN": "x", "n": int32(1)},
		"list": []any{"a SECRET", []byte("SECRET\xff")}, "j": `{"iban": "x"}`, "SECRET": "n", "tenant": "acme"})
	want := amqp.Table{"Authorization": "[masked]", "t": amqp.Table{"IBAN": "[masked]", "n": int32(1)},
		"list": []any{"a [masked]", "[masked]"}, "j": "[masked]", "[masked]": "n", "tenant": "acme"}
	if !reflect.DeepEqual(is, want) {
		t.Errorf("%v", is)
	}
}

// A document of any shape never shows a masked leaf, is otherwise the same byte by byte, and is put back whole.
func TestDocuments(t *testing.T) {
	of := ofAll(mask.Entry{Paths: []string{"body..hidden", "body.top.inner"}, Patterns: []string{"/SECRET[0-9]/"}})
	for seed := range uint64(3000) {
		g := &generator{Rand: rand.New(rand.NewPCG(1, seed))}
		g.value(0, false)
		text := g.String()
		masked, err := of.Document(text)
		if err != nil {
			t.Fatalf("seed %d: %v: %s", seed, err, text)
		}
		if strings.Contains(masked, "SECRET") || strings.Contains(masked, "LEAF") {
			t.Fatalf("seed %d: %s is shown as %s", seed, text, masked)
		}
		if !json.Valid([]byte(masked)) {
			t.Fatalf("seed %d: not JSON: %s", seed, masked)
		}
		if g.secrets == 0 && masked != text {
			t.Fatalf("seed %d: %s is changed to %s", seed, text, masked)
		}
		back, err := of.Restore(text, masked)
		var was, is any
		if err == nil {
			_, _ = json.Unmarshal([]byte(text), &was), json.Unmarshal([]byte(back), &is)
		}
		if err != nil || !reflect.DeepEqual(was, is) {
			t.Fatalf("seed %d: %v: %s came back from %s as %s", seed, err, text, masked, back)
		}
	}
}

var names = []string{`"a"`, `"top"`, `"Hidden"`, `"hi\u0064den"`, `"a.hidden"`, `"é\n"`, `"kSECRET7"`}

type generator struct {
	*rand.Rand
	strings.Builder
	secrets int
}

func (g *generator) value(depth int, hidden bool) {
	leaf := func(plain string) {
		if hidden {
			plain = `"LEAF"`
		}
		g.WriteString(plain)
	}
	kind := g.IntN(7)
	if depth > 4 {
		kind = 2 + g.IntN(5)
	}
	space := strings.Repeat(" ", g.IntN(2))
	switch kind {
	case 0, 1:
		brackets := [2]string{"{", "}"}
		if kind == 1 {
			brackets = [2]string{"[", "]"}
		}
		g.WriteString(brackets[0] + space)
		for i := range g.IntN(4) {
			if i > 0 {
				g.WriteString("," + space)
			}
			below := hidden
			if kind == 0 {
				name := names[g.IntN(len(names))]
				g.WriteString(name + space + ":" + space)
				if strings.Contains(name, `den"`) {
					below = true
					g.secrets++
				}
				if strings.Contains(name, "SECRET") {
					g.secrets++
				}
			}
			g.value(depth+1, below)
		}
		g.WriteString(space + brackets[1])
	case 2:
		leaf([]string{"1.50", "-0", "1e400", "9007199254740993"}[g.IntN(4)])
	case 3:
		leaf([]string{"true", "null"}[g.IntN(2)])
	case 4:
		leaf(`"\u00e9 \ud83d\ude00 <b>&"`)
	case 5:
		if !hidden {
			g.secrets++
		}
		leaf(`"a SECRET1 and\tSECRET2"`)
	case 6:
		if !hidden {
			g.secrets++
		}
		leaf(`"[\"SECRET3\"]"`)
	}
}

func TestAnEditKeepsWhatIsMasked(t *testing.T) {
	of := ofAll(mask.Entry{Paths: []string{"body..iban"}, Patterns: []string{"email"}})
	const text = `{"lines": [{"iban": 17, "n": 1}, {"iban": {"x": "s"}, "n": 2}], "to": "mail a@b.c now", "note": ""}`
	masked, err := of.Document(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"n": 2`, `"n": 3`, strings.Replace(text, `"n": 2`, `"n": 3`, 1)},
		{` now`, ` later`, strings.Replace(text, ` now`, ` later`, 1)},
		{`"note": ""`, `"note": "b"`, strings.Replace(text, `"note": ""`, `"note": "b"`, 1)},
		{`"[masked 1]"`, `"other"`, ""},
		{`"note": ""`, `"note": "[masked 1]"`, ""},
		{`"iban": "[masked 1]", "n": 1`, `"ibam": "[masked 1]", "n": 1`, ""},
		{`"iban": "[masked 1]", `, ``, ""},
		{`"iban": "[masked 1]"`, `"iban": "[masked 1]x"`, ""},
		{`mail [masked 3]`, `mail`, ""},
		{`"note": ""`, `"iban": "mine"`, ""},
		{`"note": ""`, `"note": "x@y.z"`, ""}, // it would be shown otherwise than it was typed
		{`{"lines"`, `{lines`, ""},
	} {
		got, err := of.Restore(text, strings.Replace(masked, c.old, c.new, 1))
		if (err != nil) != (c.want == "") || got != c.want {
			t.Errorf("%s to %s: %v, %s", c.old, c.new, err, got)
		}
	}
	// The two lines are exchanged, with what is masked in them.
	turned := `{"lines": [{"iban": "[masked 2]"}, {"iban": "[masked 1]"}], "to": "[masked 3]"}`
	want := `{"lines": [{"iban": {"x": "s"}}, {"iban": 17}], "to": "a@b.c"}`
	if got, err := of.Restore(text, turned); err != nil || got != want {
		t.Errorf("%v, %s", err, got)
	}
}

func TestQueriesOnMaskedPaths(t *testing.T) {
	of := ofAll(mask.Entry{Paths: []string{"body.customer.email", "body..iban", "header.auth.token"}})
	for path, want := range map[string]bool{"customer.email": true, "customer.email.x": true, "customer": false,
		"a.b.IBAN": true, "iban": true, "lines.0.iban.x": true, "customer.name": false, "0.customer.0.email": true} {
		if of.HidesPath(path, false) != want {
			t.Errorf("body.%s: %v", path, !want)
		}
	}
	if !of.HidesPath("auth.token", true) || of.HidesPath("auth", true) {
		t.Error("header")
	}
}
