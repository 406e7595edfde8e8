package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// value is any header value that amqp091-go decodes, nested as deep as depth.
func value(depth int) *rapid.Generator[any] {
	second := rapid.Custom(func(t *rapid.T) time.Time { return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), 0) })
	decimal := rapid.Custom(func(t *rapid.T) amqp.Decimal {
		return amqp.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
	})
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(),
		rapid.Uint16().AsAny(), rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32().AsAny(),
		rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(), second.AsAny(), decimal.AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds, table(depth-1).AsAny(), rapid.SliceOfN(value(depth-1), 0, 4).AsAny())
	}
	return rapid.OneOf(kinds...)
}

func table(depth int) *rapid.Generator[amqp.Table] {
	return rapid.Custom(func(t *rapid.T) amqp.Table {
		return rapid.MapOfN(rapid.String(), value(depth), 0, 5).Draw(t, "table")
	})
}

func TestAnyRecordIsTheSameAfterDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := storetest.Everything()
		m := &want.Message
		m.Headers = table(3).Draw(t, "headers")
		m.Body = rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
		m.RoutingKey, want.Queue, want.Error = rapid.String().Draw(t, "key"), rapid.String().Draw(t, "queue"), rapid.String().Draw(t, "error")
		want.Due = time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "due"))
		want.Notes = rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "notes")
		if rapid.Bool().Draw(t, "bare") {
			want.Forward, m.Timestamp, m.Headers, want.Notes = nil, time.Time{}, nil, nil
		}
		before := rapid.SliceOf(rapid.Byte()).Draw(t, "before")
		data, err := store.AppendRecord(before, want)
		if err != nil {
			t.Fatal(err)
		}
		got, size, err := store.DecodeRecord(data[len(before):], true)
		if err != nil || size != len(m.Body) {
			t.Fatalf("size %d, %v", size, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		bare, size, err := store.DecodeRecord(data[len(before):], false)
		if err != nil || size != len(m.Body) || bare.Message.Body != nil {
			t.Fatalf("without the body: %d, %v", size, err)
		}
	})
}

// Damaged data that says at each depth that much follows must not be believed.
func TestDamagedDataAsksForLittleMemory(t *testing.T) {
	r := storetest.Everything()
	r.Message.Headers, r.Message.Body = amqp.Table{}, nil
	data, err := store.AppendRecord(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	data = data[:len(data)-2] // no headers, no body
	for range 50_000 {
		data = append(data, 64, 0, 'F')
	}
	data = append(data, make([]byte, 64)...)
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := store.DecodeRecord(data, true); err == nil {
				b.Fatal("damaged data was decoded")
			}
		}
	})
	if n := result.AllocedBytesPerOp(); n > int64(len(data))*200 {
		t.Errorf("%d bytes of damaged data took %d bytes of memory", len(data), n)
	}
}
