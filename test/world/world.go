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
	trouble   *trouble // of the store
	clock     *wallClock
	process   *process
	consumers *network
	ledger    *ledger
	old       sync.WaitGroup // processes that have crashed, until they notice

	mu     sync.Mutex
	faults []error
}

// Run lets the world of a seed happen, with all parts of its scenario or some, and returns what
// went wrong. Call it in a bubble of testing/synctest. log receives the steps, service what the service says.
func Run(seed uint64, parts []string, log io.Writer, service *slog.Logger) error {
	s := newScenario(seed).only(parts)
	clock := &wallClock{}
	w := &World{scenario: s, random: rand.New(rand.NewPCG(seed, 41)), log: log, service: service,
		broker: model.New(model.Options{Version: s.version}), memory: memstore.NewReplicas(), trouble: &trouble{random: rand.New(rand.NewPCG(seed, 42))}, clock: clock, ledger: newLedger(s, clock)}
	defer w.broker.Close()
	if s.onDisk {
		w.disk = newDisk()
	}
	w.say("RabbitMQ %s, %d queues, %d messages, %d faults, %d actions, store %s", s.version, len(s.queues), len(s.messages), len(s.faults), len(s.actions), s.storeName())
	for _, q := range s.queues {
		w.say("%s", q)
	}
	return w.run()
}

func (w *World) run() (err error) {
	if err := w.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.process.end()) }()
	time.Sleep(settling)
	conn, err := amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: w.broker.Dial, Heartbeat: time.Minute})
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := w.declare(ch); err != nil {
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
	if err := w.steps(ctx, ch); err != nil {
		return err
	}
	return w.settle(ctx, ch)
}

// start starts the service, on the disk as it is.
func (w *World) start() (err error) {
	w.process, err = w.startProcess()
	return err
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

func (w *World) declare(ch *amqp.Channel) error {
	for _, q := range w.scenario.queues {
		if _, err := ch.QueueDeclare(q.name, true, false, false, false, amqp.Table{"x-queue-type": q.kind, "x-dead-letter-exchange": wire.ExchangeDeadLetters}); err != nil {
			return err
		}
		if q.forwardTo != "" {
			if _, err := ch.QueueDeclare(q.forwardTo, true, false, false, false, nil); err != nil {
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
	return ch.Confirm(false)
}

// step is what happens at a time since the beginning.
type step struct {
	at time.Duration
	do func() error
}

// steps publishes the messages and, beside that, makes the faults and does what people do, each at
// its time.
func (w *World) steps(ctx context.Context, ch *amqp.Channel) error {
	var published, others []step
	for _, m := range w.scenario.messages {
		published = append(published, step{m.at, func() error { return w.publish(ctx, ch, m) }})
	}
	for _, h := range w.scenario.hostile {
		published = append(published, step{h.at, func() error { return w.publishHostile(ctx, ch, h) }})
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

func (w *World) publish(ctx context.Context, ch *amqp.Channel, m message) error {
	headers := amqp.Table{idHeader: m.id, kindsHeader: allKinds}
	maps.Copy(headers, m.forged)
	return w.confirmed(ctx, ch, m.id, "", m.queue.name, amqp.Publishing{Headers: headers, Body: m.body(), DeliveryMode: amqp.Persistent, MessageId: m.id, Type: "world"})
}

func (w *World) confirmed(ctx context.Context, ch *amqp.Channel, id, exchange, key string, p amqp.Publishing) error {
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, p)
	if err != nil {
		return fmt.Errorf("publishing %s: %w", id, err)
	}
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return fmt.Errorf("%s was not confirmed: %w", id, err)
	}
	return nil
}

// settle waits until all messages are where they belong, and then checks all.
func (w *World) settle(ctx context.Context, ch *amqp.Channel) error {
	w.say("no more faults")
	if err := w.resumeAll(ctx); err != nil {
		return err
	}
	at := ends{forwarded: map[string]int{}}
	var missing []string
	for began := time.Now(); ; {
		time.Sleep(time.Minute)
		var err error
		if at.parked, err = w.kept(ctx, store.Parked); err != nil {
			return err
		}
		if at.discarded, err = w.kept(ctx, store.Discarded); err != nil {
			return err
		}
		if err := w.drainForwarded(ch, at.forwarded); err != nil {
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
			return errors.Join(w.faultsAt(at), fmt.Errorf("after %s these are not where they belong:\n%s", patience, strings.Join(missing, "\n")))
		}
	}
	w.say("the service's events: %v", w.ledger.eventsSoFar())
	return errors.Join(w.faultsAt(at), w.balanced(ctx), w.checkOperations(ctx))
}

// kept counts the copies of each message that the store has in a state.
func (w *World) kept(ctx context.Context, state store.State) (map[string]int, error) {
	all := map[string]int{}
	err := w.process.kept.Scan(ctx, store.Range{State: state}, func(l store.Listed) (bool, error) {
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

func (w *World) drainForwarded(ch *amqp.Channel, counts map[string]int) error {
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
	lines, err := w.process.kept.Recount(ctx)
	if err != nil {
		return err
	}
	for _, l := range lines {
		if off := l.Off(); off != 0 {
			return fmt.Errorf("the store's ledger of %s is off by %d", l.Queue, off)
		}
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
	fmt.Fprintf(w.log, "%s "+format+"\n", append([]any{time.Since(w.ledger.start).Truncate(time.Millisecond)}, args...)...)
}
