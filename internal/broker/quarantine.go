package broker

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/wire"
)

// ErrUndeliverable: RabbitMQ ends the connection that it delivers the next message to.
var ErrUndeliverable = errors.New("RabbitMQ cannot deliver the next message by AMQP")

// Quarantine reads the queue redrive.quarantine, for a person's command. Not safe for
// concurrent use. Close it: messages that were got and not acknowledged are then in the queue
// again, at their places.
type Quarantine struct {
	conn *amqp.Connection
	ch   *amqp.Channel
	// Ready is how many messages were ready at the beginning.
	Ready int
	// Forgeable: RabbitMQ leaves x-death as its publisher wrote it, before 4, and this
	// connection does not read frames as a consumingConn does (duplicateheaders.go): the queue
	// in it proves nothing.
	Forgeable bool
}

// OpenQuarantine connects: wire.ErrQueueGone when there is no quarantine.
func OpenQuarantine(ctx context.Context, c Config) (*Quarantine, error) {
	l, err := NewProbe(ctx, c)
	if err != nil {
		return nil, err
	}
	replaces, _ := version.AtLeast(l.Version(), 4, 0)
	q := &Quarantine{conn: l.conn, Forgeable: !replaces}
	if _, q.Ready, err = l.Queue(wire.QueueQuarantine); err == nil {
		q.ch, err = q.conn.Channel()
	}
	if err != nil {
		_ = l.Close()
		return nil, explain(err)
	}
	return q, nil
}

// Close waits until RabbitMQ has the acknowledgements.
func (q *Quarantine) Close() { _, _ = q.ch.Close(), q.conn.Close() }

// Get returns the next message; ok is false when there is none left. ack removes it. After
// ErrUndeliverable the connection is closed.
func (q *Quarantine) Get() (m *wire.Message, ack func() error, ok bool, err error) {
	d, ok, err := q.ch.Get(wire.QueueQuarantine, false)
	var e *amqp.Error
	switch {
	case err == nil && !ok:
		return nil, nil, false, nil
	case err == nil:
		got := Received(&d)
		return &got, func() error { return d.Ack(false) }, true, nil
	case errors.As(err, &e) && e.Code == amqp.InternalError, q.conn.IsClosed() && !errors.Is(err, amqp.ErrClosed):
		return nil, nil, false, fmt.Errorf("%w: %w", ErrUndeliverable, explain(err))
	}
	return nil, nil, false, explain(err)
}
