package config

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
)

// vhosts reads the further virtual hosts, and where each stands.
func (d *document) vhosts(n ast.Node, where string, c *Config) (all []VHost, places []secretSource) {
	d.each(d.sequence(n, where, expectedVHosts), func(i int, item ast.Node) {
		v, at := d.vhost(item, fmt.Sprintf("%s[%d]", where, i), c)
		all, places = append(all, v), append(places, at)
	})
	return all, places
}

const expectedVHosts = "a list of virtual hosts, each a name or {name: …, user: …, password_env: …}, with url: … of another cluster"

func (d *document) vhost(n ast.Node, where string, c *Config) (v VHost, at secretSource) {
	at = d.secretSource(n)
	if _, ok := pairs(n); !ok {
		v.Name = d.text(n, where, expectedVHosts)
	} else {
		var passwords []string
		given := func(key string, n ast.Node) string {
			passwords = append(passwords, key)
			return d.text(n, where+"."+key, "a text")
		}
		d.mapping(n, where, map[string]field{
			"name":          func(n ast.Node) { v.Name, at.fail = d.text(n, where+".name", "a name"), d.secretSource(n).fail },
			"vhost":         func(n ast.Node) { v.VHost = d.text(n, where+".vhost", "a virtual host of RabbitMQ's") },
			"url":           func(n ast.Node) { v.URL = d.urls(n, where+".url", "amqp", "amqps") },
			"management":    func(n ast.Node) { v.Management = d.urls(n, where+".management", "http", "https") },
			"tls":           func(n ast.Node) { v.TLS = d.clientTLS(n, where+".tls", c) },
			"user":          func(n ast.Node) { v.User = d.text(n, where+".user", "a user of RabbitMQ's") },
			"password_env":  func(n ast.Node) { at.env = given("password_env", n) },
			"password_file": func(n ast.Node) { at.file = d.path(given("password_file", n)) },
		})
		v.PasswordFile = at.file
		if len(passwords) > 1 {
			d.fail(n, "%s has password_env and password_file; expected one of them", where)
		}
		if v.URL != "" {
			d.ownCluster(n, where, &v, len(passwords) > 0)
		} else {
			d.sameCluster(n, where, &v, len(passwords) > 0)
		}
	}
	if v.Name == "" {
		d.fail(n, "%s has no name; expected a virtual host's, such as billing", where)
	}
	return v, at
}

// sameCluster checks a virtual host of the servers of broker.url.
func (d *document) sameCluster(n ast.Node, where string, v *VHost, password bool) {
	switch {
	case v.Management != "":
		d.fail(n, "%s has management without url; expected url too, or neither for the servers of broker.url", where)
	case v.TLS != credentials.TLS{}:
		d.fail(n, "%s has tls without url; expected url too, or neither for the servers of broker.url", where)
	case (v.User == "") == password:
		d.fail(n, "%s has only one of a user and a password; expected user with password_env or password_file, or neither for those of broker.url", where)
	}
}

// ownCluster checks a virtual host of another cluster. Nothing of broker.url is used for it, above
// all no password: that would be sent to other servers.
func (d *document) ownCluster(n ast.Node, where string, v *VHost, password bool) {
	first, err := url.Parse(addresses.Split(v.URL)[0])
	if err != nil {
		d.fail(n, "%s.url %w", where, addresses.ErrURL)
	}
	_, inURL := first.User.Password()
	external := strings.EqualFold(first.Query().Get("auth_mechanism"), "external")
	switch user := first.User.Username(); {
	case user != "" && v.User != "":
		d.fail(n, "%s has the user %q in its url, and the key user; expected one of them", where, user)
	case user == "" && v.User == "" && !external:
		d.fail(n, "%s has no user; expected one in its url, as in amqps://redrive@host:5671, or the key user", where)
	case inURL && password:
		d.fail(n, "%s has a password in its url, and password_env or password_file; expected one of them", where)
	case !inURL && !password && !external:
		d.fail(n, "%s has no password; expected password_env or password_file: no password of broker.url is sent to other servers", where)
	case password && v.User == "":
		v.User = user
	}
	switch named := strings.TrimPrefix(first.Path, "/"); {
	case first.Path == "" || first.Path == "/" && (v.VHost != "" || v.Name == "/"):
	case named == "":
		d.fail(n, "%s.url ends with /, which may mean the virtual host / or %q; expected vhost: / or vhost: %s", where, v.Name, v.Name)
	case v.VHost != "" && v.VHost != named:
		d.fail(n, "%s.url names the virtual host %q, and vhost is %q; expected one of them", where, named, v.VHost)
	default:
		v.VHost = named
	}
	if err := noParameters(where+".management", v.Management); err != nil {
		d.refuse(n, err)
	}
	if err := checkTLS(where, v.TLS, v.URL, cmp.Or(v.Management, managementOf(v.URL))); err != nil {
		d.refuse(n, err)
	}
}

// vhostPatterns reads which virtual hosts something is for.
func (d *document) vhostPatterns(n ast.Node, where string) []string {
	all := d.texts(n, where, `a list of virtual hosts or patterns, such as ["shop-*"]`)
	if len(all) == 0 {
		d.fail(n, "%s is empty; leave the key out for all virtual hosts", where)
	}
	return all
}
