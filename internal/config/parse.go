package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Error is what is wrong in a file, and where. Lines and columns count from 1.
type Error struct {
	File         string
	Line, Column int
	Msg          string
	Hint         string // what to write instead; "" when Msg has it
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// ErrorHint is for package hint.
func (e *Error) ErrorHint() string { return e.Hint }

// Parse reads a configuration; name is what errors call it. Keys that are left
// out have their defaults. It returns all mistakes that do not follow from others.
func Parse(name string, data []byte) (*Config, error) {
	return parse(name, data, func(string) string { return "" })
}

// parse is Parse with the keys that environment variables set.
func parse(name string, data []byte, getenv func(string) string) (*Config, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, notYAML(name, data, err)
	}
	d := &document{file: name, variables: map[*token.Token]string{}, unsound: map[string]bool{}}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.NullType && doc.Body.Type() != ast.CommentType {
			bodies = append(bodies, doc.Body)
		}
	}
	var body ast.Node
	if len(bodies) > 0 {
		body = bodies[0]
	}
	if _, ok := pairs(body); ok || body == nil {
		body = d.withVariables(body, getenv)
	}
	c := Default()
	if len(bodies) > 1 {
		d.try(func() { d.fail(bodies[1], "a second document begins here; a config file has one") })
	}
	if body != nil {
		d.try(func() { d.config(body, c) })
	}
	return c, d.mistakes()
}

// notYAML is the error of a text that cannot be parsed.
func notYAML(name string, data []byte, err error) *Error {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil {
		return &Error{File: name, Line: 1, Column: 1, Msg: "not valid YAML: " + firstLine(err.Error())}
	}
	p := y.GetToken().Position
	e := &Error{File: name, Line: p.Line, Column: p.Column, Msg: "not valid YAML: " + y.GetMessage()}
	for i, line := range strings.Split(string(data), "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if at := strings.Index(indent, "\t"); at >= 0 {
			return &Error{File: name, Line: i + 1, Column: at + 1, Msg: "not valid YAML: the line is indented with a tab", Hint: "indent with spaces"}
		}
	}
	return e
}

func firstLine(s string) string { line, _, _ := strings.Cut(s, "\n"); return line }

// document reads one file. At a mistake its methods panic with an *Error, which try collects.
type document struct {
	file string
	// variables are the tokens that are not from the file, and which variables they are from.
	variables map[*token.Token]string
	wrong     []error
	unsound   map[string]bool // keys of the file, not below others, in which something is wrong
}

// collected is what a mapping panics with whose mistakes are in document.wrong.
type collected struct{}

// try collects the mistake at which read stops, and returns whether there was none.
func (d *document) try(read func()) (sound bool) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Error:
			d.wrong, sound = append(d.wrong, p), false
		case collected:
			sound = false
		default:
			panic(p)
		}
	}()
	read()
	return true
}

// each reads the items of a list. After mistakes in some it stops what reads the list, whose
// checks would find what follows from them.
func (d *document) each(items []ast.Node, read func(i int, item ast.Node)) {
	checks := make([]func(), len(items))
	for i, item := range items {
		checks[i] = func() { read(i, item) }
	}
	d.all(checks...)
}

// all makes checks of which none follows from another, and stops after mistakes as each does.
func (d *document) all(checks ...func()) {
	all := true
	for _, check := range checks {
		all = d.try(check) && all
	}
	if !all {
		panic(collected{})
	}
}

// lacks reports whether a mapping has none of the keys, nor an unknown one that may be meant.
func lacks(n ast.Node, fields map[string]field, keys ...string) bool {
	values, _ := pairs(n)
	return !slices.ContainsFunc(values, func(v *ast.MappingValueNode) bool {
		key := v.Key.String()
		return fields[key] == nil || slices.Contains(keys, key)
	})
}

// mistakes returns what was collected, in the order of lines; those of variables come first.
func (d *document) mistakes() error {
	slices.SortStableFunc(d.wrong, func(one, other error) int {
		a, b := placeOf(one), placeOf(other)
		if (a.File == d.file) != (b.File == d.file) {
			return map[bool]int{true: 1, false: -1}[a.File == d.file]
		}
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return errors.Join(d.wrong...)
}

func placeOf(err error) *Error {
	e := &Error{}
	errors.As(err, &e)
	return e
}

// fail reports what is wrong at n. What follows the last semicolon of the format is the hint,
// unless it says what was expected, which belongs to the error.
func (d *document) fail(n ast.Node, format string, args ...any) {
	if at := strings.LastIndex(format, "; "); at >= 0 && !strings.HasPrefix(format[at:], "; expected") {
		verbs := strings.Count(strings.ReplaceAll(format[:at], "%%", ""), "%")
		d.refuse(n, hint.Errorf(fmt.Sprintf(format[at+2:], args[verbs:]...), format[:at], args[:verbs]...))
	}
	d.refuse(n, fmt.Errorf(format, args...))
}

// refuse reports err at n, with its hint; each of those that errors.Join has joined.
func (d *document) refuse(n ast.Node, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var each []func()
		for _, err := range joined.Unwrap() {
			each = append(each, func() { d.refuse(n, err) })
		}
		d.all(each...)
	}
	e := d.at(n)
	e.Msg, e.Hint = hint.Text(err), hint.Of(err)
	panic(&e)
}

// at is the place of n, for an error.
func (d *document) at(n ast.Node) Error {
	e := Error{File: d.file, Line: 1, Column: 1}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return e
	}
	e.Line, e.Column = t.Position.Line, t.Position.Column
	if name, ok := d.variables[t]; ok {
		e.File = name
	}
	return e
}

// path is that of a file or folder that the config file names: from its own folder.
func (d *document) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(d.file), name)
}

// field reads the value of a key.
type field func(ast.Node)

// pairs are the keys and values of a mapping; false: it is none.
func pairs(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	}
	return nil, false
}

// mapping reads a mapping that has some of the keys in fields, and returns how many. where is its
// name in errors. The parser refuses a key that comes twice.
func (d *document) mapping(n ast.Node, where string, fields map[string]field) int {
	values, ok := pairs(n)
	if !ok {
		d.fail(n, "%s is %s; expected keys: %s", where, show(n), keyNames(fields))
	}
	nodes := make([]ast.Node, len(values))
	for i, v := range values {
		nodes[i] = v
	}
	d.each(nodes, func(i int, _ ast.Node) {
		v := values[i]
		key := v.Key.String()
		read, ok := fields[key]
		switch {
		case !ok:
			d.fail(v.Key, "%s has no key %q%s; expected one of: %s", where, key, suggestion(key, fields), keyNames(fields))
		case v.Value == nil || v.Value.Type() == ast.NullType:
			d.fail(v.Key, "%s.%s has no value; leave the key out for its default", where, key)
		}
		read(v.Value)
	})
	return len(values)
}

func (d *document) sequence(n ast.Node, where, expected string) []ast.Node {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(n, "%s is %s; expected %s", where, show(n), expected)
	}
	return s.Values
}

// text reads a scalar as it is written; quoted or not.
func (d *document) text(n ast.Node, where, expected string) string {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value
	case *ast.LiteralNode:
		return s.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value
	}
	d.fail(n, "%s is %s; expected %s", where, show(n), expected)
	return ""
}

func (d *document) boolean(n ast.Node, where string) bool {
	b, ok := n.(*ast.BoolNode)
	if !ok {
		d.fail(n, "%s is %s; expected true or false", where, show(n))
	}
	return b.Value
}

func show(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias, which this file may not have"
	case *ast.NullNode:
		return "empty"
	}
	if t := n.GetToken(); t != nil {
		return fmt.Sprintf("%.60q", t.Value)
	}
	return "something else"
}

func keyNames(fields map[string]field) string {
	return strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
}

// suggestion is a key that differs by at most two letters.
func suggestion(key string, fields map[string]field) string {
	best, at := "", 3
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		if n := distance(key, f); n < at {
			best, at = f, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is how many letters must be added, taken away or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}
			last = row[j+1]
			row[j+1] = min(change, row[j]+1, last+1)
		}
	}
	return row[len(b)]
}
