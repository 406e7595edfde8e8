package decode

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// mostBig is how many bytes a number may have: making decimals of it takes time
// that grows with the square.
const mostBig = 1 << 10

// cborModes read any CBOR: with an error where a key is there twice, and without.
var cborModes = [2]cbor.DecMode{cborMode(cbor.DupMapKeyEnforcedAPF), cborMode(cbor.DupMapKeyQuiet)}

func cborMode(twice cbor.DupMapKeyMode) cbor.DecMode {
	m, err := cbor.DecOptions{DupMapKey: twice, MaxNestedLevels: mostNesting, MaxArrayElements: math.MaxInt32, MaxMapPairs: math.MaxInt32,
		UTF8: cbor.UTF8DecodeInvalid}.DecMode()
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
		case cborValues(r.data) > mostValues: // before any of them is made
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

// cborValues counts the heads of well-formed CBOR: one follows the other, whatever is
// nested in what.
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

// cborValue makes a value of what the library made. It keeps no order of keys.
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
		if from.BitLen() > 8*mostBig {
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

// plainValue makes a value of what both libraries make of what is in no list or map.
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

// messagePack walks through values by itself, since the library's own walk has no limits;
// what is in no list or map the library reads. It reads no further than it must.
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

// items reads n of them into v, with their keys if it is an object.
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

// bytes reads n, which must be there: the library allocates what a length claims.
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
