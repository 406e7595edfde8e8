package decode

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A value that JSON does not have is an object with one of these keys:
//
//	{"$bytes": "base64"}              bytes
//	{"$float": "NaN"}                 NaN, Infinity, -Infinity
//	{"$time": "2026-11-21T10:00:00Z"} a time
//	{"$ext": 5, "$bytes": "base64"}   MessagePack's other extensions
//	{"$tag": 32, "$value": …}         CBOR's other tags
//	{"$simple": 16}                   its simple values
const (
	keyBytes, keyFloat, keyTime, keyExt  = "$bytes", "$float", "$time", "$ext"
	keyTag, keyValue, keySimple          = "$tag", "$value", "$simple"
	infinity, negativeInfinity, notANumb = "Infinity", "-Infinity", "NaN"
)

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
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return value{kind: number, text: s}
}

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

// convincing tells whether a document may be MessagePack or CBOR though the message does not say
// so: where it has texts, by name. Half of all bytes are a number in both.
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

// packedLeaf makes a document that was read the result. Nothing is written back: the
// libraries do not keep which of several forms a value had.
func (r *reading) packedLeaf(format, name string, said bool, read func() (v value, twice string, err error)) bool {
	v, twice, err := read()
	if err == nil && !said && !convincing(&v) {
		return false
	}
	if err != nil {
		if said {
			r.step(format, fmt.Sprintf("not read as %s: %v", name, err))
		}
		return false
	}
	found := name + ", " + v.describe()
	if twice != "" {
		found += fmt.Sprintf("; %q is there twice", twice)
	}
	r.document(format, &v, false)
	r.step(format, found)
	return true
}
