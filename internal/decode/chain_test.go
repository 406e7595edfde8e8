package decode

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/redrive-mq/redrive/testenv/expect"
)

func packedWith(t testing.TB, s string, make func(io.Writer) (io.WriteCloser, error)) string {
	t.Helper()
	var b bytes.Buffer
	w, err := make(&b)
	must(t, err)
	out, err := compressed(&b, w, []byte(s))
	must(t, err)
	return string(out)
}

func gzipped(t testing.TB, s string) string {
	return packedWith(t, s, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil })
}

func zlibbed(t testing.TB, s string) string {
	return packedWith(t, s, func(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil })
}

func deflated(t testing.TB, s string) string {
	return packedWith(t, s, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, 6) })
}

func zstded(t testing.TB, s string) string {
	return packedWith(t, s, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)) })
}

func based(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// inLines breaks base64 into lines as MIME does.
func inLines(s string) string {
	var b strings.Builder
	for part := range slices.Chunk([]byte(s), 76) {
		b.Write(part)
		b.WriteString("\r\n")
	}
	return b.String()
}

const (
	msgpackDoc = "\x82\xa2id\xcf\x00\x20\x00\x00\x00\x00\x00\x01\xa4name\xa3tea"
	cborDoc    = "\xa2\x62id\x1b\x00\x20\x00\x00\x00\x00\x00\x01\x64name\x63tea"
)

type example struct {
	name   string
	body   Body
	steps  string
	format string
	text   string // in one line
}

func corpus(t testing.TB, d *Decoder) []example {
	order := string(orderBytes(t, d, `{"id": 9007199254740993, "customer": {"name": "Ada"}}`))
	long := `{"text": "` + strings.Repeat("lorem ipsum ", 40) + `"}`
	in := func(s string) Body { return Body{Bytes: []byte(s)} }
	orders := func(s string) Body { return Body{Bytes: []byte(s), Queue: "orders.eu"} }
	const orderText = `{ "id": 9007199254740993, "customer": { "name": "Ada" } }`
	return []example{
		{"nothing", in(""), "", "empty", ""},
		{"json", in(`{"b":1,"a":[1,2.50,1e400,{}],"b":"\u00e9"}`), "json", "json", `{ "b": 1, "a": [ 1, 2.50, 1e400, {} ], "b": "\u00e9" }`},
		{"json with bytes", in("{\"a\":\"caf\xe9\"}"), "json", "json", `{ "a": "caf\xe9" }`},
		{"json with a mark", in("\xef\xbb\xbf{}"), "text json", "json", "{}"},
		{"json in UTF-16", in("\xff\xfe[\x00\xe9\x00]\x00"), "text text", "text", "[é]"},
		{"json in UTF-16 without a mark", in("\x00{\x00\"\x00a\x00\"\x00:\x001\x00}"), "text json", "json", `{ "a": 1 }`},
		{"a number that is said to be json", Body{Bytes: []byte("12"), ContentType: "application/json"}, "json", "json", "12"},
		{"a number", in("12"), "text", "text", "12"},
		{"broken json", Body{Bytes: []byte(`{"a":}`), ContentType: "application/vnd.shop+json; charset=utf-8"}, "json text", "text", `{"a":}`},
		{"json that is said to be text", Body{Bytes: []byte(`[1]`), ContentType: "text/plain"}, "json", "json", "[ 1 ]"},
		{"text", in("failed: no such order\n"), "text", "text", "failed: no such order"},
		{"a path", in("usr/local/bin"), "text", "text", "usr/local/bin"},
		{"an id", in("0198f0a0c0de4abc8def0123456789ab"), "text", "text", "0198f0a0c0de4abc8def0123456789ab"},
		{"many words", in("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqr"), "text", "text", "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqr"},
		{"latin 1", Body{Bytes: []byte("caf\xe9"), ContentType: "text/plain; charset=ISO-8859-1"}, "text text", "text", "café"},
		{"latin 1, not said", in("le caf\xe9 est ferm\xe9 pour aujourd'hui"), "text", "text", `le caf\xe9 est ferm\xe9 pour aujourd'hui`},
		{"bytes", in("\x00\x01\x02\xff\xfe\xfd\x00"), "hex", "binary", ""},
		{"xml", in(`<?xml version="1.0"?><a x="1"><b>t &amp; u</b><c/></a>`), "xml", "xml", `<?xml version="1.0"?> <a x="1"> <b>t &amp; u</b> <c/> </a>`},
		{"xml in latin 1", in("<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><a>\xe9</a>"), "text xml", "xml", `<?xml version="1.0" encoding="ISO-8859-1"?> <a>é</a>`},
		{"mixed xml", in("<p>a <b>c</b> d\n</p>"), "xml", "xml", "<p>a <b>c</b> d </p>"},
		{"html", in("<p>a<br></p>"), "text", "text", "<p>a<br></p>"},
		{"xml with an entity", Body{Bytes: []byte(`<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>`), ContentType: "text/xml"}, "xml text", "text", `<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>`},
		{"messagepack", in(msgpackDoc), "messagepack", "messagepack", `{ "id": 9007199254740993, "name": "tea" }`},
		{"messagepack of all kinds", Body{Bytes: []byte("\x9b\xc0\xc2\xc3\x05\xff\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xca\x7f\xc0\x00\x00\xc4\x01\xff\xd6\xff\x00\x00\x00\x00\xd4\x05\x01\x81\x01\x02"), ContentType: "application/msgpack"}, "messagepack", "messagepack",
			`[ null, false, true, 5, -1, 1.0, { "$float": "NaN" }, { "$bytes": "/w==" }, { "$time": "1970-01-01T00:00:00Z" }, { "$ext": 5, "$bytes": "AQ==" }, { "1": 2 } ]`},
		{"cbor", in(cborDoc), "cbor", "cbor", `{ "id": 9007199254740993, "name": "tea" }`},
		{"cbor of all kinds", Body{Bytes: []byte("\x9f\xf6\xf4\xf5\xf0\x20\xf9\x3c\x00\xfa\x7f\xc0\x00\x00\x41\xff\xc1\x00\xd8\x20\x61a\xc2\x49\x01\x00\x00\x00\x00\x00\x00\x00\x00\x3b\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x61a\x61b\xff\xbf\x01\x02\xff\xff"), ContentType: "application/cbor"}, "cbor", "cbor",
			`[ null, false, true, { "$simple": 16 }, -1, 1.0, { "$float": "NaN" }, { "$bytes": "/w==" }, { "$time": "1970-01-01T00:00:00Z" }, { "$tag": 32, "$value": "a" }, 18446744073709551616, -18446744073709551616, "ab", { "1": 2 } ]`},
		{"protobuf", orders(order), "protobuf", "protobuf", orderText},
		{"protobuf in base64", orders(based(order)), "base64 protobuf", "protobuf", orderText},
		{"protobuf in gzip in base64", orders(based(gzipped(t, order))), "base64 gzip protobuf", "protobuf", orderText},
		{"protobuf in zstd in base64 in lines", orders(inLines(based(zstded(t, order)))), "base64 zstd protobuf", "protobuf", orderText},
		{"protobuf of no known type", in("\x08\x05\x12\x06\x0a\x04mail\x12\x00"), "protobuf", "protobuf", `{ "1": 5, "2": [ { "1": "mail" }, "" ] }`},
		{"protobuf of no known type in base64", in(based("\x08\x05\x12\x0b\x0a\x03Ada\x1a\x04mail")), "base64 protobuf", "protobuf", `{ "1": 5, "2": { "1": "Ada", "3": "mail" } }`},
		{"protobuf of a registry", orders("\x00\x00\x00\x00\x07\x00" + order), "confluent protobuf", "protobuf", orderText},
		{"protobuf of a registry, an inner message", orders("\x00\x00\x00\x00\x07\x04\x02\x00" + order), "confluent protobuf", "protobuf", orderText},
		{"json of a registry", in("\x00\x00\x00\x00\x07{}"), "confluent json", "json", "{}"},
		{"json where protobuf is configured", orders(`{"id":1}`), "json", "json", `{ "id": 1 }`},
		{"text where protobuf is configured", orders("order 12 failed"), "protobuf text", "text", "order 12 failed"},
		{"gzip", in(gzipped(t, long)), "gzip json", "json", strings.Replace(long[1:], `"text"`, `{ "text"`, 1)[:len(long)] + " }"},
		{"gzip, said", Body{Bytes: []byte(gzipped(t, `{}`)), ContentEncoding: "gzip"}, "gzip json", "json", "{}"},
		{"gzip, wrongly said", Body{Bytes: []byte(`{}`), ContentEncoding: "gzip"}, "gzip json", "json", "{}"},
		{"gzip, broken", in(gzipped(t, long)[:45]), "gzip text", "text", "*"},
		{"zlib", in(zlibbed(t, `{}`)), "zlib json", "json", "{}"},
		{"zlib, said to be deflate", Body{Bytes: []byte(zlibbed(t, `{}`)), ContentEncoding: "deflate"}, "zlib json", "json", "{}"},
		{"deflate", Body{Bytes: []byte(deflated(t, `{}`)), ContentEncoding: "deflate"}, "deflate json", "json", "{}"},
		{"zstd", in(zstded(t, `{}`)), "zstd json", "json", "{}"},
		{"base64 without padding", in(base64.RawURLEncoding.EncodeToString([]byte(`{"a":"?>?>?>"}`))), "base64 json", "json", `{ "a": "?>?>?>" }`},
		{"base64 of text", in(based("a longer text, of words")), "base64 text", "text", "a longer text, of words"},
		{"base64 of anything, said", Body{Bytes: []byte("password"), ContentEncoding: "base64"}, "base64 hex", "binary", ""},
		{"two encodings", Body{Bytes: []byte(based(deflated(t, `{}`))), ContentEncoding: "deflate, base64"}, "base64 deflate json", "json", "{}"},
		{"base64 in base64", in(based(based(`{"a": [1, 2, 3]}`))), "base64 base64 json", "json", `{ "a": [ 1, 2, 3 ] }`},
		{"a python library's", Body{Bytes: []byte(`[]`), ContentType: "application/json", ContentEncoding: "utf-8"}, "json", "json", "[]"},
	}
}

func inOneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestTheCorpus(t *testing.T) {
	d := decoder(t, shop)
	for _, c := range corpus(t, d) {
		r := d.Decode(t.Context(), c.body)
		var steps []string
		for _, s := range r.Steps {
			steps = append(steps, s.Decoder)
		}
		if got := strings.Join(steps, " "); got != c.steps || r.Format != c.format || c.text != "*" && inOneLine(r.Text) != inOneLine(c.text) {
			t.Errorf("%s: %s, %s\n%s\nwant %s, %s\n%s\n%v", c.name, got, r.Format, inOneLine(r.Text), c.steps, c.format, c.text, r.Steps)
		}
	}
}

// readOnly lists the formats that cannot be edited.
func readOnly(r *Result) bool {
	return slices.Contains([]string{"binary", "messagepack", "cbor"}, r.Format) || r.Truncated
}

func TestAnUneditedDocumentGivesTheSameBytes(t *testing.T) {
	d := decoder(t, shop)
	for _, c := range corpus(t, d) {
		r := d.Decode(t.Context(), c.body)
		out, _, err := d.Encode(t.Context(), c.body, r.Text)
		if refuses := readOnly(r); err != nil != refuses || !refuses && !bytes.Equal(out, c.body.Bytes) {
			t.Errorf("%s: %q, %v", c.name, out, err)
		}
	}
}

// An edited document is decoded by the same steps.
func TestAnEditedDocumentGoesBackThroughTheSteps(t *testing.T) {
	d := decoder(t, shop)
	for _, c := range corpus(t, d) {
		r := d.Decode(t.Context(), c.body)
		edited := strings.Replace(strings.Replace(r.Text, "Ada", "Bea", 1), "tea", "coffee", 1) + "\n"
		if readOnly(r) || r.Format == "empty" || r.Format == "protobuf" && r.Schema == "" {
			continue
		}
		out, checks, err := d.Encode(t.Context(), c.body, edited)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		body := c.body
		body.Bytes = out
		now := d.Decode(t.Context(), body)
		same := slices.EqualFunc(r.Steps, now.Steps, func(a, b Step) bool { return a.Decoder == b.Decoder })
		if !same || inOneLine(now.Text) != inOneLine(edited) || len(checks) == 0 {
			t.Errorf("%s: %v %s\n%v", c.name, now.Steps, now.Text, checks)
		}
	}
}

// Both formats report duplicate keys, keys that are not texts, and limits.
func TestPackedMaps(t *testing.T) {
	d := decoder(t, Options{})
	for _, c := range []struct{ kind, body, text, says string }{
		{"msgpack", "\x82\xa1a\x01\xa1a\x02", `{ "a": 1, "a": 2 }`, `"a" is there twice`},
		{"cbor", "\xa2\x61a\x01\x61a\x02", `{ "a": 2 }`, `"a" is there twice`},
		{"cbor", "\x81\xa2\x01\x01\x01\x02", `[ { "1": 2 } ]`, `"1" is there twice`},
		{"msgpack", "\x82\xc4\x01\xff\x01\xc3\x02", `{ "{\"$bytes\": \"/w==\"}": 1, "true": 2 }`, ""},
		{"cbor", "\xa2\x41\xff\x01\xf5\x02", `{ "true": 2, "{\"$bytes\": \"/w==\"}": 1 }`, ""},
		{"msgpack", "\x81\x91\x01\x01", "*", "a key is a list or a map"},
		{"cbor", "\xa1\x81\x01\x01", "*", "not read as CBOR"},
		{"msgpack", "\x01\x02", "*", "1 bytes follow the first value"},
		{"msgpack", "\xc1", "*", "not read as MessagePack"},
		{"cbor", "\x01\x02", "*", "1 bytes of extraneous data"},
		{"msgpack", "\xd6\xff\x65\x53\xf1\x00", `{ "$time": "2023-11-14T22:13:20Z" }`, ""},
		{"msgpack", "\xc7\x02\x05\x01\x02", `{ "$ext": 5, "$bytes": "AQI=" }`, ""},
		{"msgpack", "\xc9\xff\xff\xff\xff\x05", "*", "it ends in the middle of a value"},
		{"msgpack", "\xca\x3d\xcc\xcc\xcd", "0.1", ""},
	} {
		r := d.Decode(t.Context(), Body{Bytes: []byte(c.body), ContentType: "application/" + c.kind})
		if says := fmt.Sprint(r.Steps); c.text != "*" && inOneLine(r.Text) != c.text || !strings.Contains(says, c.says) {
			t.Errorf("%q: %s\n%s\nwant %s, %s", c.body, says, r.Text, c.text, c.says)
		}
	}
}

func TestEditsThatAreRefused(t *testing.T) {
	d := decoder(t, Options{})
	for _, c := range []struct {
		body     Body
		document string
		want     string
	}{
		{Body{Bytes: []byte(`{"a": 1}`)}, "{\n  \"a\": x\n}", `not JSON: line 2, column 8: invalid character 'x' looking for beginning of value`},
		{Body{Bytes: []byte(`{"a": 1}`)}, `{"a": "\xff"}`, `not JSON: line 1, column 9: invalid character 'x' in string escape code`},
		{Body{Bytes: []byte("{\"a\": \"caf\xe9\"}")}, `{"a": "\x22b"}`, `not JSON: line 1, column 9: invalid character 'b' after object key:value pair`},
		{Body{Bytes: []byte(msgpackDoc)}, `{"id": 1}`, "a body that is messagepack cannot be edited as text"},
		{Body{Bytes: []byte(cborDoc)}, `{"id": 1}`, "a body that is cbor cannot be edited as text"},
		{Body{Bytes: []byte(`<a/>`)}, `<a>`, "not XML: it ends before </a>"},
		{Body{Bytes: []byte("\xff\x00\x01\xfe")}, "x", "a body that is binary cannot be edited as text"},
		{Body{Bytes: []byte("\x08\x05\x12\x04mail")}, "{}", "name its type under decode.protobuf"},
		{Body{Bytes: []byte(`a line \xff and its byte ` + "\xff")}, "x", "edit its raw bytes elsewhere"},
	} {
		if out, _, err := d.Encode(t.Context(), c.body, c.document); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %q, %v\n want %s", c.body.Bytes, out, err, c.want)
		}
	}
}

func init() { maxTime = time.Hour }

func decoder(t testing.TB, o Options) *Decoder {
	t.Helper()
	d, err := New(o)
	must(t, err)
	return d
}

var must = expect.NoError
