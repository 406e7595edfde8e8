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
			{"an internal exchange is not federated", anInternalExchangeIsNotFederated},
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

// setAlarm changes the share of the memory, or the size of the disk, at which the alarm goes off.
func (r rabbit) setAlarm(t *testing.T, of string, on bool) {
	t.Helper()
	r.eval(t, map[string]map[bool]string{
		"memory": {false: "vm_memory_monitor:set_vm_memory_high_watermark(0.9).", true: "vm_memory_monitor:set_vm_memory_high_watermark(0.00001)."},
		"disk":   {false: "rabbit_disk_monitor:set_disk_free_limit(1000000).", true: "rabbit_disk_monitor:set_disk_free_limit(1000000000000000)."},
	}[of][on])
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
	conn, err := amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
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
	Version string
	t       *testing.T
	channel *amqp.Channel // see own
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

// Channel opens a channel on a connection of its own.
func (v *vhost) Channel() *amqp.Channel {
	v.t.Helper()
	ch, err := v.Dial().Channel()
	must(v.t, err)
	return ch
}

// own is a channel that the virtual host keeps, for what a test does in passing.
func (v *vhost) own() *amqp.Channel {
	v.t.Helper()
	if v.channel == nil || v.channel.IsClosed() {
		v.channel = v.Channel()
		must(v.t, v.channel.Confirm(false))
	}
	return v.channel
}

// Queue declares a durable queue.
func (v *vhost) Queue(name string, args amqp.Table) {
	v.t.Helper()
	// RabbitMQ 3.10 ends the connection (541) when a quorum queue does not answer within a
	// few seconds, as on a machine with much to do.
	var err error
	for range 5 {
		if _, err = v.own().QueueDeclare(name, true, false, false, false, args); !isRefused(err, amqp.InternalError) {
			break
		}
	}
	must(v.t, err)
}

// Exchange declares a durable exchange and binds queues to it with their names as routing
// keys.
func (v *vhost) Exchange(name, kind string, queues ...string) {
	v.t.Helper()
	must(v.t, v.own().ExchangeDeclare(name, kind, true, false, false, false, nil))
	for _, q := range queues {
		must(v.t, v.own().QueueBind(q, q, name, false, nil))
	}
}

// Publish publishes and waits for the confirm: a test whose own message is lost proves
// nothing.
func (v *vhost) Publish(exchange, key string, p amqp.Publishing) {
	v.t.Helper()
	c, err := v.own().PublishWithDeferredConfirm(exchange, key, false, false, p)
	must(v.t, err)
	if !c.Wait() {
		v.t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}

// kill kills the node and starts it again.
func (v *vhost) kill(t *testing.T) {
	t.Helper()
	v.broker.kill(t)
	if v.channel != nil {
		_ = v.channel.Close()
		v.channel = nil
	}
}

// Depth is how many messages a queue has ready.
func (v *vhost) Depth(queue string) int {
	v.t.Helper()
	q, err := v.own().QueueDeclarePassive(queue, true, false, false, false, nil)
	must(v.t, err)
	return q.Messages
}

// Policy sets one for queues.
func (v *vhost) Policy(name, pattern string, priority int, definition map[string]any) {
	v.t.Helper()
	v.setPolicy(v.t, name, pattern, priority, definition)
}

// consumer takes the deliveries of one queue, one after the other.
type consumer struct {
	v       *vhost
	queue   string
	Channel *amqp.Channel
	In      <-chan amqp.Delivery
}

// Consume consumes a queue over a connection of its own, with a prefetch of one.
func (v *vhost) Consume(queue string) *consumer {
	v.t.Helper()
	return v.ConsumeOn(v.Channel(), queue)
}

// ConsumeOn is Consume on a channel of the test's.
func (v *vhost) ConsumeOn(ch *amqp.Channel, queue string) *consumer {
	v.t.Helper()
	must(v.t, ch.Qos(1, 0, false))
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	must(v.t, err)
	return &consumer{v, queue, ch, in}
}

// Next waits for a delivery.
func (c *consumer) Next() amqp.Delivery {
	c.v.t.Helper()
	select {
	case d, ok := <-c.In:
		if !ok {
			c.v.t.Fatalf("the consumer of %s was ended", c.queue)
		}
		return d
	case <-time.After(30 * time.Second):
		c.v.t.Fatalf("no delivery came from %s", c.queue)
	}
	return amqp.Delivery{}
}

// Take waits for a delivery, which must have this body, and acknowledges it.
func (c *consumer) Take(body string) amqp.Delivery {
	c.v.t.Helper()
	d := c.Next()
	if string(d.Body) != body {
		c.v.t.Fatalf("%.60q came from %s, want %.60q", d.Body, c.queue, body)
	}
	must(c.v.t, d.Ack(false))
	return d
}

// Reject waits for a delivery and dead-letters it.
func (c *consumer) Reject() amqp.Delivery {
	c.v.t.Helper()
	d := c.Next()
	must(c.v.t, d.Reject(false))
	return d
}

// Arrived takes a delivery that is there already.
func (c *consumer) Arrived() bool {
	c.v.settle()
	select {
	case <-c.In:
		return true
	default:
		return false
	}
}
