package simulate

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// batch is n messages with the same number of attempts, at the same place at the same time. Where
// there is a throttle, a batch is one message with an id.
type batch struct {
	n, attempt int
	id         uint64
}

// queue simulates a work queue with its retries. A message passes the work queue, a call, the wait
// after a failure, the throttle, and the work queue again.
type queue struct {
	Options
	rec    *record
	policy policy.Policy
	up     upstream
	// forever: attempts are not counted, so that what waits is one batch a tick.
	forever  bool
	throttle *throttle.Throttle // nil: all due messages are retried
	random   *rand.Rand

	work    fifo    // in the work queue
	waiting []*fifo // by the tick they are due
	due     fifo    // due, and not allowed by the throttle yet
	arrive  carry
	calls   carry
	next    uint64 // the id of the latest message
	inWait  int    // messages in waiting
	ids     []uuid.UUID
}

const queueName = "simulated"

// epoch is when each simulation begins; any time will do.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(t int) time.Time { return epoch.Add(time.Duration(t) * tick) }

func fixedDelay(ctx context.Context, o Options, rec *record) error {
	p := policy.Policy{Name: "fixed", Queues: []string{"*"}, Attempts: policy.MaxAttempts,
		Backoff: policy.Fixed(o.Fixed), Jitter: policy.None}
	return (&queue{Options: o, rec: rec, policy: p, forever: true}).run(ctx)
}

func backoff(ctx context.Context, o Options, rec *record) error {
	return (&queue{Options: o, rec: rec, policy: o.Policy}).run(ctx)
}

func throttled(ctx context.Context, o Options, rec *record) error {
	q := &queue{Options: o, rec: rec, policy: o.Policy}
	chance := rand.New(rand.NewPCG(o.Seed, 2))
	q.throttle = throttle.New(func(string) throttle.Rules { return o.Rules }, chance.Float64, rec.changed)
	q.throttle.Consumers(queueName, 1, 0, false, at(0))
	return q.run(ctx)
}

func (q *queue) run(ctx context.Context) error {
	ticks := int(q.Duration / tick)
	q.up.Options = q.Options
	q.random, q.waiting = rand.New(rand.NewPCG(q.Seed, 1)), make([]*fifo, ticks)
	for t := range ticks {
		if t%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		q.step(t)
	}
	return nil
}

func (q *queue) step(t int) {
	q.arrivals()
	if b := q.waiting[t]; b != nil {
		q.waiting[t] = nil
		q.inWait -= b.n
		to := &q.work
		if q.throttle != nil {
			to = &q.due
		}
		for b.n > 0 {
			to.push(b.pop(b.n), 1)
		}
	}
	q.retryDue(t)
	q.consume(t)
	q.rec.tick(t, q.work.n, q.inWait+q.due.n)
}

func (q *queue) arrivals() {
	n := q.arrive.whole(q.Rate / float64(ticksPerSecond))
	q.rec.Arrived += int64(n)
	for n > 0 {
		b := batch{n: n, attempt: 1}
		if q.throttle != nil {
			q.next++
			b.n, b.id = 1, q.next
		}
		q.work.push(b, 1)
		n -= b.n
	}
}

// retryDue asks the throttle as the scheduler does, and retries due messages.
func (q *queue) retryDue(t int) {
	const atOnce = 1000
	for q.throttle != nil && q.due.n > 0 {
		n, _ := q.throttle.Allow(queueName, min(q.due.n, atOnce), at(t))
		if n == 0 {
			return
		}
		q.ids = q.ids[:0]
		for range n {
			b := q.due.pop(1)
			q.ids = append(q.ids, idOf(b.id))
			q.work.push(b, 1)
		}
		q.throttle.Retried(queueName, q.ids, at(t))
	}
}

// idOf is the id of a message, as the throttle knows it.
func idOf(n uint64) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

// consume makes the calls of one tick.
func (q *queue) consume(t int) {
	calls := min(q.work.n, q.calls.whole(q.Consumers/float64(ticksPerSecond)))
	// Chance decides which succeed, and not how many.
	succeed := q.round(q.up.serves(t, float64(calls)), calls)
	for left := calls; left > 0; {
		b := q.work.pop(left)
		good := q.round(float64(b.n)*float64(succeed)/float64(left), min(b.n, succeed))
		good = max(good, b.n-(left-succeed))
		left, succeed = left-b.n, succeed-good
		q.rec.called(t, b.attempt == 1, b.n, good)
		if b.n -= good; b.n > 0 {
			q.fail(t, b)
		}
	}
}

// round returns v as a whole number, up to most: by chance the next lower or the next higher.
func (q *queue) round(v float64, most int) int {
	n := int(v)
	if over := v - float64(n); over > 1e-9 && q.random.Float64() < over {
		n++
	}
	return min(n, most)
}

// fail does with messages that failed what the policy decides.
func (q *queue) fail(t int, b batch) {
	if q.throttle != nil {
		q.throttle.Failed(queueName, idOf(b.id), at(t))
	}
	wait := q.policy.Backoff.Delay(b.attempt)
	alike := q.policy.Jitter.Shortest(wait) == q.policy.Jitter.Longest(wait)
	for b.n > 0 {
		some := b
		if !alike {
			some.n = 1
		}
		b.n -= some.n
		v := q.policy.Decide(policy.Failure{Queue: queueName, Reason: policy.Reported, Attempt: some.attempt,
			Seed: q.random.Uint64()})
		if v.Action != policy.Retry {
			b.n += some.n // all of one batch have as many attempts
			q.rec.Parked += int64(b.n)
			return
		}
		if some.attempt++; q.forever {
			some.attempt = 2
		}
		due := t + max(int((v.Delay+tick-1)/tick), 1)
		if due < len(q.waiting) { // otherwise the simulation ends first
			if q.waiting[due] == nil {
				q.waiting[due] = new(fifo)
			}
			q.waiting[due].push(some, 16) // in any order, so that more becomes one batch
		}
		q.inWait += some.n
	}
}

// fifo holds batches in order.
type fifo struct {
	batches []batch
	n       int // messages
}

// push adds b to one of the last near batches with the same number of attempts, or at the end. A
// message with an id remains a batch of its own.
func (f *fifo) push(b batch, near int) {
	f.n += b.n
	if b.id == 0 {
		for i := len(f.batches) - 1; i >= max(0, len(f.batches)-near); i-- {
			if f.batches[i].attempt == b.attempt {
				f.batches[i].n += b.n
				return
			}
		}
	}
	f.batches = append(f.batches, b)
}

// pop removes a batch from the front, or most messages of it.
func (f *fifo) pop(most int) batch {
	b := f.batches[0]
	switch {
	case b.n > most:
		f.batches[0].n -= most
		b.n = most
	case len(f.batches) == 1:
		f.batches = f.batches[:0] // keeps its array
	default:
		f.batches = f.batches[1:]
	}
	f.n -= b.n
	return b
}

// requeue simulates consumers that requeue a message as soon as it has failed: RabbitMQ delivers it
// again at once, so they do little else. Calls are a flow, and not counted singly.
func requeue(ctx context.Context, o Options, rec *record) error {
	var arrive, serve, call carry
	queued, up := 0, upstream{Options: o}
	for t := range int(o.Duration / tick) {
		if t%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		n := arrive.whole(o.Rate / float64(ticksPerSecond))
		rec.Arrived += int64(n)
		queued += n
		able := o.Consumers / float64(ticksPerSecond)
		// As many calls as it takes to serve all, or as many as the consumers can make, since
		// what fails is delivered again in no time.
		var served, made int
		if all := float64(queued) / max(1-o.failing(t), 1e-9); all <= min(able, o.Capacity/float64(ticksPerSecond)) {
			served, made = queued, call.whole(all)
		} else {
			served, made = min(queued, serve.whole(up.serves(t, able))), call.whole(able)
		}
		queued -= served
		// RabbitMQ requeues a message where it was, so what is new waits behind it.
		first := min(n, served)
		rec.called(t, true, n, first)
		rec.called(t, false, max(made, served, n)-n, served-first)
		rec.tick(t, queued, 0)
	}
	return nil
}

// failing returns the share of calls that fail at a tick, whatever the load.
func (o Options) failing(t int) float64 {
	at := time.Duration(t) * tick
	since := at - o.Before - o.Outage // since it is back
	switch {
	case at < o.Before || since >= o.Limp:
		return 0
	case since < 0:
		return 1
	}
	return 1 - float64(since)/float64(o.Limp)
}

// upstream is what the consumers call. Capacity that was not used can be used for a second, since
// few calls make no even flow.
type upstream struct {
	Options
	able float64 // how many calls it can serve now
}

// serves returns how many of the calls in a tick succeed. Those beyond its capacity fail, and use
// some of it where refusing costs something.
func (u *upstream) serves(t int, calls float64) float64 {
	u.able = min(u.able+u.Capacity/float64(ticksPerSecond), max(u.Capacity, 1))
	able := u.able
	if calls > able && u.Refusing > 0 {
		able = max(able-u.Refusing*calls, 0) / max(1-u.Refusing, 1e-9)
	}
	u.able = max(u.able-calls, 0)
	return min(calls, able) * (1 - u.failing(t))
}

// down reports whether a tick is in the outage.
func (o Options) down(t int) bool {
	at := time.Duration(t) * tick
	return at >= o.Before && at < o.Before+o.Outage
}

// longestDrain bounds the length of a drain: with a rate of next to nothing it would be longer than
// a Duration can hold.
const longestDrain = 100 * 365 * 24 * time.Hour

// drained is the part of what the outage left that may wait when it counts as drained.
const drained = 1.0 / 1000

// bestDrain returns how long after the outage its messages would be drained by one who knew when
// it ends, made no call that fails, and kept to the policy's rate; false: never, since new messages
// take all that the upstream can serve.
func (o Options) bestDrain() (time.Duration, bool) {
	left, spare := o.Rate*o.Outage.Seconds(), o.Capacity
	small := left * drained
	if o.Rules.Rate > 0 {
		spare = min(spare, o.Rate+o.Rules.Rate)
	}
	if spare <= o.Rate {
		return 0, false
	}
	back := int((o.Before + o.Outage) / tick)
	t := back
	for ; left > small && o.failing(t) > 0; t++ {
		serves := min(spare, o.Capacity*(1-o.failing(t)))
		left += (o.Rate - serves) / float64(ticksPerSecond)
	}
	rest := math.Ceil(max(left-small, 0) / (spare - o.Rate) * float64(ticksPerSecond))
	return min(time.Duration(t-back)*tick+time.Duration(min(rest, float64(longestDrain/tick)))*tick, longestDrain), true
}

// carry turns a flow into whole numbers, and carries the rest over to the next.
type carry struct{ rest float64 }

func (c *carry) whole(v float64) int {
	c.rest += v
	n := math.Floor(c.rest + 1e-9)
	c.rest -= n
	return int(n)
}
