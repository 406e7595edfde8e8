package store_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

func TestARecordIsTheSameAfterDecoding(t *testing.T) {
	want := storetest.Everything()
	data, err := store.AppendRecord(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, size, err := store.DecodeRecord(data, true)
	if err != nil || size != len(want.Message.Body) {
		t.Fatalf("size %d, %v", size, err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for n := range data {
		if _, _, err := store.DecodeRecord(data[:n], true); err == nil {
			t.Errorf("cut to %d of %d bytes it still decodes", n, len(data))
		}
	}
}

// What a record does not have, it does not have after decoding: above all no proof of its queue.
func TestARecordWithLittleIsTheSameAfterDecoding(t *testing.T) {
	want := &store.Record{State: store.Waiting, Queue: "orders"}
	data, err := store.AppendRecord(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := store.DecodeRecord(data, true)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Version 1 is version 2 without what a person made of it, and version 3 has where it was adopted.
func TestARecordOfVersion1IsRead(t *testing.T) {
	want := storetest.Everything()
	want.MadeFrom, want.MadeInto, want.Adopted = uuid.Nil, uuid.Nil, nil
	data, err := store.AppendRecord(nil, want)
	if err != nil || data[0] != 2 {
		t.Fatalf("written as version %d, %v", data[0], err)
	}
	for version, wanted := range []error{store.ErrFormat, nil, nil, nil, store.ErrFormat} {
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
		if _, err := store.AppendRecord(nil, r); err != nil {
			t.Errorf("decoded, and cannot be encoded: %v", err)
		}
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
