package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/wire"
)

// Target returns what would become of messages that are put into a queue.
func (d *deadLetters) Target(ctx context.Context, queue string) (t operations.Target, err error) {
	t, _, err = d.target(ctx, queue)
	return t, err
}

// target also returns how many messages the queue can have before it drops its oldest; 0: no limit.
func (d *deadLetters) target(ctx context.Context, queue string) (t operations.Target, capacity int, err error) {
	t.Room = -1
	consumers, ready, err := d.publisher.Queue(ctx, queue)
	switch {
	case d.followers.rowOf(queue) != nil:
		t.Refused = fmt.Sprintf("the queue %q is followed, so they would come back at once: "+
			"take it out of adopt in the config, or run redrive adopt %[1]s --unfollow", queue)
		return t, 0, nil
	case errors.Is(err, wire.ErrExclusive):
		t.Refused = fmt.Sprintf("the queue %q is exclusive to another connection", queue)
		return t, 0, nil
	case errors.Is(err, wire.ErrQueueGone):
		return t, 0, fmt.Errorf("%w: the queue %q does not exist", inspect.ErrNotFound, queue)
	case err != nil:
		return t, 0, fmt.Errorf("%w: %w", inspect.ErrPrecondition, err)
	case consumers > 0:
		t.Doubt = fmt.Sprintf("the queue %q has consumers (%d): they get what is put back", queue, consumers)
	}
	unknown := errSeesNoQueues
	if d.manage != nil {
		ctx, cancel := context.WithTimeout(ctx, lookWait)
		defer cancel()
		routes, err := d.routes(ctx)
		if err == nil && routes.Queues[queue] != nil {
			at := routes.Queues[queue]
			to, _, _ := routes.DeadLetters(queue)
			switch {
			case at.Type == "stream":
				t.Refused = fmt.Sprintf("the queue %q is a stream", queue)
			case to[wire.QueueIntake]:
				t.Refused = fmt.Sprintf("the queue %q dead-letters to Redrive, so they could come again", queue)
			}
			return t, limitsOf(at.Setting, &t, ready), nil
		}
		if unknown = err; err == nil {
			unknown = fmt.Errorf("RabbitMQ does not list it yet")
		}
	}
	t.Warnings = append(t.Warnings, fmt.Sprintf("whether it is a stream or dead-letters to Redrive, and which "+
		"limits and TTL it has, is not known: %v", unknown))
	return t, 0, nil
}

// limitsOf notes what a queue's settings do to messages that are put into it.
func limitsOf(setting func(string) any, t *operations.Target, ready int) (capacity int) {
	warn := func(format string, args ...any) { t.Warnings = append(t.Warnings, fmt.Sprintf(format, args...)) }
	number := func(name string) (float64, bool) { n, is := setting(name).(float64); return n, is }
	dropped := "RabbitMQ then drops them"
	if exchange, is := setting("dead-letter-exchange").(string); is {
		dropped = fmt.Sprintf("RabbitMQ then dead-letters them to exchange %q", exchange)
	}
	if ttl, is := number("message-ttl"); is {
		warn("in the queue they expire after %s, counted from when they are put back; %s",
			time.Duration(ttl)*time.Millisecond, dropped)
	}
	if unused, is := number("expires"); is {
		warn("RabbitMQ deletes the queue, with its messages, when it was unused for %s",
			time.Duration(unused)*time.Millisecond)
	}
	overflow, _ := setting("overflow").(string)
	rejects := strings.HasPrefix(overflow, "reject-publish")
	if n, is := number("max-length"); is && rejects {
		warn("it takes no more than %d messages; then the operation stops", int(n))
	} else if is {
		capacity, t.Room = max(1, int(n)), max(0, int64(n)-int64(ready))
	}
	if n, is := number("max-length-bytes"); is && rejects {
		warn("it takes no more than %d bytes of messages; then the operation stops", int(n))
	} else if is {
		warn("with more than %d bytes of messages it drops its oldest", int(n))
	}
	return capacity
}

// OpenTarget connects to put messages into a queue.
func (d *deadLetters) OpenTarget(ctx context.Context, queue string) (operations.Sink, error) {
	is, capacity, err := d.target(ctx, queue)
	switch {
	case errors.Is(err, inspect.ErrNotFound):
		return nil, fmt.Errorf("queue %q: %w", queue, wire.ErrQueueGone)
	case err != nil:
		return nil, err
	case is.Refused != "":
		return nil, fmt.Errorf("%s: %w", is.Refused, wire.ErrForbidden)
	}
	return broker.NewPutter(ctx, d.brokerConfig("redrive unadopt"), queue, capacity)
}
