package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

const (
	// idHeader names a message in the ledger.
	idHeader = "world-id"
	// kindsHeader has a value of each kind, which stays as it is.
	kindsHeader = "world-kinds"
)

var allKinds = amqp.Table{"a": []any{nil, true, int64(1) << 40, "\xff"}, "b": amqp.Table{"c": 1.5, "d": []byte{0}}, "e": int16(-3),
	"f": amqp.Decimal{Scale: 2, Value: 314}, "g": time.Unix(1_800_000_000, 0)}

// changed is what of a message is not as it was published, or "".
func (m message) changed(d amqp.Delivery) string {
	kinds, _ := d.Headers[kindsHeader].(amqp.Table)
	first, _, _ := strings.Cut(m.id, ".") // an edited message keeps its properties
	switch {
	case !bytes.Equal(d.Body, m.body()):
		return fmt.Sprintf("body: %d bytes instead of %d, or others", len(d.Body), m.size)
	case d.RoutingKey != m.queue.firstKey():
		return fmt.Sprintf("routing key: %q", d.RoutingKey)
	case d.MessageId != first || d.Type != "world" || d.DeliveryMode != amqp.Persistent:
		return fmt.Sprintf("properties: message id %q, type %q, delivery mode %d", d.MessageId, d.Type, d.DeliveryMode)
	case !reflect.DeepEqual(kinds, allKinds):
		return fmt.Sprintf("headers: %v", kinds)
	}
	return ""
}

// consume is the consumer of a work queue, which connects again after each cut, until ctx ends.
func (w *World) consume(ctx context.Context, q *workQueue) {
	for ctx.Err() == nil {
		if err := w.consumeOnce(ctx, q, w.absences.end(ctx, q)); err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (w *World) consumeOnce(ctx context.Context, q *workQueue, leave <-chan struct{}) error {
	conn, err := amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: w.consumers.Dial, Heartbeat: time.Minute})
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
		case <-leave:
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
		w.rejecting(q, id)
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
		amqp.Publishing{Headers: headers, Body: d.Body, DeliveryMode: amqp.Persistent, MessageId: d.MessageId, Type: d.Type})
	if err != nil {
		return err
	}
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return errors.Join(err, errors.New("the report was not confirmed"))
	}
	return d.Ack(false)
}
