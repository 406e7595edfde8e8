package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// declareTries is how often to repeat a declaration after which RabbitMQ closed the connection (541): on a busy machine
// a new quorum queue may have no leader in time. [seen on 3.10.8 and 4.3.6]
const declareTries = 4

func (p *Publisher) Declare(ctx context.Context, t delay.Topology) error {
	for tries := 0; ; tries++ {
		err := declareOn(p.channels(ctx), t)
		again := errors.Is(err, ErrCrashed) ||
			tries > 0 && errors.Is(err, wire.ErrNoAnswer) // of the connection that ended
		if err == nil || !again || tries == declareTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond << tries):
		}
	}
}

// Verify checks, for a user without permission to declare, that exchanges and queues exist and that the user may
// publish to those exchanges. RabbitMQ shows clients no bindings and no arguments. Safe for concurrent use.
func (p *Publisher) Verify(ctx context.Context, t delay.Topology) error {
	for _, e := range t.Exchanges {
		if err := p.onChannel(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args)
		}); err != nil {
			return fmt.Errorf("exchange %q: %w", e.Name, err)
		}
		if e.Internal {
			continue
		}
		if err := p.MayPublish(ctx, e.Name, ""); err != nil {
			return err
		}
	}
	for _, q := range t.Queues {
		if err := p.onChannel(ctx, func(ch *amqp.Channel) error {
			_, err := queueState(ch, q.Name)
			return err
		}); err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

// MayPublish checks that the user may publish to an exchange with that routing key. It publishes nothing: RabbitMQ
// checks the right, and then refuses a message whose expiration is no number (TestVerifySeesAMissingRight). Before
// 4.3.1 a passive declaration asks for no right at all. Safe for concurrent use.
func (p *Publisher) MayPublish(ctx context.Context, exchange, key string) error {
	err := p.onChannel(ctx, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Publish(exchange, key, true, false, amqp.Publishing{Expiration: "none"}); err != nil {
			return err
		}
		if ch.Qos(1, 0, false) == nil { // answered after the publish
			return nil
		}
		if e := <-closed; e != nil && e.Code != amqp.PreconditionFailed {
			return e
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("publishing to exchange %q: %w", exchange, err)
	}
	return nil
}

type channels func(do func(*amqp.Channel) error) error

func (p *Publisher) channels(ctx context.Context) channels {
	return func(do func(*amqp.Channel) error) error { return p.onChannel(ctx, do) }
}

func channelsOf(conn *amqp.Connection) channels {
	return func(do func(*amqp.Channel) error) error { return onChannel(conn, do) }
}

func declareOn(on channels, t delay.Topology) error {
	return t.Declare(func(t delay.Topology) error {
		return on(func(ch *amqp.Channel) error { return declare(ch, t) })
	})
}

func declare(ch *amqp.Channel, t delay.Topology) error {
	if err := declareExchanges(ch, t, false); err != nil {
		return err
	}
	for _, q := range t.Queues {
		if err := declareQueue(ch, q); err != nil {
			return declaring("queue", q.Name, err)
		}
	}
	// Declare an auto-delete exchange after its queue: that puts off the queue's expiry, which alone could delete the
	// exchange before it is bound.
	if err := declareExchanges(ch, t, true); err != nil {
		return err
	}
	for _, b := range t.Bindings {
		if b.ToExchange != "" {
			if err := ch.ExchangeBind(b.ToExchange, b.Key, b.From, false, nil); err != nil {
				return declaring("binding of exchange "+b.ToExchange+" to exchange", b.From, err)
			}
			continue
		}
		if err := ch.QueueBind(b.ToQueue, b.Key, b.From, false, nil); err != nil {
			return declaring("binding of queue "+b.ToQueue+" to exchange", b.From, err)
		}
	}
	return nil
}

func declareExchanges(ch *amqp.Channel, t delay.Topology, autoDelete bool) error {
	for _, e := range t.Exchanges {
		if e.AutoDelete != autoDelete {
			continue
		}
		if err := declareExchange(ch, e); err != nil {
			return declaring("exchange", e.Name, err)
		}
	}
	return nil
}

func declareExchange(ch *amqp.Channel, e delay.Exchange) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args)
}

func declareQueue(ch *amqp.Channel, q delay.Queue) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args)
	return err
}

// ErrNotInternal: clients may publish to the exchange "redrive", so what arrives through it proves nothing.
var ErrNotInternal = hint.Errorf("delete it and start again: Redrive declares it as it must be",
	`the exchange "redrive" exists and is not an internal, durable fanout exchange, `+
		`so any client could forge dead letters`)

// DeliveryLimit is how often RabbitMQ tries to deliver a message from redrive.intake before it quarantines it. RabbitMQ
// 3 closes each connection that it delivers some messages to (541, see the facts), and only this limit removes them:
// about 10 ms each time [measured on 3.10.8]. No other message reaches it. RabbitMQ counts a delivery of each message
// in the consumer's window when a connection ends. The windows of a connection are of 1, 8, 64, 512 and 4,096 messages
// (consumeWindow). One that ends at such a message has by then acknowledged a seventh of its last window, so of each
// size at most seven connections end before another message is acknowledged: it is delivered some thirty times.
//
// Quarantining is at-most-once on purpose: at-least-once dead-lettering runs in one process, which a forged x-death
// kills in RabbitMQ 3 for the whole node. [measured on 3.10.8: quorum queues that use it are then refused with 541]
const DeliveryLimit = 100

var (
	deadLetterExchange = delay.Exchange{Name: wire.ExchangeDeadLetters, Kind: amqp.ExchangeFanout, Internal: true,
		Args: amqp.Table{"alternate-exchange": delay.Nowhere}}
	intakeQueue = delay.Queue{Name: wire.QueueIntake, Args: amqp.Table{"x-queue-type": "quorum",
		"x-delivery-limit": int64(DeliveryLimit), "x-dead-letter-exchange": wire.ExchangeQuarantine}}
)

func intakeTopology() delay.Topology {
	q := quarantineTopology()
	return delay.Topology{
		Exchanges: append([]delay.Exchange{deadLetterExchange, delay.Own(wire.ExchangeFailures, amqp.ExchangeTopic)},
			q.Exchanges...),
		Queues: append(q.Queues, intakeQueue),
		Bindings: append(q.Bindings, delay.Binding{From: wire.ExchangeDeadLetters, ToQueue: wire.QueueIntake},
			delay.Binding{From: wire.ExchangeFailures, Key: "#", ToQueue: wire.QueueIntake}),
	}
}

func quarantineTopology() delay.Topology {
	return delay.Topology{
		Exchanges: []delay.Exchange{{Name: wire.ExchangeQuarantine, Kind: amqp.ExchangeFanout, Internal: true,
			Args: amqp.Table{"alternate-exchange": wire.ExchangeQuarantine}}},
		Queues: []delay.Queue{{Name: wire.QueueQuarantine,
			Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": delay.NoLimit}}},
		Bindings: []delay.Binding{{From: wire.ExchangeQuarantine, ToQueue: wire.QueueQuarantine}},
	}
}

func declaring(what, name string, err error) error {
	var e *amqp.Error
	refused := errors.As(err, &e)
	if err = explain(err); refused && name == wire.ExchangeDeadLetters && errors.Is(err, wire.ErrDiffers) {
		return permanentError{fmt.Errorf("%w (%s)", ErrNotInternal, e.Reason)}
	}
	if remedy := preconditionRemedy(what, name, err); remedy != "" {
		return hint.Errorf(remedy, "declaring the %s %q: %w", what, name, err)
	}
	return fmt.Errorf("declaring the %s %q: %w", what, name, err)
}

// OwnNames returns the names that BatchConsumer.Redeclared can receive.
func OwnNames() (all []string) {
	for _, t := range []delay.Topology{intakeTopology(), delay.Parked()} {
		for _, e := range t.Exchanges {
			all = append(all, "exchange "+e.Name)
		}
		for _, q := range t.Queues {
			all = append(all, "queue "+q.Name)
		}
	}
	return all
}

// declare declares all that the consumer needs. From the second time on Redeclared receives what was missing.
func (c *BatchConsumer) declare(conn *amqp.Connection) (err error) {
	var missing []string
	if c.declared {
		if missing, err = missingOf(conn, c.topology); err != nil {
			return err
		}
	}
	if err := declareOn(channelsOf(conn), c.topology); err != nil {
		return err
	}
	c.declared = true
	if len(missing) > 0 && c.Redeclared != nil {
		c.Redeclared(missing)
	}
	return nil
}

// missingOf returns which exchanges and queues of t do not exist. It declares passively; a failure ends the channel.
func missingOf(conn *amqp.Connection, t delay.Topology) (all []string, err error) {
	var ch *amqp.Channel
	look := func(what, name string, declare func(*amqp.Channel) error) {
		if err != nil {
			return
		}
		if ch == nil {
			if ch, err = conn.Channel(); err != nil {
				err = explain(err)
				return
			}
		}
		if failed := declare(ch); failed != nil {
			ch = nil
			var e *amqp.Error
			if errors.As(failed, &e) && e.Code == amqp.NotFound && strings.Contains(e.Reason, "no "+what) {
				all = append(all, what+" "+name)
			} else {
				err = declaring(what, name, failed)
			}
		}
	}
	for _, e := range t.Exchanges {
		look("exchange", e.Name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, amqp.ExchangeFanout, true, false, false, false, nil)
		})
	}
	for _, q := range t.Queues {
		look("queue", q.Name, func(ch *amqp.Channel) error {
			_, err := queueState(ch, q.Name)
			return err
		})
	}
	if ch != nil {
		_ = ch.Close()
	}
	return all, err
}

// BindRetryExchange declares the retry exchange of queue and binds that queue alone to it. It returns wire.ErrQueueGone
// when there is no such queue, and wire.ErrExclusive when it is another connection's; the exchange then stays. It does
// not look for the queue first: RabbitMQ 4.3 takes a minute to answer that the node of a classic queue is down
// [measured on 4.3.6], and binding asks no node of the queue.
func (p *Publisher) BindRetryExchange(ctx context.Context, queue string) error {
	if err := canExist(queue); err != nil {
		return err
	}
	return declareOn(p.channels(ctx), delay.Retry(queue))
}

// RemoveRetryExchange deletes the retry exchange of a queue, unless a queue is bound to it: RabbitMQ checks that in the
// same step.
func (p *Publisher) RemoveRetryExchange(ctx context.Context, queue string) error {
	if canExist(queue) != nil {
		return nil
	}
	return p.onChannel(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDelete(wire.RetryExchange(queue), true, false)
	})
}

func (p *Publisher) RetryExchangeExists(ctx context.Context, queue string) (bool, error) {
	if canExist(queue) != nil {
		return false, nil
	}
	err := p.onChannel(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(wire.RetryExchange(queue), amqp.ExchangeFanout, true, false, false, false, nil)
	})
	if errors.Is(err, wire.ErrUnroutable) {
		return false, nil
	}
	return err == nil, err
}

// preconditionRemedy returns what to do when an exchange or queue of that name has other arguments (406); "" for other
// errors. RabbitMQ's reason, in the error, names the first argument that differs, with both values.
func preconditionRemedy(what, name string, err error) string {
	if !errors.Is(err, wire.ErrDiffers) {
		return ""
	}
	if what == "exchange" {
		return "delete the exchange on RabbitMQ's management page, and start the service again, which declares it as " +
			"it must be"
	}
	// RabbitMQ refuses to delete a quorum queue only if it is empty, so the first command shows whether it is.
	// (TestAQueueDeclaredOtherwiseSaysWhatToDo)
	vhost := vhostOf(err.Error())
	return "another version of Redrive, or another program, declared it: let that empty the queue, stop the " +
		"consumers whose messages fail meanwhile, and when `rabbitmqctl list_queues -p " + vhost +
		" name messages` shows 0 for it, run `rabbitmqctl delete_queue -p " + vhost + " " + name +
		"`; the service then declares it as it must be"
}

func vhostOf(reason string) string {
	_, rest, _ := strings.Cut(reason, "in vhost '")
	vhost, _, _ := strings.Cut(rest, "': received")
	return quote(vhost)
}

func quote(vhost string) string { return "'" + strings.ReplaceAll(vhost, "'", `'\''`) + "'" }

// RemoveQuarantined returns a command that shows and removes the first message in quarantine, even one that RabbitMQ
// cannot deliver to an AMQP client.
func RemoveQuarantined(vhost string) string {
	return "rabbitmqadmin --vhost=" + quote(vhost) + " get queue=" + wire.QueueQuarantine + " ackmode=ack_requeue_false"
}

const (
	// Every majorityEvery the connection's node must do what needs a majority of its cluster, within partitionedAfter.
	majorityEvery    = 5 * time.Second
	partitionedAfter = 15 * time.Second
)

var errPartitioned = fmt.Errorf("RabbitMQ's node has not answered within %s what needs most of its cluster: it may "+
	"be partitioned from the others", partitionedAfter)

// needsMajority reports whether this version of RabbitMQ agrees on bindings by majority. Before 4.3 all nodes must
// agree, and one that hangs delays the others.
func needsMajority(conn *amqp.Connection) bool {
	yes, _ := delay.VersionAtLeast(versionOf(conn), 4, 3)
	return yes
}

// clusterOf returns the cluster name; the management API has the same.
func clusterOf(conn *amqp.Connection) string {
	name, _ := conn.Properties["cluster_name"].(string)
	return name
}

func versionOf(conn *amqp.Connection) string {
	v, _ := conn.Properties["version"].(string)
	return v
}

// watchMajority waits until the connection's node is partitioned from most of its cluster; it returns false when ctx
// ends. RabbitMQ 4.3 keeps the connections of such a node open, and neither delivers nor confirms anything before the
// partition ends. [measured on 4.3.6; it cannot declare a binding, and reports that after 30 s] Before 4.3 it closes
// them, with cluster_partition_handling = pause_minority.
func (l *link) watchMajority(ctx context.Context, conn *amqp.Connection) (partitioned bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(majorityEvery):
		}
		done := make(chan struct{})
		go func() { // ends with its connection at the latest
			defer close(done)
			if ch, err := conn.Channel(); err == nil {
				// This binding exists already. Its errors are reported by the BatchConsumer.
				_ = ch.QueueBind(wire.QueueIntake, "", wire.ExchangeDeadLetters, false, nil)
				_ = ch.Close()
			}
		}()
		for answered := false; !answered; {
			select {
			case <-ctx.Done():
				return false
			case <-done:
				answered = true
			case <-time.After(partitionedAfter):
				// Under an alarm RabbitMQ reads nothing from a connection that publishes.
				if l.now().Blocked == "" {
					return true
				}
			}
		}
	}
}
