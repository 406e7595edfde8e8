package world

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// theLeader is the place of the replica that leads when a fault happens.
	theLeader = -1
	// forGood is how long a replica is away that does not come back.
	forGood = -time.Second
)

// drawReplicas has one to three replicas where they can share the store. Faults and people's actions
// fall on any of them; the leader has some of its own, also in the middle of an operation.
func (s *scenario) drawReplicas(r *rand.Rand) {
	if s.replicas = 1; s.inRedis {
		s.replicas = pick(r, 1, 2, 2, 3, 3)
	}
	if s.replicas == 1 {
		return
	}
	for i, f := range s.faults {
		if f.program == 0 && (f.kind == cutService || f.kind == stopAndStart || f.kind == crash) {
			s.faults[i].replica = r.IntN(s.replicas)
		}
	}
	for range r.IntN(6) {
		s.faults = append(s.faults, s.replicaFault(r, between(r, 0, faultsEnd)))
	}
	for range r.IntN(4) {
		s.actions = append(s.actions, s.newBulk(r, between(r, time.Minute, faultsEnd)))
	}
	for i, a := range s.actions {
		s.actions[i].replica = r.IntN(s.replicas)
		if a.verb != bulk || r.IntN(4) == 0 {
			continue
		}
		f := s.replicaFault(r, a.at+between(r, 0, 10*time.Second))
		if f.replica = theLeader; f.point != anywhere {
			f.at, f.point = a.at, pick(r, changing, changed)
		}
		s.faults = append(s.faults, f)
	}
}

// replicaFault is a crash or a stop of one, also for good; or it stands still or loses the store, for
// less or more than a leader's term, a lease, and the heartbeats of a connection.
func (s *scenario) replicaFault(r *rand.Rand, at time.Duration) fault {
	f := fault{at: at, kind: pick(r, crash, stopAndStart, stalls, stalls, losesStore), replica: pick(r, theLeader, r.IntN(s.replicas))}
	if f.kind == crash || f.kind == stalls {
		f.point = point(r.IntN(int(pointCount)))
	}
	if f.away = pick(r, time.Second, 10*time.Second, 50*time.Second, 3*time.Minute); f.kind == losesStore {
		f.percent = 100
	} else if f.kind != stalls && r.IntN(4) == 0 {
		f.away = forGood
	}
	return f
}

// replicas are the processes of the service, each in its place; nil: that one is away.
type replicas struct {
	mu  sync.Mutex
	all []*process
}

func newReplicas(n int) *replicas { return &replicas{all: make([]*process, n)} }

// at is the process in a place, or nil.
func (r *replicas) at(place int) *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[place]
}

// put puts a process into a place, nil for none, and returns the one that was there.
func (r *replicas) put(place int, p *process) (was *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, r.all[place] = r.all[place], p
	return was
}

// running are those that are not away.
func (r *replicas) running() []*process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.all), func(p *process) bool { return p == nil })
}

// start starts a process of the service in a place, on the disk as it is. One whose store does not
// answer is started again, as its supervisor does.
func (w *World) start(place int) error {
	var p *process
	err := w.repeat(func() (err error) { p, err = w.startProcess(place); return err })
	if err == nil {
		w.replicas.put(place, p)
	}
	return err
}

// whose is the replica that a fault is about, unless it is the first one or RabbitMQ.
func (f fault) whose() string {
	switch {
	case f.replica == theLeader:
		return "the leader: "
	case f.replica > 0:
		return fmt.Sprintf("replica %d: ", f.replica)
	}
	return ""
}

func (f fault) forHowLong() string {
	if f.away == forGood {
		return "good"
	}
	return f.away.String()
}

// startAgain starts a process that was ended, when it was away for a while; where there are others,
// they go on meanwhile.
func (w *World) startAgain(place int, away time.Duration, end func() error) error {
	again := func() error {
		if err := end(); err != nil {
			return fmt.Errorf("stopping: %w", err)
		}
		if away == forGood {
			return nil
		}
		time.Sleep(away)
		return w.start(place)
	}
	if w.scenario.replicas == 1 {
		return again()
	}
	w.returning.Go(func() {
		if err := again(); err != nil {
			w.broken(err)
		}
	})
	return nil
}

// struck is the process that a fault is about; nil: it is away, or the last one, which cannot go for
// good.
func (w *World) struck(f fault) *process {
	all := w.replicas.running()
	i := slices.IndexFunc(all, func(p *process) bool {
		if f.replica == theLeader {
			return p.replica.Leads()
		}
		return p.place == f.replica%w.scenario.replicas
	})
	if i < 0 || f.away == forGood && len(all) == 1 {
		w.say("there is no such replica, or it is the last one")
		return nil
	}
	return all[i]
}

// strike makes a fault of one process happen.
func (w *World) strike(p *process, f fault) error {
	if f.point != anywhere {
		w.strikeAt(p, f)
		return nil
	}
	end := func() error { return nil }
	switch f.kind {
	case cutService:
		f.cut(p.network, w.ledger.cut)
		return nil
	case stalls:
		if p.stall.begin() {
			w.standStill(p, f.away)
		}
		return nil
	case losesStore:
		w.ledger.storeTrouble(f.away)
		p.cutOff.begin(f.away, f.percent)
		return nil
	case crash:
		w.crash(p, f)
	case damaged:
		end = w.endDamaged(p, f)
	default:
		end = func() error {
			defer w.ledger.stopped()
			return p.end()
		}
	}
	w.replicas.put(p.place, nil)
	return w.startAgain(p.place, f.away, end)
}

// crash ends a process at this instant.
func (w *World) crash(p *process, f fault) {
	w.ledger.cut()
	w.disk = p.crash(w.disk, f.survives, w.random)
	w.old.Go(func() { _ = p.end() }) // its disk is gone: whatever it says is of no account
}

// strikeAt has a fault happen to a process when it comes to a point in its work; in any case soon.
func (w *World) strikeAt(p *process, f fault) {
	reached := p.stall.beginAt(f.point)
	w.returning.Go(func() {
		select {
		case <-reached:
		case <-time.After(20 * time.Second):
			p.stall.begin()
		}
		if w.replicas.at(p.place) != p || f.away == forGood && len(w.replicas.running()) == 1 {
			p.stall.end() // it crashed or stopped meanwhile, or is the last one
			return
		}
		w.say("now: %s", f)
		if f.point = anywhere; f.kind == stalls {
			w.standStill(p, f.away)
		} else if err := w.strike(p, f); err != nil {
			w.broken(err)
		}
	})
}

// standStill has a process that stands still do so for a while.
func (w *World) standStill(p *process, lasts time.Duration) {
	w.ledger.stall(lasts)
	w.returning.Go(func() {
		time.Sleep(lasts)
		p.stall.end()
		p.network.resume()
	})
}

// end stops all in order.
func (w *World) end() (err error) {
	for _, p := range w.replicas.running() {
		err = errors.Join(err, p.end())
	}
	return err
}

// used is the process that a person uses: the nth of those that answer, once there is one.
func (w *World) used(nth int) *process {
	for {
		all := slices.DeleteFunc(w.replicas.running(), func(p *process) bool { return p.stall.isOn() })
		if len(all) > 0 {
			return all[nth%len(all)]
		}
		time.Sleep(time.Second)
	}
}

// leader is the process that leads, once there is one; on disk it is the only one.
func (w *World) leader() (*process, error) {
	for range 60 {
		for _, p := range w.replicas.running() {
			if p.replica == nil || p.replica.Leads() {
				return p, nil
			}
		}
		time.Sleep(time.Second)
	}
	return nil, errors.New("no replica leads for a minute, and nothing is wrong")
}

// stored is the store as it is, to look at.
func (w *World) stored() engine {
	switch {
	case w.redis != nil:
		return lookedAt{w.redis.looking}
	case w.disk == nil:
		return w.looking
	}
	return w.replicas.running()[0].kept
}
