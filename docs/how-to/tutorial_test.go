package howto_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// The tutorial, step by step as it is printed: its config, its commands, and by AMQP what it does
// with rabbitmqadmin. It ends with the replayed message.
func TestTheTutorial(t *testing.T) {
	text, err := os.ReadFile("../tutorial/first-queue.md")
	if err != nil {
		t.Fatal(err)
	}
	config := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(text))[1]
	program := build(t)
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		s := serve(t, v, config)
		var last string
		redrive := func(args ...string) string { return run(t, v, program, args...) }
		asks := func(line string) string { return redrive(append(strings.Fields(line), "--address", s.Client.Addr)...) }
		consume := func(times int, do func(*brokertest.Consumer)) {
			c := v.Consume("orders")
			for range times {
				do(c)
			}
			if err := c.Channel.Close(); err != nil {
				t.Fatal(err)
			}
		}
		steps := 0
		for _, section := range strings.Split(string(text), "\n## ")[1:] {
			for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
				for line := range strings.Lines(block[1]) {
					steps++
					switch line = strings.TrimSpace(line); {
					case line == "make build", line == "export REDRIVE_CONFIG=redrive.yaml", strings.HasPrefix(line, "bin/redrive serve "), line == "bin/redrive open":
					case line == "bin/redrive check redrive.yaml":
						if out := redrive("check", file); !strings.Contains(out, "2s, 10s, parked after 12s") {
							t.Errorf("check says\n%s", out)
						}
					case line == "rabbitmqadmin declare queue name=orders durable=true":
						v.Queue("orders", nil)
					case line == "bin/redrive enroll orders":
						redrive("enroll", "orders", "--yes") // a terminal is asked
						policy(t, v, "redrive.orders")
					case strings.HasPrefix(line, "rabbitmqadmin publish routing_key=orders payload="):
						v.Publish("", "orders", amqp.Publishing{Body: []byte(`{"id": 1}`)})
					case line == "rabbitmqadmin get queue=orders ackmode=reject_requeue_false":
						times := 1
						if strings.HasPrefix(section, "4.") { // "two more times"
							times = 2
						}
						consume(times, func(c *brokertest.Consumer) { c.Reject() })
					case line == "rabbitmqadmin get queue=orders ackmode=ack_requeue_false":
						consume(1, func(c *brokertest.Consumer) {
							if d := c.Take(`{"id": 1}`); d.Headers["x-redrive-attempt"] != int64(0) {
								t.Errorf("it is replayed with %v", d.Headers)
							}
						})
						last = "replayed"
					case strings.HasPrefix(line, "bin/redrive messages list"):
						state := "waiting"
						if strings.HasSuffix(line, "state:parked") {
							state = "parked"
						}
						brokertest.Eventually(t, "the message is "+state, func() bool {
							return strings.Contains(asks(strings.TrimPrefix(line, "bin/redrive ")), " "+state+" ")
						})
					case line == "bin/redrive replay 'queue:orders'":
						asks("replay queue:orders")
					default:
						t.Errorf("the tutorial has a step that is not tested: %s", line)
					}
				}
			}
		}
		if last != "replayed" || steps < 12 {
			t.Errorf("it ends after %d steps, without the replayed message", steps)
		}
	})
}
