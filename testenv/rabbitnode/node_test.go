package rabbitnode_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/owned"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// TestMain is also the owner of a node, in a process that a test can kill.
func TestMain(m *testing.M) {
	root, owns := owned.Root()
	if !owns {
		os.Exit(m.Run())
	}
	n, err := rabbitnode.Start(context.Background(), rabbitnode.Options{Root: root})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("127.0.0.1:%d\n", n.Port())
	select {} // until it is killed
}

func TestANodeEndsWhenItsOwnerIsKilled(t *testing.T) {
	for _, b := range brokertest.All(t) {
		t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
			if !b.Private {
				t.Skip("not run: a broker that was given with BROKERS is not ours to end")
			}
			t.Parallel()
			owned.EndsWithOwner(t, b.Root, "redrive-rabbitmq-*/rabbitmq.conf", "127.0.0.1:")
		})
	}
}
