package world

import (
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// ledger accounts for each message on its own, from what publishers and consumers see.
type ledger struct {
	start time.Time

	mu       sync.Mutex
	accounts map[string]*account
	cuts     []time.Time // when a connection was cut or the process crashed
	// said is when the service said that it took or published a message, by the id that it gave it.
	// Its consumer may learn of that long after.
	said map[string][]time.Time
}

// account is what happened to one message.
type account struct {
	message
	queue     *workQueue
	redriveID string // that the service gave it; "" until it failed
	// failedAt is when its consumer first failed it, by how often it had failed before.
	failedAt  map[int]time.Time
	seen      []time.Time // when anything happened to it that anyone saw
	processed int
}

func newLedger(s *scenario) *ledger {
	l := &ledger{start: time.Now(), accounts: map[string]*account{}, said: map[string][]time.Time{}}
	for _, m := range s.messages {
		l.accounts[m.id] = &account{message: m, queue: &s.queues[m.queue], failedAt: map[int]time.Time{}}
	}
	return l
}

func (l *ledger) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cuts = append(l.cuts, time.Now())
}

// heard enters what the service says of a message.
func (l *ledger) heard(e retry.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := e.ID.String()
	l.said[id] = append(l.said[id], time.Now())
}

// named enters the id that the service gave a message.
func (l *ledger) named(message, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accounts[message].redriveID = id
}

// delivered enters that a consumer received a message, and checks what must hold then.
func (l *ledger) delivered(q *workQueue, d amqp.Delivery, failures int, now time.Time) (message, error) {
	id, _ := d.Headers[idHeader].(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	switch {
	case a == nil:
		return message{}, fmt.Errorf("%s received a message that was never published: %q", q.name, id)
	case a.queue.name != q.name:
		return message{}, fmt.Errorf("%s received %s, which is of %s", q.name, id, a.queue.name)
	case len(d.Body) != a.size:
		return message{}, fmt.Errorf("%s came with a body of %d bytes instead of %d", id, len(d.Body), a.size)
	case d.RoutingKey != q.name:
		return message{}, fmt.Errorf("%s came with the routing key %q", id, d.RoutingKey)
	case failures >= q.policy.Attempts:
		return message{}, fmt.Errorf("%s was delivered although it has failed %d times, and %d attempts are allowed", id, failures, q.policy.Attempts)
	}
	if _, has := d.Headers["x-death"]; has {
		return message{}, fmt.Errorf("%s was retried with an x-death header", id)
	}
	if failures > 0 {
		failed, did := a.failedAt[failures-1]
		if !did {
			return message{}, fmt.Errorf("%s was retried as failed %d times, which it has not", id, failures)
		}
		if waited, least := now.Sub(failed), leastWait(&q.policy, failures); waited < least {
			return message{}, fmt.Errorf("%s was retried %s after failure %d: its policy says %s at least", id, waited, failures, least)
		}
	}
	a.redriveID, _ = d.Headers[wire.HeaderID].(string)
	a.seen = append(a.seen, now)
	return a.message, nil
}

// leastWait is what a policy waits at least after a failure.
func leastWait(p *policy.Policy, failures int) time.Duration {
	return time.Duration(float64(p.Backoff.Delay(failures)) * 0.8).Truncate(time.Millisecond)
}

func (l *ledger) failed(id string, failures int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	if _, did := a.failedAt[failures]; !did {
		a.failedAt[failures] = now
	}
	a.seen = append(a.seen, now)
}

func (l *ledger) processed(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	a.processed++
	a.seen = append(a.seen, time.Now())
}

// ends is where messages are at the end: how many copies of each.
type ends struct{ parked, forwarded map[string]int }

// missing are the messages that have not come to where they belong.
func (l *ledger) missing(at ends) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, a := range l.accounts {
		switch {
		case a.fails < a.queue.policy.Attempts && a.processed > 0:
		case a.fails >= a.queue.policy.Attempts && a.ended(at) > 0:
		default:
			all = append(all, fmt.Sprintf("%s of %s (failed %d of %d times)", id, a.queue.name, len(a.failedAt), a.fails))
		}
	}
	slices.Sort(all)
	return all
}

// ended is how often its failures ended as its policy says. That a message was discarded
// no one sees but in its last failure.
func (a *account) ended(at ends) int {
	switch a.queue.policy.Exhausted.Action {
	case policy.Park:
		return at.parked[a.id]
	case policy.Forward:
		return at.forwarded[a.id]
	default:
		_, did := a.failedAt[a.queue.policy.Attempts-1]
		return map[bool]int{true: 1}[did]
	}
}

// wrong is what must not be at the end: messages where they do not belong, and copies that
// no cut explains.
func (l *ledger) wrong(at ends) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, a := range l.accounts {
		if a.fails < a.queue.policy.Attempts && at.parked[id]+at.forwarded[id] > 0 {
			all = append(all, fmt.Sprintf("%s is parked %d and forwarded %d times, and %d attempts were enough", id, at.parked[id], at.forwarded[id], a.fails+1))
		}
		if copies := a.processed + at.parked[id] + at.forwarded[id]; copies > 1 && !l.explained(a) {
			all = append(all, fmt.Sprintf("%s has %d copies at the end, and nothing happened to it when a connection was cut: it was seen at %s, the service had it at %s, and cuts were at %s", id, copies, l.times(a.seen), l.times(l.said[a.redriveID]), l.times(l.cuts)))
		}
	}
	slices.Sort(all)
	return all
}

// explained tells whether something happened to the message within a second of a cut: what has
// no answer then is published or delivered again, and that is allowed.
func (l *ledger) explained(a *account) bool {
	for _, cut := range l.cuts {
		near := func(at time.Time) bool { return at.Sub(cut).Abs() <= time.Second+2*a.queue.handles }
		if slices.ContainsFunc(a.seen, near) || slices.ContainsFunc(l.said[a.redriveID], near) {
			return true
		}
	}
	return false
}

// times are moments as the log has them.
func (l *ledger) times(all []time.Time) (since []time.Duration) {
	for _, at := range all {
		since = append(since, at.Sub(l.start))
	}
	return since
}
