package condition

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Set holds the conditions of now. It is safe for concurrent use.
type Set struct {
	changed func(ready, intakeStopped bool) // called when either may have changed

	mu    sync.Mutex
	holds map[key]Condition
	until map[key]time.Time // when one ends by itself, of those that PutFor put
}

// NewSet returns a Set of the conditions in first.
func NewSet(changed func(ready, intakeStopped bool), first ...Condition) *Set {
	s := &Set{changed: changed, holds: map[key]Condition{}, until: map[key]time.Time{}}
	for _, c := range first {
		s.Put(c)
	}
	return s
}

// Put adds or changes a condition, or removes it if c has no text. A condition that was there keeps its
// Since. Put reports whether the text has changed.
func (s *Set) Put(c Condition) (changed bool) { return s.put(c, time.Time{}) }

// PutFor is Put for something that happened once: the condition is removed after d.
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

// expire removes what PutFor has put long enough ago. The caller holds mu.
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
	stopped := false
	for _, c := range s.holds {
		stopped = stopped || Kinds[c.Kind].StopsStoring
	}
	s.changed(s.isReady(), stopped)
}

func (s *Set) isReady() bool {
	for _, e := range s.holds {
		if e.NotReady {
			return false
		}
	}
	return true
}

// Ready reports whether no condition makes the service not ready, for /readyz, metric, API, page, command
// line and replicas alike.
func (s *Set) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.isReady()
}

// Text returns the text of the condition with the kind, queue and target of of, or "" if there is none.
func (s *Set) Text(of Condition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[of.key()].Text
}

// All returns all conditions, unordered.
func (s *Set) All() []Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return slices.Collect(maps.Values(s.holds))
}

// maxOfQueues is how many conditions of queues are listed.
const maxOfQueues = 200

// List returns Listed of all conditions.
func (s *Set) List() []Condition { return Listed(s.All()) }

// Listed sorts conditions by name. It keeps at most maxOfQueues conditions of queues, and adds one that
// counts the others.
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
