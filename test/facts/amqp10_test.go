package facts_test

import (
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// A consumer by AMQP 1.0 can thus say why it rejects a message. Integers of any type arrive as int64; what has
// no place in a header is not in it. RabbitMQ 3 has AMQP 1.0 as a plugin only, which the tests do not enable.
func TestAnnotationsOfAModifiedMessageAreHeadersOfItsDeadLetterFromQuorumQueues(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 0) {
			return
		}
		ctx := t.Context()
		const big = 1 << 63
		given := amqp10.Annotations{
			"x-string": "no stock: Übergröße", "x-symbol": amqp10.Symbol("symbol"),
			"x-binary": []byte("binary"), "x-bool": true,
			"x-byte": int8(-5), "x-int": int32(-5), "x-long": int64(-5),
			"x-ubyte": uint8(5), "x-uint": uint32(5), "x-ulong": uint64(5),
			"x-big": uint64(big), "x-timestamp": time.UnixMilli(1_000_005), "x-redrive-error": "new",
		}
		double := amqp10.Annotations{
			"x-double": 1.5, "x-float": float32(1.5), "x-null": nil, "x-list": []any{"a"},
			"x-map": map[string]any{"a": "b"},
		}
		for k, a := range given {
			double[k] = a
		}
		want := amqp.Table{
			"x-string": "no stock: Übergröße", "x-symbol": "symbol", "x-binary": "binary", "x-bool": true,
			"x-byte": int64(-5), "x-int": int64(-5), "x-long": int64(-5),
			"x-ubyte": int64(5), "x-uint": int64(5), "x-ulong": int64(5),
			"x-big": int64(-big), "x-timestamp": int64(1_000_005), "x-redrive-error": "new",
		}
		for _, kind := range bothTypes {
			dead := kind + ".dead"
			v.Queue(dead, amqp.Table{"x-queue-type": "quorum"})
			v.Queue(kind, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "",
				"x-dead-letter-routing-key": dead})
			r, in := v.receiver10(kind), v.Consume(dead)
			rejected := func() amqp.Table {
				d := in.Next()
				must(t, d.Ack(false))
				return d.Headers
			}
			publish := func() {
				h := amqp.Table{"x-redrive-error": "old", "tenant": "acme"}
				v.Publish("", kind, amqp.Publishing{Body: []byte("m"), Headers: h})
			}
			next := func() *amqp10.Message {
				m, err := r.Receive(ctx, nil)
				must(t, err)
				return m
			}
			deadLetter := func(how string) {
				t.Helper()
				h, wanted := rejected(), want
				if kind == "classic" {
					wanted = amqp.Table{"x-redrive-error": "old"}
				}
				for key := range double {
					name := key.(string)
					expect.Equal(t, h[name], wanted[name], "%s queue, %s: "+name, kind, how)
				}
				expect.Equal(t, h["tenant"], any("acme"), "its own header")
				expect.Equal(t, h["x-first-death-reason"], any("rejected"), "its reason")
			}
			publish()
			final := &amqp10.ModifyMessageOptions{UndeliverableHere: true, Annotations: double}
			must(t, r.ModifyMessage(ctx, next(), final))
			deadLetter("undeliverable here")
			// Otherwise it is in its queue again, with them, and they are still there when it is rejected.
			publish()
			must(t, r.ModifyMessage(ctx, next(), &amqp10.ModifyMessageOptions{DeliveryFailed: true, Annotations: given}))
			m := next()
			if says := m.Annotations["x-string"]; (says != nil) != (kind == "quorum") {
				t.Errorf("%s queue: delivered again with %v", kind, m.Annotations)
			}
			must(t, r.RejectMessage(ctx, m, nil))
			deadLetter("rejected after that")
			// The rejected outcome's own error is nowhere.
			publish()
			must(t, r.RejectMessage(ctx, next(), &amqp10.Error{Condition: "shop:no-stock", Description: "out of it"}))
			for name, is := range rejected() {
				if s, _ := is.(string); strings.Contains(s, "out of it") || strings.Contains(s, "shop:") {
					t.Errorf("%s queue: the error is in %s", kind, name)
				}
			}
		}
	})
}

// A key that does not begin with x- ends the session of the consumer; so does a number with a fraction, when the
// message is delivered again.
func TestAnnotationsThatEndASession(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 0) {
			return
		}
		for i, a := range []amqp10.Annotations{{"error": "no stock"}, {"x-double": 1.5}} {
			queue := "work." + []string{"key", "double"}[i]
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
			v.Publish("", queue, amqp.Publishing{})
			r := v.receiver10(queue)
			m, err := r.Receive(t.Context(), nil)
			must(t, err)
			_ = r.ModifyMessage(t.Context(), m, &amqp10.ModifyMessageOptions{DeliveryFailed: true, Annotations: a})
			_, err = r.Receive(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), "amqp:internal-error") {
				t.Errorf("with %v it goes on: %v", a, err)
			}
		}
	})
}

// receiver10 receives from a queue over AMQP 1.0.
func (v *vhost) receiver10(queue string) *amqp10.Receiver {
	v.t.Helper()
	r := v.broker.(rabbit)
	conn, err := amqp10.Dial(v.t.Context(), r.URL(), &amqp10.ConnOptions{HostName: "vhost:" + r.Name})
	must(v.t, err)
	v.t.Cleanup(func() { _ = conn.Close() })
	session, err := conn.NewSession(v.t.Context(), nil)
	must(v.t, err)
	receiver, err := session.NewReceiver(v.t.Context(), "/queues/"+queue, nil)
	must(v.t, err)
	return receiver
}
