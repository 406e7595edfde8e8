package stories_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

const threeAttempts = `policies: [{name: p, queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none}]`

// everyHeader has each header type that AMQP 0-9-1 has and amqp091-go can send.
func everyHeader() amqp.Table {
	return amqp.Table{
		"nil": nil, "yes": true, "no": false, "int8": int8(-1), "uint8": uint8(255), "int16": int16(-300), "uint16": uint16(65535),
		"int32": int32(math.MinInt32), "uint32": uint32(math.MaxUint32), "int64": int64(math.MinInt64),
		"float32": float32(1.5), "float64": -2.5e300, "decimal": amqp.Decimal{Scale: 2, Value: 1234},
		"string": "héllo\x00\xff", "empty": "", "bytes": []byte{0, 255}, "nobytes": []byte{}, "time": time.Unix(1_700_000_000, 0),
		"table": amqp.Table{"deep": amqp.Table{"list": []any{int32(1), "two", nil, []any(nil), amqp.Table{}}}},
		"list":  []any(nil), // as the client reads an empty one
	}
}

// A message comes back with a growing delay, as it was, and is parked after the
// last attempt; a person replays it from there.
func TestAFailedMessageIsRetriedAndParkedAtTheEnd(t *testing.T) {
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				deadLettered(v, "orders", kind)
				ch := v.Channel()
				if err := ch.ExchangeDeclare("shop", "topic", true, false, false, false, nil); err != nil {
					t.Fatal(err)
				}
				if err := ch.QueueBind("orders", "order.#", "shop", false, nil); err != nil {
					t.Fatal(err)
				}
				s := start(t, v, threeAttempts).ready(t)
				c := consume(t, v, "orders")
				sent := amqp.Publishing{
					Headers: everyHeader(), ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 3,
					CorrelationId: "corr", ReplyTo: "reply", MessageId: "m1", Timestamp: time.Unix(1_700_000_000, 0), Type: "created",
					UserId: "guest", AppId: "shop", Body: []byte("\x00\xff{}"),
				}
				before := time.Now()
				publish(t, ch, "shop", "order.eu", sent)
				first := c.next()
				failed := reject(t, first)

				var id string
				for attempt, wait := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond} {
					d := c.next()
					if early := failed.Add(wait); time.Now().Before(early) {
						t.Errorf("attempt %d came %s early", attempt+2, time.Until(early))
					}
					if d.RoutingKey != "order.eu" || d.Exchange != wire.RetryExchange("orders") {
						t.Errorf("retried through %q with routing key %q", d.Exchange, d.RoutingKey)
					}
					h := d.Headers
					ours := amqp.Table{}
					for k, val := range h {
						if strings.HasPrefix(k, "x-redrive-") {
							ours[k] = val
							delete(h, k)
						}
					}
					delete(h, "x-delivery-count") // the broker's own, on quorum queues
					if d := cmp.Diff(everyHeader(), h); d != "" {
						t.Errorf("headers (-published +retried):\n%s", d)
					}
					if string(d.Body) != string(sent.Body) || d.ContentType != sent.ContentType || d.ContentEncoding != sent.ContentEncoding ||
						d.DeliveryMode != 2 || d.Priority != 3 || d.CorrelationId != "corr" || d.ReplyTo != "reply" || d.MessageId != "m1" ||
						!d.Timestamp.Equal(sent.Timestamp) || d.Type != "created" || d.UserId != "" || d.AppId != "shop" || d.Expiration != "" {
						t.Errorf("properties changed: %+v", d)
					}
					firstFailed, _ := ours[wire.HeaderFirstFailed].(time.Time)
					if firstFailed.Before(before.Truncate(time.Second)) || firstFailed.After(time.Now()) {
						t.Errorf("first failed: %v", firstFailed)
					}
					if id == "" {
						id, _ = ours[wire.HeaderID].(string)
					}
					if _, err := uuid.Parse(id); err != nil {
						t.Errorf("id: %v", err)
					}
					want := amqp.Table{
						wire.HeaderID: id, wire.HeaderAttempt: int64(attempt + 1), wire.HeaderQueue: "orders",
						wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "order.eu", wire.HeaderFirstFailed: firstFailed,
						wire.HeaderReason: "rejected", wire.HeaderUserID: "guest",
					}
					if d := cmp.Diff(want, ours); d != "" {
						t.Errorf("our headers (-want +got):\n%s", d)
					}
					failed = reject(t, d)
				}
				p := s.WaitParked(t, 1)[0]
				if p.ID != id || p.Attempt != 3 || p.Queue != "orders" || p.Exchange != "shop" || p.RoutingKey != "order.eu" || p.Size != 4 {
					t.Errorf("parked as %+v", p)
				}
				c.none(300 * time.Millisecond)

				if n := s.Replay(t, "id:"+id); n != 1 {
					t.Fatalf("replayed %d", n)
				}
				d := c.next()
				if d.Headers[wire.HeaderID] != id || d.Headers[wire.HeaderAttempt] != int64(0) {
					t.Errorf("replayed with headers %v", d.Headers)
				}
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
				if s.Parked(t); len(s.Parked(t)) != 0 {
					t.Error("it is parked still")
				}
			})
		})
	}
}
