// Package credentials reads what a client and RabbitMQ authenticate each other with: TLS files and
// a login. Both are read from disk for each new connection, so a renewed certificate or password
// needs no restart.
package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// Client has the credentials of a client that are in files.
type Client struct {
	TLS   TLS
	Login Login
}

// TLS names files in PEM, and the server's name.
type TLS struct {
	CA         string // authorities to trust; "": the system's, or those of SSL_CERT_FILE and SSL_CERT_DIR
	Cert, Key  string // the client's own; "": none
	ServerName string // the name that the server's certificate must be for; "": the host of the URL
}

// Config reads the files, for a connection to host. The server's certificate is always verified.
func (t TLS) Config(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: CA: %w", wire.ErrTLS, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: CA %s has no certificate in PEM", wire.ErrTLS, t.CA)
		}
	}
	switch {
	case t.Cert == "" && t.Key == "":
	case t.Cert == "" || t.Key == "":
		return nil, fmt.Errorf("%w: a client certificate needs both its certificate and its key, files in PEM", wire.ErrTLS)
	default:
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: certificate %s and key %s: %w", wire.ErrTLS, t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Login names the file that has the password: alone, or within a URL. Without a file the password
// never changes.
type Login struct {
	User         string // whose password PasswordFile holds
	PasswordFile string
	URLFile      string // has the user too
}

// Current returns the user and password that the file has now. Without a file, or where it cannot
// be read (some delete a secret once it has been read), it returns before.
func (l Login) Current(before *url.Userinfo) *url.Userinfo {
	read := func(file string) string {
		if file == "" {
			return ""
		}
		data, _ := os.ReadFile(file)
		return strings.TrimSpace(string(data))
	}
	if password := read(l.PasswordFile); password != "" {
		return url.UserPassword(l.User, password)
	}
	first, _, _ := strings.Cut(read(l.URLFile), ",")
	if u, err := url.Parse(first); err == nil && u.User != nil {
		return u.User
	}
	return before
}
