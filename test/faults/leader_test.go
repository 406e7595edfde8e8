package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/internal/rabbitnode"
)

// The leader of a work queue moves again and again while messages fail, and the service's
// connections stand. What RabbitMQ's at-least-once dead-lettering then publishes again has
// the id of the first.
func TestMovingAQueuesLeaderRenamesNothing(t *testing.T) {
	brokertest.EachCluster(t, "", func(t *testing.T, v *brokertest.VHost, c *rabbitnode.Cluster) {
		l := newClusterLedger(t, v, c)
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.start()
		p.waitReady()
		s := &clusterStory{t, v, c, p, l}
		consuming(t, l)
		for range 12 {
			l.publish(500)
			l.during(func() { s.moveLeader("orders") })
		}
		l.settle(settleWithin)
		p.waitReady()
		l.account()
	})
}

// moveLeader lets another node lead a quorum queue.
func (s *clusterStory) moveLeader(queue string) {
	s.t.Helper()
	leader := s.queue(queue).Leader
	for _, n := range s.c.Nodes {
		if n.Name() == leader {
			continue
		}
		_, err := n.Eval(context.Background(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<%q>>)), rabbit_quorum_queue:transfer_leadership(Q, '%s').", queue, n.Name()))
		must(s.t, err)
		began := time.Now()
		brokertest.Eventually(s.t, "another node leads", func() bool { return s.queue(queue).Leader == n.Name() })
		s.t.Logf("%s leads after %s", n.Name(), time.Since(began).Round(10*time.Millisecond))
		return
	}
}
