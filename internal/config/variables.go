package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// ownNames are the variables that are not named like their key. Load reads them.
var ownNames = map[string]string{
	"broker.url": "REDRIVE_BROKER_URL", "broker.management": "REDRIVE_MANAGEMENT_URL", "store.redis.url": "REDRIVE_REDIS_URL",
}

// settings are the keys that environment variables set, each after those above it: none in lists,
// whose list is set as a whole.
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

// set returns a mapping with a value at a path; what is no mapping on the way is replaced by one.
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
