package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

func TestAnyRecordIsTheSameAfterDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := storetest.Any(t)
		m := &want.Message
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
