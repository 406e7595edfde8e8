package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
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
	disk      *disk
	memory    *memstore.Replicas
	redis     *redis   // nil: the store is another
	trouble   *trouble // of the store
	clock     *wallClock
	looking   *memstore.Member // at the store in memory
	replicas  *replicas
	program   *program       // nil while there is none
	returning sync.WaitGroup // replicas that are away, or stand still
	consumers *network
	publisher *publisher
	absences  *absences
	rights    *rights
	policies  int             // of RabbitMQ's that were set
	harmed    map[string]bool // the store's files that were damaged
	ledger    *ledger
	old       sync.WaitGroup // processes that have crashed, until they notice

	saying sync.Mutex
	mu     sync.Mutex
	faults []error
}

// Run lets the world of a seed happen, with all parts of its scenario or some, and returns what
// happened and what went wrong. Call it in a bubble of testing/synctest. log receives the steps,
// service what the service says.
func Run(seed uint64, parts []string, log io.Writer, service *slog.Logger) (Happened, error) {
	s := newScenario(seed).only(parts)
	clock := &wallClock{}
	w := &World{scenario: s, random: rand.New(rand.NewPCG(seed, 41)), log: log, service: service,
		broker: model.New(model.Options{Version: s.version}), memory: memstore.NewReplicas(), trouble: &trouble{random: rand.New(rand.NewPCG(seed, 42))}, clock: clock, replicas: newReplicas(s.replicas), ledger: newLedger(s, clock), absences: newAbsences(), harmed: map[string]bool{}}
	defer w.broker.Close()
	w.looking = w.memory.Join()
	switch {
	case s.onDisk:
		w.disk = newDisk()
	case s.onRedis:
		w.redis = newRedis(s.everySecond, w.trouble)
		defer w.redis.close()
		if err := w.look(); err != nil {
			return nil, err
		}
	}
	w.say("RabbitMQ %s, %d queues, %d messages, %d faults, %d actions, %d replicas, store %s", s.version, len(s.queues), len(s.messages), len(s.faults), len(s.actions), s.replicas, s.storeName())
	for _, q := range s.queues {
		w.say("%s", q)
	}
	err := w.run()
	return w.happened(), err
}

func (w *World) run() (err error) {
	if w.rights, err = newRights(w.broker, w.scenario.queues, w.rules().Policies); err != nil {
		return err
	}
	for place := range w.scenario.replicas {
		if err := w.start(place); err != nil {
			return err
		}
	}
	defer func() {
		w.returning.Wait()
		err = errors.Join(err, w.end())
	}()
	time.Sleep(settling)
	w.publisher = newPublisher(w)
	defer w.publisher.close()
	if err := w.declare(context.Background()); err != nil {
		return err
	}
	w.consumers = &network{dial: w.broker.Dial}
	ctx, stop := context.WithCancel(context.Background())
	var consumers sync.WaitGroup
	defer w.old.Wait()
	defer consumers.Wait()
	defer stop()
	for _, q := range w.scenario.queues {
		if q.library == nil {
			consumers.Go(func() { w.consume(ctx, q) })
		}
	}
	w.startProgram()
	defer func() { err = errors.Join(err, w.endProgram()) }()
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
	if w.scenario.catchAll {
		r.Policies = append(r.Policies, catchAll)
	}
	return r
}

func (w *World) declare(ctx context.Context) error {
	ch, err := w.publisher.channel(ctx)
	if err != nil {
		return err
	}
	if err := w.setBasePolicies(); err != nil {
		return err
	}
	for _, q := range w.scenario.queues {
		if _, err := ch.QueueDeclare(q.name, true, false, false, false, q.arguments()); err != nil {
			return err
		}
		if q.library != nil {
			if err := ch.ExchangeDeclare(q.firstExchange(), amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
				return err
			}
			if err := ch.QueueBind(q.name, "", q.firstExchange(), false, nil); err != nil {
				return err
			}
		}
		if q.forwardTo != "" {
			if _, err := ch.QueueDeclare(q.forwardTo, true, false, false, false, withMost(amqp.Table{}, q.most)); err != nil {
				return err
			}
		}
	}
	if w.scenario.catchAll { // a person has made a retry exchange for a queue of Redrive's
		if err := ch.ExchangeDeclare(wire.RetryExchange(wire.QueueIntake), amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		if err := ch.QueueBind(wire.QueueIntake, "", wire.RetryExchange(wire.QueueIntake), false, nil); err != nil {
			return err
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
	for _, h := range w.scenario.hostile {
		published = append(published, step{h.at, func() error { return w.publishHostile(ctx, h) }})
	}
	for _, f := range w.scenario.faults {
		others = append(others, step{f.at, func() error { return w.fail(ctx, f) }})
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

func (w *World) publish(ctx context.Context, m message) error {
	headers := amqp.Table{idHeader: m.id, kindsHeader: allKinds}
	maps.Copy(headers, m.forged)
	return w.publisher.publish(ctx, m.id, m.queue.firstExchange(), m.queue.firstKey(), amqp.Publishing{Headers: headers, Body: m.body(), DeliveryMode: amqp.Persistent, MessageId: m.id, Type: "world"})
}

// settle waits until all messages are where they belong, and then checks all.
func (w *World) settle(ctx context.Context) error {
	w.returning.Wait()
	w.say("no more faults")
	if err := w.resumeAll(ctx); err != nil {
		return err
	}
	began := time.Now()
	at := ends{forwarded: map[string]int{}}
	var missing []string
	for {
		time.Sleep(time.Minute)
		err := w.replayGone(ctx)
		if err != nil {
			return err
		}
		if at.parked, err = w.kept(ctx, store.Parked); err != nil {
			return err
		}
		if at.discarded, err = w.kept(ctx, store.Discarded); err != nil {
			return err
		}
		if err := w.drainForwarded(ctx, at.forwarded); err != nil {
			return err
		}
		if at.waiting, err = w.kept(ctx, store.Waiting); err != nil {
			return err
		}
		running, err := w.runningOperations(ctx)
		if err != nil {
			return err
		}
		if missing = append(w.ledger.missing(at), running...); len(missing) == 0 {
			break
		}
		if found := w.found(); found != nil {
			return found
		}
		if time.Since(began) > patience {
			return errors.Join(w.faultsAt(at), fmt.Errorf("after %s these are not where they belong:\n%s\n%s", patience, strings.Join(missing, "\n"), w.inRabbitMQ()+w.heldBack()))
		}
	}
	w.say("the service's events: %v", w.ledger.eventsSoFar())
	return errors.Join(w.faultsAt(at), w.balanced(ctx), w.checkOperations(ctx))
}

// inRabbitMQ is what is in the queues of RabbitMQ.
func (w *World) inRabbitMQ() string {
	var all strings.Builder
	names := []string{wire.QueueIntake, wire.QueueParked, wire.QueueQuarantine}
	for _, q := range w.scenario.queues {
		names = append(names, q.name)
	}
	for _, name := range names {
		at, is := w.broker.Queue(name)
		fmt.Fprintf(&all, "%s in RabbitMQ: %t, %+v\n", name, is, at)
	}
	return all.String()
}

// heldBack is what each process retries nothing to, and why.
func (w *World) heldBack() string {
	var all strings.Builder
	for _, p := range w.replicas.running() {
		fmt.Fprintf(&all, "%s: paused are %q\n", p.part("the scheduler"), p.scheduler.Paused())
		for _, name := range p.throttle.Queues() {
			fmt.Fprintf(&all, "%s in its throttle: %+v\n", name, p.throttle.View(name, time.Now()))
		}
	}
	return all.String()
}

// kept counts the copies of each message that the store has in a state.
func (w *World) kept(ctx context.Context, state store.State) (map[string]int, error) {
	all := map[string]int{}
	err := w.stored().Scan(ctx, store.Range{State: state}, func(l store.Listed) (bool, error) {
		id := idOf(l)
		if !utf8.ValidString(l.Record.Queue) {
			return false, fmt.Errorf("%s is stored for the queue %q", id, l.Record.Queue)
		}
		all[id]++
		w.ledger.named(id, l.Record.ID.String())
		return true, nil
	})
	return all, err
}

func (w *World) drainForwarded(ctx context.Context, counts map[string]int) error {
	ch, err := w.publisher.channel(ctx)
	if err != nil {
		return err
	}
	for _, q := range w.scenario.queues {
		for q.forwardTo != "" {
			d, ok, err := ch.Get(q.forwardTo, true)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			id, _ := d.Headers[idHeader].(string)
			counts[id]++
			redriveID, _ := d.Headers[wire.HeaderID].(string)
			w.ledger.named(id, redriveID)
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Errorf("%s: %w", time.Since(w.ledger.start), err))
}

func (w *World) say(format string, args ...any) {
	w.saying.Lock()
	defer w.saying.Unlock()
	fmt.Fprintf(w.log, "%s "+format+"\n", append([]any{time.Since(w.ledger.start).Truncate(time.Millisecond)}, args...)...)
}
