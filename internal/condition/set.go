package condition

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Set has the conditions that hold now. Its methods may be called at once.
type Set struct {
	// changed receives whether the service is ready, and whether its intake stands, when that may have
	// changed.
	changed func(ready, stands bool)

	mu    sync.Mutex
	holds map[key]Condition
	until map[key]time.Time // when one ends by itself, of those that PutFor put
}

// NewSet returns a Set in which the conditions hold that are given.
func NewSet(changed func(ready, stands bool), first ...Condition) *Set {
	s := &Set{changed: changed, holds: map[key]Condition{}, until: map[key]time.Time{}}
	for _, c := range first {
		s.Put(c)
	}
	return s
}

// Put adds or changes a condition, and ends it where it has no text. Since stays as it was. It returns
// whether the text has changed.
func (s *Set) Put(c Condition) (changed bool) { return s.put(c, time.Time{}) }

// PutFor is Put of something that happened once: it ends after d.
func (s *Set) PutFor(d time.Duration, c Condition) { s.put(c, time.Now().Add(d)) }

func (s *Set) put(c Condition, until time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	k := c.key()
	was, holds := s.holds[k]
	if c.Since = time.Now(); holds {
		c.Since = was.Since
	}
	c.NotReady = !Kinds[c.Kind].Ready
	if s.holds[k] = c; c.Text == "" {
		delete(s.holds, k)
	}
	if !until.IsZero() {
		s.until[k] = until
	}
	if !c.OfQueue() { // of queues there may be a hundred thousand
		s.tell()
	}
	return was.Text != c.Text
}

// expire ends what has held long enough. The caller holds mu.
func (s *Set) expire() {
	for k, until := range s.until {
		if time.Now().After(until) {
			delete(s.until, k)
			delete(s.holds, k)
			s.tell()
		}
	}
}

func (s *Set) tell() {
	stands := false
	for _, e := range s.holds {
		stands = stands || Kinds[e.Kind].StopsStoring
	}
	s.changed(s.isReady(), stands)
}

func (s *Set) isReady() bool {
	for _, e := range s.holds {
		if e.NotReady {
			return false
		}
	}
	return true
}

// Ready decides readiness for /readyz, metric, API, page, command line and the replicas' table: the
// service is ready unless a condition makes it not ready.
func (s *Set) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.isReady()
}

// Text returns that of a condition, named by kind, queue and target; "" where it does not hold.
func (s *Set) Text(of Condition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[of.key()].Text
}

// All returns those that hold, in no order.
func (s *Set) All() []Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return slices.Collect(maps.Values(s.holds))
}

// maxOfQueues is how many conditions of queues are listed.
const maxOfQueues = 200

// List returns those that hold in the order of their lines, and of those of queues only the first.
func (s *Set) List() []Condition { return Listed(s.All()) }

// Listed orders conditions by their lines. Of those of queues only the first are left, and one that says
// how many more there are.
func Listed(all []Condition) []Condition {
	var others, queues []Condition
	var last *Condition
	n := 0
	for _, c := range all {
		if !c.OfQueue() {
			others = append(others, c)
			continue
		}
		// Of a hundred thousand only the first are put in order.
		if n++; last != nil && compare(c, *last) > 0 {
			continue
		}
		if queues = append(queues, c); len(queues) == 2*maxOfQueues {
			slices.SortFunc(queues, compare)
			queues = queues[:maxOfQueues]
			last = &queues[maxOfQueues-1]
		}
	}
	slices.SortFunc(queues, compare)
	listed := slices.Concat(others, queues[:min(maxOfQueues, len(queues))])
	slices.SortFunc(listed, compare)
	if n > maxOfQueues {
		more := fmt.Sprintf("%d more have problems", n-maxOfQueues)
		listed = append(listed, Condition{Kind: Unreachable, Queue: "(others)", Text: more})
	}
	return listed
}
