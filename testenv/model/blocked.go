package model

// SetMemoryAlarm is what happens when RabbitMQ has too little memory, or enough again. While
// it has too little it reads nothing more from a connection that publishes.
func (b *Broker) SetMemoryAlarm(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.low = on; on {
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
	if !c.b.low || c.blocked || c.step != opened {
		return
	}
	c.blocked = true
	if c.canBeBlocked {
		c.send(0, connectionBlocked, func(w *writer) { w.shortstr("low on memory") })
	}
}

// waitUnblocked is called under the broker's lock.
func (c *connection) waitUnblocked() {
	for c.b.low && c.blocked && !c.ended {
		c.b.unblocked.Wait()
	}
}
