package delaytest

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// everyHeader has each header type that AMQP 0-9-1 has and amqp091-go can send.
func everyHeader() amqp.Table {
	return amqp.Table{
		"nil": nil, "yes": true, "no": false, "int8": int8(-1), "uint8": uint8(255), "int16": int16(-300), "uint16": uint16(65535),
		"int32": int32(math.MinInt32), "uint32": uint32(math.MaxUint32), "int64": int64(math.MinInt64),
		"float32": float32(1.5), "float64": -2.5e300, "decimal": amqp.Decimal{Scale: 2, Value: 1234},
		"string": "héllo\x00\xff", "empty": "", "bytes": []byte{0, 255}, "time": time.Unix(1_700_000_000, 0),
		"table": amqp.Table{"deep": amqp.Table{"list": []any{int32(1), "two", nil, []any(nil), amqp.Table{}}}},
	}
}

// A message is retried as it was published, also the second time. What a publisher forged
// moves it nowhere else.
func TestAMessageComesBackWithItsProperties(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return // the message never leaves its queue
		}
		c := b.work("orders")
		b.v.Queue("copies", amqp.Table{"x-queue-type": "classic"})
		b.v.Exchange("shop", amqp.ExchangeFanout, "orders")
		sent := amqp.Publishing{
			Headers: everyHeader(), ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 3,
			CorrelationId: "corr", ReplyTo: "reply", MessageId: "m1", Timestamp: time.Unix(1_700_000_000, 0), Type: "created",
			UserId: "guest", AppId: "shop", Expiration: "600000", Body: []byte("\x00\xff{}"),
		}
		b.v.Publish("shop", "order.eu", sent)
		d := c.Next()
		d.Headers["CC"] = []any{"copies"}
		d.Headers["BCC"] = []any{"copies"}
		d.Headers["x-delay"] = int32(3_600_000)
		d.Headers["x-death"] = []any{amqp.Table{"queue": "orders", "reason": "expired", "count": "many"}}
		for range 2 {
			h := b.fail(d, "orders", b.delays[0])
			d = b.back(c, string(sent.Body), h)
			history, _ := headers.Read(d.Headers, time.Now())
			if history.Exchange != "shop" || history.RoutingKey != "order.eu" || history.UserID != "guest" || history.Failures != 1 || history.Queue != "orders" {
				t.Errorf("its history is %+v", history)
			}
			if rekeyed := d.RoutingKey == "orders"; rekeyed != b.way.Limits().ChangesRoutingKey {
				t.Errorf("it came back with the routing key %q; its limits say that it has another: %v", d.RoutingKey, b.way.Limits().ChangesRoutingKey)
			}
			if diff := cmp.Diff(sent.Headers, headers.Clean(d.Headers)); diff != "" {
				t.Errorf("headers (-sent +returned):\n%s", diff)
			}
			got := amqp.Publishing{Headers: sent.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
				Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
				Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body}
			want := sent
			want.UserId, want.Expiration = "", "" // kept in our header; the broker takes it off, and it would count again
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("properties (-sent +returned):\n%s", diff)
			}
			// As the library reads it for the next time.
			d.Exchange, d.RoutingKey, d.UserId = history.Exchange, history.RoutingKey, history.UserID
		}
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"copies", wire.QueueParked} {
			if n := b.v.Depth(q); n != 0 {
				t.Errorf("%d messages are in %s", n, q)
			}
		}
	})
}
