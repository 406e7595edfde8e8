package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Error is a mistake in a file, with its place. Lines and columns count from 1.
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

// Parse reads a configuration; errors call it name. Keys that are left
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
		d.try(func() { c.keys().readFrom(value{document: d, node: body}) })
	}
	return c, d.mistakes()
}

// notYAML is the error of a text that cannot be parsed.
func notYAML(name string, data []byte, err error) *Error {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return &Error{File: name, Line: 1, Column: 1, Msg: "not valid YAML: " + first}
	}
	for i, line := range strings.Split(string(data), "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if at := strings.Index(indent, "\t"); at >= 0 {
			return &Error{name, i + 1, at + 1, "not valid YAML: the line is indented with a tab", "indent with spaces"}
		}
	}
	p := y.GetToken().Position
	return &Error{File: name, Line: p.Line, Column: p.Column, Msg: "not valid YAML: " + y.GetMessage()}
}

// document reads one file. At a mistake its methods panic with an *Error, which try collects.
type document struct {
	file string
	// variables are the tokens that are not from the file, and which variables they are from.
	variables map[*token.Token]string
	wrong     []error
	unsound   map[string]bool // keys in which something is wrong, by path
}

// collected is the panic of a mapping whose mistakes are in document.wrong.
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

// mistakes returns the mistakes in the order of lines, after those of variables.
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

// beside returns the path of a file or folder that the config file names: from its own folder.
func (d *document) beside(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(d.file), name)
}

// value is the value of a key in the file.
type value struct {
	*document
	node ast.Node
	path string // its name in errors, such as store.redis.url; "" for the whole file
	keys []key  // those that it may have, when it is read as a mapping
}

// fail reports what is wrong with the value; the format goes on after its path.
func (v value) fail(format string, args ...any) {
	v.document.fail(v.node, "%s"+format, append([]any{v.name()}, args...)...)
}

// failIn is fail at a character of a text, counted from 0.
func (v value) failIn(at int, format string, args ...any) {
	defer func() {
		p := recover()
		if e, ok := p.(*Error); ok && v.node.Type() == ast.StringType {
			e.Column += at
			if quote := v.node.GetToken().Type; quote == token.SingleQuoteType || quote == token.DoubleQuoteType {
				e.Column++
			}
		}
		panic(p)
	}()
	v.fail(format, args...)
}

// wrong reports an unexpected value.
func (v value) wrong(expected string) { v.fail(" is %s; expected %s", show(v.node), expected) }

func (v value) name() string { return cmp.Or(v.path, "the file") }

func (v value) place() Error { return v.document.at(v.node) }

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

// mapping reads a mapping. The parser refuses a key that comes twice.
func (v value) mapping() {
	values, ok := pairs(v.node)
	if !ok {
		v.wrong("keys: " + names(v.keys))
	}
	var reads []func()
	for _, pair := range values {
		reads = append(reads, func() {
			name := pair.Key.String()
			i := slices.IndexFunc(v.keys, func(k key) bool { return k.name == name })
			if i < 0 {
				known := names(v.keys)
				v.document.fail(pair.Key, "%s has no key %q%s; expected one of: %s",
					v.name(), name, hint.Meant(name, strings.Split(known, ", ")), known)
			}
			at := value{document: v.document, node: pair.Value, path: strings.TrimPrefix(v.path+"."+name, ".")}
			if !v.try(func() {
				if at.node == nil || at.node.Type() == ast.NullType {
					v.document.fail(pair.Key, "%s.%s has no value; leave the key out for its default", v.name(), name)
				}
				v.keys[i].readFrom(at)
			}) {
				v.unsound[at.path] = true
				panic(collected{})
			}
		})
	}
	v.all(reads...)
}

// at returns the value of a key of a mapping; false: v itself, since the mapping lacks it.
func (v value) at(name string) (value, bool) {
	values, _ := pairs(v.node)
	for _, pair := range values {
		if pair.Key.String() == name {
			return value{document: v.document, node: pair.Value, path: v.path + "." + name}, true
		}
	}
	return v, false
}

// given returns which of the keys a mapping has, in its order.
func (v value) given(keys ...string) (names []string) {
	values, _ := pairs(v.node)
	for _, pair := range values {
		if name := pair.Key.String(); slices.Contains(keys, name) {
			names = append(names, name)
		}
	}
	return names
}

// lacks reports whether a mapping has none of the keys, nor an unknown one that may be meant.
func (v value) lacks(keys ...string) bool { return !v.unknown() && len(v.given(keys...)) == 0 }

// unknown reports whether a mapping has a key that it may not have.
func (v value) unknown() bool {
	values, _ := pairs(v.node)
	return slices.ContainsFunc(values, func(pair *ast.MappingValueNode) bool {
		return !slices.ContainsFunc(v.keys, func(k key) bool { return k.name == pair.Key.String() })
	})
}

// each reads the items of a list. After mistakes in some it stops what reads the list, whose
// checks would find what follows from them.
func (v value) each(expected string, read func(i int, item value)) {
	list, ok := v.node.(*ast.SequenceNode)
	if !ok {
		v.wrong(expected)
	}
	var reads []func()
	for i, item := range list.Values {
		reads = append(reads, func() { read(i, value{document: v.document, node: item, path: v.path}) })
	}
	v.all(reads...)
}

// eachNamed reads a mapping with any names; what they are is for errors.
func (v value) eachNamed(expected, what string, read func(name string, key, item value)) {
	items, _ := pairs(v.node)
	if len(items) == 0 {
		v.wrong(expected)
	}
	var reads []func()
	for _, pair := range items {
		reads = append(reads, func() {
			key := value{document: v.document, node: pair.Key, path: v.path}
			name := key.text(what)
			read(name, key, value{document: v.document, node: pair.Value, path: v.path + "." + name})
		})
	}
	v.all(reads...)
}

// text reads a scalar as it is written; quoted or not.
func (v value) text(expected string) string {
	switch s := v.node.(type) {
	case *ast.StringNode:
		return s.Value
	case *ast.LiteralNode:
		return s.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return v.node.GetToken().Value
	}
	v.wrong(expected)
	return ""
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

// names returns the names of keys, sorted.
func names(keys []key) string {
	var all []string
	for _, k := range keys {
		all = append(all, k.name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// ownNames are the variables that are not named like their key. Load reads them.
var ownNames = map[string]string{
	"broker.url": "REDRIVE_BROKER_URL", "broker.management": "REDRIVE_MANAGEMENT_URL",
	"store.redis.url": "REDRIVE_REDIS_URL",
}

// settings lists the keys that environment variables can set, parents before children. A list is set as a
// whole, so no key inside a list is among them.
var settings = settable("", Default().keys())

func settable(path string, k key) (all []string) {
	for _, k := range k.below {
		at := strings.TrimPrefix(path+"."+k.name, ".")
		if k.variable {
			all = append(all, at)
		}
		all = append(all, settable(at, k)...)
	}
	return all
}

// Variable returns the name of the environment variable that sets a key, such as
// REDRIVE_STORE_DISK for store.disk; "" for one that none sets.
func Variable(key string) string {
	if !slices.Contains(settings, key) {
		return ""
	}
	return cmp.Or(ownNames[key], "REDRIVE_"+strings.ToUpper(strings.ReplaceAll(key, ".", "_")))
}

// withVariables returns the file's mapping with what the environment sets in its place; nil is an
// empty file.
func (d *document) withVariables(body ast.Node, getenv func(string) string) ast.Node {
	for _, key := range settings {
		if ownNames[key] != "" {
			continue
		}
		path := strings.Split(key, ".")
		text, name, err := variable(Variable(key), getenv)
		var value ast.Node
		if err == nil && text != "" {
			value, err = d.valueOf(name, key, text)
		}
		switch {
		case err != nil:
			d.wrong, d.unsound[path[0]] = append(d.wrong, err), true
		case value != nil:
			body = set(body, path, value)
		}
	}
	return body
}

// valueOf reads the value of a variable: YAML, when it is a list, a mapping or several lines, and
// otherwise a text as it is.
func (d *document) valueOf(name, key, text string) (ast.Node, error) {
	at := token.New(text, text, &token.Position{Line: 1, Column: 1})
	d.variables[at] = name
	switch {
	case key == "listen": // of IPv6 [::1]:8250, which is no list
	case strings.HasPrefix(text, "["), strings.HasPrefix(text, "{"), strings.Contains(text, "\n"):
		file, err := parser.ParseBytes([]byte(text), 0)
		if err != nil {
			return nil, notYAML(name, []byte(text), err)
		}
		if len(file.Docs) == 1 && file.Docs[0].Body != nil {
			ast.Walk(namedTokens{d, name}, file.Docs[0].Body)
			return file.Docs[0].Body, nil
		}
	case text == "true", text == "false":
		return ast.Bool(at), nil
	}
	return ast.String(at), nil
}

// namedTokens records that nodes are from a variable.
type namedTokens struct {
	*document
	name string
}

func (v namedTokens) Visit(n ast.Node) ast.Visitor {
	if t := n.GetToken(); t != nil {
		v.variables[t] = v.name
	}
	return v
}

// set returns a mapping with a value at a path. It replaces anything on the way that is not a mapping.
func set(in ast.Node, path []string, value ast.Node) ast.Node {
	if len(path) == 0 {
		return value
	}
	at := value.GetToken()
	m := ast.Mapping(at, false)
	if in != nil {
		m.Values, _ = pairs(in)
	}
	m.Values = slices.Clone(m.Values)
	for i, v := range m.Values {
		if v.Key.String() == path[0] {
			m.Values[i] = ast.MappingValue(v.Start, v.Key, set(v.Value, path[1:], value))
			return m
		}
	}
	key := ast.String(token.New(path[0], path[0], at.Position))
	m.Values = append(m.Values, ast.MappingValue(at, key, set(nil, path[1:], value)))
	return m
}
