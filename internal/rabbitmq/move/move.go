// Package move gives a queue another name, type or dead-letter exchange: what
// RabbitMQ fixes when a queue is declared. A new queue takes the old one's policy,
// bindings and messages, and then the old one is deleted. Read it in this order:
//
//	move.go     the steps, in order
//	look.go     the state in RabbitMQ, which shows what steps are left
//	prepare.go  the new queue
//	switch.go   the bindings, without a message lost or duplicated
//	sources.go  the queues that dead-letter to the old one by its name
//	finish.go   the messages, and the end of the old queue
//
// The state of a move is in RabbitMQ alone, so one that was interrupted anywhere continues when the
// same command is run again, on any machine.
package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

var (
	// ErrConsumers: consumers must be started or stopped before the move continues; the message
	// says which. What was done stays done.
	ErrConsumers = hint.New("consumers", "run the same command again to continue")
	// ErrRefused: the queue cannot be moved as it is. Nothing was lost.
	ErrRefused = hint.New("refused", "cannot be moved")
)

func refusef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// Move is one move of a queue. Set its exported fields, then call Run.
type Move struct {
	From, To string
	// Type of the new queue, classic or quorum; "" for that of the old one.
	Type string
	// Keep leaves the old queue there, empty and without bindings.
	Keep bool
	// WithoutConsumers continues although the new queue has no consumers and the old one has.
	WithoutConsumers bool
	// Quiet is how long the old queue must have received nothing before it is deleted: publishers
	// that use its name need no binding.
	Quiet time.Duration

	API    *management.Client
	Broker broker.Config
	// Report receives what was done, and Progress how many messages were moved in all.
	Report   func(string)
	Progress func(int)

	reconnectFor time.Duration // 0: reconnectFor

	sources map[string]*Source // as last seen, by name
	said    string             // of sources that are not empty
	moved   int
	lost    int  // user-ids
	rejects bool // the new queue may refuse messages when it is full
}

const (
	// maxUnconfirmed is how many messages are moved at once: what a crash can duplicate.
	maxUnconfirmed = 32
	// retryEvery is between tries to connect; reconnectFor how long they go on, also while another
	// move has the queue: RabbitMQ may notice late that a connection of ours is gone.
	retryEvery   = time.Second
	reconnectFor = 2 * time.Minute
	// lockTimeout is how long a move that begins waits for one that was killed.
	lockTimeout = 10 * time.Second
)

// Run does all that is left to do. It connects again when a connection ends.
func (m *Move) Run(ctx context.Context) error {
	began := time.Now() // when it last got further
	for connected := false; ; {
		before, tried := m.moved, time.Now()
		c, err := broker.NewMover(ctx, m.Broker, wire.MoveExchange(m.From))
		// The client takes a connection that is cut while it opens for a refusal.
		opening := connected && err != nil
		if err == nil {
			connected = true
			err = m.steps(ctx, c)
			m.lost += c.LostUserIDs
			c.Close()
		}
		limit := cmp.Or(m.reconnectFor, reconnectFor)
		if m.moved > before || time.Since(tried) > limit { // or it waited for publishers to end
			began = time.Now()
		}
		if errors.Is(err, broker.ErrLocked) {
			err = fmt.Errorf("queue %q %w", m.From, err)
			if !connected {
				limit = lockTimeout
			}
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, wire.ErrUnacceptable): // each try would count as a failed delivery
			return err
		case errors.Is(err, ErrConsumers) || errors.Is(err, ErrRefused) || errors.Is(err, management.ErrDenied) || errors.Is(err, management.ErrRefused) || errors.Is(err, management.ErrOther) || broker.NeedsPerson(err) && !errors.Is(err, wire.ErrQueueGone) && !opening:
			return err
		case time.Since(began) > limit:
			return err
		}
		m.Report(fmt.Sprintf("%v; trying again", err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryEvery):
		}
	}
}

// steps are the same each time; those that are done already find nothing to do.
func (m *Move) steps(ctx context.Context, c *broker.Mover) error {
	s, err := m.Look(ctx)
	if err != nil {
		return err
	}
	if s.Old == nil {
		return m.rebind(ctx, c, s) // the old one was deleted, and perhaps the detour was not
	}
	if err := m.prepare(ctx, c, s); err != nil {
		return err
	}
	if err := m.ready(c, s); err != nil {
		return err
	}
	if err := m.drain(ctx, c); err != nil {
		return err
	}
	if err := m.detour(ctx, c, s); err != nil {
		return err
	}
	if err := m.switchBindings(ctx, c, s); err != nil {
		return err
	}
	if err := m.rebind(ctx, c, s); err != nil {
		return err
	}
	return m.finish(ctx, c, s)
}

// LostUserIDs is how many messages lost their user-id, which RabbitMQ accepts only from that user.
func (m *Move) LostUserIDs() int { return m.lost }
