// Package facts_test pins what Redrive relies on in RabbitMQ. A test that fails
// here after an update means that RabbitMQ has changed, and that the design must
// be looked at again, not only the test.
//
// Facts that the model of RabbitMQ (testenv/model) needs are tried on it too. REDRIVE_FACTS_ON=model tries
// them on the model alone, without RabbitMQ.
package facts_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// These tests wait far more than they work.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// since reports whether the broker is of this version or later.
func since(v *vhost, major, minor int) bool {
	var m, n int
	if _, err := fmt.Sscanf(v.Version, "%d.%d", &m, &n); err != nil {
		panic(err)
	}
	return m > major || m == major && n >= minor
}

// deadLetters declares a queue whose dead letters go to another, which is
// declared as well.
func deadLetters(v *vhost, from, to string, args amqp.Table) {
	v.Queue(to, nil)
	all := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
	for k, a := range args {
		all[k] = a
	}
	v.Queue(from, all)
}

var bothTypes = []string{"classic", "quorum"}

var must, errOf = expect.NoError, expect.ErrOf

// refused fails unless err is RabbitMQ's, with this code.
func refused(t *testing.T, what string, err error, code int) {
	t.Helper()
	if !isRefused(err, code) {
		t.Errorf("%s: %v, want code %d", what, err, code)
	}
}

func isRefused(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// closes waits for a channel to be closed by RabbitMQ.
func closes(ch *amqp.Channel) <-chan *amqp.Error { return ch.NotifyClose(make(chan *amqp.Error, 1)) }

// held is how many messages a queue holds, those in no consumer's reach too.
func held(t *testing.T, v *vhost, queue string) int {
	t.Helper()
	q, is := v.queue(t, queue)
	if !is {
		t.Fatalf("there is no queue %q", queue)
	}
	return q.messages
}

// gone reports whether a queue does not exist.
func gone(t *testing.T, v *vhost, queue string) bool {
	t.Helper()
	_, is := v.queue(t, queue)
	return !is
}

// deaths are the entries of x-death.
func deaths(t *testing.T, d amqp.Delivery) (entries []amqp.Table) {
	t.Helper()
	all, ok := d.Headers["x-death"].([]any)
	if !ok {
		t.Fatalf("x-death of %q is %v", d.Body, d.Headers["x-death"])
	}
	for _, e := range all {
		entries = append(entries, e.(amqp.Table))
	}
	return entries
}

// onEnv says what facts are tried on: RabbitMQ and the model without it, with "model" the
// model alone.
const onEnv = "REDRIVE_FACTS_ON"

// onEach runs a test on the model and on every broker, beside the other tests.
func onEach(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	onModels(t, test)
	if os.Getenv(onEnv) == "" {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			test(t, newVHost(t, rabbit{VHost: v}, v.Version))
		})
	}
}

// onEachBroker is onEach for what the model does not have.
func onEachBroker(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	if os.Getenv(onEnv) == "" {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			test(t, newVHost(t, rabbit{VHost: v}, v.Version))
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
			{"a killed node has lost transient messages of classic queues only",
				aKilledNodeHasLostTransientMessagesOfClassicQueuesOnly},
			{"a stopped node has lost what a killed one has", aStoppedNodeHasLostWhatAKilledOneHas},
			{"a consumer that takes too long", aConsumerThatTakesTooLong},
			{"an internal exchange is not federated", anInternalExchangeIsNotFederated},
			{"a malformed x-death ends at-least-once on 3", malformedXDeathEndsAtLeastOnceOn3},
		} {
			t.Run(fact.name, func(t *testing.T) {
				v := brokertest.NewVHost(t, own.Broker)
				fact.is(t, newVHost(t, rabbit{VHost: v, node: n}, v.Version))
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
			test(t, newVHost(t, rabbit{VHost: &stays, node: c.Nodes[1], cluster: c}, v.Version))
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
				test(t, newVHost(t, modelled{Broker: m}, version))
			})
		})
	}
}

// broker is what facts need of RabbitMQ beside AMQP. A real one and the model are brokers.
type broker interface {
	dial(*testing.T, func(net.Conn) net.Conn) *amqp.Connection // wrap may be nil
	queue(*testing.T, string) (state, bool)
	setPolicy(t *testing.T, name, pattern string, priority int, definition map[string]any)
	deletePolicy(t *testing.T, name string)
	purge(t *testing.T, queue string)
	payload(t *testing.T, queue string) (string, bool) // of the first message, which stays
	setAlarm(t *testing.T, of string, on bool)         // memory or disk; of a broker of the test's own
	setConsumerTimeout(*testing.T, time.Duration)      // for channels to come; of the test's own too
	moveLeader(t *testing.T, queue string, kill bool)  // of a quorum queue; or end the leader's node
	kill(*testing.T)                                   // and starts the node again; of the test's own too
	restart(*testing.T)                                // in order; of the test's own too
	settle()                                           // waits for what is under way, if it can
}

// state is what the management API says of a queue.
type state struct {
	messages int // also those that no consumer can receive
	policy   string
}

// rabbit is a real RabbitMQ.
type rabbit struct {
	*brokertest.VHost
	node    *rabbitnode.Node // of EachPrivate
	cluster *rabbitnode.Cluster
}

func (r rabbit) dial(t *testing.T, wrap func(net.Conn) net.Conn) *amqp.Connection {
	t.Helper()
	if wrap == nil {
		return r.Dial()
	}
	conn, err := amqp.DialConfig(r.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := net.DialTimeout(network, addr, time.Minute)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	}})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (r rabbit) queue(t *testing.T, name string) (state, bool) {
	t.Helper()
	q, exists := r.State(name)
	return state{q.Messages, q.Policy}, exists
}

func (r rabbit) setPolicy(_ *testing.T, name, pattern string, priority int, definition map[string]any) {
	r.Policy(name, pattern, priority, definition)
}

func (r rabbit) deletePolicy(t *testing.T, name string) {
	t.Helper()
	must(t, r.API().DeletePolicy(context.Background(), name))
}

func (r rabbit) path(queue, what string) string {
	return "queues/" + url.PathEscape(r.Name) + "/" + url.PathEscape(queue) + "/" + what
}

func (r rabbit) purge(t *testing.T, queue string) {
	t.Helper()
	r.Must(http.MethodDelete, r.path(queue, "contents"), nil)
}

func (r rabbit) payload(t *testing.T, queue string) (string, bool) {
	t.Helper()
	var shown []struct{ Payload string }
	must(t, r.API().Call(t.Context(), http.MethodPost, r.path(queue, "get"),
		map[string]any{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, &shown))
	if len(shown) == 0 {
		return "", false
	}
	return shown[0].Payload, true
}

// setAlarm changes the memory or disk limit at which the alarm goes off. Asking for the alarms afterwards is answered
// once connections know.
func (r rabbit) setAlarm(t *testing.T, of string, on bool) {
	t.Helper()
	r.eval(t, map[string]map[bool]string{
		"memory": {false: "vm_memory_monitor:set_vm_memory_high_watermark(0.9)",
			true: "vm_memory_monitor:set_vm_memory_high_watermark(0.00001)"},
		"disk": {false: "rabbit_disk_monitor:set_disk_free_limit(1000000)",
			true: "rabbit_disk_monitor:set_disk_free_limit(1000000000000000)"},
	}[of][on]+", rabbit_alarm:get_alarms().")
}

// setConsumerTimeout also has RabbitMQ 3 look at it once a second, not once a minute.
func (r rabbit) setConsumerTimeout(t *testing.T, d time.Duration) {
	t.Helper()
	r.eval(t, fmt.Sprintf("application:set_env(rabbit, consumer_timeout, %d), application:set_env(rabbit, channel_tick_interval, 1000).", d.Milliseconds()))
}

func (r rabbit) eval(t *testing.T, expression string) {
	t.Helper()
	out, err := r.node.Eval(context.Background(), expression)
	if err != nil {
		t.Fatalf("%s: %v: %s", expression, err, out)
	}
}

func (r rabbit) kill(t *testing.T) {
	t.Helper()
	// Or a node of RabbitMQ 3 has forgotten the quorum queues of the last minutes.
	r.eval(t, "[dets:sync(T) || T <- dets:all()].")
	r.node.Kill()
	must(t, r.node.Restart(context.Background()))
}

// moveLeader moves it to the last node and then to the first, which is the one that is killed.
func (r rabbit) moveLeader(t *testing.T, queue string, kill bool) {
	t.Helper()
	to := r.cluster.Nodes[0]
	move := func(to *rabbitnode.Node) {
		r.eval(t, fmt.Sprintf(`begin {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<%q>>)), rabbit_quorum_queue:transfer_leadership(Q, '%s') end.`, queue, to.Name()))
	}
	move(r.cluster.Nodes[2])
	move(to)
	if kill {
		to.Kill()
	}
}

func (r rabbit) restart(t *testing.T) {
	t.Helper()
	must(t, errOf(r.node.Eval(context.Background(), "rabbit:stop(), rabbit:start().")))
}

func (rabbit) settle() {}

// modelled is the model of RabbitMQ, as far as it goes: facts that need more are tried on brokers alone.
type modelled struct {
	broker // nil: it has none of the others
	*model.Broker
}

func (m modelled) dial(t *testing.T, wrap func(net.Conn) net.Conn) *amqp.Connection {
	t.Helper()
	conn, err := amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: func(network, addr string) (net.Conn,
		error) {
		c, err := m.Dial(network, addr)
		if err != nil || wrap == nil {
			return c, err
		}
		return wrap(c), nil
	}})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (m modelled) queue(_ *testing.T, name string) (state, bool) {
	q, is := m.Queue(name)
	return state{messages: q.Messages}, is
}

func (m modelled) setAlarm(_ *testing.T, _ string, on bool) { m.SetMemoryAlarm(on) }

func (modelled) settle() { synctest.Wait() }

// vhost is where a fact is tried: an empty virtual host of a broker.
type vhost struct {
	broker
	*brokertest.Client
	Version string
	t       *testing.T
}

func newVHost(t *testing.T, b broker, version string) *vhost {
	v := &vhost{broker: b, Version: version, t: t}
	v.Client = brokertest.NewClient(t, v.Dial)
	return v
}

// Dial connects; the connection ends with the test.
func (v *vhost) Dial() *amqp.Connection {
	v.t.Helper()
	return v.dial(v.t, nil)
}

// DialOver is Dial over a connection that wrap makes of the broker's.
func (v *vhost) DialOver(wrap func(net.Conn) net.Conn) *amqp.Connection {
	v.t.Helper()
	return v.dial(v.t, wrap)
}

// kill kills the node and starts it again.
func (v *vhost) kill(t *testing.T) {
	t.Helper()
	v.broker.kill(t)
	v.Client = brokertest.NewClient(t, v.Dial) // the other's channel may not know yet
}

// Policy sets one for queues.
func (v *vhost) Policy(name, pattern string, priority int, definition map[string]any) {
	v.t.Helper()
	v.setPolicy(v.t, name, pattern, priority, definition)
}
