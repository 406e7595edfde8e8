package broker

import "sync/atomic"

// byteLimit counts bytes of bodies that were read and are in no batch yet.
type byteLimit struct {
	buffered atomic.Int64
	freed    chan struct{}
	lifted   chan struct{}
	isLifted atomic.Bool
	idle     atomic.Bool // the consumer waits for a message: one of any size may be read
}

// maxBuffered bounds the bodies, in bytes, that are read before the consumer needs them.
const maxBuffered = 32 << 20

func (l *byteLimit) init() { l.freed, l.lifted = make(chan struct{}, 1), make(chan struct{}) }

// add counts n bytes that were read, and waits while there are too many, unless the consumer is
// idle: one message may be larger than the bound. It tells whether it waited.
func (l *byteLimit) add(n int) (waited bool) {
	if l.isLifted.Load() { // open: nothing is counted out
		return false
	}
	for now := l.buffered.Add(int64(n)); now > maxBuffered && !l.idle.Load(); now = l.buffered.Load() {
		waited = true
		select {
		case <-l.freed:
		case <-l.lifted:
			return waited
		}
	}
	return waited
}

// remove counts n bytes that are in a batch now.
func (l *byteLimit) remove(n int) {
	l.buffered.Add(-int64(n))
	l.signal()
}

// setIdle sets whether the consumer waits for a message.
func (l *byteLimit) setIdle(yes bool) {
	l.idle.Store(yes)
	if yes {
		l.signal()
	}
}

func (l *byteLimit) signal() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

func (l *byteLimit) lift() {
	if l.isLifted.CompareAndSwap(false, true) {
		close(l.lifted)
	}
}
