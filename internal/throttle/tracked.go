package throttle

import (
	"time"

	"github.com/google/uuid"
)

// flight is what was retried lately and is not judged yet, in the order of its retries.
// At most MostTracked: beyond that the oldest is forgotten.
type flight struct {
	out   map[uuid.UUID]returned
	order []entry // from head on; what is no longer in out has ended already
	head  int
}

type returned struct {
	seq uint64
	at  time.Time
}

type entry struct {
	id uuid.UUID
	returned
}

func (f *flight) add(id uuid.UUID, r returned) {
	if f.out == nil {
		f.out = map[uuid.UUID]returned{}
	}
	f.out[id] = r // a second copy with the same id takes the first's place
	f.order = append(f.order, entry{id, r})
	for len(f.out) > MostTracked {
		f.pop()
	}
	if len(f.order)-f.head > 2*len(f.out)+1024 { // many ended long before they were quiet
		f.compact()
	}
}

// take ends one.
func (f *flight) take(id uuid.UUID) (returned, bool) {
	r, ok := f.out[id]
	delete(f.out, id)
	return r, ok
}

// quiet judges those retried before at, and tells up to where all are judged.
func (f *flight) quiet(at time.Time) (to uint64) {
	for f.head < len(f.order) && !f.order[f.head].at.After(at) {
		to = f.order[f.head].seq + 1
		f.pop()
	}
	return to
}

// oldest is when the first that is not judged was retried.
func (f *flight) oldest() (at time.Time, ok bool) {
	for ; f.head < len(f.order); f.pop() {
		if e := &f.order[f.head]; f.out[e.id] == e.returned {
			return e.at, true
		}
	}
	return time.Time{}, false
}

func (f *flight) pop() {
	e := &f.order[f.head]
	if f.out[e.id] == e.returned {
		delete(f.out, e.id)
	}
	if f.head++; f.head == len(f.order) {
		f.order, f.head = f.order[:0], 0
	} else if f.head > 1024 && f.head > len(f.order)/2 {
		f.compact()
	}
}

func (f *flight) compact() {
	kept := f.order[:0]
	for _, e := range f.order[f.head:] {
		if f.out[e.id] == e.returned {
			kept = append(kept, e)
		}
	}
	f.order, f.head = kept, 0
}
