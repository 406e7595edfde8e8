package management

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// FetchedMessage is a message as the API shows it, in JSON, which does not keep the AMQP types of
// its headers.
type FetchedMessage struct {
	Payload    string          `json:"payload"`
	Encoding   string          `json:"payload_encoding"`
	Bytes      int             `json:"payload_bytes"`
	Exchange   string          `json:"exchange"`
	RoutingKey string          `json:"routing_key"`
	Properties json.RawMessage `json:"properties"`
}

// Get takes up to n messages from the head of a queue and, with requeue, puts them back.
// truncate bounds what it shows of bodies, in bytes; 0: all. It asks one node alone: a second
// request would get other messages.
func (c *Client) Get(ctx context.Context, queue string, n int, requeue bool, truncate int) (all []FetchedMessage, err error) {
	in := map[string]any{"count": n, "ackmode": "ack_requeue_false", "encoding": "base64"}
	if requeue {
		in["ackmode"] = "ack_requeue_true"
	}
	if truncate > 0 {
		in["truncate"] = truncate
	}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	_, err = c.callNode(ctx, c.base(), http.MethodPost, c.path("queues", queue)+"/get", body, &all)
	return all, err
}

// Message converts as much of it as the API shows.
func (g *FetchedMessage) Message() (*wire.Message, error) {
	var p struct {
		ContentType     string         `json:"content_type"`
		ContentEncoding string         `json:"content_encoding"`
		DeliveryMode    uint8          `json:"delivery_mode"`
		Priority        uint8          `json:"priority"`
		CorrelationID   string         `json:"correlation_id"`
		ReplyTo         string         `json:"reply_to"`
		Expiration      string         `json:"expiration"`
		MessageID       string         `json:"message_id"`
		Timestamp       int64          `json:"timestamp"`
		Type            string         `json:"type"`
		UserID          string         `json:"user_id"`
		AppID           string         `json:"app_id"`
		Headers         map[string]any `json:"headers"`
	}
	if text := string(g.Properties); text != "[]" && text != "" { // RabbitMQ 3 says [] for none
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
	}
	m := &wire.Message{Exchange: g.Exchange, RoutingKey: g.RoutingKey, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
		Priority: p.Priority, CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageID: p.MessageID, Type: p.Type, UserID: p.UserID, AppID: p.AppID}
	if p.Timestamp != 0 {
		m.Timestamp = time.Unix(p.Timestamp, 0)
	}
	if p.Headers != nil {
		m.Headers, _ = amqpValue(p.Headers).(amqp.Table)
	}
	m.Body = []byte(g.Payload)
	if g.Encoding == "base64" {
		body, err := base64.StdEncoding.DecodeString(g.Payload)
		if err != nil {
			return nil, err
		}
		m.Body = body
	}
	return m, nil
}

// amqpValue converts a JSON value to AMQP's types.
func amqpValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		t := amqp.Table{}
		for key, inner := range v {
			t[key] = amqpValue(inner)
		}
		return t
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = amqpValue(v[i])
		}
		return all
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return v
}
