package upstream

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Consumer calls an upstream for each delivery of a queue, acknowledges what it has
// done and rejects the rest. Its messages are numbered from 0, by their message id.
type Consumer struct {
	Upstream *Upstream
	Requeue  bool // rejected messages, at once
	// Drained is closed when all that Mark has marked are done.
	Drained chan struct{}

	mu     sync.Mutex
	sent   int         // messages
	done   map[int]int // how often each was
	marked int         // those below have to be drained,
	left   int         // and so many of them are left
}

// NewConsumer makes one; Run it.
func NewConsumer(u *Upstream, requeue bool) *Consumer {
	return &Consumer{Upstream: u, Requeue: requeue, Drained: make(chan struct{}), done: map[int]int{}}
}

// Publishes receives each number before it is published.
func (c *Consumer) Publishes(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = i + 1
}

// Mark makes all that were published the backlog, and tells how many are not done. It
// is called once.
func (c *Consumer) Mark() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked = c.sent
	for i := range c.marked {
		if c.done[i] == 0 {
			c.left++
		}
	}
	if c.left == 0 {
		close(c.Drained)
	}
	return c.left
}

func (c *Consumer) does(id string) {
	i, _ := strconv.Atoi(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[i]++
	if i < c.marked && c.done[i] == 1 {
		if c.left--; c.left == 0 {
			close(c.Drained)
		}
	}
}

// Account is how many of the backlog are not done, and how many of all were twice.
func (c *Consumer) Account() (left, duplicates int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.done {
		if times > 1 {
			duplicates++
		}
	}
	return c.left, duplicates
}

// Run consumes the queue until ctx ends.
func (c *Consumer) Run(ctx context.Context, ch *amqp.Channel, queue string) error {
	if err := ch.Qos(200, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(queue, "storm", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-in:
			if !ok {
				return fmt.Errorf("the channel of the consumer of %s closed", queue)
			}
			if !c.Upstream.Call(d.MessageId, time.Now()) {
				err = d.Reject(c.Requeue)
			} else {
				err = d.Ack(false)
				c.does(d.MessageId)
			}
			if err != nil {
				return err
			}
		}
	}
}
