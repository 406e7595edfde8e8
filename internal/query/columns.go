package query

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Column is a field as a column of a list: what each message has in it.
type Column struct {
	Name  string
	field *field
	path  string
}

// ParseColumn reads the name of a column: a field, such as key, header.tenant or body.customer.
func ParseColumn(name string) (Column, error) {
	c := Column{Name: name}
	for _, f := range []*field{headerField, bodyField} {
		if path, ok := strings.CutPrefix(name, f.name); ok && path != "" && len(name) <= longestColumn && strings.Count(path, ".") < deepest {
			c.field, c.path = f, path
			return c, nil
		}
	}
	f := fieldNamed[name]
	if f == nil || f.short != "" || f.needs == knowsBody {
		return c, fmt.Errorf("%.60q is no column: expected a field of the query language such as key, header.tenant or body.customer", name)
	}
	c.field = f
	return c, nil
}

// longestColumn bounds a name, in bytes.
const longestColumn = 200

// ColumnNames are the columns that have a name of their own; header.NAME and body.PATH are others.
func ColumnNames() (names []string) {
	for _, f := range fields {
		if f.short == "" && f.needs != knowsBody {
			names = append(names, f.name)
		}
	}
	return names
}

// NeedsBody tells whether it is about bodies.
func (c Column) NeedsBody() bool { return c.field == bodyField }

// IsTime tells whether it is a time, whose value is as in RFC 3339.
func (c Column) IsTime() bool { return c.field.time != nil }

// IsNumber tells whether it is a number.
func (c Column) IsNumber() bool { return c.field.number != nil }

// mostValues is how many values of one message a column shows.
const mostValues = 3

// Value is what a message has in the column; "" for nothing. Of a list it is the first values.
func (c Column) Value(l *store.Listed, group errorgroup.ID, decoded func() *decode.Result) string {
	f := c.field
	switch {
	case f == headerField:
		return found(l.Record.Message.Headers, c.path)
	case f == bodyField:
		r := decoded()
		if r == nil {
			return ""
		}
		return found(r.Value, c.path)
	case f.state != 0 && l.Record.State != f.state:
		return ""
	case f.kind == aState:
		for name, s := range stateNamed {
			if s == l.Record.State {
				return name
			}
		}
	case f.kind == aGroup:
		return group.String()
	case f.text != nil:
		return f.text(l)
	case f.number != nil:
		return strconv.FormatInt(f.number(l), 10)
	case f.time != nil && !f.time(l).IsZero():
		return f.time(l).UTC().Format(time.RFC3339)
	}
	return ""
}

// found is the values that a path leads to.
func found(in any, path string) string {
	var values []string
	find(in, path, func(v any) bool {
		text, ok := Text(v)
		if !ok {
			text = "…" // a table or a list, whose own fields are asked for by their path
		}
		values = append(values, text)
		return len(values) > mostValues
	})
	if len(values) > mostValues {
		values[mostValues] = "…"
	}
	return strings.Join(slices.Compact(values), ", ")
}
