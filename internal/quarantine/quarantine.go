// Package quarantine lists and removes messages that RabbitMQ could not deliver to Redrive:
//
//	quarantine.go  listing and removing, by AMQP or else by the management API
//	rescue.go      a file for a message that RabbitMQ removed and that was not kept yet
//	message.go     which queue a message failed in, and how it is retried
package quarantine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// Quarantine is the queue redrive.quarantine of a virtual host.
type Quarantine struct {
	Broker broker.Config      // RabbitMQ, by AMQP
	API    *management.Client // for what RabbitMQ can deliver to no AMQP client

	forgeable bool // as broker.Quarantine has it
}

var (
	// ErrLimit: listing could use up a delivery limit, and RabbitMQ would drop messages.
	ErrLimit = errors.New("not looked at")
	// ErrNotReady: a message that RabbitMQ could not deliver did not return to the queue's head.
	ErrNotReady = errors.New("nothing more was taken out")
	// errAPI: the management API is needed for messages that RabbitMQ cannot deliver.
	errAPI = errors.New("RabbitMQ ends each connection that the next message is delivered to, and reading it by the management API (broker.management) failed")
)

// CheckLimit refuses to list where a policy's delivery limit is so small that it could be used
// up: listing by AMQP gets messages and requeues them, which counts as a delivery.
func (q *Quarantine) CheckLimit(ctx context.Context) error {
	s, err := q.API.QueueState(ctx, wire.QueueQuarantine)
	if err != nil {
		return fmt.Errorf("%w: each look counts as a delivery, and the delivery limit in force of %s could not be found out: %w (--unchecked looks all the same)", ErrLimit, wire.QueueQuarantine, err)
	}
	if limit, limited := s.LimitInForce(""); limited && limit < safeLimit {
		return fmt.Errorf("%w: each look counts as a delivery, and the delivery limit in force of %s is %d, by a RabbitMQ policy (%s %s): beyond it RabbitMQ drops messages. Let its pattern leave out names that begin with redrive. (redrive doctor has the command)",
			ErrLimit, wire.QueueQuarantine, limit, s.Policy, s.OperatorPolicy)
	}
	return nil
}

// safeLimit is a delivery limit that listing never reaches.
const safeLimit = 1_000_000

func (q *Quarantine) open(ctx context.Context) (*broker.Quarantine, error) {
	at, err := broker.OpenQuarantine(ctx, q.Broker)
	if err == nil {
		q.forgeable = at.Forgeable
	}
	return at, err
}

// Forgeable asks RabbitMQ whether a publisher can forge the queue that a message is said to
// have failed in.
func (q *Quarantine) Forgeable(ctx context.Context) (bool, error) {
	at, err := q.open(ctx)
	if err != nil {
		return false, err
	}
	at.Close()
	return at.Forgeable, nil
}

func (q *Quarantine) read(m *wire.Message) *Message {
	x := read(m)
	x.Claimed = q.forgeable && x.Queue != ""
	return x
}

// List returns up to most messages from the oldest on, without their bodies, and leaves them
// in their places. total is how many there were.
func (q *Quarantine) List(ctx context.Context, most int) (all []*Message, total int, err error) {
	at, err := q.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	total = at.Ready
	defer at.Close()
	for len(all) < most && ctx.Err() == nil {
		m, _, ok, err := at.Get()
		if errors.Is(err, broker.ErrUndeliverable) {
			all, err = q.listByAPI(ctx, min(most, total), total)
			return all, total, err
		}
		if err != nil || !ok {
			return all, total, err
		}
		x := q.read(m)
		x.Body = nil
		all = append(all, x)
	}
	return all, total, ctx.Err()
}

// listByAPI asks the management API, once all are back in the queue.
func (q *Quarantine) listByAPI(ctx context.Context, most, total int) (all []*Message, err error) {
	if err := q.awaitRequeue(ctx, total); err != nil {
		return nil, err
	}
	got, err := q.API.Get(ctx, wire.QueueQuarantine, most, true, 1)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAPI, err)
	}
	for i := range got {
		m, err := got[i].Message()
		if err != nil {
			return nil, err
		}
		x := q.read(m)
		x.Size, x.Body, x.ByAPI = got[i].Bytes, nil, true
		all = append(all, x)
	}
	return all, nil
}

// Remove passes up to most messages to keep, the oldest first, and removes each once keep has
// returned nil: then it must be durable elsewhere. A crash in between leaves it in both.
func (q *Quarantine) Remove(ctx context.Context, most int, keep func(*Message) error) (n int, err error) {
	pending := map[string]int{}
	for n < most {
		removed, ready, err := q.removeByAMQP(ctx, most-n, keep)
		n += removed
		if !errors.Is(err, broker.ErrUndeliverable) {
			return n, err
		}
		if err := q.awaitRequeue(ctx, max(1, ready-removed)); err != nil {
			return n, err
		}
		removed, err = q.removeByAPI(ctx, keep, pending)
		n += removed
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (q *Quarantine) removeByAMQP(ctx context.Context, most int, keep func(*Message) error) (n, ready int, err error) {
	at, err := q.open(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer at.Close()
	for ; n < most && ctx.Err() == nil; n++ {
		m, ack, ok, err := at.Get()
		if err != nil || !ok {
			return n, at.Ready, err
		}
		if err := keep(q.read(m)); err != nil {
			return n, at.Ready, err
		}
		if err := ack(); err != nil {
			return n, at.Ready, fmt.Errorf("acknowledging: %w", err)
		}
	}
	return n, at.Ready, ctx.Err()
}

// removeByAPI removes the one message that RabbitMQ delivers to no AMQP client, and returns how
// many were removed and kept. It gets the message, and gets it again to remove it; by then
// another may be at the head. pending counts what was kept and not removed yet.
func (q *Quarantine) removeByAPI(ctx context.Context, keep func(*Message) error, pending map[string]int) (int, error) {
	got, err := q.API.Get(ctx, wire.QueueQuarantine, 1, true, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errAPI, err)
	}
	if len(got) == 0 {
		return 0, nil
	}
	x, same, err := q.readAPI(&got[0])
	if err != nil {
		return 0, err
	}
	if pending[same] == 0 {
		if err := keep(x); err != nil {
			return 0, err
		}
		pending[same]++
	}
	r, err := openRescue()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	// Canceled in between, its answer would be lost, and the message with it.
	got, err = q.API.Get(context.WithoutCancel(ctx), wire.QueueQuarantine, 1, false, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errAPI, err)
	}
	if len(got) == 0 {
		return 0, nil
	}
	x, same, err = q.readAPI(&got[0])
	if err == nil && pending[same] > 0 {
		pending[same]--
		return 1, nil
	}
	lost := r.keep(got[0])
	if err == nil {
		err = keep(x)
	}
	if err != nil {
		return 0, lost(err)
	}
	r.release()
	return 1, nil
}

// readAPI also returns what distinguishes a message from others, apart from how often it was delivered.
func (q *Quarantine) readAPI(g *management.FetchedMessage) (x *Message, same string, err error) {
	m, err := g.Message()
	if err != nil {
		return nil, "", err
	}
	x = q.read(m)
	x.ByAPI = true
	return x, fmt.Sprint(x.content(), headers.Clean(m.Headers)), nil
}

// awaitRequeue waits until RabbitMQ has requeued what it failed to deliver: until then the
// next message would be taken for it.
func (q *Quarantine) awaitRequeue(ctx context.Context, ready int) error {
	return awaitReady(ctx, ready, 100*time.Millisecond, func() (int, error) {
		at, err := q.open(ctx)
		if err != nil {
			return 0, err
		}
		at.Close()
		return at.Ready, nil
	})
}

// awaitReady fails where the number is not reached: the message at the head is then another
// than the one that could not be delivered.
func awaitReady(ctx context.Context, want int, pause time.Duration, count func() (int, error)) error {
	for tries := 0; ; tries++ {
		ready, err := count()
		if err == nil && ready >= want {
			return nil
		}
		if tries == 50 {
			return cmp.Or(err, fmt.Errorf("%w: %d of %d messages are ready in %s: something else consumes them or is looking at them", ErrNotReady, ready, want, wire.QueueQuarantine))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
