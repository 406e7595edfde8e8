package world

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/replica"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// folder is where the store is, on the world's disk.
const folder = "/var/lib/redrive"

// restorable is how long what a person discards is there: to the end of the run.
const restorable = 1000 * time.Hour

// process is the service as server wires it: the path of a message, without page and API.
type process struct {
	place      int
	store      engine // as the service reaches it
	reached    *reached
	kept       engine // as it is
	member     *memstore.Member
	replica    *replica.Replica // nil: no others can use its store
	network    *network
	stall      stall
	throttle   *throttle.Throttle
	cutOff     trouble // its store is in trouble for it alone
	intake     *retry.Intake
	scheduler  *retry.Scheduler
	actions    *actions.Actions
	operations *operations.Runner
	canPublish func() bool
	stop       context.CancelFunc
	ended      sync.WaitGroup
}

type engine interface {
	retry.Store
	inspect.Store
	actions.Store
	Close() error
}

// startProcess opens the store, on the disk as it is or in memory, and starts.
func (w *World) startProcess(place int) (*process, error) {
	p := &process{place: place}
	p.network = &network{dial: w.broker.Dial, stall: &p.stall, lost: w.ledger.cut}
	p.cutOff.random = rand.New(rand.NewPCG(w.scenario.seed, 43+uint64(place)))
	var shared store.Shared
	var client *redisClient
	switch {
	case w.redis != nil:
		client = w.redis.client(place, &p.cutOff, &p.stall)
		inRedis, err := w.openRedis(client.dial)
		if err != nil {
			return nil, err
		}
		p.kept, shared = inRedis, inRedis
	case w.disk == nil:
		p.member = w.memory.Join()
		p.kept, shared = p.member, p.member
	default:
		onDisk, err := diskstore.Open(folder, diskstore.Options{FS: w.disk, Log: w.service})
		if err != nil {
			return nil, fmt.Errorf("opening the store: %w", err)
		}
		p.kept = onDisk
	}
	p.reached = &reached{engine: &onClock{engine: p.kept, clock: w.clock, claimed: map[*store.Record]*store.Record{}, tried: map[[sha256.Size]byte]time.Duration{}}, redis: w.scenario.inRedis, client: client,
		trouble: w.trouble, cutOff: &p.cutOff, stall: &p.stall, ledger: w.ledger, part: p.part("scheduler"), added: map[[sha256.Size]byte]bool{}, held: map[store.Key]heldClaim{}}
	p.store = p.reached
	if w.scenario.inRedis {
		p.store = &sharedStore{p.reached, shared}
	}
	if inRedis, is := p.kept.(*redisstore.Store); is {
		p.store = &redisShared{&sharedStore{p.reached, shared}, inRedis, w.clock}
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	if err := p.run(ctx, w); err != nil {
		stop()
		_ = p.close() // Join is the only error, and of a shared store
		return nil, err
	}
	return p, nil
}

// part names a part of this process in the ledger.
func (p *process) part(name string) string { return fmt.Sprint(name, " ", p.place) }

func (p *process) run(ctx context.Context, w *World) error {
	rules, log := w.rules(), w.service
	connection := func(name string) broker.Config {
		return broker.Config{URL: serviceURL, Name: name, Log: log, AMQP: amqp.Config{Dial: p.network.Dial}}
	}
	th := w.newThrottle(p.wakeAt(w.ledger.breakers()))
	p.throttle = th
	heard := p.listener(th, w.ledger)
	publisher := broker.NewPublisher(connection("redrive retries"))
	p.canPublish = publisher.Ready
	delayPublisher := broker.NewPublisher(connection("redrive delays"))
	policies := func() policy.Set { return p.intake.Policies() }
	delays := retry.NewDelayQueues(delayPublisher, policies, func(way string, err error) {
		log.Info("wait in RabbitMQ", "way", way, "error", err)
	})
	p.intake = retry.NewIntake(p.store, rules, delays, heard)
	parkedIntake := retry.NewParkedIntake(p.store, delays.MarkLost, heard)
	intakeConsumer := broker.NewIntakeConsumer(connection("redrive intake"), 4096, func(err error) {
		if err != nil {
			log.Error("intake", "error", err)
		}
	}, func(int) {})
	parkedConsumer := broker.NewParkedConsumer(connection("redrive parked"), 1024, func(error) {})
	sender := retry.NewSender(publisher, policies, heard)
	names := retry.NewReportedNames(p.store, sender)
	p.intake.UseReportedNames(names, sender)
	parkedIntake.UseReportedNames(names)
	p.scheduler = retry.NewScheduler(p.store, sender, th, heard, log, func(store.Lane, error) {})
	sender.OnLookupAnswered(p.scheduler.Wake)

	if err := p.openForPeople(ctx, inspect.Config{Store: p.store, Broker: brokerQueues{publisher}, Policies: policies, Log: log}, th, heard); err != nil {
		return err
	}

	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var publishers, workers sync.WaitGroup
	publishers.Go(func() { _ = publisher.Run(publishing) })
	publishers.Go(func() { _ = delayPublisher.Run(publishing) })
	workers.Go(func() { p.scheduler.Run(ctx, 10*time.Second) })
	workers.Go(func() { p.operations.Run(ctx) })
	p.joinReplicas(ctx, &workers)
	workers.Go(func() {
		if len(rules.Ways) > 0 {
			awaitUsable(ctx, delayPublisher)
		}
		_ = intakeConsumer.Run(ctx, &watched{Handler: p.intake, ledger: w.ledger, name: p.part("intake")})
	})
	workers.Go(func() {
		_ = parkedConsumer.Run(ctx, &watched{Handler: parkedIntake, ledger: w.ledger, name: p.part("parked intake")})
	})
	p.ended.Go(func() {
		workers.Wait()
		sender.Close()
		stopPublishing()
		publishers.Wait()
		delays.Wait()
	})
	return nil
}

// wakeAt has the effects on this process that internal/server gives a breaker's transition.
func (p *process) wakeAt(decided func(throttle.Transition)) func(throttle.Transition) {
	return func(t throttle.Transition) {
		decided(t)
		p.scheduler.Wake()
		if p.replica != nil {
			p.replica.PollSoon()
		}
	}
}

func awaitUsable(ctx context.Context, p *broker.Publisher) {
	connecting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p.AwaitUsable(connecting)
}

func (w *World) newThrottle(changed func(throttle.Transition)) *throttle.Throttle {
	limits := map[string]throttle.Rules{}
	for _, q := range w.scenario.queues {
		limits[q.name] = q.limits
	}
	return throttle.New(func(queue string) throttle.Rules { return limits[queue] }, rand.Float64, changed)
}

// listener receives what the service says.
func (p *process) listener(th *throttle.Throttle, l *ledger) retry.Listener {
	return func(e retry.Event) {
		if e.Kind == retry.Failed {
			if elsewhere := th.Failed(e.Queue, e.ID, e.At); elsewhere && p.replica != nil {
				p.replica.AnnounceFailed(e.Queue, e.ID)
			}
			p.operations.Failed(e)
		}
		l.heard(e)
	}
}

// openForPeople makes what people use, and the replica where others may use the store too.
func (p *process) openForPeople(ctx context.Context, c inspect.Config, th *throttle.Throttle, heard retry.Listener) error {
	shared, isShared := p.store.(store.Shared)
	if isShared {
		p.replica = replica.New(shared, func() cluster.About { return cluster.About{CanPublish: p.canPublish()} }, c.Log)
		c.Replicas, c.Changed = func() []inspect.Replica { return nil }, p.replica.Changed
	}
	shows := inspect.New(c)
	p.actions = actions.New(actions.Config{Inspect: shows, Store: p.store, Audit: noAudit{}, Events: heard, Restorable: restorable, SetPaused: p.scheduler.Pause})
	p.operations = operations.New(operations.Config{Inspect: shows, Actions: p.actions, Store: p.store})
	if !isShared {
		return nil
	}
	return p.replica.Join(ctx, replica.Parts{Throttle: th, Scheduler: p.scheduler, Inspect: shows, Actions: p.actions, Operations: p.operations,
		CountFlow: func(string, [4]int64, time.Time) {}, LeaderTasks: []func(context.Context){shows.Lead, p.operations.Lead}})
}

func (p *process) joinReplicas(ctx context.Context, workers *sync.WaitGroup) {
	if p.replica != nil {
		workers.Go(func() { p.replica.Run(ctx) })
		if p.member != nil { // redisstore does so itself
			workers.Go(func() { p.reached.keepLeases(ctx) })
		}
	}
}

// end stops the service in order, and closes its store; what is in memory stays.
func (p *process) end() error {
	p.stop()
	p.ended.Wait()
	return p.close()
}

// close closes the store; it releases what this process has claimed, if it answers.
func (p *process) close() error {
	if p.member != nil {
		p.member.Kill()
		return nil
	}
	if err := p.kept.Close(); err != nil && !wentUnanswered(err) {
		return err
	}
	return nil
}

// crash ends it at this instant: nothing of it reaches RabbitMQ or Redis any more, and what it
// still writes is on a disk that no one reads. The disk that it leaves behind is returned.
func (p *process) crash(d *disk, survives int, r *rand.Rand) *disk {
	p.reached.crash()
	p.network.end()
	if p.member != nil {
		p.member.Kill()
	}
	if d == nil {
		return nil
	}
	return d.afterCrash(survives, r)
}

// brokerQueues asks RabbitMQ about a queue, for a person.
type brokerQueues struct{ publisher *broker.Publisher }

func (q brokerQueues) Queue(ctx context.Context, name string) (at inspect.AtBroker, err error) {
	at.Consumers, at.Ready, err = q.publisher.Queue(ctx, name)
	at.Exists = err == nil
	if errors.Is(err, wire.ErrQueueGone) {
		err = nil
	}
	return at, err
}
