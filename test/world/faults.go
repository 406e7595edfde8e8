package world

import (
	"fmt"
	"time"
)

// fault is what goes wrong at a time since the beginning.
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
	replica  int // the place of the process that it happens to, or theLeader
	point    point
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
	losesStore
)

func (k faultKind) String() string {
	return [...]string{"cut a connection of the service", "cut the consumers' connection", "stop and start", "crash", "the disk is full",
		"memory alarm", "the store is in trouble", "it loses the store"}[k]
}

func (f fault) String() string {
	whose := fmt.Sprint("replica ", f.replica)
	if f.replica == theLeader {
		whose = "the leader"
	}
	return fmt.Sprintf("%s: %s: %s%s for %s; connection %d behind %d bytes, from RabbitMQ: %t; %d%% of what is not synced survives; %d%% of calls",
		f.at, whose, f.kind, f.point, f.away, f.conn, f.bytes, f.down, f.survives, f.percent)
}

// fail makes a fault happen.
func (w *World) fail(f fault) error {
	w.say("%s", f)
	w.ledger.trouble()
	switch f.kind {
	case cutConsumer:
		f.cut(w.consumers, w.ledger.cut)
	case fullDisk:
		w.disk.full.Store(true)
		time.Sleep(f.away)
		w.disk.full.Store(false)
	case memoryAlarm:
		w.ledger.alarm(f.away)
		w.alarms.Add(1)
		w.broker.SetMemoryAlarm(true)
		w.old.Go(func() {
			if time.Sleep(f.away); w.alarms.Add(-1) == 0 {
				w.broker.SetMemoryAlarm(false)
			}
		})
	case storeTrouble:
		w.ledger.storeTrouble(f.away)
		w.trouble.begin(f.away, f.percent)
	default:
		if p := w.struck(f); p != nil {
			return w.strike(p, f)
		}
	}
	return nil
}

// cut cuts one of a process's connections.
func (f fault) cut(of *network, onCut func()) {
	if open := of.open(); len(open) > 0 {
		open[f.conn%len(open)].CutBehind(f.bytes, f.down, onCut)
	}
}
