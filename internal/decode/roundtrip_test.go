package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"
)

// document draws a JSON document, with numbers that all formats can represent.
func document(t *rapid.T, depth int) value {
	k := rapid.SampledFrom([]kind{null, boolean, number, number, text, array, object}).Draw(t, "kind")
	if depth == 0 {
		k = object
	}
	v := value{kind: k}
	switch k {
	case boolean:
		v.text = fmt.Sprint(rapid.Bool().Draw(t, "boolean"))
	case number:
		v.text = rapid.SampledFrom([]string{"0", "-1", "127", "128", "-33", "65536", "9007199254740993", "18446744073709551615", "-9223372036854775808", "1.5", "0.1", "-2.5e-07", "3.0"}).Draw(t, "number")
	case text:
		v.text = rapid.String().Draw(t, "text")
	case array, object:
		n := rapid.IntRange(0, 4).Draw(t, "n")
		if depth > 4 {
			n = 0
		}
		for i := range n {
			v.items = append(v.items, document(t, depth+1))
			if k == object {
				v.keys = append(v.keys, key{text: fmt.Sprintf("k%d%s", i, rapid.StringN(0, 3, -1).Draw(t, "key"))})
			}
		}
	}
	return v
}

func printed(v value) string {
	p := printer{}
	p.value(&v, 0)
	return string(p.b)
}

// inLayers wraps bytes in random layers; the content type names the innermost format.
func inLayers(t *rapid.T, tb testing.TB, s string) (string, string) {
	encodings := []string{}
	for range rapid.IntRange(0, 4).Draw(t, "layers") {
		layer := rapid.SampledFrom([]string{"gzip", "zlib", "deflate", "zstd", "base64"}).Draw(t, "layer")
		s = map[string]func(string) string{
			"gzip":    func(s string) string { return gzipped(tb, s) },
			"zlib":    func(s string) string { return zlibbed(tb, s) },
			"deflate": func(s string) string { return deflated(tb, s) },
			"zstd":    func(s string) string { return zstded(tb, s) },
			"base64":  based,
		}[layer](s)
		encodings = append(encodings, layer)
	}
	return s, strings.Join(encodings, ", ")
}

// native converts a document to the types that libraries encode.
func native(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = native(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = native(v[k])
		}
	}
	return v
}

// A random document in any format and layers decodes to itself, and so does an edited JSON
// document.
func TestDocumentsGoThereAndBack(t *testing.T) {
	d := decoder(t, Options{})
	rapid.Check(t, func(rt *rapid.T) {
		first, second := document(rt, 0), document(rt, 0)
		kind := rapid.SampledFrom([]string{"json", "msgpack", "cbor"}).Draw(rt, "format")
		inner, err := []byte(printed(first)), error(nil)
		switch kind {
		case "msgpack":
			inner, err = msgpack.Marshal(native(first.values()))
		case "cbor":
			inner, err = cbor.Marshal(native(first.values()))
		}
		if err != nil {
			rt.Fatal(err)
		}
		outer, encoding := inLayers(rt, t, string(inner))
		b := Body{Bytes: []byte(outer), ContentType: "application/" + kind, ContentEncoding: encoding}
		r := d.Decode(t.Context(), b)
		if kind == "json" && r.Text != printed(first) || !bytes.Equal(r.Inner, inner) || !reflect.DeepEqual(r.Value, first.values()) {
			rt.Fatalf("%s\nwas read as %v\n%s", printed(first), r.Steps, r.Text)
		}
		if kind != "json" {
			return
		}
		if out, _, err := d.Encode(t.Context(), b, r.Text); err != nil || !bytes.Equal(out, b.Bytes) {
			rt.Fatalf("not edited, and not the same: %v", err)
		}
		// One value is another: the rest stays.
		edited := first
		if n := len(first.items); n > 0 {
			edited.items = append([]value{}, first.items...)
			edited.items[rapid.IntRange(0, n-1).Draw(rt, "edited")] = second
		} else {
			edited = second
		}
		var err2 error
		if b.Bytes, _, err2 = d.Encode(t.Context(), b, printed(edited)); err2 != nil {
			rt.Fatal(err2)
		}
		if r := d.Decode(t.Context(), b); !reflect.DeepEqual(r.Value, edited.values()) {
			rt.Fatalf("%s\nwas read as %v\n%s", printed(edited), r.Steps, r.Text)
		}
	})
}

// parseJSON accepts the same JSON as encoding/json, within the limits.
func TestJSONIsAsStrictAsGos(t *testing.T) {
	d := decoder(t, Options{})
	rapid.Check(t, func(rt *rapid.T) {
		doc := []byte(printed(document(rt, 0)))
		for range rapid.IntRange(0, 3).Draw(rt, "mistakes") {
			i := rapid.IntRange(0, len(doc)-1).Draw(rt, "at")
			doc[i] = rapid.SampledFrom([]byte(` "{}[]:,\0123eE+-.tfnu`+"\x00\x1f\x7f\xff")).Draw(rt, "byte")
		}
		_, err := parseJSON(doc, d.read(t.Context(), Body{}).budget())
		if ok := json.Valid(doc); ok != (err == nil) {
			rt.Fatalf("%q: encoding/json says %v, we say %v", doc, ok, err)
		}
	})
}

// Escapes decode as in encoding/json, including halves of surrogate pairs.
func TestEscapesAreReadAsGoReadsThem(t *testing.T) {
	d := decoder(t, Options{})
	rapid.Check(t, func(rt *rapid.T) {
		pieces := rapid.SliceOfN(rapid.SampledFrom([]string{`\ud83d`, `\ude00`, `\uD83D\uDE00`, `\u00e9`, `\u0000`, `\"`, `\\`, `\/`, `\b\f\n\r\t`, "a", "é", "😀"}), 0, 8).Draw(rt, "pieces")
		typed := `"` + strings.Join(pieces, "") + `"`
		var want string
		if err := json.Unmarshal([]byte(typed), &want); err != nil {
			rt.Fatal(err)
		}
		if v, err := parseJSON([]byte(typed), d.read(t.Context(), Body{}).budget()); err != nil || v.text != want {
			rt.Fatalf("%s: %q, %v, and Go reads %q", typed, v.text, err, want)
		}
	})
}

// A message with random fields converts to a document and back to the same message.
func TestMessagesGoThereAndBack(t *testing.T) {
	d := decoder(t, shop)
	m, err := d.schemas.Load().find("shop.Order")
	must(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(of ...string) string { return rapid.SampledFrom(of).Draw(rt, "value") }
		var fields []string
		for _, f := range []string{
			`"id": ` + draw("1", "-9223372036854775808", `"7"`), `"state": ` + draw(`"PAID"`, "1", "99"), `"signature": "AP8="`,
			`"weight": ` + draw("0.1", "1e300", `"NaN"`, `"-Infinity"`, "-0.0"), `"rate": ` + draw("0.1", "16777216", `"Infinity"`),
			`"counts": {"a": 1, "": -2}`, `"by_place": {"-1": {"name": "x"}, "10": {}, "9": {}}`, `"placed": ` + draw(`"2026-11-21T10:00:00Z"`, `"0001-01-01T00:00:00Z"`, `"9999-12-31T23:59:59.999999999Z"`),
			`"extra": ` + draw(`{}`, `{"@type": "x/shop.Item", "priceCents": "5"}`, `{"@type": "x/google.protobuf.Any", "value": {"@type": "x/google.protobuf.Timestamp", "value": "2026-11-21T10:00:00Z"}}`),
			`"labels": ` + draw(`{}`, `{"a": [1, {"b": null}]}`), `"points": ` + draw(`"18446744073709551615"`, "0"), `"deltas": [-1, 2147483647]`, `"gift": ` + draw("true", "false"),
			draw(`"card": ""`, `"voucher": "é"`), `"items": [{}, {"name": "x"}]`, `"part_of": {"part_of": {}}`, `"@unknown": "+n8CaGk="`,
		} {
			if rapid.Bool().Draw(rt, "is set") {
				fields = append(fields, f)
			}
		}
		raw := orderBytes(t, d, "{"+strings.Join(fields, ",")+"}")
		b := Body{Bytes: raw, Queue: "orders.eu"}
		r := d.Decode(t.Context(), b)
		if len(raw) == 0 {
			return
		}
		again := orderBytes(t, d, r.Text)
		before, after := dynamicpb.NewMessage(m), dynamicpb.NewMessage(m)
		if proto.Unmarshal(raw, before) != nil || proto.Unmarshal(again, after) != nil || !proto.Equal(before, after) {
			rt.Fatalf("%v\n%s\nbecame\n%s", fields, before, after)
		}
		if out, _, err := d.Encode(t.Context(), b, r.Text); err != nil || !bytes.Equal(out, raw) {
			rt.Fatalf("not edited, and not the same: %v", err)
		}
	})
}
