package frameworks

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// easyNetQ publishes to EasyNetQ_Default_Error_Queue a message of its own in JSON, which has the
// one that failed as text, or as Base64, and its properties.
//
// Source, in EasyNetQ/EasyNetQ: Source/EasyNetQ/SystemMessages/Error.cs,
// Source/EasyNetQ/Consumer/DefaultConsumeErrorStrategy.cs, Source/EasyNetQ/Conventions.cs,
// Source/EasyNetQ/Serialization/MessagePropertiesConverter.cs,
// Source/EasyNetQ/Serialization/JsonHeaderExtensions.cs,
// Source/EasyNetQ.Serialization.NewtonsoftJson/NewtonsoftJsonSerializer.cs
var easyNetQ = envelope{
	name: "EasyNetQ",
	open: func(queue string, m *wire.Message) (f Fault, inner *wire.Message, ok bool, err error) {
		isOurs := strings.HasPrefix(m.Type, "EasyNetQ.SystemMessages.Error") || queue == "EasyNetQ_Default_Error_Queue"
		if !isOurs || !isObject(m.Body) {
			return f, nil, false, nil
		}
		var e struct {
			RoutingKey, Exchange, Queue, Exception, DateTime loose
			Message                                          *string
			BasicProperties                                  dotnetProperties
		}
		if !fromJSON(m.Body, &e) || e.Exception == "" && e.Queue == "" {
			return f, nil, false, nil
		}
		exception := strings.ReplaceAll(string(e.Exception[:min(len(e.Exception), maxRaw)]), "\r\n", "\n")
		f.Type, f.Error = exceptionIn(exception)
		f.Type, f.Error, f.Stack = printable(f.Type), printable(f.Error), printable(exception)
		f.Exchange, f.RoutingKey, f.Queue = name(string(e.Exchange)), name(string(e.RoutingKey)), name(string(e.Queue))
		f.MessageType, f.MessageID = e.BasicProperties.Type.text(), name(string(e.BasicProperties.MessageID))
		f.Failed = moment(string(e.DateTime), time.RFC3339Nano, "2006-01-02T15:04:05.999999999")
		switch {
		case e.Message == nil:
			return f, nil, true, errors.New("it has no Message")
		case strings.ContainsRune(*e.Message, utf8.RuneError):
			return f, nil, true, errors.New("its Message was not text, and bytes of it were lost when EasyNetQ wrote it")
		}
		r := wire.Message{Exchange: f.Exchange, RoutingKey: f.RoutingKey, Body: unserialized(*e.Message)}
		e.BasicProperties.apply(&r)
		return f, &r, true, nil
	},
}

// unserialized returns the body, which another serializer than the default one writes as Base64.
func unserialized(message string) []byte {
	if b, err := base64.StdEncoding.DecodeString(message); err == nil && !json.Valid([]byte(message)) && json.Valid(b) {
		return b
	}
	return []byte(message)
}

// dotnetProperties are the properties of a message as EasyNetQ names them, in JSON.
type dotnetProperties struct {
	ContentType, ContentEncoding, CorrelationID, ReplyTo, MessageID, Type, AppID loose
	DeliveryMode, Priority, Timestamp                                            loose
	Headers                                                                      map[string]any
}

// apply gives a message the properties that it had before it failed, but for its expiration, and
// for RabbitMQ's own headers.
func (p *dotnetProperties) apply(m *wire.Message) {
	m.ContentType, m.ContentEncoding = name(string(p.ContentType)), name(string(p.ContentEncoding))
	m.CorrelationID, m.ReplyTo, m.MessageID = name(string(p.CorrelationID)), name(string(p.ReplyTo)), name(string(p.MessageID))
	m.Type, m.AppID = name(string(p.Type)), name(string(p.AppID))
	m.DeliveryMode, m.Priority = small(string(p.DeliveryMode)), small(string(p.Priority))
	if s, err := json.Number(p.Timestamp).Int64(); err == nil && s > 0 {
		m.Timestamp = believable(time.Unix(s, 0))
	}
	m.Headers = amqp.Table{}
	for header, v := range p.Headers {
		if header != "$type" && len(header) <= maxName {
			m.Headers[header] = dotnetValue(v, 0)
		}
	}
	m.Headers = headers.Clean(m.Headers)
}

// dotnetValue returns a header as it was. Texts are bytes to a client of .NET, and so Base64 in
// JSON; one serializer of EasyNetQ writes Type and Value, Newtonsoft $type and $value.
func dotnetValue(v any, depth int) any {
	if depth > maxDepth {
		return nil
	}
	switch v := v.(type) {
	case string:
		if b, err := base64.StdEncoding.DecodeString(v); err == nil && utf8.Valid(b) {
			return string(b)
		}
	case map[string]any:
		if typed, ok := typedValue(v, depth); ok {
			return typed
		}
		t := amqp.Table{}
		for header, of := range v {
			if header != "$type" && len(header) <= maxName {
				t[header] = dotnetValue(of, depth+1)
			}
		}
		return t
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = dotnetValue(v[i], depth+1)
		}
		return list
	}
	return valueOf(v, depth)
}

// Types of values that JsonHeaderType.cs numbers, of which JSON does not tell by itself.
const (
	jsonInt32, jsonTimestamp, jsonString, jsonBytes, jsonBinary = 6, 12, 13, 14, 17
)

// typedValue returns a value that is written with its type.
func typedValue(v map[string]any, depth int) (value any, ok bool) {
	if bytes, ok := v["$value"]; ok && len(v) == 2 { // Newtonsoft: of a byte array, or of a list
		if list, ok := v["$values"].([]any); ok {
			return dotnetValue(list, depth+1), true
		}
		return dotnetValue(bytes, depth+1), true
	}
	number, isNumber := v["Type"].(json.Number)
	of, has := v["Value"]
	if !isNumber || !has || len(v) != 2 {
		return nil, false
	}
	kind, _ := number.Int64()
	text, _ := of.(string)
	number, _ = of.(json.Number)
	n, _ := number.Int64()
	switch kind {
	case jsonInt32:
		return int32(n), true
	case jsonTimestamp:
		return believable(time.Unix(n, 0)), true
	case jsonString:
		return text, true
	case jsonBytes, jsonBinary:
		b, err := base64.StdEncoding.DecodeString(text)
		switch {
		case err != nil:
			return text, true
		case kind == jsonBinary || !utf8.Valid(b):
			return b, true
		}
		return string(b), true
	}
	return dotnetValue(of, depth+1), true // its members have types of their own
}
