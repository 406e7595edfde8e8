package throttle

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// However many retries come and go, what is kept of them is little more than those that have
// not finished, and each of these settles.
func TestTrackedRetriesAreFewAndAllSettle(t *testing.T) {
	var r trackedRetries
	began := time.Unix(1_700_000_000, 0)
	const flight, all = 100, 20_000
	most := 0
	for i := range all { // as one settles another comes
		at := began.Add(time.Duration(i) * time.Second)
		r.finishBefore(at.Add(-flight * time.Second))
		r.add(uuid.New(), retry{uint64(i), at})
		most = max(most, len(r.order))
	}
	if most > 4*flight+2*1024 || len(r.unfinished) != flight {
		t.Errorf("%d are kept of %d that have not finished", most, len(r.unfinished))
	}
	if to := r.finishBefore(began.Add(all * time.Second)); to != all || len(r.unfinished) != 0 || len(r.order) != 0 {
		t.Errorf("all have settled: up to %d, %d are left", to, len(r.unfinished))
	}

	// A hundred stay, while others fail again at once.
	for i := range flight {
		r.add(uuid.New(), retry{uint64(i), began})
	}
	most = 0
	for i := range all {
		id := uuid.New()
		r.add(id, retry{uint64(flight + i), began.Add(time.Second)})
		r.remove(id)
		most = max(most, len(r.order))
	}
	if most > 2*flight+2*1024 || len(r.unfinished) != flight {
		t.Errorf("%d are kept of %d that have not finished", most, len(r.unfinished))
	}
	if at, ok := r.oldest(); !ok || !at.Equal(began) {
		t.Errorf("the oldest is of %s", at)
	}
	r.finishBefore(began)
	if _, ok := r.oldest(); ok || len(r.unfinished) != 0 {
		t.Errorf("%d have not settled", len(r.unfinished))
	}
}
