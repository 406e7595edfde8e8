package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// idHeader names a message in the ledger.
const idHeader = "world-id"

// consume is the consumer of a work queue, which connects again after each cut, until ctx ends.
func (w *World) consume(ctx context.Context, q *workQueue) {
	for ctx.Err() == nil {
		if err := w.consumeOnce(ctx, q); err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (w *World) consumeOnce(ctx context.Context, q *workQueue) error {
	conn, err := amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: w.consumers.Dial, Heartbeat: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // one that is cut is closed already
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	if err := ch.Qos(q.prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(q.name, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("the channel is closed")
			}
			if err := w.handle(ctx, q, ch, d); err != nil {
				return err
			}
		}
	}
}

// handle fails a message as often as the scenario says, and then processes it.
func (w *World) handle(ctx context.Context, q *workQueue, ch *amqp.Channel, d amqp.Delivery) error {
	failures := failuresOf(d.Headers)
	if w.ledger.stranger(q, d) {
		return d.Ack(false)
	}
	id, fails, err := w.ledger.delivered(q, d, failures, time.Now())
	if err != nil {
		w.broken(err)
		return d.Ack(false)
	}
	if q.handles > 0 {
		time.Sleep(q.handles)
	}
	if failures >= fails {
		w.ledger.processed(id)
		return d.Ack(false)
	}
	w.ledger.failed(id, failures, time.Now())
	if !q.reports {
		return d.Reject(false)
	}
	headers := amqp.Table{}
	for k, v := range d.Headers {
		headers[k] = v
	}
	if d.Exchange == "" { // it comes from its publisher; else Redrive has written them
		headers[wire.HeaderExchange], headers[wire.HeaderRoutingKey] = d.Exchange, d.RoutingKey
	}
	headers[wire.HeaderError] = fmt.Sprintf("failure %d", failures+1)
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, wire.ExchangeFailures, q.name, true, false,
		amqp.Publishing{Headers: headers, Body: d.Body, DeliveryMode: amqp.Persistent})
	if err != nil {
		return err
	}
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return errors.Join(err, errors.New("the report was not confirmed"))
	}
	return d.Ack(false)
}
