package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// fault is when something was broken, from just before until its effects were over.
type fault struct{ from, to time.Time }

// finishTime is how long a busy service may take from the arrival of a message at its
// consumer until RabbitMQ's confirm is read and the message durably deleted. Until then
// it is in flight.
const finishTime = 10 * time.Second

// maxCopies is how often one fault can duplicate one message: its acknowledgement to RabbitMQ,
// the confirm of its at-least-once dead-lettering, and that of its retry may be lost.
const maxCopies = 3

// sums are what became of the messages of a tally.
type sums struct {
	Messages    int `json:"messages"`
	Lost        int `json:"lost"`    // not acknowledged in time
	Early       int `json:"early"`   // came before they were due
	Changed     int `json:"changed"` // came altered, to another queue, or as what they are not
	Doubled     int `json:"doubled"` // copies
	Unexplained int `json:"doubled_without_a_fault"`
}

func (s *sums) add(other sums) {
	s.Messages += other.Messages
	s.Lost += other.Lost
	s.Early += other.Early
	s.Changed += other.Changed
	s.Doubled += other.Doubled
	s.Unexplained += other.Unexplained
}

// during runs what breaks something. Messages that are in flight meanwhile, and no
// others, may be duplicated.
func (t *tally) during(breaks func()) {
	from := time.Now()
	breaks()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, fault{from, time.Now()})
}

// account checks each message, and fails the test for those that no fault explains.
func (t *tally) account() {
	t.test.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	duplicates, inFlight, unexplained := duplicates(t.faults, t.failed, t.seen)
	for i, w := range append(t.wrong, unexplained...) {
		if i == 10 {
			t.test.Errorf("and %d more", len(t.wrong)+len(unexplained)-i)
			break
		}
		t.test.Error(w)
	}
	t.sum.Doubled, t.sum.Unexplained = duplicates, len(unexplained)
	t.test.Logf("%d messages: 0 lost, %d wrong, %d duplicates over %d faults with %d in flight", len(t.bodies), len(t.wrong), duplicates, len(t.faults), inFlight)
}

// result is what is known of its messages so far.
func (t *tally) result() sums {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sum
	s.Messages, s.Changed = len(t.bodies), len(t.wrong)-s.Early
	return s
}

// duplicates counts those among the arrivals of messages, tells how many messages were in
// flight at a fault, and which duplicates no fault explains. Keys are "id failures".
//
// A message is in flight from its failure until finishTime has passed since it arrived. One
// that was doubled fails twice from then on: its copies explain as many at each attempt
// after.
func duplicates(faults []fault, failed map[string]time.Time, seen map[string][]time.Time) (all, inFlight int, unexplained []string) {
	extra := func(key string) int { return max(len(seen[key])-1, 0) }
	for key, arrivals := range seen {
		id, attempt, _ := strings.Cut(key, " ")
		before := 0
		if n := 0; attempt != "0" {
			_, _ = fmt.Sscan(attempt, &n)
			before = extra(fmt.Sprint(id, " ", n-1))
		}
		all += max(extra(key)-before, 0)
		for _, f := range faults {
			if !failed[key].After(f.to) && !arrivals[0].Add(finishTime).Before(f.from) {
				inFlight++
			}
		}
		alone, used := 0, make([]int, len(faults))
		for i := 1; i < len(arrivals); i++ {
			explains := func(f fault) bool {
				return !failed[key].After(f.to) && !arrivals[i-1].Add(finishTime).Before(f.from) && !arrivals[i].Before(f.from)
			}
			free := -1
			for n, f := range faults {
				if explains(f) && used[n] < maxCopies*(1+before) {
					free = n
				}
			}
			if free < 0 {
				alone++
				continue
			}
			used[free]++
		}
		if alone > before {
			unexplained = append(unexplained, fmt.Sprintf("%s came %d times as attempt %s, and was not in flight when something broke", id, len(arrivals), attempt))
		}
	}
	slices.Sort(unexplained)
	return all, inFlight, unexplained
}

// The account can fail: a duplicate needs a fault while the message was in flight.
func TestADuplicateNeedsAFaultWhileItWasInFlight(t *testing.T) {
	at := func(seconds ...int) (all []time.Time) {
		for _, s := range seconds {
			all = append(all, time.Unix(int64(s), 0))
		}
		return all
	}
	kill := []fault{{time.Unix(100, 0), time.Unix(101, 0)}}
	for name, c := range map[string]struct {
		faults           []fault
		failed           map[string]time.Time
		seen             map[string][]time.Time
		all, unexplained int
	}{
		"one arrival each":                   {kill, nil, map[string][]time.Time{"a 0": at(99), "a 1": at(102)}, 0, 0},
		"twice without a fault":              {nil, nil, map[string][]time.Time{"a 1": at(99, 100)}, 1, 1},
		"in flight at a kill":                {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(99, 103)}, 1, 0},
		"in flight, returned after":          {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(102, 103)}, 1, 0},
		"failed after the kill":              {kill, map[string]time.Time{"a 1": at(102)[0]}, map[string][]time.Time{"a 1": at(103, 103)}, 1, 1},
		"done long before the kill":          {kill, map[string]time.Time{"a 1": at(10)[0]}, map[string][]time.Time{"a 1": at(11, 103)}, 1, 1},
		"twice before the kill":              {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(98, 99)}, 1, 1},
		"again and again after one kill":     {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(99, 102, 103, 104, 105)}, 4, 1},
		"both copies fail and return":        {kill, map[string]time.Time{"a 1": at(98)[0], "a 2": at(120)[0]}, map[string][]time.Time{"a 1": at(99, 103), "a 2": at(121, 125)}, 1, 0},
		"both copies return, and one double": {kill, map[string]time.Time{"a 1": at(98)[0], "a 2": at(120)[0]}, map[string][]time.Time{"a 1": at(99, 103), "a 2": at(121, 125, 126)}, 2, 1},
	} {
		all, _, unexplained := duplicates(c.faults, c.failed, c.seen)
		if all != c.all || len(unexplained) != c.unexplained {
			t.Errorf("%s: %d duplicates, unexplained %q; want %d and %d", name, all, unexplained, c.all, c.unexplained)
		}
	}
}
