// Command examples is a consumer with retries, for each recipe:
//
//	go run ./examples levels
//
// It declares the work queue "orders" on the broker of REDRIVE_BROKER_URL, publishes an order to it, and
// consumes the queue until that fails or the program is interrupted. The order fails twice, as if the
// payment service were away for a moment.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
)

// recipe is a policy with a way to wait; its handler need not know of them.
type recipe struct {
	queue  amqp.Table // the work queue's arguments; nil: quorum
	policy policy.Policy
	wait   redrive.Way
}

// quorum are the arguments of a work queue that loses nothing with a node.
var quorum = amqp.Table{"x-queue-type": "quorum"}

// growing has waits of 1 s, 2 s, 4 s … with jitter, which not each way can keep.
var growing = policy.Policy{Attempts: 4,
	Backoff: policy.Exponential(time.Second, 2, time.Minute), Jitter: policy.Fraction(0.2)}

var recipes = map[string]recipe{
	// "A TTL queue per level, a counter in a header": waits that grow, in as many queues as there are
	// levels, however many work queues share them. A failed message is acknowledged only when RabbitMQ has
	// confirmed it in its delay queue.
	"levels": {wait: redrive.Levels(1*time.Second, 2*time.Second, 4*time.Second),
		policy: policy.Policy{Attempts: 4, Backoff: policy.Exponential(time.Second, 2, 4*time.Second)}},

	// "Reject → TTL queue → back": the same wait before each attempt. Unlike the recipe in the broker alone it
	// ends: after the last attempt a message goes to redrive.parked, with the error.
	// For the recipe with no code, in any language: redrive topology fixed.
	"fixed": {wait: redrive.Levels(time.Second),
		policy: policy.Policy{Attempts: 4, Backoff: policy.Fixed(time.Second)}},

	// "A queue per delay, made when needed": any wait, jitter too. Waits are rounded up to two digits, so that
	// jitter does not make a queue per message, and a queue that holds a message never expires.
	"dynamic": {wait: redrive.Dynamic(), policy: policy.Policy{Attempts: 4,
		Backoff: policy.Exponential(time.Second, 1.5, time.Minute), Jitter: policy.Fraction(0.2)}},

	// "One retry queue, a time to live per message". RabbitMQ expires messages at the head of a queue only, so
	// a short wait would stand behind a long one: a policy with different waits is refused.
	"messagettl": {wait: redrive.MessageTTL(),
		policy: policy.Policy{Attempts: 4, Backoff: policy.Fixed(time.Second)}},

	// The recipe of NServiceBus and Celery: one queue for each bit of the wait, so that 28 queues keep any
	// wait, for all work queues together. Waits are rounded up to the unit.
	"binary": {wait: redrive.Binary(100 * time.Millisecond), policy: growing},

	// The delayed-message plugin, where a broker has it: any wait, on one node, in its memory. Without the
	// plugin the program says so and ends.
	"delayedexchange": {wait: redrive.DelayedExchange(), policy: growing},

	// The work queue itself waits: the delayed retry of quorum queues, since RabbitMQ 4.3. Only waits that grow
	// evenly are possible. Older brokers accept the arguments and ignore them, so they are refused.
	"native": {wait: redrive.Native(), queue: redrive.NativeArguments(time.Second, time.Minute),
		policy: policy.Policy{Attempts: 4, Backoff: policy.Linear(time.Second, time.Second, time.Minute)}},

	// "Tell a dead-letter service what failed, and why": the Redrive service waits, by its own policies, and
	// shows the error. Start it first, with a policy for the queue: redrive serve --config FILE.
	"service": {wait: redrive.Service()},
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	log.SetOutput(os.Stdout)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	r, ok := recipes[strings.Join(args, " ")]
	if !ok {
		return fmt.Errorf("name one recipe of %q", slices.Sorted(maps.Keys(recipes)))
	}
	if r.queue == nil {
		r.queue = quorum
	}
	url := cmp.Or(os.Getenv("REDRIVE_BROKER_URL"), "amqp://guest:guest@127.0.0.1:5672/")
	if err := publishOrder(ctx, url, r.queue); err != nil {
		return err
	}
	return redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, redrive.Consumer{
		Queue:   "orders",
		Policy:  r.policy,
		Wait:    r.wait,
		Handler: pay,
	})
}

func pay(_ context.Context, m *redrive.Message) error {
	if m.Attempt < 3 {
		log.Printf("%s: attempt %d fails (the one before: %q)", m.Body, m.Attempt, m.LastError)
		return errors.New("the payment service does not answer")
	}
	log.Printf("%s: attempt %d succeeds", m.Body, m.Attempt)
	return nil
}

func publishOrder(ctx context.Context, url string, queue amqp.Table) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("orders", true, false, false, false, queue); err != nil {
		return err
	}
	order := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("order 1")}
	c, err := ch.PublishWithDeferredConfirm("", "orders", true, false, order)
	if err != nil {
		return err
	}
	_, err = c.WaitContext(ctx)
	return err
}
