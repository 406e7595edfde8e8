package redrive

import (
	"hash/maphash"
	"sync"
	"time"
)

// nativeEarly detects that a work queue of Native delays less than the policy: it has no
// delay arguments, or others. RabbitMQ shows its clients no arguments, so one rejected message
// at a time is watched until it should be delivered again.
type nativeEarly struct {
	mu       sync.Mutex
	key      uint64 // of the message that is watched
	rejected time.Time
	wait     time.Duration
	reported bool
}

var nativeSeed = maphash.MakeSeed()

// contentKey distinguishes messages by their content: they carry no id of ours.
func contentKey(m *Message, attempt int) uint64 {
	var h maphash.Hash
	h.SetSeed(nativeSeed)
	for _, s := range []string{m.MessageID, m.CorrelationID, m.Timestamp.String(), string(rune(attempt))} {
		h.WriteString(s)
		h.WriteByte(0)
	}
	h.Write(m.Body)
	return h.Sum64()
}

// watch must be called before a message is rejected that is to be delivered again after wait.
func (e *nativeEarly) watch(m *Message, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); !e.reported && now.Sub(e.rejected) >= e.wait {
		e.key, e.rejected, e.wait = contentKey(m, m.Attempt+1), now, wait
	}
}

// check reports, once, that a message was delivered again too soon: after took instead of wait.
func (e *nativeEarly) check(m *Message) (took, wait time.Duration, soon bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	took = time.Since(e.rejected)
	if e.reported || m.Attempt == 1 || took >= e.wait || contentKey(m, m.Attempt) != e.key {
		return 0, 0, false
	}
	e.reported = true
	return took, e.wait, true
}

// checkEarly logs that a queue does not delay its messages as its policy asks.
func (a *acknowledger) checkEarly(m *Message) {
	if !a.limits.QueueCounts {
		return
	}
	if took, wait, soon := a.early.check(m); soon {
		a.log.Error("a rejected message was delivered again too soon: the work queue does not delay it as the policy says; declare the queue with redrive.NativeArguments, or set delayed-retry-type, -min and -max by a RabbitMQ policy",
			"queue", a.consumer.Queue, "attempt", m.Attempt, "took", took, "wait", wait)
	}
}
