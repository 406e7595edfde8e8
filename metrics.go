package redrive

import (
	"fmt"
	"runtime/debug"
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

// countAttempt, countConsuming and countHook report to Config.Metrics.
func (c *Client) countAttempt(e AttemptEvent) {
	if f := c.config.Metrics.Attempt; f != nil {
		c.measure(e.Queue, func() { f(e) })
	}
}

func (c *Client) countConsuming(queue string, yes bool) {
	if f := c.config.Metrics.Consumer; f != nil {
		c.measure(queue, func() { f(ConsumerEvent{queue, yes}) })
	}
}

func (c *Client) countHook(queue string, r HookResult) {
	if f := c.config.Metrics.Hook; f != nil {
		c.measure(queue, func() { f(HookEvent{queue, r}) })
	}
}

// measure calls a function of Config.Metrics. A panic there costs what it would have
// counted, and is logged once.
func (c *Client) measure(queue string, report func()) {
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			c.metricsPanic.Do(func() {
				c.config.Log.Error("Config.Metrics panicked; what it counts is incomplete", "queue", queue, "panic", fmt.Sprint(p), "stack", string(stack))
			})
		}
	}()
	report()
}
