package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// drawFullQueues limits the length of some work queues and forward targets, which reject what is
// published then, and has consumers go away for a while. A queue whose messages wait in RabbitMQ is
// not limited: RabbitMQ tries again only every three minutes to move a message there, 32 at a time.
func (s *scenario) drawFullQueues(r *rand.Rand) {
	some := r.IntN(2) == 0
	for _, q := range s.queues {
		most := pick(r, 0, 1, 3, 10)
		if some && q.way == nil && q.library == nil {
			q.most = most
		}
	}
	for range max(0, r.IntN(5)-2) {
		f := fault{at: between(r, 0, faultsEnd), kind: consumerAway, away: pick(r, 10*time.Second, time.Minute, 5*time.Minute), queue: s.queues[r.IntN(len(s.queues))]}
		if f.queue.library == nil { // a program of its own is stopped otherwise
			s.faults = append(s.faults, f)
		}
	}
}

// FullQueue tells whether a seed's scenario has a queue that is full while its consumer is away, for a
// minute at least, and another one that nothing of its own delays; and names the parts for that alone.
func FullQueue(seed uint64) (parts []string, has bool) {
	parts = []string{"q", "m", "b"}
	s := newScenario(seed)
	for i, f := range s.faults {
		if f.kind != consumerAway {
			continue
		}
		parts = append(parts, fmt.Sprint("f", i))
		fails := map[*workQueue]int{}
		for _, m := range s.messages {
			if m.fails > 0 && m.at < f.at+f.away {
				fails[m.queue]++
			}
		}
		for q, n := range fails {
			has = has || q.isPunctual() && n > 4 && f.queue.most > 0 && fails[f.queue] > f.queue.most && f.away >= time.Minute
		}
	}
	return parts, has
}

// withMost limits a queue to so many messages; 0: any number.
func withMost(args amqp.Table, most int) amqp.Table {
	if most > 0 {
		args["x-max-length"], args["x-overflow"] = int64(most), "reject-publish"
	}
	return args
}

// absences are the consumers that are away.
type absences struct {
	mu    sync.Mutex
	until map[*workQueue]time.Time
	leave map[*workQueue]chan struct{} // closed when the consumer is to leave
}

func newAbsences() *absences {
	return &absences{until: map[*workQueue]time.Time{}, leave: map[*workQueue]chan struct{}{}}
}

// begin has a queue's consumer leave, for a while.
func (a *absences) begin(q *workQueue, lasts time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if until := time.Now().Add(lasts); until.After(a.until[q]) {
		a.until[q] = until
	}
	if leave := a.leave[q]; leave != nil {
		close(leave)
		delete(a.leave, q)
	}
}

// over ends all absences of a queue's consumer.
func (a *absences) over(q *workQueue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.until, q)
}

// end waits until a queue's consumer is there; leave is closed when it is to leave.
func (a *absences) end(ctx context.Context, q *workQueue) (leave <-chan struct{}) {
	for {
		a.mu.Lock()
		lasts := time.Until(a.until[q])
		if lasts <= 0 {
			if a.leave[q] == nil {
				a.leave[q] = make(chan struct{})
			}
			defer a.mu.Unlock()
			return a.leave[q]
		}
		a.mu.Unlock()
		if pauseFor(ctx, min(lasts, time.Second)) != nil { // it may end before
			return nil
		}
	}
}

// overtakes is how much later than another message of its queue one may be due that is retried
// before it: those published together may overtake each other, and one that was refused is
// published again within the longest backoff.
const overtakes = 2 * time.Minute

// overtaken checks that the messages of a queue are retried in the order in which they are due, also
// where RabbitMQ refused some. l.mu is held.
func (l *ledger) overtaken(of *account, failures int) error {
	q := of.queue
	if _, gone := l.gone[q]; failures == 0 || q.way != nil || q.library != nil || !of.plain() || l.byItself[q] || gone {
		return nil
	}
	failed := of.life().failedAt[failures-1]
	early, _ := l.clock.rise(failed, time.Now())
	due := failed.Add(leastWait(&q.policy, failures) - early)
	for _, other := range l.accounts {
		n := other.waiting
		if n == 0 || other == of || other.queue != q || !other.plain() {
			continue
		}
		failed := other.life().failedAt[n-1]
		stored, is := other.storedSince(failed)
		if least, _ := l.allowed(q, failed, time.Now()); n >= least || !is {
			continue
		}
		_, fall := l.clock.rise(failed, time.Now())
		if latest := stored.Add(q.policy.Jitter.Longest(q.policy.Backoff.Delay(n)) + fall + overtakes); latest.Before(due) && !l.explained(other) {
			return fmt.Errorf("%s was retried, which was due at %s at the earliest, and %s is not yet, which was due before %s", of.id, due.Sub(l.start), other.id, latest.Sub(l.start))
		}
	}
	return nil
}

// storedSince is when the intake had stored what failed then; false: it has not yet.
func (a *account) storedSince(failed time.Time) (at time.Time, is bool) {
	if of := a.doubts["intake"]; len(of) > 0 {
		at = of[len(of)-1].to
	}
	return at, at.After(failed)
}

// plain tells whether no person has done anything to a message.
func (a *account) plain() bool {
	return len(a.lives) == 1 && len(a.life().hastened) == 0 && a.edits == 0 && !a.discarded && !a.restored
}

// isPunctual tells whether nothing of a queue's own may delay its retries.
func (q *workQueue) isPunctual() bool {
	return q.way == nil && q.handles == 0 && q.limits == (throttle.Rules{}) && q.most == 0
}
