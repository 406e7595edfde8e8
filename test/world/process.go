package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/inspect"
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
	store     engine
	network   *network
	intake    *retry.Intake
	scheduler *retry.Scheduler
	actions   *actions.Actions
	stop      context.CancelFunc
	ended     sync.WaitGroup
}

type engine interface {
	retry.Store
	inspect.Store
	actions.Store
	Close() error
}

// startProcess opens the store on the disk and starts. d is nil for a store in memory, which
// then is memory.
func startProcess(s *scenario, rules retry.Rules, d *disk, memory *memstore.Store, n *network, log *slog.Logger, events retry.Listener) (*process, error) {
	p := &process{network: n}
	if d == nil {
		p.store = memory
	} else {
		onDisk, err := diskstore.Open(folder, diskstore.Options{FS: d, Log: log})
		if err != nil {
			return nil, fmt.Errorf("opening the store: %w", err)
		}
		p.store = onDisk
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.run(ctx, s, rules, log, events)
	return p, nil
}

func (p *process) run(ctx context.Context, s *scenario, rules retry.Rules, log *slog.Logger, events retry.Listener) {
	connection := func(name string) broker.Config {
		return broker.Config{URL: "amqp://guest:guest@model/%2F", Name: name, Log: log, AMQP: amqp.Config{Dial: p.network.Dial}}
	}
	limits := map[string]throttle.Rules{}
	for _, q := range s.queues {
		limits[q.name] = q.limits
	}
	th := throttle.New(func(queue string) throttle.Rules { return limits[queue] }, rand.Float64, func(throttle.Transition) {})
	heard := func(e retry.Event) {
		if e.Kind == retry.Failed {
			th.Failed(e.Queue, e.ID, e.At)
		}
		events(e)
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

	shows := inspect.New(inspect.Config{Store: p.store, Broker: brokerQueues{publisher}, Policies: policies, Log: log})
	p.actions = actions.New(actions.Config{Inspect: shows, Store: p.store, Audit: noAudit{}, Events: heard, Restorable: restorable, SetPaused: p.scheduler.Pause})

	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var publishers, workers sync.WaitGroup
	publishers.Go(func() { _ = publisher.Run(publishing) })
	publishers.Go(func() { _ = delayPublisher.Run(publishing) })
	workers.Go(func() { p.scheduler.Run(ctx, 10*time.Second) })
	workers.Go(func() {
		if len(rules.Ways) > 0 {
			awaitUsable(ctx, delayPublisher)
		}
		_ = intakeConsumer.Run(ctx, p.intake)
	})
	workers.Go(func() { _ = parkedConsumer.Run(ctx, parkedIntake) })
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

// end stops the service in order, and closes its store; memory stays open.
func (p *process) end() error {
	p.stop()
	p.ended.Wait()
	if _, ok := p.store.(*memstore.Store); ok {
		return nil
	}
	return p.store.Close()
}

// crash ends it at this instant: nothing of it reaches RabbitMQ any more, and what it still
// writes is on a disk that no one reads. The disk that it leaves behind is returned.
func (p *process) crash(d *disk, survives int, r *rand.Rand) *disk {
	left := d.afterCrash(survives, r)
	p.network.end()
	return left
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
