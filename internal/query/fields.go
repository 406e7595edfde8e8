package query

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// kind is how a field's values are written and compared.
type kind uint8

const (
	wholeName   kind = iota // the whole name; * matches any characters and ? one
	partOf                  // a part of the text, ignoring case
	aState                  // a state
	aGroup                  // a group's id
	aNumber                 // a number
	aSize                   // bytes
	anAge                   // a time ago, as a duration
	aMoment                 // a time, or a date
	aMomentSoon             // a time from now as a duration, or a moment
	anything                // headers and bodies: as the value is, a name, number or moment
)

// takes describes each kind in the documentation.
var takes = [...]string{
	wholeName:   "the whole, with `*` for any characters and `?` for one; or `/…/`",
	partOf:      "a part of it, in capitals or not; or `/…/`",
	aState:      "`waiting`, `retried`, `parked`, `discarded`",
	aGroup:      "a group's id",
	aNumber:     "a number; `>` `>=` `<` `<=`, or `1..5`",
	aSize:       "a size such as `200`, `1kb` or `4MiB`; `>` `>=` `<` `<=`, or `1kb..2kb`",
	anAge:       "`>` `>=` `<` `<=` a duration such as `90s`, `2h` or `1d`, or `1h..2h`",
	aMoment:     "a date such as `2026-11-21`, or a time such as `2026-11-21T10:00Z`; `>` `>=` `<` `<=`, or `a..b`",
	aMomentSoon: "`>` `>=` `<` `<=` a duration from now, or a time; or `a..b`",
	anything:    "the whole, with `*` and `?`; or `/…/`; a number or a time also with `>` `>=` `<` `<=` or `a..b`",
}

// field is a field of the language.
type field struct {
	name    string
	kind    kind
	doc     string
	example string // in a query
	needs   known
	state   store.State // the only state with this field; 0: any
	values  []string    // for completing
	text    func(*store.Listed) string
	number  func(*store.Listed) int64
	time    func(*store.Listed) time.Time
	// floor: this time is never after Due, whatever the state, so stores, which order
	// by Due, can bound it from below.
	floor bool
	isDue bool // the field is Due itself
	short op   // short for failed: with this operator
}

// fields lists all fields but header.… and body.…, which have a path.
var fields = []*field{
	{name: "queue", kind: wholeName, example: "queue:orders.*", needs: knowsQueue, doc: "the work queue it failed in",
		text: func(l *store.Listed) string { return l.Record.Queue }},
	{name: "state", kind: aState, example: "state:parked", needs: knowsState, doc: "where it is in its life",
		values: []string{"waiting", "retried", "parked", "discarded"}},
	{name: "reason", kind: wholeName, example: "reason:rejected", needs: knowsReason,
		doc:    "why it failed, in RabbitMQ's word",
		values: []string{"rejected", "expired", "maxlen", "delivery_limit", "reported"},
		text:   func(l *store.Listed) string { return l.Record.Reason }},
	{name: "error", kind: partOf, example: `error:"connection refused"`, needs: knowsRest,
		doc:  "what its consumer said",
		text: func(l *store.Listed) string { return l.Record.Error }},
	{name: "exception", kind: wholeName, example: "exception:ValidationError", needs: knowsRest,
		doc:  "the type that its error begins with, with its package or without",
		text: func(l *store.Listed) string { return errorgroup.Exception(l.Record.Error) }},
	{name: "group", kind: aGroup, example: "group:5a1f0c2b9e3d4a76", needs: knowsGroup,
		doc: "its group, or error in all queues"},
	{name: "text", kind: partOf, example: "text:ACME", needs: knowsBody,
		doc: "its body as decoded, or its error; a word without a field means the same"},
	{name: "attempt", kind: aNumber, example: "attempt:>3", needs: knowsRest, doc: "failures so far",
		number: func(l *store.Listed) int64 { return int64(l.Record.Failures) }},
	{name: "replays", kind: aNumber, example: "replays:>0", needs: knowsRest, doc: "how often people replayed it",
		number: func(l *store.Listed) int64 { return int64(l.Record.Replays) }},
	{name: "age", kind: anAge, example: "age:>2h", needs: knowsRest, doc: "how long ago it failed",
		time: failedAt, floor: true},
	{name: "due", kind: aMomentSoon, example: "due:<10m", needs: knowsRest, state: store.Waiting, isDue: true,
		doc:  "when a waiting one is retried",
		time: func(l *store.Listed) time.Time { return l.Record.Due }},
	{name: "parked", kind: aMoment, example: "parked:>=2026-11-21", needs: knowsRest, state: store.Parked, isDue: true,
		doc:  "when it was parked",
		time: func(l *store.Listed) time.Time { return l.Record.Due }},
	{name: "failed", kind: aMoment, example: "failed:2026-11-21T10:00Z..2026-11-21T11:00Z", needs: knowsRest,
		doc:  "when it failed last",
		time: failedAt, floor: true},
	{name: "before", kind: aMoment, example: "before:2026-11-21T10:00Z", needs: knowsRest,
		doc: "it failed before that; short for `failed:<`", short: less},
	{name: "after", kind: aMoment, example: "after:2026-11-21", needs: knowsRest,
		doc: "it failed then or later; short for `failed:>=`", short: atLeast},
	{name: "first", kind: aMoment, example: "first:<2026-11-01", needs: knowsRest,
		doc:  "when it failed for the first time",
		time: func(l *store.Listed) time.Time { return l.Record.FirstFailed }, floor: true},
	{name: "why", kind: partOf, example: `why:"no policy"`, needs: knowsRest, state: store.Parked,
		doc:  "why it is parked",
		text: func(l *store.Listed) string { return l.Record.ParkedFor }},
	{name: "note", kind: partOf, example: "note:*", needs: knowsRest, doc: "what was odd about it",
		text: func(l *store.Listed) string { return strings.Join(l.Record.Notes, "\n") }},
	{name: "policy", kind: wholeName, example: "policy:default", needs: knowsRest, doc: "the policy that decided",
		text: func(l *store.Listed) string { return l.Record.Policy }},
	{name: "rule", kind: wholeName, example: `rule:"bad data"`, needs: knowsRest,
		doc:  "the rule of the policy that decided",
		text: func(l *store.Listed) string { return l.Record.Rule }},
	{name: "adopted", kind: wholeName, example: "adopted:orders.dlq", needs: knowsRest,
		doc:  "the dead-letter queue it was adopted from",
		text: func(l *store.Listed) string { return l.Record.AdoptedFrom }},
	{name: "id", kind: wholeName, example: "id:0193e0a4-*", needs: knowsRest, doc: "its `x-redrive-id`",
		text: func(l *store.Listed) string { return l.Record.ID.String() }},
	{name: "size", kind: aSize, example: "size:>1kb", needs: knowsRest, doc: "of its body",
		number: func(l *store.Listed) int64 { return int64(l.BodySize) }},
	{name: "exchange", kind: wholeName, example: "exchange:shop", needs: knowsRest, doc: "where it was first published",
		text: func(l *store.Listed) string { return l.Record.Message.Exchange }},
	{name: "key", kind: wholeName, example: "key:order.*", needs: knowsRest,
		doc:  "the routing key it was first published with",
		text: func(l *store.Listed) string { return l.Record.Message.RoutingKey }},
	{name: "type", kind: wholeName, example: "type:OrderPlaced", needs: knowsRest,
		doc:  "the property of AMQP; so are the next four",
		text: func(l *store.Listed) string { return l.Record.Message.Type }},
	{name: "content_type", kind: wholeName, example: "content_type:application/*", needs: knowsRest, doc: "",
		text: func(l *store.Listed) string { return l.Record.Message.ContentType }},
	{name: "message_id", kind: wholeName, example: "message_id:7f3a", needs: knowsRest, doc: "",
		text: func(l *store.Listed) string { return l.Record.Message.MessageID }},
	{name: "correlation_id", kind: wholeName, example: "correlation_id:7f3a", needs: knowsRest, doc: "",
		text: func(l *store.Listed) string { return l.Record.Message.CorrelationID }},
	{name: "app_id", kind: wholeName, example: "app_id:checkout", needs: knowsRest, doc: "",
		text: func(l *store.Listed) string { return l.Record.Message.AppID }},
}

func failedAt(l *store.Listed) time.Time { return l.Record.FailedAt }

var (
	headerField = &field{name: "header.", kind: anything, example: "header.tenant:acme", needs: knowsRest,
		doc: "a header as first published, by its name"}
	bodyField = &field{name: "body.", kind: anything, example: "body.order.total:>100", needs: knowsBody,
		doc: "a value in the body as decoded, by its path; of a list, any"}
)

var fieldNamed = func() map[string]*field {
	m := map[string]*field{}
	for _, f := range fields {
		m[f.name] = f
	}
	return m
}()

var stateNamed = map[string]store.State{"waiting": store.Waiting, "retried": Retried, "parked": store.Parked,
	"discarded": store.Discarded}

// maxColumns, and maxColumnText of their names in bytes, bound what one request can ask for.
const (
	maxColumns    = 10
	maxColumnText = 1024
)

// Column is a field as a column of a list.
type Column struct {
	Name  string
	field *field
	path  string
}

// Columns parses names of fields, separated by commas.
func Columns(text string) (all []Column, err error) {
	if len(text) > maxColumnText {
		return nil, fmt.Errorf("the names of the columns are longer than %d bytes", maxColumnText)
	}
	for name := range strings.SplitSeq(text, ",") {
		c := Column{Name: strings.TrimSpace(name)}
		if c.Name == "" || slices.ContainsFunc(all, func(other Column) bool { return other.Name == c.Name }) {
			continue
		}
		for _, f := range []*field{headerField, bodyField} {
			if path, ok := strings.CutPrefix(c.Name, f.name); ok && path != "" {
				c.field, c.path = f, path
			}
		}
		if f := fieldNamed[c.Name]; f != nil && f.isColumn() {
			c.field = f
		}
		if bare := strings.TrimSuffix(c.Name, "."); bare == "header" || bare == "body" {
			return nil, fmt.Errorf("the column %q has no name or path, as in header.tenant or body.order.id", c.Name)
		}
		if c.field == nil {
			names := fieldNames((*field).isColumn)
			return nil, fmt.Errorf("there is no column %.60q%s", c.Name,
				cmp.Or(hint.Meant(c.Name, names), oneOf(names)))
		}
		if all = append(all, c); len(all) > maxColumns {
			return nil, fmt.Errorf("these are more than %d columns", maxColumns)
		}
	}
	return all, nil
}

// isColumn reports whether a field can be a column.
func (f *field) isColumn() bool { return f.short == "" && f.name != "text" }

func fieldNames(with func(*field) bool) (names []string) {
	for _, f := range append(fields[:len(fields):len(fields)], headerField, bodyField) {
		if with(f) {
			names = append(names, f.name)
		}
	}
	return names
}

func oneOf(names []string) string {
	return "; expected one of: " + strings.NewReplacer("header.", "header.NAME", "body.", "body.PATH").
		Replace(strings.Join(names, ", "))
}

// NeedsBody reports whether the column shows a part of the body.
func (c Column) NeedsBody() bool { return c.field == bodyField }

// IsNumber reports whether its values are numbers, and IsTime whether they are times in RFC 3339.
func (c Column) IsNumber() bool { return c.field.number != nil }
func (c Column) IsTime() bool   { return c.field.time != nil }

// Of returns the column's value as a text, or "".
func (c Column) Of(
	l *store.Listed, groupOf func(*store.Record) errorgroup.ID, decoded func() *decode.Result,
) string {
	f := c.field
	switch {
	case f.state != 0 && l.Record.State != f.state:
		return ""
	case f == headerField:
		return valuesAt(l.Record.Message.Headers, c.path)
	case f == bodyField:
		return valuesAt(decoded().Value, c.path)
	case f.kind == aState:
		for name, state := range stateNamed {
			if state == l.Record.State {
				return name
			}
		}
	case f.kind == aGroup:
		return groupOf(l.Record).String()
	case f.text != nil:
		return f.text(l)
	case f.number != nil:
		return strconv.FormatInt(f.number(l), 10)
	case f.time != nil && !f.time(l).IsZero():
		return f.time(l).UTC().Format(time.RFC3339)
	}
	return ""
}

const (
	// maxValues at a path are shown, each up to maxValueText bytes.
	maxValues    = 5
	maxValueText = 500
)

// valuesAt are the values at a path of headers or a body, as a text; … for what is no single value.
func valuesAt(v any, path string) string {
	var all []string
	find(v, path, func(v any) bool {
		text, ok := Text(v)
		switch {
		case len(all) == maxValues || !ok:
			text = "…"
		case len(text) > maxValueText:
			text = strings.ToValidUTF8(text[:maxValueText], "") + "…"
		}
		all = append(all, text)
		return len(all) > maxValues
	})
	return strings.Join(all, ", ")
}

// Field describes a field for documentation and help.
type Field struct{ Name, Doc, Takes, Example string }

// Fields returns all fields.
func Fields() []Field {
	all := make([]Field, 0, len(fields)+2)
	for _, f := range append(fields[:len(fields):len(fields)], headerField, bodyField) {
		all = append(all, Field{f.name, f.doc, f.takes(), f.example})
	}
	return all
}

// Help returns example terms and what they match.
func Help() [][2]string {
	all := [][2]string{{"queue:orders.* state:parked", "both; * is any characters, ? is one"},
		{"reason:expired OR reason:maxlen", "one of them, or both"}, {"-queue:orders.*", "not that; so does NOT"},
		{"(age:>2h OR attempt:5) error:*", "parentheses group, and AND binds closer than OR; * alone: there is one"},
		{"size:1kb..4MiB", "a range; numbers and times also take > >= < <="},
		{`error:/time.?out/`, "a regular expression (RE2), of texts and names"}, {"ACME", "short for text:ACME"}}
	for _, f := range append(fields[:len(fields):len(fields)], headerField, bodyField) {
		doc := strings.ReplaceAll(cmp.Or(f.doc, "that property of AMQP"), "`", "")
		if len(f.values) > 0 {
			doc += ": " + strings.Join(f.values, ", ")
		}
		all = append(all, [2]string{f.example, doc})
	}
	return all
}

func (f *field) takes() string {
	if f.short != "" {
		return "a date or a time"
	}
	return takes[f.kind]
}

// find calls try with each value at a path until one returns true. Names may contain
// dots, so a.b is both a name and b within a. In a list, a number in the path is an index
// from 0; otherwise all elements are tried. Each value is tried at most once, whatever the
// message holds.
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

// leaves tries a value, or each element of a list.
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

// value reports whether a value of a header or body matches the term.
func (t *term) value(v any) bool {
	if t.op == exists {
		return true
	}
	text, ok := Text(v)
	if !ok {
		return false
	}
	if t.op == is && (t.a.quoted || t.a.expression != nil || t.a.names(text)) {
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

// Text returns a value of a header or body as people write it and queries compare it;
// ok is false for tables and lists.
func Text(v any) (text string, ok bool) {
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
