package world

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// publisher publishes to the work queues and reads what was forwarded. It connects again when its
// connection ends, and publishes again what RabbitMQ did not confirm.
type publisher struct {
	world *World
	one   chan struct{} // held by the goroutine that connects
	conn  *amqp.Connection
	ch    *amqp.Channel

	mu   sync.Mutex
	held map[string]bool // queues that nothing is published to
}

func newPublisher(w *World) *publisher {
	return &publisher{world: w, one: make(chan struct{}, 1), held: map[string]bool{}}
}

// channel is an open channel with confirms.
func (p *publisher) channel(ctx context.Context) (*amqp.Channel, error) {
	p.one <- struct{}{}
	defer func() { <-p.one }()
	for p.ch == nil || p.ch.IsClosed() {
		if err := p.connect(); err == nil {
			break
		}
		if err := pauseFor(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	return p.ch, nil
}

func (p *publisher) connect() (err error) {
	p.close()
	p.conn, err = amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: p.world.broker.Dial, Heartbeat: time.Minute})
	if err != nil {
		return err
	}
	if p.ch, err = p.conn.Channel(); err != nil {
		return err
	}
	return p.ch.Confirm(false)
}

// hold has what is for a queue wait, or not any more.
func (p *publisher) hold(q *workQueue, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[q.name] = on
}

func (p *publisher) holds(queue string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[queue]
}

func (p *publisher) close() {
	if p.conn != nil {
		_ = p.conn.Close() // it may have ended
	}
}

// publish publishes a message. One that RabbitMQ does not take, since the queue is full, or does not
// confirm, since the connection ends, it publishes again until it does, beside others.
func (p *publisher) publish(ctx context.Context, id, exchange, key string, m amqp.Publishing) error {
	refused, err := p.publishOnce(ctx, exchange, key, m)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	p.world.say("%s will be published again: %v", id, err)
	p.world.old.Go(func() {
		for err != nil {
			if !refused {
				p.world.ledger.unanswered(id)
			}
			if pauseFor(ctx, time.Second) != nil {
				return
			}
			refused, err = p.publishOnce(ctx, exchange, key, m)
		}
	})
	return nil
}

var (
	errNacked = errors.New("nacked")
	errHeld   = errors.New("the queue is being deleted")
)

// publishOnce returns nil when RabbitMQ has confirmed it. refused: RabbitMQ does not have it.
func (p *publisher) publishOnce(ctx context.Context, exchange, key string, m amqp.Publishing) (refused bool, err error) {
	ch, err := p.channel(ctx)
	if err != nil {
		return true, err
	}
	if exchange == "" && p.holds(key) {
		return true, errHeld
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, m)
	if err != nil {
		return false, err
	}
	ok, err := confirm.WaitContext(ctx)
	switch {
	case ok || err != nil:
		return false, err
	case ch.IsClosed():
		return false, amqp.ErrClosed
	}
	return true, errNacked
}

// pauseFor waits for so long, unless ctx ends before.
func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
