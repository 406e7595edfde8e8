package frameworks

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// massTransit moves a message to <queue>_error, or one that no consumer takes to <queue>_skipped,
// and changes nothing but its headers.
//
// Source, in MassTransit/MassTransit: src/MassTransit.Abstractions/MessageHeaders.cs,
// src/MassTransit.Abstractions/Contexts/SendContextExtensions.cs,
// src/Transports/MassTransit.RabbitMqTransport/RabbitMqTransport/RabbitMqMoveTransport.cs
var massTransit = preset{
	name:     "MassTransit",
	markers:  []string{"MT-Reason", "MT-Fault-Message"},
	suffixes: []string{"_error", "_skipped"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.Error, f.Type, f.Stack = text(h, "MT-Fault-Message"), text(h, "MT-Fault-ExceptionType"), text(h, "MT-Fault-StackTrace")
		f.Queue = lastSegment(raw(h, "MT-Fault-InputAddress"))
		f.MessageType = text(h, "MT-Fault-MessageType")
		f.Failed = moment(raw(h, "MT-Fault-Timestamp"), time.RFC3339Nano)
		if reason := text(h, "MT-Reason"); f.Error == "" && f.Type == "" && reason != "fault" {
			f.Error = reason
		}
		retries, retried := number(h, "MT-Fault-RetryCount")
		redeliveries, redelivered := number(h, "MT-Redelivery-Count")
		if retried || redelivered {
			f.Attempts = attempts(retries, redeliveries)
		}
	},
	// MT-Fault-Address is none of them: it says where the sender wants to hear of faults.
	removed: []string{"MT-Reason", "MT-Redelivery-Count", "MT-Fault-ExceptionType", "MT-Fault-InputAddress", "MT-Fault-Message",
		"MT-Fault-MessageType", "MT-Fault-ConsumerType", "MT-Fault-Timestamp", "MT-Fault-StackTrace", "MT-Fault-RetryCount", "MT-Fault-RedeliveryCount"},
	prefixes: []string{"MT-Host-"},
	restore: func(m *wire.Message) {
		if !strings.HasPrefix(m.ContentType, "application/vnd.masstransit+json") || !isObject(m.Body, "MT-Redelivery-Count") {
			return
		}
		// Its consumer reads the counter from the headers of the envelope.
		body, err := edited(m.Body, func(member string, value json.RawMessage) (json.RawMessage, bool) {
			if !strings.EqualFold(member, "headers") {
				return value, true
			}
			if now, err := edited(value, without("MT-Redelivery-Count")); err == nil {
				return now, true
			}
			return value, true
		})
		if err == nil {
			m.Body = body
		}
	},
}

// lastSegment is the queue in an address such as rabbitmq://host/vhost/queue?durable=false.
func lastSegment(address string) string {
	u, err := url.Parse(address[:min(len(address), 8*maxName)])
	if err != nil || u.Scheme == "" {
		return ""
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	if path == "" {
		path = u.Opaque // queue:orders
	}
	queue, err := url.PathUnescape(path[strings.LastIndexByte(path, '/')+1:])
	if err != nil {
		return ""
	}
	return name(queue)
}
