package brokertest

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

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
	r.conn.replace(append(binary.BigEndian.AppendUint32([]byte("\x01hS"), uint32(len(text))), text...), table)
	c, err := r.ch.PublishWithDeferredConfirm(exchange, key, true, false, amqp.Publishing{Headers: amqp.Table{"h": text}, DeliveryMode: amqp.Persistent, Body: []byte(body)})
	must(r.t, err)
	if !c.Wait() {
		r.t.Fatal("RabbitMQ has not confirmed a raw message")
	}
	if !r.conn.replaced() {
		r.t.Fatal("the table of a raw message was not sent")
	}
}

type rawConn struct {
	net.Conn
	mu        sync.Mutex
	old, with []byte
}

func (c *rawConn) replace(old, with []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.old, c.with = old, with
}

func (c *rawConn) replaced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.old == nil
}

func (c *rawConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.old != nil && bytes.Contains(b, c.old) {
		b = bytes.Replace(b, c.old, c.with, 1)
		c.old = nil
	}
	c.mu.Unlock()
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
