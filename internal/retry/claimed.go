package retry

import (
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// firstWindow is how many messages may be claimed for a destination that has not confirmed
	// any lately: so few that many destinations can be unreachable at once while the others continue.
	firstWindow  = 16
	windowGrowth = 4
	// maxWindow is the largest window: what a destination that hangs may take from the others.
	maxWindow = 2 * maxBatch
	// firstPart: a destination with its first window may have 1/firstPart of what is free, so
	// that something is left for the next ones.
	firstPart = 64
	// While no more than reserve is free, a destination may have 1/reservePart of what is free:
	// those that are unreachable leave something for others.
	reserve, reservePart = maxBatch / 2, 16
	// windowKept is how long a destination keeps its window while nothing is claimed for it.
	windowKept = 10 * time.Second
)

// claimed counts claims that are not finished yet, by destination. One for which RabbitMQ does
// not confirm keeps its part for that long, and leaves the rest to others.
type claimed struct {
	mu       sync.Mutex
	messages int
	bytes    int
	// perDestination has the window of each, by windowKey.
	perDestination map[store.Lane]*laneWindow
	idleForgotten  time.Time
}

// laneWindow counts what is claimed for one destination, and bounds it. Lanes that forward to
// the same target share one.
type laneWindow struct {
	messages, bytes int
	// size is how many messages may be claimed. It grows windowGrowth times with each batch
	// that filled half of it and was confirmed, and is firstWindow again when one was not.
	size int
	used time.Time
	last chan struct{} // closed when the answers to its latest batch were passed on
}

// windowKey returns the lane, or the key that the lanes of several queues to one forward target
// share.
func windowKey(l store.Lane) store.Lane {
	if l.Forwards() {
		l.Queue = ""
	}
	return l
}

// windowOf returns the window of a lane's destination. The caller holds mu.
func (c *claimed) windowOf(l store.Lane) *laneWindow {
	w := c.perDestination[windowKey(l)]
	if w == nil {
		w = &laneWindow{size: firstWindow}
		c.perDestination[windowKey(l)] = w
	}
	return w
}

// mayClaim returns how many messages, and bytes of bodies, may be claimed of a lane now: at most
// half of what others leave, and a small part of the reserve. full tells that nothing may be
// claimed of any lane.
func (c *claimed) mayClaim(l store.Lane, now time.Time) (messages, bytes int, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := MaxClaimed - c.messages
	if free <= 0 || c.bytes >= maxClaimedBytes {
		return 0, 0, true
	}
	w := c.windowOf(l)
	w.used = now
	left := free + w.messages
	most := min(w.size, (left+1)/2)
	if w.size == firstWindow {
		most = min(most, max(1, free/firstPart))
	}
	if free <= reserve {
		most = min(most, max(1, free/reservePart))
	}
	messages = min(maxBatch, most-w.messages, free)
	bytes = min(batchBytes, (maxClaimedBytes-c.bytes+w.bytes)/2-w.bytes)
	// Each batch costs a commit: while some are on their way, it waits until it can be larger.
	if w.messages > 0 && messages < max(1, min(maxBatch, most)/4) || bytes <= 0 {
		return 0, 0, false
	}
	return messages, bytes, false
}

// begin counts what was claimed of a lane. halfFull tells whether at least half of the window is in
// use with it; previous is closed when the answers to the previous batch were passed on, and passedOn is to be
// closed when those to this one were.
func (c *claimed) begin(l store.Lane, messages, bytes int) (halfFull bool, previous <-chan struct{}, passedOn chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.windowOf(l)
	c.messages, c.bytes = c.messages+messages, c.bytes+bytes
	w.messages, w.bytes = w.messages+messages, w.bytes+bytes
	previous, passedOn = w.last, make(chan struct{})
	w.last = passedOn
	return 2*w.messages >= w.size, previous, passedOn
}

// has tells whether messages are claimed for a lane's destination.
func (c *claimed) has(l store.Lane) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.perDestination[windowKey(l)]
	return w != nil && w.messages > 0
}

// end counts a batch whose claims are finished; confirmed tells that none of them waits again.
func (c *claimed) end(s *sentBatch, confirmed bool) {
	messages, bytes := len(s.claims), bodies(s.claims)
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.windowOf(s.lane)
	c.messages, c.bytes = c.messages-messages, c.bytes-bytes
	w.messages, w.bytes = w.messages-messages, w.bytes-bytes
	switch {
	case !confirmed:
		w.size = firstWindow
	case s.halfFull:
		w.size = min(windowGrowth*w.size, maxWindow)
	}
}

// forgetIdle forgets, now and then, destinations that nothing is claimed for.
func (c *claimed) forgetIdle(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.idleForgotten) < windowKept {
		return
	}
	c.idleForgotten = now
	for l, w := range c.perDestination {
		if w.messages == 0 && now.Sub(w.used) >= windowKept {
			delete(c.perDestination, l)
		}
	}
}
