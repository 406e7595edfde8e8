// Package broker is the only one that speaks AMQP: it connects and reconnects, consumes dead letters, and publishes
// with confirms. Consumers and publishers have separate connections: an alarm stops RabbitMQ reading from a connection
// that publishes, acknowledgements included. Read it in this order:
//
//	link.go          connects, and connects again
//	declare.go       what is declared, also again, and the remedy where RabbitMQ has something else
//	batchconsumer.go consumes redrive.intake and redrive.parked, a batch at a time
//	frames.go        messages that amqp091-go cannot read, and their headers
//	publisher.go     publishes with confirms
//	worker.go        a worker for each destination, its channels, and fewer system calls
//	subscriber.go    consumes work queues, for the library
//	mover.go         moves messages to another queue, for `redrive move`
//	taker.go         takes messages from a queue that is adopted; putter.go puts them back
//	probe.go         what the doctor and the throttle ask
//	message.go       deliveries and messages of package wire
package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

type Config struct {
	URL  string // amqp:// or amqps://, with credentials; or several of one cluster, see addresses
	Name string // as RabbitMQ's management page shows it
	Log  *slog.Logger
	// Observe receives each change. It is called by one goroutine at a time
	// and must not block.
	Observe func(State)
	// Strict ends Run, until it has worked once, at an error that only a person can correct (a wrong password, a
	// missing right or queue): whoever starts a program must see it. Later it may pass.
	Strict bool
	// Majority ends a connection whose node is partitioned from most of its cluster, if URL has another address; see
	// watchMajority. Its user must have the service's rights.
	Majority bool
	// Credentials are read again for each connection.
	Credentials connect.Client
	// AMQP is what a user of the library sets. For amqps://, its TLSClientConfig replaces the files of Credentials and
	// of the URL; its SASL replaces the URL's user; its FrameSize and Recovery are ignored.
	AMQP amqp.Config
	// Lasting makes Run connect again even after a permanentError, which must not end other connections of the process.
	Lasting bool
}

// NeedsPerson reports whether an error lasts until a person corrects something.
func NeedsPerson(err error) bool {
	return slices.ContainsFunc([]error{wire.ErrForbidden, wire.ErrNoVHost, wire.ErrQueueGone, wire.ErrDiffers,
		wire.ErrNoType, wire.ErrTLS}, func(e error) bool { return errors.Is(err, e) })
}

type State struct {
	Connected bool
	At        string // the node's address, host:port; when not connected, the last one's
	Blocked   string // the alarm over which RabbitMQ reads nothing from it; "" without one
	Err       error  // why it is not connected, or what is wrong
}

const (
	minReconnectWait = 100 * time.Millisecond
	maxReconnectWait = 15 * time.Second
	heartbeatEvery   = 10 * time.Second
	dialTimeout      = 10 * time.Second
	// waitAfterCrash is how long a BatchConsumer waits after an internal error of RabbitMQ: the message that causes it
	// must soon reach its delivery limit, since all others wait behind it. After maxHurried times in a row, enough for
	// ten such messages, the cause is another, and haste does harm.
	waitAfterCrash = 5 * time.Millisecond
	maxHurried     = 10 * DeliveryLimit
)

var ErrCrashed = errors.New("RabbitMQ says 541")

type link struct {
	Config
	reconnectsAtOnce bool // after a crash, see waitAfterCrash
	mu               sync.Mutex
	at               string
	blocked          string
	state            State
	connected        time.Time
	end              context.CancelCauseFunc
	refusals         map[string]refusal // by what RabbitMQ refused on this connection or the one before
}

type refusal struct {
	on   time.Time     // link.connected of the connection
	wait time.Duration // minimum age of a connection that is ended over it
}

// A refusal ends a connection after minRefusedWait at the earliest. The wait doubles, up to maxRefusedWait, each time
// that RabbitMQ refuses the next connection the same.
const minRefusedWait, maxRefusedWait = time.Minute, time.Hour

var errSignInAgain = errors.New("signing in again, since RabbitMQ refuses this again and again")

func (l *link) noted(err error) error {
	if errors.Is(err, wire.ErrForbidden) {
		l.refused(err)
	}
	return err
}

// refused notes an error that a new connection may not have, and ends the connection when it repeats. When its token
// expires, RabbitMQ 3.10 refuses everything and leaves it open; later versions end it. [measured on 3.10.8 and 4.3.6]
func (l *link) refused(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	age, r := time.Since(l.connected), l.refusals[err.Error()]
	switch {
	case r.on.Equal(l.connected):
		if age >= r.wait && l.end != nil {
			l.end(fmt.Errorf("%w: %w", errSignInAgain, err))
		}
		return
	case age >= minRefusedWait: // as far as is known, RabbitMQ allowed it until now
		r.wait = minRefusedWait
	default:
		r.wait = min(max(2*r.wait, minRefusedWait), maxRefusedWait)
	}
	r.on = l.connected
	if l.refusals == nil {
		l.refusals = map[string]refusal{}
	}
	l.refusals[err.Error()] = r
}

const secretEvery = 5 * time.Second

// renewSecret passes RabbitMQ each new password in the file, until ctx ends; was is the login before. A new token takes
// effect at once, so that the connection outlives the old one. RabbitMQ does not check a password again, and closes a
// connection over an invalid token. [measured on 3.10.8 and 4.3.6]
func (l *link) renewSecret(ctx context.Context, conn *amqp.Connection, was *url.Userinfo) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(secretEvery):
		}
		now := l.Credentials.Login.Current(was)
		secret, has := now.Password()
		if has && was.String() != now.String() && was.Username() == now.Username() {
			_ = conn.UpdateSecret(secret, "renewed") // an error ends the connection
			was = now
		}
	}
}

// observe reports and logs a state when it has changed: one line per change, not one per try.
func (l *link) observe(s State) {
	l.mu.Lock()
	was := l.state
	s.At = l.at
	if s.Connected {
		s.Blocked = l.blocked
	}
	l.state = s
	l.mu.Unlock()
	if was.Connected == s.Connected && was.Blocked == s.Blocked && fmt.Sprint(was.Err) == fmt.Sprint(s.Err) {
		return
	}
	log := l.Log.With("connection", l.Name)
	if s.At != "" {
		log = log.With("at", s.At)
	}
	switch {
	case s.Blocked != "" && was.Blocked == "":
		log.Warn("RabbitMQ has an alarm and takes no messages; waiting for it to end", "reason", s.Blocked)
	case s.Blocked == "" && was.Blocked != "" && s.Connected:
		log.Info("RabbitMQ's alarm is over")
	case s.Connected && s.Err == nil:
		log.Info("connected to RabbitMQ")
	case s.Err != nil:
		log.Warn("RabbitMQ: trying again until it works", "error", s.Err)
	}
	if l.Observe != nil {
		l.Observe(s)
	}
}

func (l *link) now() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// keep connects and runs use, again and again, until ctx ends or use returns a permanentError.
func (l *link) keep(
	ctx context.Context, wrap func(net.Conn) net.Conn, use func(context.Context, *amqp.Connection) error,
) error {
	crashes := 0 // in a row
	strict := l.Strict
	for wait := minReconnectWait; ; wait = min(2*wait, maxReconnectWait) {
		err := l.once(ctx, wrap, use)
		if ctx.Err() != nil {
			return nil
		}
		var p permanentError
		if errors.As(err, &p) && !l.Lasting {
			l.observe(State{Err: p.error})
			return p.error
		}
		if strict = strict && !l.now().Connected; strict && NeedsPerson(err) {
			return err
		}
		connected, crashed := l.now().Connected, errors.Is(err, ErrCrashed)
		if connected || crashed && l.reconnectsAtOnce {
			wait = minReconnectWait // the broker is up: connect again soon
		}
		l.observe(State{Err: err})
		pause := wait/2 + rand.N(wait) // jitter, so that a broker's clients do not all come back at once
		if crashes++; connected || !crashed {
			crashes = 0
		}
		if l.reconnectsAtOnce && crashed && crashes < maxHurried {
			pause = waitAfterCrash
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

func (l *link) once(
	ctx context.Context, wrap func(net.Conn) net.Conn, use func(context.Context, *amqp.Connection) error,
) error {
	var raw net.Conn
	login := l.Credentials.Login.Current(nil)
	conn, at, err := dial(ctx, &l.Config, l.now().At, func(c net.Conn) net.Conn { raw = wrap(c); return raw })
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	maps.DeleteFunc(l.refusals, func(_ string, r refusal) bool { return !r.on.Equal(l.connected) })
	l.at, l.blocked, l.connected, l.end = at, "", time.Now(), end
	l.mu.Unlock()
	var watcher sync.WaitGroup
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	var why *amqp.Error
	watcher.Go(func() {
		defer end(nil)
		for {
			select {
			case b, ok := <-blocked:
				if !ok {
					blocked = nil
					continue
				}
				l.block(b, raw)
			case why = <-closed:
				return
			}
		}
	})
	if login != nil {
		watcher.Go(func() { l.renewSecret(ctx, conn, login) })
	}
	var partitioned atomic.Bool
	if l.Majority && len(connect.SplitURLs(l.URL)) > 1 && needsMajority(conn) {
		watcher.Go(func() {
			if partitioned.Store(l.watchMajority(ctx, conn)); partitioned.Load() {
				_ = raw.Close()
			}
		})
	}
	err = use(ctx, conn)
	if l.now().Blocked != "" {
		_ = raw.Close() // RabbitMQ would not read a close
	}
	closeSoon(conn, raw)
	watcher.Wait()
	if why != nil && !errors.As(err, new(permanentError)) && !errors.As(err, new(takenBackError)) {
		err = explain(why) // explains more than the error of use
	}
	if partitioned.Load() {
		err = errPartitioned
	}
	if cause := context.Cause(ctx); errors.Is(cause, errSignInAgain) {
		err = cause
	}
	if err == nil {
		err = errors.New("the connection ended")
	}
	return err
}

// block records whether an alarm of RabbitMQ blocks the connection. While it does, no write may wait: heartbeats would
// wait behind it, and the client would close the connection.
func (l *link) block(b amqp.Blocking, raw net.Conn) {
	l.mu.Lock()
	l.blocked = ""
	if b.Active {
		l.blocked = b.Reason
	}
	l.mu.Unlock()
	if g, ok := raw.(*coalescingConn); ok {
		g.setUnbounded(b.Active)
	}
	l.observe(State{Connected: true})
}

// closeSoon closes the connection. It gives up on a broker that does not answer or read: then the client blocks in a
// write with its lock held, and only the end of the TCP connection frees it.
func closeSoon(conn *amqp.Connection, raw net.Conn) {
	force := time.AfterFunc(closeLimit, func() { _ = raw.Close() })
	defer force.Stop()
	_ = conn.CloseDeadline(time.Now().Add(closeLimit))
}

// closeLimit is how long RabbitMQ may take to answer what ends a connection.
const closeLimit = 2 * time.Second

// dialThrough calls dial, and also returns what wrap returned of the connection.
func dialThrough[C net.Conn](
	ctx context.Context, c Config, wrap func(net.Conn) C,
) (conn *amqp.Connection, wrapped C, err error) {
	conn, _, err = dial(ctx, &c, "", func(conn net.Conn) net.Conn {
		wrapped = wrap(conn)
		return wrapped
	})
	return conn, wrapped, err
}

// dial connects to one of the brokers of c.URL, in the order of connect.OrderURLs; last is the host of the connection
// before. at is the address of the broker that answers.
func dial(
	ctx context.Context, c *Config, last string, wrap func(net.Conn) net.Conn,
) (conn *amqp.Connection, at string, err error) {
	urls := connect.SplitURLs(c.URL)
	failed := make(unreachedError, len(urls)) // in the order of c.URL: the same text at each try
	for _, i := range connect.OrderURLs(urls, last) {
		if conn, failed[i] = dialOne(ctx, c, urls[i], wrap); failed[i] == nil {
			return conn, connect.Host(urls[i]), nil
		}
		if ctx.Err() != nil || len(urls) == 1 {
			return nil, "", failed[i]
		}
	}
	return nil, "", failed
}

// unreachedError holds why each of several brokers could not be connected to.
type unreachedError []error

func (u unreachedError) Error() string {
	var all []string
	for _, err := range u {
		all = append(all, err.Error())
	}
	return fmt.Sprintf("none of %d brokers: %s", len(u), strings.Join(all, "; "))
}

func (u unreachedError) Unwrap() []error { return u }

func explain(err error) error {
	var e *amqp.Error
	var parse *url.Error
	switch {
	case errors.Is(err, wire.ErrTLS):
		return err
	case errors.As(err, &parse):
		return errors.New("the broker URL cannot be parsed") // err contains the password
	case !errors.As(err, &e):
		return err
	case errors.Is(err, amqp.ErrCredentials), errors.Is(err, amqp.ErrVhost): // RabbitMQ's refusal has another text
		return errors.New("the connection was lost while signing in")
	case e.Code == amqp.AccessRefused && strings.Contains(e.Reason, "Login was refused"):
		return fmt.Errorf("%w: wrong user or password", wire.ErrForbidden)
	case e.Code == amqp.AccessRefused:
		reason, _, _ := strings.Cut(e.Reason, " (validated at ") // added to an expired token; differs each second
		return fmt.Errorf("%w: %s", wire.ErrForbidden, reason)
	case e.Code == amqp.NotAllowed && strings.Contains(e.Reason, "vhost") && strings.HasSuffix(e.Reason, "not found"):
		return fmt.Errorf("%w: %s", wire.ErrNoVHost, e.Reason)
	case e.Code == amqp.NotAllowed && strings.Contains(e.Reason, "refused for user '") &&
		strings.HasSuffix(e.Reason, "'"):
		return fmt.Errorf("%w: %s", wire.ErrForbidden, e.Reason) // text after the user means a limit, which passes
	case e.Code == amqp.NotFound && strings.HasPrefix(e.Reason, "NOT_FOUND - no queue '"): // else an exchange
		return fmt.Errorf("%w: %s", wire.ErrQueueGone, e.Reason)
	case e.Code == amqp.NotFound:
		return fmt.Errorf("%w: %s", wire.ErrUnroutable, e.Reason)
	case e.Code == amqp.ResourceLocked:
		return fmt.Errorf("%w: %s", wire.ErrExclusive, e.Reason)
	case e.Code == amqp.InternalError:
		return fmt.Errorf("%w: %s", ErrCrashed, e.Reason)
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "inequivalent arg"):
		return fmt.Errorf("%w: %s", wire.ErrDiffers, e.Reason)
	case strings.Contains(e.Reason, "unknown exchange type"): // 503 on RabbitMQ 3, 406 on 4
		return fmt.Errorf("%w: %s", wire.ErrNoType, e.Reason)
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "message size"):
		return fmt.Errorf("%w: %s", wire.ErrUnacceptable, e.Reason)
	case !e.Server: // the client's own, such as 501 with the text EOF
		return fmt.Errorf("the connection was lost: %s", e.Reason)
	}
	return fmt.Errorf("RabbitMQ says %d: %s", e.Code, e.Reason)
}

// signInConn makes RabbitMQ report when it refuses a user; otherwise it closes the connection, which looks like a
// network failure. The client library does not ask for that, and overwrites capabilities that its user sets.
type signInConn struct {
	net.Conn
	done bool
}

var (
	startOK      = []byte{0, 10, 0, 11} // class and method
	capabilities = []byte("\x0ccapabilitiesF")
	saysRefusal  = []byte("\x1cauthentication_failure_closet\x01")
)

// Write adds the capability to connection.start-ok, the client's first frame.
func (c *signInConn) Write(b []byte) (int, error) {
	const head, properties = 1 + 2 + 4, 4 // type, channel and size of a frame; the size of a table
	table := head + len(startOK)
	if c.done || len(b) < table+properties || b[0] != 1 || !bytes.HasPrefix(b[head:], startOK) {
		return c.Conn.Write(b)
	}
	c.done = true
	at := bytes.Index(b, capabilities)
	if at < 0 {
		return c.Conn.Write(b)
	}
	at += len(capabilities)
	more := bytes.Join([][]byte{b[:at+4], saysRefusal, b[at+4:]}, nil)
	for _, size := range []int{3, table, at} { // of the frame, of the properties, of the capabilities
		binary.BigEndian.PutUint32(more[size:], binary.BigEndian.Uint32(more[size:])+uint32(len(saysRefusal)))
	}
	n, err := c.Conn.Write(more)
	return min(n, len(b)), err
}

// dialOne connects to one broker. wrap wraps the connection that carries AMQP frames, above
// TLS: the TLS handshake is made here, and amqp091-go sees a plain connection.
func dialOne(ctx context.Context, c *Config, rawURL string, wrap func(net.Conn) net.Conn) (*amqp.Connection, error) {
	failed := func(err error) error {
		at, _, _ := strings.Cut(connect.Redact(rawURL), "?")
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
	u.Scheme, u.Host = "amqp", net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port))
	u.User = c.Credentials.Login.Current(u.User)
	var bare *plainConn
	within := cmp.Or(time.Duration(uri.ConnectionTimeout)*time.Millisecond, dialTimeout)
	with := c.AMQP
	with.Heartbeat, with.Properties = cmp.Or(with.Heartbeat, heartbeatEvery), amqp.NewConnectionProperties()
	maps.Copy(with.Properties, c.AMQP.Properties)
	with.Properties.SetClientConnectionName(c.Name)
	with.FrameSize, with.TLSClientConfig, with.Recovery = amqp.FrameSizeUnlimited, nil, nil
	with.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := dialForAMQP(ctx, c.AMQP.Dial, network, addr, within, secure)
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
			err = hint.Errorf("use amqps:// there, or the port of AMQP (5672 by default)",
				"%w: this port of RabbitMQ's speaks TLS", wire.ErrTLS)
		}
		if secure != nil {
			err = explainTLSEnd(err, c.external(&uri))
		}
		return nil, failed(err)
	}
	return conn, nil
}

func (c *Config) external(uri *amqp.URI) bool {
	return slices.ContainsFunc(uri.AuthMechanism, func(m string) bool { return strings.EqualFold(m, "external") }) ||
		slices.ContainsFunc(c.AMQP.SASL, func(a amqp.Authentication) bool { return a.Mechanism() == "EXTERNAL" })
}

// security returns the TLS settings for a broker, or nil for none. It reads their files each time.
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
	return connect.TLS{
		CA: cmp.Or(f.CA, uri.CACertFile), Cert: cmp.Or(f.Cert, uri.CertFile), Key: cmp.Or(f.Key, uri.KeyFile),
		ServerName: cmp.Or(f.ServerName, uri.ServerName),
	}.Config(uri.Host)
}

// dialForAMQP makes a connection for AMQP, with a deadline until AMQP's handshake is over: nothing else limits that.
// dial is the user's own, or nil.
func dialForAMQP(
	ctx context.Context, dial func(network, addr string) (net.Conn, error), network, addr string,
	within time.Duration, secure *tls.Config,
) (net.Conn, error) {
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
		return nil, connect.ExplainTLS(err)
	}
	return tlsConn{above, conn}, nil
}

// dialWithin makes the network connection. It abandons a user's dialer that does not return in time, and closes the
// connection that it returns later.
func dialWithin(
	ctx context.Context, dial func(network, addr string) (net.Conn, error), network, addr string, within time.Duration,
) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if dial == nil {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	conn, err := untilEnd(ctx, func() (net.Conn, error) { return dial(network, addr) },
		func(late net.Conn) { _ = late.Close() })
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("the dialer: %w", err)
	}
	return conn, err
}

// tlsConn closes the TCP connection at once: a close_notify of TLS could wait for a broker that reads nothing, and AMQP
// has its own close.
type tlsConn struct {
	*tls.Conn
	under net.Conn
}

func (c tlsConn) Close() error { return c.under.Close() }

// plainConn notices that the other side speaks TLS, which answers plain bytes with an alert.
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

// tlsAlertPrefix begins Go's text for an alert of the other side.
const tlsAlertPrefix = "remote error: tls: "

// explainTLSEnd explains why RabbitMQ closes a TLS connection before AMQP begins: in TLS 1.3 it refuses a client
// certificate only then. Its alert is lost where its reset, or our next write, is faster. external reports whether the
// client offered SASL EXTERNAL.
func explainTLSEnd(err error, external bool) error {
	var e *amqp.Error
	if external && errors.As(err, &e) && e.Code == amqp.AccessRefused && e.Server {
		return fmt.Errorf("%w: by SASL EXTERNAL: RabbitMQ needs a user whose name is that of the client certificate "+
			"(ssl_cert_login_from), the plugin rabbitmq_auth_mechanism_ssl, and EXTERNAL among its auth_mechanisms",
			wire.ErrForbidden)
	}
	if _, what, is := strings.Cut(err.Error(), tlsAlertPrefix); is {
		return connect.Refused(what)
	}
	for _, ended := range []string{"EOF", "reset by peer", "broken pipe", "is not open",
		"use of closed network connection"} {
		if strings.HasSuffix(err.Error(), ended) || strings.Contains(err.Error(), ended+"\"") {
			if errors.As(err, &e) { // explain would keep only its code and reason
				err = errors.New(e.Reason)
			}
			return fmt.Errorf("%w, just after the TLS handshake: if this continues, RabbitMQ refuses this client's "+
				"certificate, or requires one (broker.tls.cert and key; in a URL certfile=FILE&keyfile=FILE); its "+
				"log says why", err)
		}
	}
	return err
}
