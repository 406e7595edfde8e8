// Package demo is an example shop in front of the real service: queues, a
// consumer whose upstream goes down and comes back, and messages that no consumer can
// process.
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

// shop publishes and consumes like somebody else's program.
type shop struct {
	conn       *amqp.Connection
	publishing *amqp.Channel
	reporting  *amqp.Channel
	upstream   atomic.Bool // whether the payment service answers
	say        func(event)
	wg         sync.WaitGroup

	mu       sync.Mutex
	messages map[string]*story // by message id
}

// story is what became of one message.
type story struct {
	n     int // of goods
	times int // how often it was done: more than once is a duplicate
}

// openShop declares the queues; args are those of a queue whose dead letters go
// to Redrive.
func openShop(ctx context.Context, url string, say func(event)) (*shop, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("the shop cannot connect: %w", err)
	}
	ctx = context.WithoutCancel(ctx) // what is under way when it is interrupted still ends well
	s := &shop{conn: conn, say: say, messages: map[string]*story{}}
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

// publish sends one message and waits for RabbitMQ to have it.
func (s *shop) publish(ctx context.Context, queue string, n int) error {
	ctx = context.WithoutCancel(ctx) // one that is counted is published
	m := goods(queue, n)
	m.MessageId, m.DeliveryMode, m.Timestamp, m.AppId = uuid.NewString(), amqp.Persistent, time.Now(), "demo shop"
	s.mu.Lock()
	s.messages[m.MessageId] = &story{n: n}
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
		m.times++
	}
	e := event{kind: "succeeds", queue: queue}
	if attempt, _ := d.Headers[wire.HeaderAttempt].(int64); attempt > 0 { // what succeeds at once is no news
		e.text = fmt.Sprintf("at attempt %d", attempt+1)
	}
	s.say(e)
}

// report hands a failed message to Redrive with what went wrong, and returns when
// RabbitMQ has it.
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

// cycle is one round of the story: all is well, the upstream goes down for a
// third of it, and comes back.
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

// outage makes the upstream go down or come back.
func (s *shop) outage(down bool) {
	switch s.upstream.Swap(!down) {
	case down:
		e := event{kind: "recovers", text: "the payment service is back"}
		if down {
			e = event{kind: "goes down", text: "the payment service does not answer any more"}
		}
		s.say(e)
	}
}

// account is what became of all messages.
type account struct {
	published, done, parked, duplicates, missing int
}

// account sums up; parked are the ids of the messages that are parked or that a
// person has discarded.
func (s *shop) account(parked map[string]bool) (a account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, m := range s.messages {
		a.published++
		switch {
		case m.times > 0:
			a.done++
			a.duplicates += m.times - 1
		case parked[id]:
			a.parked++
		default:
			a.missing++
		}
	}
	return a
}

// close ends the consumers and deletes what the shop made.
func (s *shop) close() {
	for _, q := range queues {
		_, _ = s.publishing.QueueDelete(q, false, false, false)
		_ = s.publishing.ExchangeDelete(wire.RetryExchange(q), false, false)
	}
	s.conn.Close()
	s.wg.Wait()
}
