package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// hostile is a message that no consumer of Redrive's would make.
type hostile struct {
	id    string
	at    time.Duration
	kind  int // in hostileKinds
	queue *workQueue
}

func (h hostile) String() string { return fmt.Sprintf("%s, %s", h.id, hostileKinds[h.kind].what) }

// anyQueue as a routing key is the work queue that the seed chooses.
const anyQueue = "*"

// hostileKinds are published to an exchange of Redrive's, or straight to a queue of its own. Each is
// parked, but what is a report for a queue with a policy: that decides, and counts an impossible
// number of attempts as none.
var hostileKinds = []struct {
	what, exchange, key string
	headers             amqp.Table
}{
	{"a report for a queue that does not exist", wire.ExchangeFailures, "no.such.queue", nil},
	{"a report for Redrive's own queue", wire.ExchangeFailures, wire.QueueIntake, nil},
	{"a report for a name that is not UTF-8", wire.ExchangeFailures, "\xff\xfe", nil},
	{"a report without a name", wire.ExchangeFailures, "", amqp.Table{wire.HeaderError: "\xc3\x28"}},
	{"a report with the longest name", wire.ExchangeFailures, strings.Repeat("x", 255), nil},
	{"a message published to redrive.intake", "", wire.QueueIntake, amqp.Table{"x-death": []any{int64(1), "two"}}},
	{"a message published to redrive.parked", wire.ExchangeParked, "", amqp.Table{wire.HeaderQueue: "\xff", wire.HeaderAttempt: int64(-1), wire.HeaderFirstFailed: "never"}},
	{"a report after five million attempts", wire.ExchangeFailures, anyQueue, amqp.Table{wire.HeaderAttempt: int64(5_000_000)}},
	{"a report after some attempts", wire.ExchangeFailures, anyQueue, amqp.Table{wire.HeaderAttempt: "some", "x-death": "none", wire.HeaderError: int64(7)}},
	{"a report after a million attempts", wire.ExchangeFailures, anyQueue, amqp.Table{wire.HeaderAttempt: int64(wire.MaxAttempt), wire.HeaderID: []any{}}},
	{"a message published to redrive.parked that names Redrive's own queue", wire.ExchangeParked, "", amqp.Table{wire.HeaderQueue: wire.QueueIntake}},
}

// ownQueueNamed is the last kind, which is drawn apart.
const ownQueueNamed = 10

// forgedHeaders are what messages to work queues may carry: RabbitMQ's and Redrive's own names.
var forgedHeaders = []amqp.Table{
	{"x-death": "none"},
	{"x-death": []any{amqp.Table{"queue": wire.QueueIntake, "reason": "rejected", "count": int64(1 << 62), "exchange": "redrive.retry.x"}}},
	{"x-first-death-queue": int64(3), "x-last-death-queue": wire.QueueParked},
	{wire.HeaderID: "no id", wire.HeaderAttempt: int64(-5), wire.HeaderFirstFailed: int32(1), wire.HeaderQueue: amqp.Table{"a": []any{nil}}},
	{wire.HeaderID: "0198f6f0-0000-7000-8000-000000000001", wire.HeaderReason: "\xff", wire.HeaderExchange: true, wire.HeaderRoutingKey: []any{}},
}

// drawHostile makes hostile messages, and has some of the others carry forged headers.
func (s *scenario) drawHostile(r *rand.Rand) {
	if r.IntN(2) == 0 {
		return
	}
	for i := range r.IntN(20) {
		s.hostile = append(s.hostile, hostile{id: fmt.Sprintf("h%03d", i), at: between(r, 0, faultsEnd), kind: r.IntN(ownQueueNamed), queue: s.queues[r.IntN(len(s.queues))]})
	}
	for i := range s.messages {
		if kind := r.IntN(10 * len(forgedHeaders)); kind < len(forgedHeaders) {
			s.messages[i].forged = forgedHeaders[kind]
		}
	}
}

func (w *World) publishHostile(ctx context.Context, h hostile) error {
	kind := hostileKinds[h.kind]
	key, headers := kind.key, amqp.Table{idHeader: h.id}
	for k, v := range kind.headers {
		headers[k] = v
	}
	if key == anyQueue {
		key = h.queue.name
	}
	return w.publisher.publish(ctx, h.id, kind.exchange, key, amqp.Publishing{Headers: headers, DeliveryMode: amqp.Persistent})
}

// failuresOf is how often a message has failed, as a consumer reads it.
func failuresOf(h amqp.Table) int {
	if n, _ := h[wire.HeaderAttempt].(int64); n > 0 && n <= wire.MaxAttempt {
		return int(n)
	}
	return 0
}

// missingHostile are the hostile messages that are not where they belong; left are how many
// messages of each deleted queue may be gone with it. l.mu is held.
func (l *ledger) missingHostile(at ends, left map[*workQueue]int) (all []string) {
	for _, h := range l.scenario.hostile {
		kind := hostileKinds[h.kind]
		if l.touched[h.id] && kind.key == anyQueue || l.lost.has(h.id) || l.unsure[h.id] {
			continue // it is where that person wants it, or where RabbitMQ or a damaged store has it: nowhere
		}
		attempts, _ := kind.headers[wire.HeaderAttempt].(int64)
		least, most := l.allowed(h.queue, l.start, time.Now())
		retried, ended := l.strangers[h.id] > 0, at.parked[h.id]+at.forwarded[h.id] > 0 || h.queue.discards()
		arrived := retried || ended
		switch {
		case kind.key != anyQueue:
			arrived = at.parked[h.id] > 0
		case attempts == wire.MaxAttempt || most == 1:
			arrived = ended && !retried
		case least > 1 && !l.byItself[h.queue]:
			arrived = retried
		}
		if !arrived && !(kind.key == anyQueue && isGone(h.queue, left)) {
			all = append(all, h.String())
		}
	}
	return all
}
