// Package faults_test breaks things under load and then accounts for every
// message by its id: none lost, early, in another queue or altered, and
// duplicates only where a crash explains them.
package faults_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// The policy of these tests: each message fails twice and is acknowledged at its
// third attempt.
const (
	failures = 2
	wait     = 150 * time.Millisecond
	policies = `policies: [{name: p, queues: ["*"], attempts: 50, backoff: {fixed: 150ms}, jitter: none}]`
	// The same, waiting in RabbitMQ.
	policiesInRabbitMQ = `policies: [{name: p, queues: ["*"], attempts: 50, backoff: {fixed: 150ms}, wait: {levels: [150ms]}}]`
)

// ledger knows what was published to one queue and what became of it.
type ledger struct {
	t     *testing.T
	v     *brokertest.VHost
	queue string

	mu     sync.Mutex
	bodies map[string][sha256.Size]byte // published, by message id
	failed map[string]time.Time         // when it first failed, by message id and failures so far
	seen   map[string][]time.Time       // when it came, by message id and x-redrive-attempt
	acked  map[string]int
	// uncertain are messages that RabbitMQ has not confirmed: they may come, or not.
	uncertain map[string]bool
	ids       map[string]string // the first x-redrive-id by message id: no copy has another
	faults    []fault
	wrong     []string
	at        string             // see only
	conns     []*amqp.Connection // of its own clients
}

// newLedger declares the queue as the README advises for messages that must not
// be lost: with at-most-once dead-lettering RabbitMQ itself drops dead letters
// while the intake has no leader, as just after a restart.
func newLedger(t *testing.T, v *brokertest.VHost, queue string) *ledger {
	v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
	return &ledger{t: t, v: v, queue: queue, bodies: map[string][sha256.Size]byte{}, failed: map[string]time.Time{}, seen: map[string][]time.Time{}, acked: map[string]int{},
		uncertain: map[string]bool{}, ids: map[string]string{}}
}

// publish publishes n messages, confirmed.
func (l *ledger) publish(n int) {
	l.t.Helper()
	ch := l.v.Channel()
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		l.t.Fatal(err)
	}
	var confirms []*amqp.DeferredConfirmation
	for range n {
		l.mu.Lock()
		id := fmt.Sprintf("%s-%d", l.queue, len(l.bodies))
		body := []byte("body of " + id)
		l.bodies[id] = sha256.Sum256(body)
		l.mu.Unlock()
		c, err := ch.PublishWithDeferredConfirm("", l.queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: 2, Body: body, Headers: amqp.Table{"n": id, "of": l.v.Name}})
		if err != nil {
			l.t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if !c.Wait() {
			l.t.Fatal("RabbitMQ did not confirm a message of the test's own")
		}
	}
}

// consume takes deliveries until ctx ends, and connects again when it must.
func (l *ledger) consume(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := l.connect()
		if err != nil {
			<-time.After(50 * time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		if ch, err := conn.Channel(); err == nil && ch.Qos(500, 0, false) == nil {
			if in, err := ch.Consume(l.queue, "", false, false, false, false, nil); err == nil {
				for d := range in {
					l.delivered(d)
				}
			}
		}
		stop()
		conn.Close()
	}
}

func (l *ledger) delivered(d amqp.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := d.MessageId
	want, known := l.bodies[id]
	if !known || sha256.Sum256(d.Body) != want || d.Headers["n"] != id || d.Headers["of"] != l.v.Name || d.RoutingKey != l.queue {
		l.wrong = append(l.wrong, fmt.Sprintf("%q came altered or is not of this queue: %q, headers %v", id, d.Body, d.Headers))
	}
	attempt, _ := d.Headers[wire.HeaderAttempt].(int64)
	if mark, ok := d.Headers[wire.HeaderID].(string); ok && l.ids[id] == "" {
		l.ids[id] = mark
	} else if ok && l.ids[id] != mark {
		l.wrong = append(l.wrong, fmt.Sprintf("%s attempt %d came as %s and as %s", id, attempt, l.ids[id], mark))
	}
	if attempt > 0 && !d.Redelivered {
		if early := l.failed[fmt.Sprint(id, " ", attempt)].Add(wait); time.Now().Before(early) {
			l.wrong = append(l.wrong, fmt.Sprintf("%s attempt %d came %s early", id, attempt, time.Until(early)))
		}
	}
	if attempt > failures {
		l.wrong = append(l.wrong, fmt.Sprintf("%s came as attempt %d though it never failed so often", id, attempt))
	}
	if !d.Redelivered { // what RabbitMQ hands out again is no duplicate of ours
		key := fmt.Sprint(id, " ", attempt)
		l.seen[key] = append(l.seen[key], time.Now())
	}
	if attempt < failures {
		if key := fmt.Sprint(id, " ", attempt+1); l.failed[key].IsZero() {
			l.failed[key] = time.Now()
		}
		_ = d.Reject(false)
		return
	}
	if d.Ack(false) == nil {
		l.acked[id]++
	}
}

// publishing publishes until ctx ends, by whatever node takes it. What RabbitMQ does
// not confirm is not published again.
func (l *ledger) publishing(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := l.connect()
		if err != nil {
			<-time.After(50 * time.Millisecond)
			continue
		}
		if ch, err := conn.Channel(); err == nil && ch.Confirm(false) == nil {
			for ctx.Err() == nil && l.publishSome(ctx, ch) {
				<-time.After(50 * time.Millisecond) // a load, not as much as there can be
			}
		}
		_ = conn.CloseDeadline(time.Now().Add(time.Second))
	}
}

// connect connects one of the ledger's own clients.
func (l *ledger) connect() (*amqp.Connection, error) {
	l.mu.Lock()
	at := l.at
	l.mu.Unlock()
	conn, err := brokertest.Connect(cmp.Or(at, l.v.URL()))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != at {
		_ = conn.CloseDeadline(time.Now())
		return nil, errors.New("it is to go elsewhere")
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

// only lets the ledger's own clients use these brokers alone; "": all.
func (l *ledger) only(urls string) {
	l.mu.Lock()
	l.at = urls
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.CloseDeadline(time.Now().Add(time.Second))
	}
}

// publishSome tells whether all were confirmed.
func (l *ledger) publishSome(ctx context.Context, ch *amqp.Channel) (all bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	confirms := map[string]*amqp.DeferredConfirmation{}
	for range 10 {
		l.mu.Lock()
		id := fmt.Sprintf("%s-%d", l.queue, len(l.bodies))
		body := []byte("body of " + id)
		l.bodies[id], l.uncertain[id] = sha256.Sum256(body), true
		l.mu.Unlock()
		c, err := ch.PublishWithDeferredConfirm("", l.queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: 2, Body: body, Headers: amqp.Table{"n": id, "of": l.v.Name}})
		if err != nil {
			return false
		}
		confirms[id] = c
	}
	all = true
	for id, c := range confirms {
		if acked, err := c.WaitContext(ctx); err != nil || !acked {
			all = false
			continue
		}
		l.mu.Lock()
		delete(l.uncertain, id)
		l.mu.Unlock()
	}
	return all
}

// missing is how many messages must still be acknowledged.
func (l *ledger) missing() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.bodies {
		if l.acked[id] == 0 && !l.uncertain[id] {
			n++
		}
	}
	return n
}

// acknowledged tells how many messages are done.
func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// deliveries tells how many there were.
func (l *ledger) deliveries() (all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, arrivals := range l.seen {
		all += len(arrivals)
	}
	return all
}

// settle waits until every message was acknowledged.
func (l *ledger) settle(most time.Duration) {
	l.t.Helper()
	deadline := time.Now().Add(most)
	for {
		missing := l.missing()
		if missing == 0 {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%d of %d messages were not acknowledged within %s: lost, or still on their way", missing, len(l.bodies), most)
		}
		<-time.After(20 * time.Millisecond)
	}
}
