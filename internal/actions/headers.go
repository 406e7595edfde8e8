package actions

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// headerTable has header values as JSON, each with the name of its AMQP type, so that
// they come back with the very type they had: a list, sorted by name, of
// {"name": …, "type": …, "value": …}; in an array the names are left out.
type headerTable struct{ table amqp.Table }

type typed struct {
	Name  *text           `json:"name,omitempty"`
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
}

// deepest is how deep tables nest as JSON, where each level is read once for every level around
// it. A table that is deeper, which only an attacker makes, is packed: as a store keeps it, in
// base64.
const deepest = 50

const kindPacked = "packed"

// packed is a value as a store keeps it.
func packed(v any) (typed, error) {
	b, err := store.AppendRecord(nil, &store.Record{Message: wire.Message{Headers: amqp.Table{"": v}}})
	if err != nil {
		return typed{}, err
	}
	raw, err := json.Marshal(b)
	return typed{Type: kindPacked, Value: raw}, err
}

func unpacked(v typed) (any, error) {
	b, err := valueAs[[]byte](v)
	if err != nil {
		return nil, err
	}
	r, _, err := store.DecodeRecord(b, false)
	if err != nil {
		return nil, err
	}
	return r.Message.Headers[""], nil
}

func (h *headerTable) MarshalJSON() ([]byte, error) {
	list, err := fromTable(h.table, 0)
	if err != nil {
		return nil, err
	}
	return json.Marshal(list)
}

func (h *headerTable) UnmarshalJSON(b []byte) (err error) {
	h.table, err = toTable(b, 0)
	return err
}

func fromTable(t amqp.Table, depth int) ([]typed, error) {
	list := make([]typed, 0, len(t))
	for _, k := range slices.Sorted(maps.Keys(t)) {
		v, err := fromValue(t[k], depth+1)
		if err != nil {
			return nil, fmt.Errorf("header %.100q: %w", k, err)
		}
		name := text(k)
		v.Name = &name
		list = append(list, v)
	}
	return list, nil
}

func fromValue(v any, depth int) (typed, error) {
	var value any
	kind := inspect.TypeName(v)
	switch v := v.(type) {
	case nil:
		return typed{Type: kind}, nil
	case bool, int8, uint8, int16, uint16, int32, uint32, []byte:
		value = v
	case int64: // as text: many readers of JSON have no whole 64 bits
		value = strconv.FormatInt(v, 10)
	case float32:
		value = fromFloat(float64(v), 32, uint64(math.Float32bits(v)))
	case float64:
		value = fromFloat(v, 64, math.Float64bits(v))
	case amqp.Decimal:
		value = fmt.Sprintf("%d/%d", v.Value, v.Scale)
	case string:
		value = text(v)
	case time.Time: // whole seconds, of any year
		value = strconv.FormatInt(v.Unix(), 10)
	case amqp.Table:
		if depth > deepest {
			return packed(v)
		}
		list, err := fromTable(v, depth)
		if err != nil {
			return typed{}, err
		}
		value = list
	case []any:
		if depth > deepest {
			return packed(v)
		}
		list := make([]typed, 0, len(v))
		for _, e := range v {
			x, err := fromValue(e, depth+1)
			if err != nil {
				return typed{}, err
			}
			list = append(list, x)
		}
		value = list
	default:
		return typed{}, fmt.Errorf("AMQP has no type for a Go %T", v)
	}
	raw, err := json.Marshal(value)
	return typed{Type: kind, Value: raw}, err
}

// fromFloat writes infinities and NaNs, of which there are many, by their bits: JSON has no
// numbers for them.
func fromFloat(v float64, size int, bits uint64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprintf("bits:%x", bits)
	}
	return json.RawMessage(strconv.AppendFloat(nil, v, 'g', -1, size))
}

func toTable(b []byte, depth int) (amqp.Table, error) {
	var list []typed
	if err := strictly(b, &list); err != nil {
		return nil, err
	}
	t := make(amqp.Table, len(list))
	for _, v := range list {
		if v.Name == nil {
			return nil, fmt.Errorf("a header has no name")
		}
		name := string(*v.Name)
		if _, twice := t[name]; twice {
			return nil, fmt.Errorf("header %.100q is there twice", name)
		}
		value, err := toValue(v, depth+1)
		if err != nil {
			return nil, fmt.Errorf("header %.100q: %w", name, err)
		}
		t[name] = value
	}
	return t, nil
}

func toValue(v typed, depth int) (any, error) {
	if depth > deepest+1 {
		return nil, fmt.Errorf("nested more than %d deep", deepest)
	}
	if scalar := scalars[v.Type]; scalar != nil {
		return scalar(v)
	}
	switch v.Type {
	case kindPacked:
		return unpacked(v)
	case "void":
		return nil, nil
	case "bytes":
		b, err := valueAs[[]byte](v)
		if err == nil && b == nil {
			b = []byte{}
		}
		return b, err
	case "string":
		s, err := valueAs[text](v)
		return string(s), err
	case "table":
		return toTable(v.Value, depth)
	case "array":
		list, err := valueAs[[]typed](v)
		values := make([]any, 0, len(list))
		for _, e := range list {
			x, err := toValue(e, depth+1)
			if err != nil {
				return nil, err
			}
			values = append(values, x)
		}
		return values, err
	case "float32", "float64":
		return toFloat(v)
	case "int64", "timestamp", "decimal":
		return toNumber(v)
	}
	return nil, fmt.Errorf("%.40q is not a type of AMQP's", v.Type)
}

// scalars read values that JSON has, too.
var scalars = map[string]func(typed) (any, error){"bool": scalarAs[bool], "int8": scalarAs[int8], "uint8": scalarAs[uint8],
	"int16": scalarAs[int16], "uint16": scalarAs[uint16], "int32": scalarAs[int32], "uint32": scalarAs[uint32]}

func scalarAs[T any](v typed) (any, error) { return valueAs[T](v) }

func valueAs[T any](v typed) (T, error) {
	var x T
	if len(v.Value) == 0 {
		return x, fmt.Errorf("the value is missing")
	}
	return x, strictly(v.Value, &x)
}

func toFloat(v typed) (any, error) {
	size := 64
	if v.Type == "float32" {
		size = 32
	}
	hex, special := strings.CutPrefix(strings.Trim(string(v.Value), `"`), "bits:")
	if special {
		bits, err := strconv.ParseUint(hex, 16, size)
		if size == 32 {
			return math.Float32frombits(uint32(bits)), err
		}
		return math.Float64frombits(bits), err
	}
	f, err := strconv.ParseFloat(string(v.Value), size)
	if size == 32 {
		return float32(f), err
	}
	return f, err
}

// toNumber reads the numbers that are written as text.
func toNumber(v typed) (any, error) {
	s, err := valueAs[string](v)
	if err != nil {
		return nil, err
	}
	if v.Type == "decimal" {
		value, scale, _ := strings.Cut(s, "/")
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return nil, err
		}
		e, err := strconv.ParseUint(scale, 10, 8)
		return amqp.Decimal{Scale: uint8(e), Value: int32(n)}, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if v.Type == "timestamp" {
		return time.Unix(n, 0), err
	}
	return n, err
}

// fromText reads a text that a person wrote as a value of an AMQP type.
func fromText(kind, s string) (any, error) {
	v := typed{Type: kind, Value: json.RawMessage(s)}
	if kind == "int64" {
		v.Value = json.RawMessage(strconv.Quote(s))
	}
	return toValue(v, 0)
}
