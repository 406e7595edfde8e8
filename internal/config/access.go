package config

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
)

// Access is access control.
type Access struct {
	// SignIn: callers must sign in. Without it everybody on this machine is an administrator, and no
	// one else has access.
	SignIn bool
	// Roles are the permissions of RabbitMQ's users, by their tags.
	Roles map[string]auth.Grant
	// OpenMetrics shows the metrics to everybody.
	OpenMetrics bool
	Proxies     auth.Proxies
	TLS         auth.TLSFiles // none: plain HTTP
	// BehindProxy: callers come by a proxy, which does the TLS.
	BehindProxy bool
	ReadOnly    bool
}

// HasTLS tells whether the service speaks TLS itself.
func (a *Access) HasTLS() bool { return a.TLS != auth.TLSFiles{} }

// CheckExposure returns an error when other machines could reach the service without signing in, or
// without TLS.
func (c *Config) CheckExposure() error {
	open := !auth.Loopback(c.Listen)
	a := &c.Access
	switch {
	case open && !a.SignIn:
		return hint.Errorf("set `auth: {}`, to sign in with users of RabbitMQ's or tokens, or listen on 127.0.0.1", "listen is %q, which other machines can reach, and no one has to sign in", c.Listen)
	case a.BehindProxy && !a.SignIn:
		return hint.Errorf("set `auth: {}`, to sign in with users of RabbitMQ's or tokens", "tls is behind-proxy, so that others can reach the service, and no one has to sign in")
	case open && !a.HasTLS() && !a.BehindProxy:
		return hint.Errorf("set tls.cert and tls.key, or `tls: behind-proxy` where a proxy speaks TLS for the service", "listen is %q, which other machines can reach, and passwords and tokens would go there in the clear", c.Listen)
	}
	return nil
}

func (d *document) access(a *Access) map[string]field {
	return map[string]field{
		"auth": func(n ast.Node) {
			a.SignIn = true
			d.mapping(n, "auth", map[string]field{
				"roles": func(n ast.Node) { a.Roles = d.roles(n, "auth.roles") },
				"metrics": func(n ast.Node) {
					switch s := d.text(n, "auth.metrics", "open or viewer"); s {
					case "open":
						a.OpenMetrics = true
					case "viewer":
					default:
						d.fail(n, "auth.metrics is %s; expected open, for everybody, or viewer", show(n))
					}
				},
				"proxies": func(n ast.Node) { a.Proxies = d.networks(n, "auth.proxies") },
			})
		},
		"tls": func(n ast.Node) {
			const expected = "keys cert and key, or behind-proxy"
			if s, ok := n.(*ast.StringNode); ok {
				if a.BehindProxy = s.Value == "behind-proxy"; !a.BehindProxy {
					d.fail(n, "tls is %s; expected %s", show(n), expected)
				}
				return
			}
			d.mapping(n, "tls", map[string]field{
				"cert":      func(n ast.Node) { a.TLS.Cert = d.path(d.text(n, "tls.cert", "a file")) },
				"key":       func(n ast.Node) { a.TLS.Key = d.path(d.text(n, "tls.key", "a file")) },
				"client_ca": func(n ast.Node) { a.TLS.ClientCA = d.path(d.text(n, "tls.client_ca", "a file")) },
			})
			if a.TLS.Cert == "" || a.TLS.Key == "" {
				d.fail(n, "tls needs both cert and key, files in PEM")
			}
		},
		"read_only": func(n ast.Node) { a.ReadOnly = d.boolean(n, "read_only") },
	}
}

// roles reads the roles of tags; any name may be a tag.
func (d *document) roles(n ast.Node, where string) map[string]auth.Grant {
	values, _ := pairs(n)
	if len(values) == 0 {
		d.fail(n, "%s is %s; expected tags of RabbitMQ's users with a role each, such as monitoring: viewer", where, show(n))
	}
	all := map[string]auth.Grant{}
	var checks []func()
	for _, v := range values {
		checks = append(checks, func() {
			tag := d.text(v.Key, where, "a tag")
			all[tag] = d.grant(v.Value, where+"."+tag)
		})
	}
	d.all(checks...)
	return all
}

func (d *document) grant(n ast.Node, where string) (g auth.Grant) {
	role := func(n ast.Node, where string) {
		var err error
		if g.Role, err = auth.ParseRole(d.text(n, where, "a role")); err != nil {
			d.fail(n, "%s: %w", where, err)
		}
	}
	if _, ok := pairs(n); !ok {
		role(n, where)
		return g
	}
	d.mapping(n, where, map[string]field{
		"role": func(n ast.Node) { role(n, where+".role") },
		"queues": func(n ast.Node) {
			g.Queues = d.texts(n, where+".queues", `a list of queue names or patterns, such as ["orders.*"]`)
			if len(g.Queues) == 0 {
				d.fail(n, "%s.queues is empty; leave the key out for all queues", where)
			}
		},
	})
	if g.Role == auth.NoRole {
		d.fail(n, "%s names no role; expected role: viewer, operator, editor or admin", where)
	}
	return g
}

func (d *document) networks(n ast.Node, where string) (all []netip.Prefix) {
	d.each(d.sequence(n, where, `a list of addresses or networks, such as ["10.0.0.0/8"]`), func(_ int, item ast.Node) {
		s := d.text(item, where, "an address")
		p, err := netip.ParsePrefix(s)
		if a, err2 := netip.ParseAddr(s); err2 == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			d.fail(item, "%s has %s; expected an address or network, such as 10.0.0.7 or 10.0.0.0/8", where, show(item))
		}
		all = append(all, p.Masked())
	})
	return all
}

// describe says in words who has access; "": as by default.
func (a *Access) describe() string {
	var parts []string
	if a.SignIn {
		var roles []string
		for _, tag := range slices.Sorted(maps.Keys(a.Roles)) {
			g := a.Roles[tag]
			role := tag + ": " + g.Role.String()
			if g.Queues != nil {
				role += " of " + strings.Join(g.Queues, " ")
			}
			roles = append(roles, role)
		}
		parts = append(parts, "callers sign in with a token or as a user of RabbitMQ's ("+strings.Join(roles, ", ")+")")
	}
	if a.ReadOnly {
		parts = append(parts, "read-only, whoever calls")
	}
	return strings.Join(parts, "; ")
}
