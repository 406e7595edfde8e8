package decode

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

func field(n protowire.Number, content string) string {
	return string(protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), []byte(content)))
}

func nested(levels int, inner string, around func(string) string) string {
	for range levels {
		inner = around(inner)
	}
	return inner
}

// bombs are bodies, small or large, that decode to much more.
func bombs(t testing.TB) map[string]Body {
	const mib = 1 << 20
	zeros := strings.Repeat("\x00", 16*mib)
	words := strings.Repeat("a word ", 3*mib)
	in := func(s string) Body { return Body{Bytes: []byte(s)} }
	as := func(kind, s string) Body {
		return Body{Bytes: []byte(s), ContentType: "application/" + kind, Queue: "orders.eu"}
	}
	anyOf := func(s string) string {
		return field(11, field(1, "x/shop.Order")+field(2, s))
	}
	return map[string]Body{
		"gzip of zeros":            in(gzipped(t, zeros)),
		"gzip of words":            in(gzipped(t, words)),
		"gzip of gzip of zeros":    in(gzipped(t, gzipped(t, zeros))),
		"zlib of zeros":            in(zlibbed(t, zeros)),
		"deflate of zeros":         {Bytes: []byte(deflated(t, zeros)), ContentEncoding: "deflate"},
		"zstd of zeros":            in(zstded(t, zeros)),
		"zstd of words":            in(zstded(t, words)),
		"zstd that claims a lot":   in("\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\x7f\x01\x00\x00"),
		"base64 many times":        in(nested(12, "a short text, of words", based)),
		"gzip many times":          in(nested(12, "a short text, of words", func(s string) string { return gzipped(t, s) })),
		"base64 of words":          in(based(words[:8*mib])),
		"deep json":                in(strings.Repeat("[", 4*mib) + strings.Repeat("]", 4*mib)),
		"deep json objects":        in(strings.Repeat(`{"a":`, mib)),
		"json of many values":      in("[" + strings.Repeat("1,", 4*mib-2) + "1]"),
		"json of many lists":       in("[" + strings.Repeat("[],", 2*mib) + "1]"),
		"json, indented":           in(strings.Repeat("[", 99) + strings.Repeat("1,", 240_000) + "1" + strings.Repeat("]", 99)),
		"json of one number":       as("json", strings.Repeat("9", 8*mib)),
		"json that is not UTF-8":   as("json", `"`+strings.Repeat("\xff", 8*mib-2)+`"`),
		"json of many keys":        in("{" + strings.Repeat(`"a":1,`, 200_000) + `"a":1}`),
		"text that is not UTF-8":   {Bytes: bytes.Repeat([]byte{0xff}, 9*mib), ContentType: "text/plain"},
		"latin 1":                  {Bytes: bytes.Repeat([]byte{0xff}, 8*mib), ContentType: "text/plain; charset=latin1"},
		"large text":               in(words[:20*mib]),
		"large bytes":              in(zeros),
		"UTF-16":                   in("\xff\xfe" + strings.Repeat("\xff\x4e", 2*mib)),
		"deep xml":                 in(strings.Repeat("<a>", 2*mib)),
		"deep xml, closed":         in(strings.Repeat("<a>", mib) + strings.Repeat("</a>", mib)),
		"xml of many elements":     in("<a>" + strings.Repeat("<b/>", 2*mib-10) + "</a>"),
		"xml of many attributes":   in("<a " + strings.Repeat(`b="" `, mib) + "/>"),
		"xml of openings":          in(strings.Repeat("<", 4*mib)),
		"xml behind a quoted end":  in("<a b='>' " + strings.Repeat(`c="" `, mib) + "/>"),
		"xml, indented":            in(strings.Repeat("<a>", 99) + strings.Repeat("<b/>", 100_000) + strings.Repeat("</a>", 99)),
		"a billion laughs":         as("xml", `<!DOCTYPE a [<!ENTITY b "`+strings.Repeat("ha", 1000)+`"><!ENTITY c "&b;&b;&b;&b;">]><a>`+strings.Repeat("&c;", 1000)+`</a>`),
		"deep messagepack":         as("msgpack", strings.Repeat("\x91", 8*mib)),
		"deep messagepack map":     as("msgpack", strings.Repeat("\x81", 8*mib)),
		"messagepack that claims":  as("msgpack", "\xdd\xff\xff\xff\xff\xdd\xff\xff\xff\xff"),
		"messagepack text claims":  as("msgpack", "\xdb\xff\xff\xff\xff"),
		"messagepack bytes claim":  as("msgpack", "\xc6\xff\xff\xff\xff"),
		"messagepack ext claims":   as("msgpack", "\xc9\xff\xff\xff\xff\x05"),
		"messagepack of many":      as("msgpack", "\xdd\x00\x7f\xff\xf0"+strings.Repeat("\x90", 0x7ffff0)),
		"messagepack of times":     as("msgpack", "\xdd\x00\x01\xff\xf0"+strings.Repeat("\xd6\xff\x00\x00\x00\x00", 0x1fff0)),
		"deep cbor":                as("cbor", strings.Repeat("\x81", 8*mib)),
		"deep cbor tags":           as("cbor", strings.Repeat("\xc6", 8*mib)),
		"deep cbor, open":          as("cbor", strings.Repeat("\x9f", 8*mib)),
		"cbor that claims":         as("cbor", "\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x5b\xff\xff\xff\xff\xff\xff\xff\xff"),
		"cbor of many":             as("cbor", "\x9f"+strings.Repeat("\x80", 8*mib-2)+"\xff"),
		"cbor of a large number":   as("cbor", "\xc2\x5a\x00\x7f\xff\x00"+strings.Repeat("\xff", 0x7fff00)),
		"cbor of large numbers":    as("cbor", "\x9f"+strings.Repeat("\xc2\x59\x04\x00"+strings.Repeat("\xff", 1024), 8000)+"\xff"),
		"cbor of many pieces":      as("cbor", "\x7f"+strings.Repeat("\x60", 8*mib-2)+"\xff"),
		"deep protobuf":            as("protobuf", nested(3000, "", func(s string) string { return field(16, s) })),
		"deep protobuf, not said":  in(nested(3000, "text", func(s string) string { return field(1, s) })),
		"protobuf of many":         as("protobuf", strings.Repeat("\x1a\x00", 4*mib)),
		"protobuf of many numbers": as("protobuf", field(14, strings.Repeat("\x01", 8*mib-10))),
		"protobuf of groups":       as("protobuf", strings.Repeat("\x0b", 8*mib)),
		"protobuf, guessed":        {Bytes: []byte(strings.Repeat("\x0d\x00\x00\x00\x00", mib)), ContentType: "application/protobuf"},
		"any in any":               as("protobuf", nested(200, "", anyOf)),
		"any in any, large":        as("protobuf", nested(30, field(7, zeros[:7*mib]), anyOf)),
		"json of a long key twice": in(`{"` + strings.Repeat("k", mib) + `": 1, "` + strings.Repeat("k", mib) + `": 1}`),
		"a registry's prefix":      in(strings.Repeat("\x00\x00\x00\x00\x01\x00", mib)),
	}
}

// says is a text that a step, or the result, must contain, for some bodies.
var says = map[string]string{
	"gzip of zeros":           "more than 100 times its size comes out: a bomb? It was stopped",
	"zstd of zeros":           "a bomb?",
	"zstd of words":           "a bomb?",
	"base64 many times":       "8 layers are the most that are undone",
	"deep json":               "is nested more than 100 deep",
	"json of many values":     "has more than 250000 values",
	"deep xml":                "is nested more than 100 deep",
	"xml behind a quoted end": "has a tag of more than 64 KiB",
	"xml of many attributes":  "has a tag of more than 64 KiB",
	"deep messagepack":        "is nested more than 100 deep",
	"messagepack of many":     "has more than 250000 values",
	"deep cbor tags":          "is nested more than 100 deep",
	"deep protobuf":           "is nested more than 100 deep",
	"protobuf of many":        "has more than 250000 values",
	"any in any":              "@value",
}

// The output of any body, and all memory that decoding it allocates, are bounded.
func TestBombs(t *testing.T) {
	d := decoder(t, shop)
	for name, b := range bombs(t) {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := d.Decode(t.Context(), b)
			runtime.ReadMemStats(&after)
			check(t, b, r)
			if said := fmt.Sprint(r.Steps, r.Text); !strings.Contains(said, says[name]) {
				t.Errorf("%.300s\nwant %s", said, says[name])
			}
			const most = 256 << 20
			took := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d bytes, %d MiB allocated: %s, %v", len(b.Bytes), took>>20, r.Format, r.Steps[len(r.Steps)-1].Found)
			if took > most {
				t.Errorf("%d bytes made it allocate %d MiB", len(b.Bytes), took>>20)
			}
		})
	}
}

// check holds for every body.
func check(t *testing.T, b Body, r *Result) {
	t.Helper()
	switch {
	case r.Size != len(b.Bytes):
		t.Errorf("the size is %d", r.Size)
	case len(r.Text) > maxOutput:
		t.Errorf("the text has %d bytes", len(r.Text))
	case len(r.Inner) > max(maxOutput, len(b.Bytes)):
		t.Errorf("%d bytes are inside", len(r.Inner))
	case !utf8.ValidString(r.Text):
		t.Error("the text is not UTF-8")
	case r.Format == "", len(r.Steps) == 0 && len(b.Bytes) > 0, len(r.Steps) > 30:
		t.Errorf("the format is %q after %d steps", r.Format, len(r.Steps))
	case r.Format == "binary" && r.Text != "":
		t.Error("bytes have a text")
	}
	for _, s := range r.Steps {
		if strings.Contains(s.Found, "mistake") || !utf8.ValidString(s.Found) || len(s.Found) > 2000 {
			t.Errorf("a step says %q", s.Found)
		}
	}
	depth(t, r.Value, 0)
}

func depth(t *testing.T, v any, at int) {
	if at > maxNesting+1 {
		t.Fatal("the value is nested too deep")
	}
	switch v := v.(type) {
	case map[string]any:
		for _, item := range v {
			depth(t, item, at+1)
		}
	case []any:
		for _, item := range v {
			depth(t, item, at+1)
		}
	case float64, int:
		t.Fatalf("a number is a %T", v)
	}
}

// Documents nested as deep as allowed can be decoded.
func TestAtTheLimitOfNesting(t *testing.T) {
	d := decoder(t, shop)
	for _, c := range []struct {
		body   Body
		format string
	}{
		{Body{Bytes: []byte(nested(maxNesting, "1", func(s string) string { return "[" + s + "]" }))}, "json"},
		{Body{Bytes: []byte(nested(maxNesting, "\x01", func(s string) string { return "\x91" + s })), ContentType: "application/msgpack"}, "messagepack"},
		{Body{Bytes: []byte(nested(maxNesting, "\x01", func(s string) string { return "\x81" + s })), ContentType: "application/cbor"}, "cbor"},
		{Body{Bytes: []byte(nested(maxNesting-1, "\x08\x01", func(s string) string { return field(16, s) })), Queue: "orders.eu"}, "protobuf"},
	} {
		if r := d.Decode(t.Context(), c.body); r.Format != c.format || c.format == "protobuf" && r.Schema == "" {
			t.Errorf("%s: %s %v", c.format, r.Format, r.Steps)
		}
	}
}

// A step that panics reports it, and the other steps continue.
func TestAPanicBecomesAWord(t *testing.T) {
	r := decoder(t, Options{}).read(t.Context(), Body{Bytes: []byte("x")})
	if r.attempt("json", func() bool { panic("oh") }) || !strings.Contains(r.result.Steps[len(r.result.Steps)-1].Found, "a mistake in it: oh") {
		t.Errorf("%v", r.result.Steps)
	}
}

// A cancelled call, and a body that takes too long, return what was decoded so far.
func TestTimeIsUp(t *testing.T) {
	d := decoder(t, Options{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, s := range []string{"[" + strings.Repeat("1,", 5000) + "1]", gzipped(t, "some text"), "x"} {
		r := d.Decode(gone, Body{Bytes: []byte(s)})
		if check(t, Body{Bytes: []byte(s)}, r); !r.Truncated || !strings.Contains(r.Steps[0].Found, "stopped: takes longer") {
			t.Errorf("%v", r.Steps)
		}
	}
	late := d.read(t.Context(), Body{})
	late.since = time.Now().Add(-2 * maxTime)
	if late.late() == nil {
		t.Error("time is never up")
	}
}

// FuzzDecode: no body, and nothing that a message says about it, panics or breaks a promise;
// an unedited document encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	d := decoder(f, shop)
	for _, c := range corpus(f, d) {
		f.Add(c.body.Bytes, c.body.Queue, c.body.ContentType, c.body.ContentEncoding, c.body.Type)
	}
	for _, s := range []string{"[", `{"a":`, "<a>", "\x91", "\x81", "\x9f", "\x0b", "\x00\x00\x00\x00\x01\x00"} {
		f.Add([]byte(strings.Repeat(s, maxNesting+2)), "orders.eu", "", "", "")
	}
	f.Add([]byte(orderBytes(f, d, order)), "orders.eu", "", "", "shop.Order")
	f.Fuzz(func(t *testing.T, data []byte, queue, contentType, contentEncoding, kind string) {
		b := Body{Bytes: data, Queue: queue, ContentType: contentType, ContentEncoding: contentEncoding, Type: kind}
		r := d.Decode(t.Context(), b)
		check(t, b, r)
		if out, _, err := d.Encode(t.Context(), b, r.Text); err == nil && !bytes.Equal(out, data) {
			t.Errorf("not edited, and %q became %q", data, out)
		}
		if out, _, err := d.Encode(t.Context(), b, r.Text+" "); err == nil {
			b.Bytes = out
			check(t, b, d.Decode(t.Context(), b))
		}
	})
}

// FuzzFormats gives each decoder bytes that the content type says are its format.
func FuzzFormats(f *testing.F) {
	d := decoder(f, shop)
	kinds := []string{"application/json", "text/xml", "application/msgpack", "application/cbor", "application/protobuf", "text/plain; charset=utf-16le"}
	for _, c := range corpus(f, d) {
		f.Add(c.body.Bytes)
		if raw, err := base64.StdEncoding.DecodeString(string(c.body.Bytes)); err == nil {
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, kind := range kinds {
			for _, encoding := range []string{"", "deflate", "zstd"} {
				b := Body{Bytes: data, ContentType: kind, ContentEncoding: encoding, Queue: "orders.eu"}
				check(t, b, d.Decode(t.Context(), b))
			}
		}
	})
}

// Recursive types, groups and extensions decode: a config file may name any.
func TestTypesThatHoldThemselves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "self.proto")
	must(t, os.WriteFile(file, []byte("syntax = \"proto2\";\nmessage A {\n  required A a = 1;\n  optional group G = 2 { optional A a = 1; }\n  extensions 100 to 200;\n}\nextend A { optional string note = 100; }\n"), 0o600))
	d := decoder(t, Options{Protobuf{Files: []string{file}, TypeProperty: true}})
	b := Body{Bytes: []byte("\x13\x0a\x00\x14\xa2\x06\x02hi"), Type: "A"}
	r := d.Decode(t.Context(), b)
	if inOneLine(r.Text) != `{ "G": { "a": {} }, "[note]": "hi" }` {
		t.Errorf("%v %s", r.Steps, r.Text)
	}
	if _, _, err := d.Encode(t.Context(), b, `{"[note]": "ho"}`); err == nil || !strings.Contains(err.Error(), "required field") {
		t.Errorf("%v", err)
	}
}

// A < in a comment or in CDATA does not start a tag, and so no long tag.
func TestOpeningsThatAreNoTags(t *testing.T) {
	d := decoder(t, shop)
	rest := strings.Repeat("<b/>", maxTag/4)
	for _, s := range []string{"<a><!-- b < c isn't a tag -->" + rest + "</a>", "<a><![CDATA[b < c isn't]]>" + rest + "</a>", "<?a b<c isn't?><a>" + rest + "</a>"} {
		if r := d.Decode(t.Context(), Body{Bytes: []byte(s)}); r.Format != "xml" {
			t.Errorf("%.40s: %s, %v", s, r.Format, r.Steps)
		}
	}
}

// A search over bodies decodes up to 100,000 of them.
func BenchmarkDecode(b *testing.B) {
	d := decoder(b, shop)
	order := orderBytes(b, d, order)
	for _, c := range []struct {
		name string
		body Body
	}{
		{"json", Body{Bytes: []byte(`{"id": 9007199254740993, "customer": {"name": "Ada", "mail": "ada@example.com"}, "items": [{"name": "tea", "price": 12.50}, {"name": "milk", "price": 1.20}], "note": "leave it at the door"}`), ContentType: "application/json"}},
		{"protobuf in gzip in base64", Body{Bytes: []byte(based(gzipped(b, string(order)))), Queue: "orders.eu"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.Decode(b.Context(), c.body)
			}
		})
	}
}
