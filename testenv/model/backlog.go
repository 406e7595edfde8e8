package model

import (
	"cmp"
	"slices"
	"time"
)

// entry is a message in a queue.
type entry struct {
	*message
	position    uint64
	expires     time.Time // zero: never
	redelivered bool

	// Of a quorum queue: how often it was returned, and how often of that as failed. Until
	// RabbitMQ 4.3 the two are one.
	acquired, failed int64
}

// backlog is what a queue has ready. A quorum queue delivers what was returned first, in the
// order in which it was returned.
type backlog struct {
	returned []*entry
	ready    []*entry // by position
	last     uint64   // position
}

func (l *backlog) count() int { return len(l.returned) + len(l.ready) }

// head is the next message; nil without one.
func (l *backlog) head() *entry {
	switch {
	case len(l.returned) > 0:
		return l.returned[0]
	case len(l.ready) > 0:
		return l.ready[0]
	}
	return nil
}

// takeHead removes the next message.
func (l *backlog) takeHead() *entry {
	e := l.head()
	if len(l.returned) > 0 {
		l.returned = l.returned[1:]
	} else {
		l.ready = l.ready[1:]
	}
	return e
}

// add gives a message the last position.
func (l *backlog) add(e *entry) {
	l.last++
	e.position = l.last
	l.insert(e)
}

// insert puts a message where its position is.
func (l *backlog) insert(e *entry) {
	at, _ := slices.BinarySearchFunc(l.ready, e, func(a, b *entry) int {
		return cmp.Compare(a.position, b.position)
	})
	l.ready = slices.Insert(l.ready, at, e)
}

func (l *backlog) clear() { l.returned, l.ready = nil, nil }
