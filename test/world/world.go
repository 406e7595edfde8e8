// Package world runs Redrive's core in a made-up world that a seed decides: the intake, the verdict,
// the store on a disk that can crash or shared by replicas as in Redis, the scheduler, the publisher,
// the ways to wait in RabbitMQ and what people do, as the service has them, against a model of
// RabbitMQ, in fake time. A ledger that knows nothing of the service's own checks the promises by the
// messages' ids.
//
//	scenario.go   what a seed decides, and the shortest scenario that still fails
//	world.go      one run
//	process.go    the service as server wires it; replicas; connections that are cut at a chosen byte; the
//	              store as a service reaches it: trouble, lost answers, leases
//	faults.go     what goes wrong; files of the store that are damaged, and what a person does about it
//	people.go     publishers, consumers, and people who replay, edit, discard, restore and pause
//	ledger.go     what happened to each message, what must never happen, and where each must be at the end
//
// `make simulate SEEDS=n` runs the seeds from 1 to n; `go test ./test/world -seed N -v` runs one, shows
// its log and, when it fails, the shortest scenario that still does.
package world

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// settling is when the first message is published: what the service declares is there.
	settling = 10 * time.Second
	// patience is how long after the last fault all must be where it belongs.
	patience = 6 * time.Hour
)

// World is one run.
type World struct {
	scenario  *scenario
	random    *rand.Rand
	log       io.Writer
	service   *slog.Logger
	broker    *model.Broker
	disk      *disk // nil: the store is in memory, as in Redis
	memory    *memstore.Replicas
	looking   *memstore.Member // at the store in memory
	trouble   *trouble         // of the store
	alarms    atomic.Int32     // of RabbitMQ that are not over
	returning sync.WaitGroup   // replicas that are away, or stand still
	consumers *network
	publisher *amqp.Channel
	harmed    map[string]bool // the store's files that were damaged
	ledger    *ledger
	old       sync.WaitGroup // processes that have crashed, until they notice

	mu       sync.Mutex
	replicas []*process // each in its place; nil: that one is away
	faults   []error
}

// Run lets the world of a seed happen, with all parts of its scenario or some, and returns what went wrong.
// Call it in a bubble of testing/synctest. log receives the steps, service what the service says.
func Run(seed uint64, parts []string, log io.Writer, service *slog.Logger) error {
	s := newScenario(seed).only(parts)
	w := &World{scenario: s, random: newRandom(seed, 41), log: log, service: service,
		broker: model.New(model.Options{Version: s.version}), memory: memstore.NewReplicas(),
		trouble: &trouble{random: newRandom(seed, 42)}, replicas: make([]*process, s.replicas),
		ledger: newLedger(s), harmed: map[string]bool{}}
	defer w.broker.Close()
	if w.looking = w.memory.Join(); s.onDisk {
		w.disk = &disk{MemFS: vfs.NewCrashableMem()}
	}
	return w.run()
}

func (w *World) run() (err error) {
	for place := range w.scenario.replicas {
		if err := w.start(place); err != nil {
			return err
		}
	}
	defer func() {
		w.returning.Wait()
		for _, p := range w.running() {
			err = errors.Join(err, p.end())
		}
	}()
	time.Sleep(settling)
	conn, err := amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: w.broker.Dial, Heartbeat: time.Minute})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if w.publisher, err = conn.Channel(); err != nil {
		return err
	}
	if err := errors.Join(w.publisher.Confirm(false), w.declare()); err != nil {
		return err
	}
	w.consumers = &network{dial: w.broker.Dial}
	ctx, stop := context.WithCancel(context.Background())
	var consumers sync.WaitGroup
	defer w.old.Wait()
	defer consumers.Wait()
	defer stop()
	for _, q := range w.scenario.queues {
		consumers.Go(func() { w.consume(ctx, q) })
	}
	if err := w.steps(ctx); err != nil {
		return err
	}
	return w.settle(ctx)
}

// rules are the policies as they were reloaded last.
func (w *World) rules() retry.Rules {
	r := retry.Rules{Ways: map[string]delay.Way{}}
	for _, q := range w.scenario.queues {
		p := q.policy
		p.Attempts = w.ledger.allows(q)
		r.Policies = append(r.Policies, p)
		if q.way != nil {
			r.Ways[p.Name] = q.way
		}
	}
	return r
}

func (w *World) declare() error {
	for _, q := range w.scenario.queues {
		args := amqp.Table{"x-queue-type": q.kind, "x-dead-letter-exchange": wire.ExchangeDeadLetters}
		if _, err := w.publisher.QueueDeclare(q.name, true, false, false, false, args); err != nil {
			return err
		}
		if q.forwardTo != "" {
			if _, err := w.publisher.QueueDeclare(q.forwardTo, true, false, false, false, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// step is what happens at a time since the beginning.
type step struct {
	at time.Duration
	do func() error
}

// steps publishes the messages and, beside that, makes the faults and does what people do, each at
// its time.
func (w *World) steps(ctx context.Context) error {
	var published, others []step
	for _, m := range w.scenario.messages {
		published = append(published, step{m.at, func() error { return w.publish(ctx, m) }})
	}
	for _, f := range w.scenario.faults {
		others = append(others, step{f.at, func() error { return w.fail(f) }})
	}
	for _, a := range w.scenario.actions {
		others = append(others, step{a.at, func() error { return w.act(ctx, a) }})
	}
	began := time.Now()
	var publishing sync.WaitGroup
	var failed error
	publishing.Go(func() { failed = inOrder(began, published) })
	err := inOrder(began, others)
	publishing.Wait()
	return errors.Join(failed, err)
}

func inOrder(began time.Time, all []step) error {
	slices.SortStableFunc(all, func(a, b step) int { return int(a.at - b.at) })
	for _, s := range all {
		time.Sleep(time.Until(began.Add(s.at)))
		if err := s.do(); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until all messages are where they belong, and then checks all.
func (w *World) settle(ctx context.Context) error {
	w.returning.Wait()
	w.say("no more faults")
	for _, q := range w.scenario.queues {
		if !w.ledger.pausedSince(q).IsZero() {
			if err := w.resume(ctx, q, 0); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	at := ends{forwarded: map[string]int{}}
	for {
		time.Sleep(time.Minute)
		for state, copies := range map[store.State]*map[string]int{store.Parked: &at.parked, store.Discarded: &at.discarded, store.Waiting: &at.waiting} {
			var err error
			if *copies, err = w.kept(ctx, state); err != nil {
				return err
			}
		}
		if err := w.drainForwarded(at.forwarded); err != nil {
			return err
		}
		missing := w.ledger.missing(at)
		if len(missing) == 0 {
			break
		}
		if found := w.found(); found != nil {
			return found
		}
		if time.Since(began) > patience {
			return errors.Join(w.found(), w.ledger.wrong(at), fmt.Errorf("after %s these are not where they belong:\n%s\n%s", patience,
				strings.Join(missing, "\n"), w.whereabouts()))
		}
	}
	return errors.Join(w.found(), w.ledger.wrong(at), w.balanced(ctx))
}

// whereabouts are what is in RabbitMQ, and what each process retries nothing to.
func (w *World) whereabouts() string {
	var all strings.Builder
	for _, name := range []string{wire.QueueIntake, wire.QueueParked, wire.QueueQuarantine} {
		at, _ := w.broker.Queue(name)
		fmt.Fprintf(&all, "%s in RabbitMQ: %+v\n", name, at)
	}
	for _, q := range w.scenario.queues {
		at, _ := w.broker.Queue(q.name)
		fmt.Fprintf(&all, "%s in RabbitMQ: %+v\n", q.name, at)
		for _, p := range w.running() {
			fmt.Fprintf(&all, "%s in the throttle of replica %d: %+v, paused: %q\n", q.name, p.place, p.throttle.View(q.name, time.Now()), p.scheduler.Paused())
		}
	}
	return all.String()
}

// kept counts the copies of each message that the store has in a state.
func (w *World) kept(ctx context.Context, state store.State) (map[string]int, error) {
	all := map[string]int{}
	err := w.stored().Scan(ctx, store.Range{State: state}, func(l store.Listed) (bool, error) {
		id := idOf(l)
		all[id]++
		if l.Record.Unreadable != nil {
			return true, nil
		}
		err := w.ledger.named(id, l.Record.ID.String())
		return err == nil, err
	})
	return all, err
}

func (w *World) drainForwarded(counts map[string]int) error {
	for _, q := range w.scenario.queues {
		for q.forwardTo != "" {
			d, ok, err := w.publisher.Get(q.forwardTo, true)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			id, _ := d.Headers[idHeader].(string)
			counts[id]++
			redriveID, _ := d.Headers[wire.HeaderID].(string)
			if err := w.ledger.named(id, redriveID); err != nil {
				return err
			}
		}
	}
	return nil
}

// balanced checks the service's own ledger.
func (w *World) balanced(ctx context.Context) error {
	lines, err := w.stored().Recount(ctx)
	if err != nil {
		return err
	}
	off := int64(0)
	for _, l := range lines {
		if off += l.Off(); l.Off() != 0 && w.ledger.off == 0 {
			return fmt.Errorf("the store's ledger of %s is off by %d", l.Queue, l.Off())
		}
	}
	if off != w.ledger.off {
		return fmt.Errorf("the store's ledger is off by %d, and was by %d when the store was damaged", off, w.ledger.off)
	}
	return nil
}

// broken enters what must never happen; the run continues.
func (w *World) broken(err error) {
	defer lock(&w.mu)()
	w.faults = append(w.faults, fmt.Errorf("%s: %w", time.Since(w.ledger.start), err))
}

func (w *World) say(format string, args ...any) {
	defer lock(&w.mu)()
	fmt.Fprintf(w.log, "%s "+format+"\n", append([]any{time.Since(w.ledger.start).Truncate(time.Millisecond)}, args...)...)
}

// found is what has gone wrong so far.
func (w *World) found() error {
	defer lock(&w.mu)()
	return errors.Join(w.faults...)
}

// lock locks a mutex, and returns what unlocks it.
func lock(mu *sync.Mutex) func() {
	mu.Lock()
	return mu.Unlock
}
