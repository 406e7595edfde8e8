package brokertest

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/proxy"
)

// Patience is how long a test waits for what must happen.
const Patience = expect.Patience

// Receive waits for the next value of a channel.
func Receive[T any](t testing.TB, from <-chan T, what string) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(Patience):
		t.Fatalf("after %v still nothing: %s", Patience, what)
	}
	return value
}

// Client is what a test does by AMQP itself.
type Client struct {
	t       testing.TB
	dial    func() *amqp.Connection
	channel *amqp.Channel // see Own
}

// NewClient is one that connects by dial.
func NewClient(t testing.TB, dial func() *amqp.Connection) *Client { return &Client{t: t, dial: dial} }

// Own is a channel that the client keeps, for what a test does in passing.
func (c *Client) Own() *amqp.Channel {
	c.t.Helper()
	if c.channel == nil || c.channel.IsClosed() {
		c.channel = c.Channel()
		must(c.t, c.channel.Confirm(false))
	}
	return c.channel
}

// Channel opens a channel on a connection of its own.
func (c *Client) Channel() *amqp.Channel {
	c.t.Helper()
	ch, err := c.dial().Channel()
	must(c.t, err)
	return ch
}

// Queue declares a durable queue.
func (c *Client) Queue(name string, args amqp.Table) {
	c.t.Helper()
	c.retrying("declaring", name, func() error {
		_, err := c.Own().QueueDeclare(name, true, false, false, false, args)
		return err
	})
}

// DeleteQueue deletes a queue with its messages.
func (c *Client) DeleteQueue(name string) {
	c.t.Helper()
	c.retrying("deleting", name, func() error {
		_, err := c.Own().QueueDelete(name, false, false, false)
		return err
	})
}

// retrying tries again what RabbitMQ 3.10 ends the connection for (541), when a quorum queue
// does not answer within a few seconds, as on a machine with much to do.
func (c *Client) retrying(does, queue string, do func() error) {
	c.t.Helper()
	var err error
	for range 5 {
		if err = do(); err == nil {
			return
		}
		if e := (*amqp.Error)(nil); !errors.As(err, &e) || e.Code != amqp.InternalError {
			break
		}
	}
	c.t.Fatalf("%s %q: %v", does, queue, err)
}

// Depth is how many messages a queue has ready.
func (c *Client) Depth(queue string) int {
	c.t.Helper()
	q, err := c.Own().QueueDeclarePassive(queue, true, false, false, false, nil)
	must(c.t, err)
	return q.Messages
}

// Publish publishes and waits for RabbitMQ's confirm: a test whose own message
// is lost proves nothing.
func (c *Client) Publish(exchange, key string, p amqp.Publishing) {
	c.t.Helper()
	confirm, err := c.Own().PublishWithDeferredConfirm(exchange, key, false, false, p)
	must(c.t, err)
	if !confirm.Wait() {
		c.t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}

// PublishMany publishes n messages to a queue, and waits for the confirm of each.
func (c *Client) PublishMany(queue string, n int, message func(i int) amqp.Publishing) {
	c.t.Helper()
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		confirm, err := c.Own().PublishWithDeferredConfirm("", queue, false, false, message(i))
		must(c.t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		if !confirm.Wait() {
			c.t.Fatalf("RabbitMQ did not confirm a message to the queue %q", queue)
		}
	}
}

// Exchange declares a durable exchange and binds queues to it with their names
// as routing keys.
func (c *Client) Exchange(name, kind string, queues ...string) {
	c.t.Helper()
	must(c.t, c.Own().ExchangeDeclare(name, kind, true, false, false, false, nil))
	for _, q := range queues {
		must(c.t, c.Own().QueueBind(q, q, name, false, nil))
	}
}

// Consumer takes the deliveries of one queue, one after the other.
type Consumer struct {
	t       testing.TB
	queue   string
	Channel *amqp.Channel
	In      <-chan amqp.Delivery
}

// Consume consumes a queue over a connection of its own, with a prefetch of one.
func (c *Client) Consume(queue string) *Consumer {
	c.t.Helper()
	return c.ConsumeOn(c.Channel(), queue)
}

// ConsumeMany is Consume with a prefetch of 1,000.
func (c *Client) ConsumeMany(queue string) *Consumer {
	c.t.Helper()
	return c.consume(c.Channel(), queue, 1000)
}

// ConsumeOn is Consume on a channel of the test's.
func (c *Client) ConsumeOn(ch *amqp.Channel, queue string) *Consumer {
	c.t.Helper()
	return c.consume(ch, queue, 1)
}

// Consumer is one that the test has started itself.
func (c *Client) Consumer(queue string, ch *amqp.Channel, in <-chan amqp.Delivery) *Consumer {
	return &Consumer{c.t, queue, ch, in}
}

func (c *Client) consume(ch *amqp.Channel, queue string, prefetch int) *Consumer {
	c.t.Helper()
	must(c.t, ch.Qos(prefetch, 0, false))
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	must(c.t, err)
	return c.Consumer(queue, ch, in)
}

// Next waits for a delivery.
func (c *Consumer) Next() amqp.Delivery {
	c.t.Helper()
	d := Receive(c.t, c.In, "a delivery from "+c.queue)
	if d.Acknowledger == nil {
		c.t.Fatalf("the consumer of %s was ended", c.queue)
	}
	return d
}

// Ack waits for a delivery and acknowledges it.
func (c *Consumer) Ack() amqp.Delivery {
	c.t.Helper()
	d := c.Next()
	must(c.t, d.Ack(false))
	return d
}

// Nothing shows that nothing has come to the queue: a message that it publishes there is the next.
func (c *Consumer) Nothing() {
	c.t.Helper()
	marker := uuid.NewString()
	must(c.t, c.Channel.Publish("", c.queue, false, false, amqp.Publishing{Body: []byte(marker)}))
	c.Take(marker)
}

// Take waits for a delivery, which must have this body, and acknowledges it.
func (c *Consumer) Take(body string) amqp.Delivery {
	c.t.Helper()
	d := c.Ack()
	if string(d.Body) != body {
		c.t.Fatalf("%.60q came from %s, want %.60q", d.Body, c.queue, body)
	}
	return d
}

// Reject waits for a delivery and dead-letters it.
func (c *Consumer) Reject() amqp.Delivery {
	c.t.Helper()
	d := c.Next()
	must(c.t, d.Reject(false))
	return d
}

// Fail publishes a message with this body to the queue, and dead-letters the next that comes.
func (c *Consumer) Fail(body string) {
	c.t.Helper()
	must(c.t, c.Channel.Publish("", c.queue, false, false, amqp.Publishing{Body: []byte(body)}))
	c.Reject()
}

// Arrived takes a delivery that is there already.
func (c *Consumer) Arrived() bool {
	select {
	case <-c.In:
		return true
	default:
		return false
	}
}

// EveryHeader has each header type that AMQP 0-9-1 has and amqp091-go can send.
func EveryHeader() amqp.Table {
	return amqp.Table{
		"nil": nil, "yes": true, "no": false, "int8": int8(-1), "uint8": uint8(255), "int16": int16(-300),
		"uint16": uint16(65535),
		"int32":  int32(math.MinInt32), "uint32": uint32(math.MaxUint32), "int64": int64(math.MinInt64),
		"float32": float32(1.5), "float64": -2.5e300, "decimal": amqp.Decimal{Scale: 2, Value: 1234},
		"string": "héllo\x00\xff", "empty": "", "bytes": []byte{0, 255}, "nobytes": []byte{},
		"time":  time.Unix(1_700_000_000, 0),
		"table": amqp.Table{"deep": amqp.Table{"list": []any{int32(1), "two", nil, []any(nil), amqp.Table{}}}},
		"list":  []any(nil), // as the client reads an empty one
	}
}

// EveryProperty has those headers and every property that the user guest can send.
func EveryProperty() amqp.Publishing {
	return amqp.Publishing{
		Headers: EveryHeader(), ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent,
		Priority:      3,
		CorrelationId: "corr", ReplyTo: "reply", MessageId: "m1", Timestamp: time.Unix(1_700_000_000, 0),
		Type:   "created",
		UserId: "guest", AppId: "shop", Expiration: "600000", Body: []byte("\x00\xff{}"),
	}
}

// Published is what a delivery would be published as, without its headers.
func Published(d *amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration,
		MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body}
}

// Output is what a program or a service under test wrote; it may still write.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String is all of it so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Proxy stands between a client and a broker.
type Proxy struct {
	*proxy.Proxy
	URL string // of the broker, by way of the proxy
}

// NewProxy makes a proxy to the broker of a virtual host.
func NewProxy(t testing.TB, v *VHost) *Proxy {
	t.Helper()
	p := &Proxy{Proxy: proxy.New(t, v.host())}
	p.URL = p.At(v.URL())
	return p
}

// At is a URL of the broker's, by way of the proxy.
func (p *Proxy) At(brokerURL string) string {
	u, _ := url.Parse(brokerURL)
	u.Host = p.Addr()
	return u.String()
}

// Raw publishes messages whose header table no client library writes: with a name twice,
// or in another order. It has the client send a placeholder as long as the table, and
// puts the table's bytes in its place.
type Raw struct {
	t    testing.TB
	ch   *amqp.Channel
	conn *rawConn
}

// Raw connects as the user of rawURL.
func (v *VHost) Raw(rawURL string) *Raw {
	v.t.Helper()
	r := &Raw{t: v.t}
	// The bytes are replaced above TLS: below it they are not to be seen.
	dial := net.Dial
	if rest, secure := strings.CutPrefix(rawURL, "amqps://"); secure {
		rawURL = "amqp://" + rest
		dial = func(network, addr string) (net.Conn, error) { return tls.Dial(network, addr, nil) }
	}
	conn, err := amqp.DialConfig(rawURL, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := dial(network, addr)
		r.conn = &rawConn{Conn: c}
		return r.conn, err
	}})
	must(v.t, err)
	v.t.Cleanup(func() { _ = conn.Close() })
	if r.ch, err = conn.Channel(); err != nil {
		v.t.Fatal(err)
	}
	must(v.t, r.ch.Confirm(false))
	return r
}

const placeholder = "placeholder of a raw table"

// Publish sends a message with the header table whose entries are given, see Field, and
// waits for the confirm. A table has between 40 and 3,000 bytes.
func (r *Raw) Publish(exchange, key string, table []byte, body string) {
	r.t.Helper()
	fill := len(table) - 1 - 1 - 1 - 4 - len(placeholder) // name, type and length of the one entry "h"
	if fill < 0 || len(table) > 3000 {
		r.t.Fatalf("a raw table of %d bytes", len(table))
	}
	text := placeholder + strings.Repeat(".", fill)
	r.conn.table.Store(&[2][]byte{TextField("h", text), table})
	c, err := r.ch.PublishWithDeferredConfirm(exchange, key, true, false,
		amqp.Publishing{Headers: amqp.Table{"h": text}, DeliveryMode: amqp.Persistent, Body: []byte(body)})
	must(r.t, err)
	if !c.Wait() {
		r.t.Fatal("RabbitMQ has not confirmed a raw message")
	}
	if r.conn.table.Load() != nil {
		r.t.Fatal("the table of a raw message was not sent")
	}
}

// rawConn puts a table in the place of other bytes, once.
type rawConn struct {
	net.Conn
	table atomic.Pointer[[2][]byte] // the bytes, and the table
}

func (c *rawConn) Write(b []byte) (int, error) {
	if t := c.table.Load(); t != nil && bytes.Contains(b, t[0]) {
		b = bytes.Replace(b, t[0], t[1], 1)
		c.table.Store(nil)
	}
	return c.Conn.Write(b)
}

// Field is an entry of a table: a name, a type and the bytes of a value.
func Field(name string, kind byte, value []byte) []byte {
	return append(append([]byte{byte(len(name))}, name...), append([]byte{kind}, value...)...)
}

// TextField is one that holds text.
func TextField(name, value string) []byte { return Field(name, 'S', Sized([]byte(value))) }

// Sized is bytes behind their length: the value of a text, a list or a table.
func Sized(b ...[]byte) []byte {
	all := bytes.Join(b, nil)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(all))), all...)
}
