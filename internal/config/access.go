package config

import (
	"maps"
	"slices"
	"strings"

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
