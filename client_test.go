package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// queues declares n of them.
func queues(v *brokertest.VHost, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("queue-", i))
		v.Queue(names[i], amqp.Table{"x-queue-type": "quorum"})
	}
	return names
}

// handled counts messages by their body.
type handled struct {
	mu sync.Mutex
	n  map[string]int
}

func (h *handled) add(body string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == nil {
		h.n = map[string]int{}
	}
	h.n[body]++
}

func (h *handled) count(body string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n[body]
}

// consumeAll consumes queues with one client. Each message fails once. wait waits for all
// consumers to end.
func consumeAll(t *testing.T, client *redrive.Client, c setup, names []string, seen *handled) (wait func()) {
	var running sync.WaitGroup
	for _, name := range names {
		k := c.Consumer
		k.Queue = name
		k.Handler = func(_ context.Context, m *redrive.Message) error {
			if m.Attempt == 1 {
				return errDown
			}
			if m.Queue != name {
				t.Errorf("%q of queue %q came to the handler of %q", m.Body, m.Queue, name)
			}
			seen.add(string(m.Body))
			return nil
		}
		running.Go(func() {
			if err := client.Consume(context.Background(), k); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	return running.Wait
}

// connections are the names of those that RabbitMQ has of a client.
func connections(t *testing.T, v *brokertest.VHost, of string) (names []string) {
	t.Helper()
	var all []struct {
		Properties struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	if err := v.API().Call(context.Background(), http.MethodGet, "connections", nil, &all); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if strings.HasPrefix(c.Properties.Name, of+" (") {
			names = append(names, c.Properties.Name)
		}
	}
	return names
}

// A program with ten queues has two connections.
func TestTenConsumersTwoConnections(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := config(t, v, fast(3))
		c.AMQP.Properties = amqp.Table{"connection_name": v.Name}
		client := connect(t, c.Config)
		names := queues(v, 10)
		var seen handled
		wait := consumeAll(t, client, c, names, &seen)
		for _, name := range names {
			v.Publish("", name, amqp.Publishing{Body: []byte(name)})
		}
		brokertest.Eventually(t, "each queue is consumed", func() bool {
			for _, name := range names {
				if seen.count(name) != 1 {
					return false
				}
			}
			return true
		})
		brokertest.Eventually(t, "RabbitMQ's statistics have the connections", func() bool { return len(connections(t, v, v.Name)) >= 2 })
		if got := connections(t, v, v.Name); len(got) != 2 || got[0] == got[1] {
			t.Errorf("the connections are %q", got)
		}
		client.Close()
		wait()
		if err := client.Consume(t.Context(), c.Consumer); err == nil {
			t.Error("a closed client consumes")
		}
		if _, err := client.NewSettler(t.Context(), c.Consumer); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("a closed client makes a settler: %v", err)
		}
	})
}

// Whatever ends a consumer, the others go on, over the same connection.
func TestAConsumerThatStopsStopsNoOther(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		names := queues(v, 3)
		c := config(t, v, fast(3))
		c.AMQP.Properties = amqp.Table{"connection_name": v.Name}
		var log safeLog
		var stays, cancelled outcomes
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		m, n := stays.metrics(), cancelled.metrics()
		c.Metrics.Consumer = func(e redrive.ConsumerEvent) {
			switch e.Queue {
			case names[0]:
				m.Consumer(e)
			case names[2]:
				n.Consumer(e)
			}
		}
		client := connect(t, c.Config)
		var seen handled
		wait := consumeAll(t, client, c, []string{names[0], names[2]}, &seen)
		brokertest.Eventually(t, "two are consumed", func() bool { return stays.connections() == 1 && cancelled.connections() == 1 })

		missing := c.Consumer
		missing.Queue, missing.Handler = "missing", nothing
		if err := client.Consume(t.Context(), missing); !errors.Is(err, wire.ErrQueueGone) {
			t.Errorf("a queue that is missing: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		other := c.Consumer
		other.Queue, other.Handler = names[1], func(context.Context, *redrive.Message) error { cancel(); return nil }
		v.Publish("", names[1], amqp.Publishing{})
		if err := client.Consume(ended, other); err != nil {
			t.Errorf("a consumer that is stopped: %v", err)
		}
		v.Must("DELETE", "queues/"+v.Name+"/"+names[2], nil)
		brokertest.Eventually(t, "RabbitMQ has cancelled one", func() bool {
			return cancelled.losses() == 1 && strings.Contains(log.String(), "RabbitMQ cancelled the consumer")
		})

		v.Publish("", names[0], amqp.Publishing{Body: []byte("after")})
		brokertest.Eventually(t, "the other goes on", func() bool { return seen.count("after") == 1 })
		// Classic: consuming a quorum queue in the moment it is declared closes the connection, with 541. [3.10.8]
		v.Queue(names[2], amqp.Table{"x-queue-type": "classic"})
		v.Publish("", names[2], amqp.Publishing{Body: []byte("again")})
		brokertest.Eventually(t, "a queue that is there again is consumed", func() bool { return seen.count("again") == 1 })
		if stays.connections() != 1 || stays.losses() != 0 {
			t.Errorf("the one that should go on began %d times, and ended %d times", stays.connections(), stays.losses())
		}
		client.Close()
		wait()
	})
}

// All consumers of a client go on after its connections were cut, nothing is lost, and
// nothing of it is left after Close.
func TestAClientReconnectsAllItsConsumers(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		names := queues(v, 5)
		v.Publish("", names[0], amqp.Publishing{Body: []byte("first")}) // opens the test's own connection
		before := goleak.IgnoreCurrent()
		proxy := brokertest.NewProxy(t, v)
		c := config(t, v, fast(3))
		c.URLs[0] = proxy.URL
		var again outcomes
		c.Metrics = again.metrics()
		client := connect(t, c.Config)
		var seen handled
		wait := consumeAll(t, client, c, names, &seen)
		for cut := range 4 {
			for _, name := range names {
				v.Publish("", name, amqp.Publishing{Body: fmt.Append(nil, name, cut)})
			}
			brokertest.Eventually(t, fmt.Sprint("all are handled after cut ", cut), func() bool {
				for _, name := range names {
					if seen.count(fmt.Sprint(name, cut)) == 0 {
						return false
					}
				}
				return true
			})
			if cut < 3 {
				proxy.Cut()
			}
		}
		if n := again.connections(); n < 4*len(names) {
			t.Errorf("consumers began %d times, of %d queues and 3 cuts", n, len(names))
		}
		client.Close()
		wait()
		proxy.Close()
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
}

// A person's error reaches the caller of NewClient, once, and at once.
func TestNewClientReturnsErrorsThatAPersonMustFix(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		var log safeLog
		user := "consumer-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, ".*", ".*", ".*")
		for _, c := range []struct {
			url  string
			want error
		}{
			{v.URLAs(user, "wrong"), wire.ErrForbidden},
			{strings.Replace(v.URL(), v.Name, "nowhere", 1), wire.ErrNoVHost},
		} {
			_, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{c.url}, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if !errors.Is(err, c.want) || strings.Count(err.Error(), c.want.Error()) != 1 {
				t.Errorf("%v, want %v", err, c.want)
			}
		}
		if log.String() != "" {
			t.Errorf("it is logged as well: %s", log.String())
		}
	})
}

// SASL, the dialer and the virtual host are those of Config.AMQP, for each connection.
func TestTheClientsOwnAMQPConfig(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var dialed atomic.Int32
		c := config(t, v, fast(2))
		c.URLs[0] = strings.Replace(v.URLAs("stranger", "wrong"), v.Name, "nowhere", 1)
		c.AMQP = amqp.Config{Vhost: v.Name, SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}},
			Dial: func(network, addr string) (net.Conn, error) { dialed.Add(1); return net.Dial(network, addr) }}
		came := make(chan int, 2)
		stop := consume(t, c, func(_ context.Context, m *redrive.Message) error { came <- m.Attempt; return nil })
		v.Publish("", "orders", amqp.Publishing{})
		<-came
		if err := stop(); err != nil {
			t.Error(err)
		}
		if dialed.Load() != 2 {
			t.Errorf("its dialer was called %d times", dialed.Load())
		}
	})
}
