package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
)

// Redis is where messages are kept instead of on disk; URL is "" when they are on disk. For a zero
// value the store has a default.
type Redis struct {
	URL        string // redis:// or rediss://, with credentials
	Login      credentials.Login
	Prefix     string
	Durability string // synced, replicated or cached
	Replicas   int
	Lease      time.Duration
	Timeout    time.Duration
	// Files in PEM, for rediss://.
	CA, Cert, Key string
}

// OnDisk tells whether messages are kept in the folder Disk, which one service alone can use.
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

const redisPassword = "REDRIVE_REDIS_PASSWORD"

// login records which file has the password, or the whole URL.
func (r *Redis) login(getenv func(string) string) {
	switch password := getenv(redisPassword + "_FILE"); {
	case r.URL == "":
	case password != "":
		r.Login = credentials.Login{User: addresses.User(r.URL), PasswordFile: password}
	case getenv(redisPassword) == "":
		r.Login = credentials.Login{URLFile: getenv("REDRIVE_REDIS_URL_FILE")}
	}
}

// Same tells whether two are equal; a password that is read again does not count.
func (s Store) Same(as Store) bool {
	bare := func(s Store) Store {
		if s.Redis.Login != (credentials.Login{}) {
			s.Redis.URL, _ = addresses.Each(s.Redis.URL, func(u *url.URL) { u.User = nil })
		}
		return s
	}
	return bare(s) == bare(as)
}

var redisSchemes = []string{"redis", "rediss", "valkey", "valkeys"}

func (r *Redis) setURL(s string) error {
	r.URL = s
	return addresses.Check(s, redisSchemes...)
}

func (r *Redis) setPassword(password string) (err error) {
	if r.URL == "" {
		return fmt.Errorf("there is no store.redis.url that it is for")
	}
	r.URL, err = withPassword(r.URL, password)
	return err
}

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

// CheckFiles returns why the TLS files of the page or of Redis cannot be used. Those of RabbitMQ
// are checked whenever the file is read.
func (c *Config) CheckFiles() error {
	_, err := c.Store.Redis.TLSConfig()
	if c.Access.HasTLS() {
		err = errors.Join(err, c.Access.TLS.Check())
	}
	return err
}

func (d *document) redis(n ast.Node, r *Redis) {
	const where = "store.redis"
	d.mapping(n, where, map[string]field{
		"url": func(n ast.Node) { r.URL = d.url(n, where+".url", redisSchemes...) },
		"prefix": func(n ast.Node) {
			if r.Prefix = d.text(n, where+".prefix", "a name"); r.Prefix == "" || strings.ContainsAny(r.Prefix, "{} \t\r\n") {
				d.fail(n, "%s.prefix is %s; expected a name without braces and spaces", where, show(n))
			}
		},
		"durability": func(n ast.Node) {
			switch r.Durability = d.text(n, where+".durability", "synced, replicated or cached"); r.Durability {
			case "synced", "replicated", "cached":
			default:
				d.fail(n, "%s.durability is %s; expected synced (on Redis's disk), replicated (in the memory of replicas) or cached (neither)", where, show(n))
			}
		},
		"replicas": func(n ast.Node) { r.Replicas = d.whole(n, where+".replicas", 16) },
		"lease":    func(n ast.Node) { r.Lease = d.within(n, where+".lease", 5*time.Second, 10*time.Minute) },
		"timeout":  func(n ast.Node) { r.Timeout = d.within(n, where+".timeout", 100*time.Millisecond, time.Minute) },
		"tls": func(n ast.Node) {
			d.mapping(n, where+".tls", map[string]field{
				"ca":   func(n ast.Node) { r.CA = d.path(d.text(n, where+".tls.ca", "a file")) },
				"cert": func(n ast.Node) { r.Cert = d.path(d.text(n, where+".tls.cert", "a file")) },
				"key":  func(n ast.Node) { r.Key = d.path(d.text(n, where+".tls.key", "a file")) },
			})
			if (r.Cert == "") != (r.Key == "") {
				d.fail(n, "%s.tls needs both cert and key, files in PEM, or neither", where)
			}
		},
	})
	if r.Replicas > 0 && r.Durability != "replicated" {
		d.fail(n, "%s.replicas is how many must have what is written, which durability: replicated asks for; expected both or neither", where)
	}
}

func (d *document) within(n ast.Node, where string, least, most time.Duration) time.Duration {
	v := d.duration(n, where)
	if v < least || v > most {
		d.fail(n, "%s is %s; expected a duration from %s to %s", where, show(n), least, most)
	}
	return v
}
