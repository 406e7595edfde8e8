// Package redriveotel traces handlers with OpenTelemetry: a span for each attempt,
// all attempts of a message in one trace.
//
//	redrive.Consumer{..., Middleware: []redrive.Middleware{redriveotel.Trace}}
//
// The W3C trace context is read from the headers traceparent and tracestate, where
// the publisher's instrumentation put it. A message that came without gets one, and
// keeps it while it waits (not with redrive.Native, where the queue keeps messages
// as they are).
package redriveotel

import (
	"context"
	"errors"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-mq/redrive"
)

const tracerName = "github.com/redrive-mq/redrive/redriveotel"

// w3c is the format on the wire, whatever the program has set globally: the next
// attempt may be in another program.
var w3c = propagation.TraceContext{}

// Trace is a redrive.Middleware, with the global tracer provider.
func Trace(next redrive.Handler) redrive.Handler {
	return TraceWith(otel.GetTracerProvider())(next)
}

// TraceWith is Trace with a tracer provider of its own.
func TraceWith(provider trace.TracerProvider) redrive.Middleware {
	tracer := provider.Tracer(tracerName)
	return func(next redrive.Handler) redrive.Handler {
		return func(ctx context.Context, m *redrive.Message) error {
			ctx = w3c.Extract(ctx, headers{m})
			came := trace.SpanContextFromContext(ctx).IsValid()
			ctx, span := tracer.Start(ctx, "process "+m.Queue, trace.WithSpanKind(trace.SpanKindConsumer),
				trace.WithAttributes(attributes(m)...))
			defer span.End() // also when the handler panics, which records itself
			if !came {
				w3c.Inject(ctx, headers{m})
			}
			err := next(ctx, m)
			if err != nil && !errors.Is(err, redrive.ErrDiscard) {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			return err
		}
	}
}

// attributes are the semantic conventions' for RabbitMQ, and ours.
func attributes(m *redrive.Message) []attribute.KeyValue {
	destination := m.Exchange // as the conventions have it for RabbitMQ: exchange, routing key and queue
	for _, part := range []string{m.RoutingKey, m.Queue} {
		if part != "" && part != destination {
			if destination != "" {
				destination += ":"
			}
			destination += part
		}
	}
	a := []attribute.KeyValue{
		attribute.String("messaging.system", "rabbitmq"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", destination),
		attribute.String("messaging.rabbitmq.destination.routing_key", m.RoutingKey),
		attribute.Int("messaging.message.body.size", len(m.Body)),
		attribute.Int("redrive.attempt", m.Attempt),
	}
	for key, value := range map[string]string{"messaging.message.id": m.MessageID,
		"messaging.message.conversation_id": m.CorrelationID, "redrive.id": m.ID} {
		if value != "" {
			a = append(a, attribute.String(key, value))
		}
	}
	return a
}

// headers are a message's as a propagator sees them.
type headers struct{ *redrive.Message }

var _ propagation.TextMapCarrier = headers{}

func (h headers) Get(key string) string {
	switch v := h.Headers[key].(type) {
	case string:
		return v
	case []byte: // as some clients write text
		return string(v)
	}
	return ""
}

func (h headers) Set(key, value string) {
	if h.Headers == nil {
		h.Headers = amqp.Table{}
	}
	h.Headers[key] = value
}

func (h headers) Keys() []string { return slices.Collect(maps.Keys(h.Headers)) }
