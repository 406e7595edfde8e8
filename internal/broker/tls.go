package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// dialOne connects to one broker. wrap wraps the connection that carries AMQP frames, above
// TLS: the TLS handshake is made here, and amqp091-go sees a plain connection.
func dialOne(ctx context.Context, c *Config, rawURL string, wrap func(net.Conn) net.Conn) (*amqp.Connection, error) {
	failed := func(err error) error {
		at, _, _ := strings.Cut(addresses.Redact(rawURL), "?")
		return fmt.Errorf("connecting to %s: %w", at, explain(err))
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, failed(err)
	}
	uri, err := amqp.ParseURI(rawURL)
	if err != nil {
		return nil, failed(err)
	}
	secure, err := c.security(&uri)
	if err != nil {
		return nil, failed(err)
	}
	u.Scheme, u.Host, u.User = "amqp", net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port)), c.Credentials.Login.Current(u.User)
	var bare *plainConn
	within := cmp.Or(time.Duration(uri.ConnectionTimeout)*time.Millisecond, dialTimeout)
	with := c.AMQP
	with.Heartbeat, with.Properties = cmp.Or(with.Heartbeat, heartbeatEvery), c.properties()
	with.FrameSize, with.TLSClientConfig, with.Recovery = amqp.FrameSizeUnlimited, nil, nil
	with.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, c.AMQP.Dial, network, addr, within, secure)
		if err != nil {
			return nil, err
		}
		if secure == nil {
			bare = &plainConn{Conn: conn}
			conn = bare
		}
		return wrap(&signInConn{Conn: conn}), nil
	}
	conn, err := amqp.DialConfig(u.String(), with)
	if err != nil {
		if bare != nil && bare.alert.Load() {
			err = hint.Errorf("use amqps:// there, or the port of AMQP (5672 by default)", "%w: this port of RabbitMQ's speaks TLS", wire.ErrTLS)
		}
		if secure != nil {
			err = explainTLSEnd(err, c.external(&uri))
		}
		return nil, failed(err)
	}
	return conn, nil
}

// properties are what RabbitMQ's management page shows of a connection.
func (c *Config) properties() amqp.Table {
	p := amqp.NewConnectionProperties()
	maps.Copy(p, c.AMQP.Properties)
	p.SetClientConnectionName(c.Name)
	return p
}

// external tells whether SASL EXTERNAL is among what RabbitMQ is offered.
func (c *Config) external(uri *amqp.URI) bool {
	return slices.ContainsFunc(uri.AuthMechanism, func(m string) bool { return strings.EqualFold(m, "external") }) ||
		slices.ContainsFunc(c.AMQP.SASL, func(a amqp.Authentication) bool { return a.Mechanism() == "EXTERNAL" })
}

// security returns the TLS settings for a broker; nil: no TLS. Its files are read again each
// time.
func (c *Config) security(uri *amqp.URI) (*tls.Config, error) {
	if uri.Scheme != "amqps" {
		return nil, nil
	}
	if c.AMQP.TLSClientConfig != nil {
		own := c.AMQP.TLSClientConfig.Clone()
		own.ServerName = cmp.Or(own.ServerName, uri.Host)
		return own, nil
	}
	f := c.Credentials.TLS
	return credentials.TLS{
		CA: cmp.Or(f.CA, uri.CACertFile), Cert: cmp.Or(f.Cert, uri.CertFile), Key: cmp.Or(f.Key, uri.KeyFile), ServerName: cmp.Or(f.ServerName, uri.ServerName),
	}.Config(uri.Host)
}

// connect makes a connection for AMQP. Until its handshake is over nothing else limits
// how long that takes. dial is the user's own, or nil.
func connect(ctx context.Context, dial func(network, addr string) (net.Conn, error), network, addr string, within time.Duration, secure *tls.Config) (net.Conn, error) {
	conn, err := dialWithin(ctx, dial, network, addr, within)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if secure == nil {
		return conn, nil
	}
	above := tls.Client(conn, secure)
	if err := above.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, credentials.Explain(err)
	}
	return tlsConn{above, conn}, nil
}

// dialWithin makes the network connection. A dialer of the user's that does not return is
// abandoned, and the connection that it returns later is closed.
func dialWithin(ctx context.Context, dial func(network, addr string) (net.Conn, error), network, addr string, within time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if dial == nil {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	conn, err := untilEnd(ctx, func() (net.Conn, error) { return dial(network, addr) }, func(late net.Conn) { _ = late.Close() })
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("the dialer: %w", err)
	}
	return conn, err
}

// tlsConn closes as a plain connection does: a close_notify of TLS could wait for a broker that
// reads nothing, and AMQP has a close of its own.
type tlsConn struct {
	*tls.Conn
	under net.Conn
}

func (c tlsConn) Close() error { return c.under.Close() }

// plainConn notices that the other side speaks TLS: it answers a client that does not with an
// alert.
type plainConn struct {
	net.Conn
	begun bool
	alert atomic.Bool
}

func (c *plainConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.begun {
		c.begun = true
		c.alert.Store(b[0] == tlsAlertRecord)
	}
	return n, err
}

// tlsAlertRecord is the type of a TLS record; no AMQP frame has it.
const tlsAlertRecord = 21

// tlsAlertPrefix begins Go's text for an alert of the other side of a TLS connection.
const tlsAlertPrefix = "remote error: tls: "

// explainTLSEnd explains why RabbitMQ closes a TLS connection before AMQP begins: in TLS 1.3 it
// refuses a client certificate only then. Its alert is lost where its reset, or our next write, is faster. external
// tells whether SASL EXTERNAL was among the mechanisms offered.
func explainTLSEnd(err error, external bool) error {
	var e *amqp.Error
	if external && errors.As(err, &e) && e.Code == amqp.AccessRefused && e.Server {
		return fmt.Errorf("%w: by SASL EXTERNAL: RabbitMQ needs a user whose name is that of the client certificate (ssl_cert_login_from), the plugin rabbitmq_auth_mechanism_ssl, and EXTERNAL among its auth_mechanisms", wire.ErrForbidden)
	}
	if _, what, is := strings.Cut(err.Error(), tlsAlertPrefix); is {
		return credentials.Refused(what)
	}
	for _, ended := range []string{"EOF", "reset by peer", "broken pipe", "is not open", "use of closed network connection"} {
		if strings.HasSuffix(err.Error(), ended) || strings.Contains(err.Error(), ended+"\"") {
			if errors.As(err, &e) { // explain would keep nothing but its code and reason
				err = errors.New(e.Reason)
			}
			return fmt.Errorf("%w, just after the TLS handshake: if this continues, RabbitMQ refuses this client's certificate, or requires one (broker.tls.cert and key; in a URL certfile=FILE&keyfile=FILE); its log says why", err)
		}
	}
	return err
}
