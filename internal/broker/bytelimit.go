package broker

import "sync"

// byteLimit counts bytes of bodies that were read and are in no batch yet.
type byteLimit struct {
	mu       sync.Mutex
	changed  sync.Cond // any of these
	buffered int
	idle     bool // the consumer waits for a message: one of any size may be read
	lifted   bool // there is no limit any more
}

// maxBuffered bounds the bodies, in bytes, that are read before the consumer needs them.
const maxBuffered = 32 << 20

func (l *byteLimit) init() { l.changed.L = &l.mu }

// add counts n bytes that were read, and waits while there are too many, unless the consumer is
// idle: one message may be larger than the bound. It tells whether it waited.
func (l *byteLimit) add(n int) (waited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buffered += n
	for l.buffered > maxBuffered && !l.idle && !l.lifted {
		waited = true
		l.changed.Wait()
	}
	return waited
}

// remove counts n bytes that are in a batch now.
func (l *byteLimit) remove(n int) { l.change(func() { l.buffered -= n }) }

// setIdle sets whether the consumer waits for a message.
func (l *byteLimit) setIdle(yes bool) { l.change(func() { l.idle = yes }) }

// lift ends the limit, and the wait of add.
func (l *byteLimit) lift() { l.change(func() { l.lifted = true }) }

func (l *byteLimit) change(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
	l.changed.Signal() // one goroutine reads
}
