package model

import (
	"slices"
	"time"
)

// alarm is something to do at a time. Those of the same time are done in the order in which
// they were set.
type alarm struct {
	at time.Time
	do func()
}

// clock does what is due, in one goroutine, under the broker's lock.
type clock struct {
	alarms []*alarm // the next one first
	wake   chan struct{}
	end    chan struct{}
}

func newClock() *clock {
	return &clock{wake: make(chan struct{}, 1), end: make(chan struct{})}
}

// set is called under the broker's lock, as cancel is.
func (c *clock) set(at time.Time, do func()) *alarm {
	a := &alarm{at, do}
	i := slices.IndexFunc(c.alarms, func(other *alarm) bool { return other.at.After(at) })
	if i < 0 {
		i = len(c.alarms)
	}
	c.alarms = slices.Insert(c.alarms, i, a)
	if i == 0 {
		select {
		case c.wake <- struct{}{}:
		default: // it wakes anyway
		}
	}
	return a
}

func (c *clock) cancel(a *alarm) {
	if i := slices.Index(c.alarms, a); i >= 0 {
		c.alarms = slices.Delete(c.alarms, i, i+1)
	}
}

// runClock ends with the broker. Which of the cases of its select comes first decides nothing:
// after each it looks at the alarms again.
func (b *Broker) runClock() {
	defer b.goroutines.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		b.mu.Lock()
		for len(b.clock.alarms) > 0 && !b.clock.alarms[0].at.After(time.Now()) {
			next := b.clock.alarms[0]
			b.clock.alarms = b.clock.alarms[1:]
			next.do()
		}
		timer.Stop()
		if len(b.clock.alarms) > 0 {
			timer.Reset(time.Until(b.clock.alarms[0].at))
		}
		b.mu.Unlock()
		select {
		case <-timer.C:
		case <-b.clock.wake:
		case <-b.clock.end:
			return
		}
	}
}
