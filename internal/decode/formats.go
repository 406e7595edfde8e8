package decode

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// maxBig bounds the bytes of a number: converting it to decimal takes quadratic time.
const maxBig = 1 << 10

// cborModes decode any CBOR: the first fails on duplicate keys.
var cborModes = [2]cbor.DecMode{cborMode(cbor.DupMapKeyEnforcedAPF), cborMode(cbor.DupMapKeyQuiet)}

func cborMode(twice cbor.DupMapKeyMode) cbor.DecMode {
	m, err := cbor.DecOptions{DupMapKey: twice, MaxNestedLevels: maxNesting, MaxArrayElements: math.MaxInt32,
		MaxMapPairs: math.MaxInt32, UTF8: cbor.UTF8DecodeInvalid}.DecMode()
	if err != nil {
		panic(err)
	}
	return m
}

func (r *reading) cbor(said bool) bool {
	return r.packedLeaf("cbor", "CBOR", said, func() (value, string, error) {
		b, twice := r.budget(), ""
		var deep *cbor.MaxNestedLevelError
		switch err := cborModes[0].Wellformed(r.data); {
		case errors.As(err, &deep):
			return value{}, "", errNesting
		case err != nil:
			return value{}, "", err
		case cborValues(r.data) > maxValues: // before they take memory
			return value{}, "", errValues
		}
		var v any
		var dup *cbor.DupMapKeyError
		err := cborModes[0].Unmarshal(r.data, &v)
		if errors.As(err, &dup) {
			twice = fmt.Sprint(dup.Key)
			err = cborModes[1].Unmarshal(r.data, &v)
		}
		if err != nil {
			return value{}, "", err
		}
		out, err := b.cborValue(v, 0)
		return out, twice, err
	})
}

// cborValues counts the heads of well-formed CBOR, which follow each other whatever the nesting.
func cborValues(s []byte) (n int) {
	for at := 0; at < len(s); n++ {
		major, info := s[at]>>5, s[at]&31
		at++
		size := int(info)
		if width := 1 << max(int(info)-24, 0); info >= 24 && info < 28 {
			size = 0
			for _, c := range s[at : at+width] {
				size = size<<8 | int(c)
			}
			at += width
		}
		if (major == 2 || major == 3) && info != 31 {
			at += size
		}
	}
	return n
}

// cborValue converts what the library decoded, which has lost the order of keys.
func (b *budget) cborValue(from any, depth int) (v value, err error) {
	if err := b.take(depth); err != nil {
		return v, err
	}
	switch from := from.(type) {
	case []any:
		v.kind = array
		for _, item := range from {
			made, err := b.cborValue(item, depth+1)
			if err != nil {
				return v, err
			}
			v.items = append(v.items, made)
		}
		return v, nil
	case map[any]any:
		return b.cborMap(from, depth)
	case cbor.Tag:
		inner, err := b.cborValue(from.Content, depth+1)
		return special(keyTag, integer(from.Number), keyValue, inner), err
	case cbor.SimpleValue:
		return special(keySimple, integer(uint64(from))), nil
	case cbor.ByteString:
		return bytesValue([]byte(from)), nil
	case big.Int:
		if from.BitLen() > 8*maxBig {
			tag := uint64(2)
			if from.Sign() < 0 {
				tag = 3
				from.Not(&from)
			}
			return special(keyTag, integer(tag), keyValue, bytesValue(from.Bytes())), nil
		}
		return value{kind: number, text: from.String()}, nil
	}
	return plainValue(from)
}

func (b *budget) cborMap(from map[any]any, depth int) (v value, err error) {
	type pair struct {
		key  key
		item any
	}
	var pairs []pair
	for k, item := range from {
		made, err := b.cborValue(k, depth+1)
		if err != nil {
			return v, err
		}
		name, err := keyOf(&made)
		if err != nil {
			return v, err
		}
		pairs = append(pairs, pair{name, item})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(a.key.text, b.key.text) })
	v.kind = object
	for _, p := range pairs {
		made, err := b.cborValue(p.item, depth+1)
		if err != nil {
			return v, err
		}
		v.keys, v.items = append(v.keys, p.key), append(v.items, made)
	}
	return v, nil
}

func plainValue(from any) (value, error) {
	switch from := from.(type) {
	case nil:
		return value{}, nil
	case bool:
		return value{kind: boolean, text: fmt.Sprint(from)}, nil
	case string:
		return value{kind: text, text: from}, nil
	case []byte:
		return bytesValue(from), nil
	case float32:
		return float(float64(from), 32), nil
	case float64:
		return float(from, 64), nil
	case time.Time:
		return special(keyTime, from.UTC().Format(time.RFC3339Nano)), nil
	case int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return value{kind: number, text: fmt.Sprint(from)}, nil
	}
	return value{}, fmt.Errorf("%T is no value", from)
}

func (r *reading) messagepack(said bool) bool {
	return r.packedLeaf("messagepack", "MessagePack", said, func() (v value, twice string, err error) {
		p := &messagePack{in: bytes.NewReader(r.data), b: r.budget()}
		p.d = msgpack.NewDecoder(p.in)
		if v, err = p.value(0); err == nil && p.in.Len() > 0 {
			err = fmt.Errorf("%d bytes follow the first value", p.in.Len())
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it ends in the middle of a value")
		}
		return v, v.duplicates(), err
	})
}

// messagePack walks lists and maps itself, since the library has no limits; the library
// decodes scalars.
type messagePack struct {
	in *bytes.Reader
	d  *msgpack.Decoder
	b  *budget
}

func (p *messagePack) value(depth int) (v value, err error) {
	if err := p.b.take(depth); err != nil {
		return v, err
	}
	c, err := p.d.PeekCode()
	switch {
	case err != nil:
		return v, err
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		v.kind = array
		n, err := p.d.DecodeArrayLen()
		err = p.items(&v, n, depth, err)
		return v, err
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		v.kind = object
		n, err := p.d.DecodeMapLen()
		err = p.items(&v, n, depth, err)
		return v, err
	case msgpcode.IsExt(c):
		return p.extension()
	case msgpcode.IsString(c), msgpcode.IsBin(c):
		n, err := p.d.DecodeBytesLen()
		b, err := p.bytes(n, err)
		if msgpcode.IsBin(c) {
			return bytesValue(b), err
		}
		return value{kind: text, text: string(b)}, err
	}
	scalar, err := p.d.DecodeInterface()
	if err != nil {
		return v, err
	}
	return plainValue(scalar)
}

// items reads n items into v, with their keys if it is an object.
func (p *messagePack) items(v *value, n, depth int, err error) error {
	for ; n > 0 && err == nil; n-- {
		if v.kind == object {
			k, err := p.value(depth + 1)
			if err != nil {
				return err
			}
			name, err := keyOf(&k)
			if err != nil {
				return err
			}
			v.keys = append(v.keys, name)
		}
		var item value
		item, err = p.value(depth + 1)
		v.items = append(v.items, item)
	}
	return err
}

// bytes reads n bytes. It checks n first: the library would allocate what a length claims.
func (p *messagePack) bytes(n int, err error) ([]byte, error) {
	if err != nil || n > p.in.Len() {
		return nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	b := make([]byte, n)
	return b, p.d.ReadFull(b)
}

func (p *messagePack) extension() (value, error) {
	p.b.values += 2
	start := p.in.Size() - int64(p.in.Len())
	kind, n, err := p.d.DecodeExtHeader()
	b, err := p.bytes(n, err)
	if err != nil {
		return value{}, err
	}
	if kind == -1 && (n == 4 || n == 8 || n == 12) {
		if _, err := p.in.Seek(start, io.SeekStart); err != nil {
			return value{}, err
		}
		t, err := p.d.DecodeTime()
		if err != nil {
			return value{}, err
		}
		return plainValue(t)
	}
	return special(keyExt, integer(int64(kind)), keyBytes, base64.StdEncoding.EncodeToString(b)), nil
}

// jsonReader reads valid JSON into a value. encoding/json replaces invalid UTF-8, loses
// duplicates and positions, and nests 10,000 deep.
type jsonReader struct {
	s  []byte
	at int
	b  *budget
}

// parseJSON parses JSON strictly, except that texts may be invalid UTF-8.
func parseJSON(s []byte, b *budget) (*value, error) {
	if !json.Valid(s) {
		return nil, syntaxError(s)
	}
	p := &jsonReader{s: s, b: b}
	v, err := p.value(0)
	return &v, err
}

// syntaxError returns where and why JSON is invalid.
func syntaxError(s []byte) error {
	err := json.Unmarshal(s, new(json.RawMessage))
	var at *json.SyntaxError
	before := s
	switch {
	case !errors.As(err, &at):
		return err
	case strings.Contains(err.Error(), "max depth"):
		return errNesting
	case !strings.HasPrefix(err.Error(), "unexpected end"):
		before = s[:at.Offset-1]
	}
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

const jsonSpace = " \t\r\n"

// next skips spaces and returns the next byte, without consuming it.
func (p *jsonReader) next() byte {
	for strings.IndexByte(jsonSpace, p.s[p.at]) >= 0 {
		p.at++
	}
	return p.s[p.at]
}

func (p *jsonReader) value(depth int) (v value, err error) {
	if err := p.b.take(depth); err != nil {
		return v, err
	}
	c := p.next()
	start := p.at
	switch c {
	case '{', '[':
		v, err = p.list(depth, c)
	case '"':
		v.kind, v.text = text, p.text()
	default:
		for p.at < len(p.s) && strings.IndexByte(jsonSpace+",]}", p.s[p.at]) < 0 {
			p.at++
		}
		switch c {
		case 'n':
		case 't', 'f':
			v.kind, v.text = boolean, string(p.s[start:p.at])
		default:
			v.kind, v.text = number, string(p.s[start:p.at])
		}
	}
	v.raw = p.s[start:p.at]
	return v, err
}

func (p *jsonReader) list(depth int, open byte) (v value, err error) {
	v.kind = array
	end := byte(']')
	if open == '{' {
		v.kind, end = object, '}'
	}
	p.at++
	for p.next() != end {
		if v.kind == object {
			start := p.at
			k := p.text()
			v.keys = append(v.keys, key{text: k, raw: p.s[start:p.at]})
			p.next()
			p.at++ // the colon
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		if p.next() == ',' {
			p.at++
		}
	}
	p.at++
	return v, nil
}

func (p *jsonReader) text() string {
	start, escaped := p.at+1, false
	for p.at++; p.s[p.at] != '"'; p.at++ {
		if p.s[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	typed := p.s[start : p.at-1]
	if !escaped {
		return string(typed)
	}
	return string(unescaped(typed))
}

// unescaped resolves escapes. Half a surrogate pair becomes U+FFFD.
func unescaped(typed []byte) (out []byte) {
	for i := 0; i < len(typed); i++ {
		if typed[i] != '\\' {
			out = append(out, typed[i])
			continue
		}
		i++
		if c := typed[i]; c != 'u' {
			out = append(out, "\"\\/\b\f\n\r\t"[strings.IndexByte(`"\/bfnrt`, c)])
			continue
		}
		r := codeUnit(typed[i+1:])
		i += 4
		if low := typed[i+1:]; utf16.IsSurrogate(r) && bytes.HasPrefix(low, []byte(`\u`)) {
			if r = utf16.DecodeRune(r, codeUnit(low[2:])); r != utf8.RuneError {
				i += 6
			}
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

// codeUnit reads four hexadecimal digits.
func codeUnit(digits []byte) rune {
	v, _ := strconv.ParseUint(string(digits[:4]), 16, 32)
	return rune(v)
}

// looksJSON reports whether s begins like an object or a list: a lone number or word is JSON only
// where the content type says so.
func looksJSON(s []byte) bool {
	s = bytes.TrimLeft(s, jsonSpace)
	return len(s) > 0 && (s[0] == '{' || s[0] == '[')
}

func (r *reading) json(said bool) bool {
	if !said && !looksJSON(r.data) {
		return false
	}
	v, err := parseJSON(r.data, r.budget())
	if err != nil {
		if said || refused(err) {
			r.step("json", "not read as JSON: "+err.Error())
		}
		return false
	}
	valid := utf8.Valid(r.data)
	found := "JSON, " + v.describe()
	if d := v.duplicates(); d != "" {
		found += fmt.Sprintf("; %q is there twice, and readers differ on which counts", d)
	}
	if !valid {
		found += `; bytes that are not UTF-8 are shown as \xHH`
	}
	r.document("json", v, true)
	r.step("json", found)
	r.encode = func(document string) ([]byte, []string, error) {
		out := []byte(document)
		if !valid {
			out = unshown(document)
		}
		edited, err := parseJSON(out, r.budget())
		if err != nil {
			return nil, nil, fmt.Errorf("not JSON: %w", err)
		}
		checks := []string{"JSON, " + edited.describe()}
		if d := edited.duplicates(); d != "" {
			checks = append(checks, fmt.Sprintf("%q is there twice", d))
		}
		return patchJSON(r.data, v, edited), checks, nil
	}
	return true
}

// xmlReader checks that XML is well-formed and indents it, keeping its tokens as typed. Only XML's own five entities
// are expanded: encoding/xml knows no others, and reads no file.
type xmlReader struct {
	b     *budget
	names []string // open elements
	out   []byte
	root  string
	mixed []bool // for each open element: it has text, so no space may be added
	lines bool   // the innermost open element has children on lines of their own

	s      []byte
	pieces [][2]int // of what s has but the space between elements; only while keep is set
	keep   bool
}

// tagReader fails on a tag that is longer than maxTag.
type tagReader struct {
	*bytes.Reader
	s     []byte
	token int64 // offset of the current token
}

// ReadByte is the method that encoding/xml reads with.
func (r *tagReader) ReadByte() (byte, error) {
	at := int64(len(r.s) - r.Len())
	if at-r.token > maxTag && r.s[r.token] == '<' && r.s[r.token+1] != '!' && r.s[r.token+1] != '?' {
		return 0, errTag
	}
	return r.Reader.ReadByte()
}

// maxTag bounds a tag: encoding/xml allocates 64 bytes for each attribute.
const maxTag = 64 << 10

func parseXML(s []byte, b *budget, keep bool) (*xmlReader, error) {
	x := &xmlReader{b: b, s: s, keep: keep}
	in := &tagReader{Reader: bytes.NewReader(s), s: s}
	d := xml.NewDecoder(in)
	d.CharsetReader = func(charset string, in io.Reader) (io.Reader, error) {
		if strings.HasPrefix(strings.ToLower(charset), "utf-16") || utf8.Valid(s) {
			return in, nil // it became UTF-8 in an earlier step
		}
		return nil, fmt.Errorf("its charset is %.40q", charset)
	}
	for {
		in.token = d.InputOffset()
		t, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.take(len(x.names))
		}
		if err == nil {
			err = x.token(t, int(in.token), int(d.InputOffset()))
		}
		if err != nil {
			line, column := d.InputPos()
			return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
		}
	}
	if len(x.names) > 0 {
		return nil, fmt.Errorf("it ends before </%s>", x.names[len(x.names)-1])
	}
	if x.root == "" {
		return nil, errors.New("it has no element")
	}
	return x, nil
}

func (x *xmlReader) token(t xml.Token, begin, end int) error {
	depth, raw := len(x.names), x.s[begin:end]
	switch t := t.(type) {
	case xml.StartElement:
		if depth == 0 && x.root != "" {
			return errors.New("a second element follows the first")
		}
		for i, a := range t.Attr {
			for _, b := range t.Attr[:min(i, 100)] {
				if a.Name == b.Name {
					return fmt.Errorf("the attribute %q is there twice", a.Name.Local)
				}
			}
		}
		name := qualified(t.Name)
		if x.root == "" {
			x.root = name
		}
		x.line(depth)
		x.names, x.mixed, x.lines = append(x.names, name), append(x.mixed, false), false
	case xml.EndElement:
		if depth == 0 || qualified(t.Name) != x.names[depth-1] {
			return fmt.Errorf("</%s> closes what is not open", qualified(t.Name))
		}
		if len(raw) == 0 {
			return x.pop() // <a/>
		}
		if x.lines {
			x.line(depth - 1)
		}
		x.put(begin, end)
		return x.pop()
	case xml.CharData:
		blank := len(bytes.TrimSpace(raw)) == 0
		if depth == 0 {
			if !blank {
				return errors.New("text outside of all elements")
			}
			return nil
		}
		if blank && !x.mixed[depth-1] {
			return nil
		}
		x.mixed[depth-1] = true
	default:
		x.line(depth)
	}
	x.put(begin, end)
	return nil
}

func (x *xmlReader) put(begin, end int) {
	if len(x.out) <= maxOutput {
		x.out = append(x.out, x.s[begin:end]...)
	}
	if x.keep {
		x.pieces = append(x.pieces, [2]int{begin, end})
	}
}

func (x *xmlReader) pop() error {
	depth := len(x.names) - 1
	x.names, x.mixed, x.lines = x.names[:depth], x.mixed[:depth], depth > 0 && !x.mixed[depth-1]
	return nil
}

// line starts a line, unless the parent has text.
func (x *xmlReader) line(depth int) {
	if depth > 0 && x.mixed[depth-1] || len(x.out) == 0 {
		return
	}
	x.lines = true
	if len(x.out) <= maxOutput {
		x.out = append(x.out, "\n"+strings.Repeat("  ", depth)...)
	}
}

var errTag = fmt.Errorf("has a tag of more than %d KiB", maxTag>>10)

func qualified(n xml.Name) string { return strings.TrimPrefix(n.Space+":"+n.Local, ":") }

func (r *reading) xml(said bool) bool {
	if s := bytes.TrimLeft(r.data, " \t\r\n"); !said && (len(s) < 4 || s[0] != '<') {
		return false
	}
	x, err := parseXML(r.data, r.budget(), false)
	if err != nil {
		if said || refused(err) {
			r.step("xml", "not read as XML: "+err.Error())
		}
		return false
	}
	r.result.Format = "xml"
	r.result.Text, r.result.Truncated = cut(shown(string(x.out)))
	r.step("xml", fmt.Sprintf("XML, well-formed, its element is %s", shown(x.root)))
	r.encode = func(document string) ([]byte, []string, error) {
		edited, err := parseXML([]byte(document), r.budget(), true)
		if err != nil {
			return nil, nil, fmt.Errorf("not XML: %w", err)
		}
		checks := []string{"XML, well-formed, its element is " + edited.root}
		was, err := parseXML(r.data, r.budget(), true)
		if err != nil {
			return nil, nil, err
		}
		shown, err := parseXML(was.out, r.budget(), true)
		if err != nil || len(shown.pieces) != len(was.pieces) {
			return []byte(document), append(checks, "laid out in lines as shown"), nil
		}
		return patchXML(was, shown, edited), checks, nil
	}
	return true
}
