package broker

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Every property of a delivery is read, and sent again as it was; persistent, whatever it
// was.
func TestEveryPropertyIsReadAndSentAgain(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	d := amqp.Delivery{Exchange: "e", RoutingKey: "k", Redelivered: true, ContentType: "ct", ContentEncoding: "ce", DeliveryMode: amqp.Transient, Priority: 7,
		CorrelationId: "c", ReplyTo: "r", Expiration: "1000", MessageId: "m", Timestamp: now, Type: "t", UserId: "u", AppId: "a", Body: []byte("b"), Headers: amqp.Table{"h": "v"}}
	m := Received(&d)
	if m.Exchange != "e" || m.RoutingKey != "k" || m.DeliveryMode != amqp.Transient {
		t.Errorf("read as %+v", m)
	}
	p := publishing(&m)
	if p.ContentType != "ct" || p.ContentEncoding != "ce" || p.DeliveryMode != amqp.Persistent || p.Priority != 7 || p.CorrelationId != "c" || p.ReplyTo != "r" || p.Expiration != "1000" ||
		p.MessageId != "m" || !p.Timestamp.Equal(now) || p.Type != "t" || p.UserId != "u" || p.AppId != "a" || string(p.Body) != "b" || p.Headers["h"] != "v" {
		t.Errorf("sent as %+v", p)
	}
}
