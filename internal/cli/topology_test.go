package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// topology imports what the command prints, as `rabbitmqctl import_definitions`
// would.
func topology(t *testing.T, v *brokertest.VHost, args ...string) {
	t.Helper()
	var out, errOut strings.Builder
	if code := cli.Run(context.Background(), append([]string{"topology", args[0], "--vhost", v.Name}, args[1:]...), &out, &errOut, cli.Build{Version: "test"}); code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut.String())
	}
	v.Must("POST", "definitions", json.RawMessage(out.String()))
}

// settled waits until the queue has the policy.
func settled(t *testing.T, v *brokertest.VHost, queue, policy string) {
	t.Helper()
	brokertest.Eventually(t, policy+" applies to "+queue, func() bool {
		q, err := v.API().Queue(context.Background(), queue)
		if err != nil {
			t.Fatal(err)
		}
		return q.Policy == policy
	})
}

const second = time.Second

// The recipe in the broker alone, with no code: what is rejected comes back, again
// and again, each time after the delay; what expired is dropped as a cycle, and
// stops nothing; what has no queue any more is parked.
func TestTheFixedTopologyBringsRejectedMessagesBack(t *testing.T) {
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				queues := []string{"orders", "gone"}
				for _, queue := range queues {
					v.Queue(queue, amqp.Table{"x-queue-type": kind})
					topology(t, v, "fixed", "--queue", queue, "--delay", "1s", "--"+kind)
				}
				for _, queue := range queues {
					settled(t, v, queue, "redrive-fixed."+queue)
				}
				// More of those that RabbitMQ takes for a cycle than an at-least-once
				// queue would hold before it stands still.
				for range 40 {
					v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: "1", Body: []byte("expired")})
				}
				brokertest.Eventually(t, "all have expired", func() bool { return v.Depth("orders") == 0 })
				v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("rejected")})
				work := v.Consume("orders")
				d := work.Next()
				for range 3 {
					began := time.Now()
					if err := d.Reject(false); err != nil {
						t.Fatal(err)
					}
					d = work.Next()
					if took := time.Since(began); string(d.Body) != "rejected" || took < second {
						t.Fatalf("%q came after %s", d.Body, took)
					}
				}
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
				brokertest.Eventually(t, "nothing is left, parked or waiting", func() bool {
					return v.Depth("orders")+v.Depth(wire.QueueParked) == 0
				})

				v.Publish("", "gone", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("homeless")})
				gone := v.Consume("gone")
				gone.Reject()
				// On the same channel, or the queue could be gone before the reject is there.
				if _, err := gone.Channel.QueueDelete("gone", false, false, false); err != nil {
					t.Fatal(err)
				}
				v.Consume(wire.QueueParked).Take("homeless")
			})
		})
	}
}

// With a policy of somebody else's: it goes on applying, and undoing restores it.
func TestApplyingTheFixedTopology(t *testing.T) {
	t.Parallel()
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		v.Policy("theirs", "^orders$", 3, map[string]any{"max-length": 1000, "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})
		settled(t, v, "orders", "theirs")
		file := t.TempDir() + "/redrive.yaml"
		if err := os.WriteFile(file, []byte("broker: {url: \""+v.URL()+"\", management: \""+v.Management+"\"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) string {
			t.Helper()
			var out strings.Builder
			if code := cli.Run(context.Background(), append([]string{"topology", "fixed", "--queue", "orders", "-c", file}, args...), &out, io.Discard, cli.Build{Version: "test"}); code != 0 {
				t.Fatalf("exit code %d: %s", code, out.String())
			}
			return out.String()
		}
		shown := run("--delay", "1s", "--apply", "--yes")
		for _, want := range []string{"    max-length: 1000", "  - dead-letter-strategy: at-least-once", "  + dead-letter-routing-key: orders"} {
			if !strings.Contains(shown, want) {
				t.Errorf("%q is not shown:\n%s", want, shown)
			}
		}
		settled(t, v, "orders", "redrive-fixed.orders")
		v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("rejected")})
		work := v.Consume("orders")
		began := time.Now()
		work.Reject()
		work.Take("rejected")
		if took := time.Since(began); took < second {
			t.Errorf("it was back after %s", took)
		}
		run("--undo")
		settled(t, v, "orders", "theirs")
	})
}

// Where clients may not declare, the library runs on what was imported.
func TestTheLibraryRunsOnPrintedTopologies(t *testing.T) {
	t.Parallel()
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		for way, c := range map[string]struct {
			wait redrive.Way
			args []string
		}{
			"levels":      {redrive.Levels(second, 3*second), []string{"--levels", "1s,3s"}},
			"message-ttl": {redrive.MessageTTL(), nil},
			"binary":      {redrive.Binary(100 * time.Millisecond), []string{"--unit", "100ms"}},
		} {
			queue := "work of " + way
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
			k := redrive.Consumer{Queue: queue, Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(second), Jitter: policy.None}, Wait: c.wait}
			ctx := t.Context()
			client, err := redrive.NewClient(ctx, redrive.Config{URLs: []string{v.URL()}, Verify: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.NewSettler(ctx, k); err == nil {
				t.Fatalf("%s: nothing was imported, and nothing was missing", way)
			}
			topology(t, v, append([]string{way, "--queue", queue}, c.args...)...)
			s, err := client.NewSettler(ctx, k)
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			v.Publish("", queue, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(way)})
			work := v.Consume(queue)
			d, began := work.Next(), time.Now()
			if o, err := s.Settle(ctx, &d, errors.New("no")); o != redrive.Retried || err != nil {
				t.Fatalf("%s: %s, %v", way, o, err)
			}
			d = work.Take(way)
			if m := s.Message(&d); m.Attempt != 2 || time.Since(began) < second {
				t.Errorf("%s: attempt %d after %s", way, m.Attempt, time.Since(began))
			}
			client.Close()
		}
	})
}
