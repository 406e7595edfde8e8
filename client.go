package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
)

// Config configures a Client. URLs is required.
type Config struct {
	// URLs are the addresses of the nodes of one RabbitMQ cluster, amqp:// or amqps://, all with the same virtual host,
	// user and password. Each connection goes to one of them at random, and to the next when that one fails. One string
	// may hold several, separated by commas, as an environment variable does.
	//
	// These parameters may follow a "?": cacertfile, certfile, keyfile (files in PEM, read
	// for each new connection), server_name_indication, auth_mechanism (plain, amqplain or
	// external), heartbeat (seconds) and connection_timeout (milliseconds).
	URLs []string

	// AMQP configures the connections. Its zero value suits most programs. These of its fields are used:
	//
	//   - SASL replaces the user and password of URLs. It is called at each new connection,
	//     so an implementation may return a token that has been renewed.
	//   - TLSClientConfig is for amqps:// URLs without files of their own. Its
	//     GetClientCertificate is called at each new connection. Without it the system's
	//     authorities are trusted, or those of SSL_CERT_FILE.
	//   - Dial opens network connections, through a proxy for example. TLS is added on top.
	//   - Heartbeat is from 1 s to 60 s; the default is 10 s.
	//   - Properties are shown in RabbitMQ's management page. "connection_name" is the
	//     beginning of the names of both connections; the default is "redrive".
	//   - Vhost replaces the virtual host of URLs.
	//   - ChannelMax and Locale are passed on.
	//
	// FrameSize and Recovery must not be set: the Client agrees on RabbitMQ's frame size, and recovers by itself.
	AMQP amqp.Config

	// Verify makes the Client declare nothing: what is missing in RabbitMQ is an error instead, except for the exchange
	// redrive.failures, which the service declares. It is for users without the permission to configure.
	Verify bool

	// Log receives what a person should know, and never a payload. The default is slog.Default.
	Log *slog.Logger

	// Metrics receives counts and durations. Its zero value ignores them.
	Metrics Metrics

	// OnParked, if not nil, is called after a message of any consumer was parked. Calls come from one goroutine, in the
	// order of parking, and delay no consumer: while 1,024 of them wait, further ones are dropped. A panic is recovered
	// and logged. Metrics.Hook counts calls, panics and drops. Close waits up to 5 s for calls that are left; then ctx
	// ends, those that have not begun are dropped, and Close waits a second longer for the one under way.
	OnParked func(ctx context.Context, m ParkedMessage)
}

// check returns what is wrong with a configuration, or nil.
func (c *Config) check() error {
	urls := connect.JoinURLs(c.URLs)
	switch {
	case len(c.URLs) == 0:
		return hint.Errorf("give at least one, such as amqp://user:password@host/vhost",
			"redrive: Config.URLs is empty")
	case slices.Contains(c.URLs, ""):
		return errors.New("redrive: Config.URLs has an empty string")
	case connect.CheckURLs(urls, "amqp", "amqps") != nil:
		return fmt.Errorf("redrive: Config.URLs %w", connect.CheckURLs(urls, "amqp", "amqps"))
	case c.AMQP.TLSClientConfig != nil && !connect.Secure(urls):
		return hint.Errorf("use amqps:// in all, and set TLS either in TLSClientConfig or in the URLs",
			"redrive: Config.AMQP.TLSClientConfig needs every URL to be amqps:// without TLS parameters")
	case c.AMQP.Heartbeat != 0 && (c.AMQP.Heartbeat < time.Second ||
		c.AMQP.Heartbeat > connect.MaxHeartbeat*time.Second):
		return fmt.Errorf("redrive: Config.AMQP.Heartbeat is %s: expected 1s to %ds", c.AMQP.Heartbeat,
			connect.MaxHeartbeat)
	case c.AMQP.FrameSize != 0:
		return hint.Errorf("leave it out", "redrive: Config.AMQP.FrameSize is set, and a Client uses RabbitMQ's")
	case c.AMQP.Recovery != nil:
		return hint.Errorf("leave it out", "redrive: Config.AMQP.Recovery is set, and a Client reconnects by itself")
	case slices.Contains(c.AMQP.SASL, nil):
		return errors.New("redrive: Config.AMQP.SASL has a nil")
	}
	return nil
}

// brokerConfig is the configuration of one of the two connections.
func (c *Config) brokerConfig(does string) broker.Config {
	name, _ := c.AMQP.Properties["connection_name"].(string)
	return broker.Config{URL: connect.JoinURLs(c.URLs), Name: cmp.Or(name, "redrive") + " (" + does + ")", Log: c.Log,
		AMQP: c.AMQP}
}

// Client serves any number of consumers with two connections to RabbitMQ: one publishes,
// and one, opened for the first consumer, consumes. With one connection a memory or disk
// alarm would block the acknowledgements too. It reconnects for as long as it takes.
//
// Make one with NewClient. Its methods are safe for concurrent use.
type Client struct {
	config    Config
	publish   *broker.Publisher
	subscribe *broker.Subscriber
	hook      *hook

	consumeCtx    context.Context // of all consumers
	stopConsuming context.CancelFunc
	connCtx       context.Context // of the connections
	disconnect    context.CancelFunc
	connections   sync.WaitGroup
	connect       sync.Once // to consume
	closeOnce     sync.Once

	mu        sync.Mutex
	closed    bool
	consumers sync.WaitGroup

	metricsPanic sync.Once // logs it
}

var (
	errClosed = errors.New("redrive: the client is closed")
	errZero   = hint.Errorf("make one with NewClient", "redrive: the Client is nil or its zero value")
)

// NewClient connects to RabbitMQ, for as long as it takes or until ctx ends. It returns immediately on errors that
// retrying cannot fix: a Config that is not valid, a wrong password, a virtual host that does not exist, a certificate
// that is not trusted; errors.Is finds the last three as wire.ErrForbidden, wire.ErrNoVHost and wire.ErrTLS. When ctx
// ends first, it returns the error of ctx.
//
// ctx is for connecting only. The Client lasts until Close.
func NewClient(ctx context.Context, config Config) (*Client, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	config.URLs = slices.Clone(config.URLs)
	config.AMQP.Properties = maps.Clone(config.AMQP.Properties)
	if config.Log == nil {
		config.Log = slog.Default()
	}
	c := &Client{config: config}
	publishes := config.brokerConfig("publishes")
	publishes.Strict = true
	c.publish, c.subscribe = broker.NewPublisher(publishes), broker.NewSubscriber(config.brokerConfig("consumes"))
	c.consumeCtx, c.stopConsuming = context.WithCancel(context.Background())
	c.connCtx, c.disconnect = context.WithCancel(context.Background())
	connecting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.connections.Go(func() {
		if err := c.publish.Run(c.connCtx); err != nil {
			cancel(err)
		}
	})
	if config.OnParked != nil {
		c.hook = newHook(c)
	}
	if _, err := c.publish.Version(connecting); err != nil {
		c.Close()
		return nil, fmt.Errorf("redrive: %w", context.Cause(connecting))
	}
	return c, nil
}

// Consume runs one consumer until ctx ends or Close is called. Then it stops consuming, lets handlers finish within
// Consumer.Shutdown, settles their messages, and returns nil; messages that were only prefetched are requeued. Where
// ctx ends before it could begin, it returns ctx's cause. A program with several queues calls it once for each, from a
// goroutine each. The consumers are independent.
//
// It declares what the consumer needs in RabbitMQ beside its queue, which must exist, and consumes again for as long as
// it takes when its channel or connection is lost. It returns an error only when consumer is not valid; when it cannot
// begin, for a reason that a person must fix, such as a missing queue (wire.ErrQueueGone) or permission
// (wire.ErrForbidden); when handlers did not return in time; and when the client is closed.
func (c *Client) Consume(ctx context.Context, consumer Consumer) error {
	if c == nil || c.publish == nil {
		return errZero
	}
	handle, err := consumer.validate(c.config.Verify)
	if err != nil {
		return err
	}
	return c.consume(ctx, consumer, handle)
}

func (c *Client) consume(ctx context.Context, consumer Consumer, handle Handler) error {
	if !c.enter() {
		return errClosed
	}
	defer c.consumers.Done()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.consumeCtx, stop)()
	s := c.newAcknowledger(consumer)
	if err := s.prepare(ctx); err != nil {
		if c.consumeCtx.Err() != nil {
			return errClosed
		}
		return err
	}
	c.connect.Do(func() {
		c.connections.Go(func() { _ = c.subscribe.Run(c.connCtx) }) // it fails only in its strict mode
	})
	return c.run(ctx, s, handle)
}

// enter counts a consumer, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.consumers.Add(1)
	return true
}

// Close stops all consumers, waits until every Consume has returned, and closes the
// connections. That takes as long as the longest Consumer.Shutdown and a few seconds, at
// most. It must not be called by a handler. A second Close waits for the first one.
func (c *Client) Close() {
	if c == nil || c.publish == nil {
		return
	}
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.stopConsuming()
		c.consumers.Wait()
		c.hook.close()
		c.disconnect()
		c.connections.Wait()
	})
}

// Consume makes a Client, consumes with it until ctx ends, and closes it. It returns the errors of
// NewClient and Client.Consume.
func Consume(ctx context.Context, config Config, consumer Consumer) error {
	handle, err := consumer.validate(config.Verify) // before it connects
	if err != nil {
		return err
	}
	c, err := NewClient(ctx, config)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.consume(ctx, consumer, handle)
}

// newAcknowledger makes an acknowledger for a consumer, which must have been validated.
func (c *Client) newAcknowledger(consumer Consumer) *acknowledger {
	return &acknowledger{consumer: consumer, way: consumer.Wait.way, limits: consumer.Wait.way.Limits(),
		verify: c.config.Verify, log: c.config.Log, publish: c.publish, closed: c.connCtx.Done(), parked: c.hook.add}
}

// Metrics receives what a Client does. Each of its functions may be nil. They are called from many goroutines at once
// and must not block; a panic in one of them is recovered, and the first one is logged.
//
// Package redriveprom makes one for Prometheus.
type Metrics struct {
	// Attempt is called after each attempt at a message.
	Attempt func(AttemptEvent)
	// Consumer is called when a consumer has begun to consume its queue, and when it no
	// longer does, since its connection was lost or it was stopped.
	Consumer func(ConsumerEvent)
	// Hook is called for each message that Config.OnParked was called for, or should have been.
	Hook func(HookEvent)
}

// AttemptEvent is one attempt at one message.
type AttemptEvent struct {
	Queue   string
	Attempt int // from 1
	Outcome Outcome
	// Duration is how long the handler took: in a batch, for all its messages together.
	Duration time.Duration
}

// ConsumerEvent is a change of one consumer.
type ConsumerEvent struct {
	Queue     string
	Consuming bool
}

// HookEvent is one call of Config.OnParked.
type HookEvent struct {
	Queue  string
	Result HookResult
}

// HookResult is the outcome of a call of Config.OnParked.
type HookResult string

const (
	HookReturned HookResult = "returned"
	HookPanicked HookResult = "panicked"
	HookDropped  HookResult = "dropped" // not called, as too many calls were waiting
)

// count calls one of the functions of Config.Metrics, if it is set. A panic there costs what it
// would have counted, and the first one is logged.
func count[E any](c *Client, queue string, f func(E), event E) {
	if f == nil {
		return
	}
	if p := catch(func() { f(event) }); p != nil {
		c.metricsPanic.Do(func() {
			c.config.Log.Error("Config.Metrics panicked; what it counts is incomplete", "queue", queue, "panic",
				fmt.Sprint(p.Value), "stack", string(p.Stack))
		})
	}
}

// ParkedMessage is a message that was parked: it is in the queue redrive.parked until a person replays or discards it.
type ParkedMessage struct {
	Queue     string // the work queue
	ID        string // its header x-redrive-id
	MessageID string // as the publisher set it; "" if not
	Attempt   int    // the last one, from 1
	Reason    string // why it was parked, in words
	// Err is the handler's error, or a *PanicError, or ErrMaxDeliveries. It is nil for a
	// message that was parked unseen, since it could not be published again as it was.
	Err error
}

const (
	hookBuffer = 1024            // calls that wait, at most
	hookGrace  = 5 * time.Second // for those that wait when the client closes
)

// hook calls Config.OnParked on a goroutine of its own, so that no consumer waits for it.
type hook struct {
	client *Client
	events chan ParkedMessage
	stop   chan struct{} // closed when no more will come
	done   chan struct{}
	cancel context.CancelFunc
	full   atomic.Bool // calls are dropped, and that was logged
	panics sync.Once   // logs one
}

func newHook(c *Client) *hook {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hook{client: c, events: make(chan ParkedMessage, hookBuffer), stop: make(chan struct{}),
		done: make(chan struct{}), cancel: cancel}
	go func() { // close waits for it
		defer close(h.done)
		h.callAll(ctx)
	}()
	return h
}

// add passes a message to the hook. It never waits.
func (h *hook) add(m ParkedMessage) {
	if h == nil {
		return
	}
	select {
	case h.events <- m:
		return
	default:
	}
	if h.full.CompareAndSwap(false, true) { // once, not for each message
		h.client.config.Log.Error("Config.OnParked is too slow: calls are dropped", "queue", m.Queue, "id", m.ID,
			"waiting", hookBuffer)
	}
	h.count(m.Queue, HookDropped)
}

// callAll calls Config.OnParked for one message after the other, until close has stopped it and none
// is left, or ctx ends.
func (h *hook) callAll(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case m := <-h.events:
			h.call(ctx, m)
		case <-h.stop:
			select {
			case m := <-h.events:
				h.call(ctx, m)
			default:
				return
			}
		}
	}
	for range len(h.events) {
		h.count((<-h.events).Queue, HookDropped)
	}
}

func (h *hook) call(ctx context.Context, m ParkedMessage) {
	config := &h.client.config
	if p := catch(func() { config.OnParked(ctx, m) }); p != nil {
		h.panics.Do(func() { // once; each is counted
			config.Log.Error("Config.OnParked panicked", "queue", m.Queue, "id", m.ID, "panic", fmt.Sprint(p.Value),
				"stack", string(p.Stack))
		})
		h.count(m.Queue, HookPanicked)
		return
	}
	h.full.Store(false)
	h.count(m.Queue, HookReturned)
}

func (h *hook) count(queue string, r HookResult) {
	count(h.client, queue, h.client.config.Metrics.Hook, HookEvent{queue, r})
}

// close waits for the remaining calls, for hookGrace, and then for returnGrace for the one under way.
func (h *hook) close() {
	if h == nil {
		return
	}
	defer h.cancel()
	close(h.stop)
	select {
	case <-h.done:
		return
	case <-time.After(hookGrace):
	}
	h.cancel()
	select {
	case <-h.done:
	case <-time.After(returnGrace):
		h.client.config.Log.Error("Config.OnParked did not return when its context ended, and is left behind",
			"waiting", len(h.events))
	}
}
