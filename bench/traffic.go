package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// onChannel does something on a connection of its own.
func onChannel(url string, do func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(ch)
}

// publish sends n messages to a queue and waits until RabbitMQ has them; with a
// pace, so many per second.
func publish(ctx context.Context, url, queue string, n int, pace float64) error {
	body := []byte(strings.Repeat("x", *size))
	return onChannel(url, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		began := time.Now()
		var last *amqp.DeferredConfirmation
		for i := range n {
			for pace > 0 && float64(i) > time.Since(began).Seconds()*pace {
				if err := pause(ctx, time.Millisecond); err != nil {
					return err
				}
			}
			var err error
			message := amqp.Publishing{MessageId: strconv.Itoa(i), DeliveryMode: amqp.Persistent, Body: body}
			if last, err = ch.PublishWithDeferredConfirm("", queue, false, false, message); err != nil {
				return err
			}
		}
		if ok, err := last.WaitContext(ctx); err != nil || !ok {
			return errors.Join(fmt.Errorf("RabbitMQ did not confirm the messages to %s", queue), err)
		}
		return nil
	})
}

// returns is what the consumer saw.
type returns struct {
	waits            []time.Duration // from reject to return, shortest first
	rejects          float64         // per second
	rate             float64         // returned and acknowledged per second, from the first delivery on
	lost, duplicates int
	ended            time.Time // when the last one came
}

// early counts the waits that were shorter than the delay.
func (r returns) early(delay time.Duration) (n int) {
	for n < len(r.waits) && r.waits[n] < delay {
		n++
	}
	return n
}

// p is a percentile of the waits.
func (r returns) p(percent int) time.Duration {
	if len(r.waits) == 0 {
		return 0
	}
	return r.waits[min(len(r.waits)*percent/100, len(r.waits)-1)]
}

// consume rejects each of n messages once and acknowledges it when it comes back,
// until all have, or ctx ends.
//
// A wait begins before the reject is written and ends when the delivery has been
// read, so it is never shorter than what the broker and the service saw: a wait
// below the delay is truly early.
func consume(ctx context.Context, url, queue string, n int, requeue bool) (r returns, err error) {
	err = onChannel(url, func(ch *amqp.Channel) error {
		if err := ch.Qos(1000, 0, false); err != nil {
			return err
		}
		const tag = "bench"
		in, err := ch.Consume(queue, tag, false, false, false, false, nil)
		if err != nil {
			return err
		}
		f := failOnce{returns: &r, requeue: requeue, rejected: make([]time.Time, n), back: make([]bool, n), left: n}
		for f.left > 0 {
			select {
			case <-ctx.Done():
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					r.lost = f.left
					return nil
				}
				return ctx.Err()
			case d, ok := <-in:
				if !ok {
					return fmt.Errorf("the channel of the consumer of %s closed", queue)
				}
				if err := f.handle(d); err != nil {
					return fmt.Errorf("the consumer of %s: %w", queue, err)
				}
			}
		}
		f.finish()
		// A connection that closes right after many acknowledgements can undo
		// some, and the next round would meet their messages.
		return ch.Cancel(tag, false)
	})
	slices.Sort(r.waits)
	return r, err
}

// failOnce rejects each message the first time, and acknowledges it after that.
type failOnce struct {
	*returns
	requeue     bool
	rejected    []time.Time // when, by the message's number
	back        []bool
	left        int       // messages that have not come back
	rejections  int       // of all messages
	first, last time.Time // rejection
}

func (f *failOnce) handle(d amqp.Delivery) error {
	now := time.Now()
	id, err := strconv.Atoi(d.MessageId)
	if err != nil || id < 0 || id >= len(f.back) {
		return fmt.Errorf("message %q was delivered and never published", d.MessageId)
	}
	if f.rejected[id].IsZero() {
		if f.rejections++; f.rejections == 1 {
			f.first = now
		}
		f.last, f.rejected[id] = now, now
		return d.Reject(f.requeue)
	}
	if f.back[id] {
		f.duplicates++
	} else {
		f.left--
	}
	f.back[id], f.ended = true, now
	f.waits = append(f.waits, now.Sub(f.rejected[id]))
	return d.Ack(false)
}

// finish fills in the rates, when all have come back.
func (f *failOnce) finish() {
	f.rate = float64(len(f.back)) / time.Since(f.first).Seconds()
	if f.rejections > 1 {
		f.rejects = float64(f.rejections-1) / f.last.Sub(f.first).Seconds()
	}
}
