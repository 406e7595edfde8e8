package retry

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// easyNetQError is the JSON document that EasyNetQ publishes for a failed message, with its body, properties and
// headers. Sources, at version 8: Consumer/DefaultConsumeErrorStrategy.cs, SystemMessages/Error.cs,
// Serialization/MessagePropertiesConverter.cs and JsonHeaderExtensions.cs.
type easyNetQError struct {
	RoutingKey, Exchange, Queue, Exception, DateTime string

	Message         *string
	BasicProperties struct {
		ContentType, ContentEncoding, CorrelationID, ReplyTo, MessageID, Type, AppID string

		DeliveryMode, Priority uint8
		Timestamp              int64 // Unix
		Headers                json.RawMessage
		// UserId is left out: RabbitMQ validated it, but the document may hold another. So is Expiration: the message
		// would expire again.
	}
}

const (
	maxEnvelope        = 16 << 20 // bytes; RabbitMQ 4 takes no larger messages by default
	maxEnvelopeHeaders = 1 << 20  // bytes of JSON; more do not fit into a frame
	maxHeaderValues    = 8192     // and maxHeaderDepth: what the AMQP client can send
	maxHeaderDepth     = 32
)

// unwrapEasyNetQ returns the message in an envelope, and what the envelope says of the failure.
func unwrapEasyNetQ(came *wire.Message) (u *unwrapped, err error) {
	var e easyNetQError
	switch {
	case len(came.Body) > maxEnvelope:
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(came.Body), maxEnvelope)
	case !utf8.Valid(came.Body):
		return nil, errors.New("it is not text")
	}
	if err := json.Unmarshal(came.Body, &e); err != nil {
		return nil, err
	}
	if e.Message == nil {
		return nil, errors.New("it has no message")
	}
	p := &e.BasicProperties
	texts := []string{p.ContentType, p.ContentEncoding, p.CorrelationID, p.ReplyTo, p.MessageID, p.Type, p.AppID}
	for _, text := range texts {
		if len(text) > 255 {
			return nil, fmt.Errorf("one of its properties has %d bytes, and AMQP takes 255", len(text))
		}
	}
	u = &unwrapped{message: wire.Message{Exchange: came.Exchange, RoutingKey: came.RoutingKey,
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
		Priority: p.Priority, CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo, MessageID: p.MessageID,
		Type: p.Type, AppID: p.AppID}}
	m := &u.message
	if p.Timestamp > 0 {
		m.Timestamp = time.Unix(p.Timestamp, 0)
	}
	if m.Headers, err = easyNetQHeaders(p.Headers); err != nil {
		return nil, fmt.Errorf("its headers: %w", err)
	}
	m.Body, u.note = easyNetQBody(*e.Message)
	u.says = amqp.Table{"RoutingKey": e.RoutingKey, "Exchange": e.Exchange, "Queue": e.Queue, "Exception": e.Exception,
		"DateTime": e.DateTime}
	return u, nil
}

// easyNetQBody returns the bytes of a body. EasyNetQ writes them as UTF-8 (DefaultErrorMessageSerializer.cs) or as
// base64 (Base64ErrorMessageSerializer.cs), and the envelope does not say which.
func easyNetQBody(text string) (body []byte, note string) {
	if strings.ContainsRune(text, utf8.RuneError) {
		note = "its body was not all text, which EasyNetQ's envelope loses unless it is written as base64"
	}
	body, err := base64.StdEncoding.Strict().DecodeString(text)
	if text == "" || err != nil || json.Valid([]byte(text)) {
		return []byte(text), note
	}
	if !json.Valid(body) {
		note = "EasyNetQ's envelope has its body as base64, or else as a text that looks like base64: it was decoded"
	}
	return body, note
}

// easyNetQHeaders reads headers. Version 8 writes {"Type": 13, "Value": "a"}; JsonHeaderType.cs has the types. Earlier
// versions (Newtonsoft.Json) write numbers and strings as they are, and the type of other values: {"$type":
// "System.Byte[], mscorlib", "$value": "YQ=="}.
func easyNetQHeaders(raw json.RawMessage) (amqp.Table, error) {
	if len(raw) > maxEnvelopeHeaders {
		return nil, fmt.Errorf("they have %d bytes, more than %d", len(raw), maxEnvelopeHeaders)
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		return nil, err
	}
	values := maxHeaderValues
	return easyNetQTable(all, 0, &values)
}

func easyNetQTable(all map[string]any, depth int, left *int) (amqp.Table, error) {
	t := make(amqp.Table, len(all))
	for name, v := range all {
		if name == "$type" {
			continue
		}
		if len(name) > 255 {
			return nil, fmt.Errorf("a name has %d bytes, and AMQP takes 255", len(name))
		}
		is, err := easyNetQValue(v, depth+1, left)
		if err != nil {
			return nil, fmt.Errorf("%.100q: %w", name, err)
		}
		t[name] = is
	}
	return t, nil
}

// easyNetQValue converts a header's value to a type of the AMQP client. left is how many more values may follow.
func easyNetQValue(v any, depth int, left *int) (any, error) {
	if *left--; *left < 0 || depth > maxHeaderDepth {
		return nil, fmt.Errorf("they are nested more than %d deep or are more than %d", maxHeaderDepth, maxHeaderValues)
	}
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		return v.Float64()
	case []any:
		list := make([]any, 0, len(v))
		for _, one := range v {
			is, err := easyNetQValue(one, depth+1, left)
			if err != nil {
				return nil, err
			}
			list = append(list, is)
		}
		return list, nil
	case map[string]any:
		if kind, value, ok := typed(v); ok {
			return easyNetQTyped(kind, value, depth, left)
		}
		if name, is := v["$type"].(string); is {
			if value, is := v["$value"].(string); is && strings.HasPrefix(name, "System.Byte[]") {
				return fromBase64(value)
			}
			if list, is := v["$values"].([]any); is {
				return easyNetQValue(list, depth, left)
			}
		}
		return easyNetQTable(v, depth, left)
	}
	return v, nil // nil, bool or string
}

// typed returns the two members of {"Type": …, "Value": …}, whose names may be in lower case.
func typed(v map[string]any) (kind json.Number, value any, ok bool) {
	for _, names := range [][2]string{{"Type", "Value"}, {"type", "value"}} {
		kind, isNumber := v[names[0]].(json.Number)
		if value, there := v[names[1]]; isNumber && there && len(v) == 2 {
			return kind, value, true
		}
	}
	return "", nil, false
}

// easyNetQTyped reads a value of one of the types of JsonHeaderType.cs.
func easyNetQTyped(kind json.Number, v any, depth int, left *int) (any, error) {
	number, _ := v.(json.Number)
	text, isText := v.(string)
	integer := func(bits int) (int64, error) { return strconv.ParseInt(string(number), 10, bits) }
	natural := func(bits int) (uint64, error) { return strconv.ParseUint(string(number), 10, bits) }
	switch kind {
	case "1":
		return nil, nil
	case "2":
		if b, is := v.(bool); is {
			return b, nil
		}
	case "3":
		n, err := natural(8)
		return uint8(n), err
	case "4":
		n, err := integer(8)
		return int8(n), err
	case "5":
		n, err := integer(16)
		return int16(n), err
	case "6":
		n, err := integer(32)
		return int32(n), err
	case "7":
		n, err := natural(32)
		return uint32(n), err
	case "8":
		return integer(64)
	case "9":
		f, err := strconv.ParseFloat(string(number), 32)
		return float32(f), err
	case "10":
		return strconv.ParseFloat(string(number), 64)
	case "11":
		whole, part, _ := strings.Cut(string(number), ".")
		n, err := strconv.ParseInt(whole+part, 10, 32)
		if len(part) > math.MaxUint8 {
			break
		}
		return amqp.Decimal{Scale: uint8(len(part)), Value: int32(n)}, err
	case "12":
		n, err := integer(64)
		return time.Unix(n, 0), err
	case "13":
		if isText {
			return text, nil
		}
	case "14": // .NET's client reads a text of AMQP as bytes
		if isText {
			return fromBase64(text)
		}
	case "15":
		if list, is := v.([]any); is {
			return easyNetQValue(list, depth, left)
		}
	case "16":
		if table, is := v.(map[string]any); is {
			return easyNetQTable(table, depth, left)
		}
	case "17":
		if isText {
			return base64.StdEncoding.DecodeString(text)
		}
	}
	return nil, fmt.Errorf("%.40v is no value of type %.40s", v, kind)
}

func fromBase64(text string) (any, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	return string(b), err
}
