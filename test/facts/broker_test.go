package facts_test

import (
	"context"
	"errors"
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
	setMemoryAlarm(*testing.T, bool)                   // of a broker of the test's own
	kill(*testing.T)                                   // and starts the node again; of the test's own too
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
	node *rabbitnode.Node // of EachPrivate
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

// setMemoryAlarm changes the share of the memory at which the alarm goes off.
func (r rabbit) setMemoryAlarm(t *testing.T, on bool) {
	t.Helper()
	share := "0.9"
	if on {
		share = "0.00001"
	}
	_, err := r.node.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+share+").")
	must(t, err)
}

func (r rabbit) kill(t *testing.T) {
	t.Helper()
	// Or a node of RabbitMQ 3 has forgotten the quorum queues of the last minutes.
	_, err := r.node.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()].")
	must(t, err)
	r.node.Kill()
	must(t, r.node.Restart(context.Background()))
}

func (rabbit) settle() {}

// modelled is the model of RabbitMQ.
type modelled struct{ *model.Broker }

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
	return state{q.Messages, q.Policy}, is
}

func (m modelled) setPolicy(t *testing.T, name, pattern string, priority int, definition map[string]any) {
	t.Helper()
	must(t, m.SetPolicy(model.Policy{Name: name, Pattern: pattern, ApplyTo: "queues", Priority: priority, Definition: definition}))
}

func (m modelled) deletePolicy(_ *testing.T, name string) { m.DeletePolicy(name) }

func (modelled) purge(t *testing.T, queue string) {
	t.Helper()
	t.Fatalf("purging %q: the model of RabbitMQ has no management API", queue)
}

func (modelled) payload(t *testing.T, queue string) (string, bool) {
	t.Helper()
	t.Fatalf("reading %q: the model of RabbitMQ has no management API", queue)
	return "", false
}

func (m modelled) setMemoryAlarm(_ *testing.T, on bool) { m.SetMemoryAlarm(on) }

func (m modelled) kill(*testing.T) {
	m.Kill()
	m.Restart()
}

func (modelled) settle() { synctest.Wait() }
