// Package model is RabbitMQ in the memory of a test: an AMQP 0-9-1 server that
// amqp091-go connects to with amqp.Config.Dial, also within a bubble of testing/synctest.
//
// It has what test/world needs: one virtual host and user, classic and quorum queues, exchanges, dead
// letters, expiry, memory alarms. What it does not model it refuses with the error 540, which names it.
// The facts of test/facts that do not need more than it has are tried on it as on real brokers. What
// several goroutines do at one instant arrives in the order in which Go runs them.
//
// Read model.go, connection.go and channel.go, then publish.go, exchange.go, queue.go, deliver.go and
// deadletter.go, then quorum.go and worker.go.
package model

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-mq/redrive/testenv/pipe"
)

// Versions are those of RabbitMQ that were measured.
var Versions = []string{"3.10.8", "4.3.6"}

// Options are what differs from broker to broker.
type Options struct {
	Version string // one of Versions
	VHost   string // default "/"
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
	names       int  // made by the broker so far
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
	if o.VHost == "" {
		o.VHost = "/"
	}
	b := &Broker{options: o, clock: newClock(), exchanges: map[string]*exchange{}, queues: map[string]*queue{}}
	for _, x := range []struct{ name, kind string }{
		{"", "direct"}, {"amq.direct", "direct"}, {"amq.fanout", "fanout"},
		{"amq.topic", "topic"}, {"amq.headers", "headers"}, {"amq.match", "headers"},
	} {
		b.exchanges[x.name] = &exchange{name: x.name, kind: x.kind, durable: true}
	}
	b.unblocked.L = &b.mu
	b.goroutines.Add(1)
	go b.runClock()
	return b
}

// Dial connects; it is an amqp.Config.Dial, which ignores where to.
func (b *Broker) Dial(string, string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("the model of RabbitMQ is not running")
	}
	client, server := pipe.New("model")
	c := newConnection(b, server)
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
func (b *Broker) in(kind, name string) string {
	return kind + " '" + name + "' in vhost '" + b.options.VHost + "'"
}
