package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// Explain turns an error of TLS into one that says what is wrong with a certificate, with the
// remedy. Other errors are returned as they are.
func Explain(err error) error {
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &name):
		return hint.Errorf("connect by a name that it is for, or set that name (broker.tls.server_name; in a URL server_name_indication=NAME)", "%w: RabbitMQ's certificate is for %s, not for %s", wire.ErrTLS, namesOf(name.Certificate), name.Host)
	case errors.As(err, &unknown):
		return hint.Errorf("name the file of that CA (broker.tls.ca; in a URL cacertfile=FILE; or SSL_CERT_FILE)", "%w: RabbitMQ's certificate is signed by an unknown authority%s", wire.ErrTLS, issuerOf(unknown.Cert))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return hint.Errorf("renew it there, or set this machine's clock", "%w: a certificate of RabbitMQ's (%s) is valid from %s to %s, and here it is %s", wire.ErrTLS, namesOf(invalid.Cert), day(invalid.Cert.NotBefore), day(invalid.Cert.NotAfter), day(time.Now()))
	case errors.As(err, &invalid):
		return fmt.Errorf("%w: RabbitMQ's certificate is not valid: %w", wire.ErrTLS, invalid)
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return hint.Errorf("use the port where RabbitMQ listens with TLS, if it does: by default 5671 for amqps and 15671 for https", "%w: what answers on this port does not speak TLS", wire.ErrTLS)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return Refused(remote.Err.Error())
	}
	return err
}

// Refused explains what RabbitMQ says of our certificate: text is a TLS alert.
func Refused(text string) error {
	if strings.Contains(text, "certificate") || strings.Contains(text, "unknown") || strings.Contains(text, "handshake") {
		return hint.Errorf("give a valid client certificate that an authority of its ssl_options.cacertfile has signed (broker.tls.cert and key; in a URL certfile=FILE&keyfile=FILE)", "%w: RabbitMQ refuses this client (%s)", wire.ErrTLS, text)
	}
	return fmt.Errorf("%w: RabbitMQ refuses the connection: %s", wire.ErrTLS, text)
}

// namesOf returns the names of a certificate that clients compare with the host.
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
