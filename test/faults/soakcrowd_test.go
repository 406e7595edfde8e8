package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// crowd is many messages of many queues, and what became of each. They are numbers, so that a
// million take little room, and many can come in a second.
type crowd struct {
	test    *testing.T
	v       *brokertest.VHost
	began   time.Time
	queues  []string
	delay   time.Duration                        // from a failure to the next attempt
	fails   func(queue string, attempt int) bool // what a consumer does with an attempt
	padding string

	mu      sync.Mutex
	all     []crowdMessage // by number
	acked   int
	done    []int // of each queue, how many were acknowledged
	failed  int   // deliveries that failed
	retried int   // deliveries that were retries
	faults  []fault
	copies  map[string][]time.Time // further arrivals, by number and attempt
	sum     sums
	wrong   []string
}

type crowdMessage struct {
	queue    int32
	acked    bool
	id       uuid.UUID // the first x-redrive-id
	attempts []crowdAttempt
}

// crowdAttempt is when an attempt was due and came, since the crowd began; 0: it has not come.
type crowdAttempt struct{ due, came time.Duration }

// newCrowd is one whose messages fail so often before they are acknowledged.
func newCrowd(t *testing.T, v *brokertest.VHost, failures int, delay time.Duration, queues ...string) *crowd {
	return &crowd{test: t, v: v, began: time.Now(), queues: queues, delay: delay, padding: strings.Repeat("x", 200), copies: map[string][]time.Time{}, done: make([]int, len(queues)),
		fails: func(_ string, attempt int) bool { return attempt < failures }}
}

// names are so many queues.
func names(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", prefix, i))
	}
	return all
}

// body is what a message has as its body: its number, and some bytes.
func (c *crowd) body(n int) string { return strconv.Itoa(n) + c.padding }

// inParts does something for each of n on four channels at once.
func (c *crowd) inParts(n int, do func(ch *amqp.Channel, i int) error) {
	c.test.Helper()
	const parts = 4
	errs := make([]error, parts)
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			conn, err := brokertest.Connect(c.v.URL())
			if errs[part] = err; err != nil {
				return
			}
			defer conn.Close()
			ch, err := conn.Channel()
			for i := part; i < n && err == nil; i += parts {
				err = do(ch, i)
			}
			errs[part] = err
		})
	}
	all.Wait()
	for _, err := range errs {
		must(c.test, err)
	}
}

// declare declares its queues, and deletes them in the end: so many at once, with their virtual
// host, take RabbitMQ longer than a request may.
func (c *crowd) declare(args amqp.Table) {
	c.test.Helper()
	c.test.Cleanup(func() {
		c.inParts(len(c.queues), func(ch *amqp.Channel, i int) error {
			if _, err := ch.QueueDelete(c.queues[i], false, false, false); err != nil {
				return err
			}
			return ch.ExchangeDelete(wire.RetryExchange(c.queues[i]), false, false)
		})
	})
	c.inParts(len(c.queues), func(ch *amqp.Channel, i int) error {
		_, err := ch.QueueDeclare(c.queues[i], true, false, false, false, args)
		return err
	})
}

// add notes a message that is first due at a time, and returns its number.
func (c *crowd) add(queue int, attempts ...crowdAttempt) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, crowdMessage{queue: int32(queue), attempts: attempts})
	return len(c.all) - 1
}

// fill writes a message of a queue that has failed once for each due time into the store of a
// service that does not run.
func (c *crowd) fill(s *process, queue int, n int, due func(i int) time.Time) {
	c.test.Helper()
	d, err := diskstore.Open(s.data(), diskstore.Options{})
	must(c.test, err)
	now := time.Now()
	for i := 0; i < n; {
		var batch []*store.Record
		for ; len(batch) < 1000 && i < n; i++ {
			number := c.add(queue, crowdAttempt{came: 1}, crowdAttempt{due: due(i).Truncate(time.Microsecond).Sub(c.began)})
			batch = append(batch, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: c.queues[queue], State: store.Waiting, Due: due(i),
				Failures: 1, Reason: wire.ReasonRejected, Policy: "p", FirstFailed: now, FailedAt: now, Proven: true,
				Message: wire.Message{RoutingKey: c.queues[queue], DeliveryMode: amqp.Persistent, MessageID: strconv.Itoa(number), Body: []byte(c.body(number))}})
		}
		must(c.test, d.Add(context.Background(), batch))
	}
	must(c.test, d.Close())
}

// publish publishes n messages to queues, at a pace if it is above 0, until ctx ends. RabbitMQ
// has confirmed all of them then.
func (c *crowd) publish(ctx context.Context, n int, pace float64, queue func(i int) int) error {
	conn, err := brokertest.Connect(c.v.URL())
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	from := time.Now()
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		if ahead := time.Duration(float64(i)/max(pace, 1)*float64(time.Second)) - time.Since(from); pace > 0 && ahead > 0 {
			<-time.After(ahead)
		}
		if ctx.Err() != nil {
			n = i
			break
		}
		to := queue(i)
		number := c.add(to, crowdAttempt{})
		confirm, err := ch.PublishWithDeferredConfirm("", c.queues[to], true, false, amqp.Publishing{MessageId: strconv.Itoa(number), DeliveryMode: amqp.Persistent, Body: []byte(c.body(number))})
		if err != nil {
			return err
		}
		if confirms = append(confirms, confirm); len(confirms) == 20_000 {
			if confirms, err = awaitConfirms(confirms, 10_000); err != nil {
				return err
			}
		}
	}
	_, err = awaitConfirms(confirms, len(confirms))
	return err
}

// publishing publishes to one queue at a pace, until the function that it returns is called.
func (c *crowd) publishing(pace float64, queue int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var publisher sync.WaitGroup
	publisher.Go(func() {
		if err := c.publish(ctx, 1<<30, pace, func(int) int { return queue }); err != nil {
			c.test.Error(err)
		}
	})
	stop = func() { cancel(); publisher.Wait() }
	c.test.Cleanup(stop)
	return stop
}

// awaitConfirms waits for the first n, and returns the others.
func awaitConfirms(confirms []*amqp.DeferredConfirmation, n int) ([]*amqp.DeferredConfirmation, error) {
	for _, c := range confirms[:n] {
		if !c.Wait() {
			return nil, fmt.Errorf("RabbitMQ did not confirm a message of the test's own")
		}
	}
	return slices.Clone(confirms[n:]), nil
}

// consume consumes queues until the test ends, with so many unacknowledged from each.
func (c *crowd) consume(prefetch int, queues ...string) {
	c.test.Helper()
	const each = 250 // on a connection
	var all sync.WaitGroup
	c.test.Cleanup(all.Wait)
	c.inParts((len(queues)+each-1)/each, func(_ *amqp.Channel, part int) error {
		conn, err := brokertest.Connect(c.v.URL())
		if err != nil {
			return err
		}
		c.test.Cleanup(func() { conn.Close() })
		ch, err := conn.Channel()
		if err == nil {
			err = ch.Qos(prefetch, 0, false)
		}
		for _, q := range queues[part*each : min(len(queues), (part+1)*each)] {
			if err != nil {
				return err
			}
			var in <-chan amqp.Delivery
			if in, err = ch.Consume(q, "", false, false, false, false, nil); err == nil {
				all.Go(func() {
					for d := range in {
						c.delivered(d)
					}
				})
			}
		}
		return err
	})
}

// delivered accounts for a delivery, and rejects or acknowledges it.
func (c *crowd) delivered(d amqp.Delivery) {
	at := time.Now()
	now := at.Sub(c.began)
	attempt := 0
	if n, ok := d.Headers[wire.HeaderAttempt].(int64); ok {
		attempt = int(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := strconv.Atoi(d.MessageId)
	if err != nil || n < 0 || n >= len(c.all) || c.queues[c.all[n].queue] != d.RoutingKey || string(d.Body) != c.body(n) {
		c.wrong = append(c.wrong, fmt.Sprintf("%q came altered or is not of queue %q: %.60q", d.MessageId, d.RoutingKey, d.Body))
		_ = d.Ack(false)
		return
	}
	m := &c.all[n]
	if attempt >= len(m.attempts) {
		c.wrong = append(c.wrong, fmt.Sprintf("%d came as attempt %d though it never failed so often", n, attempt))
		_ = d.Ack(false)
		return
	}
	if attempt > 0 {
		c.identified(m, n, d)
	}
	switch a := &m.attempts[attempt]; {
	case a.came == 0:
		a.came = now
		if attempt > 0 {
			c.retried++
		}
		if now < a.due {
			c.sum.Early++
			c.wrong = append(c.wrong, fmt.Sprintf("%d attempt %d came %s early", n, attempt, a.due-now))
		}
	case !d.Redelivered: // what RabbitMQ delivers again is no copy of ours
		key := fmt.Sprint(n, " ", attempt)
		c.copies[key] = append(c.copies[key], at)
	}
	if c.fails(d.RoutingKey, attempt) {
		c.failed++
		if attempt == len(m.attempts)-1 {
			m.attempts = append(m.attempts, crowdAttempt{due: time.Since(c.began) + c.delay})
		}
		_ = d.Reject(false)
		return
	}
	if d.Ack(false) == nil && !m.acked {
		m.acked = true
		c.acked++
		c.done[m.queue]++
	}
}

// identified checks that all retries of a message have the same id.
func (c *crowd) identified(m *crowdMessage, n int, d amqp.Delivery) {
	text, _ := d.Headers[wire.HeaderID].(string)
	id, err := uuid.Parse(text)
	if m.id == uuid.Nil {
		m.id = id
	}
	if err != nil || m.id != id {
		c.wrong = append(c.wrong, fmt.Sprintf("%d came as %s and as %q", n, m.id, text))
	}
}
