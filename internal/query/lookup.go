package query

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// find tries what a path leads to. Names may hold dots themselves, so a.b is both a
// name and b within a; in a list all elements are tried, or the one that is counted
// from 0. Each value is tried at most once, whatever the message holds.
func find(v any, path string, try func(any) bool) bool {
	switch v := v.(type) {
	case map[string]any:
		return findNamed(v, path, try)
	case amqp.Table:
		return findNamed(v, path, try)
	case []any:
		head, rest, more := strings.Cut(path, ".")
		if n, err := strconv.ParseUint(head, 10, 31); err == nil {
			switch {
			case n >= uint64(len(v)):
				return false
			case more:
				return find(v[n], rest, try)
			}
			return leaves(v[n], try)
		}
		for _, e := range v {
			if find(e, path, try) {
				return true
			}
		}
	}
	return false
}

func findNamed[M ~map[string]any](m M, path string, try func(any) bool) bool {
	if v, ok := m[path]; ok && leaves(v, try) {
		return true
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		if v, ok := m[path[:i]]; ok && find(v, path[i+1:], try) {
			return true
		}
	}
	return false
}

// leaves tries a value, or those of a list.
func leaves(v any, try func(any) bool) bool {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return try(v)
	}
	for _, e := range list {
		if leaves(e, try) {
			return true
		}
	}
	return false
}

// value tells whether the term is true of one value of a header or a body.
func (t *term) value(e *env, v any) bool {
	if t.op == exists {
		return true
	}
	text, ok := Text(v)
	if !ok {
		return false
	}
	if t.a.regex != nil {
		f := fold(text)
		return t.a.regex.in(e, &f)
	}
	if t.op == is && (t.a.quoted || t.a.names(text)) {
		return t.a.names(text)
	}
	if t.a.isNumber {
		d, ok := parseDecimal(text)
		return ok && t.compares(d)
	}
	if !t.a.isTime {
		return false
	}
	at, ok := v.(time.Time)
	if !ok {
		if at, _, ok = parseTime(text); !ok {
			return false
		}
	}
	return t.within(time.Time{}).has(at)
}

// Text is a value of a header or a body as people write it, and as a query compares
// it; tables and lists have none.
func Text(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "null", true
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	case []byte:
		return string(v), utf8.Valid(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	case int64, int32, int16, int8, uint8, uint16, uint32:
		return fmt.Sprint(v), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case amqp.Decimal:
		return fmt.Sprintf("%de-%d", v.Value, v.Scale), true
	}
	return "", false
}
