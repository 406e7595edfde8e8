// Package shop is what the examples have in common: a work queue with an order in it, and a handler,
// which need not know how messages wait.
package shop

import (
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
)

// Main declares the work queue "orders" with args on the broker of REDRIVE_BROKER_URL, publishes an
// order to it, and consumes the queue until that fails or the program is interrupted.
func Main(args amqp.Table, consume func(ctx context.Context, url string) error) {
	log.SetFlags(log.Lmicroseconds)
	log.SetOutput(os.Stdout)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := cmp.Or(os.Getenv("REDRIVE_BROKER_URL"), "amqp://guest:guest@127.0.0.1:5672/")
	if err := publishOrder(ctx, url, args); err != nil {
		log.Fatal(err)
	}
	if err := consume(ctx, url); err != nil {
		log.Fatal(err)
	}
}

// Quorum are the arguments of a work queue that loses nothing with a node.
var Quorum = amqp.Table{"x-queue-type": "quorum"}

// Pay is the handler of all examples: it fails twice, as if the payment service
// were away for a moment.
func Pay(_ context.Context, m *redrive.Message) error {
	if m.Attempt < 3 {
		log.Printf("%s: attempt %d fails (the one before: %q)", m.Body, m.Attempt, m.LastError)
		return errors.New("the payment service does not answer")
	}
	log.Printf("%s: attempt %d succeeds", m.Body, m.Attempt)
	return nil
}

func publishOrder(ctx context.Context, url string, args amqp.Table) error {
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
	if _, err := ch.QueueDeclare("orders", true, false, false, false, args); err != nil {
		return err
	}
	c, err := ch.PublishWithDeferredConfirm("", "orders", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("order 1")})
	if err != nil {
		return err
	}
	_, err = c.WaitContext(ctx)
	return err
}
