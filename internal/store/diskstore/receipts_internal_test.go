package diskstore

import (
	"context"
	"slices"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
)

// The disk keeps as many receipts as are needed and no batch more, also those of before a
// restart; which of them are returned says nothing of that.
func TestOldReceiptsAreTakenOffTheDisk(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	const size = 1000
	most := (store.ReceiptsKept+size-1)/size*size + size // the oldest batch may be needed in part
	var all []store.Receipt
	for _, batches := range []int{12, 2, 12} {
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range batches {
			for range size {
				n := len(all)
				all = append(all, store.Receipt{Fingerprint: [16]byte{byte(n >> 16), byte(n >> 8), byte(n), 1}})
			}
			if err := s.Remember(ctx, all[len(all)-size:]); err != nil {
				t.Fatal(err)
			}
		}
		kept := 0
		if err := eachIn(s.db, prefixReceipt, func(_, v []byte) error { kept += len(v) / store.ReceiptSize; return nil }); err != nil {
			t.Fatal(err)
		}
		if kept < store.ReceiptsKept || kept > most {
			t.Errorf("%d receipts are on disk; want from %d to %d", kept, store.ReceiptsKept, most)
		}
		got, err := s.Receipts(ctx)
		if want := all[len(all)-store.ReceiptsKept:]; err != nil || !slices.EqualFunc(got, want, func(a, b store.Receipt) bool { return a.Fingerprint == b.Fingerprint }) {
			t.Errorf("%d receipts are read, %v; want the newest %d in order", len(got), err, len(want))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
