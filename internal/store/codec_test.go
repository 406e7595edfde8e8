package store_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestAnyRecordIsTheSameAfterDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := storetest.Any(t)
		m := &want.Message
		before := rapid.SliceOf(rapid.Byte()).Draw(t, "before")
		data, err := store.AppendRecord(before, want)
		expect.NoError(t, err)
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

// Damaged data that claims large sizes at each depth does not get the memory.
func TestDamagedDataAsksForLittleMemory(t *testing.T) {
	r := storetest.Everything()
	r.Message.Headers, r.Message.Body = amqp.Table{}, nil
	data, err := store.AppendRecord(nil, r)
	expect.NoError(t, err)
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

// Empty fields stay empty: above all Proven.
func TestARecordIsTheSameAfterDecoding(t *testing.T) {
	everything := storetest.Everything()
	everything.HeldUntil = everything.Due
	for _, want := range []*store.Record{everything, {State: store.Waiting, Queue: "orders"}} {
		data, err := store.AppendRecord(nil, want)
		expect.NoError(t, err)
		got, size, err := store.DecodeRecord(data, true)
		if err != nil || size != len(want.Message.Body) {
			t.Fatalf("size %d, %v", size, err)
		}
		expect.Equal(t, cmp.Diff(want, got), "", "(-want +got):\n")
		for n := range data {
			if _, _, err := store.DecodeRecord(data[:n], true); err == nil {
				t.Errorf("cut to %d of %d bytes it still decodes", n, len(data))
			}
		}
	}
}

// Version 1 is version 2 without what a person made of it, its replays, and rules.
func TestARecordOfVersion1IsRead(t *testing.T) {
	want := storetest.Everything()
	want.MadeFrom, want.MadeInto, want.Rule, want.Notify = uuid.Nil, uuid.Nil, "", store.AsUsual
	want.Format, want.Envelope, want.Replays = "", nil, 0
	data, err := store.AppendRecord(nil, want)
	if err != nil || data[0] != 2 {
		t.Fatalf("written as version %d, %v", data[0], err)
	}
	for version, wanted := range []error{store.ErrFormat, nil, nil, store.ErrFormat} {
		data[0] = byte(version)
		got, _, err := store.DecodeRecord(data, true)
		if !errors.Is(err, wanted) {
			t.Errorf("version %d: %v, want %v", version, err, wanted)
		}
		if d := cmp.Diff(want, got); wanted == nil && d != "" {
			t.Errorf("version %d (-want +got):\n%s", version, d)
		}
	}
}

// A record without a format, never replayed or not adopted is as it was before there were such: an older version
// reads it.
func TestARecordWithoutWhatCameLaterIsWrittenAsBefore(t *testing.T) {
	r := storetest.Everything()
	r.Envelope = nil
	with, err := store.AppendHead(nil, r)
	expect.NoError(t, err)
	for _, c := range []struct {
		name  string
		clear func()
		less  int
	}{
		{"format", func() { r.Format = "" }, len("f") + 2}, // its length, and that no envelope follows
		{"replays", func() { r.Replays = 0 }, 1},
		{"adopted", func() { r.AdoptedFrom = "" }, len("dlq") + 2},
	} {
		c.clear()
		without, err := store.AppendHead(nil, r)
		expect.NoError(t, err)
		expect.Equal(t, len(with)-len(without), c.less, "fewer bytes without %s", c.name)
		with = without
	}
}

// Damaged bytes give an error, never a panic, and what decodes encodes again.
func FuzzDecodeRecord(f *testing.F) {
	data, err := store.AppendRecord(nil, storetest.Everything())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _, err := store.DecodeRecord(data, true)
		if err != nil {
			return
		}
		expect.Err(t, expect.ErrOf(store.AppendRecord(nil, r)), nil, "decoded, and cannot be encoded")
	})
}

func record() *store.Record {
	r := storetest.Everything()
	r.Message.Body = make([]byte, 1024)
	return r
}

func BenchmarkAppendRecord(b *testing.B) {
	r := record()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = store.AppendRecord(buf[:0], r)
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkDecodeRecord(b *testing.B) {
	data, _ := store.AppendRecord(nil, record())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := store.DecodeRecord(data, true); err != nil {
			b.Fatal(err)
		}
	}
}
