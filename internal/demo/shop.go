// Package demo runs the real service with an example shop: queues, consumers whose upstream, a
// payment service, goes down and recovers, and messages that no consumer can process. Read it in
// this order:
//
//	demo.go   Run: the broker, the service, the shop, and what the person at the terminal sees
//	shop.go   publishes, consumes, and accounts for each message
//	goods.go  the messages, and what a consumer does with them
package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// shop publishes and consumes as a program of the user's would.
type shop struct {
	conn       *amqp.Connection
	publishing *amqp.Channel
	reporting  *amqp.Channel
	upstream   atomic.Bool // whether the payment service answers
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
func openShop(ctx context.Context, url string, say func(event)) (*shop, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("the shop cannot connect: %w", err)
	}
	ctx = context.WithoutCancel(ctx) // what is being published when it is interrupted is published
	s := &shop{conn: conn, say: say, messages: map[string]*message{}}
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

// publish publishes one message and waits for RabbitMQ's confirm.
func (s *shop) publish(ctx context.Context, queue string, n int) error {
	ctx = context.WithoutCancel(ctx) // since it is counted now
	m := goods(queue, n)
	m.MessageId, m.DeliveryMode, m.Timestamp, m.AppId = uuid.NewString(), amqp.Persistent, time.Now(), "demo shop"
	s.mu.Lock()
	s.messages[m.MessageId] = &message{n: n}
	s.mu.Unlock()
	c, err := s.publishing.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
	if err != nil {
		return err
	}
	_, err = c.WaitContext(ctx)
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
	err := work(queue, &d, s.upstream.Load(), m.n)
	if err != nil {
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

// report publishes a failed message to Redrive with its error, and returns when RabbitMQ has
// confirmed it.
func (s *shop) report(ctx context.Context, queue string, d *amqp.Delivery, failure error) error {
	headers := amqp.Table{}
	maps.Copy(headers, d.Headers)
	headers[wire.HeaderError] = failure.Error()
	c, err := s.reporting.PublishWithDeferredConfirmWithContext(ctx, wire.ExchangeFailures, queue, true, false, amqp.Publishing{
		Headers: headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body})
	if err != nil {
		return err
	}
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("RabbitMQ refused the report")
	}
	return err
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

// account counts all messages by what became of them.
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
