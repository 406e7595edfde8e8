package throttle

import (
	"time"

	"github.com/google/uuid"
)

// trackedRetries are the latest retries that have not finished yet, in their order. Beyond
// MaxTracked the oldest is forgotten.
type trackedRetries struct {
	unfinished map[uuid.UUID]retry
	order      []entry // from head on; one that is no longer in unfinished has finished
	head       int
}

type retry struct {
	seq uint64
	at  time.Time
}

type entry struct {
	id uuid.UUID
	retry
}

func (t *trackedRetries) add(id uuid.UUID, r retry) {
	if t.unfinished == nil {
		t.unfinished = map[uuid.UUID]retry{}
	}
	t.unfinished[id] = r // a second copy with the same id takes the first's place
	t.order = append(t.order, entry{id, r})
	for len(t.unfinished) > MaxTracked {
		t.pop()
	}
	if len(t.order)-t.head > 2*len(t.unfinished)+1024 { // many failed again long before they would have settled
		t.compact()
	}
}

// remove removes a retry that has finished.
func (t *trackedRetries) remove(id uuid.UUID) (retry, bool) {
	r, ok := t.unfinished[id]
	delete(t.unfinished, id)
	return r, ok
}

// finishBefore finishes those retried before at, and returns up to where all have finished.
func (t *trackedRetries) finishBefore(at time.Time) (to uint64) {
	for t.head < len(t.order) && !t.order[t.head].at.After(at) {
		to = t.order[t.head].seq + 1
		t.pop()
	}
	return to
}

// oldest returns when the first retry that has not finished was made.
func (t *trackedRetries) oldest() (at time.Time, ok bool) {
	for ; t.head < len(t.order); t.pop() {
		if e := &t.order[t.head]; t.unfinished[e.id] == e.retry {
			return e.at, true
		}
	}
	return time.Time{}, false
}

func (t *trackedRetries) pop() {
	e := &t.order[t.head]
	if t.unfinished[e.id] == e.retry {
		delete(t.unfinished, e.id)
	}
	if t.head++; t.head == len(t.order) {
		t.order, t.head = t.order[:0], 0
	} else if t.head > 1024 && t.head > len(t.order)/2 {
		t.compact()
	}
}

func (t *trackedRetries) compact() {
	kept := t.order[:0]
	for _, e := range t.order[t.head:] {
		if t.unfinished[e.id] == e.retry {
			kept = append(kept, e)
		}
	}
	t.order, t.head = kept, 0
}
