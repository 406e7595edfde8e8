package decode

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Keys of a document that are no field of the message.
const (
	keyUnknown  = "@unknown" // fields the type does not know, in base64
	keyAnyType  = "@type"    // as protojson has it
	anyName     = "google.protobuf.Any"
	keyAnyValue = "@value" // of an Any whose type is not loaded, in base64
)

// schema reads Protobuf of a known type.
func (r *reading) schema(bool) bool {
	m, rule, why := r.schemas.choose(r.body)
	if why != "" {
		r.step("protobuf", why)
	}
	if m == nil {
		return false
	}
	name := string(m.FullName())
	p := &protoReader{b: r.budget(), s: r.schemas, defaults: r.body.Defaults}
	msg, err := p.read(r.data, m, 0)
	if err != nil {
		return r.broken(m, rule, err)
	}
	v := p.message(msg, 0)
	if len(p.unknown) > 0 && (r.trying || isText(r.data)) {
		return false // almost any text is a message of unknown fields
	}
	found := fmt.Sprintf("Protobuf %s, which %s chose", name, rule)
	if len(p.unknown) > 0 {
		slices.Sort(p.unknown)
		found += fmt.Sprintf("; it has fields the type does not know: %v, under %s", slices.Compact(p.unknown), keyUnknown)
	}
	r.document("protobuf", &v, false)
	r.result.Schema = fmt.Sprintf("%s (by %s)", name, rule)
	r.step("protobuf", found+p.leftOut())
	r.encode = func(document string) ([]byte, []string, error) {
		out, err := r.schemas.write(m, []byte(document), r.budget())
		return out, []string{"Protobuf " + name + ": every field is known and of its type"}, err
	}
	return true
}

// broken shows the fields in front of the first one that cannot be read.
func (r *reading) broken(m protoreflect.MessageDescriptor, rule string, why error) bool {
	name := string(m.FullName())
	p := &protoReader{b: r.budget(), s: r.schemas}
	whole := 0
	for whole < len(r.data) && !refused(why) {
		num, _, n := protowire.ConsumeField(r.data[whole:])
		if n < 0 || m.Fields().ByNumber(num) == nil {
			break
		}
		if _, err := p.read(r.data[whole:whole+n], m, 0); err != nil {
			break
		}
		whole += n
	}
	if whole > 0 && !isText(r.data) {
		p = &protoReader{b: r.budget(), s: r.schemas}
		msg, err := p.read(r.data[:whole], m, 0)
		if err != nil {
			return false
		}
		// Fields of another type show that it is no such message at all.
		if v := p.message(msg, 0); len(p.unknown) == 0 {
			r.document("protobuf", &v, false)
			r.partial = true
			r.result.Schema = fmt.Sprintf("%s (by %s)", name, rule)
			r.step("protobuf", fmt.Sprintf("only the first %d of %d bytes are %s, which %s chose: %v; these are the fields in them", whole, len(r.data), name, rule, why))
			return true
		}
	}
	r.step("protobuf", fmt.Sprintf("not read as %s, which %s chose: %v", name, rule, why))
	return false
}

// protoReader makes documents of messages of known types.
type protoReader struct {
	b       *budget
	s       *schemas
	unknown []int // numbers of fields
	// defaults: fields that are not set are shown with their defaults, as far as the budget goes.
	defaults bool
	cut      bool // not all are
}

// read unmarshals after it has counted: each empty message of 2 bytes takes hundreds.
func (p *protoReader) read(b []byte, m protoreflect.MessageDescriptor, depth int) (protoreflect.Message, error) {
	if err := p.count(b, m, depth); err != nil {
		return nil, err
	}
	msg := dynamicpb.NewMessage(m)
	o := proto.UnmarshalOptions{AllowPartial: true, RecursionLimit: mostNesting + 1, Resolver: p.s.types}
	if err := o.Unmarshal(b, msg); err != nil {
		return nil, protoError(err)
	}
	return msg, nil
}

func (p *protoReader) count(b []byte, m protoreflect.MessageDescriptor, depth int) error {
	for len(b) > 0 {
		if err := p.b.take(depth); err != nil {
			return err
		}
		num, t, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(num, t, b[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		content := b[n : n+size]
		b = b[n+size:]
		f := m.Fields().ByNumber(num)
		if f == nil {
			continue
		}
		switch {
		case t == protowire.BytesType && f.Message() != nil:
			content, _ = protowire.ConsumeBytes(content)
		case t == protowire.StartGroupType && f.Message() != nil:
			content, _ = protowire.ConsumeGroup(num, content)
		case t == protowire.BytesType && f.IsList() && f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind:
			if p.b.values += packedCount(content, f.Kind()); p.b.values > mostValues {
				return errValues
			}
			continue
		default:
			continue
		}
		if err := p.count(content, f.Message(), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// packedCount is how many numbers are in a packed list, or a little more.
func packedCount(b []byte, k protoreflect.Kind) (n int) {
	switch k {
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return len(b) / 8
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return len(b) / 4
	}
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	return n
}

func (p *protoReader) message(m protoreflect.Message, depth int) value {
	if v, ok := p.wellKnown(m, depth); ok {
		return v
	}
	v := value{kind: object}
	var fields []protoreflect.FieldDescriptor
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, f)
		return true
	})
	fields = append(fields, p.unset(m)...)
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number()) - int(b.Number()) })
	for _, f := range fields {
		v.keys, v.items = append(v.keys, key{text: f.TextName()}), append(v.items, p.field(f, m.Get(f), depth))
	}
	if u := m.GetUnknown(); len(u) > 0 {
		for b := u; len(b) > 0; {
			num, _, n := protowire.ConsumeField(b)
			if n < 0 {
				break
			}
			b = b[n:]
			if len(p.unknown) < 20 {
				p.unknown = append(p.unknown, int(num))
			}
		}
		v.keys, v.items = append(v.keys, key{text: keyUnknown}), append(v.items, base64Text(u))
	}
	return v
}

// leftOut says whether defaults are missing, for the text of a step.
func (p *protoReader) leftOut() string {
	if p.cut {
		return "; not all defaults are shown, there are too many"
	}
	return ""
}

// unset are the fields of a message that have a default on the wire: those without presence, as
// protojson's EmitDefaultValues has it. Each takes of the budget, since a message of two bytes may have
// a thousand.
func (p *protoReader) unset(m protoreflect.Message) (fields []protoreflect.FieldDescriptor) {
	all := m.Descriptor().Fields()
	for i := 0; p.defaults && i < all.Len(); i++ {
		if f := all.Get(i); !f.HasPresence() && !m.Has(f) {
			if p.b.take(0) != nil {
				p.defaults, p.cut = false, true
				break
			}
			fields = append(fields, f)
		}
	}
	return fields
}

func base64Text(b []byte) value {
	return value{kind: text, text: base64.StdEncoding.EncodeToString(b)}
}

func (p *protoReader) field(f protoreflect.FieldDescriptor, val protoreflect.Value, depth int) value {
	switch {
	case f.IsList():
		v := value{kind: array}
		list := val.List()
		for i := range list.Len() {
			v.items = append(v.items, p.single(f, list.Get(i), depth))
		}
		return v
	case f.IsMap():
		v := value{kind: object}
		var keys []protoreflect.MapKey
		val.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k); return true })
		slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { // numbers in their order, then texts
			if d := len(a.String()) - len(b.String()); d != 0 && f.MapKey().Kind() != protoreflect.StringKind {
				return d
			}
			return strings.Compare(a.String(), b.String())
		})
		for _, k := range keys {
			v.keys, v.items = append(v.keys, key{text: k.String()}), append(v.items, p.single(f.MapValue(), val.Map().Get(k), depth))
		}
		return v
	}
	return p.single(f, val, depth)
}

func (p *protoReader) single(f protoreflect.FieldDescriptor, val protoreflect.Value, depth int) value {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return p.message(val.Message(), depth+1)
	case protoreflect.BoolKind:
		return value{kind: boolean, text: fmt.Sprint(val.Bool())}
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(val.Enum()); e != nil {
			return value{kind: text, text: string(e.Name())}
		}
		return integer(int64(val.Enum()))
	case protoreflect.StringKind:
		return value{kind: text, text: val.String()}
	case protoreflect.BytesKind:
		return base64Text(val.Bytes())
	case protoreflect.FloatKind:
		return protoFloat(val.Float(), 32)
	case protoreflect.DoubleKind:
		return protoFloat(val.Float(), 64)
	}
	return value{kind: number, text: val.String()} // integers: exact
}

// protoFloat writes NaN and the infinities as protojson does.
func protoFloat(f float64, bits int) value {
	v := float(f, bits)
	if v.kind == object {
		return v.items[0]
	}
	return v
}

// wellKnown reads Google's own types as protojson does, but for 64-bit numbers.
func (p *protoReader) wellKnown(m protoreflect.Message, depth int) (value, bool) {
	name := m.Descriptor().FullName()
	if name == anyName {
		return p.any(m, depth), true
	}
	if !hasOwnJSON(name) || len(m.GetUnknown()) > 0 {
		return value{}, false
	}
	b, err := protojson.MarshalOptions{Resolver: p.s.types}.Marshal(m.Interface())
	if err != nil {
		return value{}, false // such as a time beyond the year 9999: as its fields
	}
	v, err := parseJSON(b, &budget{r: p.b.r})
	if err != nil {
		return value{}, false
	}
	if name == "google.protobuf.Int64Value" || name == "google.protobuf.UInt64Value" {
		v.kind = number
	}
	return *v, true
}

// ownJSON are the types that protojson writes in a way of their own, and which hold
// no type that would have to be found.
var ownJSON = []string{"Timestamp", "Duration", "FieldMask", "Struct", "Value", "ListValue", "DoubleValue", "FloatValue",
	"Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue"}

func hasOwnJSON(name protoreflect.FullName) bool {
	short, ours := strings.CutPrefix(string(name), "google.protobuf.")
	return ours && slices.Contains(ownJSON, short)
}

// anyDepth is how many levels an Any counts for: each holds a copy of all inside.
const anyDepth = 10

// any reads what an Any holds if its type is loaded: nothing else is asked.
func (p *protoReader) any(m protoreflect.Message, depth int) value {
	fields := m.Descriptor().Fields()
	url, b := m.Get(fields.ByNumber(1)).String(), m.Get(fields.ByNumber(2)).Bytes()
	if url == "" && len(b) == 0 && len(m.GetUnknown()) == 0 {
		return value{kind: object}
	}
	v := value{kind: object, keys: []key{{text: keyAnyType}}, items: []value{{kind: text, text: url}}}
	inner, err := p.s.find(url[strings.LastIndexByte(url, '/')+1:])
	if err == nil && len(m.GetUnknown()) == 0 {
		var msg protoreflect.Message
		if msg, err = p.read(b, inner, depth+anyDepth); err == nil {
			in := p.message(msg, depth+anyDepth)
			if inner.FullName() == anyName || hasOwnJSON(inner.FullName()) {
				in = value{kind: object, keys: []key{{text: "value"}}, items: []value{in}}
			}
			v.keys, v.items = append(v.keys, in.keys...), append(v.items, in.items...)
			return v
		}
	}
	v.keys, v.items = append(v.keys, key{text: keyAnyValue}), append(v.items, base64Text(b))
	if u := m.GetUnknown(); len(u) > 0 {
		v.keys, v.items = append(v.keys, key{text: keyUnknown}), append(v.items, base64Text(u))
	}
	return v
}
