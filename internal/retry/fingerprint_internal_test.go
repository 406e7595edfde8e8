package retry

import (
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Two dead letters that differ in anything but what RabbitMQ changes between two deliveries
// of one have different fingerprints.
func TestAFingerprintIsOfAllThatTellsMessagesApart(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	message := func() *wire.Message {
		return &wire.Message{Headers: amqp.Table{"n": int64(1), "x-delivery-count": int64(1), "x-acquired-count": int64(1),
			"x-death": []any{amqp.Table{"queue": "q", "count": int64(1), "time": now}, amqp.Table{"queue": "p", "count": int64(1), "time": now}}}}
	}
	death := func(m *wire.Message, n int) amqp.Table { return m.Headers["x-death"].([]any)[n].(amqp.Table) }
	var scratch []byte
	of := func(change func(*wire.Message)) [16]byte {
		m := message()
		change(m)
		return fingerprint(m, &scratch)
	}
	seen := map[content]string{contentOf(of(func(*wire.Message) {})): "nothing"}
	differs := func(name string, change func(*wire.Message)) {
		t.Helper()
		c := contentOf(of(change))
		if other, there := seen[c]; there {
			t.Errorf("%s changes no more than %s does", name, other)
		}
		seen[c] = name
	}
	fields := reflect.TypeFor[wire.Message]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if name == "Headers" {
			continue
		}
		differs(name, func(m *wire.Message) {
			switch f := reflect.ValueOf(m).Elem().Field(i).Addr().Interface().(type) {
			case *string:
				*f = "x"
			case *[]byte:
				*f = []byte("x")
			case *uint8:
				*f = 3
			case *time.Time:
				*f = now
			default:
				t.Fatalf("%s is a %T", name, f)
			}
		})
	}
	differs("a header", func(m *wire.Message) { m.Headers["n"] = int64(2) })
	differs("another header", func(m *wire.Message) { m.Headers["o"] = int64(1) })
	differs("the queue", func(m *wire.Message) { death(m, 0)["queue"] = "r" })
	differs("the count", func(m *wire.Message) { death(m, 0)["count"] = int64(2) })
	differs("an earlier death", func(m *wire.Message) { death(m, 1)["time"] = now.Add(time.Second) })
	same := of(func(m *wire.Message) {
		m.Headers["x-delivery-count"], m.Headers["x-acquired-count"] = int64(9), int64(9)
	})
	if same != of(func(*wire.Message) {}) {
		t.Error("what RabbitMQ counts changes the fingerprint")
	}
	if later := of(func(m *wire.Message) { death(m, 0)["time"] = now.Add(time.Second) }); contentOf(later) != contentOf(same) || !timeOf(later).Equal(now.Add(time.Second)) {
		t.Error("the time of the newest death is not beside the content")
	}
}
