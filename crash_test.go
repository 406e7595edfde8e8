package redrive_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// crashEnv makes the test's binary a consumer of the queue orders at that URL. It prints what its
// handler gets, and ends at "poison", as a process does that runs out of memory.
const crashEnv = "REDRIVE_TEST_CRASH"

func crasher() int {
	var running atomic.Int32
	handle := func(_ context.Context, m *redrive.Message) error {
		alone := running.Add(1) == 1
		defer running.Add(-1)
		fmt.Println(string(m.Body), alone)
		if string(m.Body) == "poison" {
			os.Exit(9)
		}
		return nil
	}
	url, kind, _ := strings.Cut(os.Getenv(crashEnv), " ")
	c := redrive.Consumer{Queue: "orders", Policy: fast(3), Wait: redrive.Levels(), Concurrency: 4, Prefetch: 12}
	if kind == "batches" {
		c.Batch = redrive.Batch{Size: 3, Handler: func(ctx context.Context, batch []*redrive.Message) map[*redrive.Message]error {
			for _, m := range batch {
				_ = handle(ctx, m)
			}
			return nil
		}}
	} else {
		c.Handler = handle
	}
	fmt.Println(redrive.Consume(context.Background(), redrive.Config{URLs: []string{url}}, c))
	return 1
}

// crash runs one such process until it ends by itself, or enough says so. saw gets what it prints.
func crash(t *testing.T, env string, saw func(body, alone string), enough func() bool) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), crashEnv+"="+env), os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			body, alone, _ := strings.Cut(lines.Text(), " ")
			saw(body, alone)
		}
	}()
	brokertest.Eventually(t, "the process ends", func() bool {
		select {
		case <-ended:
			return true
		default:
			return enough()
		}
	})
	_ = c.Process.Kill()
	<-ended
	_ = c.Wait()
}

// A message that ends its process each time is parked before RabbitMQ drops it, and those that
// were prefetched beside it are handled.
func TestAMessageThatEndsItsProcessIsParked(t *testing.T) {
	for kind, at := range map[string]int{"one by one": 6, "batches": 7} { // the second of its batch
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
				for i := range 30 {
					body := fmt.Sprint(i)
					if i == at {
						body = "poison"
					}
					forged := amqp.Table{"x-delivery-count": int64(50)} // it counts only on what was redelivered, where RabbitMQ writes its own
					v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body), Headers: forged})
				}
				handled, crashes := map[string]bool{}, 0
				over := func() bool {
					q, _ := v.State(wire.QueueParked)
					return q.Messages > 0 && v.Messages("orders") == 0
				}
				for {
					poison := false
					crash(t, v.URL()+" "+kind, func(body, alone string) {
						handled[body], poison = true, poison || body == "poison"
						if body == "poison" && crashes > 3 && alone != "true" {
							t.Errorf("after %d crashes it is not handled alone", crashes)
						}
					}, over)
					if !poison {
						break
					}
					if crashes++; crashes > 15 { // RabbitMQ 4 drops it at 20
						t.Fatal("it ends its process for ever")
					}
				}
				if crashes < 10 {
					t.Errorf("it ended its process %d times", crashes)
				}
				d := parked(v)
				if reason, _ := d.Headers[wire.HeaderParkReason].(string); string(d.Body) != "poison" || !strings.Contains(reason, "too often") {
					t.Errorf("parked is %q: %q", d.Body, reason)
				}
				expect.Equal(t, v.Depth(wire.QueueParked), 0, "more are parked")
				for i := range 30 {
					if i != at && !handled[fmt.Sprint(i)] {
						t.Errorf("message %d was never handled", i)
					}
				}
			})
		})
	}
}

// A classic queue counts nothing: the message at fault is handled alone, and harms no other.
func TestAClassicQueueHandlesWhatWasRedeliveredAlone(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("poison")})
		for i := range 20 {
			v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(fmt.Sprint(i))})
		}
		for n := range 4 {
			crash(t, v.URL()+" one by one", func(body, alone string) {
				if body == "poison" && n > 0 && alone != "true" {
					t.Errorf("start %d: it is not handled alone", n)
				}
			}, func() bool { return false })
		}
	})
}
