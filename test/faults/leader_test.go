package faults_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// The leader of a work queue moves again and again while messages fail, and the service's
// connections stand. What RabbitMQ's at-least-once dead-lettering then publishes again has
// the id of the first.
func TestMovingAQueuesLeaderRenamesNothing(t *testing.T) {
	brokertest.EachCluster(t, "", func(t *testing.T, v *brokertest.VHost, c *rabbitnode.Cluster) {
		l := newClusterTally(t, v, c)
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.start()
		p.waitReady()
		consuming(t, l)
		l.during(func() {
			moving, moved := context.WithCancel(context.Background())
			var mover sync.WaitGroup
			mover.Go(func() {
				defer moved()
				moveLeader(t, c, "orders", 4)
			})
			for moving.Err() == nil {
				l.publish(100)
				<-time.After(250 * time.Millisecond) // a load that comes to an end
			}
			mover.Wait()
		})
		l.awaitAcknowledged(acknowledgedWithin)
		p.waitReady()
		l.account()
	})
}

// moveLeader lets each node in turn lead a quorum queue, so often.
func moveLeader(t *testing.T, c *rabbitnode.Cluster, queue string, rounds int) {
	t.Helper()
	var nodes []string
	for _, n := range c.Nodes {
		nodes = append(nodes, "'"+n.Name()+"'")
	}
	out, err := c.Nodes[0].Eval(context.Background(), fmt.Sprintf(`[begin
		{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<%q>>)),
		Moved = rabbit_quorum_queue:transfer_leadership(Q, Node),
		timer:sleep(1000),
		Moved
	end || _ <- lists:seq(1, %d), Node <- [%s]].`, queue, rounds, strings.Join(nodes, ", ")))
	if err != nil {
		t.Errorf("moving the leader of queue %q: %v: %s", queue, err, out)
	}
	t.Logf("the leader moved: %s", strings.Join(strings.Fields(out), " "))
}
