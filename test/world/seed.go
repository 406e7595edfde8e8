package world

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// faultsEnd is when the last fault has happened; after it all must come to where it belongs.
const faultsEnd = 10 * time.Minute

// mostAttempts is what a policy allows at most.
const mostAttempts = 6

// jitter is that of what waits in the store.
var jitter = policy.Fraction(0.2)

// scenario is what a seed decides beforehand.
type scenario struct {
	seed         uint64
	version      string // of RabbitMQ
	onDisk       bool   // the store is on disk; otherwise in memory
	inRedis      bool   // it is in memory, and stands for Redis; without either nothing crashes
	onRedis      bool   // it is Redis's own, on a Redis in memory
	withoutRedis int    // faults that are there without it
	everySecond  bool   // that Redis syncs each second; otherwise always
	replicas     int    // processes that share the store
	catchAll     bool   // the last policy is for all queues
	queues       []*workQueue
	messages     []message
	faults       []fault
	actions      []action
	hostile      []hostile
}

// workQueue is a queue with its policy, its limits and its consumer.
type workQueue struct {
	name      string
	kind      string // classic or quorum
	policy    policy.Policy
	way       delay.Way // nil: what waits is in the store
	limits    throttle.Rules
	prefetch  int
	handles   time.Duration    // how long the consumer takes for a message
	reports   bool             // the consumer reports failures instead of rejecting
	forwardTo string           // the queue that its exhausted messages go to; "": none
	library   *libraryConsumer // nil: its consumer is without the library
	byPolicy  bool             // a policy of RabbitMQ's dead-letters it to Redrive; otherwise an argument
	most      int              // how many messages it, and forwardTo, has at most; 0: any number
	// withoutRedis is its backoff where the store is not Redis's own; nil: it is the same.
	withoutRedis *policy.Backoff
}

func (q *workQueue) String() string {
	by := "rejects"
	if q.reports {
		by = "reports"
	}
	if q.library != nil {
		by = "is " + q.library.String()
	}
	length := ""
	if q.most > 0 {
		length = fmt.Sprintf(" of at most %d", q.most)
	}
	if q.byPolicy {
		length += ", dead-lettered by a policy"
	}
	return fmt.Sprintf("%s: %s%s, %d attempts %s (%s), then %s, limits: %s; its consumer handles each for %s, %d at a time, and %s", q.name, q.kind, length,
		q.policy.Attempts, q.policy.Backoff, q.waitsIn(), q.policy.Exhausted.Action, q.limits, q.handles, q.prefetch, by)
}

// waitsIn is the name of its way to wait.
func (q *workQueue) waitsIn() string {
	if q.way == nil {
		return retry.InStore
	}
	return q.way.Limits().Name
}

// discards tells whether its policy discards what is out of attempts.
func (q *workQueue) discards() bool { return q.policy.Exhausted.Action == policy.Discard }

// message is published once, at a time since the beginning, and its consumer fails it so often.
type message struct {
	id    string
	queue *workQueue
	at    time.Duration
	fails int
	size  int
	// content is the message whose body it has: its own id, or that of one that was edited.
	content string
	// forged are headers that its publisher should not set.
	forged amqp.Table
	handling
}

func (m message) String() string {
	how := ""
	if m.queue.library != nil {
		how = m.handling.String()
	}
	return fmt.Sprintf("%s to %s, %d bytes, fails %d times %v %s", m.id, m.queue.name, m.size, m.fails, m.forged, how)
}

// body differs from message to message.
func (m message) body() []byte { return bodyOf(m.content, m.size) }

func bodyOf(content string, size int) []byte {
	return bytes.Repeat([]byte(content), size/len(content)+1)[:size]
}

// newScenario draws each kind of thing from random numbers of its own: what is added for one
// leaves the others of a seed as they were.
func newScenario(seed uint64) *scenario {
	r := rand.New(rand.NewPCG(seed, 14))
	s := &scenario{seed: seed, version: pick(r, "3.10.8", "4.3.6"), onDisk: r.IntN(4) > 0}
	for i := range 1 + r.IntN(4) {
		s.queues = append(s.queues, newWorkQueue(r, i))
	}
	for i := range 1 + r.IntN(150) {
		q := s.queues[r.IntN(len(s.queues))]
		s.messages = append(s.messages, message{id: fmt.Sprintf("m%03d", i), queue: q, at: between(r, 0, faultsEnd),
			fails: r.IntN(q.policy.Attempts + 1), size: pick(r, 0, 1, 100, 5000, 200_000), content: fmt.Sprintf("m%03d", i)})
	}
	for range r.IntN(9) {
		s.faults = append(s.faults, newFault(r, s.onDisk))
	}
	s.drawActions(rand.New(rand.NewPCG(seed, 15)))
	s.drawWays(rand.New(rand.NewPCG(seed, 16)))
	s.drawHostile(rand.New(rand.NewPCG(seed, 17)))
	s.drawAlarms(rand.New(rand.NewPCG(seed, 18)), memoryAlarm)
	s.drawTrouble(rand.New(rand.NewPCG(seed, 19)))
	s.drawCatchAll(rand.New(rand.NewPCG(seed, 22)))
	s.drawBulk(rand.New(rand.NewPCG(seed, 21)))
	s.drawImports(rand.New(rand.NewPCG(seed, 23)))
	s.drawClock(rand.New(rand.NewPCG(seed, 20)))
	s.drawLibrary(rand.New(rand.NewPCG(seed, 24)))
	s.drawAlarms(rand.New(rand.NewPCG(seed, 31)), diskAlarm)
	s.drawNodeLoss(rand.New(rand.NewPCG(seed, 25)))
	s.drawFullQueues(rand.New(rand.NewPCG(seed, 26)))
	s.drawRights(rand.New(rand.NewPCG(seed, 27)))
	s.drawBrokerPolicies(rand.New(rand.NewPCG(seed, 28)))
	s.drawDamage(rand.New(rand.NewPCG(seed, 29)))
	s.drawBreakers(rand.New(rand.NewPCG(seed, 34)))
	s.drawLeaderChanges(rand.New(rand.NewPCG(seed, 32)))
	s.drawReplicas(rand.New(rand.NewPCG(seed, 30)))
	s.drawRedis(rand.New(rand.NewPCG(seed, 33)))
	return s
}

// storeName is where the store is.
func (s *scenario) storeName() string {
	switch {
	case s.onDisk:
		return "on disk"
	case s.onRedis && s.everySecond:
		return "Redis's own, synced each second"
	case s.onRedis:
		return "Redis's own, synced always"
	case s.inRedis:
		return "in Redis"
	}
	return "in memory"
}

func newWorkQueue(r *rand.Rand, i int) *workQueue {
	q := &workQueue{name: fmt.Sprintf("work.%d", i), kind: pick(r, "classic", "quorum"), prefetch: pick(r, 1, 5, 50),
		handles: pick(r, 0, 0, time.Millisecond, time.Second), reports: r.IntN(4) == 0}
	wait := pick(r, time.Second, 10*time.Second, 3*time.Minute)
	q.policy = policy.Policy{Name: q.name, Queues: []string{q.name}, Attempts: 1 + r.IntN(mostAttempts), Jitter: jitter,
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

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(r.Int64N(int64(to-from)))).Truncate(time.Millisecond)
}
