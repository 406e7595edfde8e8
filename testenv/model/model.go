// Package model is RabbitMQ in the memory of a test: an AMQP 0-9-1 server that
// amqp091-go connects to with amqp.Config.Dial, also within a bubble of testing/synctest.
//
// It has what test/world needs: one virtual host and user, classic and quorum queues, exchanges, dead
// letters, expiry, memory alarms. What it does not model it refuses with the error 540, which names it.
// The facts of test/facts that do not need more than it has are tried on it as on real brokers. What
// several goroutines do at one instant arrives in the order in which Go runs them.
//
// Read model.go, connection.go and its channels, publish.go with exchanges, queue.go with deliveries and dead letters.
package model

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/testenv/pipe"
)

// Versions are those of RabbitMQ that were measured.
var Versions = []string{"3.10.8", "4.3.6"}

// Options are what differs from broker to broker.
type Options struct {
	Version string // one of Versions
}

// Broker is one RabbitMQ node. One lock guards all of it: a frame is processed wholly
// before the next one, of whatever connection.
type Broker struct {
	options Options
	clock   *clock

	mu          sync.Mutex
	closed      bool
	connections []*connection // oldest first
	exchanges   map[string]*exchange
	queues      map[string]*queue
	low         bool // on memory

	unblocked sync.Cond // a connection is read again, or has ended

	goroutines sync.WaitGroup
}

// New starts one. Close it. Of a version that was not measured it would be made up: New
// panics.
func New(o Options) *Broker {
	if !slices.Contains(Versions, o.Version) {
		panic("the model of RabbitMQ has no version " + o.Version)
	}
	b := &Broker{options: o, clock: &clock{wake: make(chan struct{}, 1), end: make(chan struct{})},
		exchanges: map[string]*exchange{"": {kind: "direct"}}, queues: map[string]*queue{}}
	b.unblocked.L = &b.mu
	b.goroutines.Add(1)
	go b.runClock()
	return b
}

// Dial connects; it is an amqp.Config.Dial, which ignores where to. The connection is a *pipe.End.
func (b *Broker) Dial(string, string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("the model of RabbitMQ is not running")
	}
	client, server := pipe.New("model")
	c := &connection{b: b, end: server, frameMax: frameMax, channelMax: channelMax}
	b.connections = append(b.connections, c)
	b.goroutines.Add(1)
	go c.run()
	return client, nil
}

// Close cuts all connections and waits for the broker's goroutines.
func (b *Broker) Close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.clock.end)
		for _, c := range b.connections {
			_ = c.end.Close() // never fails
		}
		b.low = false
		b.unblocked.Broadcast()
	}
	b.mu.Unlock()
	b.goroutines.Wait()
}

// since4 tells RabbitMQ 4 from 3.
func (b *Broker) since4() bool { return !strings.HasPrefix(b.options.Version, "3.") }

// in names a thing of the virtual host as RabbitMQ's errors do.
func in(kind, name string) string { return kind + " '" + name + "' in vhost '/'" }

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

// set is called under the broker's lock, as cancel is, which does nothing about nil.
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

// QueueState is what RabbitMQ's management API says of a queue.
type QueueState struct {
	Messages int // ready, unacknowledged, and dead letters that it keeps
	Ready    int
}

// Queue tells of a queue; false when there is none of this name.
func (b *Broker) Queue(name string) (QueueState, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil {
		return QueueState{}, false
	}
	n := q.count() + b.unacknowledged(q)
	if q.worker != nil {
		n += q.worker.count()
	}
	return QueueState{Messages: n, Ready: q.count()}, true
}

// unacknowledged counts a queue's messages that clients have.
func (b *Broker) unacknowledged(q *queue) (n int) {
	for _, c := range b.connections {
		for _, ch := range c.channels {
			for _, d := range append(slices.Clone(ch.unacked), ch.flying...) {
				if d.q == q {
					n++
				}
			}
		}
	}
	return n
}
