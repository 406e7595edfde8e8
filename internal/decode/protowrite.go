package decode

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// write makes a message of an edited document. protojson would do, but its errors
// name a line, not the field.
func (s *schemas) write(m protoreflect.MessageDescriptor, v *value) ([]byte, error) {
	msg := dynamicpb.NewMessage(m)
	if err := s.message(msg, v, ""); err != nil {
		return nil, err
	}
	if err := proto.CheckInitialized(msg); err != nil {
		return nil, errors.New(strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:")))
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(msg)
}

func wrong(at, expected string, v *value) error {
	is := v.describe()
	if v.kind == number || v.kind == text {
		is += fmt.Sprintf(" (%.40s)", shown(v.text))
	}
	return fmt.Errorf("%s is %s; expected %s", orRoot(at), is, expected)
}

func (s *schemas) message(m protoreflect.Message, v *value, at string) error {
	d := m.Descriptor()
	name := d.FullName()
	if name == anyName && v.find(keyAnyValue) == nil {
		return s.any(m, v, at)
	}
	if hasOwnJSON(name) && (v.kind != object || name == "google.protobuf.Struct" || name == "google.protobuf.Value") {
		p := printer{compact: true}
		p.value(v, 0)
		if err := (protojson.UnmarshalOptions{Resolver: s.types, RecursionLimit: mostNesting}).Unmarshal(p.b, m.Interface()); err != nil {
			return wrong(at, "a "+string(name)+" as Protobuf writes it in JSON", v)
		}
		return nil
	}
	if v.kind != object {
		return wrong(at, "an object, for "+string(name), v)
	}
	for i := range v.items {
		k, item := v.keys[i].text, &v.items[i]
		here := path(at, k)
		f, err := s.fieldOf(d, k)
		switch {
		case k == keyUnknown:
			err = setUnknown(m, item, here)
		case name == anyName && (k == keyAnyType || k == keyAnyValue):
			f = d.Fields().ByNumber(map[string]protoreflect.FieldNumber{keyAnyType: 1, keyAnyValue: 2}[k])
			err = s.set(m, f, item, here)
		case err != nil:
			err = fmt.Errorf("%s: %w", here, err)
		case m.Has(f):
			err = fmt.Errorf("%s is there twice", here)
		case f.ContainingOneof() != nil && m.WhichOneof(f.ContainingOneof()) != nil:
			err = fmt.Errorf("%s: %s is there too, and only one of them may be", here, m.WhichOneof(f.ContainingOneof()).TextName())
		case item.kind == null && (f.Message() == nil || f.Message().FullName() != "google.protobuf.Value"):
			// As protojson has it: not set.
		default:
			err = s.set(m, f, item, here)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *schemas) fieldOf(d protoreflect.MessageDescriptor, name string) (protoreflect.FieldDescriptor, error) {
	if ext, ok := strings.CutPrefix(name, "["); ok {
		t, err := s.types.FindExtensionByName(protoreflect.FullName(strings.TrimSuffix(ext, "]")))
		if err != nil || t.TypeDescriptor().ContainingMessage().FullName() != d.FullName() {
			return nil, fmt.Errorf("%s has no such extension", d.FullName())
		}
		return t.TypeDescriptor(), nil
	}
	fields := d.Fields()
	if f := fields.ByTextName(name); f != nil {
		return f, nil
	}
	if f := fields.ByJSONName(name); f != nil {
		return f, nil
	}
	var has []string
	for i := range fields.Len() {
		has = append(has, fields.Get(i).TextName())
	}
	return nil, fmt.Errorf("%s has no such field; it has %.400s", d.FullName(), strings.Join(has, ", "))
}

func setUnknown(m protoreflect.Message, v *value, at string) error {
	b, err := base64.StdEncoding.DecodeString(v.text)
	if err != nil || v.kind != text {
		return wrong(at, "base64", v)
	}
	for rest := b; len(rest) > 0; {
		_, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return wrong(at, "fields of Protobuf in base64", v)
		}
		rest = rest[n:]
	}
	m.SetUnknown(b)
	return nil
}

func (s *schemas) any(m protoreflect.Message, v *value, at string) error {
	url := v.find(keyAnyType)
	if v.kind == object && len(v.items) == 0 {
		return nil
	}
	if url == nil || url.kind != text {
		return wrong(at, "an object with "+keyAnyType, v)
	}
	inner, err := s.find(url.text[strings.LastIndexByte(url.text, '/')+1:])
	if err != nil {
		return fmt.Errorf("%s is %.100q, %w", path(at, keyAnyType), url.text, err)
	}
	msg, content := dynamicpb.NewMessage(inner), value{kind: object}
	for i := range v.items {
		if &v.items[i] != url {
			content.keys, content.items = append(content.keys, v.keys[i]), append(content.items, v.items[i])
		}
	}
	if inner.FullName() == anyName || hasOwnJSON(inner.FullName()) {
		only := content.find("value")
		if only == nil || len(content.items) != 1 {
			return wrong(at, "just "+keyAnyType+" and value", v)
		}
		content, at = *only, path(at, "value")
	}
	if err := s.message(msg, &content, at); err != nil {
		return err
	}
	b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(msg)
	fields := m.Descriptor().Fields()
	m.Set(fields.ByNumber(1), protoreflect.ValueOfString(url.text))
	m.Set(fields.ByNumber(2), protoreflect.ValueOfBytes(b))
	return err
}

func (s *schemas) set(m protoreflect.Message, f protoreflect.FieldDescriptor, v *value, at string) error {
	switch {
	case f.IsList():
		if v.kind != array {
			return wrong(at, "a list", v)
		}
		list := m.Mutable(f).List()
		for i := range v.items {
			item, err := s.single(f, list.NewElement, &v.items[i], fmt.Sprintf("%s[%d]", at, i))
			if err != nil {
				return err
			}
			list.Append(item)
		}
		return nil
	case f.IsMap():
		if v.kind != object {
			return wrong(at, "an object", v)
		}
		entries := m.Mutable(f).Map()
		for i := range v.items {
			here := path(at, v.keys[i].text)
			k, err := s.single(f.MapKey(), nil, mapKey(f.MapKey(), v.keys[i].text), here)
			if err != nil {
				return err
			}
			if entries.Has(k.MapKey()) {
				return fmt.Errorf("%s is there twice", here)
			}
			item, err := s.single(f.MapValue(), entries.NewValue, &v.items[i], here)
			if err != nil {
				return err
			}
			entries.Set(k.MapKey(), item)
		}
		return nil
	}
	val, err := s.single(f, func() protoreflect.Value { return m.NewField(f) }, v, at)
	if err == nil {
		m.Set(f, val)
	}
	return err
}

func mapKey(f protoreflect.FieldDescriptor, name string) *value {
	if f.Kind() == protoreflect.BoolKind {
		return &value{kind: boolean, text: name}
	}
	return &value{kind: text, text: name}
}

// single makes a value of a field's type; fresh makes an empty message of it.
func (s *schemas) single(f protoreflect.FieldDescriptor, fresh func() protoreflect.Value, v *value, at string) (out protoreflect.Value, err error) {
	// A number may be a text, as protojson writes those of 64 bits.
	numeric := v.kind == number || v.kind == text
	switch k := f.Kind(); k {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		out = fresh()
		return out, s.message(out.Message(), v, at)
	case protoreflect.BoolKind:
		if v.kind == boolean && (v.text == "true" || v.text == "false") {
			return protoreflect.ValueOfBool(v.text == "true"), nil
		}
		return out, wrong(at, "true or false", v)
	case protoreflect.StringKind:
		if v.kind == text && utf8.ValidString(v.text) {
			return protoreflect.ValueOfString(v.text), nil
		}
		return out, wrong(at, "a text", v)
	case protoreflect.BytesKind:
		if b, err := base64.StdEncoding.DecodeString(v.text); err == nil && v.kind == text {
			return protoreflect.ValueOfBytes(b), nil
		}
		return out, wrong(at, "base64", v)
	case protoreflect.EnumKind:
		return enum(f, v, at)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		bits := 64
		if k == protoreflect.FloatKind {
			bits = 32
		}
		n, err := strconv.ParseFloat(v.text, bits)
		if !numeric || err != nil || (math.IsInf(n, 0) || math.IsNaN(n)) && v.text != infinity && v.text != negativeInfinity && v.text != notANumb {
			return out, wrong(at, "a number", v)
		}
		if bits == 32 {
			return protoreflect.ValueOfFloat32(float32(n)), nil
		}
		return protoreflect.ValueOfFloat64(n), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		if n, err := strconv.ParseInt(v.text, 10, 32); numeric && err == nil {
			return protoreflect.ValueOfInt32(int32(n)), nil
		}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		if n, err := strconv.ParseInt(v.text, 10, 64); numeric && err == nil {
			return protoreflect.ValueOfInt64(n), nil
		}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		if n, err := strconv.ParseUint(v.text, 10, 32); numeric && err == nil {
			return protoreflect.ValueOfUint32(uint32(n)), nil
		}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if n, err := strconv.ParseUint(v.text, 10, 64); numeric && err == nil {
			return protoreflect.ValueOfUint64(n), nil
		}
	}
	return out, wrong(at, "a whole number that "+f.Kind().String()+" can hold", v)
}

func enum(f protoreflect.FieldDescriptor, v *value, at string) (out protoreflect.Value, err error) {
	values := f.Enum().Values()
	if n, err := strconv.ParseInt(v.text, 10, 32); err == nil && v.kind == number {
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n)), nil
	}
	if e := values.ByName(protoreflect.Name(v.text)); e != nil && v.kind == text {
		return protoreflect.ValueOfEnum(e.Number()), nil
	}
	var names []string
	for i := range min(values.Len(), 20) {
		names = append(names, string(values.Get(i).Name()))
	}
	return out, wrong(at, "one of "+strings.Join(names, ", "), v)
}
