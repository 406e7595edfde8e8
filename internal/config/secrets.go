package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/notify"
)

// secretSource names the variable or file that Load reads a secret from.
type secretSource struct {
	env, file string
	fail      Error // its place in the config file, for errors
}

func (d *document) secretSource(n ast.Node) secretSource {
	return secretSource{fail: d.at(n)}
}

func (f *secretSource) wrong(format string, args ...any) error {
	e := f.fail
	if e.Msg = fmt.Sprintf(format, args...); e.File == "" {
		return errors.New(e.Msg)
	}
	return &e
}

// read returns the secret, and in words where it was read from. of is its name in errors.
func (f *secretSource) read(getenv func(string) string, of string) (value, what string, err error) {
	value, what = getenv(f.env), "the environment variable "+f.env
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return "", "", f.wrong("%s cannot be read: %v", of, err)
		}
		value, what = string(data), "the file "+f.file
	}
	return strings.TrimSpace(value), what, nil
}

// routeSecret is where the URL of a route, or one of its keys, comes from.
type routeSecret struct {
	route int
	key   int // -1: the URL
	secretSource
}

// routingKeys are PagerDuty's integration keys of some queues. No key is in the file itself.
func (d *document) routingKeys(n ast.Node, where string, route int, c *Config) (all []notify.RoutingKey) {
	d.each(d.sequence(n, where, `a list such as [{queues: ["orders.*"], key_env: PAGERDUTY_ORDERS}]`), func(i int, item ast.Node) {
		where := fmt.Sprintf("%s[%d]", where, i)
		k, at := notify.RoutingKey{}, routeSecret{route: route, key: len(all), secretSource: d.secretSource(item)}
		d.mapping(item, where, map[string]field{
			"queues":   func(n ast.Node) { k.Queues = d.queues(n, where+".queues") },
			"key_env":  func(n ast.Node) { at.env = d.text(n, where+".key_env", "a text") },
			"key_file": func(n ast.Node) { at.file = d.path(d.text(n, where+".key_file", "a text")) },
		})
		switch {
		case len(k.Queues) == 0:
			d.fail(item, "%s has no queues", where)
		case (at.env == "") == (at.file == ""):
			d.fail(item, "%s needs a key_env or a key_file, and not both", where)
		}
		all, c.routeSecrets = append(all, k), append(c.routeSecrets, at)
	})
	return all
}

// readRouteSecrets reads the URLs and keys of routes that are in variables and files.
func (c *Config) readRouteSecrets(getenv func(string) string) error {
	for _, at := range c.routeSecrets {
		r := &c.Notify.Routes[at.route]
		of, name, expected := fmt.Sprintf("notify route %q: ", r.Name), "its URL", "the URL to send to"
		if at.key >= 0 {
			name, expected = fmt.Sprintf("its key of %s", strings.Join(r.Keys[at.key].Queues, " ")), "PagerDuty's integration key"
		}
		value, what, err := at.read(getenv, of+name)
		switch {
		case err != nil:
			return err
		case value == "":
			return at.wrong("%s%s is empty; expected %s", of, what, expected)
		case at.key >= 0:
			r.Keys[at.key].Key = notify.Secret(value)
			continue
		}
		r.URL = notify.Secret(value)
		if err := notify.Check(r); err != nil {
			return at.wrong("%s%s %v", of, what, err)
		}
	}
	return nil
}
