package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"
)

// signInConn makes RabbitMQ report when it refuses a user. Otherwise it closes the connection
// without an error, as a network failure does: a consumer would report a wrong password, and
// stop, because the network failed at that moment. The client library does not ask for that
// report, and overwrites capabilities that its user sets.
type signInConn struct {
	net.Conn
	done bool
}

var (
	startOK      = []byte{0, 10, 0, 11} // class and method
	capabilities = []byte("\x0ccapabilitiesF")
	saysRefusal  = []byte("\x1cauthentication_failure_closet\x01")
)

// Write adds the capability to connection.start-ok, the first frame of a client's.
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

// lostSigningIn tells whether a connection ended before RabbitMQ answered whether the user may
// sign in: the client library reports that as a refusal.
func lostSigningIn(err error) bool {
	return errors.Is(err, amqp.ErrCredentials) || errors.Is(err, amqp.ErrVhost)
}
