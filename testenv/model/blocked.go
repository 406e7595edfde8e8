package model

import (
	"slices"
	"strings"
)

// SetMemoryAlarm is what happens when RabbitMQ has too little memory, or enough again. While
// it has too little it reads nothing more from a connection that publishes.
func (b *Broker) SetMemoryAlarm(on bool) { b.setAlarm("memory", on) }

// SetDiskAlarm is the same for the disk.
func (b *Broker) SetDiskAlarm(on bool) { b.setAlarm("disk", on) }

func (b *Broker) setAlarm(of string, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lowOn = slices.DeleteFunc(b.lowOn, func(other string) bool { return other == of })
	if on {
		b.lowOn = append(b.lowOn, of)
		slices.Sort(b.lowOn) // as RabbitMQ names them
	}
	if len(b.lowOn) > 0 {
		return
	}
	for _, c := range b.connections {
		if c.blocked && !c.ended && c.canBeBlocked {
			c.send(0, connectionUnblock, nil)
		}
		c.blocked = false
	}
	b.unblocked.Broadcast()
}

// block follows a frame of a message: before its next frame nothing is read.
func (c *connection) block() {
	if len(c.b.lowOn) == 0 || c.blocked || c.step != opened {
		return
	}
	c.blocked = true
	if c.canBeBlocked {
		c.send(0, connectionBlocked, func(w *writer) { w.shortstr("low on " + strings.Join(c.b.lowOn, " & ")) })
	}
}

// waitUnblocked is called under the broker's lock.
func (c *connection) waitUnblocked() {
	for len(c.b.lowOn) > 0 && c.blocked && !c.ended {
		c.b.unblocked.Wait()
	}
}
