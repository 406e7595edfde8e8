package throttle

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// However many retries come and go, what is kept of them are those that have not finished, and
// each of these settles.
func TestTrackedRetriesAreFewAndAllSettle(t *testing.T) {
	var r trackedRetries
	began := time.Unix(1_700_000_000, 0)
	const flight, all = 100, 20_000
	kept := func(when string, want int) {
		t.Helper()
		if r.order.Len() != want || len(r.byID) != want {
			t.Fatalf("%s: %d are in order, %d by id; want %d", when, r.order.Len(), len(r.byID), want)
		}
	}
	for i := range all { // as one settles another comes
		at := began.Add(time.Duration(i) * time.Second)
		r.finishBefore(at.Add(-flight * time.Second))
		r.add(uuid.New(), retry{uint64(i), at})
		kept("in flight", min(i+1, flight))
	}
	expect.Equal(t, r.finishBefore(began.Add(all*time.Second)), all, "all have settled, and it is said up to")
	kept("settled", 0)
	for i := range flight { // a hundred stay, while others fail again at once
		r.add(uuid.New(), retry{uint64(i), began})
	}
	for i := range all {
		id, is := uuid.New(), retry{uint64(flight + i), began.Add(time.Second)}
		r.add(id, is)
		if was, ok := r.remove(id); !ok || was != is {
			t.Fatalf("%+v was removed, %v", was, ok)
		}
		kept("failed again", flight)
	}
	if is, ok := r.oldest(); !ok || !is.at.Equal(began) {
		t.Errorf("the oldest is %+v", is)
	}
	expect.Equal(t, r.finishBefore(began), flight, "they have settled, and it is said up to")
	kept("settled", 0)
	for range MaxTracked + 10 {
		r.add(uuid.New(), retry{})
	}
	kept("the most", MaxTracked)
}
