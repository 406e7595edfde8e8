package inspect_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// missing is a store in which counting what is kept finds one message of a queue less.
type missing struct {
	*memstore.Store
	queue string
}

func (m *missing) Recount(ctx context.Context) ([]store.LedgerLine, error) {
	lines, err := m.Store.Recount(ctx)
	for i := range lines {
		if lines[i].Queue == m.queue {
			lines[i].Sums[store.Waiting]--
		}
	}
	return lines, err
}

func TestTheLedger(t *testing.T) {
	s := &missing{memstore.New(), "none"}
	var told []map[string]int64
	c := inspect.New(inspect.Config{Store: s, Recounted: func(off map[string]int64) { told = append(told, off) }})
	if err := s.Add(ctx, []*store.Record{record("orders", store.Waiting, ""), record("orders", store.Parked, ""), record("mail", store.Discarded, "")}); err != nil {
		t.Fatal(err)
	}
	s.CountUnstored("orders", store.Delayed, 2)
	some := caller(auth.Viewer)
	some.Queues = []string{"mail"}
	orders := inspect.LedgerLine{Queue: "orders", In: 4, Waiting: 1, Parked: 1, Delayed: 2}
	mail := inspect.LedgerLine{Queue: "mail", In: 1, Discarded: 1}
	lost := orders
	lost.Off = 1
	for i, step := range []struct {
		missing string
		by      auth.Caller
		recount bool
		counted bool
		want    []inspect.LedgerLine
	}{
		{"none", caller(auth.Viewer), false, false, []inspect.LedgerLine{mail, orders}},
		{"none", some, false, false, []inspect.LedgerLine{mail}},
		{"orders", caller(auth.Viewer), false, false, []inspect.LedgerLine{mail, orders}}, // no one has looked yet
		{"orders", caller(auth.Viewer), true, true, []inspect.LedgerLine{mail, lost}},
		{"orders", caller(auth.Viewer), false, true, []inspect.LedgerLine{mail, lost}},
		{"none", caller(auth.Viewer), true, true, []inspect.LedgerLine{mail, orders}},
	} {
		s.queue = step.missing
		l, err := c.Ledger(ctx, step.by, step.recount, "", 0)
		if err != nil || !reflect.DeepEqual(l.Queues, step.want) || (l.Recounted != nil) != step.counted {
			t.Errorf("step %d: %v, counted %v, %+v; want %+v", i, err, l.Recounted, l.Queues, step.want)
		}
	}
	if want := []map[string]int64{{"orders": 1}, {}}; !reflect.DeepEqual(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if _, err := c.Ledger(ctx, auth.Caller{}, false, "", 0); err == nil {
		t.Error("nobody sees it")
	}
}
