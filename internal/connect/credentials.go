package connect

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// Client has the credentials of a client that are in files, which are read for each new connection.
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
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cmp.Or(t.ServerName, host)}
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
		return nil, fmt.Errorf("%w: a client certificate needs both its certificate and its key, files in PEM",
			wire.ErrTLS)
	default:
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: certificate %s and key %s: %w", wire.ErrTLS, t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Login names the files with credentials. Without a file they never change.
type Login struct {
	User         string
	PasswordFile string // holds User's password
	URLFile      string // holds a URL with user and password
}

// Current returns the user and password that the file has now, or before without a file that can be read: some delete
// a secret once it has been read.
func (l Login) Current(before *url.Userinfo) *url.Userinfo {
	read := func(file string) string {
		data, _ := os.ReadFile(file) // none: ""
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

// ExplainTLS turns an error of TLS into one that says what is wrong with a certificate, with the remedy. It returns
// other errors as they are.
func ExplainTLS(err error) error {
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &name):
		return hint.Errorf("connect by a name that it is for, or set that name (broker.tls.server_name; in a URL "+
			"server_name_indication=NAME)", "%w: RabbitMQ's certificate is for %s, not for %s", wire.ErrTLS,
			namesOf(name.Certificate), name.Host)
	case errors.As(err, &unknown):
		return hint.Errorf("name the file of that CA (broker.tls.ca; in a URL cacertfile=FILE; or SSL_CERT_FILE)",
			"%w: RabbitMQ's certificate is signed by an unknown authority%s", wire.ErrTLS, issuerOf(unknown.Cert))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return hint.Errorf("renew it there, or set this machine's clock",
			"%w: a certificate of RabbitMQ's (%s) is valid from %s to %s, and here it is %s", wire.ErrTLS,
			namesOf(invalid.Cert), day(invalid.Cert.NotBefore), day(invalid.Cert.NotAfter), day(time.Now()))
	case errors.As(err, &invalid):
		return fmt.Errorf("%w: RabbitMQ's certificate is not valid: %w", wire.ErrTLS, invalid)
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return hint.Errorf("use the port where RabbitMQ listens with TLS, if it does: by default 5671 for amqps and "+
			"15671 for https", "%w: what answers on this port does not speak TLS", wire.ErrTLS)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return Refused(remote.Err.Error())
	}
	return err
}

// Refused explains what RabbitMQ says of our certificate: text is a TLS alert.
func Refused(text string) error {
	if strings.Contains(text, "certificate") || strings.Contains(text, "unknown") ||
		strings.Contains(text, "handshake") {
		return hint.Errorf("give a valid client certificate that an authority of its ssl_options.cacertfile has "+
			"signed (broker.tls.cert and key; in a URL certfile=FILE&keyfile=FILE)",
			"%w: RabbitMQ refuses this client (%s)", wire.ErrTLS, text)
	}
	return fmt.Errorf("%w: RabbitMQ refuses the connection: %s", wire.ErrTLS, text)
}

func namesOf(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return fmt.Sprintf("no host (its subject is %q, which does not count)", c.Subject)
	}
	return strings.Join(all, ", ")
}

func issuerOf(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", c.Issuer)
}

func day(t time.Time) string { return t.UTC().Format(time.RFC3339) }
