package frameworks

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// kicks (once Sneakers) publishes a message to <queue>-error by its handler Maxretry, with what
// failed, and all properties of the message, as JSON in one header: an object, or a list with the
// newest first.
//
// Source, in ruby-amqp/kicks: lib/sneakers/handlers/maxretry.rb
var kicks = preset{
	name:     "Kicks",
	markers:  []string{"retry_info"},
	suffixes: []string{"-error"},
	read: func(f *Fault, m *wire.Message) {
		failures := retryInfo(m.Headers)
		if len(failures) == 0 {
			return
		}
		failures[0].tell(f)
		if len(failures) > 1 { // it was given up before, and came again
			f.FirstFailed = failures[len(failures)-1].failedAt()
		}
		p := failures[0].Properties
		if id := name(string(p.MessageID)); id != "" {
			f.MessageID = id
		}
		f.MessageType = p.Type.text()
		f.Queue, f.Exchange, f.RoutingKey = firstRejected(p.Headers)
	},
	restore: func(m *wire.Message) {
		failures := retryInfo(m.Headers)
		delete(m.Headers, "retry_info")
		if len(failures) > 0 {
			failures[0].Properties.apply(m)
		}
	},
}

// sneakers before version 2.12 published that as the body, with the message in it.
//
// Source, in jondot/sneakers: lib/sneakers/handlers/maxretry.rb, as of 2.11.0
var sneakers = envelope{
	name: "Sneakers",
	open: func(queue string, m *wire.Message) (f Fault, inner *wire.Message, ok bool, err error) {
		if !isObject(m.Body, "error", "num_attempts", "failed_at", "payload") {
			return f, nil, false, nil
		}
		var failed struct {
			retryFailure
			Payload    *string         `json:"payload"`
			Properties json.RawMessage `json:"properties"` // of Base64, where a version could write them
		}
		if !fromJSON(m.Body, &failed) || failed.Payload == nil {
			return f, nil, false, nil
		}
		failed.tell(&f)
		f.Queue = withoutSuffix(queue, "-error")
		r := *m
		r.Headers = headers.Clean(m.Headers)
		var encoded string
		var properties rubyProperties
		if json.Unmarshal(failed.Properties, &encoded) == nil {
			if decoded, err := fromBase64(encoded); err == nil && fromJSON(decoded, &properties) {
				properties.apply(&r)
			}
		}
		f.MessageID = name(r.MessageID)
		if r.Body, err = fromBase64(*failed.Payload); err != nil {
			return f, nil, true, fmt.Errorf("its payload is not Base64: %w", err)
		}
		return f, &r, true, nil
	},
}

// retryFailure is what Maxretry writes of a failure.
type retryFailure struct {
	Error      loose           `json:"error"`
	Attempts   loose           `json:"num_attempts"`
	FailedAt   loose           `json:"failed_at"`
	Class      loose           `json:"error_class"`
	Message    loose           `json:"error_message"`
	Backtrace  json.RawMessage `json:"backtrace"`
	Properties rubyProperties  `json:"properties"`
}

func (r *retryFailure) failedAt() time.Time { return moment(string(r.FailedAt), time.RFC3339) }

func (r *retryFailure) tell(f *Fault) {
	f.Error, f.Type = r.Error.text(), r.Class.text()
	if r.Message != "" {
		f.Error = r.Message.text()
	}
	var lines []loose
	var joined string
	if json.Unmarshal(r.Backtrace, &joined) == nil {
		f.Stack = printable(strings.ReplaceAll(joined, ", ", "\n"))
	} else if fromJSON(r.Backtrace, &lines) {
		var stack strings.Builder
		for _, line := range lines[:min(len(lines), 100)] {
			stack.WriteString(string(line[:min(len(line), maxText)]) + "\n")
		}
		f.Stack = printable(strings.TrimRight(stack.String(), "\n"))
	}
	f.Attempts, _ = count(string(r.Attempts))
	f.Failed = r.failedAt()
}

// retryInfo returns the failures in a header, newest first.
func retryInfo(h amqp.Table) (failures []retryFailure) {
	info := []byte(raw(h, "retry_info"))
	if isObject(info) {
		failures = make([]retryFailure, 1)
		if !fromJSON(info, &failures[0]) {
			return nil
		}
		return failures
	}
	if !fromJSON(info, &failures) {
		return nil
	}
	return failures
}

// firstRejected returns where a message was rejected first, by the x-death that it had.
func firstRejected(h map[string]any) (queue, exchange, routingKey string) {
	deaths, _ := h["x-death"].([]any)
	for i := len(deaths) - 1; i >= 0; i-- {
		death, _ := deaths[i].(map[string]any)
		if reason, _ := death["reason"].(string); reason != "rejected" {
			continue
		}
		queue, _ = death["queue"].(string)
		exchange, _ = death["exchange"].(string)
		if keys, _ := death["routing-keys"].([]any); len(keys) > 0 {
			routingKey, _ = keys[0].(string)
		}
		break
	}
	return name(queue), name(exchange), name(routingKey)
}

func fromBase64(s string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(strings.NewReplacer("\n", "", "\r", "").Replace(s))
}
