package world

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// libraryConsumer is a work queue's consumer that a program in Go runs with the library.
type libraryConsumer struct {
	libraryWay
	concurrency int
	prefetch    int           // 0: the library's default
	batch       int           // how many messages its handler gets at most; 0: one at a time
	timeout     time.Duration // of an attempt; 0: none
	shutdown    time.Duration
}

func (l *libraryConsumer) String() string {
	return fmt.Sprintf("the library (%s), %d handlers, prefetch %d, batches of %d, timeout %s, %s to stop", l.name, l.concurrency, l.prefetch, l.batch, l.timeout, l.shutdown)
}

// libraryWay is where its messages wait.
type libraryWay struct {
	name    string
	way     redrive.Way
	spreads bool // jitter has an effect
	native  bool // RabbitMQ delays and counts what is rejected, in the work queue itself
	service bool // the service decides
}

// failStyle is how a handler fails a message.
type failStyle int

const (
	returnsError failStyle = iota
	panics
	asksForDelay
	exceedsTimeout
	failStyles
)

func (s failStyle) String() string {
	return [...]string{"an error", "a panic", "an error that asks for a delay", "a timeout"}[s]
}

// ending is what a handler says of a message's last failure.
type ending int

const (
	asThePolicySays ending = iota
	discarded
	parked
	notRetried // its error is one that Consumer.Retry does not retry
)

func (e ending) String() string {
	return [...]string{"what the policy says", "discarded", "parked", "not retried"}[e]
}

// handling is how handlers fail a message where its consumer is the library's.
type handling struct {
	style failStyle
	asks  time.Duration // asksForDelay: how long
	ends  ending
}

func (h handling) String() string {
	return fmt.Sprintf("by %s (%s), the last one %s", h.style, h.asks, h.ends)
}

// drawLibrary gives some queues a consumer with the library, in one program, which is cut off, stopped
// and killed.
func (s *scenario) drawLibrary(r *rand.Rand) {
	some := r.IntN(2) == 0
	for _, q := range s.queues {
		l := newLibraryConsumer(r, s.version, q)
		takes := pick(r, q.handles, time.Second)
		if chosen := r.IntN(4) > 0; some && chosen {
			q.library, q.handles = l, takes
		}
	}
	for i := range s.messages {
		s.messages[i].handling = handling{failStyle(r.IntN(int(failStyles))), pick(r, 0, 500*time.Millisecond, 30*time.Second, 20*time.Hour),
			pick(r, asThePolicySays, asThePolicySays, asThePolicySays, discarded, parked, notRetried)}
	}
	for range r.IntN(6) {
		f := newFault(r, true)
		if f.program = programFault(1 + r.IntN(int(programFaults)-1)); some {
			s.faults = append(s.faults, f)
		}
	}
}

// newLibraryConsumer draws one with a way that can keep the queue's policy.
func newLibraryConsumer(r *rand.Rand, version string, q *workQueue) *libraryConsumer {
	l := &libraryConsumer{concurrency: pick(r, 1, 2, 8), timeout: pick(r, 0, 3*time.Second), shutdown: pick(r, 30*time.Second, 5*time.Second, 200*time.Millisecond)}
	l.batch = pick(r, 0, 0, 1, 5)
	l.prefetch = pick(r, 0, 1, 3) * l.concurrency * max(1, l.batch)
	widest := q.policy
	widest.Attempts = mostAttempts // a reload that the way cannot keep is refused
	ways := libraryWays(&q.policy)
	order := r.Perm(len(ways))
	if r.IntN(2) == 0 { // few queues and policies are fit for Native, so half of those have it
		order = append([]int{len(ways) - 1}, order...)
	}
	for _, i := range order {
		l.libraryWay = ways[i]
		if l.native && (version != "4.3.6" || q.kind != "quorum") {
			continue
		}
		if _, err := (redrive.Consumer{Queue: q.name, Policy: widest, Wait: l.way}).Decide(&redrive.Message{}, nil); err == nil {
			break // Levels can keep all policies that are drawn
		}
	}
	return l
}

// libraryWays are those that the library has, but for the plugin's.
func libraryWays(p *policy.Policy) []libraryWay {
	return []libraryWay{
		{name: "levels", way: redrive.Levels()},
		{name: "classic levels", way: redrive.ClassicLevels()},
		{name: "one level", way: redrive.Levels(p.Backoff.Delay(1))},
		{name: "dynamic", way: redrive.Dynamic(), spreads: true},
		{name: "message TTL", way: redrive.MessageTTL()},
		{name: "mixed message TTL", way: redrive.MixedMessageTTL(), spreads: true},
		{name: "binary", way: redrive.Binary(time.Second), spreads: true},
		{name: "service", way: redrive.Service(), spreads: true, service: true},
		{name: "native", way: redrive.Native(), native: true}, // the last, see newLibraryConsumer
	}
}

// arguments are those that a work queue is declared with.
func (q *workQueue) arguments() amqp.Table {
	args := withMost(amqp.Table{"x-queue-type": q.kind}, q.most)
	if !q.byPolicy {
		args["x-dead-letter-exchange"] = wire.ExchangeDeadLetters
	}
	if q.library != nil && q.library.native {
		b := q.policy.Backoff
		maps.Copy(args, redrive.NativeArguments(b.Delay(1), b.Max()))
	}
	return args
}

// waits is how long a message waits after a failure at least and at most, before it is rounded up.
// attempts is how many its policy allows.
func (a *account) waits(failures, attempts int) (least, most time.Duration) {
	p, l := a.queue.policy, a.queue.library
	if l != nil && !l.spreads {
		p.Jitter = policy.None
	}
	if l == nil || l.native || a.handling.style != asksForDelay || l.service && a.handling.asks == 0 {
		return leastWait(&p, failures), p.Jitter.Longest(p.Backoff.Delay(failures))
	}
	for n := range attempts - 1 {
		most = max(most, p.Backoff.Delay(n+1))
	}
	most = min(a.handling.asks, most)
	return most.Truncate(time.Millisecond), most
}

// roundUp is how long the library's way to wait may make a wait.
func (l *libraryConsumer) roundUp(wait time.Duration) time.Duration {
	limits := l.way.Limits()
	for _, level := range limits.Levels {
		if level >= wait {
			return level
		}
	}
	if l.name == "dynamic" {
		wait += wait / 10 // two digits
	}
	return wait + limits.Step
}

// lateInLibrary is late where the library has the message wait in RabbitMQ, and its handlers are never
// busy. l.mu is held.
func (l *ledger) lateInLibrary(a *account, failures int, failed, now time.Time) error {
	q := a.queue
	blocks := q.library.way.Limits().Blocks
	if q.library.service || blocks || q.library.timeout > 0 || q.handles > 0 || a.life().byQueue > 0 || !l.calm(q, failed, now) {
		return nil
	}
	for _, other := range l.scenario.actions {
		if at := l.start.Add(settling + other.at); other.verb == reload && !at.After(now) && at.Add(time.Minute).After(failed) {
			return nil
		}
	}
	_, attempts := l.allowed(q, failed, now)
	_, most := a.waits(failures, attempts)
	if latest := failed.Add(q.library.roundUp(most) + lateBy); now.After(latest) {
		return fmt.Errorf("%s was retried %s after failure %d: that is after %s, when it was due at the latest", a.id, now.Sub(failed), failures, latest.Sub(l.start))
	}
	return nil
}

// endedByHandler tells what its handler says of the last failure of the message's life, and of which attempt that is.
func (a *account) endedByHandler() (by ending, attempt int) {
	if a.queue.library == nil || a.life().fails == 0 {
		return asThePolicySays, 0
	}
	return a.handling.ends, a.life().fails
}

// discardedByHandler tells whether its handler discarded it, of which only the failure is to be seen.
func (a *account) discardedByHandler() bool {
	by, attempt := a.endedByHandler()
	_, failed := a.life().failedAt[attempt-1]
	return by == discarded && failed
}

// firstExchange and firstKey are what a message is first published by. Where the consumer is the
// library's, neither is the queue's name, so that it shows whether the library restores them.
func (q *workQueue) firstExchange() string {
	if q.library == nil {
		return ""
	}
	return "first." + q.name
}

func (q *workQueue) firstKey() string {
	if q.library == nil {
		return q.name
	}
	return "key." + q.name
}

// parkedByHandler tells whether it is parked by what its handler says.
func (a *account) parkedByHandler() bool {
	by, attempt := a.endedByHandler()
	_, failed := a.life().failedAt[attempt-1]
	return failed && (by == parked || by == notRetried)
}
