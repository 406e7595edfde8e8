package frameworks

import (
	"encoding/json"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// rubyProperties are the properties of a message as Bunny names them, in JSON.
type rubyProperties struct {
	ContentType     loose          `json:"content_type"`
	ContentEncoding loose          `json:"content_encoding"`
	DeliveryMode    loose          `json:"delivery_mode"`
	Priority        loose          `json:"priority"`
	CorrelationID   loose          `json:"correlation_id"`
	ReplyTo         loose          `json:"reply_to"`
	MessageID       loose          `json:"message_id"`
	Timestamp       loose          `json:"timestamp"`
	Type            loose          `json:"type"`
	AppID           loose          `json:"app_id"`
	Headers         map[string]any `json:"headers"`
}

// apply gives a message the properties that it had before it failed, but for its expiration, and
// for RabbitMQ's own headers.
func (p *rubyProperties) apply(m *wire.Message) {
	m.ContentType, m.ContentEncoding = name(string(p.ContentType)), name(string(p.ContentEncoding))
	m.CorrelationID, m.ReplyTo, m.MessageID = name(string(p.CorrelationID)), name(string(p.ReplyTo)), name(string(p.MessageID))
	m.Type, m.AppID = name(string(p.Type)), name(string(p.AppID))
	m.DeliveryMode, m.Priority = small(string(p.DeliveryMode)), small(string(p.Priority))
	m.Timestamp = moment(string(p.Timestamp), "2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700", time.RFC3339)
	m.Expiration, m.UserID = "", ""
	m.Headers = headers.Clean(tableOf(p.Headers, 0))
}

// small returns a property of one byte, or 0.
func small(s string) uint8 {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0
	}
	return uint8(n)
}

// maxDepth is how deep headers are nested at most; what is deeper is left out.
const maxDepth = 16

// tableOf returns an object of JSON as headers.
func tableOf(object map[string]any, depth int) amqp.Table {
	t := make(amqp.Table, len(object))
	for header, v := range object {
		if len(header) <= maxName {
			t[header] = valueOf(v, depth+1)
		}
	}
	return t
}

func valueOf(v any, depth int) any {
	if depth > maxDepth {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		return tableOf(v, depth)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = valueOf(v[i], depth+1)
		}
		return list
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return v
}
