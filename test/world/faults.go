package world

import (
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
	percent  int // of the calls of a store that is in trouble
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
)

func (k faultKind) String() string {
	return [...]string{"cut a connection of the service", "cut the consumers' connection", "stop and start", "crash", "the disk is full", "memory alarm", "the store is in trouble", "the service's clock jumps"}[k]
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
	case storeTrouble:
		return fmt.Sprintf("%s for %s: %d%% of its calls fail, are late or are not answered", f.kind, f.away, f.percent)
	case clockJumps:
		return fmt.Sprintf("%s by %s", f.kind, f.away)
	default:
		return fmt.Sprintf("%s for %s", f.kind, f.away)
	}
}

func newFault(r *rand.Rand, onDisk bool) fault {
	kinds := int(memoryAlarm)
	if !onDisk {
		kinds = int(crash)
	}
	return fault{at: between(r, 0, faultsEnd), kind: faultKind(r.IntN(kinds)), conn: r.IntN(8), bytes: pick(r, 0, 1, r.IntN(50), r.IntN(5000)),
		down: r.IntN(2) == 0, away: pick(r, 0, time.Second, time.Minute), survives: pick(r, 0, 50, 100)}
}

// drawAlarms makes RabbitMQ short of memory, for a while.
func (s *scenario) drawAlarms(r *rand.Rand) {
	for range max(0, r.IntN(5)-2) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: memoryAlarm, away: pick(r, time.Second, 20*time.Second, 3*time.Minute)})
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
func (w *World) fail(f fault) error {
	w.say("%s", f)
	if f.kind == clockJumps {
		w.clock.jump(f.away)
		return nil
	}
	w.ledger.trouble()
	switch f.kind {
	case cutService, cutConsumer:
		of := w.process.network
		if f.kind == cutConsumer {
			of = w.consumers
		}
		open := of.open()
		if len(open) == 0 {
			return nil
		}
		up, down := f.bytes, -1
		if f.down {
			up, down = -1, f.bytes
		}
		open[f.conn%len(open)].arm(up, down, w.ledger.cut)
		return nil
	case crash:
		w.ledger.cut()
		crashed := w.process
		w.disk = crashed.crash(w.disk, f.survives, w.random)
		w.old.Go(func() { _ = crashed.end() }) // its disk is gone: whatever it says is of no account
	case fullDisk:
		w.disk.full.Store(true)
		time.Sleep(f.away)
		w.disk.full.Store(false)
		return nil
	case memoryAlarm:
		w.ledger.alarm(f.away)
		w.broker.SetMemoryAlarm(true)
		w.old.Go(func() {
			time.Sleep(f.away)
			if w.ledger.alarmOver() {
				w.broker.SetMemoryAlarm(false)
			}
		})
		return nil
	case storeTrouble:
		w.ledger.storeTrouble(f.away)
		w.trouble.begin(f.away, f.percent)
		return nil
	default:
		if err := w.process.end(); err != nil {
			return fmt.Errorf("stopping: %w", err)
		}
		w.ledger.stopped()
	}
	time.Sleep(f.away)
	return w.start()
}
