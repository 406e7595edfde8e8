package inspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/frameworks"
	"github.com/redrive-mq/redrive/wire"
)

// Framework is what another framework has written about a failure, as it stands on the message.
type Framework struct {
	Name        string     `json:"name" doc:"As its documentation spells it." example:"MassTransit"`
	ErrorType   string     `json:"error_type,omitempty"`
	MessageType string     `json:"message_type,omitempty" doc:"The framework's own name for what the message is."`
	Queue       string     `json:"queue,omitempty" doc:"Where it failed."`
	Exchange    string     `json:"exchange,omitempty" doc:"As first published."`
	RoutingKey  string     `json:"routing_key,omitempty" doc:"As first published."`
	Attempts    int        `json:"attempts,omitempty" doc:"How often the framework has tried, with retries in the memory of a consumer. No policy counts them."`
	FirstFailed *time.Time `json:"first_failed,omitempty"`
	Failed      *time.Time `json:"failed,omitempty"`
	MessageID   string     `json:"message_id,omitempty"`
}

// frameworkOf reads the headers of a message; nil: no framework that is known has written any.
func frameworkOf(m *wire.Message) *Framework {
	f, found := frameworks.Read(m)
	if !found {
		return nil
	}
	return &Framework{Name: f.Framework, ErrorType: f.Type, MessageType: f.MessageType, Queue: f.Queue, Exchange: f.Exchange, RoutingKey: f.RoutingKey,
		Attempts: f.Attempts, FirstFailed: given(f.FirstFailed), Failed: given(f.Failed), MessageID: f.MessageID}
}

func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Summary is all but the name, on one line; "" where the framework tells nothing else.
func (f *Framework) Summary() string {
	var told []string
	add := func(name, value string) {
		if value != "" {
			told = append(told, name+" "+value)
		}
	}
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	add("error type", f.ErrorType)
	add("message type", f.MessageType)
	add("queue", f.Queue)
	add("exchange", f.Exchange)
	add("routing key", f.RoutingKey)
	if f.Attempts > 0 {
		add("attempts", fmt.Sprint(f.Attempts))
	}
	add("first failed", at(f.FirstFailed))
	add("failed", at(f.Failed))
	add("message id", f.MessageID)
	return strings.Join(told, "; ")
}
