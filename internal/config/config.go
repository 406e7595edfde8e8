// Package config reads the service's file: strictly, with everything defaulted,
// and with errors that name file, line and column.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/policy"
)

// Config is a whole configuration.
type Config struct {
	Broker   Broker
	Store    Store
	Listen   string // host:port
	Access   Access
	Policies policy.Set
	// Ways are how the messages of a policy wait in RabbitMQ, by its name; those
	// of the others wait in the store.
	Ways map[string]wait.Way
	// Decode is how bodies are read.
	Decode decode.Options
	// Warnings are about what is allowed and hardly meant.
	Warnings []string
}

// Broker is where RabbitMQ is.
type Broker struct {
	URL        string // amqp:// or amqps://, with credentials
	Management string // http:// or https://, with credentials
}

// Store is where messages are kept.
type Store struct {
	Disk    string // a folder
	Reserve uint64 // bytes to leave free on its disk
	// Restorable is how long what a person discarded is kept and can be restored.
	Restorable time.Duration
}

// Default is the configuration without a file.
func Default() *Config {
	return &Config{
		Broker:   Broker{URL: "amqp://guest:guest@127.0.0.1:5672/"},
		Store:    Store{Disk: "./redrive-data", Reserve: 256 << 20, Restorable: 30 * 24 * time.Hour},
		Listen:   "127.0.0.1:8250",
		Access:   Access{Roles: auth.DefaultGrants()},
		Policies: policy.Set{policy.Default()},
	}
}

// Load reads a file (none when path is empty), then the environment:
//
//	REDRIVE_BROKER_URL      instead of broker.url; or REDRIVE_BROKER_URL_FILE
//	REDRIVE_MANAGEMENT_URL  instead of broker.management; or …_FILE
//	REDRIVE_BROKER_PASSWORD the password for both; or …_FILE
//
// A …_FILE variable names a file that holds the value.
func Load(path string, getenv func(string) string) (*Config, error) {
	c := Default()
	if path != "" {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the config file %s does not exist", path)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the config file: %w", err)
		}
		if c, err = Parse(path, data); err != nil {
			return nil, err
		}
	}
	return c, c.environment(getenv)
}

func (c *Config) environment(getenv func(string) string) error {
	for _, v := range []struct {
		name string
		use  func(string) error
	}{
		{"REDRIVE_BROKER_URL", func(s string) error { c.Broker.URL = s; return CheckBroker(s) }},
		{"REDRIVE_MANAGEMENT_URL", func(s string) error { c.Broker.Management = s; return checkURL(s, "http", "https") }},
		{"REDRIVE_BROKER_PASSWORD", func(s string) (err error) {
			if c.Broker.URL, err = withPassword(c.Broker.URL, s); err == nil && c.Broker.Management != "" {
				c.Broker.Management, err = withPassword(c.Broker.Management, s)
			}
			return err
		}},
	} {
		value, from := getenv(v.name), v.name
		if file := getenv(v.name + "_FILE"); file != "" {
			if value != "" {
				return fmt.Errorf("both %s and %s_FILE are set: use one", v.name, v.name)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("%s_FILE: %w", v.name, err)
			}
			value, from = strings.TrimSpace(string(data)), v.name+"_FILE"
		}
		if value == "" {
			continue
		}
		if err := v.use(value); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	}
	if c.Broker.Management == "" {
		c.Broker.Management = managementOf(c.Broker.URL)
	}
	return nil
}

// managementOf guesses where the management API is: same host and credentials,
// its standard port.
func managementOf(broker string) string {
	u, err := url.Parse(broker)
	if err != nil {
		return ""
	}
	m := url.URL{Scheme: "http", User: u.User, Host: net.JoinHostPort(u.Hostname(), "15672")}
	if u.Scheme == "amqps" {
		m.Scheme, m.Host = "https", net.JoinHostPort(u.Hostname(), "15671")
	}
	return m.String()
}

func withPassword(rawURL, password string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", errURL
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String(), nil
}

var errURL = errors.New("is not a URL")

// CheckBroker says what is wrong with a broker's URL, without repeating it.
func CheckBroker(rawURL string) error { return checkURL(rawURL, "amqp", "amqps") }

// checkURL never repeats the URL: it may hold a password.
func checkURL(s string, schemes ...string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%w: expected %s://user:password@host:port/", errURL, schemes[0])
	}
	for _, scheme := range schemes {
		if u.Scheme == scheme {
			return nil
		}
	}
	return fmt.Errorf("begins with %q: expected %s://", u.Scheme+"://", strings.Join(schemes, ":// or "))
}

// VHost is the virtual host that the broker URL names.
func (c *Config) VHost() string {
	u, err := url.Parse(c.Broker.URL)
	if err != nil || u.Path == "" || u.Path == "/" {
		return "/"
	}
	return strings.TrimPrefix(u.Path, "/")
}
