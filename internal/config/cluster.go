package config

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
)

// connectTo makes a configuration that of a further virtual host's servers and user.
func (c *Config) connectTo(v VHost) error {
	b, login := &c.Broker, credentials.Login{}
	if v.PasswordFile != "" {
		login = credentials.Login{User: v.User, PasswordFile: v.PasswordFile}
	}
	if v.URL != "" {
		b.URL, b.Management = v.URL, v.Management
		b.Credentials, b.ManagementLogin = credentials.Client{TLS: v.TLS}, credentials.Login{}
	}
	var err error
	if b.URL, err = addresses.Each(b.URL, v.setVHost); err != nil {
		return fmt.Errorf("broker.url %w", err)
	}
	if v.User != "" {
		b.Credentials.Login = login
	}
	switch {
	case v.URL == "" && v.User == "", v.URL == "" && b.Management == "":
		return nil
	case v.URL == "":
		b.ManagementLogin = login
		b.Management, err = addresses.Each(b.Management, v.setUser)
	case b.Management == "":
		b.ManagementLogin = login
		b.Management = managementOf(b.URL)
	default:
		of, _ := url.Parse(addresses.Split(b.URL)[0])
		b.Management, err = addresses.Each(b.Management, func(u *url.URL) { b.ManagementLogin = completeUser(u, of.User, login) })
	}
	if err != nil {
		return fmt.Errorf("broker.management %w", err)
	}
	return nil
}

// completeUser gives a URL of the management API what it lacks of a user and password: of is the
// user of AMQP. It returns whose password which file has.
func completeUser(u *url.URL, of *url.Userinfo, login credentials.Login) credentials.Login {
	if _, has := u.User.Password(); has {
		return credentials.Login{}
	}
	name := cmp.Or(u.User.Username(), of.Username())
	if password, has := of.Password(); has {
		u.User = url.UserPassword(name, password)
	}
	if login.PasswordFile != "" {
		login.User = name
	}
	return login
}

// setVHost makes a URL that of the virtual host.
func (v VHost) setVHost(u *url.URL) {
	name := cmp.Or(v.VHost, v.Name)
	u.Path, u.RawPath = "/"+name, "/"+addresses.PathPart(name)
	if v.User != "" {
		v.setUser(u)
	}
}

func (v VHost) setUser(u *url.URL) { u.User = url.UserPassword(v.User, v.Password) }

// servesSame tells whether another configuration is of the same virtual host at one of the same
// servers: two intakes would each receive a part of its messages.
func (c *Config) servesSame(as *Config) bool {
	return c.VHost() == as.VHost() && slices.ContainsFunc(c.Hosts(), func(host string) bool { return slices.Contains(as.Hosts(), host) })
}

// Hosts are the servers, each as host:port.
func (c *Config) Hosts() (all []string) {
	for _, s := range addresses.Split(c.Broker.URL) {
		if u, err := url.Parse(s); err == nil {
			port := "5672"
			if u.Scheme == "amqps" {
				port = "5671"
			}
			all = append(all, net.JoinHostPort(strings.ToLower(u.Hostname()), cmp.Or(u.Port(), port)))
		}
	}
	return all
}

// describeServers says where a virtual host is, unless it is as its name says on the servers of
// first.
func (c *Config) describeServers(first *Config) string {
	if c.Name() == c.VHost() && slices.Equal(c.Hosts(), first.Hosts()) {
		return ""
	}
	return fmt.Sprintf("virtual host %s at %s ", c.VHost(), strings.Join(c.Hosts(), ", "))
}

// describeTLS names the files of TLS, and until when the client certificate is valid.
func describeTLS(t credentials.TLS) string {
	var all []string
	if t.CA != "" {
		all = append(all, "CA "+t.CA)
	}
	if secure, err := t.Config(""); err == nil && len(secure.Certificates) > 0 {
		all = append(all, fmt.Sprintf("certificate %s until %s", t.Cert, secure.Certificates[0].Leaf.NotAfter.UTC().Format(time.DateOnly)))
	}
	if t.ServerName != "" {
		all = append(all, "server name "+t.ServerName)
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}
