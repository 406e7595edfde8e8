package broker

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

const (
	// askMajority is how often a connection's node has to do what needs most of its
	// cluster, and partedAfter how long it may take.
	askMajority = 5 * time.Second
	partedAfter = 15 * time.Second
)

var errParted = fmt.Errorf("RabbitMQ's node has not answered within %s what needs most of its cluster: it may be parted from the others", partedAfter)

// asksMajority: RabbitMQ may be of a version that agrees by majority on bindings. Before
// 4.3 all nodes must agree, and one that hangs holds up the others, which are well.
func asksMajority(conn *amqp.Connection) bool {
	v, _ := conn.Properties["version"].(string)
	var major, minor int
	_, err := fmt.Sscanf(v, "%d.%d", &major, &minor)
	return err == nil && (major > 4 || major == 4 && minor >= 3)
}

// watchMajority tells, until ctx ends, that the connection's node is parted from most
// of its cluster. RabbitMQ 4.3 keeps the connections of such a node, answers what it
// knows by itself, and neither delivers nor confirms anything before the partition
// ends. [measured on 4.3.6; a binding is what it cannot make, and says so after 30 s]
// Before 4.3 it ends them itself, with cluster_partition_handling = pause_minority.
func (l *link) watchMajority(ctx context.Context, conn *amqp.Connection) (parted bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(askMajority):
		}
		done := make(chan struct{})
		go func() { // it ends with its connection, if not before
			defer close(done)
			if ch, err := conn.Channel(); err == nil {
				// As it is already. Whatever is wrong with it others say.
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
			case <-time.After(partedAfter):
				// Under an alarm nothing is read from a connection that publishes.
				if l.now().Blocked == "" {
					return true
				}
			}
		}
	}
}
