package server

import (
	"context"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// adoptEvery is how often the orders to adopt are read, and how often the state of one is written
	// at most.
	adoptEvery = time.Second
	// adoptAgain is when a queue that is followed is tried again after what only a person can correct.
	adoptAgain = 15 * time.Second
)

// adopt carries out the orders to adopt dead-letter queues, until ctx ends. Where replicas share a
// store, the leader does.
func (s *vhost) adopt(ctx context.Context) {
	type running struct {
		since time.Time
		stop  context.CancelFunc
	}
	var w sync.WaitGroup
	defer w.Wait()
	all, ended := map[string]running{}, make(chan string)
	for {
		orders, err := retry.Adoptions(ctx, s.store)
		if err == nil {
			for queue, r := range all {
				if a, is := orders[queue]; !is || !a.Order.Since.Equal(r.since) {
					r.stop()
				}
			}
			for queue, a := range orders {
				if _, runs := all[queue]; runs || !a.State.Ended.IsZero() {
					continue
				}
				one, stop := context.WithCancel(ctx)
				all[queue] = running{a.Order.Since, stop}
				w.Go(func() {
					s.adoptQueue(one, ctx, a)
					stop()
					select {
					case ended <- queue:
					case <-ctx.Done():
					}
				})
			}
		}
		select {
		case queue := <-ended:
			delete(all, queue)
		case <-time.After(adoptEvery):
		case <-ctx.Done():
			return
		}
	}
}

// adoptQueue carries out one order, until it is done, ctx ends, which is when it is removed, or service
// ends.
func (s *vhost) adoptQueue(ctx, service context.Context, a retry.AdoptStatus) {
	queue := a.Order.Queue
	log := s.Log.With("queue", queue)
	n := &adoptNotes{vhost: s, queue: queue, state: retry.AdoptState{Since: a.Order.Since, Left: a.State.Left}}
	intake := retry.NewAdoptedIntake(s.store, retry.Adoption{Queue: queue, Framework: a.Order.Preset, Since: a.Order.Since}, s.adoptedNames, s.events)
	intake.Obstacle, intake.Parked = s.cachedObstacle(), a.Order.Follow
	c := s.adoptConnection("redrive adopt " + queue)
	c.Observe = func(st broker.State) { n.connection(ctx, st) }
	adopter := broker.NewAdopter(c, queue)
	adopter.Follow, adopter.Rate, adopter.Left = a.Order.Follow, a.Order.Rate, func(left int) { n.left(ctx, left) }
	n.change(service, true, func(*retry.AdoptState) {}) // while there is a state, StopAdopting waits for its end
	log.Info("adopting a dead-letter queue", "follow", a.Order.Follow, "by", a.Order.By)
	for {
		err := adopter.Run(ctx, intake)
		switch {
		case service.Err() != nil:
			return
		case ctx.Err() != nil:
			_ = retry.NoteAdoption(service, s.store, queue, nil)
			log.Info("the dead-letter queue is no longer adopted")
			return
		case err == nil:
			n.end(service, "")
			log.Info("the dead-letter queue is adopted")
			return
		case !a.Order.Follow:
			n.end(service, err.Error())
			log.Error("the dead-letter queue cannot be adopted", "error", err)
			return
		}
		n.problem(service, err)
		select {
		case <-ctx.Done():
		case <-time.After(adoptAgain):
		}
	}
}

// adoptNotes writes the state of one order.
type adoptNotes struct {
	*vhost
	queue   string
	mu      sync.Mutex
	state   retry.AdoptState
	written time.Time
}

func (n *adoptNotes) left(ctx context.Context, left int) {
	n.change(ctx, false, func(s *retry.AdoptState) { s.Left, s.Problem = left, "" })
}

func (n *adoptNotes) connection(ctx context.Context, st broker.State) {
	if st.Err != nil {
		n.problem(ctx, st.Err)
	}
}

func (n *adoptNotes) problem(ctx context.Context, err error) {
	n.change(ctx, true, func(s *retry.AdoptState) { s.Problem = err.Error() })
}

func (n *adoptNotes) end(ctx context.Context, problem string) {
	n.change(ctx, true, func(s *retry.AdoptState) {
		s.Ended, s.Problem = time.Now().UTC(), problem
		if problem == "" {
			s.Left = 0
		}
	})
}

// change changes the state, and writes it at once or where that is due. A write that fails is made up for by the
// next one; the messages do not depend on it.
func (n *adoptNotes) change(ctx context.Context, atOnce bool, change func(*retry.AdoptState)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.state
	change(&n.state)
	if !atOnce && time.Since(n.written) < adoptEvery || n.state == was && !n.written.IsZero() || ctx.Err() != nil {
		return
	}
	if err := retry.NoteAdoption(ctx, n.store, n.queue, &n.state); err != nil {
		n.Log.Warn("the state of an adoption cannot be stored", "queue", n.queue, "error", hint.Text(err))
		return
	}
	n.written = time.Now()
}

// maxObstacles is how many queues an adoption asks RabbitMQ about: messages may name any.
const maxObstacles = 1000

// cachedObstacle returns a function that asks once for each queue why messages cannot be replayed there.
func (s *vhost) cachedObstacle() func(context.Context, string) string {
	known := map[string]string{}
	return func(ctx context.Context, queue string) string {
		why, is := known[queue]
		if !is && len(known) < maxObstacles {
			why = s.actions.Obstacle(ctx, queue)
			known[queue] = why
		}
		return why
	}
}

// peek shows messages of a queue that may be adopted.
func (s *vhost) peek(ctx context.Context, queue string, most int, visit func(*wire.Delivery)) (total, consumers int, err error) {
	return broker.Peek(ctx, s.adoptConnection("redrive adopt (preview)"), queue, most, visit)
}

// adoptConnection is a connection for a user's dead-letter queue. Its errors are shown with the adoption, and do
// not make the service unready.
func (s *vhost) adoptConnection(name string) broker.Config {
	return broker.Config{URL: s.config.Broker.URL, Credentials: s.config.Broker.Credentials, Name: name, Log: s.Log, Majority: true}
}

// lookupLimit is how long mayRetryTo waits for RabbitMQ's answer.
const lookupLimit = 3 * time.Second

// mayRetryTo tells whether messages can be retried to a queue; yes where that is not known.
func (s *vhost) mayRetryTo(ctx context.Context, queue string) bool {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	for {
		if yes, known := s.sender.MayRetryTo(queue); known {
			return yes
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(20 * time.Millisecond):
		}
	}
}
