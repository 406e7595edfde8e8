package move

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// prepare declares the new queue, with its RabbitMQ policy and its retry exchange. The policy comes
// first, so that the queue is never without it.
func (m *Move) prepare(ctx context.Context, c *broker.Mover, s *State) error {
	if s.New == nil || s.New.Policy != s.Policy.Policy.Name {
		if err := m.API.PutPolicy(ctx, *s.Policy.Policy); err != nil {
			return err
		}
		m.Report(fmt.Sprintf("policy %q is set", s.Policy.Policy.Name))
	}
	err := c.Do(func(ch *amqp.Channel) error {
		if s.New == nil {
			if _, err := ch.QueueDeclare(m.To, s.Old.Durable, false, false, false, table(s.Arguments)); err != nil {
				return err
			}
			m.Report(fmt.Sprintf("queue %q is there", m.To))
		}
		return nil
	})
	if err == nil {
		err = c.BindRetryExchange(m.To)
	}
	if err != nil {
		return fmt.Errorf("making queue %q: %w", m.To, err)
	}
	return m.sameInForce(ctx, s)
}

// sameInForce waits until the same settings are in force on both queues, but for dead letters, and
// refuses when they stay different: an operator policy may give the new name a limit that would
// drop messages.
func (m *Move) sameInForce(ctx context.Context, s *State) error {
	want := withoutDeadLetters(s.Old.Effective)
	for _, r := range s.otherwise() {
		if r.drop {
			delete(want, r.key)
		}
	}
	for _, key := range s.Policy.LeftOut {
		delete(want, key)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		q, _, err := enroll.ReadQueue(ctx, m.API, m.To)
		if err != nil {
			return err
		}
		is := withoutDeadLetters(q.Effective)
		if _, atLeastOnce := s.Policy.Policy.Definition["dead-letter-strategy"]; atLeastOnce && want["overflow"] == nil {
			delete(is, "overflow")
		}
		if q.Type != s.Type {
			return refusef("%q became %s, by the virtual host's default: say --type", m.To, q.Type)
		}
		if q.Effective["dead-letter-exchange"] == wire.ExchangeDeadLetters && arguments(is) == arguments(want) {
			m.rejects = refuses(q.Effective, "") || refuses(q.Arguments, "x-")
			return nil
		}
		if time.Now().After(deadline) {
			return refusef("in force on %q is %s (policy %q, operator policy %q), and on %q %s: make it the same first, or messages could be dropped", m.To, arguments(is), q.Policy, q.OperatorPolicy, m.From, arguments(want))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryEvery / 2):
		}
	}
}

// ready returns an error while consumers are missing at the new queue.
func (m *Move) ready(c *broker.Mover, s *State) error {
	_, old, err := c.Depth(m.From)
	if err != nil {
		return err
	}
	_, now, err := c.Depth(m.To)
	if err != nil || old == 0 || now > 0 || m.WithoutConsumers || s.Detour {
		return err
	}
	if s.Old.Counted() && len(s.Old.ConsumerDetails) == 0 {
		return unnamed(m.From)
	}
	var who strings.Builder
	consumers(&who, s.Old)
	return fmt.Errorf("queue %q is ready, and %q is still consumed:\n%sdeploy consumers of %q (they may consume both); %w", m.To, m.From, who.String(), m.To, ErrConsumers)
}

// unnamed is the error where RabbitMQ counts consumers that the management API does not list.
// It lists them seconds later; the consumer of a move that was killed is gone by then. The
// move tries again.
func unnamed(queue string) error {
	return fmt.Errorf("queue %q has consumers that the management API does not list yet", queue)
}

func refuses(def map[string]any, prefix string) bool {
	overflow, _ := def[prefix+"overflow"].(string)
	return strings.HasPrefix(overflow, "reject-publish")
}

// withoutDeadLetters is a policy without what it says of dead letters.
func withoutDeadLetters(def map[string]any) map[string]any {
	out := maps.Clone(def)
	maps.DeleteFunc(out, func(k string, _ any) bool { return strings.HasPrefix(k, "dead-letter-") })
	return out
}

// table converts arguments from JSON, where all numbers are floats, to AMQP.
func table(m map[string]any) amqp.Table {
	t := amqp.Table{}
	for k, v := range m {
		if f, ok := v.(float64); ok && f == float64(int64(f)) {
			v = int64(f)
		}
		t[k] = v
	}
	return t
}

func arguments(m map[string]any) string {
	if len(m) == 0 {
		return "no arguments"
	}
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, management.Text(k)+": "+management.Text(m[k]))
	}
	return strings.Join(all, ", ")
}

func withArguments(args map[string]any) string {
	if len(args) == 0 {
		return ""
	}
	return ", " + arguments(args)
}
