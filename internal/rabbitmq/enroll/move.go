package enroll

// A Move gives a queue another name, type or dead-letter exchange: what RabbitMQ fixes when a queue is
// declared. A new queue takes the old one's policy, bindings and messages, and then the old one is deleted.
// Here are the steps, in order: the new queue, the bindings, the messages. The state in RabbitMQ, which
// shows what steps are left, is in movestate.go.
//
// The state of a move is in RabbitMQ alone, so one that was interrupted anywhere continues when the
// same command is run again, on any machine.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
		case errors.Is(err, ErrConsumers) || errors.Is(err, ErrRefused) || errors.Is(err, management.ErrDenied) ||
			errors.Is(err, management.ErrRefused) || errors.Is(err, management.ErrOther) ||
			broker.NeedsPerson(err) && !errors.Is(err, wire.ErrQueueGone) && !opening:
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
		q, _, err := ReadQueue(ctx, m.API, m.To)
		if err != nil {
			return err
		}
		is := withoutDeadLetters(q.Effective)
		if _, atLeastOnce := s.Policy.Policy.Definition["dead-letter-strategy"]; atLeastOnce &&
			want["overflow"] == nil {
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
			return refusef("in force on %q is %s (policy %q, operator policy %q), and on %q %s: make it the same "+
				"first, or messages could be dropped", m.To, arguments(is), q.Policy, q.OperatorPolicy, m.From,
				arguments(want))
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
	return fmt.Errorf("queue %q is ready, and %q is still consumed:\n%sdeploy consumers of %q (they may consume "+
		"both); %w", m.To, m.From, who.String(), m.To, ErrConsumers)
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

// withoutDeadLetters returns a policy without its keys for dead letters.
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
		if err := ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false,
			amqp.Table{"alternate-exchange": wire.RetryExchange(m.To)}); err != nil {
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

// switchBindings sends all that is published to the new queue, in one step.
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

const (
	// nearEmpty is how many messages may be left in the old queue at the switch: newer ones
	// may overtake those.
	nearEmpty = 8 * maxUnconfirmed
	// stagnant is how long the number may not fall before drain gives up, since publishers are
	// faster.
	stagnant = 10 * time.Second
)

// drain moves messages while the old queue still gets new ones, so that few are
// left to be overtaken at the switch.
func (m *Move) drain(ctx context.Context, c *broker.Mover) error {
	least, since := -1, time.Now()
	return m.moveMessages(ctx, c, time.Second, func() bool {
		ready, _, err := c.Depth(m.From)
		if err != nil || ready <= nearEmpty {
			return false
		}
		if least < 0 || ready < least {
			least, since = ready, time.Now()
		}
		return time.Since(since) < stagnant
	})
}

// moveMessages moves messages until none has arrived for idle, or more returns false.
func (m *Move) moveMessages(ctx context.Context, c *broker.Mover, idle time.Duration, more func() bool) error {
	at := maxUnconfirmed
	if m.rejects {
		at = 1 // or the next would overtake one that was refused
	}
	return c.Move(ctx, m.From, wire.RetryExchange(m.To), at, idle, func(n int) bool {
		m.count(n)
		return more()
	})
}

func (m *Move) count(moved int) {
	if moved > 0 {
		m.moved += moved
		m.Progress(m.moved)
	}
}

// finish moves the rest, and deletes the old queue when it has been quiet.
func (m *Move) finish(ctx context.Context, c *broker.Mover, s *State) error {
	for last := false; ; {
		if err := m.moveMessages(ctx, c, m.Quiet, func() bool { return true }); err != nil {
			return err
		}
		q, _, err := ReadQueue(ctx, m.API, m.From)
		if err != nil {
			return err
		}
		_, used, err := c.Depth(m.From)
		if err != nil {
			return err
		}
		if used > 0 && !m.Keep {
			if q.Counted() && len(q.ConsumerDetails) == 0 {
				return unnamed(m.From)
			}
			var who strings.Builder
			consumers(&who, &q)
			return fmt.Errorf("queue %q is still consumed:\n%sstop them; %w", m.From, who.String(), ErrConsumers)
		}
		if q.Messages > 0 { // unacknowledged, or counted some seconds ago
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(retryEvery):
			}
			continue
		}
		if m.Keep {
			m.Report(fmt.Sprintf("queue %q is empty, and is kept", m.From))
			return nil
		}
		exhausted, err := m.exhausted(ctx, c)
		if err != nil {
			return err
		}
		if !exhausted || !last && len(m.sources) > 0 { // their last messages may be on the way
			last = exhausted
			continue
		}
		if s.Old.Type == "quorum" {
			var moved int
			moved, err = c.DeleteQuorum(ctx, m.From, wire.RetryExchange(m.To))
			m.count(moved)
		} else {
			err = c.DeleteClassic(m.From)
		}
		switch {
		case errors.Is(err, broker.ErrNotEmpty), errors.Is(err, broker.ErrInUse):
			continue
		case err == nil:
			m.Report(fmt.Sprintf("queue %q is deleted", m.From))
			for _, name := range slices.Sorted(maps.Keys(m.sources)) {
				m.Report(fmt.Sprintf("queue %q dead-letters to it: delete that, too, or what is published there is "+
					"lost when it expires", name))
			}
		}
		return err
	}
}
