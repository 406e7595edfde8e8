package redrive

import (
	"fmt"
	"time"
)

// Metrics receives what a Client does. Each of its functions may be nil. They are called
// from many goroutines at once and must not block; a panic in one of them is recovered, and
// the first one is logged.
//
// Package redriveprom makes one for Prometheus.
type Metrics struct {
	// Attempt is called after each attempt at a message.
	Attempt func(AttemptEvent)
	// Consumer is called when a consumer has begun to consume its queue, and when it no
	// longer does, since its connection was lost or it was stopped.
	Consumer func(ConsumerEvent)
	// Hook is called for each message that Config.OnParked was called for, or should have been.
	Hook func(HookEvent)
}

// AttemptEvent is one attempt at one message.
type AttemptEvent struct {
	Queue   string
	Attempt int // from 1
	Outcome Outcome
	// Duration is how long the handler took: in a batch, for all its messages together.
	Duration time.Duration
}

// ConsumerEvent is a change of one consumer.
type ConsumerEvent struct {
	Queue     string
	Consuming bool
}

// HookEvent is one call of Config.OnParked.
type HookEvent struct {
	Queue  string
	Result HookResult
}

// HookResult is what became of a call of Config.OnParked.
type HookResult string

const (
	HookReturned HookResult = "returned"
	HookPanicked HookResult = "panicked"
	HookDropped  HookResult = "dropped" // not called, as too many calls were waiting
)

// count calls one of the functions of Config.Metrics, if it is set. A panic there costs what it
// would have counted, and the first one is logged.
func count[E any](c *Client, queue string, f func(E), event E) {
	if f == nil {
		return
	}
	if p := catch(func() { f(event) }); p != nil {
		c.metricsPanic.Do(func() {
			c.config.Log.Error("Config.Metrics panicked; what it counts is incomplete", "queue", queue, "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
		})
	}
}
