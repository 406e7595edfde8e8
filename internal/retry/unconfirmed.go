package retry

import (
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// firstWindow is how many messages may be in flight to a destination that has not confirmed
	// any lately: so few that many destinations can be stuck at once while the others continue.
	firstWindow  = 16
	windowGrowth = 4
	// maxWindow is the largest window. RabbitMQ has about 400 messages of one destination at a
	// time (see broker.session); the rest is being claimed or settled.
	maxWindow = 2 * maxBatch
	// reservedRoom is how many of InFlight are given out in small parts, so that destinations
	// whose messages are stuck leave something for others.
	reservedRoom, reservedPart = maxBatch / 2, 16
	// windowKept is how long a destination keeps its window while nothing is in flight to it.
	windowKept = 10 * time.Second
)

// flights counts claims that are not settled yet, by destination. A destination that does not
// answer keeps what it has, for as long as RabbitMQ has it, and leaves room for others.
type flights struct {
	mu       sync.Mutex
	messages int
	bytes    int
	by       map[store.Lane]*flight
	swept    time.Time
}

// flight counts what is in flight to one destination.
type flight struct {
	messages, bytes int
	// window is how many messages may be in flight: it grows windowGrowth times with each batch
	// that filled it and succeeded, and starts again when one did not.
	window int
	used   time.Time
	last   chan struct{} // closed when the answers to its latest batch were passed on
}

// destination returns the key that the lanes of several queues to one forward target share.
func destination(l store.Lane) store.Lane {
	if l.Forwards() {
		l.Queue = ""
	}
	return l
}

// of returns the flight to a lane's destination. The caller holds mu.
func (f *flights) of(l store.Lane) *flight {
	to := f.by[destination(l)]
	if to == nil {
		to = &flight{window: firstWindow}
		f.by[destination(l)] = to
	}
	return to
}

// room returns how many messages, and bytes of bodies, may be claimed of a lane now: at most
// half of what others leave, and a small part of reservedRoom. full: there is no room for any
// lane.
func (f *flights) room(l store.Lane, now time.Time) (messages, bytes int, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	free := InFlight - f.messages
	if free <= 0 || f.bytes >= inFlightBytes {
		return 0, 0, true
	}
	to := f.of(l)
	to.used = now
	left := free + to.messages
	most := min(to.window, (left+1)/2)
	if to.window == firstWindow {
		most = min(most, max(1, free/64)) // the next ones' part is smaller
	}
	if free <= reservedRoom {
		most = min(most, max(1, free/reservedPart))
	}
	messages = min(maxBatch, most-to.messages, free)
	bytes = min(batchBytes, (inFlightBytes-f.bytes+to.bytes)/2-to.bytes)
	// Each batch costs a commit: while some are on their way, it waits for more room.
	if to.messages > 0 && messages < max(1, min(maxBatch, most)/4) || bytes <= 0 {
		return 0, 0, false
	}
	return messages, bytes, false
}

// begin counts what was claimed of a lane. filled tells whether it fills the window; previous
// is closed when the answers to the previous batch were passed on, and passedOn is to be
// closed when those to this one were.
func (f *flights) begin(l store.Lane, messages, bytes int) (filled bool, previous <-chan struct{}, passedOn chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.of(l)
	f.messages, f.bytes = f.messages+messages, f.bytes+bytes
	to.messages, to.bytes = to.messages+messages, to.bytes+bytes
	previous, passedOn = to.last, make(chan struct{})
	to.last = passedOn
	return 2*to.messages >= to.window, previous, passedOn
}

// has tells whether messages are in flight to a lane's destination.
func (f *flights) has(l store.Lane) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.by[destination(l)]
	return to != nil && to.messages > 0
}

// end counts what was settled; through tells that all of it went through.
func (f *flights) end(s *sentBatch, through bool) {
	messages, bytes := len(s.claims), bodies(s.claims)
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.of(s.lane)
	f.messages, f.bytes = f.messages-messages, f.bytes-bytes
	to.messages, to.bytes = to.messages-messages, to.bytes-bytes
	switch {
	case !through:
		to.window = firstWindow
	case s.filledWindow:
		to.window = min(windowGrowth*to.window, maxWindow)
	}
}

// sweep forgets, now and then, destinations that nothing is in flight to.
func (f *flights) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.swept) < windowKept {
		return
	}
	f.swept = now
	for l, to := range f.by {
		if to.messages == 0 && now.Sub(to.used) >= windowKept {
			delete(f.by, l)
		}
	}
}
