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
	return publishEach(ctx, url, "", queue, n, pace, func(i int) amqp.Publishing {
		return amqp.Publishing{MessageId: strconv.Itoa(i), DeliveryMode: amqp.Persistent, Body: body}
	})
}

// publishEach is publish with messages that differ.
func publishEach(ctx context.Context, url, exchange, key string, n int, pace float64,
	message func(i int) amqp.Publishing) error {
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
			if last, err = ch.PublishWithDeferredConfirm(exchange, key, false, false, message(i)); err != nil {
				return err
			}
		}
		if ok, err := last.WaitContext(ctx); err != nil || !ok {
			return errors.Join(fmt.Errorf("RabbitMQ did not confirm the messages to %s", key), err)
		}
		return nil
	})
}

const prefetch = 1000

// eachDelivery handles what a queue delivers until handle is done, or ctx ends.
func eachDelivery(ctx context.Context, url, queue string, handle func(amqp.Delivery) (done bool, err error)) error {
	return onChannel(url, func(ch *amqp.Channel) error {
		if err := ch.Qos(prefetch, 0, false); err != nil {
			return err
		}
		const tag = "bench"
		in, err := ch.Consume(queue, tag, false, false, false, false, nil)
		if err != nil {
			return err
		}
		for done := false; !done; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case d, ok := <-in:
				if !ok {
					return fmt.Errorf("the channel of the consumer of %s closed", queue)
				}
				if done, err = handle(d); err != nil {
					return fmt.Errorf("the consumer of %s: %w", queue, err)
				}
			}
		}
		// A connection that closes right after many acknowledgements can undo
		// some, and the next round would meet their messages.
		return ch.Cancel(tag, false)
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

// failure is an error if any message came early, more than once, or not at all.
func (r returns) failure(delay time.Duration) error {
	if early := r.early(delay); early+r.lost+r.duplicates > 0 {
		return fmt.Errorf("%d early, %d lost, %d duplicates", early, r.lost, r.duplicates)
	}
	return nil
}

// consume rejects each of n messages once and acknowledges it when it comes back,
// until all have, or the time of ctx is over.
//
// A wait begins before the reject is written and ends when the delivery has been
// read, so it is never shorter than what the broker and the service saw: a wait
// below the delay is truly early.
func consume(ctx context.Context, url, queue string, n int, requeue bool) (r returns, err error) {
	rejected, back := make([]time.Time, n), make([]bool, n) // by the message's number
	var first, last time.Time                               // rejection
	rejections, left := 0, n
	err = eachDelivery(ctx, url, queue, func(d amqp.Delivery) (bool, error) {
		now := time.Now()
		id, err := strconv.Atoi(d.MessageId)
		if err != nil || id < 0 || id >= n {
			return false, fmt.Errorf("message %q was delivered and never published", d.MessageId)
		}
		if rejected[id].IsZero() {
			if rejections++; rejections == 1 {
				first = now
			}
			last, rejected[id] = now, now
			return false, d.Reject(requeue)
		}
		if back[id] {
			r.duplicates++
		} else {
			left--
		}
		back[id], r.ended = true, now
		r.waits = append(r.waits, now.Sub(rejected[id]))
		return left == 0, d.Ack(false)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err, r.lost = nil, left
	}
	r.rate = float64(n-left) / time.Since(first).Seconds()
	r.rejects = float64(rejections-1) / last.Sub(first).Seconds()
	slices.Sort(r.waits)
	return r, err
}
