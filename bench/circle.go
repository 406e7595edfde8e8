package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// circle is a consumer that rejects all that comes, again and again, until it is stopped
// to finish: then each message is acknowledged.
type circle struct {
	came      atomic.Int64
	finishing atomic.Bool
	left      atomic.Int64 // not acknowledged
	doubled   atomic.Int64

	cancel  context.CancelFunc
	ended   chan struct{}
	failure error
}

func startCircle(ctx context.Context, url string, n int) *circle {
	c := &circle{ended: make(chan struct{})}
	c.left.Store(int64(n))
	ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer close(c.ended)
		c.failure = onChannel(url, func(ch *amqp.Channel) error { return c.consume(ctx, ch, n) })
	}()
	return c
}

func (c *circle) consume(ctx context.Context, ch *amqp.Channel, n int) error {
	if err := ch.Qos(1000, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(work, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	next := make([]int64, n) // of each message, the least attempt that is not a copy of one that came
	for c.left.Load() > 0 {
		var d amqp.Delivery
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case d, ok = <-in:
		}
		if !ok {
			return fmt.Errorf("the channel of the consumer of %s closed", work)
		}
		id, err := strconv.Atoi(d.MessageId)
		if err != nil || id < 0 || id >= n {
			return fmt.Errorf("a message %q arrived from %s that was not sent", d.MessageId, work)
		}
		attempt, _ := d.Headers[wire.HeaderAttempt].(int64) // the first has none
		switch {
		case attempt < next[id]:
			c.doubled.Add(1)
			err = d.Ack(false)
		case c.finishing.Load():
			c.left.Add(-1)
			err = d.Ack(false)
		default:
			c.came.Add(1)
			err = d.Reject(false)
		}
		if err != nil {
			return err
		}
		next[id] = attempt + 1
	}
	return nil
}

// pause lets it go on for a while.
func (c *circle) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return c.failure
	case <-time.After(d):
		return nil
	}
}

// finish waits until each message is acknowledged; when no more come, no longer.
func (c *circle) finish(ctx context.Context) (lost, duplicates int, err error) {
	c.finishing.Store(true)
	for before, quiet := int64(-1), 0; quiet < 30; quiet++ {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-c.ended:
			return int(c.left.Load()), int(c.doubled.Load()), c.failure
		case <-time.After(time.Second):
		}
		if left := c.left.Load(); left != before {
			before, quiet = left, 0
		}
	}
	return int(c.left.Load()), int(c.doubled.Load()), nil
}

func (c *circle) stop() {
	c.cancel()
	<-c.ended
}
