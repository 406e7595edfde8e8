package config

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"reflect"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// brokerTLS reads the service's client certificate and RabbitMQ's authorities. The files must exist
// and be usable when the config is read.
func (d *document) brokerTLS(n ast.Node, c *Config) {
	const where = "broker.tls"
	t, at := &c.Broker.Credentials.TLS, n
	file := func(to *string) field {
		return func(n ast.Node) {
			*to, at = d.path(d.text(n, where, "a file in PEM")), n
		}
	}
	d.mapping(n, where, map[string]field{
		"ca": func(n ast.Node) {
			file(&t.CA)(n)
			if _, err := (credentials.TLS{CA: t.CA}).Config(""); err != nil {
				d.fail(n, "%s.ca: %w", where, err)
			}
		},
		"cert":        file(&t.Cert),
		"key":         file(&t.Key),
		"server_name": func(n ast.Node) { t.ServerName = d.text(n, where+".server_name", "a host's name") },
	})
	if *t == (credentials.TLS{}) {
		d.fail(n, "%s is empty; expected some of ca, cert and key, server_name", where)
	}
	secure, err := t.Config("")
	if err != nil {
		d.fail(at, "%s: %w", where, err)
	}
	c.tlsAt = d.secretSource(n)
	c.warnOfExpiry(t.Cert, secure.Certificates)
}

// warnOfExpiry warns of a client certificate that RabbitMQ will refuse.
func (c *Config) warnOfExpiry(file string, pairs []tls.Certificate) {
	for _, p := range pairs {
		if now := time.Now(); now.After(p.Leaf.NotAfter) || now.Before(p.Leaf.NotBefore) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("broker.tls.cert: %s is valid from %s to %s, so RabbitMQ refuses it now: renew it", file, p.Leaf.NotBefore.UTC().Format(time.RFC3339), p.Leaf.NotAfter.UTC().Format(time.RFC3339)))
		}
	}
}

// credentials records which files hold passwords, so that each new connection reads them again, and
// returns what is wrong with TLS.
func (c *Config) credentials(getenv func(string) string) error {
	of := func(urls, urlFile string) (l credentials.Login) {
		switch password := getenv("REDRIVE_BROKER_PASSWORD_FILE"); {
		case password != "":
			l = credentials.Login{User: addresses.User(urls), PasswordFile: password}
		case getenv("REDRIVE_BROKER_PASSWORD") == "":
			l = credentials.Login{URLFile: urlFile}
		}
		return l
	}
	c.Store.Redis.login(getenv)
	b := &c.Broker
	b.Credentials.Login = of(b.URL, getenv("REDRIVE_BROKER_URL_FILE"))
	if b.ManagementLogin = of(b.Management, getenv("REDRIVE_MANAGEMENT_URL_FILE")); c.sameLogin {
		b.ManagementLogin = b.Credentials.Login
	}
	for _, s := range addresses.Split(b.Management) {
		if u, err := url.Parse(s); err == nil && u.RawQuery != "" {
			return hint.Errorf("name TLS files in broker.tls", "broker.management (or REDRIVE_MANAGEMENT_URL) at %s has parameters, which have no meaning there", u.Host)
		}
	}
	if b.Credentials.TLS == (credentials.TLS{}) {
		return nil
	}
	secure := false
	for _, s := range append(addresses.Split(b.URL), addresses.Split(b.Management)...) {
		u, err := url.Parse(s)
		if err != nil {
			return addresses.ErrURL
		}
		secure = secure || u.Scheme == "amqps" || u.Scheme == "https"
		for _, parameter := range []string{"cacertfile", "certfile", "keyfile", "server_name_indication"} {
			if u.Query().Has(parameter) {
				return c.tlsAt.wrong("broker.tls is set, and the URL of RabbitMQ at %s has %s; expected one of them", u.Host, parameter)
			}
		}
	}
	if !secure {
		return c.tlsAt.wrong("broker.tls is set, and neither broker.url (amqps://) nor broker.management (https://) uses TLS; expected one of them to")
	}
	return nil
}

// Same tells whether two are equal; passwords that each connection reads again do not count.
func (b Broker) Same(as Broker) bool {
	bare := func(b Broker) Broker {
		for _, of := range []struct {
			urls  *string
			login credentials.Login
		}{{&b.URL, b.Credentials.Login}, {&b.Management, b.ManagementLogin}} {
			if of.login != (credentials.Login{}) {
				*of.urls, _ = addresses.Each(*of.urls, func(u *url.URL) { u.User = nil })
			}
		}
		return b
	}
	return reflect.DeepEqual(bare(b), bare(as))
}

// API returns a client of the management API, for a virtual host.
func (b *Broker) API(vhost string) (*management.Client, error) {
	client, err := management.New(b.Management, vhost)
	if err != nil {
		return nil, err
	}
	return client.WithCredentials(credentials.Client{TLS: b.Credentials.TLS, Login: b.ManagementLogin}), nil
}
