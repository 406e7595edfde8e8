// Package world runs Redrive's core in a made-up world that a seed decides: the intake, the verdict,
// the store on a disk that can crash or shared by replicas as in Redis, the scheduler, the publisher,
// the ways to wait in RabbitMQ and what people do, as the service has them, against a model of
// RabbitMQ, in fake time. A ledger that knows nothing of the service's own checks the promises by the
// messages' ids.
//
//	scenario.go   what a seed decides, and the shortest scenario that still fails
//	world.go      one run, with publishers, consumers, and people who replay, edit, discard, restore and pause
//	process.go    the service as server wires it; replicas; connections that are cut at a chosen byte; the
//	              store as a service reaches it: trouble, lost answers, leases
//	faults.go     what goes wrong
//	ledger.go     what happened to each message, what must never happen, and where each must be at the end
//
// `make simulate SEEDS=n` runs the seeds from 1 to n; `go test ./test/world -seed N -v` runs one, shows
// its log and, when it fails, the shortest scenario that still does.
package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/inspect"
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
		ledger: newLedger(s)}
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
	for _, l := range lines {
		if l.Off() != 0 {
			return fmt.Errorf("the store's ledger of %s is off by %d", l.Queue, l.Off())
		}
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

// publish publishes a message, on a connection that is never cut.
func (w *World) publish(ctx context.Context, m message) error {
	return confirmed(ctx, w.publisher, "", m.queue.name, amqp.Publishing{Headers: amqp.Table{idHeader: m.id, kindsHeader: allKinds}, Body: m.body(),
		DeliveryMode: amqp.Persistent, MessageId: m.id, Type: "world"})
}

// confirmed publishes, and waits for RabbitMQ's answer.
func confirmed(ctx context.Context, ch *amqp.Channel, exchange, key string, p amqp.Publishing) error {
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, p)
	if err != nil {
		return err
	}
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("%s was not confirmed", p.MessageId))
	}
	return nil
}

const (
	// idHeader names a message in the ledger.
	idHeader = "world-id"
	// kindsHeader has a value of each kind, which stays as it is.
	kindsHeader = "world-kinds"
)

var allKinds = amqp.Table{"a": []any{nil, true, int64(1) << 40, "\xff"}, "b": amqp.Table{"c": 1.5, "d": []byte{0}}, "e": int16(-3),
	"f": amqp.Decimal{Scale: 2, Value: 314}, "g": time.Unix(1_800_000_000, 0)}

// changed is what of a message is not as it was published, or "".
func (m message) changed(d amqp.Delivery) string {
	kinds, _ := d.Headers[kindsHeader].(amqp.Table)
	first, _, _ := strings.Cut(m.id, ".") // an edited message keeps its properties
	switch {
	case !bytes.Equal(d.Body, m.body()):
		return fmt.Sprintf("body: %d bytes instead of %d, or others", len(d.Body), m.size)
	case d.RoutingKey != m.queue.name:
		return fmt.Sprintf("routing key: %q", d.RoutingKey)
	case d.MessageId != first || d.Type != "world" || d.DeliveryMode != amqp.Persistent:
		return fmt.Sprintf("properties: message id %q, type %q, delivery mode %d", d.MessageId, d.Type, d.DeliveryMode)
	case !reflect.DeepEqual(kinds, allKinds):
		return fmt.Sprintf("headers: %v", kinds)
	}
	return ""
}

// consume is the consumer of a work queue, which connects again after each cut, until ctx ends.
func (w *World) consume(ctx context.Context, q *workQueue) {
	for ctx.Err() == nil {
		if w.consumeOnce(ctx, q) != nil {
			time.Sleep(time.Second)
		}
	}
}

func (w *World) consumeOnce(ctx context.Context, q *workQueue) error {
	conn, err := amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: w.consumers.Dial, Heartbeat: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // one that is cut is closed already
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := errors.Join(ch.Confirm(false), ch.Qos(q.prefetch, 0, false)); err != nil {
		return err
	}
	deliveries, err := ch.Consume(q.name, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("the channel is closed")
			}
			if err := w.handle(ctx, q, ch, d); err != nil {
				return err
			}
		}
	}
}

// handle fails a message as often as the scenario says, and then processes it.
func (w *World) handle(ctx context.Context, q *workQueue, ch *amqp.Channel, d amqp.Delivery) error {
	attempt, _ := d.Headers[wire.HeaderAttempt].(int64)
	failures := int(attempt)
	id, fails, err := w.ledger.delivered(q, d, failures, time.Now())
	if err != nil {
		w.broken(err)
		return d.Ack(false)
	}
	time.Sleep(q.handles)
	if failures >= fails {
		w.ledger.processed(id)
		return d.Ack(false)
	}
	w.ledger.failed(id, failures, time.Now())
	if !q.reports {
		return d.Reject(false)
	}
	headers := maps.Clone(d.Headers)
	if d.Exchange == "" { // it comes from its publisher; else Redrive has written them
		headers[wire.HeaderExchange], headers[wire.HeaderRoutingKey] = d.Exchange, d.RoutingKey
	}
	headers[wire.HeaderError] = fmt.Sprintf("failure %d", failures+1)
	err = confirmed(ctx, ch, wire.ExchangeFailures, q.name,
		amqp.Publishing{Headers: headers, Body: d.Body, DeliveryMode: amqp.Persistent, MessageId: d.MessageId, Type: d.Type})
	if err != nil {
		return err
	}
	return d.Ack(false)
}

// action is what a person does at a time since the beginning.
type action struct {
	at   time.Duration
	verb verb
	// nth chooses among the messages that are there then, and replica among the replicas.
	nth     int
	replica int
	later   time.Duration // replay: when, from then on
	heals   bool          // replay and edit: from then on its consumer processes it
	size    int           // edit: of the new body; -1: it stays
	// Pause, resume and reload are about a queue.
	queue    *workQueue
	attempts int // reload
}

type verb int

const (
	replay verb = iota
	discard
	restore
	edit
	pause
	resume
	reload
	verbCount
)

func (v verb) String() string {
	return [...]string{"replay", "discard", "restore", "edit", "pause", "resume", "reload"}[v]
}

func (a action) String() string {
	return fmt.Sprintf("%s: a person asks to %s: message %d in %s, healed: %t, new size: %d; %s, %d attempts", a.at, a.verb, a.nth, a.later, a.heals,
		a.size, a.queue.name, a.attempts)
}

var ann = auth.Caller{Name: "ann", How: "local", Interface: "api", Role: auth.Editor}

// act is a person doing something. What the service refuses has not happened.
func (w *World) act(ctx context.Context, a action) error {
	w.say("%s", a)
	switch a.verb {
	case reload:
		w.reload(a)
		return nil
	case pause:
		err := w.repeat(func() error { return w.used(a.replica).actions.PauseQueue(ctx, ann, a.queue.name, "") })
		if err == nil && w.ledger.pausedSince(a.queue).IsZero() {
			w.ledger.pause(a.queue, time.Now())
		}
		return w.refused(err)
	case resume:
		return w.resume(ctx, a.queue, a.replica)
	}
	p := w.used(a.replica) // before a message is chosen, which may be retried until there is one
	l, found, err := w.choose(ctx, a)
	if err != nil || !found {
		return err
	}
	id := idOf(l)
	if err := w.ledger.named(id, l.Record.ID.String()); err != nil {
		return err
	}
	w.say("it is %s, failed %d times, %s", id, l.Record.Failures, inspect.StateName(l.Record.State))
	if a.verb == edit {
		return w.edit(ctx, p, a, id, l)
	}
	act := actions.Act{Verb: actions.Verb(a.verb.String()), IDs: []string{string(l.Key)}}
	if a.verb == replay && a.later > 0 {
		at := time.Now().Add(a.later)
		act.At = &at
	}
	w.ledger.heals.Store(a.heals)
	_, err = p.actions.Act(ctx, ann, act)
	return w.refused(err)
}

// reload gives a queue's policy another number of attempts.
func (w *World) reload(a action) {
	w.ledger.allow(a.queue, a.attempts)
	for _, p := range w.running() {
		p.inForce.Replace(w.rules())
		p.scheduler.Wake()
	}
}

// choose finds the message that an action is about.
func (w *World) choose(ctx context.Context, a action) (l store.Listed, found bool, err error) {
	states := []store.State{store.Parked, store.Waiting}
	if a.verb == restore {
		states = []store.State{store.Discarded}
	}
	var all []store.Listed
	for _, state := range states {
		err := w.stored().Scan(ctx, store.Range{State: state}, func(l store.Listed) (bool, error) {
			all = append(all, l)
			return true, nil
		})
		if err != nil {
			return l, false, fmt.Errorf("scanning the store: %w", err)
		}
	}
	if len(all) == 0 {
		return l, false, nil
	}
	slices.SortStableFunc(all, func(a, b store.Listed) int { return strings.Compare(idOf(a), idOf(b)) })
	return all[a.nth%len(all)], true, nil
}

func idOf(l store.Listed) string { return idIn(l.Record.Message.Headers) }

// edit replaces a message by one that the ledger knows by another id.
func (w *World) edit(ctx context.Context, p *process, a action, id string, l store.Listed) error {
	made, enterMade := w.ledger.edit(id, a)
	e := actions.EditRequest{ID: string(l.Key), SetHeaders: map[string]string{idHeader: made}}
	if a.size >= 0 {
		body := bodyOf(made, a.size)
		e.Body = &body
	}
	_, err := p.actions.Edit(ctx, ann, e)
	enterMade(err == nil || doneUnanswered(err))
	if errors.Is(err, inspect.ErrNotFound) {
		if _, gone := w.stored().Get(ctx, l.Key); errors.Is(gone, store.ErrNotFound) {
			w.say("it was retried since the person chose it: %s", err)
			return nil
		}
	}
	return w.refused(err)
}

func (w *World) resume(ctx context.Context, q *workQueue, replica int) error {
	since := w.ledger.pausedSince(q)
	w.ledger.pause(q, time.Time{})
	tries := 0
	err := w.repeat(func() error {
		tries++
		return w.used(replica).actions.ResumeQueue(ctx, ann, q.name, "")
	})
	if tries > 1 && !since.IsZero() && errors.Is(err, inspect.ErrPrecondition) {
		err = nil // the first try was done, and its answer was lost
	}
	switch {
	case since.IsZero() && err == nil:
		return fmt.Errorf("%s could be resumed, and was not paused", q.name)
	case !since.IsZero() && errors.Is(err, inspect.ErrPrecondition):
		return fmt.Errorf("%s was paused, and the service does not know: %w", q.name, err)
	case err != nil:
		w.ledger.pause(q, since)
	}
	return w.refused(err)
}

// repeat has a person try again while the store is in trouble, or at another replica than the one
// that has just crashed.
func (w *World) repeat(try func() error) error {
	for {
		err := try()
		var u *unanswered
		if !errors.As(err, &u) && !w.crashed(err) {
			return err
		}
		w.say("to be tried again: %s", err)
		time.Sleep(time.Second)
	}
}

// doneUnanswered tells that what a person asked for was done, and the answer was lost.
func doneUnanswered(err error) bool {
	var u *unanswered
	return errors.As(err, &u) && u.done
}

// crashed reports whether an error may be that a replica crashed while a person used it.
func (w *World) crashed(err error) bool {
	return w.scenario.replicas > 1 && errors.Is(err, store.ErrClosed)
}

// refused lets pass what the service may answer: the disk is full, the store is in trouble, or the message is
// being retried.
func (w *World) refused(err error) error {
	var u *unanswered
	if errors.Is(err, store.ErrFull) || errors.Is(err, inspect.ErrPrecondition) || errors.As(err, &u) || w.crashed(err) {
		w.say("refused: %s", err)
		return nil
	}
	return err
}
