package decode

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/policy"
)

// Keys of a document that are not fields of the message.
const (
	keyUnknown  = "@unknown" // fields the type does not know, in base64
	keyAnyType  = "@type"    // as protojson has it
	anyName     = "google.protobuf.Any"
	keyAnyValue = "@value" // of an Any whose type is not loaded, in base64
)

// schema decodes Protobuf of a configured type.
func (r *reading) schema(bool) bool {
	m, rule, why := r.schemas.choose(r.body)
	if why != "" {
		r.step("protobuf", why)
	}
	if m == nil {
		return false
	}
	name := string(m.FullName())
	p := &protoReader{b: r.budget(), s: r.schemas}
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
		found += fmt.Sprintf("; it has fields the type does not know: %v, under %s", slices.Compact(p.unknown),
			keyUnknown)
	}
	r.document("protobuf", &v, false)
	r.result.Schema = fmt.Sprintf("%s (by %s)", name, rule)
	r.step("protobuf", found)
	r.encode = func(document string) ([]byte, []string, error) {
		out, err := r.schemas.write(m, []byte(document), r.budget())
		return out, []string{"Protobuf " + name + ": every field is known and of its type"}, err
	}
	return true
}

// broken shows the fields before the first one that cannot be read.
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
		// Unknown fields show that it is not of this type.
		if v := p.message(msg, 0); len(p.unknown) == 0 {
			r.document("protobuf", &v, false)
			r.partial = true
			r.result.Schema = fmt.Sprintf("%s (by %s)", name, rule)
			r.step("protobuf", fmt.Sprintf("only the first %d of %d bytes are %s, which %s chose: %v; these are the "+
				"fields in them", whole, len(r.data), name, rule, why))
			return true
		}
	}
	r.step("protobuf", fmt.Sprintf("not read as %s, which %s chose: %v", name, rule, why))
	return false
}

type protoReader struct {
	b       *budget
	s       *schemas
	unknown []int // numbers of fields
}

// read counts before it unmarshals: an empty message of 2 bytes takes hundreds in memory.
func (p *protoReader) read(b []byte, m protoreflect.MessageDescriptor, depth int) (protoreflect.Message, error) {
	if err := p.count(b, m, depth); err != nil {
		return nil, err
	}
	msg := dynamicpb.NewMessage(m)
	o := proto.UnmarshalOptions{AllowPartial: true, RecursionLimit: maxNesting + 1, Resolver: p.s.types}
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
		case t == protowire.BytesType && f.IsList() && f.Kind() != protoreflect.StringKind &&
			f.Kind() != protoreflect.BytesKind:
			if p.b.values += packedCount(content, f.Kind()); p.b.values > maxValues {
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

// packedCount returns how many numbers are in a packed list, or a little more.
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
			v.keys, v.items = append(v.keys, key{text: k.String()}),
				append(v.items, p.single(f.MapValue(), val.Map().Get(k), depth))
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

// wellKnown converts Google's own types as protojson does, except 64-bit numbers.
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
		return value{}, false // such as a time after the year 9999: show its fields
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

// ownJSON lists the types for which protojson has a special form, and which contain no
// type to look up.
var ownJSON = []string{"Timestamp", "Duration", "FieldMask", "Struct", "Value", "ListValue", "DoubleValue",
	"FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue"}

func hasOwnJSON(name protoreflect.FullName) bool {
	short, ours := strings.CutPrefix(string(name), "google.protobuf.")
	return ours && slices.Contains(ownJSON, short)
}

// anyDepth is how many levels an Any counts for: it copies all that is inside.
const anyDepth = 10

// any converts the content of an Any if its type is loaded. It looks nowhere else.
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

// Protobuf configures message types, and how a message's type is chosen. A message can only choose among the types of
// these files.
type Protobuf struct {
	Files          []string // .proto
	ImportPaths    []string // folders of the files and their imports
	DescriptorSets []string // as protoc --include_imports --descriptor_set_out writes them
	Queues         []QueueType
	Header         string // the header that names a message's type, if any
	TypeProperty   bool   // the type property names it
}

// QueueType is the message type of some queues; the first match counts.
type QueueType struct {
	Queues  []string // names or patterns
	Message string
}

type schemas struct {
	o     Protobuf
	files *protoregistry.Files
	types *dynamicpb.Types // without those linked into the program
}

func load(o Protobuf) (*schemas, error) {
	s := &schemas{o: o, files: new(protoregistry.Files)}
	if err := s.compile(); err != nil {
		return nil, err
	}
	for _, path := range o.DescriptorSets {
		if err := s.descriptorSet(path); err != nil {
			return nil, fmt.Errorf("descriptor set %s: %w", path, err)
		}
	}
	s.types = dynamicpb.NewTypes(s.files)
	for i, q := range o.Queues {
		if _, err := s.find(q.Message); err != nil {
			return nil, fmt.Errorf("decode.protobuf.queues[%d].message is %q, %w", i, q.Message, err)
		}
	}
	return s, nil
}

// compile compiles the .proto files. Each is named by its path below an import path, as
// others import it; a file below none gets its own folder as import path.
func (s *schemas) compile() error {
	paths, names := slices.Clone(s.o.ImportPaths), []string{}
	for _, file := range s.o.Files {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("decode.protobuf.files: %w", err)
		}
		name := ""
		for _, p := range paths {
			if rel, err := filepath.Rel(p, file); err == nil && filepath.IsLocal(rel) {
				name = rel
				break
			}
		}
		if name == "" {
			paths, name = append(paths, filepath.Dir(file)), filepath.Base(file)
		}
		names = append(names, filepath.ToSlash(name))
	}
	if len(names) == 0 {
		return nil
	}
	below := &protocompile.SourceResolver{ImportPaths: paths}
	find := func(path string) (protocompile.SearchResult, error) {
		if !filepath.IsLocal(path) { // schemas are not always one's own
			return protocompile.SearchResult{}, hint.Errorf("name a path below one of them",
				"the import %.200q leads out of decode.protobuf.import_paths", path)
		}
		return below.FindFileByPath(path)
	}
	c := protocompile.Compiler{MaxParallelism: 1,
		Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(find))}
	files, err := c.Compile(context.Background(), names...)
	if err != nil {
		return fmt.Errorf("decode.protobuf.files: %w", err)
	}
	for _, f := range files {
		if err := s.register(f); err != nil {
			return fmt.Errorf("decode.protobuf.files: %w", err)
		}
	}
	return nil
}

// register registers a file and its imports, whose types an Any may contain.
func (s *schemas) register(f protoreflect.FileDescriptor) error {
	if _, err := s.files.FindFileByPath(f.Path()); err == nil {
		return nil
	}
	imports := f.Imports()
	for i := range imports.Len() {
		if in := imports.Get(i).FileDescriptor; !in.IsPlaceholder() {
			if err := s.register(in); err != nil {
				return err
			}
		}
	}
	if l, ok := f.(linker.File); ok {
		f = l // with its imports resolved
	}
	return s.files.RegisterFile(f)
}

func (s *schemas) descriptorSet(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(data, &set); err != nil {
		return errors.New("it is no descriptor set, as protoc --include_imports --descriptor_set_out writes it")
	}
	if len(set.File) == 0 {
		return errors.New("it holds no file")
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return fmt.Errorf("%w (was it made with protoc --include_imports?)", err)
	}
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		err = s.register(f)
		return err == nil
	})
	return err
}

func (s *schemas) find(name string) (protoreflect.MessageDescriptor, error) {
	name = strings.TrimPrefix(name, ".")
	if d, err := s.files.FindDescriptorByName(protoreflect.FullName(name)); err == nil {
		if m, ok := d.(protoreflect.MessageDescriptor); ok {
			return m, nil
		}
	}
	return nil, errors.New("which is no message type of the files that are loaded")
}

// choose returns a message's type and the rule that chose it: what the message says goes before its queue. why is set
// when the message names an unknown type.
func (s *schemas) choose(b Body) (m protoreflect.MessageDescriptor, rule, why string) {
	try := func(name, by string) bool {
		found, err := s.find(name)
		if err != nil {
			why = fmt.Sprintf("%s names %.100q, %v", by, shown(name), err)
			return false
		}
		m, rule = found, by
		return true
	}
	if s.o.Header != "" {
		switch name := b.Headers[s.o.Header].(type) {
		case string:
			if try(name, "the header "+s.o.Header) {
				return m, rule, ""
			}
		case []byte:
			if try(string(name), "the header "+s.o.Header) {
				return m, rule, ""
			}
		}
	}
	if s.o.TypeProperty && b.Type != "" && try(b.Type, "the type property") {
		return m, rule, ""
	}
	for _, q := range s.o.Queues {
		for _, pattern := range q.Queues {
			if policy.MatchQueue(pattern, b.Queue) && try(q.Message, "the queue") {
				return m, rule, why
			}
		}
	}
	return nil, "", why
}

func (s *schemas) chosen(b Body) bool { m, _, _ := s.choose(b); return m != nil }

// protobuf shows a message of an unknown type by field numbers, and guesses whether a field with a length is a text, a
// message, or bytes.
func (r *reading) protobuf(said bool) bool {
	w := &wireView{b: r.budget()}
	v, err := w.message(r.data, 0)
	if err != nil {
		if said || refused(err) {
			r.step("protobuf", "not read as Protobuf: "+err.Error())
		}
		return false
	}
	if !said && (!w.words || w.highest > 1000 || isText(r.data)) {
		return false
	}
	r.document("protobuf", &v, false)
	r.step("protobuf", "Protobuf, by field numbers: no message type is configured for it (decode.protobuf), so what "+
		"is inside is a guess")
	r.encode = func(string) ([]byte, []string, error) {
		return nil, nil, hint.Errorf("name its type under decode.protobuf in the config file",
			"the body is Protobuf of an unknown type, which cannot be edited")
	}
	return true
}

type wireView struct {
	b       *budget
	words   bool // it has a text that looks written by people
	highest protowire.Number
}

func (w *wireView) message(b []byte, depth int) (v value, err error) {
	v.kind = object
	if err := w.b.take(depth); err != nil {
		return v, err
	}
	at := map[protowire.Number]int{}
	for len(b) > 0 {
		if err := w.b.take(depth); err != nil {
			return v, err
		}
		num, t, n := protowire.ConsumeTag(b)
		if n < 0 {
			return v, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(num, t, b[n:])
		if size < 0 {
			return v, protowire.ParseError(size)
		}
		item, err := w.field(num, t, b[n:n+size], depth)
		if err != nil {
			return v, err
		}
		b, w.highest = b[n+size:], max(w.highest, num)
		i, again := at[num]
		switch {
		case !again:
			at[num] = len(v.items)
			v.keys, v.items = append(v.keys, key{text: strconv.Itoa(int(num))}), append(v.items, item)
		case v.items[i].kind == array:
			v.items[i].items = append(v.items[i].items, item)
		default:
			v.items[i] = value{kind: array, items: []value{v.items[i], item}}
		}
	}
	return v, nil
}

func (w *wireView) field(num protowire.Number, t protowire.Type, b []byte, depth int) (value, error) {
	switch t {
	case protowire.VarintType:
		n, _ := protowire.ConsumeVarint(b)
		return integer(n), nil
	case protowire.Fixed32Type:
		n, _ := protowire.ConsumeFixed32(b)
		w.b.values += 2
		return special("fixed32", integer(uint64(n)), "float", protoFloat(float64(math.Float32frombits(n)), 32)), nil
	case protowire.Fixed64Type:
		n, _ := protowire.ConsumeFixed64(b)
		w.b.values += 2
		return special("fixed64", integer(n), "double", protoFloat(math.Float64frombits(n), 64)), nil
	case protowire.StartGroupType:
		content, _ := protowire.ConsumeGroup(num, b)
		return w.message(content, depth+1)
	}
	content, _ := protowire.ConsumeBytes(b)
	if isText(content) {
		w.words = w.words || len(content) >= 4 && strings.ContainsFunc(string(content), unicode.IsLetter)
		return value{kind: text, text: string(content)}, nil
	}
	words, highest := w.words, w.highest
	v, err := w.message(content, depth+1)
	if err != nil && !refused(err) {
		w.words, w.highest = words, highest
		return bytesValue(content), nil
	}
	if err != nil {
		return v, fmt.Errorf("field %d: %w", num, err)
	}
	return v, nil
}

// write encodes an edited document, as protojson does. protojson cannot express fields that the type does not know:
// write keeps those of the outermost message, and refuses a document with such fields further in, or with an Any whose
// type is not loaded.
func (s *schemas) write(m protoreflect.MessageDescriptor, document []byte, b *budget) ([]byte, error) {
	v, err := parseJSON(document, b)
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	var unknown []byte
	if i := slices.IndexFunc(v.keys, func(k key) bool { return k.text == keyUnknown }); i >= 0 {
		if unknown, err = unknownFields(&v.items[i]); err != nil {
			return nil, err
		}
		v.keys, v.items = slices.Delete(v.keys, i, i+1), slices.Delete(v.items, i, i+1)
		p := printer{}
		p.value(v, 0)
		document = p.b
	}
	msg := dynamicpb.NewMessage(m)
	if err := (protojson.UnmarshalOptions{Resolver: s.types, RecursionLimit: maxNesting}).Unmarshal(document,
		msg); err != nil {
		return nil, protoError(err)
	}
	msg.SetUnknown(unknown)
	return proto.MarshalOptions{Deterministic: true}.Marshal(msg)
}

// unknownFields decodes a document's value of keyUnknown.
func unknownFields(v *value) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(v.text)
	for rest := b; err == nil && len(rest) > 0; {
		_, _, n := protowire.ConsumeField(rest)
		if err = protowire.ParseError(min(n, 0)); err == nil {
			rest = rest[n:]
		}
	}
	if err != nil || v.kind != text {
		return nil, errors.New(keyUnknown + " is not fields of Protobuf in base64")
	}
	return b, nil
}

// protoError normalises an error of the library, whose spaces differ from build to build.
func protoError(err error) error {
	return errors.New(strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:")))
}

// confluent removes the prefix that serialisers of a schema registry add: a zero, the
// schema's number in four bytes, and for Protobuf the indexes of the message in the schema.
// No registry is asked: the type is chosen as always.
func (r *reading) confluent() bool {
	if len(r.data) < 7 || r.data[0] != 0 || len(r.data) > maxOutput {
		return false
	}
	number, rest := binary.BigEndian.Uint32(r.data[1:]), r.data[5:]
	if !looksJSON(rest) || !r.trial(rest).json(false) {
		var ok bool
		if rest, ok = messageIndexes(rest); !ok || len(rest) == 0 {
			return false
		}
		t := r.trial(rest)
		if !t.format("schema", false) && !t.format("protobuf", r.said() == "protobuf") {
			return false
		}
	}
	prefix := bytes.Clone(r.data[:len(r.data)-len(rest)])
	r.inside("confluent", fmt.Sprintf("the prefix of a schema registry: schema %d", number), rest,
		func(inner []byte) ([]byte, error) {
			return append(bytes.Clone(prefix), inner...), nil
		})
	return true
}

// messageIndexes skips a list of numbers, which is empty for the first message.
func messageIndexes(b []byte) ([]byte, bool) {
	n, size := protowire.ConsumeVarint(b)
	if size < 0 || protowire.DecodeZigZag(n) < 0 || protowire.DecodeZigZag(n) > maxNesting {
		return nil, false
	}
	b = b[size:]
	for range protowire.DecodeZigZag(n) {
		if _, size = protowire.ConsumeVarint(b); size < 0 {
			return nil, false
		}
		b = b[size:]
	}
	return b, true
}
