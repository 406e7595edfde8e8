package stories_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

const soon = `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none}]`

// A user with rights on one queue alone cannot make the service deliver into
// another, whatever its messages carry.
func TestNothingInAMessageChoosesAQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		user := "mallory-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^mine$", "^(mine|amq\\.default)$", "^mine$")
		deadLettered(v, "mine", "classic")
		deadLettered(v, "secret", "classic") // enrolled, and reachable through its retry exchange
		publish(t, v.Channel(), "", "secret", amqp.Publishing{Body: []byte("theirs")})
		secret := consume(t, v, "secret")
		reject(t, secret.next())
		if d := secret.next(); string(d.Body) != "theirs" {
			t.Fatalf("%q came", d.Body)
		}

		mine := consume(t, v, "mine")
		mallory, err := v.DialURL(v.URLAs(user, "pw")).Channel()
		if err != nil {
			t.Fatal(err)
		}
		death := amqp.Table{"queue": "secret", "reason": "rejected", "exchange": "redrive.retry.secret", "count": int64(1),
			"routing-keys": []any{"secret"}, "time": time.Unix(1_700_000_000, 0)}
		for i, forged := range []amqp.Table{
			{"x-death": []any{death}},
			{"x-first-death-queue": "secret", "x-first-death-reason": "rejected", "x-first-death-exchange": ""},
			{"x-last-death-queue": "secret", "x-last-death-reason": "rejected", "x-last-death-exchange": ""},
			{wire.HeaderQueue: "secret", wire.HeaderExchange: "redrive.retry.secret", wire.HeaderRoutingKey: "secret",
				wire.HeaderID: "11111111-1111-1111-1111-111111111111", wire.HeaderReason: "rejected"},
			{"x-delay": int32(5), wire.HeaderDelay: int64(99999999), "x-delivery-count": int64(77)},
		} {
			body := fmt.Sprint("forged ", i)
			publish(t, mallory, "", "mine", amqp.Publishing{Headers: forged, Body: []byte(body)})
			d := mine.next()
			reject(t, d)
			back := mine.next()
			if string(back.Body) != body || back.Exchange != wire.RetryExchange("mine") {
				t.Errorf("%s: %q came back through %q", body, back.Body, back.Exchange)
			}
			for _, h := range []string{"CC", "BCC", "x-death", "x-first-death-queue", "x-last-death-queue", "x-delay"} {
				if val, ok := back.Headers[h]; ok {
					t.Errorf("%s: it came back with %s: %v", body, h, val)
				}
			}
			if back.Headers[wire.HeaderQueue] != "mine" {
				t.Errorf("%s: headers %v", body, back.Headers)
			}
			if err := back.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		// Straight into the intake, past the exchange that proves a dead letter.
		publish(t, v.Channel(), "", wire.QueueIntake, amqp.Publishing{Headers: amqp.Table{"x-death": []any{death}}, Body: []byte("direct")})
		p := s.WaitParked(t, 1)[0]
		if !strings.Contains(p.ParkedFor, "not dead-lettered or reported") || p.Queue != "" {
			t.Errorf("parked as %+v", p)
		}
		secret.none(300 * time.Millisecond)
	})
}

// A message that is copied by CC when first published is never copied again by a
// return.
func TestARetryIsNotCopiedByItsCC(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		v.Queue("copy", nil)
		work, other := consume(t, v, "work"), consume(t, v, "copy")
		publish(t, v.Channel(), "", "work", amqp.Publishing{Headers: amqp.Table{"CC": []any{"copy"}}, Body: []byte("x")})
		if err := other.next().Ack(false); err != nil {
			t.Fatal(err)
		}
		reject(t, work.next())
		work.next()
		other.none(300 * time.Millisecond)
	})
}

// unsignedConn sends a header of type l as type L, which amqp091-go cannot.
type unsignedConn struct{ net.Conn }

func (c unsignedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(bytes.ReplaceAll(b, []byte("\x08unsignedl"), []byte("\x08unsignedL")))
	return min(n, len(b)), err
}

// No message stops the intake: each kind of poison is retried or parked, and
// what comes after it comes back. Poison is dead-lettered by expiry, since no
// consumer of these tests could read all of it.
func TestPoisonMessagesAreParkedAndBlockNothing(t *testing.T) {
	deep := func(levels int) amqp.Table {
		d := amqp.Table{}
		for range levels {
			d = amqp.Table{"d": d}
		}
		return d
	}
	many := amqp.Table{}
	for i := range 9000 {
		many[fmt.Sprintf("h%04d", i)] = nil
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	poisons := []struct {
		name   string
		p      amqp.Publishing
		parked string // "": it comes back
	}{
		{"unsigned 64 bit header", amqp.Publishing{Headers: amqp.Table{"unsigned": int64(5)}}, ""},
		{"deep table", amqp.Publishing{Headers: deep(1000)}, `header "d" is nested more than 32 deep`},
		{"table as deep as the client reads", amqp.Publishing{Headers: deep(31)}, ""},
		{"long list", amqp.Publishing{Headers: amqp.Table{"list": make([]any, 9000)}}, "more than 8192 entries"},
		{"9000 headers", amqp.Publishing{Headers: many}, "headers, more than the 8192"},
		{"odd attempt", amqp.Publishing{Headers: amqp.Table{wire.HeaderAttempt: "many", wire.HeaderID: "x"}}, ""},
		{"attempt too large", amqp.Publishing{Headers: amqp.Table{wire.HeaderAttempt: int64(wire.MaxAttempt + 1)}}, ""},
		{"attempt at its limit", amqp.Publishing{Headers: amqp.Table{wire.HeaderAttempt: int64(wire.MaxAttempt)}}, "allows 3 attempts"},
		{"empty body", amqp.Publishing{}, ""},
		{"16 MiB body", amqp.Publishing{Body: big}, ""},
		{"headers that fill a frame", amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", 130_900)}}, "one frame holds"},
	}
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none, reasons: [expired], no_consumer: retry}]`).ready(t)
		deadLettered(v, "work", "quorum")
		conn, err := amqp.DialConfig(v.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
			c, err := net.Dial(network, addr)
			return unsignedConn{c}, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		back := func(name string) amqp.Delivery {
			if e := s.wait(t, retry.Retried, retry.Parked); e.Kind == retry.Parked {
				t.Errorf("%s is parked: %s", name, e.Why)
				return amqp.Delivery{}
			}
			d, ok, err := ch.Get("work", true)
			if err != nil || !ok {
				t.Fatalf("%s: got %v, %v", name, ok, err)
			}
			return d
		}
		for _, poison := range poisons {
			poison.p.Expiration = "0"
			publish(t, ch, "", "work", poison.p)
			if poison.parked == "" {
				d := back(poison.name)
				if sha256.Sum256(d.Body) != sha256.Sum256(poison.p.Body) || d.Headers[wire.HeaderAttempt] != int64(1) {
					t.Errorf("%s came back with %d bytes and attempt %v", poison.name, len(d.Body), d.Headers[wire.HeaderAttempt])
				}
			} else {
				if e := s.wait(t, retry.Retried, retry.Parked); !strings.Contains(e.Why, poison.parked) || e.Queue != "work" {
					t.Errorf("%s: %+v; want it parked because %q", poison.name, e, poison.parked)
				}
			}
			publish(t, ch, "", "work", amqp.Publishing{Body: []byte("after"), Expiration: "0"})
			if d := back("after " + poison.name); string(d.Body) != "after" {
				t.Errorf("after %s: %.20q", poison.name, d.Body)
			}
		}
	})
}
