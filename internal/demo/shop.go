// Package demo is an example shop in front of the real service: queues, a
// consumer whose upstream goes down and comes back, and one message that nobody
// can process.
package demo

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// queues of the shop. Their names begin alike, so that one policy and one clean
// up cover them, and nobody takes them for their own.
var queues = []string{"redrive-demo.orders", "redrive-demo.mail", "redrive-demo.invoices"}

// poisonous is the body that no consumer can process.
const poisonous = "{ this is not JSON"

// shop publishes and consumes like somebody else's program.
type shop struct {
	conn       *amqp.Connection
	publishing *amqp.Channel
	upstream   atomic.Bool // whether the payment service answers
	say        func(event)
	wg         sync.WaitGroup

	mu       sync.Mutex
	messages map[string]*story // by message id
}

// story is what became of one message.
type story struct {
	times int // how often it was done: more than once is a duplicate
}

// openShop declares the queues; args are those of a queue whose dead letters go
// to Redrive.
func openShop(ctx context.Context, url string, say func(event)) (*shop, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("the shop cannot connect: %w", err)
	}
	s := &shop{conn: conn, say: say, messages: map[string]*story{}}
	s.upstream.Store(true)
	if s.publishing, err = conn.Channel(); err != nil {
		return nil, err
	}
	if err := s.publishing.Confirm(false); err != nil {
		return nil, err
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
				s.process(q, d)
			}
		})
	}
	return s, nil
}

// publish sends one message and waits for RabbitMQ to have it.
func (s *shop) publish(ctx context.Context, queue, body string) error {
	id := uuid.NewString()
	s.mu.Lock()
	s.messages[id] = &story{}
	s.mu.Unlock()
	c, err := s.publishing.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: []byte(body)})
	if err != nil {
		return err
	}
	_, err = c.WaitContext(ctx)
	return err
}

// process is the consumer: it knows nothing of Redrive, and rejects what fails.
func (s *shop) process(queue string, d amqp.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.messages[d.MessageId]
	if m == nil {
		_ = d.Ack(false) // of an earlier demo
		return
	}
	attempt, _ := d.Headers[wire.HeaderAttempt].(int64)
	switch {
	case string(d.Body) == poisonous:
		s.say(event{kind: "fails", queue: queue, text: "cannot be parsed"})
		_ = d.Reject(false)
	case !s.upstream.Load() && queue != "redrive-demo.invoices":
		s.say(event{kind: "fails", queue: queue, text: "the payment service does not answer"})
		_ = d.Reject(false)
	default:
		if d.Ack(false) == nil {
			m.times++
		}
		e := event{kind: "succeeds", queue: queue}
		if attempt > 0 { // what succeeds at once is no news
			e.text = fmt.Sprintf("at attempt %d", attempt+1)
		}
		s.say(e)
	}
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
		body := fmt.Sprintf(`{"order": %d}`, n)
		if n == 5 {
			body = poisonous
		}
		if err := s.publish(ctx, queues[n%len(queues)], body); err != nil && ctx.Err() == nil {
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

// account sums up; parked are the ids of the parked messages.
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
		_ = s.publishing.ExchangeDelete(wire.ReturnExchange(q), false, false)
	}
	s.conn.Close()
	s.wg.Wait()
}
