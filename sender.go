package redrive

import (
	"context"
	"sync"

	"github.com/redrive-mq/redrive/wire"
)

// sender publishes what the handlers of one consumer fail with at the same time together:
// the more there are, the fewer writes and answers a message takes. Each consumer has its
// own, so that a confirm that does not come holds up the answers of no other. They share
// one channel, though. At the first message to a queue whose leader hangs RabbitMQ stops the
// channel: longer than a minute, measured on 3.10.8 and 4.3.6 with a suspended leader.
type sender struct {
	client *Client
	outbox chan *outbound
}

// outbound is one message that the sender publishes.
type outbound struct {
	out    wire.Outgoing
	answer chan error // has room for the answer, which may not be waited for any more
}

// together is how many are published at once at most.
const together = 256

func newSender(c *Client) *sender { return &sender{client: c, outbox: make(chan *outbound)} }

// send waits for RabbitMQ's answer until ctx ends; then the message may have
// arrived or not.
func (s *sender) send(ctx context.Context, out wire.Outgoing) error {
	h := &outbound{out, make(chan error, 1)}
	select {
	case s.outbox <- h:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.client.open.Done():
		return errClosed
	}
	select {
	case err := <-h.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// batch is what was published together.
type batch struct {
	of      []*outbound
	answers func(context.Context) []error
}

// run publishes until ctx ends. One goroutine gathers and publishes; the other
// waits for the answers to what was published before.
func (s *sender) run(ctx context.Context) {
	flight := make(chan batch, 4)
	var answering sync.WaitGroup
	answering.Go(func() {
		for b := range flight {
			for i, err := range b.answers(ctx) {
				b.of[i].answer <- err
			}
		}
	})
	defer answering.Wait()
	defer close(flight)
	for {
		// What waits for a connection, or for the end of an alarm, may still be given up.
		s.client.publish.Await(ctx)
		var b batch
		select {
		case h := <-s.outbox:
			b.of = append(b.of, h)
		case <-ctx.Done():
			return
		}
		for more := true; more && len(b.of) < together; {
			select {
			case h := <-s.outbox:
				b.of = append(b.of, h)
			default:
				more = false
			}
		}
		out := make([]wire.Outgoing, len(b.of))
		for i, h := range b.of {
			out[i] = h.out
		}
		s.client.sending.Lock()
		b.answers = s.client.publish.Send(ctx, out)
		s.client.sending.Unlock()
		flight <- b
	}
}
