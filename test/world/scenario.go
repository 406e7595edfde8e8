package world

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

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
	seed     uint64
	version  string // of RabbitMQ
	onDisk   bool   // the store is on disk; otherwise in memory, where it does what Redis's does
	replicas int    // processes that share the store
	queues   []*workQueue
	messages []message
	faults   []fault
	actions  []action
}

// workQueue is a queue with its policy, its limits and its consumer.
type workQueue struct {
	name      string
	kind      string // classic or quorum
	policy    policy.Policy
	way       delay.Way // nil: what waits is in the store
	limits    throttle.Rules
	prefetch  int
	handles   time.Duration // how long the consumer takes for a message
	reports   bool          // the consumer reports failures instead of rejecting
	forwardTo string        // the queue that its exhausted messages go to; "": none
}

func (q *workQueue) String() string {
	return fmt.Sprintf("%s: %s, %d attempts %s (%s), then %s, limits: %s; its consumer handles each for %s, %d at a time, and reports: %t",
		q.name, q.kind, q.policy.Attempts, q.policy.Backoff, q.waitsIn(), q.policy.Exhausted.Action, q.limits, q.handles, q.prefetch, q.reports)
}

// waitsIn is the name of its way to wait.
func (q *workQueue) waitsIn() string {
	if q.way == nil {
		return retry.InStore
	}
	return q.way.Limits().Name
}

// message is published once, at a time since the beginning, and its consumer fails it so often.
type message struct {
	id    string
	queue *workQueue
	at    time.Duration
	fails int
	size  int
	// content is the message whose body it has: its own id, or that of one that was edited.
	content string
}

func (m message) String() string {
	return fmt.Sprintf("%s: %s to %s, %d bytes, fails %d times", m.at, m.id, m.queue.name, m.size, m.fails)
}

// body differs from message to message.
func (m message) body() []byte { return bodyOf(m.content, m.size) }

func bodyOf(content string, size int) []byte {
	return bytes.Repeat([]byte(content), size/len(content)+1)[:size]
}

func newRandom(seed, of uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, of)) }

// newScenario draws each kind of thing from random numbers of its own: what is added or removed of one
// leaves the others of a seed as they were.
func newScenario(seed uint64) *scenario {
	r := newRandom(seed, 14)
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
	s.drawActions(newRandom(seed, 15))
	s.drawWays(newRandom(seed, 16))
	s.drawAlarms(newRandom(seed, 18))
	s.drawTrouble(newRandom(seed, 19))
	s.drawBreakers(newRandom(seed, 34))
	s.drawReplicas(newRandom(seed, 30))
	s.drawPoints(newRandom(seed, 45))
	return s
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

func newFault(r *rand.Rand, onDisk bool) fault {
	kinds := int(memoryAlarm)
	if !onDisk {
		kinds = int(crash)
	}
	return fault{at: between(r, 0, faultsEnd), kind: faultKind(r.IntN(kinds)), conn: r.IntN(8), bytes: pick(r, 0, 1, r.IntN(50), r.IntN(5000)),
		down: r.IntN(2) == 0, away: pick(r, 0, time.Second, time.Minute), survives: pick(r, 0, 50, 100)}
}

func (s *scenario) drawActions(r *rand.Rand) {
	for range max(0, r.IntN(20)-5) {
		s.actions = append(s.actions, action{at: between(r, time.Minute, faultsEnd), verb: verb(r.IntN(int(verbCount))), nth: r.IntN(100),
			later: pick(r, 0, 0, time.Minute), heals: r.IntN(2) == 0, size: pick(r, -1, 0, 50), queue: s.queues[r.IntN(len(s.queues))], attempts: 1 + r.IntN(mostAttempts)})
	}
}

// drawWays has the messages of some queues wait in RabbitMQ, as far as their policies can be kept
// there.
func (s *scenario) drawWays(r *rand.Rand) {
	some := r.IntN(3) > 0
	for _, q := range s.queues {
		of := r.Perm(len(newWays))
		if chosen := r.IntN(3) > 0; !some || !chosen {
			continue
		}
		for _, i := range of {
			p, way := q.policy, newWays[i](&q.policy)
			if !way.Limits().Spreads() {
				p.Jitter = policy.None
			}
			widest := p
			widest.Attempts = mostAttempts // a reload that the way cannot keep is refused
			if way.Limits().Check(&widest) == nil {
				q.policy, q.way = p, way
				break
			}
		}
	}
}

// newWays make those that the config has, but for the plugin's.
var newWays = []func(*policy.Policy) delay.Way{
	func(*policy.Policy) delay.Way { return must(delay.NewLevels(delay.Quorum)) },
	func(p *policy.Policy) delay.Way {
		return must(delay.NewFixed(delay.Quorum, p.Backoff.Delay(1)))
	},
	func(*policy.Policy) delay.Way { return must(delay.NewDynamic(100 * time.Millisecond)) },
	func(*policy.Policy) delay.Way { return delay.NewMessageTTL(delay.Quorum, false) },
	func(*policy.Policy) delay.Way { return must(delay.NewLadder(time.Second)) },
}

func must[W delay.Way](way W, err error) delay.Way {
	if err != nil {
		panic(err) // its arguments are constants, or were checked
	}
	return way
}

// drawAlarms makes RabbitMQ short of memory, for a while.
func (s *scenario) drawAlarms(r *rand.Rand) {
	for range max(0, r.IntN(5)-2) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: memoryAlarm, away: pick(r, time.Second, 20*time.Second, 3*time.Minute)})
	}
}

// drawTrouble has the store fail, answer late and, in Redis, lose answers; there the service crashes too.
func (s *scenario) drawTrouble(r *rand.Rand) {
	most := 1
	if !s.onDisk {
		most = 4
		for range r.IntN(3) {
			s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: crash, away: pick(r, 0, time.Second, time.Minute)})
		}
	}
	for range r.IntN(most + 1) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: storeTrouble,
			away: pick(r, time.Second, 10*time.Second, time.Minute), percent: pick(r, 5, 30, 80, 100)})
	}
}

// drawBreakers gives some queues circuit breakers, which their consumers' failures open.
func (s *scenario) drawBreakers(r *rand.Rand) {
	for _, q := range s.queues {
		b := throttle.Breaker{FailureRatio: pick(r, 0.2, 0.5), MinRetries: pick(r, 2, 5), Window: pick(r, 10*time.Second, 5*time.Minute),
			Wait: pick(r, time.Second, 10*time.Second), MaxWait: time.Minute, Probes: pick(r, 1, 3), Ramp: pick(r, 0, 10*time.Second, time.Minute)}
		settle := pick(r, time.Second, 30*time.Second)
		if r.IntN(4) == 0 && q.way == nil {
			q.limits.Breaker, q.limits.Settle = &b, settle
		}
	}
}

// drawReplicas has one to three replicas where they can share the store. Faults and people's actions
// fall on any of them.
func (s *scenario) drawReplicas(r *rand.Rand) {
	if s.replicas = 1; !s.onDisk {
		s.replicas = pick(r, 1, 2, 2, 3, 3)
	}
	if s.replicas == 1 {
		return
	}
	for i, f := range s.faults {
		if f.kind == cutService || f.kind == stopAndStart || f.kind == crash {
			s.faults[i].replica = r.IntN(s.replicas)
		}
	}
	for range r.IntN(9) {
		s.faults = append(s.faults, s.replicaFault(r, between(r, 0, faultsEnd)))
	}
	for i := range s.actions {
		s.actions[i].replica = r.IntN(s.replicas)
	}
}

// drawPoints has the service crash at chosen points of its work, where it is alone.
func (s *scenario) drawPoints(r *rand.Rand) {
	for range r.IntN(4) {
		f := fault{at: between(r, 0, faultsEnd), kind: crash, point: point(1 + r.IntN(int(pointCount)-1)),
			away: pick(r, 0, time.Second, time.Minute), survives: pick(r, 0, 50, 100)}
		if s.replicas == 1 {
			s.faults = append(s.faults, f)
		}
	}
}

// replicaFault is a crash or a stop of one, also for good; or it loses the store, for less or more than a leader's term, a lease, and the heartbeats of a connection.
func (s *scenario) replicaFault(r *rand.Rand, at time.Duration) fault {
	f := fault{at: at, kind: pick(r, crash, crash, stopAndStart, losesStore, losesStore), replica: pick(r, theLeader, r.IntN(s.replicas))}
	if f.kind == crash {
		f.point = point(r.IntN(int(pointCount)))
	}
	if f.away = pick(r, time.Second, 10*time.Second, 50*time.Second, 3*time.Minute); f.kind == losesStore {
		f.percent = 100
	} else if r.IntN(4) == 0 {
		f.away = forGood
	}
	return f
}

// only leaves out the faults, actions and messages that are not named: f2, a0, m14.
func (s *scenario) only(parts []string) *scenario {
	if len(parts) > 0 {
		s.faults, s.actions, s.messages = named(s.faults, "f", parts), named(s.actions, "a", parts), named(s.messages, "m", parts)
	}
	return s
}

func named[T any](all []T, kind string, parts []string) (some []T) {
	for i, one := range all {
		if slices.Contains(parts, fmt.Sprint(kind, i)) {
			some = append(some, one)
		}
	}
	return some
}

// Parts names all that can be left out of a seed's scenario.
func Parts(seed uint64) (all []string) {
	s := newScenario(seed)
	for i, kind := range []string{"f", "a", "m"} {
		for n := range []int{len(s.faults), len(s.actions), len(s.messages)}[i] {
			all = append(all, fmt.Sprint(kind, n))
		}
	}
	return all
}

// Shrink leaves out what parts it can while the rest still fails, halves first and then one by one, until then.
func Shrink(parts []string, fails func(parts []string) bool, until time.Time) []string {
	for size := len(parts); size > 0; size /= 2 {
		for from := 0; from < len(parts) && time.Now().Before(until); {
			fewer := slices.Concat(parts[:from], parts[min(from+size, len(parts)):])
			if len(fewer) > 0 && fails(fewer) {
				parts = fewer
			} else {
				from += size
			}
		}
	}
	return parts
}

// Describe is a scenario in lines.
func Describe(seed uint64, parts []string) string {
	s := newScenario(seed).only(parts)
	where := map[bool]string{true: "on disk", false: "in Redis"}[s.onDisk]
	return fmt.Sprintf("RabbitMQ %s, the store %s, %d replicas\n", s.version, where, s.replicas) +
		lines(s.queues) + lines(s.faults) + lines(s.actions) + lines(s.messages)
}

func lines[T any](all []T) (text string) {
	for _, one := range all {
		text += fmt.Sprintln(one)
	}
	return text
}
