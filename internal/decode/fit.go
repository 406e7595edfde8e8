package decode

import (
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fit is how well bytes fit a type whose fields they have.
type fit struct {
	known    int // fields that the type has
	unknown  int // fields that it does not have, as a later version of it may
	odd      int // what hardly a serialiser of this type writes, such as a zero that it leaves out
	evidence int // what would hardly be right by chance: texts more than numbers
}

// mostlyKnown tells whether few fields are unknown: almost any bytes are a message of unknown ones.
func (f *fit) mostlyKnown() bool { return f.known > 4*f.unknown }

// fitting compares bytes with types, within the limits of one body.
type fitting struct {
	b     *budget
	until time.Time
}

func (w *fitting) late() error {
	if time.Now().After(w.until) {
		return errTime
	}
	return w.b.r.late()
}

// take asks for one more value; each type may see as many as a body may have.
func (w *fitting) take(depth int) error {
	if err := w.b.take(depth); err != nil {
		return err
	}
	if w.b.values%1024 == 0 {
		return w.late()
	}
	return nil
}

// message tells whether bytes can be a message of a type: each field that it knows is of its wire
// type and within its range, texts are UTF-8, and required fields are there. An error ends
// the search.
func (w *fitting) message(b []byte, m protoreflect.MessageDescriptor, depth int, f *fit) (bool, error) {
	seen := map[protowire.Number]bool{}
	oneofs := map[protoreflect.FullName]bool{}
	for len(b) > 0 {
		if err := w.take(depth); err != nil {
			return false, err
		}
		num, t, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false, nil
		}
		size := protowire.ConsumeFieldValue(num, t, b[n:])
		if size < 0 {
			return false, nil
		}
		content := b[n : n+size]
		b = b[n+size:]
		field := m.Fields().ByNumber(num)
		if field == nil {
			if m.IsMapEntry() {
				return false, nil
			}
			f.unknown++
			continue
		}
		f.known++
		if seen[num] && !field.IsList() && !field.IsMap() {
			f.odd++
		}
		if o := field.ContainingOneof(); o != nil && !o.IsSynthetic() && !seen[num] {
			if oneofs[o.FullName()] {
				f.odd++
			}
			oneofs[o.FullName()] = true
		}
		seen[num] = true
		if fits, err := w.field(content, num, t, field, depth, f); !fits || err != nil {
			return false, err
		}
	}
	required := m.RequiredNumbers()
	for i := range required.Len() {
		if !seen[required.Get(i)] {
			return false, nil
		}
	}
	return true, nil
}

func (w *fitting) field(b []byte, num protowire.Number, t protowire.Type, field protoreflect.FieldDescriptor, depth int, f *fit) (bool, error) {
	if !encodes(field, t) {
		return false, nil
	}
	if numbers := wireTypes[field.Kind()] != protowire.BytesType && t != protowire.StartGroupType; numbers && field.IsList() && field.IsPacked() != (t == protowire.BytesType) {
		f.odd++ // readers accept both, and writers write the one that is declared
	}
	switch t {
	case protowire.StartGroupType:
		content, _ := protowire.ConsumeGroup(num, b)
		f.evidence += 2
		return w.message(content, field.Message(), depth+1, f)
	case protowire.BytesType:
		content, _ := protowire.ConsumeBytes(b)
		if len(content) == 0 && leavesOutZero(field) {
			f.odd++
		}
		switch field.Kind() {
		case protoreflect.StringKind:
			if f.evidence += 3; !isText(content) && len(content) > 0 {
				f.odd++
			}
			return utf8.Valid(content), nil
		case protoreflect.BytesKind:
			f.evidence++
			return true, nil
		case protoreflect.MessageKind:
			f.evidence += 2
			return w.message(content, field.Message(), depth+1, f)
		}
		f.evidence++
		return w.packed(content, field, f)
	}
	n, _ := scalar(b, t)
	if n == 0 && leavesOutZero(field) {
		f.odd++
	}
	return isNumberOf(n, field, f), nil
}

// packed tells whether bytes are a packed list of a field's numbers.
func (w *fitting) packed(b []byte, field protoreflect.FieldDescriptor, f *fit) (bool, error) {
	t, evidence := wireTypes[field.Kind()], f.evidence
	for len(b) > 0 {
		if err := w.take(0); err != nil {
			return false, err
		}
		n, size := scalar(b, t)
		if size < 0 || !isNumberOf(n, field, f) {
			return false, nil
		}
		b = b[size:]
	}
	f.evidence = min(f.evidence, evidence+1) // a long list says no more
	return true, nil
}

// scalar reads a number as it is on the wire.
func scalar(b []byte, t protowire.Type) (n uint64, size int) {
	switch t {
	case protowire.Fixed32Type:
		v, size := protowire.ConsumeFixed32(b)
		return uint64(v), size
	case protowire.Fixed64Type:
		return protowire.ConsumeFixed64(b)
	}
	return protowire.ConsumeVarint(b)
}

// isNumberOf tells whether a number is one that a field can have.
func isNumberOf(n uint64, field protoreflect.FieldDescriptor, f *fit) bool {
	f.evidence++
	switch field.Kind() {
	case protoreflect.BoolKind:
		return n <= 1
	case protoreflect.EnumKind:
		if int64(n) != int64(int32(n)) {
			return false
		}
		if field.Enum().Values().ByNumber(protoreflect.EnumNumber(int32(n))) == nil {
			f.odd++
		} else {
			f.evidence++
		}
	case protoreflect.Int32Kind:
		return int64(n) == int64(int32(n))
	case protoreflect.Uint32Kind, protoreflect.Sint32Kind:
		return n <= math.MaxUint32
	case protoreflect.FloatKind:
		implausible(float64(math.Float32frombits(uint32(n))), 1e-30, 1e30, f)
	case protoreflect.DoubleKind:
		implausible(math.Float64frombits(n), 1e-100, 1e100, f)
	}
	return true
}

// implausible notes numbers such as an integer of the same size gives.
func implausible(x, least, most float64, f *fit) {
	if x = math.Abs(x); x != 0 && (x < least || x > most && !math.IsInf(x, 0)) {
		f.odd++
	}
}

// leavesOutZero tells whether a serialiser leaves out a field that is zero or empty.
func leavesOutZero(f protoreflect.FieldDescriptor) bool {
	return !f.HasPresence() && !f.IsMap() && !f.ContainingMessage().IsMapEntry() && (!f.IsList() || f.IsPacked() && f.Kind() != protoreflect.MessageKind)
}

var wireTypes = map[protoreflect.Kind]protowire.Type{
	protoreflect.BoolKind: protowire.VarintType, protoreflect.EnumKind: protowire.VarintType,
	protoreflect.Int32Kind: protowire.VarintType, protoreflect.Sint32Kind: protowire.VarintType, protoreflect.Uint32Kind: protowire.VarintType,
	protoreflect.Int64Kind: protowire.VarintType, protoreflect.Sint64Kind: protowire.VarintType, protoreflect.Uint64Kind: protowire.VarintType,
	protoreflect.Fixed32Kind: protowire.Fixed32Type, protoreflect.Sfixed32Kind: protowire.Fixed32Type, protoreflect.FloatKind: protowire.Fixed32Type,
	protoreflect.Fixed64Kind: protowire.Fixed64Type, protoreflect.Sfixed64Kind: protowire.Fixed64Type, protoreflect.DoubleKind: protowire.Fixed64Type,
	protoreflect.StringKind: protowire.BytesType, protoreflect.BytesKind: protowire.BytesType, protoreflect.MessageKind: protowire.BytesType,
	protoreflect.GroupKind: protowire.StartGroupType,
}

// encodes tells whether a field can be encoded as that type: lists of numbers also packed.
func encodes(f protoreflect.FieldDescriptor, t protowire.Type) bool {
	is := wireTypes[f.Kind()]
	return t == is || t == protowire.BytesType && f.IsList() && is != protowire.StartGroupType
}
