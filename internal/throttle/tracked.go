package throttle

import (
	"container/list"
	"time"

	"github.com/google/uuid"
)

// trackedRetries are the latest retries of which it is not known yet whether they fail again, in
// their order. Beyond MaxTracked the oldest is forgotten. The zero value has none.
type trackedRetries struct {
	byID  map[uuid.UUID]*list.Element // of order
	order list.List                   // the oldest first; each Value is a trackedRetry
}

type retry struct {
	seq uint64
	at  time.Time
}

type trackedRetry struct {
	id uuid.UUID
	retry
}

func (t *trackedRetries) add(id uuid.UUID, r retry) {
	if t.byID == nil {
		t.byID = map[uuid.UUID]*list.Element{}
	}
	t.remove(id) // a second copy with the same id takes the first's place
	t.byID[id] = t.order.PushBack(trackedRetry{id, r})
	if len(t.byID) > MaxTracked {
		t.removeOldest()
	}
}

func (t *trackedRetries) remove(id uuid.UUID) (retry, bool) {
	e := t.byID[id]
	if e == nil {
		return retry{}, false
	}
	delete(t.byID, id)
	return t.order.Remove(e).(trackedRetry).retry, true
}

func (t *trackedRetries) removeOldest() {
	delete(t.byID, t.order.Remove(t.order.Front()).(trackedRetry).id)
}

// finishBefore removes those that were retried at a time or before, and returns the sequence
// number up to which it has.
func (t *trackedRetries) finishBefore(at time.Time) (to uint64) {
	for r, ok := t.oldest(); ok && !r.at.After(at); r, ok = t.oldest() {
		to = r.seq + 1
		t.removeOldest()
	}
	return to
}

func (t *trackedRetries) oldest() (r retry, ok bool) {
	if e := t.order.Front(); e != nil {
		return e.Value.(trackedRetry).retry, true
	}
	return r, false
}
