package decode

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// guessing is the shop's types, without anything that names a message's.
var guessing = Options{Protobuf{Files: []string{"testdata/shop/order.proto"}, ImportPaths: []string{"testdata"}}}

func TestProtobufThatNothingNamesLooksLikeAType(t *testing.T) {
	d := decoder(t, guessing)
	b := Body{Bytes: orderBytes(t, d, order), Queue: "q", Guess: true}
	r := d.Decode(t.Context(), b)
	if r.Text != order || !slices.Equal(r.LooksLike, []string{"shop.Order"}) || r.Schema != "" || r.Steps[0].Found != "Protobuf that looks like shop.Order: nothing names its type, so this is a guess" {
		t.Errorf("%q %q %v\n%s", r.LooksLike, r.Schema, r.Steps, r.Text)
	}
	// Two types with a text and nothing else: both are named.
	b.Bytes, b.ContentType = []byte("\x0a\x03Ada"), "application/protobuf"
	r = d.Decode(t.Context(), b)
	if !slices.Equal(r.LooksLike, []string{"shop.Customer", "shop.Item"}) || !strings.Contains(r.Steps[0].Found, "looks like shop.Customer (also possible: shop.Item)") {
		t.Errorf("%q %v", r.LooksLike, r.Steps)
	}
	// A guess is never edited; once a person names the type, it is.
	if _, _, err := d.Encode(t.Context(), b, `{"name": "Bob"}`); err == nil || !strings.Contains(err.Error(), "of a type that nothing names") {
		t.Errorf("a guess was edited: %v", err)
	}
	b.As = "shop.Item"
	out, _, err := d.Encode(t.Context(), b, `{"name": "Bob", "price_cents": 5}`)
	if err != nil || string(out) != "\x0a\x03Bob\x10\x05" {
		t.Errorf("%q, %v", out, err)
	}
	if r := d.Decode(t.Context(), b); r.Schema != "shop.Item (by a person)" || r.LooksLike != nil {
		t.Errorf("%q %q", r.Schema, r.LooksLike)
	}
	// Queries and what else does not ask for a guess see field numbers.
	b.As, b.Guess = "", false
	if r := d.Decode(t.Context(), b); r.LooksLike != nil || inOneLine(r.Text) != `{ "1": "Ada" }` {
		t.Errorf("not asked for: %q %s", r.LooksLike, r.Text)
	}
}

func TestWhatIsNoMessageOfAType(t *testing.T) {
	d := decoder(t, guessing)
	for name, c := range map[string]struct{ bytes, not string }{
		"unknown fields":       {"\x0a\x03Ada\x2a\x03abc\x32\x03abc", "shop.Item"},
		"another wire type":    {"\x0a\x03Ada\x12\x03abc", "shop.Item"},
		"no UTF-8":             {"\x0a\x03A\xff\xfe\x10\x05", "shop.Item"},
		"a bool of 7":          {"\x08\x05\x78\x07", "shop.Order"},
		"no message inside":    {"\x08\x05\x12\x03\x0a\x09A", "shop.Order"},
		"fields of a map":      {"\x32\x04\x0a\x00\x18\x01", "shop.Order"},
		"an enum beyond int32": {"\x08\x05\x20\xff\xff\xff\xff\xff\x01", "shop.Order"},
	} {
		b := Body{Bytes: []byte(c.bytes), ContentType: "application/protobuf", Guess: true}
		if r := d.Decode(t.Context(), b); slices.Contains(r.LooksLike, c.not) || r.Format != "protobuf" {
			t.Errorf("%s: it looks like %q (%v)", name, r.LooksLike, r.Steps)
		}
	}
	for _, text := range []string{"\n\nabcdefghij", "an ordinary text", "deadbeefdeadbeef"} {
		if r := d.Decode(t.Context(), Body{Bytes: []byte(text), Guess: true}); r.Format != "text" {
			t.Errorf("%q is %s, like %q", text, r.Format, r.LooksLike)
		}
	}
}

// Of types that all fit, the one whose fields are there, with what serialisers write, is first.
func TestTheBestFitIsFirst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fits.proto")
	if err := os.WriteFile(file, []byte(`syntax = "proto3";
message Bytes { bytes a = 1; int64 b = 2; }
message Large { string a = 1; State b = 2; int64 c = 3; int64 d = 4; int64 e = 5; }
message Right { string a = 1; State b = 2; message Inner { string a = 1; State b = 2; } }
message Plain { string a = 1; int64 b = 2; }
message Older { string a = 1; }
enum State { NEW = 0; PAID = 1; }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	d := decoder(t, Options{Protobuf{Files: []string{file}}})
	for bytes, want := range map[string]string{
		"\x0a\x03Ada\x10\x01":                         "Right Right.Inner Large Plain Bytes",
		"\x0a\x03Ada\x10\x09":                         "Plain Bytes Right Right.Inner Large", // a number that the enum does not have
		"\x0a\x03Ada\x10\x00":                         "Right Right.Inner Large Plain Bytes", // a zero that none would write
		"\x0a\x05A\x00B\x01C\x10\x00":                 "Bytes Right Right.Inner Large Plain", // control characters are hardly a text
		"\x0a\x03Ada\x10\x01\x18\x01\x20\x02\x28\x03": "Large",
	} {
		r := d.Decode(t.Context(), Body{Bytes: []byte(bytes), ContentType: "application/protobuf", Guess: true})
		if got := strings.Join(r.LooksLike, " "); got != want {
			t.Errorf("%q looks like %s\n want %s", bytes, got, want)
		}
	}
}

// Among 50 types made at random, a message of one of them is first, unless its bytes fit the first
// one as well: written again as that type they are the same bytes.
func TestAmongFiftyTypesTheRightOneIsFirst(t *testing.T) {
	right, total := 0, 0
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		file := filepath.Join(t.TempDir(), "random.proto")
		if err := os.WriteFile(file, []byte(randomTypes(rnd)), 0o600); err != nil {
			t.Fatal(err)
		}
		d := decoder(t, Options{Protobuf{Files: []string{file}}})
		for range 100 {
			m, err := d.schemas.Load().find(fmt.Sprintf("T%d", rnd.IntN(50)))
			if err != nil {
				t.Fatal(err)
			}
			msg := dynamicpb.NewMessage(m)
			fillIn(rnd, msg, 0)
			bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
			if err != nil || len(bytes) == 0 {
				continue
			}
			r := d.Decode(t.Context(), Body{Bytes: bytes, ContentType: "application/protobuf", Guess: true})
			total++
			switch {
			case len(r.LooksLike) == 0:
				t.Fatalf("seed %d: a %s looks like nothing: %q, %v", seed, m.FullName(), bytes, r.Steps)
			case r.LooksLike[0] == string(m.FullName()):
				right++
			case !fitsAsWell(t, d, r.LooksLike[0], bytes):
				t.Fatalf("seed %d: a %s looks like %q, which it does not fit: %q", seed, m.FullName(), r.LooksLike, bytes)
			}
		}
	}
	t.Logf("%d of %d are first, the others fit the first as well", right, total)
	if right*100 < total*85 {
		t.Errorf("only %d of %d are first", right, total)
	}
}

// fitsAsWell asks Google's own code.
func fitsAsWell(t *testing.T, d *Decoder, name string, bytes []byte) bool {
	m, err := d.schemas.Load().find(name)
	if err != nil {
		t.Fatal(err)
	}
	msg := dynamicpb.NewMessage(m)
	if proto.Unmarshal(bytes, msg) != nil || hasUnknown(msg) {
		return false
	}
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	return err == nil && string(again) == string(bytes)
}

func hasUnknown(m protoreflect.Message) (unknown bool) {
	unknown = len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() == nil {
			return true
		}
		if f.IsList() {
			for i := range v.List().Len() {
				unknown = unknown || hasUnknown(v.List().Get(i).Message())
			}
			return true
		}
		unknown = unknown || hasUnknown(v.Message())
		return true
	})
	return unknown
}

var scalars = []string{"string", "bytes", "int32", "int64", "uint32", "uint64", "sint32", "bool", "double", "float", "fixed32", "fixed64", "E", "string", "string"}

func randomTypes(rnd *rand.Rand) string {
	var b strings.Builder
	b.WriteString("syntax = \"proto3\";\nenum E { A = 0; B = 1; C = 2; }\n")
	for i := range 50 {
		fmt.Fprintf(&b, "message T%d {\n", i)
		num := 0
		for range 2 + rnd.IntN(8) {
			num += 1 + rnd.IntN(2)
			kind, label := scalars[rnd.IntN(len(scalars))], ""
			switch rnd.IntN(8) {
			case 0:
				kind = fmt.Sprintf("T%d", rnd.IntN(50))
			case 1, 2:
				label = "repeated "
			case 3:
				label = "optional "
			}
			fmt.Fprintf(&b, "  %s%s f%d = %d;\n", label, kind, num, num)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// fillIn sets most fields to what programs send.
func fillIn(rnd *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case rnd.IntN(5) == 0:
		case f.Message() != nil && depth > 2:
		case f.IsList():
			for range 1 + rnd.IntN(3) {
				if f.Message() != nil {
					fillIn(rnd, m.Mutable(f).List().AppendMutable().Message(), depth+1)
				} else {
					m.Mutable(f).List().Append(someValue(rnd, f))
				}
			}
		case f.Message() != nil:
			fillIn(rnd, m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, someValue(rnd, f))
		}
	}
}

func someValue(rnd *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"Ada", "order-17", "Größe", "2026-11-24", "x"}[rnd.IntN(5)])
	case protoreflect.BytesKind:
		b := make([]byte, 1+rnd.IntN(8))
		for i := range b {
			b[i] = byte(rnd.IntN(256))
		}
		return protoreflect.ValueOfBytes(b)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(1 + rnd.IntN(2)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Round(rnd.Float64()*1e6)/100 + 1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1 + rnd.Float32())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(rnd.Int32N(2000) - 999)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(1 + rnd.Uint32N(1<<20))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1 + rnd.Int64N(1<<40))
	}
	return protoreflect.ValueOfUint64(1 + rnd.Uint64N(1<<40))
}

// A guess ends with its time, whatever the body and however many types there are.
func TestAGuessIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("syntax = \"proto3\";\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "message T%d { string a = 1; repeated T%d b = 2; repeated int64 c = 3; string d%d = %d; }\n", i, (i+1)%2000, i, i+4)
	}
	file := filepath.Join(t.TempDir(), "many.proto")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	d := decoder(t, Options{Protobuf{Files: []string{file}}})
	for name, body := range map[string]string{
		"many messages":     strings.Repeat("\x12\x05\x0a\x03Ada", 30_000),
		"a large text":      field(1, strings.Repeat("a word ", 1<<20)),
		"messages in texts": field(1, "Ada") + strings.Repeat(field(2, strings.Repeat(field(1, "Ada"), 20)), 2000),
	} {
		began := time.Now()
		r := d.Decode(t.Context(), Body{Bytes: []byte(body), ContentType: "application/protobuf", Guess: true})
		t.Logf("%s: %v: %v", name, time.Since(began), r.Steps)
		// By field numbers where the time was over before it began.
		if r.Format != "protobuf" || !strings.Contains(r.Steps[0].Found, " of 2000 types") && len(r.LooksLike) > 0 {
			t.Errorf("%s: all types were tried", name)
		}
	}
	deep := nested(90, field(1, "Ada"), func(s string) string { return field(2, s) })
	if r := d.Decode(t.Context(), Body{Bytes: []byte(deep), ContentType: "application/protobuf", Guess: true}); len(r.LooksLike) != mostGuessed || r.LooksLike[0] != "T0" {
		t.Errorf("a deep one looks like %q", r.LooksLike)
	}
}

func TestDefaultsAreShown(t *testing.T) {
	d := decoder(t, shop)
	b := Body{Bytes: []byte("\x08\x05\x1a\x00"), Queue: "orders.eu", Defaults: true}
	r := d.Decode(t.Context(), b)
	want := `{ "id": 5, "items": [ { "name": "", "price_cents": 0 } ], "state": "NEW", "counts": {}, "signature": "", "weight": 0.0, "deltas": [], "by_place": {}, "rate": 0.0 }`
	if inOneLine(r.Text) != want {
		t.Errorf("%s\n want %s", inOneLine(r.Text), want)
	}
	// What is shown can be edited, and is written without the defaults.
	out, _, err := d.Encode(t.Context(), b, strings.Replace(r.Text, `"id": 5`, `"id": 6`, 1))
	if err != nil || string(out) != "\x08\x06\x1a\x00" {
		t.Errorf("%q, %v", out, err)
	}
	b.Defaults = false
	if r := d.Decode(t.Context(), b); inOneLine(r.Text) != `{ "id": 5, "items": [ {} ] }` {
		t.Errorf("without: %s", r.Text)
	}
	// Each item of two bytes would have two: what is more than fits is left out, and said.
	b = Body{Bytes: []byte(strings.Repeat("\x1a\x00", 90_000)), Queue: "orders.eu", Defaults: true}
	r = d.Decode(t.Context(), b)
	if last := r.Steps[len(r.Steps)-1].Found; r.Format != "protobuf" || !strings.Contains(last, "not all defaults are shown") {
		t.Errorf("%s %v", r.Format, r.Steps)
	}
}
