// Package stories_test runs the service against real brokers, from the
// publisher's first message to the consumer's last.
package stories_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// service is a running Redrive.
type service struct{ *servertest.Service }

// start runs a service on a virtual host with policies in YAML, as a user with the
// rights that `redrive permissions` prints for them. It ends with the test.
func start(t *testing.T, v *brokertest.VHost, policies string) *service {
	return startAt(t, v, policies, t.TempDir())
}

func startAt(t *testing.T, v *brokertest.VHost, policies, data string) *service {
	t.Helper()
	return run(t, configured(t, v, policies, data))
}

func configured(t *testing.T, v *brokertest.VHost, policies, data string) *config.Config {
	t.Helper()
	c := servertest.Config(t, v, policies)
	c.Broker.Management, c.Store.Disk = "", data
	return c
}

func run(t *testing.T, c *config.Config) *service {
	t.Helper()
	return &service{servertest.Run(t, c)}
}

func (s *service) ready(t *testing.T) *service {
	t.Helper()
	s.Ready(t)
	return s
}

// wait waits for the next event of one of the kinds.
func (s *service) wait(t *testing.T, kinds ...retry.Kind) retry.Event {
	t.Helper()
	for {
		select {
		case e := <-s.Events:
			if slices.Contains(kinds, e.Kind) {
				return e
			}
		case <-time.After(brokertest.Patience):
			t.Fatalf("no event of %v came", kinds)
		}
	}
}

// kept is what the service shows of a queue.
func (s *service) kept(t *testing.T, queue string) inspect.Queue {
	t.Helper()
	st, err := s.Client.Overview(context.Background())
	must(t, err)
	for _, q := range st.Queues {
		if q.Name == queue {
			return q
		}
	}
	return inspect.Queue{Name: queue}
}

// get asks the service by HTTP.
func (s *service) get(t *testing.T, path string) (code int, text string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + path)
	must(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(all)
}

// metric is the value of a line of the service's metrics; "" when there is none.
func (s *service) metric(t *testing.T, series string) string {
	t.Helper()
	_, all := s.get(t, "/metrics")
	for line := range strings.Lines(all) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// deadLettered declares a queue whose dead letters go to Redrive.
func deadLettered(v *brokertest.VHost, queue, kind string) {
	v.Queue(queue, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive"})
}

func reject(t *testing.T, d amqp.Delivery) time.Time {
	t.Helper()
	must(t, d.Reject(false))
	return time.Now()
}

// publish is as VHost.Publish, on a channel of somebody else's.
func publish(t *testing.T, ch *amqp.Channel, exchange, key string, p amqp.Publishing) {
	t.Helper()
	must(t, ch.Confirm(false))
	c, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	must(t, err)
	if !c.Wait() {
		t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}
