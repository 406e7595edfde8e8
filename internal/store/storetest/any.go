package storetest

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Any is some record that a store may have to keep: whatever a publisher may send,
// and more.
func Any(t *rapid.T) *store.Record {
	r := Everything()
	m := &r.Message
	m.Headers = table(3).Draw(t, "headers")
	m.Body = rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
	m.RoutingKey, r.Queue, r.Error = text().Draw(t, "key"), text().Draw(t, "queue"), text().Draw(t, "error")
	m.Timestamp = time.Unix(rapid.Int64Range(1, 1<<40).Draw(t, "timestamp"), 0)
	r.Due = time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "due"))
	r.Notes = rapid.SliceOfN(text(), 1, 3).Draw(t, "notes")
	r.State = rapid.SampledFrom([]store.State{store.Waiting, store.Parked, store.Discarded}).Draw(t, "state")
	if rapid.Bool().Draw(t, "bare") {
		r.Forward, m.Timestamp, m.Headers, r.Notes = nil, time.Time{}, nil, nil
	}
	return r
}

// text is mostly UTF-8, and not always.
func text() *rapid.Generator[string] {
	bytes := rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })
	return rapid.OneOf(rapid.String(), rapid.String(), bytes)
}

// value is any header value that amqp091-go decodes, nested as deep as depth.
func value(depth int) *rapid.Generator[any] {
	second := rapid.Custom(func(t *rapid.T) time.Time { return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), 0) })
	decimal := rapid.Custom(func(t *rapid.T) amqp.Decimal {
		return amqp.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
	})
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(),
		rapid.Uint16().AsAny(), rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32().AsAny(),
		rapid.Float64().AsAny(), text().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(), second.AsAny(), decimal.AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds, table(depth-1).AsAny(), rapid.SliceOfN(value(depth-1), 0, 4).AsAny())
	}
	return rapid.OneOf(kinds...)
}

func table(depth int) *rapid.Generator[amqp.Table] {
	return rapid.Custom(func(t *rapid.T) amqp.Table {
		return rapid.MapOfN(text(), value(depth), 0, 5).Draw(t, "table")
	})
}
