package decode

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"
)

// protobuf shows a message of an unknown type: field numbers, and of what has a
// length a guess: a text, a message, or bytes. The same bytes can mean other things.
func (r *reading) protobuf(said bool) bool {
	w := &wireView{b: r.budget()}
	v, err := w.message(r.data, 0)
	if err != nil {
		if said || refused(err) {
			r.step("protobuf", "not read as Protobuf: "+err.Error())
		}
		return false
	}
	plain := said || w.words && w.highest <= 1000 && !isText(r.data)
	if r.guess(plain) {
		return true
	}
	if !plain {
		return false
	}
	r.document("protobuf", &v, false)
	none := "no message type is configured for it (decode.protobuf)"
	if len(r.schemas.guessable) > 0 {
		none = "nothing names its message type (decode.protobuf)"
	}
	r.step("protobuf", "Protobuf, by field numbers: "+none+", so what is inside is a guess")
	r.encode = func(string) ([]byte, []string, error) { return nil, nil, errUnnamed }
	return true
}

type wireView struct {
	b       *budget
	words   bool // there is a text that people would write
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
