package config

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"reflect"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

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
	// of returns which file has the password of a URL, or the whole URL.
	of := func(urls, name, password string) (l credentials.Login) {
		switch file := getenv(password + "_FILE"); {
		case urls == "":
		case file != "":
			l = credentials.Login{User: addresses.User(urls), PasswordFile: file}
		case getenv(password) == "":
			l = credentials.Login{URLFile: getenv(name + "_FILE")}
		}
		return l
	}
	b, r := &c.Broker, &c.Store.Redis
	r.Login = of(r.URL, "REDRIVE_REDIS_URL", "REDRIVE_REDIS_PASSWORD")
	b.Credentials.Login = of(b.URL, "REDRIVE_BROKER_URL", "REDRIVE_BROKER_PASSWORD")
	if b.ManagementLogin = of(b.Management, "REDRIVE_MANAGEMENT_URL", "REDRIVE_BROKER_PASSWORD"); c.sameLogin {
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
	for _, b := range []*Broker{&b, &as} {
		b.URL, b.Management = bare(b.URL, b.Credentials.Login), bare(b.Management, b.ManagementLogin)
	}
	return reflect.DeepEqual(b, as)
}

// bare returns URLs without their login, if that is read again.
func bare(urls string, login credentials.Login) string {
	if login != (credentials.Login{}) {
		urls, _ = addresses.Each(urls, func(u *url.URL) { u.User = nil })
	}
	return urls
}

// API returns a client of the management API, for a virtual host.
func (b *Broker) API(vhost string) (*management.Client, error) {
	client, err := management.New(b.Management, vhost)
	if err != nil {
		return nil, err
	}
	return client.WithCredentials(credentials.Client{TLS: b.Credentials.TLS, Login: b.ManagementLogin}), nil
}
