package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

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

// Same tells whether two are equal; a password that is read again does not count.
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

// CheckFiles returns why the TLS files of the page or of Redis cannot be used. Those of RabbitMQ
// are checked whenever the file is read.
func (c *Config) CheckFiles() error {
	_, err := c.Store.Redis.TLSConfig()
	if c.Access.HasTLS() {
		err = errors.Join(err, c.Access.TLS.Check())
	}
	return err
}
