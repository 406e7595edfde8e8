package inspect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// properties are those that are set.
func properties(m *wire.Message) []Property {
	all := []Property{}
	add := func(name, value string) {
		if value != "" {
			all = append(all, Property{name, value})
		}
	}
	add("content_type", m.ContentType)
	add("content_encoding", m.ContentEncoding)
	switch m.DeliveryMode {
	case 0:
	case 1:
		add("delivery_mode", "1 (transient)")
	case 2:
		add("delivery_mode", "2 (persistent)")
	default:
		add("delivery_mode", strconv.Itoa(int(m.DeliveryMode)))
	}
	if m.Priority > 0 {
		add("priority", strconv.Itoa(int(m.Priority)))
	}
	add("correlation_id", m.CorrelationID)
	add("reply_to", m.ReplyTo)
	add("expiration", m.Expiration)
	add("message_id", m.MessageID)
	if !m.Timestamp.IsZero() {
		add("timestamp", m.Timestamp.UTC().Format(time.RFC3339))
	}
	add("type", m.Type)
	add("user_id", m.UserID)
	add("app_id", m.AppID)
	return all
}

// headersOf are the headers, sorted, each with who has set it.
func headersOf(r *store.Record) []Header {
	all := []Header{}
	for _, name := range slices.Sorted(maps.Keys(r.Message.Headers)) {
		v := r.Message.Headers[name]
		all = append(all, Header{Name: name, Type: TypeName(v), Value: readable(v), From: setBy(name, r)})
	}
	return all
}

// setBy is who sets a header of that name; a publisher can send one of ours too. What the broker writes can be believed only where the broker
// itself dead-lettered the message; x-first-death-… and x-last-death-… not even then, since
// RabbitMQ 3 leaves a publisher's as they are.
func setBy(name string, r *store.Record) string {
	switch {
	case strings.HasPrefix(name, "x-redrive-"):
		return "redrive"
	case r.Proven && (name == "x-death" || name == "x-delivery-count" || name == "x-acquired-count"):
		return "broker"
	}
	return "publisher"
}

// readable is a header's value as text: tables and arrays as JSON.
func readable(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case amqp.Table, []any:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(asJSON(v)); err != nil {
			return err.Error()
		}
		return strings.TrimSuffix(b.String(), "\n")
	case []byte:
		if !utf8.Valid(v) {
			return base64.StdEncoding.EncodeToString(v)
		}
	}
	text, _ := query.Text(v)
	return text
}

func asJSON(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = asJSON(e)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, e := range v {
			l[i] = asJSON(e)
		}
		return l
	case bool, nil, int8, uint8, int16, uint16, int32, uint32, int64:
		return v
	}
	return readable(v)
}

// TypeName is the name of a header's AMQP type.
func TypeName(v any) string {
	switch v.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case amqp.Decimal:
		return "decimal"
	case time.Time:
		return "timestamp"
	case amqp.Table:
		return "table"
	case []any:
		return "array"
	}
	return fmt.Sprintf("%T", v) // string, bool, int8 … float64
}
