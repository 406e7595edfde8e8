package decode

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/redrive-mq/redrive/testenv/expect"
)

var shop = Options{Protobuf{
	Files: []string{"testdata/shop/order.proto"}, ImportPaths: []string{"testdata"},
	Queues: []QueueType{{Queues: []string{"orders.*"}, Message: "shop.Order"}, {Queues: []string{"items"}, Message: "shop.Item"}},
	Header: "x-proto-type", TypeProperty: true,
}}

// order has a field of every kind.
const order = `{
  "id": 9007199254740993,
  "customer": {
    "name": "Ada"
  },
  "items": [
    {
      "name": "tea",
      "price_cents": 18446744073709551615
    },
    {
      "name": "milk \"fresh\""
    }
  ],
  "state": "PAID",
  "placed": "2026-11-21T10:00:00.500Z",
  "counts": {
    "a": -1,
    "b": 9223372036854775807
  },
  "signature": "AP8=",
  "weight": 1.5,
  "card": "4111",
  "extra": {
    "@type": "type.googleapis.com/shop.Item",
    "name": "bag"
  },
  "labels": {
    "deep": [
      1,
      null,
      true
    ]
  },
  "points": 18446744073709551614,
  "deltas": [
    -1,
    0,
    1
  ],
  "gift": false,
  "part_of": {
    "id": 7
  },
  "by_place": {
    "-3": {
      "name": "x"
    },
    "12": {}
  },
  "rate": 0.1
}`

func orderBytes(t testing.TB, d *Decoder, document string) []byte {
	t.Helper()
	m, err := d.schemas.Load().find("shop.Order")
	must(t, err)
	b, err := d.schemas.Load().write(m, []byte(document), d.read(t.Context(), Body{}).budget())
	must(t, err)
	return b
}

func TestProtobufOfAKnownType(t *testing.T) {
	d := decoder(t, shop)
	b := orderBytes(t, d, order)
	r := d.Decode(t.Context(), Body{Bytes: b, Queue: "orders.eu"})
	if r.Format != "protobuf" || r.Text != order {
		t.Fatalf("%v\n%s", r.Steps, r.Text)
	}
	expect.Equal(t, r.Schema, "shop.Order (by the queue)", "the schema")
	if id := r.Value.(map[string]any)["id"]; id.(interface{ String() string }).String() != "9007199254740993" {
		t.Errorf("the id is %v", id)
	}
}

func TestWhatChoosesTheType(t *testing.T) {
	d := decoder(t, shop)
	item, _ := base64.StdEncoding.DecodeString("CgN0ZWE=")
	for _, c := range []struct {
		body Body
		want string
	}{
		{Body{Queue: "items"}, "shop.Item (by the queue)"},
		{Body{Queue: "orders.eu", Type: "shop.Item"}, "shop.Item (by the type property)"},
		{Body{Queue: "orders.eu", Type: "shop.Order", Headers: map[string]any{"x-proto-type": "shop.Item"}}, "shop.Item (by the header x-proto-type)"},
		{Body{Queue: "items", Type: "no.Such", Headers: map[string]any{"x-proto-type": 5}}, "shop.Item (by the queue)"},
		{Body{Queue: "q", ContentType: "application/protobuf", Type: "../../etc/passwd"}, ""},
		{Body{Queue: "q", ContentType: "application/protobuf", Type: "shop.State"}, ""},
	} {
		c.body.Bytes = item
		if r := d.Decode(t.Context(), c.body); r.Schema != c.want || r.Format != "protobuf" {
			t.Errorf("%+v: %q, %s, want %q (%v)", c.body, r.Schema, r.Format, c.want, r.Steps)
		}
	}
	r := d.Decode(t.Context(), Body{Bytes: item, Type: "no.Such", ContentType: "application/protobuf"})
	if !strings.Contains(r.Steps[0].Found, `the type property names "no.Such", which is no message type of the files that are loaded`) {
		t.Errorf("%v", r.Steps)
	}
}

func TestUnknownFieldsAreKept(t *testing.T) {
	d := decoder(t, shop)
	b := append(orderBytes(t, d, `{"id": 5}`), 0xfa, 0x7f, 2, 'h', 'i') // field 2047
	body := Body{Bytes: b, Queue: "orders.eu"}
	r := d.Decode(t.Context(), body)
	if !strings.Contains(r.Steps[0].Found, "[2047]") {
		t.Errorf("%v", r.Steps)
	}
	out, _, err := d.Encode(t.Context(), body, strings.Replace(r.Text, `"id": 5`, `"id": 6`, 1))
	if err != nil || !strings.HasSuffix(string(out), "\xfa\x7f\x02hi") || out[1] != 6 {
		t.Errorf("%q, %v", out, err)
	}
}

func TestAnEditedMessageIsCheckedBySchema(t *testing.T) {
	d := decoder(t, shop)
	body := Body{Bytes: orderBytes(t, d, order), Queue: "orders.eu"}
	for _, c := range []struct{ document, want string }{
		{"{\n  \"idd\": 1\n}", `(line 2:3): unknown field "idd"`},
		{`{"items": [{}, {"prise": 1}]}`, `unknown field "prise"`},
		{`{"items": [{}, {"price_cents": -1}]}`, "invalid value for uint64 field priceCents: -1"},
		{`{"id": 9223372036854775808}`, "invalid value for int64 field id: 9223372036854775808"},
		{`{"id": 1.5}`, "invalid value for int64 field id: 1.5"},
		{`{"customer": "Ada"}`, `unexpected token "Ada"`},
		{`{"state": "LOST"}`, `invalid value for enum field state: "LOST"`},
		{`{"placed": "yesterday"}`, `invalid google.protobuf.Timestamp value "yesterday"`},
		{`{"signature": "?"}`, `invalid value for bytes field signature: "?"`},
		{`{"card": "1", "voucher": "2"}`, `oneof shop.Order.payment is already set`},
		{`{"id": 1, "id": 2}`, `duplicate field "id"`},
		{`{"items": {}}`, "unexpected token {"},
		{`{"counts": {"a": "x"}}`, `invalid value for int64 field value: "x"`},
		{`{"by_place": {"x": {}}}`, `invalid value for int32 key: "x"`},
		{`{"extra": {"@type": "x/no.Such"}}`, `unable to resolve "x/no.Such"`},
		{`{"extra": {"@type": "x/shop.Item", "@unknown": "+n8CaGk="}}`, `unknown field "@unknown"`},
		{`{"extra": {"@type": "x/no.Such", "@value": "AAEC"}}`, `unable to resolve "x/no.Such"`},
		{`{"customer": {"@unknown": "+n8CaGk="}}`, `unknown field "@unknown"`},
		{`{"gift": 1}`, "invalid value for bool field gift: 1"},
		{`{"@unknown": "/w=="}`, "@unknown is not fields of Protobuf in base64"},
		{`{"@unknown": 1}`, "@unknown is not fields of Protobuf in base64"},
		{`[]`, "unexpected token ["},
		{`{`, "not JSON: line 1, column 2: unexpected end of JSON input"},
	} {
		if _, _, err := d.Encode(t.Context(), body, c.document); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n gives %v\n want  %s", c.document, err, c.want)
		}
	}
}

// A broken message shows the fields before the break, and the error is about the Protobuf,
// not about the base64 around it.
func TestBrokenProtobufInBase64ShowsItsBeginning(t *testing.T) {
	d := decoder(t, shop)
	whole := orderBytes(t, d, `{"id": 5, "customer": {"name": "Ada"}, "items": [{"name": "tea"}]}`)
	cut := whole[:len(whole)-2]
	inside := append([]byte(nil), whole...)
	inside[len(inside)-4] = 0xff // the length of a name within items
	for name, body := range map[string]Body{
		"cut":           {Bytes: cut},
		"cut, base64":   {Bytes: []byte(base64.StdEncoding.EncodeToString(cut))},
		"inner, base64": {Bytes: []byte(base64.StdEncoding.EncodeToString(inside)), ContentType: "application/x-protobuf"},
	} {
		body.Queue = "orders.eu"
		r := d.Decode(t.Context(), body)
		last := r.Steps[len(r.Steps)-1]
		if r.Format != "protobuf" || !r.Truncated || !strings.Contains(r.Text, `"Ada"`) || strings.Contains(r.Text, "tea") ||
			last.Decoder != "protobuf" || !strings.Contains(last.Found, "are shop.Order, which the queue chose: ") {
			t.Errorf("%s: %s %v\n%s\n%v", name, r.Format, r.Truncated, r.Text, r.Steps)
		}
		if strings.HasSuffix(name, "base64") && r.Steps[0].Decoder != "base64" {
			t.Errorf("%s: %v", name, r.Steps)
		}
		if _, _, err := d.Encode(t.Context(), body, r.Text); err == nil || !strings.Contains(err.Error(), "shown only in part") {
			t.Errorf("%s: an edit of a part: %v", name, err)
		}
	}
	// Broken in its first field there is nothing to show but the error of the right layer.
	r := d.Decode(t.Context(), Body{Queue: "orders.eu", ContentType: "application/x-protobuf", Bytes: []byte(base64.StdEncoding.EncodeToString([]byte("\x12\xffAda Lovelace")))})
	if len(r.Steps) < 2 || r.Steps[0].Decoder != "base64" || !strings.HasPrefix(r.Steps[1].Found, "not read as shop.Order") {
		t.Errorf("%v", r.Steps)
	}
	// A word that happens to be base64 stays a word.
	if r := d.Decode(t.Context(), Body{Queue: "orders.eu", Bytes: []byte("deadbeefdeadbeef")}); r.Text != "deadbeefdeadbeef" {
		t.Errorf("%s %v", r.Text, r.Steps)
	}
}

// The type that an Any names is looked up among the loaded types, not among those linked
// into the program.
func TestAnyIsResolvedInsideOnly(t *testing.T) {
	d := decoder(t, shop)
	b := []byte("\x5a\x2b\x0a\x29type.googleapis.com/google.protobuf.Empty")
	r := d.Decode(t.Context(), Body{Bytes: b, Queue: "orders.eu"})
	if !strings.Contains(r.Text, `"@value": ""`) {
		t.Errorf("%v %s", r.Steps, r.Text)
	}
}

func TestDescriptorSets(t *testing.T) {
	order, err := decoder(t, shop).schemas.Load().files.FindFileByPath("shop/order.proto")
	must(t, err)
	whole, bare := &descriptorpb.FileDescriptorSet{}, &descriptorpb.FileDescriptorSet{}
	bare.File = append(bare.File, protodesc.ToFileDescriptorProto(order))
	decoder(t, shop).schemas.Load().files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		whole.File = append(whole.File, protodesc.ToFileDescriptorProto(f))
		return true
	})
	write := func(name string, set *descriptorpb.FileDescriptorSet) string {
		b, err := proto.Marshal(set)
		must(t, err)
		file := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(file, b, 0o600))
		return file
	}
	d := decoder(t, Options{Protobuf{DescriptorSets: []string{write("shop.pb", whole)}, TypeProperty: true}})
	if r := d.Decode(t.Context(), Body{Bytes: []byte("\x08\x05"), Type: "shop.Order"}); r.Schema != "shop.Order (by the type property)" {
		t.Errorf("%v", r.Steps)
	}
	both := shop
	both.Protobuf.DescriptorSets = []string{write("shop.pb", whole)}
	decoder(t, both)
	if _, err := New(Options{Protobuf{DescriptorSets: []string{write("bare.pb", bare)}}}); err == nil || !strings.Contains(err.Error(), "--include_imports") {
		t.Errorf("a set without its imports: %v", err)
	}
}

func TestImportsStayBelowTheirPaths(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "schemas")
	must(t, os.Mkdir(inside, 0o700))
	secret := filepath.Join(dir, "secret.proto")
	must(t, os.WriteFile(secret, []byte("syntax = \"proto3\"; message S3cret {}"), 0o600))
	for _, path := range []string{"../secret.proto", "a/../../secret.proto", secret} {
		file := filepath.Join(inside, "order.proto")
		must(t, os.WriteFile(file, []byte("syntax = \"proto3\"; import \""+path+"\"; message Order { S3cret s = 1; }"), 0o600))
		if _, err := New(Options{Protobuf{Files: []string{file}, ImportPaths: []string{inside}}}); err == nil || !strings.Contains(err.Error(), "leads out of decode.protobuf.import_paths") {
			t.Errorf("an import of %s: %v", path, err)
		}
	}
}

func TestMistakesInTheConfigurationAreNamed(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.proto")
	must(t, os.WriteFile(broken, []byte("syntax = \"proto3\";\nmessage A {\n  strin x = 1;\n}\n"), 0o600))
	for _, c := range []struct {
		o    Protobuf
		want string
	}{
		{Protobuf{Files: []string{"absent.proto"}}, "absent.proto: no such file"},
		{Protobuf{Files: []string{broken}}, "broken.proto:3:3:"},
		{Protobuf{DescriptorSets: []string{"absent.pb"}}, "descriptor set absent.pb"},
		{Protobuf{DescriptorSets: []string{"testdata/shop/order.proto"}}, "it is no descriptor set"},
		{Protobuf{Files: []string{"testdata/shop/order.proto"}}, "shop/customer.proto"},
		{Protobuf{Files: []string{"testdata/shop/customer.proto"}, Queues: []QueueType{{[]string{"q"}, "shop.Custmer"}}}, `decode.protobuf.queues[0].message is "shop.Custmer", which is no message type`},
	} {
		if _, err := New(Options{c.o}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v\n gives %v\n want  %s", c.o, err, c.want)
		}
	}
}
