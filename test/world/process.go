package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/memstore"
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
	store      engine // as the service reaches it
	reached    *reached
	kept       engine // as it is
	member     *memstore.Member
	network    *network
	intake     *retry.Intake
	scheduler  *retry.Scheduler
	actions    *actions.Actions
	operations *operations.Runner
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
func (w *World) startProcess() (*process, error) {
	p := &process{network: &network{dial: w.broker.Dial}}
	if w.disk == nil {
		p.member = w.memory.Join()
		p.kept = p.member
	} else {
		onDisk, err := diskstore.Open(folder, diskstore.Options{FS: w.disk, Log: w.service})
		if err != nil {
			return nil, fmt.Errorf("opening the store: %w", err)
		}
		p.kept = onDisk
	}
	p.reached = newReached(&onClock{engine: p.kept, clock: w.clock, claimed: map[*store.Record]*store.Record{}}, w.scenario.inRedis, w.trouble, w.ledger)
	p.store = p.reached
	if w.scenario.inRedis {
		p.store = &sharedStore{p.reached, p.member}
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.run(ctx, w)
	return p, nil
}

func (p *process) run(ctx context.Context, w *World) {
	rules, log := w.rules(), w.service
	connection := func(name string) broker.Config {
		return broker.Config{URL: "amqp://guest:guest@model/%2F", Name: name, Log: log, AMQP: amqp.Config{Dial: p.network.Dial}}
	}
	th := w.scenario.newThrottle()
	heard := func(e retry.Event) {
		if e.Kind == retry.Failed {
			th.Failed(e.Queue, e.ID, e.At)
			p.operations.Failed(e)
		}
		w.ledger.heard(e)
	}
	publisher := broker.NewPublisher(connection("redrive retries"))
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

	p.openForPeople(inspect.New(inspect.Config{Store: p.store, Broker: brokerQueues{publisher}, Policies: policies, Log: log}), heard)

	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var publishers, workers sync.WaitGroup
	publishers.Go(func() { _ = publisher.Run(publishing) })
	publishers.Go(func() { _ = delayPublisher.Run(publishing) })
	workers.Go(func() { p.scheduler.Run(ctx, 10*time.Second) })
	workers.Go(func() { p.operations.Run(ctx) })
	workers.Go(func() { p.followSettings(ctx) })
	workers.Go(func() {
		if len(rules.Ways) > 0 {
			awaitUsable(ctx, delayPublisher)
		}
		_ = intakeConsumer.Run(ctx, &watched{Handler: p.intake, ledger: w.ledger, name: "intake"})
	})
	workers.Go(func() {
		_ = parkedConsumer.Run(ctx, &watched{Handler: parkedIntake, ledger: w.ledger, name: "parked intake"})
	})
	p.ended.Go(func() {
		workers.Wait()
		sender.Close()
		stopPublishing()
		publishers.Wait()
		delays.Wait()
	})
}

func awaitUsable(ctx context.Context, p *broker.Publisher) {
	connecting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p.AwaitUsable(connecting)
}

func (s *scenario) newThrottle() *throttle.Throttle {
	limits := map[string]throttle.Rules{}
	for _, q := range s.queues {
		limits[q.name] = q.limits
	}
	return throttle.New(func(queue string) throttle.Rules { return limits[queue] }, rand.Float64, func(throttle.Transition) {})
}

// openForPeople makes what people use.
func (p *process) openForPeople(shows *inspect.Inspector, heard retry.Listener) {
	p.actions = actions.New(actions.Config{Inspect: shows, Store: p.store, Audit: noAudit{}, Events: heard, Restorable: restorable, SetPaused: p.scheduler.Pause})
	p.operations = operations.New(operations.Config{Inspect: shows, Actions: p.actions, Store: p.store})
}

// followSettings reads what people have set, in a service whose store others may use too.
func (p *process) followSettings(ctx context.Context) {
	if _, shared := p.store.(store.Shared); !shared {
		return
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_ = p.actions.ReadSettings(ctx, p.scheduler.SetPauses) // it is read again
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// end stops the service in order, and closes its store; what is in memory stays.
func (p *process) end() error {
	p.stop()
	p.ended.Wait()
	if p.member != nil {
		p.member.Kill() // as Redis's store, it releases what it has claimed
		return nil
	}
	return p.kept.Close()
}

// crash ends it at this instant: nothing of it reaches RabbitMQ or Redis any more, and what it
// still writes is on a disk that no one reads. The disk that it leaves behind is returned.
func (p *process) crash(d *disk, survives int, r *rand.Rand) *disk {
	p.reached.crash()
	p.network.end()
	if p.member != nil {
		p.member.Kill()
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
