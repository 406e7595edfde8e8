package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// deadLetters finds the virtual host's dead-letter queues that can be adopted.
type deadLetters struct {
	*vhost
	wanted chan struct{} // asks run for a new list

	mu     sync.Mutex
	listed []operations.DeadLetterQueue
	failed error         // why listed is not newer
	at     time.Time     // of listed and failed
	next   chan struct{} // closed with the next list
}

func newDeadLetters(s *vhost) *deadLetters {
	return &deadLetters{vhost: s, wanted: make(chan struct{}, 1), next: make(chan struct{})}
}

const (
	// listEvery is how often to ask RabbitMQ for its queues at most.
	listEvery = 10 * time.Second
	// listWait bounds that, and lookWait the questions about one queue.
	listWait, lookWait = 30 * time.Second, 5 * time.Second
)

// errSeesNoQueues is why there is no list: only the management API has one.
var errSeesNoQueues = hint.Errorf("set broker.management, or name the queue",
	"%w: dead-letter queues are found by RabbitMQ's management API, and none is configured", inspect.ErrPrecondition)

// run lists the dead-letter queues when List asks for them, until ctx ends.
func (d *deadLetters) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wanted:
		}
		list, err := d.list(ctx)
		d.mu.Lock()
		d.listed, d.failed, d.at = list, err, time.Now()
		close(d.next)
		d.next = make(chan struct{})
		d.mu.Unlock()
		sleep(ctx, listEvery)
	}
}

// List returns the queues that other queues dead-letter to, that have a name like those of frameworks, or that are
// followed, as of some seconds ago.
func (d *deadLetters) List(ctx context.Context) ([]operations.DeadLetterQueue, error) {
	if d.manage == nil {
		return d.followers.addTo(nil, errSeesNoQueues)
	}
	d.mu.Lock()
	next, old := d.next, time.Since(d.at) > 2*listEvery
	d.mu.Unlock()
	select {
	case d.wanted <- struct{}{}:
	default:
	}
	if old {
		select {
		case <-next:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.followers.addTo(slices.Clone(d.listed), d.failed)
}

func (d *deadLetters) list(ctx context.Context) (list []operations.DeadLetterQueue, err error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	all, err := d.queues(ctx)
	list = []operations.DeadLetterQueue{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if q := all[name].judged(); q.Why != "" && q.Refused == "" {
			list = append(list, q)
		}
	}
	return list, err
}

// Look returns what is known of one queue: counts by AMQP, since those of the management API are seconds old, and the
// rest from the management API.
func (d *deadLetters) Look(ctx context.Context, queue string) (operations.DeadLetterQueue, error) {
	consumers, ready, err := d.publisher.Queue(ctx, queue)
	q := knownQueue{exclusive: errors.Is(err, wire.ErrExclusive)}
	switch {
	case errors.Is(err, wire.ErrQueueGone):
		return q.DeadLetterQueue, fmt.Errorf("%w: the queue %q does not exist", inspect.ErrNotFound, queue)
	case err != nil && !q.exclusive:
		return q.DeadLetterQueue, fmt.Errorf("%w: %w", inspect.ErrPrecondition, err)
	}
	listed := errSeesNoQueues
	if d.manage != nil {
		ctx, cancel := context.WithTimeout(ctx, lookWait)
		defer cancel()
		all, err := d.queues(ctx)
		if listed = err; err == nil {
			q = all[queue]
		}
	}
	if listed != nil {
		q.Unknown = fmt.Sprintf("it may be a stream or enrolled, and which queues dead-letter to it is not known: %v",
			listed)
		if of, _ := management.NamedLikeDeadLetters(queue); of != "" {
			if _, _, err := d.publisher.Queue(ctx, of); err == nil {
				q.WorkQueues = []string{of}
			}
		}
	}
	q.Queue, q.Ready, q.Consumers = queue, int64(ready), consumers
	return q.judged(), nil
}

type knownQueue struct {
	operations.DeadLetterQueue
	exclusive, enrolled bool
	at                  *management.QueueState
	leads               []string // queues that dead-letter to it
	goesOn              bool     // it dead-letters, and others dead-letter to it
}

// routes returns where messages go in the virtual host, from the management API.
func (d *deadLetters) routes(ctx context.Context) (*management.Routes, error) {
	var bindings []management.Binding
	var exchanges []management.Exchange
	var policies []management.Policy
	queues, err := d.manage.QueueStates(ctx)
	if err == nil {
		bindings, err = d.manage.Bindings(ctx)
	}
	if err == nil {
		exchanges, err = d.manage.Exchanges(ctx)
	}
	if err == nil {
		policies, err = d.manage.Policies(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: RabbitMQ does not list its queues: %w", inspect.ErrPrecondition, err)
	}
	return management.NewRoutes(queues, bindings, exchanges, policies), nil
}

// queues returns what the management API knows of each queue that is not Redrive's.
func (d *deadLetters) queues(ctx context.Context) (map[string]knownQueue, error) {
	routes, err := d.routes(ctx)
	if err != nil {
		return nil, err
	}
	leads := routes.Leads()
	all := map[string]knownQueue{}
	for name, at := range routes.Queues {
		if wire.OwnQueue(name) {
			continue
		}
		exchange := at.Setting("dead-letter-exchange")
		q := knownQueue{at: at, exclusive: at.Exclusive, enrolled: exchange == wire.ExchangeDeadLetters,
			leads: leads[name], goesOn: exchange != nil && len(leads[name]) > 0,
			DeadLetterQueue: operations.DeadLetterQueue{Queue: name, Kind: at.Type, Ready: int64(at.Ready),
				Consumers: at.Consumers}}
		q.Why, q.WorkQueues = routes.Suspect(name, leads[name])
		all[name] = q
	}
	return all, nil
}

// judged returns the queue with why it cannot be adopted, or why only a person who is sure may adopt it.
func (q knownQueue) judged() operations.DeadLetterQueue {
	switch {
	case q.Kind == "stream":
		q.Refused = fmt.Sprintf("the queue %q is a stream, which nothing can be taken from", q.Queue)
	case q.exclusive:
		q.Refused = fmt.Sprintf("the queue %q is exclusive to another connection", q.Queue)
	case q.enrolled:
		q.Doubt = fmt.Sprintf("the queue %q is enrolled: it looks like a work queue", q.Queue)
	case q.Consumers > 0:
		q.Doubt = fmt.Sprintf("the queue %q has consumers (%d): it may be a work queue", q.Queue, q.Consumers)
	}
	return q.DeadLetterQueue
}

// Open connects to take messages from a queue and park them in the store.
func (d *deadLetters) Open(ctx context.Context, a retry.Adoption) (operations.Source, error) {
	taker, err := broker.NewTaker(ctx, d.brokerConfig("redrive adopt"), a.From)
	if err != nil {
		return nil, err
	}
	s := &adopted{Taker: taker, intake: retry.NewAdoptedIntake(d.store, d.names, a, d.events)}
	if err := s.intake.Connected(ctx); err != nil {
		taker.Close()
		return nil, err
	}
	return s, nil
}

// Sample implements operations.DeadLetters. It refuses a queue whose delivery limit would count the look.
func (d *deadLetters) Sample(ctx context.Context, a retry.Adoption, n int) ([]*store.Record, error) {
	taker, err := broker.NewTaker(ctx, d.brokerConfig("redrive adopt"), a.From)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inspect.ErrPrecondition, err)
	}
	defer taker.Close()
	if free, _ := delay.VersionAtLeast(taker.Version(), 4, 3); !free {
		if err := d.mayRequeue(ctx, a.From, taker.Version()); err != nil {
			return nil, err
		}
	}
	batch, err := taker.Sample(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("%w: looking at messages of the queue %q: %w", inspect.ErrPrecondition, a.From, err)
	}
	return a.Sample(ctx, batch, time.Now()), nil
}

// mayRequeue returns an error if RabbitMQ would drop or dead-letter a message that is requeued too often.
func (d *deadLetters) mayRequeue(ctx context.Context, queue, version string) error {
	refused := func(why string) error {
		return hint.Errorf("adopt a few with --limit instead; unadopt puts them back",
			"%w: RabbitMQ %s counts each look at a message of a quorum queue, and %s",
			inspect.ErrPrecondition, version, why)
	}
	if d.manage == nil {
		return refused("the management API, which knows the delivery limit, is not configured")
	}
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	all, err := d.queues(ctx)
	if err != nil {
		return err
	}
	if q := all[queue]; q.at == nil {
		return refused("does not list it")
	} else if limit, limited := q.at.LimitInForce(version); limited && q.Kind == "quorum" {
		return refused(fmt.Sprintf("the delivery limit of %q is %d: a message at its limit would be lost",
			queue, limit))
	}
	return nil
}

type adopted struct {
	*broker.Taker
	intake *retry.AdoptedIntake
	begun  bool            // Park was called before
	held   []wire.Delivery // the first batch, until it has an epoch
}

// Park implements operations.Source.
func (s *adopted) Park(ctx context.Context, limit int, epoch int64) (n int, again bool, err error) {
	batch := s.held
	if s.held = nil; batch == nil {
		if batch, err = s.Take(ctx, limit); err != nil || len(batch) == 0 {
			return 0, false, err
		}
	}
	again = slices.ContainsFunc(batch, func(d wire.Delivery) bool { return d.Redelivered })
	begun := s.begun
	if s.begun = true; !begun && !again {
		// An earlier process may have acknowledged a batch and died before it wrote the next epoch. Equal
		// messages before and after would share ids.
		s.held = batch
		return 0, false, operations.ErrNewEpoch
	}
	s.intake.SetEpoch(strconv.FormatInt(epoch, 10))
	if err := s.intake.Handle(context.WithoutCancel(ctx), batch); err != nil {
		return 0, false, err
	}
	return len(batch), again, s.Done()
}
