package world

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// faultsEnd is when the last fault has happened; after it all must come to where it belongs.
const faultsEnd = 10 * time.Minute

// scenario is what a seed decides beforehand.
type scenario struct {
	version  string // of RabbitMQ
	onDisk   bool   // the store is on disk; otherwise in memory, and nothing crashes
	queues   []workQueue
	messages []message
	faults   []fault
}

// workQueue is a queue with its policy, its limits and its consumer.
type workQueue struct {
	name      string
	kind      string // classic or quorum
	policy    policy.Policy
	limits    throttle.Rules
	prefetch  int
	handles   time.Duration // how long the consumer takes for a message
	reports   bool          // the consumer reports failures instead of rejecting
	forwardTo string        // the queue that its exhausted messages go to; "": none
}

// message is published once, at a time since the beginning, and its consumer fails it so often.
type message struct {
	id    string
	queue int
	at    time.Duration
	fails int
	size  int
}

type fault struct {
	at   time.Duration
	kind faultKind
	// which of the connections is cut, and behind how many more bytes in that direction.
	conn, bytes int
	down        bool // from RabbitMQ; otherwise to it
	// A crash: how long the process is away, and the chance in percent of each write that was
	// not synced to be on the disk.
	away     time.Duration
	survives int
}

type faultKind int

const (
	cutService faultKind = iota
	cutConsumer
	stopAndStart
	crash
	fullDisk
	faultKinds
)

func (k faultKind) String() string {
	return [...]string{"cut a connection of the service", "cut the consumers' connection", "stop and start", "crash", "the disk is full"}[k]
}

func (f fault) String() string {
	switch f.kind {
	case cutService, cutConsumer:
		way := "to"
		if f.down {
			way = "from"
		}
		return fmt.Sprintf("%s (%d) behind %d bytes %s RabbitMQ", f.kind, f.conn, f.bytes, way)
	case crash:
		return fmt.Sprintf("crash for %s, %d%% of what is not synced survives", f.away, f.survives)
	default:
		return fmt.Sprintf("%s for %s", f.kind, f.away)
	}
}

func newScenario(seed uint64) *scenario {
	r := rand.New(rand.NewPCG(seed, 14))
	s := &scenario{version: pick(r, "3.10.8", "4.3.6"), onDisk: r.IntN(4) > 0}
	for i := range 1 + r.IntN(4) {
		s.queues = append(s.queues, newWorkQueue(r, i))
	}
	for i := range 1 + r.IntN(150) {
		q := r.IntN(len(s.queues))
		s.messages = append(s.messages, message{id: fmt.Sprintf("m%03d", i), queue: q, at: between(r, 0, faultsEnd),
			fails: r.IntN(s.queues[q].policy.Attempts + 1), size: pick(r, 0, 1, 100, 5000, 200_000)})
	}
	for range r.IntN(9) {
		s.faults = append(s.faults, newFault(r, s.onDisk))
	}
	return s
}

func newWorkQueue(r *rand.Rand, i int) workQueue {
	q := workQueue{name: fmt.Sprintf("work.%d", i), kind: pick(r, "classic", "quorum"), prefetch: pick(r, 1, 5, 50),
		handles: pick(r, 0, 0, time.Millisecond, time.Second), reports: r.IntN(4) == 0}
	wait := pick(r, time.Second, 10*time.Second, 3*time.Minute)
	q.policy = policy.Policy{Name: q.name, Queues: []string{q.name}, Attempts: 1 + r.IntN(6), Jitter: policy.Fraction(0.2),
		Backoff: pick(r, policy.Fixed(wait), policy.Linear(wait, wait, time.Hour), policy.Exponential(wait, 2, time.Hour))}
	switch r.IntN(4) {
	case 0:
		q.policy.Exhausted.Action = policy.Discard
	case 1:
		q.forwardTo = "forwarded." + q.name
		q.policy.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: q.forwardTo}}
	}
	if r.IntN(3) == 0 {
		q.limits.Rate = pick(r, 1, 20.0)
	}
	if r.IntN(4) == 0 {
		q.limits.InFlight = pick(r, 1, 10)
	}
	return q
}

func newFault(r *rand.Rand, onDisk bool) fault {
	kinds := int(faultKinds)
	if !onDisk {
		kinds = int(crash)
	}
	return fault{at: between(r, 0, faultsEnd), kind: faultKind(r.IntN(kinds)), conn: r.IntN(8), bytes: pick(r, 0, 1, r.IntN(50), r.IntN(5000)),
		down: r.IntN(2) == 0, away: pick(r, 0, time.Second, time.Minute), survives: pick(r, 0, 50, 100)}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(r.Int64N(int64(to-from)))).Truncate(time.Millisecond)
}
