// Package howto_test runs what the guides print: their consumers, their commands,
// and the ways from each published recipe to Redrive.
package howto_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// serve runs the service until the test ends, and waits until it is ready.
func serve(t *testing.T, v *brokertest.VHost, yaml string) *servertest.Service {
	t.Helper()
	return servertest.Run(t, servertest.Config(t, v, yaml)).Ready(t)
}

// recipe is one of the published ones: what it makes, and what its consumer does
// with a message that failed.
type recipe struct {
	name string
	wait string // the queue that its messages wait in
	make func(testing.TB, *brokertest.VHost)
	fail func(*shop, amqp.Delivery) error
}

// delay is how long the recipes wait: long enough for a migration to begin while
// messages are in flight.
const delay = 3 * time.Second

// back makes a queue whose messages go to orders when they expire.
func back(v *brokertest.VHost, name string, more amqp.Table) {
	args := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
	for k, value := range more {
		args[k] = value
	}
	v.Queue(name, args)
}

// deadLetters sets the recipe's policy, and waits until RabbitMQ tells of it: that
// takes some seconds, in which enrolling would not know what to go beyond.
func deadLetters(t testing.TB, v *brokertest.VHost, definition map[string]any) {
	v.Policy("recipe", "^orders$", 0, definition)
	policy(t, v, "recipe")
}

var recipes = []recipe{
	{"fixed", "orders.retry", func(t testing.TB, v *brokertest.VHost) {
		back(v, "orders.retry", amqp.Table{"x-message-ttl": delay.Milliseconds()})
		deadLetters(t, v, map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "orders.retry"})
	}, func(_ *shop, d amqp.Delivery) error { return d.Reject(false) }},

	{"levels", "orders.wait.3s", func(_ testing.TB, v *brokertest.VHost) {
		back(v, "orders.wait.3s", amqp.Table{"x-message-ttl": delay.Milliseconds()})
	}, func(s *shop, d amqp.Delivery) error {
		tries, _ := d.Headers["tries"].(int32)
		return s.republish("orders.wait.3s", amqp.Publishing{Headers: amqp.Table{"tries": tries + 1}, Body: d.Body}, d)
	}},

	{"dynamic", "orders.delay.3000", func(testing.TB, *brokertest.VHost) {}, func(s *shop, d amqp.Delivery) error {
		_, err := s.ch.QueueDeclare("orders.delay.3000", true, false, false, false, amqp.Table{"x-message-ttl": delay.Milliseconds(),
			"x-expires": 4 * delay.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"})
		if err != nil {
			return err
		}
		return s.republish("orders.delay.3000", amqp.Publishing{Body: d.Body}, d)
	}},

	{"message-ttl", "orders.wait", func(_ testing.TB, v *brokertest.VHost) {
		back(v, "orders.wait", nil)
	}, func(s *shop, d amqp.Delivery) error {
		return s.republish("orders.wait", amqp.Publishing{Expiration: strconv.FormatInt(delay.Milliseconds(), 10), Body: d.Body}, d)
	}},

	{"dead-letter-service", "dead.letters", func(t testing.TB, v *brokertest.VHost) {
		v.Queue("dead.letters", nil)
		v.Exchange("dead", "fanout", "dead.letters")
		deadLetters(t, v, map[string]any{"dead-letter-exchange": "dead"})
		deadLetterService(v, delay, 100)
	}, func(_ *shop, d amqp.Delivery) error { return d.Reject(false) }},
}

// From each recipe to Redrive, with messages in flight: none is lost, none comes
// twice, and what the recipe left behind is empty.
func TestFromEachRecipe(t *testing.T) {
	program := build(t)
	for _, r := range recipes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) { r.migrate(t, v, program) })
		})
	}
}

func (r recipe) migrate(t *testing.T, v *brokertest.VHost, program string) {
	const n = 20
	v.Queue("orders", nil)
	v.Exchange("shop", "fanout", "orders")
	r.make(t, v)
	old := open(t, v, r.fail)
	for i := range n {
		v.Publish("shop", "order.created", amqp.Publishing{Body: fmt.Appendf(nil, "early %d", i)})
	}
	brokertest.Eventually(t, "messages are in flight by the recipe", func() bool { return old.sum(old.failed) >= n })

	// What the guide says, in its order.
	s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 100ms}, jitter: none}]")
	run(t, v, program, "enroll", "orders", "--yes")
	old.stop(t)
	now := open(t, v, func(_ *shop, d amqp.Delivery) error { return d.Reject(false) })
	for i := range n {
		v.Publish("shop", "order.created", amqp.Publishing{Body: fmt.Appendf(nil, "late %d", i)})
	}
	brokertest.Eventually(t, "all orders succeeded", func() bool { return now.sum(now.done) >= 2*n })
	brokertest.Eventually(t, "nothing is left", func() bool { return v.Messages("orders") == 0 })
	if depth, err := v.Channel().QueueDeclarePassive(r.wait, true, false, false, false, nil); err == nil && depth.Messages != 0 {
		t.Errorf("%d messages are left in %s", depth.Messages, r.wait)
	}
	s.WaitParked(t, 0)
	now.mu.Lock()
	defer now.mu.Unlock()
	for i := range n {
		for _, id := range []string{fmt.Sprint("early ", i), fmt.Sprint("late ", i)} {
			if now.done[id] != 1 {
				t.Errorf("%q succeeded %d times", id, now.done[id])
			}
		}
		// Redrive keeps what the recipes that publish again lose.
		if key := now.keys[fmt.Sprint("late ", i)]; key != "order.created" {
			t.Errorf("late %d came back with the routing key %q", i, key)
		}
	}
}

// shop is a consumer of orders: each fails until Redrive has retried it.
type shop struct {
	ch           *amqp.Channel
	fail         func(*shop, amqp.Delivery) error
	ended        chan struct{}
	mu           sync.Mutex
	failed, done map[string]int
	keys         map[string]string // routing keys of those that succeeded
}

func open(t *testing.T, v *brokertest.VHost, fail func(*shop, amqp.Delivery) error) *shop {
	t.Helper()
	s := &shop{ch: v.Channel(), fail: fail, ended: make(chan struct{}), failed: map[string]int{}, done: map[string]int{}, keys: map[string]string{}}
	must(t, s.ch.Confirm(false))
	must(t, s.ch.Qos(10, 0, false))
	in, err := s.ch.Consume("orders", "shop", false, false, false, false, nil)
	must(t, err)
	go func() {
		defer close(s.ended)
		for d := range in {
			if err := s.handle(d); err != nil && !s.ch.IsClosed() {
				t.Errorf("the consumer: %v", err)
			}
		}
	}()
	t.Cleanup(func() { s.ch.Close(); <-s.ended })
	return s
}

func (s *shop) handle(d amqp.Delivery) error {
	id := string(d.Body)
	if attempt, _ := d.Headers["x-redrive-attempt"].(int64); attempt == 0 {
		err := s.fail(s, d)
		s.mu.Lock()
		s.failed[id]++
		s.mu.Unlock()
		return err
	}
	s.mu.Lock()
	s.done[id]++
	s.keys[id] = d.RoutingKey
	s.mu.Unlock()
	return d.Ack(false)
}

// stop ends it in order, as a deployment does: nothing is delivered any more, and
// what was taken is finished.
func (s *shop) stop(t *testing.T) {
	t.Helper()
	must(t, s.ch.Cancel("shop", false))
	<-s.ended
	// All that was acknowledged is, when RabbitMQ answers what was asked after it.
	must(t, s.ch.Close())
}

func (s *shop) sum(of map[string]int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(of)
}

// republish is what recipes do that wait by themselves: here as safe as it can be,
// with a confirm before the acknowledgement.
func (s *shop) republish(queue string, p amqp.Publishing, d amqp.Delivery) error {
	p.DeliveryMode = amqp.Persistent
	c, err := s.ch.PublishWithDeferredConfirm("", queue, true, false, p)
	if err != nil {
		return err
	}
	if !c.Wait() {
		return fmt.Errorf("%s did not take the message", queue)
	}
	return d.Ack(false)
}

// build makes the command line.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "redrive")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/redrive").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// run runs a command of Redrive's against a virtual host.
func run(t *testing.T, v *brokertest.VHost, program string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(context.Background(), program, args...)
	c.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+v.URL(), "REDRIVE_MANAGEMENT_URL="+v.Management)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("redrive %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// The tutorial, step by step as it is printed: its config, its commands, and by AMQP what it does
// with rabbitmqadmin. It ends with the replayed message.
func TestTheTutorial(t *testing.T) {
	text, err := os.ReadFile("../tutorial/first-queue.md")
	must(t, err)
	config := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(text))[1]
	program := build(t)
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		must(t, os.WriteFile(file, []byte(config), 0o600))
		s := serve(t, v, config)
		var last string
		redrive := func(args ...string) string { return run(t, v, program, args...) }
		asks := func(line string) string { return redrive(append(strings.Fields(line), "--address", s.Client.Addr)...) }
		consume := func(times int, do func(*brokertest.Consumer)) {
			c := v.Consume("orders")
			for range times {
				do(c)
			}
			must(t, c.Channel.Close())
		}
		steps := 0
		for _, section := range strings.Split(string(text), "\n## ")[1:] {
			for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
				for line := range strings.Lines(block[1]) {
					steps++
					switch line = strings.TrimSpace(line); {
					case line == "make build", strings.HasPrefix(line, "bin/redrive serve "), line == "bin/redrive open":
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

// The consumer runs on all the time; what waits when it is undone still returns.
func TestAddingToARunningSystemAndUndo(t *testing.T) {
	program := build(t)
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		deadLetters(t, v, map[string]any{"max-length": 1000})
		work := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("before")})
		work.Take("before")

		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 10s}, jitter: none}]")
		run(t, v, program, "enroll", "orders", "--dry-run")
		policy(t, v, "recipe")
		run(t, v, program, "enroll", "orders", "--yes")
		policy(t, v, "redrive.orders")
		failed := time.Now()
		v.Publish("", "orders", amqp.Publishing{Body: []byte("fails")})
		work.Reject()
		brokertest.Eventually(t, "it waits", func() bool {
			page, err := s.Client.Messages(context.Background(), "state:waiting queue:orders", "", 10)
			return err == nil && len(page.Messages) == 1
		})

		for _, look := range [][]string{{"status"}, {"queues"}, {"messages", "list", "queue:orders state:waiting"}, {"export", "queue:orders"}} {
			if out := run(t, v, program, append(look, "--address", s.Client.Addr)...); !strings.Contains(out, "orders") {
				t.Errorf("redrive %v does not show the queue:\n%s", look, out)
			}
		}

		run(t, v, program, "unenroll", "orders")
		policy(t, v, "recipe")
		if d := work.Take("fails"); d.Headers["x-redrive-attempt"] != int64(1) || time.Since(failed) < 10*time.Second {
			t.Errorf("it came back after %s with %v", time.Since(failed), d.Headers)
		}
		s.WaitParked(t, 0)
	})
}

// policy waits until RabbitMQ tells that a policy is in force.
func policy(t testing.TB, v *brokertest.VHost, name string) {
	t.Helper()
	brokertest.Eventually(t, "the policy "+name+" is in force", func() bool {
		q, err := v.API().Queue(context.Background(), "orders")
		return err == nil && q.Policy == name
	})
}

// deadLetterService is the recipe of that name: it takes what died, keeps it until
// it is due (the recipe in Redis), and publishes it to its queue again, with its
// headers, until x-death counts most deaths. It ends with the test.
func deadLetterService(v *brokertest.VHost, delay time.Duration, most int64) (gaveUp <-chan string) {
	given := make(chan string, 1000)
	in, out := v.Consume("dead.letters"), v.Channel()
	type due struct {
		d  amqp.Delivery
		at time.Time
	}
	kept := make(chan due, 1000)
	go func() {
		defer close(kept)
		for d := range in.In {
			if err := d.Ack(false); err != nil {
				return
			}
			kept <- due{d, time.Now().Add(delay)}
		}
	}()
	go func() {
		for m := range kept {
			deaths, _ := m.d.Headers["x-death"].([]any)
			death, _ := deaths[0].(amqp.Table)
			if count, _ := death["count"].(int64); count >= most {
				given <- string(m.d.Body)
				continue
			}
			<-time.After(time.Until(m.at))
			queue, _ := death["queue"].(string)
			if err := out.Publish("", queue, false, false, amqp.Publishing{Headers: m.d.Headers, Body: m.d.Body, DeliveryMode: amqp.Persistent}); err != nil {
				return
			}
		}
	}()
	return given
}

// What counts by x-death and publishes again stops after three deaths on RabbitMQ
// 3, and never on 4. Redrive parks the message after three attempts on both.
func TestTheDeadLetterServiceRetriesForEverOn4(t *testing.T) {
	program := build(t)
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		v.Queue("dead.letters", nil)
		v.Exchange("dead", "fanout", "dead.letters")
		deadLetters(t, v, map[string]any{"dead-letter-exchange": "dead"})
		gaveUp := deadLetterService(v, time.Millisecond, 3)
		work := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		work.Reject()
		work.Reject()
		work.Reject()
		if !v.Since4() {
			brokertest.Receive(t, gaveUp, "the recipe did not give up after three deaths")
			if n := v.Depth("orders"); n != 0 {
				t.Fatalf("%d messages are in orders", n)
			}
			v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		} else {
			for range 30 {
				work.Reject() // ten times as many as the recipe allows
			}
			select {
			case id := <-gaveUp:
				t.Fatalf("the recipe gave %q up", id)
			default:
			}
		}

		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 100ms}, jitter: none}]")
		run(t, v, program, "enroll", "orders", "--yes")
		// RabbitMQ may still take the recipe's way once, just after a policy was set.
		brokertest.Eventually(t, "the message is parked", func() bool {
			select {
			case d := <-work.In:
				must(t, d.Reject(false))
			default:
			}
			return len(s.Parked(t)) == 1
		})
		if m := s.Parked(t)[0]; m.Attempt != 3 {
			t.Errorf("it is parked after %d attempts, want 3", m.Attempt)
		}
	})
}

// What goes round inside RabbitMQ alone is counted on as before.
func TestXDeathStillCountsInALoopOfTheBrokerAlone(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.retry"})
		back(v, "orders.retry", amqp.Table{"x-message-ttl": int32(1)})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		work := v.Consume("orders")
		for i := range int64(5) {
			d := work.Next()
			count := int64(0)
			if deaths, _ := d.Headers["x-death"].([]any); len(deaths) > 0 {
				for _, death := range deaths {
					if e := death.(amqp.Table); e["queue"] == "orders" {
						count, _ = e["count"].(int64)
					}
				}
			}
			if count != i {
				t.Fatalf("x-death counts %d deaths in orders after %d: %s", count, i, fmt.Sprint(d.Headers))
			}
			must(t, d.Reject(false))
		}
	})
}

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
