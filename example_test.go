package redrive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
)

type order struct{ ID int }

func ship(context.Context, order) error { return nil }

// A consumer with eight attempts, from a second to ten minutes apart, that ends in
// order at SIGTERM.
func Example() {
	c, err := redrive.NewConsumer(redrive.Config{
		URL:         "amqp://guest:guest@localhost",
		Queue:       "orders.created",
		Policy:      policy.Policy{Attempts: 8, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
		Wait:        redrive.Levels(),
		Concurrency: 10,
		Timeout:     30 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err = c.Run(ctx, func(ctx context.Context, m *redrive.Message) error {
		var o order
		if err := json.Unmarshal(m.Body, &o); err != nil {
			return redrive.Park(err) // it will not become readable
		}
		return ship(ctx, o)
	})
	if err != nil {
		log.Fatal(err)
	}
}

var errBusy = errors.New("the warehouse is busy")

// What an error of a handler's makes of its message.
func ExampleConsumer_Decide() {
	c, err := redrive.NewConsumer(redrive.Config{
		URL:    "amqp://localhost",
		Queue:  "orders.created",
		Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(time.Minute)},
		Wait:   redrive.Levels(time.Second, 10*time.Second, time.Minute),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range []error{errBusy, redrive.RetryIn(errBusy, 8*time.Second), redrive.RetryIn(errBusy, time.Hour), redrive.Park(errBusy), redrive.Discard} {
		d := c.Decide(&redrive.Message{Attempt: 1}, err)
		fmt.Println(d.Outcome, d.Delay)
	}
	d := c.Decide(&redrive.Message{Attempt: 3}, errBusy)
	fmt.Println(d.Outcome, "since", d.Why)
	// Output:
	// retried 1m0s
	// retried 10s
	// retried 1m0s
	// parked 0s
	// discarded 0s
	// parked since it failed 3 times, and policy "orders.created" allows 3 attempts
}

// A way refuses a policy that it cannot keep.
func ExampleNewConsumer() {
	_, err := redrive.NewConsumer(redrive.Config{
		URL:    "amqp://localhost",
		Queue:  "orders.created",
		Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(2 * time.Hour)},
		Wait:   redrive.Levels(),
	})
	fmt.Println(err)
	// Output:
	// redrive: policy "orders.created" waits 2h before attempt 2, and levels waits 1h at most: shorten it, or choose another way to wait
}

// A loop of one's own, with retries.
func ExampleSettler() {
	ctx := context.Background()
	settler, err := redrive.NewSettler(ctx, redrive.Config{
		URL:    "amqp://guest:guest@localhost",
		Queue:  "orders.created",
		Policy: policy.Default(),
		Wait:   redrive.Levels(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer settler.Close()
	var deliveries <-chan amqp.Delivery // from a channel of one's own
	for d := range deliveries {
		m := settler.Message(&d)
		err := ship(ctx, order{ID: len(m.Body)})
		if _, err := settler.Settle(ctx, &d, err); err != nil {
			log.Print(err) // RabbitMQ delivers it again
		}
	}
}
