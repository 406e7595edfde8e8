package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// arrivals is a consumer that acknowledges all and knows what came. What it counts
// is to be read after wait and stop.
type arrivals struct {
	left, duplicates, unmarked int
	first                      []string // of each message, its marks
	last                       time.Time

	mu      sync.Mutex
	all     chan struct{} // closed when each has come
	cancel  context.CancelFunc
	ended   chan struct{}
	failure error
}

// arrive consumes n messages from the work queue, and on until it is stopped.
func arrive(ctx context.Context, url string, n int) *arrivals {
	a := &arrivals{left: n, first: make([]string, n), all: make(chan struct{}), ended: make(chan struct{})}
	ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.ended)
		a.failure = onChannel(url, func(ch *amqp.Channel) error { return a.consume(ctx, ch) })
	}()
	return a
}

func (a *arrivals) consume(ctx context.Context, ch *amqp.Channel) error {
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(work, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-in:
			if !ok {
				return errors.New("the channel of the consumer closed")
			}
			if err := a.came(d); err != nil {
				return err
			}
			// One ack for many, unless nothing else is there.
			if n%256 == 0 || len(in) == 0 {
				if err := d.Ack(true); err != nil {
					return err
				}
			}
		}
	}
}

func (a *arrivals) came(d amqp.Delivery) error {
	id, err := strconv.Atoi(d.MessageId)
	if err != nil || id < 0 || id >= len(a.first) {
		return fmt.Errorf("a message %q arrived that was not sent", d.MessageId)
	}
	marks := fmt.Sprint("marks ", d.Headers[wire.HeaderID], d.Headers[wire.HeaderAttempt])
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
	switch {
	case a.first[id] == "":
		a.first[id] = marks
		if a.left--; a.left == 0 {
			close(a.all)
		}
	case a.first[id] != marks:
		a.unmarked++
		fallthrough
	default:
		a.duplicates++
	}
	return nil
}

// wait waits until each has come; after a while with no more of them, no longer.
func (a *arrivals) wait(ctx context.Context) error {
	for before, rest := 0, 0; ; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the messages: %w", ctx.Err())
		case <-a.ended:
			return a.failure
		case <-a.all:
			return nil
		case <-time.After(time.Second):
		}
		a.mu.Lock()
		left := a.left
		a.mu.Unlock()
		if rest++; left != before {
			before, rest = left, 0
		}
		if rest == 30 {
			return nil // lost
		}
	}
}

// quiet waits until nothing came for a second.
func (a *arrivals) quiet(ctx context.Context) error {
	for {
		a.mu.Lock()
		since := time.Since(a.last)
		a.mu.Unlock()
		if since > time.Second {
			return nil
		}
		if err := pause(ctx, time.Second-since+time.Millisecond); err != nil {
			return err
		}
	}
}

func (a *arrivals) stop() error {
	a.cancel()
	<-a.ended
	return a.failure
}

// rate is of all from a moment on.
func (a *arrivals) rate(began time.Time) float64 {
	if a.left > 0 {
		return 0
	}
	return float64(len(a.first)) / a.last.Sub(began).Seconds()
}
