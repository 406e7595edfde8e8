package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

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
	percent  int          // of the calls of a store that is in trouble
	program  programFault // instead of kind: it happens to the consumer program
	replica  int          // the place of the process that it happens to, or theLeader
	point    point
	queue    *workQueue // that it is about; nil: all
	right    right      // that is taken
	policy   brokerPolicy
	damage   damage
	loads    time.Duration // Redis, when it starts again
}

type faultKind int

const (
	cutService faultKind = iota
	cutConsumer
	stopAndStart
	crash
	fullDisk
	memoryAlarm // drawn apart, as those below
	storeTrouble
	clockJumps
	diskAlarm
	leaderChange
	stalls // a replica
	losesStore
	nodeKilled
	nodeStopped
	consumerAway
	rightTaken
	policySet
	queueDeleted
	damaged
	redisCrash
)

func (k faultKind) String() string {
	return [...]string{"cut a connection of the service", "cut the consumers' connection", "stop and start", "crash", "the disk is full", "memory alarm", "the store is in trouble", "the service's clock jumps", "disk alarm",
		"a quorum queue's leader changes", "it stands still", "it loses the store",
		"RabbitMQ is killed", "RabbitMQ is stopped", "a consumer is away", "the service may not", "a policy of RabbitMQ's", "a person deletes", "the store is damaged", "Redis crashes"}[k]
}

func (f fault) String() string {
	switch f.program {
	case stopProgram, killProgram:
		return fmt.Sprintf("%s for %s", f.program, f.away)
	case cutProgram:
		return fmt.Sprintf("%s, %s", f.program, f.where())
	case removeBinding:
		return fmt.Sprintf("%s, that of %s", f.program, f.unbound())
	}
	switch f.kind {
	case cutService, cutConsumer:
		return fmt.Sprintf("%s%s, %s", f.whose(), f.kind, f.where())
	case crash:
		return fmt.Sprintf("%scrash for %s%s, %d%% of what is not synced survives", f.whose(), f.forHowLong(), f.point, f.survives)
	case storeTrouble:
		return fmt.Sprintf("%s for %s: %d%% of its calls fail, are late or are not answered", f.kind, f.away, f.percent)
	case redisCrash:
		return fmt.Sprintf("%s for %s and loads for %s, %d%% of what is not synced survives", f.kind, f.away, f.loads, f.survives)
	case clockJumps:
		return fmt.Sprintf("%s by %s", f.kind, f.away)
	case damaged:
		return fmt.Sprintf("%s: %s", f.kind, f.damage)
	case queueDeleted:
		return fmt.Sprintf("%s %s, and declares it again after %s", f.kind, f.queue.name, f.away)
	case policySet:
		return fmt.Sprintf("%s %s of %s for %s", f.kind, f.policy, f.queue.name, f.away)
	case rightTaken:
		if f.queue != nil {
			return fmt.Sprintf("%s %s to %s for %s", f.kind, f.right, f.queue.name, f.away)
		}
		return fmt.Sprintf("%s %s for %s", f.kind, f.right, f.away)
	case consumerAway:
		return fmt.Sprintf("%s for %s: that of %s", f.kind, f.away, f.queue.name)
	default:
		return fmt.Sprintf("%s%s for %s%s", f.whose(), f.kind, f.forHowLong(), f.point)
	}
}

func (f fault) name() string {
	if f.program != 0 {
		return f.program.String()
	}
	switch f.kind {
	case stalls:
		return "a replica stands still"
	case losesStore:
		return "a replica loses the store"
	case rightTaken:
		return "the service may not publish, consume or declare"
	case policySet:
		return "a policy of RabbitMQ's is set"
	case queueDeleted:
		return "a person deletes a queue"
	}
	return f.kind.String()
}

// where a connection is cut.
func (f fault) where() string {
	way := "to"
	if f.down {
		way = "from"
	}
	return fmt.Sprintf("number %d behind %d bytes %s RabbitMQ", f.conn, f.bytes, way)
}

func newFault(r *rand.Rand, onDisk bool) fault {
	kinds := int(memoryAlarm)
	if !onDisk {
		kinds = int(crash)
	}
	return fault{at: between(r, 0, faultsEnd), kind: faultKind(r.IntN(kinds)), conn: r.IntN(8), bytes: pick(r, 0, 1, r.IntN(50), r.IntN(5000)),
		down: r.IntN(2) == 0, away: pick(r, 0, time.Second, time.Minute), survives: pick(r, 0, 50, 100)}
}

// drawAlarms makes RabbitMQ short of memory or disk, for a while.
func (s *scenario) drawAlarms(r *rand.Rand, kind faultKind) {
	for range max(0, r.IntN(5)-2) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: kind, away: pick(r, time.Second, 20*time.Second, 3*time.Minute)})
	}
}

// drawTrouble puts what is not on disk into Redis, or not; and has the store fail, answer late and,
// in Redis, lose answers.
func (s *scenario) drawTrouble(r *rand.Rand) {
	s.inRedis = !s.onDisk && r.IntN(4) > 0
	most := 1
	if s.inRedis {
		most = 4
		for range r.IntN(3) {
			s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: crash, away: pick(r, 0, time.Second, time.Minute)})
		}
	}
	for range r.IntN(most + 1) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: storeTrouble, away: pick(r, time.Second, 10*time.Second, time.Minute), percent: pick(r, 5, 30, 80, 100)})
	}
}

// fail makes a fault happen.
func (w *World) fail(ctx context.Context, f fault) error {
	w.say("%s", f)
	switch f.kind {
	case clockJumps:
		w.clock.jump(f.away)
		return nil
	case consumerAway:
		w.absences.begin(f.queue, f.away)
		return nil
	case policySet:
		return w.policyFor(f)
	case queueDeleted:
		w.old.Go(func() { w.deleteQueue(ctx, f) })
		return nil
	}
	if f.program != 0 {
		return w.failProgram(f)
	}
	w.ledger.trouble()
	switch f.kind {
	case cutConsumer:
		f.cut(w.consumers, w.ledger.cut)
	case fullDisk:
		w.disk.full.Store(true)
		time.Sleep(f.away)
		w.disk.full.Store(false)
	case memoryAlarm, diskAlarm, leaderChange:
		w.alarm(f)
	case storeTrouble:
		w.ledger.storeTrouble(f.away)
		w.trouble.begin(f.away, f.percent)
	case nodeKilled, nodeStopped:
		w.endNode(f)
	case rightTaken:
		return w.takeRight(f)
	case redisCrash:
		w.crashRedis(f)
	default:
		if p := w.struck(f); p != nil {
			return w.strike(p, f)
		}
	}
	return nil
}

// cut cuts one of a process's connections.
func (f fault) cut(of *network, onCut func()) {
	open := of.open()
	if len(open) == 0 {
		return
	}
	up, down := f.bytes, -1
	if f.down {
		up, down = -1, f.bytes
	}
	open[f.conn%len(open)].arm(up, down, onCut)
}

// alarm is RabbitMQ's, until the last one is over; or what is the same to a client, a queue without a
// leader.
func (w *World) alarm(f fault) {
	w.ledger.alarm(f.away)
	switch f.kind {
	case leaderChange:
		w.changeLeader(f)
	case diskAlarm:
		w.broker.SetDiskAlarm(true)
	default:
		w.broker.SetMemoryAlarm(true)
	}
	w.old.Go(func() {
		time.Sleep(f.away)
		if w.ledger.alarmOver() {
			w.broker.SetMemoryAlarm(false)
			w.broker.SetDiskAlarm(false)
		}
	})
}
