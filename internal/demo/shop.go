// Package demo runs the real service with an example shop: queues, consumers whose upstream, a
// payment service, goes down and recovers, and messages that no consumer can process. Read it in
// this order:
//
//	demo.go  Run: the service, the shop, and what the person at the terminal sees
//	shop.go  publishes, consumes, and accounts for each message; the messages, and what becomes of them
package demo

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/wire"
)

// shop publishes and consumes as a program of the user's would.
type shop struct {
	conn       *amqp.Connection
	publishing *amqp.Channel
	reporting  *amqp.Channel
	upstream   atomic.Bool     // whether the payment service answers
	decoder    *decode.Decoder // of invoices
	say        func(event)
	wg         sync.WaitGroup

	mu       sync.Mutex
	messages map[string]*message // by message id
}

type message struct {
	n         int // of goods
	processed int // how often: more than once is a duplicate
}

// openShop declares the queues and consumes from them.
func openShop(
	ctx context.Context, conn *amqp.Connection, decoder *decode.Decoder, say func(event),
) (s *shop, err error) {
	ctx = context.WithoutCancel(ctx) // what is being published when it is interrupted is published
	s = &shop{conn: conn, decoder: decoder, say: say, messages: map[string]*message{}}
	s.upstream.Store(true)
	for _, ch := range []**amqp.Channel{&s.publishing, &s.reporting} {
		if *ch, err = conn.Channel(); err != nil {
			return nil, err
		}
		if err := (*ch).Confirm(false); err != nil {
			return nil, err
		}
	}
	for _, q := range queues {
		if _, err := s.publishing.QueueDeclare(q, true, false, false, false, amqp.Table{
			"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters,
		}); err != nil {
			return nil, fmt.Errorf("declaring %s: %w", q, err)
		}
		ch, err := conn.Channel()
		if err != nil {
			return nil, err
		}
		if err := ch.Qos(50, 0, false); err != nil {
			return nil, err
		}
		in, err := ch.Consume(q, "", false, false, false, false, nil)
		if err != nil {
			return nil, err
		}
		s.wg.Go(func() {
			for d := range in {
				s.process(ctx, q, d)
			}
		})
	}
	return s, nil
}

func (s *shop) publish(ctx context.Context, queue string, n int) error {
	ctx = context.WithoutCancel(ctx) // since it is counted now
	m := goods(queue, n)
	m.MessageId, m.DeliveryMode, m.Timestamp, m.AppId = uuid.NewString(), amqp.Persistent, time.Now(), "demo shop"
	s.mu.Lock()
	s.messages[m.MessageId] = &message{n: n}
	s.mu.Unlock()
	return confirmed(ctx, s.publishing, "", queue, m)
}

// confirmed publishes a message, and returns when RabbitMQ has confirmed it.
func confirmed(ctx context.Context, ch *amqp.Channel, exchange, key string, m amqp.Publishing) error {
	c, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, m)
	if err != nil {
		return err
	}
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("RabbitMQ refused the message")
	}
	return err
}

// process is the consumer: it rejects what fails, or reports it with its error.
func (s *shop) process(ctx context.Context, queue string, d amqp.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.messages[d.MessageId]
	if m == nil {
		_ = d.Ack(false) // of an earlier demo
		return
	}
	if err := s.work(ctx, queue, &d, m.n); err != nil {
		s.say(event{kind: "fails", queue: queue, text: err.Error()})
		if queue == mail || s.report(ctx, queue, &d, err) != nil {
			_ = d.Reject(false)
		} else {
			_ = d.Ack(false)
		}
		return
	}
	if d.Ack(false) == nil {
		m.processed++
	}
	e := event{kind: "succeeds", queue: queue}
	if failures, _ := d.Headers[wire.HeaderAttempt].(int64); failures > 0 { // a first attempt is not shown
		e.text = fmt.Sprintf("at attempt %d", failures+1)
	}
	s.say(e)
}

// report publishes a failed message to Redrive with its error.
func (s *shop) report(ctx context.Context, queue string, d *amqp.Delivery, failure error) error {
	headers := amqp.Table{}
	maps.Copy(headers, d.Headers)
	headers[wire.HeaderError] = failure.Error()
	return confirmed(ctx, s.reporting, wire.ExchangeFailures, queue, amqp.Publishing{Headers: headers,
		ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body})
}

// cycle is how often the upstream goes down, each time for a third of it.
const cycle = 30 * time.Second

// run publishes a few messages a second until ctx ends.
func (s *shop) run(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		at := time.Since(began) % cycle
		s.outage(at > cycle/6 && at < cycle/2)
		if err := s.publish(ctx, queues[n%len(queues)], n); err != nil && ctx.Err() == nil {
			return fmt.Errorf("publishing: %w", err)
		}
	}
}

// outage makes the upstream go down or recover, unless it has already.
func (s *shop) outage(down bool) {
	switch wasUp := s.upstream.Swap(!down); {
	case wasUp && down:
		s.say(event{kind: "goes down", text: "the payment service does not answer any more"})
	case !wasUp && !down:
		s.say(event{kind: "recovers", text: "the payment service is back"})
	}
}

type account struct {
	published, done, parked, duplicates, missing int
}

// account counts the messages; parked are the ids of those that are parked or that a person has
// discarded.
func (s *shop) account(parked map[string]bool) (a account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, m := range s.messages {
		a.published++
		switch {
		case m.processed > 0:
			a.done++
			a.duplicates += m.processed - 1
		case parked[id]:
			a.parked++
		default:
			a.missing++
		}
	}
	return a
}

// close deletes what the shop has declared, and ends its consumers.
func (s *shop) close() {
	for _, q := range queues {
		_, _ = s.publishing.QueueDelete(q, false, false, false)
		_ = s.publishing.ExchangeDelete(wire.RetryExchange(q), false, false)
	}
	s.conn.Close()
	s.wg.Wait()
}

//go:embed invoice.proto
var invoiceProto []byte

// The queues of the shop. Their names have a prefix, so that no one takes them for their own.
const (
	orders   = "redrive-demo.orders"   // JSON; what fails is reported with its error
	mail     = "redrive-demo.mail"     // JSON; what fails is rejected: the consumer knows nothing of Redrive
	invoices = "redrive-demo.invoices" // Protobuf in base64; its consumer needs no payment service
)

var queues = []string{orders, mail, invoices}

var customers = []string{"Ada Lovelace", "Grace Hopper", "Katherine Johnson", "Annie Easley", "Hedy Lamarr",
	"José Álvarez"}

// goods returns the n-th message of the shop, for a queue.
func goods(queue string, n int) amqp.Publishing {
	customer := customers[n%len(customers)]
	number := int64(9007199254740993) + int64(n) // more than a JavaScript number can hold exactly
	switch {
	case n == 5: // no consumer can process this one
		return amqp.Publishing{ContentType: "application/json", Body: []byte("{ this is not JSON")}
	case queue == invoices:
		price := uint64(1990)
		if n%60 == 8 { // an invoice without a price, which its consumer cannot process
			price = 0
		}
		return amqp.Publishing{Type: "shop.Invoice", ContentType: "text/plain",
			Body: []byte(base64.StdEncoding.EncodeToString(invoice(number, customer, price)))}
	case queue == mail:
		return amqp.Publishing{Type: "mail.confirmation", ContentType: "application/json",
			Body: fmt.Appendf(nil, `{"to": "customer-%d@shop.example", "template": "confirmation", "order": %d}`,
				n, number)}
	}
	return amqp.Publishing{Type: "order.created", ContentType: "application/json",
		Headers: amqp.Table{"tenant": []string{"acme", "globex"}[n%2]},
		Body: fmt.Appendf(nil,
			`{"order": {"number": %d, "customer": %q, "total": %d.%02d}, "items": [{"name": "lamp", "count": %d}]}`,
			number, customer, 20+n%80, n%100, 1+n%3)}
}

func invoice(number int64, customer string, price uint64) []byte {
	item := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "lamp")
	item = protowire.AppendVarint(protowire.AppendTag(item, 2, protowire.VarintType), 2)
	if price > 0 {
		item = protowire.AppendVarint(protowire.AppendTag(item, 3, protowire.VarintType), price)
	}
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(number))
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), customer)
	return protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), item)
}

// work processes a message as a consumer of the shop. Its errors differ in their numbers, as real ones do.
func (s *shop) work(ctx context.Context, queue string, d *amqp.Delivery, n int) error {
	switch {
	case bytes.HasPrefix(d.Body, []byte("{ ")):
		return errors.New("json: invalid character 't' looking for beginning of object key string at offset 2")
	case queue == invoices:
		if r := s.decoder.Decode(ctx, decode.Body{Queue: queue, Bytes: d.Body}); !strings.Contains(r.Text, "price") {
			return fmt.Errorf("item 1 of invoice %d has no price", 100000+n)
		}
	case !s.upstream.Load():
		return fmt.Errorf("dial tcp 10.0.%d.7:443: payment service does not answer after %d ms", n%4, 3000+n%17)
	}
	return nil
}
