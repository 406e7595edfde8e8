package broker

import (
	"errors"
	"io"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// In TLS 1.3 RabbitMQ refuses a client certificate after the handshake. The error says so
// also where the client library has only noticed that its connection is closed.
func TestAConnectionClosedJustAfterTheTLSHandshakeNamesTheCertificate(t *testing.T) {
	for _, end := range []error{io.EOF, amqp.ErrClosed, errors.New("read: connection reset by peer")} {
		if err := explain(explainTLSEnd(end, false)); !strings.Contains(err.Error(), "RabbitMQ refuses this client's certificate") {
			t.Errorf("%v is explained as %v", end, err)
		}
	}
	if err := explainTLSEnd(amqp.ErrVhost, false); err != amqp.ErrVhost {
		t.Errorf("%v is explained as %v", amqp.ErrVhost, err)
	}
}
