// Package config reads the service's file. Every key has a default, unknown keys are refused, and
// errors name file, line and column. Read it in this order:
//
//	config.go    what there is, Load, and the environment
//	keys.go      the table of keys: reading, variables and the reference are made from it
//	kinds.go     what the values of keys are: durations, rates, lists, URLs
//	parse.go     reads YAML: mappings, lists, texts, and errors at their place
//	variables.go the keys that environment variables set
//	vhosts.go    a configuration of its own for each virtual host
//	describe.go  what redrive check prints
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// Config is a whole configuration.
type Config struct {
	Broker   Broker
	Store    Store
	Listen   string // host:port
	BasePath string // what the page's and the API's paths begin with: "", or such as /redrive
	Log      Log
	Access   Access
	Policies policy.Set
	// Ways are how the messages of a policy wait in RabbitMQ, by its name; those
	// of the others wait in the store.
	Ways map[string]delay.Way
	// Throttle limits the retries of each policy, by its name.
	Throttle map[string]throttle.Rules
	// Decode are the types of bodies.
	Decode decode.Options
	// Notify are the notifications.
	Notify    notify.Settings
	routeURLs []routeURL
	// vhosts are where each of Broker.VHosts stands in the file, and its password.
	vhosts []secretSource
	// policyVHosts and routeVHosts are the patterns of virtual hosts that a policy or a route of
	// notify is for, by its name; nil: all.
	policyVHosts, routeVHosts map[string][]string
	tlsAt                     secretSource // where broker.tls stands in the file
	sameLogin                 bool         // Broker.Management has that of Broker.URL
	brokerUnsound             bool         // a mistake may be in it
	// Warnings are about what is allowed, but probably a mistake.
	Warnings []string
}

// Broker is where RabbitMQ is. Each text is one URL, or those of several nodes: see package addresses.
type Broker struct {
	URL        string // amqp:// or amqps://, with credentials
	Management string // http:// or https://, with credentials
	// VHosts are served beside the virtual host that URL names: see PerVHost.
	VHosts []VHost
	// Credentials are the TLS files of both, and the files with the password of URL; ManagementLogin
	// are those with the password of Management.
	Credentials     credentials.Client
	ManagementLogin credentials.Login
}

// Log is what the service logs, and how.
type Log struct {
	Format string // text or json
	Level  slog.Level
}

// Store is where messages are kept.
type Store struct {
	Disk    string // a folder; not used with Redis
	Redis   Redis
	Reserve uint64 // bytes to leave free on its disk, or in Redis's memory
	// Restorable is how long a message that a person discarded can be restored.
	Restorable time.Duration
}

// Default is the configuration without a file.
func Default() *Config {
	return &Config{
		Broker:   Broker{URL: "amqp://guest:guest@127.0.0.1:5672/"},
		Store:    Store{Disk: "./redrive-data", Reserve: 256 << 20, Restorable: 30 * 24 * time.Hour},
		Listen:   "127.0.0.1:8250",
		Log:      Log{Format: "text"},
		Access:   Access{Roles: auth.DefaultGrants()},
		Policies: policy.Set{policy.Default()},
		Notify:   notify.DefaultSettings(),

		Ways: map[string]delay.Way{}, Throttle: map[string]throttle.Rules{},
		policyVHosts: map[string][]string{}, routeVHosts: map[string][]string{},
	}
}

// Load reads a file (none when path is empty), then the environment:
//
//	REDRIVE_BROKER_URL      instead of broker.url; or REDRIVE_BROKER_URL_FILE
//	REDRIVE_MANAGEMENT_URL  instead of broker.management; or …_FILE
//	REDRIVE_BROKER_PASSWORD the password for both; or …_FILE
//	REDRIVE_REDIS_URL       instead of store.redis.url; or …_FILE
//	REDRIVE_REDIS_PASSWORD  its password; or …_FILE
//
// Every other key has a variable too: see Variable. Several URLs are separated by commas. A …_FILE variable names a file that holds the
// value. The URLs of notify's routes, and the passwords of further virtual hosts, come
// from the variables and files that these name.
func Load(path string, getenv func(string) string) (*Config, error) {
	var data []byte
	if path != "" {
		var err error
		data, err = os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the config file %s does not exist", path)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the config file: %w", err)
		}
	}
	c, err := parse(path, data, getenv)
	if c != nil {
		err = errors.Join(err, c.environment(getenv))
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) environment(getenv func(string) string) error {
	r := &c.Store.Redis
	var wrong []error
	for _, v := range []struct {
		name string
		use  func(string) error
	}{
		{"REDRIVE_BROKER_URL", func(s string) error { c.Broker.URL = s; return CheckBroker(s) }},
		{"REDRIVE_MANAGEMENT_URL", func(s string) error { c.Broker.Management = s; return addresses.Check(s, "http", "https") }},
		{"REDRIVE_BROKER_PASSWORD", func(s string) (err error) {
			if c.Broker.URL, err = withPassword(c.Broker.URL, s); err == nil && c.Broker.Management != "" {
				c.Broker.Management, err = withPassword(c.Broker.Management, s)
			}
			return err
		}},
		{"REDRIVE_REDIS_URL", func(s string) error { r.URL = s; return addresses.Check(s, redisSchemes...) }},
		{"REDRIVE_REDIS_PASSWORD", func(s string) (err error) {
			if r.URL == "" {
				return errors.New("there is no store.redis.url that it is for")
			}
			r.URL, err = withPassword(r.URL, s)
			return err
		}},
	} {
		value, from, err := variable(v.name, getenv)
		if err == nil && value != "" {
			if err = v.use(value); err != nil {
				err = fmt.Errorf("%s: %w", from, err)
			}
		}
		wrong = append(wrong, err)
	}
	if c.Broker.Management == "" {
		c.Broker.Management = managementOf(c.Broker.URL)
	}
	if c.sameLogin = addresses.User(c.Broker.Management) == ""; c.sameLogin {
		user := url.UserPassword("guest", "guest") // as AMQP has it
		if u, err := url.Parse(addresses.Split(c.Broker.URL)[0]); err == nil && u.User != nil {
			user = u.User
		}
		c.Broker.Management, _ = addresses.Each(c.Broker.Management, func(u *url.URL) { u.User = user })
	}
	sound := !c.brokerUnsound && errors.Join(wrong...) == nil
	wrong = append(wrong, c.readPasswords(getenv), c.readRouteURLs(getenv))
	if sound {
		wrong = append(wrong, c.credentials(getenv), c.checkVHosts())
	}
	return errors.Join(wrong...)
}

// variable returns the value of an environment variable, or of the file that name_FILE names, and
// the name of the variable that it is from.
func variable(name string, getenv func(string) string) (value, from string, err error) {
	value, file := getenv(name), getenv(name+"_FILE")
	switch {
	case file == "":
		return value, name, nil
	case value != "":
		return "", "", hint.Errorf("use one", "both %s and %s_FILE are set", name, name)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(data)), name + "_FILE", nil
}

// managementOf returns the URLs of the management API at its standard port, with the same hosts; ""
// when the broker's URL is none.
func managementOf(broker string) string {
	text, err := addresses.Each(broker, func(u *url.URL) {
		m := url.URL{Scheme: "http", Host: net.JoinHostPort(u.Hostname(), "15672")}
		if u.Scheme == "amqps" {
			m.Scheme, m.Host = "https", net.JoinHostPort(u.Hostname(), "15671")
		}
		*u = m
	})
	if err != nil {
		return ""
	}
	return text
}

func withPassword(urls, password string) (string, error) {
	return addresses.Each(urls, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), password) })
}

// CheckBroker returns what is wrong with the URLs of a broker, without repeating them.
func CheckBroker(urls string) error { return addresses.Check(urls, "amqp", "amqps") }

// VHost returns the virtual host that the broker's URL names.
func (c *Config) VHost() string { return addresses.VHost(c.Broker.URL) }
