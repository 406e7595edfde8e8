package facts_test

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// onEnv says what facts are tried on: RabbitMQ and the model without it, with "model" the
// model alone.
const onEnv = "REDRIVE_FACTS_ON"

// onEach runs a test on the model and on every broker, beside the other tests.
func onEach(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	onModels(t, test)
	if os.Getenv(onEnv) == "" {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			test(t, &vhost{broker: rabbit{VHost: v}, Version: v.Version, t: t})
		})
	}
}

// onEachBroker is onEach for what the model does not have.
func onEachBroker(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	if os.Getenv(onEnv) == "" {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			test(t, &vhost{broker: rabbit{VHost: v}, Version: v.Version, t: t})
		})
	}
}

// Facts about whole nodes are tried on one node of each version, in this order: the last ones leave it changed.
func TestOnANodeOfItsOwn(t *testing.T) {
	if os.Getenv(onEnv) != "" {
		return
	}
	brokertest.EachPrivate(t, "", func(t *testing.T, own *brokertest.VHost, n *rabbitnode.Node) {
		for _, fact := range []struct {
			name string
			is   func(*testing.T, *vhost)
		}{
			{"an alarm stops acks of connections that publish only", anAlarmStopsAcksOfConnectionsThatPublishOnly},
			{"a connection is blocked until the last alarm is over", aConnectionIsBlockedUntilTheLastAlarmIsOver},
			{"a killed node has lost transient messages of classic queues only", aKilledNodeHasLostTransientMessagesOfClassicQueuesOnly},
			{"a stopped node has lost what a killed one has", aStoppedNodeHasLostWhatAKilledOneHas},
			{"a consumer that takes too long", aConsumerThatTakesTooLong},
			{"a malformed x-death ends at-least-once on 3", malformedXDeathEndsAtLeastOnceOn3},
		} {
			t.Run(fact.name, func(t *testing.T) {
				v := brokertest.NewVHost(t, own.Broker)
				fact.is(t, &vhost{broker: rabbit{VHost: v, node: n}, Version: v.Version, t: t})
			})
		}
	})
}

// onACluster is onEachBroker on a cluster of the test's own, of one version. Clients are connected to a node that
// stays.
func onACluster(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	if os.Getenv(onEnv) == "" {
		brokertest.OneCluster(t, "", func(t *testing.T, v *brokertest.VHost, c *rabbitnode.Cluster) {
			must(t, c.Grow(t.Context()))
			stays := *v
			stays.AMQP, stays.Management = c.Nodes[1].URL(), c.Nodes[1].Management()
			test(t, &vhost{broker: rabbit{VHost: &stays, node: c.Nodes[1], cluster: c}, Version: v.Version, t: t})
		})
	}
}

// onModels runs a test on the model of each version, in fake time.
func onModels(t *testing.T, test func(*testing.T, *vhost)) {
	t.Helper()
	for _, version := range model.Versions {
		t.Run("model of "+version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := model.New(model.Options{Version: version})
				defer m.Close()
				test(t, &vhost{broker: modelled{Broker: m}, Version: version, t: t})
			})
		})
	}
}
