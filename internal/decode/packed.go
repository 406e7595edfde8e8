package decode

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// MessagePack and CBOR are read here and not by a library, since what is not edited
// goes back byte by byte: that takes each value's bytes, the order of keys, and keys
// that are no texts. Nothing is allocated because a length is claimed.
//
// What JSON has no word for is an object with one of these keys:
//
//	{"$bytes": "base64"}              bytes
//	{"$float": "NaN"}                 NaN, Infinity, -Infinity
//	{"$time": "2026-11-21T10:00:00Z"} MessagePack's timestamp
//	{"$ext": 5, "$bytes": "base64"}   its other extensions
//	{"$tag": 32, "$value": …}         CBOR's tags
//	{"$simple": 23}                   its simple values; 23 is undefined
const (
	keyBytes, keyFloat, keyTime, keyExt  = "$bytes", "$float", "$time", "$ext"
	keyTag, keyValue, keySimple          = "$tag", "$value", "$simple"
	infinity, negativeInfinity, notANumb = "Infinity", "-Infinity", "NaN"
)

var errEnds = errors.New("it ends in the middle of a value")

// packed is what both readers share.
type packed struct {
	s  []byte
	at int
	b  *budget
}

// next takes n bytes, which must be there.
func (p *packed) next(n uint64) ([]byte, error) {
	if n > uint64(len(p.s)-p.at) {
		return nil, errEnds
	}
	p.at += int(n)
	return p.s[p.at-int(n) : p.at], nil
}

// uint takes a big-endian number of n bytes.
func (p *packed) uint(n int) (uint64, error) {
	b, err := p.next(uint64(n))
	if err != nil {
		return 0, err
	}
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v, nil
}

func special(pairs ...any) value {
	v := value{kind: object}
	for i := 0; i < len(pairs); i += 2 {
		item := pairs[i+1]
		if s, ok := item.(string); ok {
			item = value{kind: text, text: s}
		}
		v.keys, v.items = append(v.keys, key{text: pairs[i].(string)}), append(v.items, item.(value))
	}
	return v
}

func bytesValue(b []byte) value { return special(keyBytes, base64.StdEncoding.EncodeToString(b)) }

func integer[T int64 | uint64](n T) value { return value{kind: number, text: fmt.Sprint(n)} }

// float keeps a literal that reads as one, so that 1.0 stays a float.
func float(f float64, bits int) value {
	switch {
	case math.IsNaN(f):
		return special(keyFloat, notANumb)
	case math.IsInf(f, 1):
		return special(keyFloat, infinity)
	case math.IsInf(f, -1):
		return special(keyFloat, negativeInfinity)
	}
	s := strconv.FormatFloat(f, 'g', -1, bits)
	if !isFloat(s) {
		s += ".0"
	}
	return value{kind: number, text: s}
}

func isFloat(literal string) bool { return strings.ContainsAny(literal, ".eE") }

// keyOf is a map's key as a text; one that is something else is written as JSON.
// Keys in keys are refused: each level would double the escapes.
func keyOf(v *value) (key, error) {
	switch v.kind {
	case text:
		return key{v.text, v.raw}, nil
	case array:
		return key{}, errKey
	}
	for i := range v.items {
		if k := v.items[i].kind; k == array || k == object {
			return key{}, errKey
		}
	}
	p := printer{compact: true}
	p.value(v, 0)
	return key{string(p.b), v.raw}, nil
}

var errKey = errors.New("a key is a list or a map")

// convincing: bytes that nobody calls MessagePack or CBOR are, if they are texts by
// name. Every other byte is a number in both.
func convincing(v *value) bool {
	switch v.kind {
	case object:
		for _, k := range v.keys {
			if k.text == "" || !isText([]byte(k.text)) || strings.HasPrefix(k.text, "{") {
				return false
			}
		}
		return len(v.keys) > 0
	case array:
		for i := range v.items {
			if it := &v.items[i]; it.kind == text && len(it.text) > 3 && isText([]byte(it.text)) || convincing(it) {
				return true
			}
		}
	}
	return false
}

// packer writes what both formats have in common. old is what stood at the same
// place, or nil.
type packer struct {
	null    byte
	boolean [2]byte
	single  byte // before a float32
	double  byte
	head    func(out []byte, major byte, n uint64) []byte
	integer func(out []byte, literal string) ([]byte, error)
	numeric func(first byte) bool // a value that begins so is an integer
	special func(p *packer, out []byte, v, old *value, at string) ([]byte, bool, error)
}

// Major types, as CBOR numbers them.
const (
	majorBytes, majorText, majorArray, majorMap = 2, 3, 4, 5
)

func (p *packer) write(out []byte, v, old *value, at string) ([]byte, error) {
	if old != nil && old.raw != nil && same(v, old) {
		return append(out, old.raw...), nil
	}
	var err error
	switch v.kind {
	case null:
		return append(out, p.null), nil
	case boolean:
		if v.text == "true" {
			return append(out, p.boolean[1]), nil
		}
		return append(out, p.boolean[0]), nil
	case number:
		if out, err = p.number(out, v.text, old); err != nil {
			return nil, fmt.Errorf("%s: %w", orRoot(at), err)
		}
		return out, nil
	case text:
		return append(p.head(out, majorText, uint64(len(v.text))), v.text...), nil
	case array:
		out = p.head(out, majorArray, uint64(len(v.items)))
		for i := range v.items {
			var before *value
			if old != nil && old.kind == array && i < len(old.items) {
				before = &old.items[i]
			}
			if out, err = p.write(out, &v.items[i], before, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	if out, done, err := p.special(p, out, v, old, at); done || err != nil {
		return out, err
	}
	out = p.head(out, majorMap, uint64(len(v.items)))
	before := old.index()
	for i := range v.items {
		name := v.keys[i].text
		var was *value
		var k []byte
		if at := before[name]; len(at) > 0 {
			was, k, before[name] = &old.items[at[0]], old.keys[at[0]].raw, at[1:]
		}
		switch {
		case k != nil:
			out = append(out, k...)
		case old != nil && len(old.keys) > 0 && old.keys[0].raw != nil && p.numeric(old.keys[0].raw[0]):
			if out, err = p.integer(out, name); err != nil {
				return nil, fmt.Errorf("%s: the other keys are numbers: %w", path(at, name), err)
			}
		default:
			out = append(p.head(out, majorText, uint64(len(name))), name...)
		}
		if out, err = p.write(out, &v.items[i], was, path(at, name)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func orRoot(at string) string {
	if at == "" {
		return "the document"
	}
	return at
}

func (p *packer) number(out []byte, literal string, old *value) ([]byte, error) {
	was := old != nil && old.kind == number && isFloat(old.text)
	if !isFloat(literal) && !was {
		return p.integer(out, literal)
	}
	bits := 64
	if was && old.raw[0] == p.single {
		bits = 32
	}
	f, err := strconv.ParseFloat(literal, bits)
	if err != nil {
		return nil, fmt.Errorf("%.40s does not fit into a float of %d bits", literal, bits)
	}
	return p.float(out, f, bits), nil
}

func (p *packer) float(out []byte, f float64, bits int) []byte {
	if bits == 32 {
		return binary.BigEndian.AppendUint32(append(out, p.single), math.Float32bits(float32(f)))
	}
	return binary.BigEndian.AppendUint64(append(out, p.double), math.Float64bits(f))
}

// common writes the objects that both formats have for what JSON has no word for.
func (p *packer) common(out []byte, v *value, at string) ([]byte, bool, error) {
	if len(v.items) != 1 || v.items[0].kind != text {
		return out, false, nil
	}
	switch s := v.items[0].text; v.keys[0].text {
	case keyBytes:
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, true, fmt.Errorf("%s is not base64", path(at, keyBytes))
		}
		return append(p.head(out, majorBytes, uint64(len(b))), b...), true, nil
	case keyFloat:
		f, ok := map[string]float64{notANumb: math.NaN(), infinity: math.Inf(1), negativeInfinity: math.Inf(-1)}[s]
		if !ok {
			return nil, true, fmt.Errorf("%s is %.20q; expected NaN, Infinity or -Infinity", path(at, keyFloat), s)
		}
		return p.float(out, f, 64), true, nil
	}
	return out, false, nil
}

// packedLeaf makes a document that was read the result.
func (r *reading) packedLeaf(format, name string, said bool, read func(*packed) (value, error), write *packer) bool {
	p := &packed{s: r.data, b: r.budget()}
	v, err := read(p)
	if err == nil && p.at < len(p.s) {
		err = fmt.Errorf("%d bytes follow the first value", len(p.s)-p.at)
	}
	if err == nil && !said && !convincing(&v) {
		return false
	}
	if err != nil {
		if said {
			r.step(format, fmt.Sprintf("not read as %s: at byte %d: %v", name, p.at, err))
		}
		return false
	}
	found := name + ", " + v.describe()
	if d := v.duplicates(); d != "" {
		found += fmt.Sprintf("; %q is there twice", d)
	}
	r.document(format, &v, false)
	r.step(format, found)
	r.encode = func(document string) ([]byte, []string, error) {
		edited, err := parseJSON([]byte(document), r.budget(), true)
		if err != nil {
			return nil, nil, fmt.Errorf("not JSON: %w", err)
		}
		out, err := write.write(nil, edited, &v, "")
		if err != nil {
			return nil, nil, err
		}
		return out, []string{name + ", " + edited.describe() + "; what was not edited is the same bytes"}, nil
	}
	return true
}
