package server

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/retry"
)

// taker hands an intake's messages to the flow, which knows no AMQP.
type taker struct {
	flow interface {
		Connected(ctx context.Context) error
		Disconnected()
		Take(ctx context.Context, batch []retry.Delivery) error
	}
}

func (t taker) Connected(ctx context.Context) error { return t.flow.Connected(ctx) }

func (t taker) Disconnected() { t.flow.Disconnected() }

func (t taker) Take(ctx context.Context, batch []broker.Delivery) error {
	in := make([]retry.Delivery, len(batch))
	for i := range batch {
		in[i] = retry.Delivery(batch[i])
	}
	return t.flow.Take(ctx, in)
}

// publisher hands the flow's messages to the broker, and times the answers.
type publisher struct {
	*broker.Publisher
	confirmed func(time.Duration)
}

func (p publisher) Send(ctx context.Context, out []retry.Outgoing) func(context.Context) []error {
	sent := make([]broker.Outgoing, len(out))
	for i := range out {
		sent[i] = broker.Outgoing(out[i])
	}
	began := time.Now()
	wait := p.Publisher.Send(ctx, sent)
	return func(ctx context.Context) []error {
		errs := wait(ctx)
		p.confirmed(time.Since(began))
		return errs
	}
}
