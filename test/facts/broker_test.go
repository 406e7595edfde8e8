package facts_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

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
	q, err := r.API().Queue(context.Background(), name)
	if err != nil && !errors.Is(err, management.ErrNotFound) {
		t.Fatal(err)
	}
	return state{q.Messages, q.Policy}, err == nil
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
	_, err := r.node.Eval(context.Background(), "rabbit:stop(), rabbit:start().")
	must(t, err)
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
