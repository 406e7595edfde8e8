package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// Access is access control.
type Access struct {
	// SignIn: callers must sign in. Without it everybody on this machine is an administrator, and no
	// one else has access.
	SignIn bool
	// Roles are the permissions of RabbitMQ's users, by their tags; without any, none of them signs in.
	Roles map[string]auth.Grant
	// OIDC is the provider of OpenID Connect; without an issuer there is none.
	OIDC auth.OIDCConfig
	// OpenMetrics shows the metrics to everybody.
	OpenMetrics bool
	// Bodies are what roles see of messages.
	Bodies mask.Bodies
	// Show are the roles that may see single messages whole, for a reason.
	Show    []auth.Role
	Proxies auth.Proxies
	Proxy   auth.ProxyConfig // what these say of people
	TLS     auth.TLSFiles    // none: plain HTTP
	// BehindProxy: callers come by a proxy, which does the TLS.
	BehindProxy bool
	ReadOnly    bool
}

// HasTLS reports whether the service speaks TLS itself.
func (a *Access) HasTLS() bool { return a.TLS != auth.TLSFiles{} }

// CheckExposure returns an error when other machines could reach the service without signing in, or
// without TLS.
func (c *Config) CheckExposure() error {
	open := !auth.Loopback(c.Listen)
	a := &c.Access
	switch {
	case open && !a.SignIn:
		return hint.Errorf("set `auth: {}`, to sign in with users of RabbitMQ's or tokens, or listen on 127.0.0.1",
			"listen is %q, which other machines can reach, and no one has to sign in", c.Listen)
	case a.BehindProxy && !a.SignIn:
		return hint.Errorf("set `auth: {}`, to sign in with users of RabbitMQ's or tokens",
			"tls is behind-proxy, so that others can reach the service, and no one has to sign in")
	case open && !a.HasTLS() && !a.BehindProxy:
		return hint.Errorf("set tls.cert and tls.key, or `tls: behind-proxy` where a proxy speaks TLS for the service",
			"listen is %q, which other machines can reach, and passwords and tokens would go there in the clear",
			c.Listen)
	case !a.SignIn || len(a.Roles) > 0 || a.OIDC.Issuer != "":
	case a.Proxy.UserHeader == "":
		return hint.Errorf("leave auth.roles out, or set auth.oidc, or auth.proxies with a user_header",
			"auth.roles is empty, so no user of RabbitMQ's can sign in, and there is no other way for people")
	case open || !a.Proxies.Loopback():
		return hint.Errorf("listen on 127.0.0.1, with the proxy on this machine and in auth.proxies.addresses, or "+
			"let people sign in another way too, with auth.oidc or auth.roles",
			"listen is %q, which others than the proxies can reach, and people can sign in by a proxy alone", c.Listen)
	}
	return nil
}

// describe says in words who has access; "": as by default.
func (a *Access) describe() string {
	var parts []string
	switch {
	case a.SignIn && len(a.Roles) == 0:
		parts = append(parts, "callers sign in with a token")
	case a.SignIn:
		parts = append(parts, "callers sign in with a token or as a user of RabbitMQ's ("+describeRoles(a.Roles)+")")
	}
	if a.Proxy.UserHeader != "" {
		parts = append(parts, "a proxy names people in "+a.Proxy.UserHeader+" ("+describeRoles(a.Proxy.Groups)+")")
	}
	if a.OIDC.Issuer != "" {
		parts = append(parts, "people sign in at "+a.OIDC.Issuer+" ("+describeRoles(a.OIDC.Groups)+")")
	}
	if a.ReadOnly {
		parts = append(parts, "read-only, whoever calls")
	}
	return strings.Join(parts, "; ")
}

func describeRoles(of map[string]auth.Grant) string {
	var roles []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		role := name + ": " + of[name].Role.String()
		if queues := of[name].Queues; queues != nil {
			role += " of " + strings.Join(queues, " ")
		}
		roles = append(roles, role)
	}
	return strings.Join(roles, ", ")
}

// checkOIDC returns why the provider could not lead back to the page.
func (c *Config) checkOIDC() error {
	const hinted = "set notify.page to where the page is, such as https://redrive.example.com"
	u, err := url.Parse(c.Notify.Page)
	switch {
	case c.Access.OIDC.Issuer == "":
		return nil
	case err != nil || c.Notify.Page == "":
		return hint.Errorf(hinted, "auth.oidc leads back to the page, and notify.page does not say where that is")
	case u.Scheme != "https" && !auth.Loopback(u.Host):
		return hint.Errorf(hinted, "auth.oidc leads back to notify.page, %s, and what it brings along would go there "+
			"in the clear", c.Notify.Page)
	}
	return nil
}

// warnOfExpiry warns of a client certificate that RabbitMQ will refuse.
func (c *Config) warnOfExpiry(file string, pairs []tls.Certificate) {
	for _, p := range pairs {
		if now := time.Now(); now.After(p.Leaf.NotAfter) || now.Before(p.Leaf.NotBefore) {
			c.warn("broker.tls.cert: %s is valid from %s to %s, so RabbitMQ refuses it now: renew it", file,
				p.Leaf.NotBefore.UTC().Format(time.RFC3339), p.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
}

// credentials records which files hold passwords, so that each new connection reads them again, and
// returns what is wrong with TLS.
func (c *Config) credentials(getenv func(string) string) error {
	// of returns which file has the password of a URL, or the whole URL.
	of := func(urls, name, password string) (l connect.Login) {
		switch file := getenv(password + "_FILE"); {
		case urls == "":
		case file != "":
			l = connect.Login{User: connect.User(urls), PasswordFile: file}
		case getenv(password) == "":
			l = connect.Login{URLFile: getenv(name + "_FILE")}
		}
		return l
	}
	b, r := &c.Broker, &c.Store.Redis
	r.Login = of(r.URL, "REDRIVE_REDIS_URL", "REDRIVE_REDIS_PASSWORD")
	b.Credentials.Login = of(b.URL, "REDRIVE_BROKER_URL", "REDRIVE_BROKER_PASSWORD")
	if b.ManagementLogin = of(b.Management, "REDRIVE_MANAGEMENT_URL", "REDRIVE_BROKER_PASSWORD"); c.sameLogin {
		b.ManagementLogin = b.Credentials.Login
	}
	for _, s := range connect.SplitURLs(b.Management) {
		if u, err := url.Parse(s); err == nil && u.RawQuery != "" {
			return hint.Errorf("name TLS files in broker.tls",
				"broker.management (or REDRIVE_MANAGEMENT_URL) at %s has parameters, which have no meaning there",
				u.Host)
		}
	}
	if b.Credentials.TLS == (connect.TLS{}) {
		return nil
	}
	secure := false
	for _, s := range append(connect.SplitURLs(b.URL), connect.SplitURLs(b.Management)...) {
		u, err := url.Parse(s)
		if err != nil {
			return connect.ErrURL
		}
		secure = secure || u.Scheme == "amqps" || u.Scheme == "https"
		for _, parameter := range []string{"cacertfile", "certfile", "keyfile", "server_name_indication"} {
			if u.Query().Has(parameter) {
				return c.tlsAt.wrong("broker.tls is set, and the URL of RabbitMQ at %s has %s; expected one of them",
					u.Host, parameter)
			}
		}
	}
	if !secure {
		return c.tlsAt.wrong("broker.tls is set, and neither broker.url (amqps://) nor broker.management (https://) " +
			"uses TLS; expected one of them to")
	}
	return nil
}

// Same reports whether two are equal; passwords that each connection reads again do not count.
func (b Broker) Same(as Broker) bool {
	for _, b := range []*Broker{&b, &as} {
		b.URL, b.Management = bare(b.URL, b.Credentials.Login), bare(b.Management, b.ManagementLogin)
	}
	return reflect.DeepEqual(b, as)
}

// bare returns URLs without their login, if that is read again.
func bare(urls string, login connect.Login) string {
	if login != (connect.Login{}) {
		urls, _ = connect.EachURL(urls, func(u *url.URL) { u.User = nil })
	}
	return urls
}

// API returns a client of the management API, for a virtual host.
func (b *Broker) API(vhost string) (*management.Client, error) {
	client, err := management.New(b.Management, vhost)
	if err != nil {
		return nil, err
	}
	return client.WithCredentials(connect.Client{TLS: b.Credentials.TLS, Login: b.ManagementLogin}), nil
}

// Redis is where messages are kept instead of on disk; URL is "" when they are on disk. For a zero
// value the store has a default.
type Redis struct {
	URL        string // redis:// or rediss://, with credentials
	Login      connect.Login
	Prefix     string
	Durability string // synced, replicated or cached
	Replicas   int
	Lease      time.Duration
	Timeout    time.Duration
	// Files in PEM, for rediss://.
	CA, Cert, Key string
}

// OnDisk reports whether messages are kept in the folder Disk, which one service alone can use.
func (s *Store) OnDisk() bool { return s.Redis.URL == "" }

// Place is where the store is, for logs.
func (s *Store) Place() string {
	if s.OnDisk() {
		return s.Disk
	}
	u, err := url.Parse(s.Redis.URL)
	if err != nil {
		return "Redis"
	}
	if p := s.Redis.Prefix; p != "" && p != "redrive" {
		return u.Redacted() + ", prefix " + p
	}
	return u.Redacted()
}

// Same reports whether two are equal; a password that is read again does not count.
func (s Store) Same(as Store) bool {
	s.Redis.URL, as.Redis.URL = bare(s.Redis.URL, s.Redis.Login), bare(as.Redis.URL, as.Redis.Login)
	return s == as
}

var redisSchemes = []string{"redis", "rediss", "valkey", "valkeys"}

// TLSConfig reads the certificates for Redis; nil when none are named.
func (r *Redis) TLSConfig() (*tls.Config, error) {
	if r.CA == "" && r.Cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.CA != "" {
		pem, err := os.ReadFile(r.CA)
		if err != nil {
			return nil, fmt.Errorf("store.redis.tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("store.redis.tls.ca: " + r.CA + " has no certificate in PEM")
		}
	}
	if r.Cert != "" {
		pair, err := tls.LoadX509KeyPair(r.Cert, r.Key)
		if err != nil {
			return nil, fmt.Errorf("store.redis.tls.cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// CheckFiles checks the files of auth.oidc, and the TLS files of the page and of Redis. Whoever reads the TLS files of
// RabbitMQ checks those.
func (c *Config) CheckFiles() error {
	_, err := c.Store.Redis.TLSConfig()
	if c.Access.HasTLS() {
		err = errors.Join(err, c.Access.TLS.Check())
	}
	return errors.Join(err, c.Access.OIDC.Check())
}
