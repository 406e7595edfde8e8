package move

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// Binding the new queue before the old one is unbound would duplicate what is
// published in between, and the other way round would lose it. Two rules of
// RabbitMQ help: a message that comes to a queue by several ways comes once, and an
// alternate exchange gets exactly what the exchange itself had no way for. So:
//
//	detour  each binding X → old also leads X → detour → old; then X → old goes
//	switch  detour → old goes: from that moment on, what comes to the detour takes
//	        its alternate exchange, which is the new queue's retry exchange
//	rebind  each binding X → detour also leads X → new; then X → detour goes
//
// Of these only the switch changes where a message goes, and it is one step.

// detour leads the old queue's bindings through an exchange.
func (m *Move) detour(ctx context.Context, c *broker.Mover, s *State) error {
	if len(s.Bindings) == 0 {
		return nil
	}
	exchange := wire.MoveExchange(m.From)
	err := c.Do(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, amqp.Table{"alternate-exchange": wire.RetryExchange(m.To)}); err != nil {
			return err
		}
		if err := ch.QueueBind(m.From, "", exchange, false, nil); err != nil {
			return err
		}
		for _, b := range s.Bindings {
			if err := ch.ExchangeBind(exchange, b.RoutingKey, b.Source, false, table(b.Arguments)); err != nil {
				return fmt.Errorf("binding to exchange %q: %w", b.Source, err)
			}
			if err := ch.QueueUnbind(m.From, b.RoutingKey, b.Source, table(b.Arguments)); err != nil {
				return fmt.Errorf("unbinding from exchange %q: %w", b.Source, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.Report(fmt.Sprintf("%d bindings lead through exchange %q", len(s.Bindings), exchange))
	s.Detour, s.DetourToOld, s.DetourBindings = true, true, append(s.DetourBindings, s.Bindings...)
	// Somebody may have bound it meanwhile.
	left, err := m.API.QueueBindings(ctx, m.From)
	if err != nil {
		return err
	}
	for _, b := range left {
		if b.Source != exchange {
			return fmt.Errorf("queue %q was bound to exchange %q just now", m.From, b.Source)
		}
	}
	return nil
}

// switchBindings is the one step that sends what is published to the new queue.
func (m *Move) switchBindings(_ context.Context, c *broker.Mover, s *State) error {
	if !s.Detour || !s.DetourToOld {
		return nil
	}
	err := c.Do(func(ch *amqp.Channel) error { return ch.QueueUnbind(m.From, "", wire.MoveExchange(m.From), nil) })
	if err == nil {
		m.Report(fmt.Sprintf("what is published comes to queue %q", m.To))
	}
	return err
}

// rebind leads the bindings to the new queue directly, and deletes the detour.
func (m *Move) rebind(ctx context.Context, c *broker.Mover, s *State) error {
	if !s.Detour {
		return nil
	}
	exchange := wire.MoveExchange(m.From)
	bindings, err := m.API.BindingsTo(ctx, exchange)
	if err != nil {
		return err
	}
	err = c.Do(func(ch *amqp.Channel) error {
		for _, b := range bindings {
			if err := ch.QueueBind(m.To, b.RoutingKey, b.Source, false, table(b.Arguments)); err != nil {
				return fmt.Errorf("binding to exchange %q: %w", b.Source, err)
			}
			if err := ch.ExchangeUnbind(exchange, b.RoutingKey, b.Source, false, table(b.Arguments)); err != nil {
				return fmt.Errorf("unbinding from exchange %q: %w", b.Source, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var left []management.Binding
	if left, err = m.API.BindingsTo(ctx, exchange); err != nil {
		return err
	}
	if len(left) > 0 { // deleting the exchange would delete them
		return fmt.Errorf("exchange %q was bound to exchange %q just now", exchange, left[0].Source)
	}
	if err := c.Do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(exchange, true, false) }); err != nil {
		return err
	}
	m.Report(fmt.Sprintf("%d bindings lead to queue %q", len(bindings), m.To))
	return nil
}
