package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func appendTable(b []byte, t amqp.Table, depth int) ([]byte, error) {
	b = binary.AppendUvarint(b, uint64(len(t)))
	for k, v := range t {
		b = AppendTexts(b, k)
		var err error
		if b, err = appendValue(b, v, depth+1); err != nil {
			return b, fmt.Errorf("header %.100q: %w", k, err)
		}
	}
	return b, nil
}

func appendValue(b []byte, v any, depth int) ([]byte, error) {
	if depth > deepest {
		return b, fmt.Errorf("nested more than %d deep", deepest)
	}
	be := binary.BigEndian
	switch v := v.(type) {
	case nil:
		return append(b, 'V'), nil
	case bool:
		if v {
			return append(b, 't', 1), nil
		}
		return append(b, 't', 0), nil
	case uint8:
		return append(b, 'B', v), nil
	case int8:
		return append(b, 'b', byte(v)), nil
	case int16:
		return be.AppendUint16(append(b, 's'), uint16(v)), nil
	case uint16:
		return be.AppendUint16(append(b, 'u'), v), nil
	case int32:
		return be.AppendUint32(append(b, 'I'), uint32(v)), nil
	case uint32:
		return be.AppendUint32(append(b, 'i'), v), nil
	case int64:
		return be.AppendUint64(append(b, 'l'), uint64(v)), nil
	case float32:
		return be.AppendUint32(append(b, 'f'), math.Float32bits(v)), nil
	case float64:
		return be.AppendUint64(append(b, 'd'), math.Float64bits(v)), nil
	case amqp.Decimal:
		return be.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value)), nil
	case string:
		return AppendTexts(append(b, 'S'), v), nil
	case []byte:
		b = binary.AppendUvarint(append(b, 'x'), uint64(len(v)))
		return append(b, v...), nil
	case time.Time:
		return be.AppendUint64(append(b, 'T'), uint64(v.Unix())), nil
	case amqp.Table:
		return appendTable(append(b, 'F'), v, depth)
	case []any:
		b = binary.AppendUvarint(append(b, 'A'), uint64(len(v)))
		for _, e := range v {
			var err error
			if b, err = appendValue(b, e, depth+1); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	return b, fmt.Errorf("AMQP has no type for a Go %T", v)
}

func (d *Decoder) table(depth int) amqp.Table {
	n := d.length()
	t := make(amqp.Table, min(n, 8)) // damaged data may claim many, at each depth
	for ; n > 0 && !d.torn; n-- {
		k := d.Text()
		t[k] = d.value(depth + 1)
	}
	return t
}

func (d *Decoder) uint(size int) (v uint64) {
	for _, b := range d.take(size) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (d *Decoder) value(depth int) any {
	if depth > deepest {
		d.take(-1)
	}
	switch d.Byte() {
	case 'V':
		return nil
	case 't':
		return d.Byte() != 0
	case 'B':
		return d.Byte()
	case 'b':
		return int8(d.Byte())
	case 's':
		return int16(d.uint(2))
	case 'u':
		return uint16(d.uint(2))
	case 'I':
		return int32(d.uint(4))
	case 'i':
		return uint32(d.uint(4))
	case 'l':
		return int64(d.uint(8))
	case 'f':
		return math.Float32frombits(uint32(d.uint(4)))
	case 'd':
		return math.Float64frombits(d.uint(8))
	case 'D':
		return amqp.Decimal{Scale: d.Byte(), Value: int32(d.uint(4))}
	case 'S':
		return d.Text()
	case 'x':
		return append([]byte{}, d.take(d.length())...)
	case 'T':
		return time.Unix(int64(d.uint(8)), 0)
	case 'F':
		return d.table(depth)
	case 'A':
		n := d.length()
		a := make([]any, 0, min(n, 8))
		for ; n > 0 && !d.torn; n-- {
			a = append(a, d.value(depth+1))
		}
		return a
	}
	d.take(-1)
	return nil
}
