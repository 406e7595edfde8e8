package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

func receipts(t *testing.T, e Engine) {
	s := open(t, e)
	var last []store.Receipt
	const n = store.ReceiptsKept + 3000
	for i := 0; i < n; i += 1000 {
		var batch []*store.Record
		for j := range 1000 {
			r := Waiting("q", time.Hour, "")
			r.Fingerprint = [16]byte{byte(i / 1000), byte(j >> 8), byte(j), 1}
			batch = append(batch, r)
			last = append(last, r.Receipt())
		}
		if i/1000%2 == 0 {
			add(t, s, batch...)
		} else if err := s.Remember(context.Background(), last[len(last)-1000:]); err != nil {
			t.Fatal(err)
		}
	}
	last = last[len(last)-store.ReceiptsKept:]
	check := func() {
		t.Helper()
		got, err := s.Receipts(context.Background())
		if err != nil || !slices.Equal(got, last) {
			t.Errorf("%d receipts, %v; want the newest %d in order", len(got), err, len(last))
		}
	}
	check()
	if e.Reopen != nil {
		s = e.Reopen(t, s)
		check()
	}
}
