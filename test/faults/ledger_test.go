// Package faults_test breaks things under load and then accounts for every
// message by its id: none lost, early, in another queue or altered, and
// duplicates only where a crash explains them.
package faults_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
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
	seen   map[string]int               // deliveries by message id and x-redrive-attempt
	acked  map[string]int
	ids    map[string]string // x-redrive-id by message id; the library only
	wrong  []string
}

// newLedger declares the queue as the README advises for messages that must not
// be lost: with at-most-once dead-lettering RabbitMQ itself drops dead letters
// while the intake has no leader, as just after a restart.
func newLedger(t *testing.T, v *brokertest.VHost, queue string) *ledger {
	v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
	return &ledger{t: t, v: v, queue: queue, bodies: map[string][sha256.Size]byte{}, failed: map[string]time.Time{}, seen: map[string]int{}, acked: map[string]int{}}
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
		c, err := ch.PublishWithDeferredConfirm("", l.queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: 2, Body: body, Headers: amqp.Table{"n": id}})
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
		conn, err := amqp.Dial(l.v.URL())
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
	if !known || sha256.Sum256(d.Body) != want || d.Headers["n"] != id || d.RoutingKey != l.queue {
		l.wrong = append(l.wrong, fmt.Sprintf("%q came altered or is not of this queue: %q, headers %v", id, d.Body, d.Headers))
	}
	attempt, _ := d.Headers[wire.HeaderAttempt].(int64)
	if attempt > 0 && !d.Redelivered {
		if early := l.failed[fmt.Sprint(id, " ", attempt)].Add(wait); time.Now().Before(early) {
			l.wrong = append(l.wrong, fmt.Sprintf("%s attempt %d came %s early", id, attempt, time.Until(early)))
		}
	}
	if !d.Redelivered { // what RabbitMQ hands out again is no duplicate of ours
		l.seen[fmt.Sprint(id, " ", attempt)]++
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

// acknowledged tells how many messages are done.
func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// settle waits until every message was acknowledged.
func (l *ledger) settle(most time.Duration) {
	l.t.Helper()
	deadline := time.Now().Add(most)
	for {
		l.mu.Lock()
		missing := len(l.bodies) - len(l.acked)
		l.mu.Unlock()
		if missing == 0 {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%d of %d messages were not acknowledged within %s: lost, or still on their way", missing, len(l.bodies), most)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// account checks everything; up to crashes × window deliveries may be duplicates.
func (l *ledger) account(crashes, window int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.wrong {
		if i == 10 {
			l.t.Errorf("and %d more", len(l.wrong)-i)
			break
		}
		l.t.Error(w)
	}
	// A message that is doubled fails twice from then on: its extra copies count
	// once, not again at each attempt.
	copies := map[string]int{}
	for key, n := range l.seen {
		id, _, _ := strings.Cut(key, " ")
		copies[id] = max(copies[id], n-1)
	}
	duplicates := 0
	for _, n := range copies {
		duplicates += n
	}
	if duplicates > crashes*window {
		l.t.Errorf("%d duplicates, more than %d crashes explain", duplicates, crashes)
	}
	l.t.Logf("%d messages: 0 lost, %d wrong, %d duplicates over %d crashes", len(l.bodies), len(l.wrong), duplicates, crashes)
}
