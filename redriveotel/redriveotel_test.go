package redriveotel_test

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/redriveotel"
	"github.com/redrive-mq/redrive/wire"
)

// The attempts of a message are spans of one trace, whether it came with one or not.
func TestTrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		name    string
		headers amqp.Table
		trace   string
	}{
		{"it came without headers", nil, ""},
		{"it came without a trace", amqp.Table{"n": "1"}, ""},
		{"it came with a trace", amqp.Table{"traceparent": parent}, "0af7651916cd43dd8448eb211c80319c"},
		{"it came with a trace as bytes", amqp.Table{"traceparent": []byte(parent)}, "0af7651916cd43dd8448eb211c80319c"},
		{"it came with nonsense", amqp.Table{"traceparent": "x"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
			errShop := errors.New("the shop is down")
			otel.SetTracerProvider(provider)
			handle := redriveotel.Trace(func(ctx context.Context, m *redrive.Message) error {
				if !trace.SpanContextFromContext(ctx).IsValid() {
					t.Error("the handler has no span")
				}
				switch m.Attempt {
				case 1:
					return errShop
				case 2:
					return redrive.ErrDiscard
				}
				panic("no such order")
			})
			m := &redrive.Message{Queue: "orders", Message: wire.Message{Headers: c.headers, Exchange: "shop", RoutingKey: "order.created", MessageID: "m7", Body: []byte("7")}}
			for m.Attempt = 1; m.Attempt <= 2; m.Attempt++ {
				_ = handle(t.Context(), m)
			}
			func() {
				defer func() { _ = recover() }()
				_ = handle(t.Context(), m)
			}()
			spans := exporter.GetSpans()
			if len(spans) != 3 {
				t.Fatalf("%d spans", len(spans))
			}
			want := c.trace
			if want == "" {
				want = spans[0].SpanContext.TraceID().String()
			}
			attributes := map[string]string{}
			for _, a := range spans[0].Attributes {
				attributes[string(a.Key)] = a.Value.String()
			}
			for _, s := range spans {
				if s.SpanContext.TraceID().String() != want || s.SpanKind != trace.SpanKindConsumer || s.Name != "process orders" {
					t.Errorf("span %q of kind %s in trace %s, want %s", s.Name, s.SpanKind, s.SpanContext.TraceID(), want)
				}
			}
			if attributes["messaging.system"] != "rabbitmq" || attributes["messaging.destination.name"] != "shop:order.created:orders" ||
				attributes["messaging.message.id"] != "m7" || attributes["redrive.attempt"] != "1" {
				t.Errorf("attributes: %v", attributes)
			}
			if s := spans[0].Status; s.Description != errShop.Error() || len(spans[0].Events) != 1 {
				t.Errorf("a failure: %+v", spans[0])
			}
			if s := spans[1]; len(s.Events) != 0 || s.Status.Description != "" {
				t.Errorf("ErrDiscard is no error: %+v", s)
			}
			if s := spans[2]; len(s.Events) != 1 {
				t.Errorf("a panic: %+v", s)
			}
		})
	}
}
