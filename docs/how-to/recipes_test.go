package howto_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

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
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) { r.migrate(t, v, program) })
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
	if err := s.ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	if err := s.ch.Qos(10, 0, false); err != nil {
		t.Fatal(err)
	}
	in, err := s.ch.Consume("orders", "shop", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := s.ch.Cancel("shop", false); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	// All that was acknowledged is, when RabbitMQ answers what was asked after it.
	if err := s.ch.Close(); err != nil {
		t.Fatal(err)
	}
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
