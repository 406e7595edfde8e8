package redrive_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// A consumer whose publishing connection an alarm blocks goes on consuming after its other
// connection was lost; what failed is retried when the alarm is over.
func TestConsumingGoesOnAfterAReconnectDuringAnAlarm(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		watermark := func(to string) {
			if _, err := n.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+to+")."); err != nil {
				t.Fatal(err)
			}
		}
		const good = 100
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		for range 2 {
			v.Publish("", "orders", amqp.Publishing{Body: []byte("fails")})
		}
		for i := range good {
			v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, i)})
		}
		watermark("0.00001")
		var mu sync.Mutex
		handled, retried := map[string]bool{}, 0
		again := make(chan struct{}) // closed when it is connected again
		var seen outcomes
		var log safeLog
		cfg := config(t, v, fast(2))
		cfg.Concurrency, cfg.Metrics, cfg.Log = 3, seen.metrics(), slog.New(slog.NewTextHandler(&log, nil))
		stop := consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			if string(m.Body) == "fails" {
				if m.Attempt == 1 {
					return errDown
				}
				mu.Lock()
				defer mu.Unlock()
				retried++
				return nil
			}
			select {
			case <-again:
			case <-ctx.Done():
			}
			mu.Lock()
			defer mu.Unlock()
			handled[string(m.Body)] = true
			return nil
		})
		brokertest.Eventually(t, "the publishing connection is blocked", func() bool { return strings.Contains(log.String(), "RabbitMQ has an alarm") })
		brokertest.Eventually(t, "the consuming connection is closed", func() bool { return closeConnection(t, v, "redrive (consumes)") })
		brokertest.Eventually(t, "it is connected again", func() bool { return seen.connections() == 2 })
		close(again)
		brokertest.Eventually(t, "all that does not fail is handled, during the alarm", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(handled) == good
		})
		watermark("{absolute, 4000000000}")
		brokertest.Eventually(t, "what failed is retried", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return retried >= 2
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// closeConnection has RabbitMQ close the connection of a name, and tells whether it knew one.
func closeConnection(t *testing.T, v *brokertest.VHost, name string) (closed bool) {
	t.Helper()
	var all []struct {
		Name       string `json:"name"`
		Properties struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	if err := v.API().Call(context.Background(), http.MethodGet, "connections", nil, &all); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Properties.Name == name {
			closed = v.API().Call(context.Background(), http.MethodDelete, "connections/"+url.PathEscape(c.Name), nil, nil) == nil || closed
		}
	}
	return closed
}
