package broker

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// majorityEvery is how often the connection's node is made to do what needs a majority of
	// its cluster, and partitionedAfter how long that may take.
	majorityEvery    = 5 * time.Second
	partitionedAfter = 15 * time.Second
)

var errPartitioned = fmt.Errorf("RabbitMQ's node has not answered within %s what needs most of its cluster: it may be partitioned from the others", partitionedAfter)

// needsMajority tells whether RabbitMQ is of a version that agrees on bindings by majority.
// Before 4.3 all nodes must agree, and one that hangs delays the others, which work.
func needsMajority(conn *amqp.Connection) bool {
	yes, _ := version.AtLeast(versionOf(conn), 4, 3)
	return yes
}

// versionOf is RabbitMQ's version, such as "4.3.1".
func versionOf(conn *amqp.Connection) string {
	v, _ := conn.Properties["version"].(string)
	return v
}

// clusterOf is the name of RabbitMQ's cluster, such as "rabbit@rabbit-1".
func clusterOf(conn *amqp.Connection) string {
	name, _ := conn.Properties["cluster_name"].(string)
	return name
}

// watchMajority returns true when the connection's node is partitioned from most of its
// cluster, and false when ctx ends. RabbitMQ 4.3 keeps the connections of such a node open,
// answers what the node knows by itself, and neither delivers nor confirms anything before the
// partition ends. [measured on 4.3.6; it cannot declare a binding, and reports that after 30 s]
// Before 4.3 it closes them itself, with cluster_partition_handling = pause_minority.
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
				// Under an alarm nothing is read from a connection that publishes.
				if l.now().Blocked == "" {
					return true
				}
			}
		}
	}
}
