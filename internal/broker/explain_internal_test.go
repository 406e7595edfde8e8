package broker

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// RabbitMQ quotes names in its texts, and clients choose names. [texts of 3.10.8 and 4.3.6]
func TestAMissingExchangeIsNoMissingQueue(t *testing.T) {
	for _, c := range []struct {
		text string
		gone bool
	}{
		{"NOT_FOUND - no queue 'q' in vhost '/'", true},
		{"NOT_FOUND - no queue 'no exchange' in vhost '/'", true},
		{"NOT_FOUND - no exchange 'redrive.retry.q' in vhost '/'", false},
		{"NOT_FOUND - no exchange 'redrive.retry.a no queue b' in vhost '/'", false},
		{"NOT_FOUND - no exchange 'NOT_FOUND - no queue 'q' in vhost '/'", false},
	} {
		err := explain(&amqp.Error{Code: amqp.NotFound, Reason: c.text, Server: true})
		if gone := errors.Is(err, wire.ErrQueueGone); gone != c.gone || gone == errors.Is(err, wire.ErrUnroutable) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}

// A right that is really missing is refused by every connection; a token that expires, by each
// one late.
func TestARefusalThatRepeatsEndsAConnectionNowAndThen(t *testing.T) {
	for _, c := range []struct {
		refusedFrom time.Duration // the age of a connection
		want        []time.Duration
	}{
		{0, []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}},
		{10 * time.Minute, []time.Duration{10, 10, 10, 10, 10, 10, 10, 10}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l link
			var ended bool
			var ages []time.Duration
			l.end = func(error) { ended = true }
			began := time.Now()
			for l.connected = began; len(ages) < len(c.want) && time.Since(began) < 24*time.Hour; {
				time.Sleep(15 * time.Second)
				if age := time.Since(l.connected); age >= c.refusedFrom {
					if l.refused(wire.ErrForbidden); ended {
						ages, ended, l.connected = append(ages, age.Truncate(time.Minute)/time.Minute), false, time.Now()
					}
				}
			}
			if !slices.Equal(ages, c.want) {
				t.Errorf("refused after %v: connections ended at the age of %d minutes; want %d", c.refusedFrom, ages, c.want)
			}
		})
	}
}

// What ends the connection is about a queue only where RabbitMQ crashed over it.
func TestTheEndOfAConnectionIsNoRefusalOfAQueue(t *testing.T) {
	for _, c := range []struct {
		code    int
		server  bool
		refuses bool
	}{
		{amqp.NotFound, true, true},
		{amqp.AccessRefused, true, true},
		{amqp.ResourceLocked, true, true},
		{amqp.InternalError, true, true},
		{amqp.ConnectionForced, true, false}, // a shutdown of the node, or an administrator
		{amqp.ChannelError, false, false},
		{amqp.FrameError, false, false},
	} {
		err := fmt.Errorf("asking: %w", &amqp.Error{Code: c.code, Server: c.server})
		if refusesQueue(err) != c.refuses {
			t.Errorf("%v: %v", err, !c.refuses)
		}
	}
	if refusesQueue(amqp.ErrClosed) || refusesQueue(errors.New("cut")) {
		t.Error("a connection that ended is taken for a refusal")
	}
}

// Errors of the client, such as 501 with the text EOF, are nothing that RabbitMQ said.
func TestALostConnectionIsNothingThatRabbitMQSays(t *testing.T) {
	for err, want := range map[*amqp.Error]string{
		{Code: amqp.FrameError, Reason: "EOF"}: "the connection was lost: EOF",
		amqp.ErrClosed:                         "the connection was lost: channel/connection is not open",
		{Code: amqp.ConnectionForced, Reason: "CONNECTION_FORCED - broker shut down", Server: true}: "RabbitMQ says 320: CONNECTION_FORCED - broker shut down",
	} {
		if is := explain(err).Error(); is != want {
			t.Errorf("%q, want %q", is, want)
		}
	}
}

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
