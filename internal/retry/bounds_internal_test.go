package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// What may be claimed for a destination, by what it and the others have.
func TestWhatMayBeClaimed(t *testing.T) {
	const mi = 1 << 20
	for name, c := range map[string]struct {
		messages, bytes int        // of all
		window          laneWindow // of this one
		want, wantBytes int
		full            bool
	}{
		"a new one":                       {0, 0, laneWindow{size: firstWindow}, 16, 16 * mi, false},
		"a new one with little left":      {2048, 0, laneWindow{size: firstWindow}, 8, 16 * mi, false},
		"half of what others leave":       {1600, 0, laneWindow{size: maxWindow}, 480, 16 * mi, false},
		"what it has counts as left":      {1600, 0, laneWindow{size: maxWindow, messages: 100}, 430, 16 * mi, false},
		"just before the reserve":         {2303, 0, laneWindow{size: maxWindow}, 129, 16 * mi, false},
		"of the reserve":                  {2304, 0, laneWindow{size: maxWindow}, 16, 16 * mi, false},
		"far from the reserve":            {1560, 0, laneWindow{size: maxWindow}, 500, 16 * mi, false},
		"the last one":                    {MaxClaimed - 1, 0, laneWindow{size: maxWindow}, 1, 16 * mi, false},
		"no message is left":              {MaxClaimed, 0, laneWindow{size: maxWindow}, 0, 0, true},
		"no byte is left":                 {1, 32 * mi, laneWindow{size: maxWindow}, 0, 0, true},
		"half of the bytes":               {1, 8 * mi, laneWindow{size: maxWindow, messages: 1, bytes: 4 * mi}, 512, 10 * mi, false},
		"its bytes are used up":           {1, 24 * mi, laneWindow{size: maxWindow, messages: 1, bytes: 8 * mi}, 0, 0, false},
		"a quarter of a batch":            {896, 0, laneWindow{size: maxWindow, messages: 896}, 128, 16 * mi, false},
		"less than that waits":            {897, 0, laneWindow{size: maxWindow, messages: 897}, 0, 0, false},
		"a small window that is not full": {12, 0, laneWindow{size: firstWindow, messages: 12}, 4, 16 * mi, false},
	} {
		lane := store.Lane{Queue: "q"}
		cl := claimed{messages: c.messages, bytes: c.bytes, perDestination: map[store.Lane]*laneWindow{lane: &c.window}}
		if n, bytes, full := cl.mayClaim(lane, time.Now()); n != c.want || bytes != c.wantBytes || full != c.full {
			t.Errorf("%s: %d messages, %d bytes, full: %v; want %d, %d, %v", name, n, bytes, full, c.want, c.wantBytes, c.full)
		}
	}
}

// What is claimed and finished is counted, of all and of its destination, and a batch that filled
// half of its window and was confirmed makes the window larger.
func TestClaimsAreCounted(t *testing.T) {
	lane := store.Lane{Queue: "q"}
	c := claimed{perDestination: map[store.Lane]*laneWindow{}}
	batch := func(n, body int) sentBatch {
		b := sentBatch{lane: lane}
		for range n {
			b.claims = append(b.claims, store.Claim{Record: &store.Record{Message: wire.Message{Body: make([]byte, body)}}})
		}
		return b
	}
	counted := func(messages, bytes, size int) {
		t.Helper()
		if w := c.windowOf(lane); c.messages != messages || c.bytes != bytes || w.messages != messages || w.bytes != bytes || w.size != size {
			t.Errorf("%d messages and %d bytes of all, %d and %d of it in a window of %d; want %d, %d, %d", c.messages, c.bytes, w.messages, w.bytes, w.size, messages, bytes, size)
		}
	}
	few, half, more := batch(7, 10), batch(1, 5), batch(8, 1)
	for i, b := range []*sentBatch{&few, &half, &more} {
		if b.halfFull, _, _ = c.begin(lane, len(b.claims), bodies(b.claims)); b.halfFull != (i > 0) {
			t.Errorf("batch %d fills half of the window: %v", i, b.halfFull)
		}
	}
	counted(16, 83, firstWindow)
	c.end(&few, true)
	counted(9, 13, firstWindow)
	c.end(&half, true)
	counted(8, 8, windowGrowth*firstWindow)
	c.end(&more, false)
	counted(0, 0, firstWindow)
}

func TestIdleDestinationsAreForgotten(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	idle, busy := store.Lane{Queue: "idle"}, store.Lane{Queue: "busy"}
	c := claimed{perDestination: map[store.Lane]*laneWindow{idle: {used: began}, busy: {used: began, messages: 1}}}
	if c.has(idle) || !c.has(busy) || c.has(store.Lane{Queue: "unknown"}) {
		t.Error("it is not known for which messages are claimed")
	}
	for after, want := range map[time.Duration]int{0: 2, windowKept - 1: 2, windowKept: 1} {
		c := claimed{perDestination: map[store.Lane]*laneWindow{idle: {used: began}, busy: {used: began, messages: 1}}}
		c.forgetIdle(began)
		if c.forgetIdle(began.Add(after)); len(c.perDestination) != want {
			t.Errorf("after %s %d are remembered, want %d", after, len(c.perDestination), want)
		}
	}
	c.forgetIdle(began.Add(windowKept / 2))
	if c.forgetIdle(began.Add(windowKept + 1)); c.perDestination[idle] == nil {
		t.Error("it looks for them more often than it should")
	}
}

// Beyond the limit the names with the most receipts lose the oldest half, and a name that has
// none for long loses all.
func TestReceiptsBeyondTheLimit(t *testing.T) {
	push := func(r *recentReceipts, name string, n int) (lost int) {
		for range n {
			lost += len(r.push(name, &receipt{}))
		}
		return lost
	}
	r := newRecentReceipts(2, 0, 10)
	for _, c := range []struct {
		name          string
		n, lost, left int
	}{{"a", 10, 0, 10}, {"a", 1, 6, 5}, {"b", 5, 0, 10}, {"a", 1, 3, 8}, {"b", 2, 0, 10}, {"b", 1, 4, 7}, {"c", 1, 3, 5}, {"c", 5, 0, 10}, {"b", 1, 3, 8}, {"c", 3, 3, 8}} {
		if lost := push(&r, c.name, c.n); lost != c.lost || r.count != c.left {
			t.Errorf("%d more of %s: %d are lost and %d left, want %d and %d", c.n, c.name, lost, r.count, c.lost, c.left)
		}
	}
	if b, c := r.byName["b"].Value.(*series), r.byName["c"].Value.(*series); len(b.all) != 5 || len(c.all) != 3 {
		t.Errorf("%d of b and %d of c are left, want 5 and 3", len(b.all), len(c.all))
	}
	r = newRecentReceipts(2, 0, 9)
	push(&r, "a", 5)
	if push(&r, "b", 5); len(r.byName["a"].Value.(*series).all) != 5 {
		t.Error("of two names with equally many the one loses that did not get another")
	}
	r = newRecentReceipts(2, 2, 0)
	if lost := push(&r, "a", 4); lost != 0 {
		t.Errorf("%d of 4 are lost", lost)
	}
	if lost := push(&r, "a", 1); lost != 2 || r.count != 3 {
		t.Errorf("with the fifth %d are lost, %d left", lost, r.count)
	}
}

func TestReportedNamesAreCounted(t *testing.T) {
	n := &ReportedNames{turn: semaphore.NewWeighted(1), reporterOf: map[string]string{}, perUser: map[string]int{}}
	for i := range maxNamesEach {
		if n.isFull("ann") {
			t.Fatalf("full with %d names", i)
		}
		n.count(fmt.Sprint("q", i), "ann")
	}
	if !n.isFull("ann") || n.isFull("bob") {
		t.Error("ann has all of her names, and bob none")
	}
	for i := range maxNamesEach {
		n.drop(fmt.Sprint("q", i))
		n.drop("unknown")
		if left := maxNamesEach - 1 - i; n.perUser["ann"] != left || len(n.reporterOf) != left {
			t.Fatalf("%d and %d are left, want %d", n.perUser["ann"], len(n.reporterOf), left)
		}
	}
	if len(n.perUser) != 0 {
		t.Errorf("%v of no names", n.perUser)
	}
	for i := range maxNames {
		if n.isFull("bob") {
			t.Fatalf("full with %d names", i)
		}
		n.reporterOf[fmt.Sprint("q", i)] = "others"
	}
	if !n.isFull("bob") {
		t.Errorf("not full with %d names", maxNames)
	}
}

func TestSetsOfQueuesAreBounded(t *testing.T) {
	var s queueSet
	for i := range maxTargets {
		s.add(fmt.Sprint("q", i))
	}
	s.add("q1") // is there already
	if !s.has("q0") || !s.has(fmt.Sprint("q", maxTargets-1)) || s.has("unknown") {
		t.Error("one of the first is forgotten")
	}
	if s.add("one more"); s.has("q0") || !s.has("one more") {
		t.Error("more than may be are remembered")
	}
	var d DelayQueues
	for range 1001 {
		d.MarkLost("q")
	}
	if len(d.lostQueues) != 1000 {
		t.Errorf("%d queues are marked as lost", len(d.lostQueues))
	}
}

func TestBatchesAreFinishedTogether(t *testing.T) {
	answered := make(chan sentBatch, 2*maxFinished)
	for range maxFinished + 1 {
		answered <- sentBatch{}
	}
	for i, want := range []int{maxFinished, 3, 1} {
		if n := len(withAnswered(sentBatch{}, answered)); n != want {
			t.Errorf("%d: %d batches, want %d", i, n, want)
		}
	}
}

// Each attempt of a message has its own jitter, and so has each message.
func TestSeedsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for attempt := range 10 {
		seen[seed(uuid.Nil, attempt)] = true
		seen[seed(uuid.UUID{15: 1}, attempt)] = true
	}
	if len(seen) != 20 {
		t.Errorf("%d seeds of 20", len(seen))
	}
}

// How long a lane rests, and what of it people hear.
func TestLanesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []error
		s := &Scheduler{backoffs: map[store.Lane]backoff{}, report: func(_ store.Lane, err error) { reports = append(reports, err) }}
		lane, full := store.Lane{Queue: "q"}, errors.New("full")
		rests := func(obstacle error, want ...time.Duration) {
			t.Helper()
			for _, want := range want {
				if s.setBackoff(lane, obstacle); time.Until(s.backoffUntil(lane)) != want {
					t.Errorf("%v: it rests %s, want %s", obstacle, time.Until(s.backoffUntil(lane)), want)
				}
			}
		}
		const ms = time.Millisecond
		rests(ErrLookupPending, 250*ms, 500*ms, 1000*ms, 1000*ms)
		if lanes := s.Unreachable(); len(lanes) != 0 || len(reports) != 0 {
			t.Errorf("while its queue is looked up, the lane is unreachable: %v, %v", lanes, reports)
		}
		rests(full, 4000*ms)
		if len(s.Unreachable()) != 1 || len(reports) != 1 {
			t.Errorf("after an obstacle the lane is reachable: %v", reports)
		}
		rests(ErrLookupPending, 1000*ms)
		if len(s.Unreachable()) != 1 {
			t.Error("a lookup makes an unreachable lane reachable")
		}
		reports = nil
		delete(s.backoffs, lane)
		rests(ErrTryAtOnce, 0, 500*ms)
		delete(s.backoffs, lane)
		rests(context.Canceled, 250*ms)
		if delete(s.backoffs, lane); len(reports) != 0 {
			t.Errorf("what is no trouble is reported: %v", reports)
		}
		s.setBackoff(lane, nil)
		if len(reports) != 0 {
			t.Errorf("a lane that works is reported: %v", reports)
		}
		rests(full, 250*ms, 500*ms, 1000*ms, 2000*ms, 4000*ms, 8000*ms, maxBackoff, maxBackoff)
		s.setBackoff(lane, nil)
		if want := slices.Concat(slices.Repeat([]error{full}, 8), []error{nil}); !slices.Equal(reports, want) {
			t.Errorf("reported: %v", reports)
		}
		// Without messages it is forgotten, not at once.
		rests(full, 250*ms)
		reports = nil
		until := s.backoffUntil(lane)
		if sleep := s.forgetBackoffs(nil, until.Add(backoffKept)); sleep != backoffKept || len(reports) != 0 || len(s.backoffs) != 1 {
			t.Errorf("it sleeps %s, reported %v", sleep, reports)
		}
		if sleep := s.forgetBackoffs([]store.NextDue{{Lane: lane}}, until.Add(time.Hour)); sleep != maxSleep || len(reports) != 0 {
			t.Errorf("with messages: it sleeps %s, reported %v", sleep, reports)
		}
		if sleep := s.forgetBackoffs(nil, until.Add(backoffKept+1)); sleep != maxSleep || len(reports) != 1 || reports[0] != nil || len(s.backoffs) != 0 {
			t.Errorf("forgotten: it sleeps %s, reported %v", sleep, reports)
		}
	})
}
