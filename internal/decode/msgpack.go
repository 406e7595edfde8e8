package decode

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

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
