package redrive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"sync"
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := redrive.Consume(ctx, redrive.Config{URLs: []string{"amqp://guest:guest@localhost"}}, redrive.Consumer{
		Queue:       "orders.created",
		Policy:      policy.Policy{Attempts: 8, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
		Wait:        redrive.Levels(),
		Concurrency: 10,
		Timeout:     30 * time.Second,
		Handler: func(ctx context.Context, m *redrive.Message) error {
			var o order
			if err := json.Unmarshal(m.Body, &o); err != nil {
				return redrive.Park(err) // it will not become readable
			}
			return ship(ctx, o)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Several queues share two connections. A queue that cannot be consumed is logged, and the
// others go on.
func ExampleClient() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := redrive.NewClient(ctx, redrive.Config{
		URLs: []string{"amqp://guest:guest@rabbit1", "amqp://guest:guest@rabbit2"},
		AMQP: amqp.Config{Properties: amqp.Table{"connection_name": "shop"}},
		OnParked: func(_ context.Context, m redrive.ParkedMessage) {
			log.Printf("message %s of queue %s was parked after attempt %d: %s", m.ID, m.Queue, m.Attempt, m.Reason)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	var running sync.WaitGroup
	for _, queue := range []string{"orders.created", "orders.cancelled", "payments"} {
		running.Go(func() {
			err := client.Consume(ctx, redrive.Consumer{
				Queue:  queue,
				Policy: policy.Policy{Attempts: 8, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
				Wait:   redrive.Levels(),
				Handler: func(ctx context.Context, m *redrive.Message) error {
					return ship(ctx, order{ID: len(m.Body)})
				},
			})
			if err != nil {
				log.Print(err)
			}
		})
	}
	running.Wait()
}

// Up to 100 messages at once, each with its own outcome.
func ExampleBatch() {
	insert := func(context.Context, *redrive.Message) error { return nil }
	consumer := redrive.Consumer{
		Queue:  "events",
		Policy: policy.Policy{Attempts: 8, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
		Wait:   redrive.Levels(),
		Batch: redrive.Batch{
			Size: 100,
			Wait: 200 * time.Millisecond,
			Handler: func(ctx context.Context, batch []*redrive.Message) map[*redrive.Message]error {
				failed := map[*redrive.Message]error{}
				for _, m := range batch {
					if err := insert(ctx, m); err != nil {
						failed[m] = err
					}
				}
				return failed
			},
		},
	}
	if err := redrive.Consume(context.Background(), redrive.Config{URLs: []string{"amqp://guest:guest@localhost"}},
		consumer); err != nil {
		log.Fatal(err)
	}
}

// What all attempts have in common is written once.
func ExampleMiddleware() {
	logged := func(next redrive.Handler) redrive.Handler {
		return func(ctx context.Context, m *redrive.Message) error {
			began := time.Now()
			err := next(ctx, m)
			log.Printf("attempt %d at %s took %s: %v", m.Attempt, m.MessageID, time.Since(began), err)
			return err
		}
	}
	_ = redrive.Consumer{Middleware: []redrive.Middleware{logged}}
}

var errBusy = errors.New("the warehouse is busy")

// What an error of a handler's makes of its message.
func ExampleConsumer_Decide() {
	c := redrive.Consumer{
		Queue:  "orders.created",
		Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(time.Minute)},
		Wait:   redrive.Levels(time.Second, 10*time.Second, time.Minute),
	}
	for _, err := range []error{errBusy, redrive.RetryAfter(errBusy, 8*time.Second), redrive.RetryAfter(errBusy,
		time.Hour), redrive.Park(errBusy), redrive.ErrDiscard} {
		d, _ := c.Decide(&redrive.Message{Attempt: 1}, err)
		fmt.Println(d.Outcome, d.Delay)
	}
	d, _ := c.Decide(&redrive.Message{Attempt: 3}, errBusy)
	fmt.Println(d.Outcome, "since", d.Why)

	c.Policy.Backoff = policy.Fixed(2 * time.Hour)
	_, err := c.Decide(&redrive.Message{Attempt: 1}, errBusy)
	fmt.Println(err)
	// Output:
	// retried 1m0s
	// retried 10s
	// retried 1m0s
	// parked 0s
	// discarded 0s
	// parked since it failed 3 times, and policy "orders.created" allows 3 attempts
	// redrive: Consumer.Policy: policy "orders.created" waits 2h before attempt 2, and levels waits 1m at most: shorten it, or choose another way to wait
}

// A loop of its own, with retries.
func ExampleSettler() {
	ctx := context.Background()
	client, err := redrive.NewClient(ctx, redrive.Config{URLs: []string{"amqp://guest:guest@localhost"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	settler, err := client.NewSettler(ctx, redrive.Consumer{Queue: "orders.created", Policy: policy.Default(),
		Wait: redrive.Levels()})
	if err != nil {
		log.Fatal(err)
	}
	var deliveries <-chan amqp.Delivery // of a channel of another connection
	for d := range deliveries {
		m := settler.Message(&d)
		err := ship(ctx, order{ID: len(m.Body)})
		if _, err := settler.Settle(ctx, &d, err); err != nil {
			log.Print(err) // RabbitMQ delivers it again
		}
	}
}
