// Package app puts the service together: the only package that knows every
// implementation, and the one that starts and stops them in order.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/flow"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/migrate"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/release"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/wait/stored"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Options of a service beyond its configuration.
type Options struct {
	Version string
	Log     *slog.Logger
	// Watch, when not nil, sends configurations to change to while it runs; an
	// error means that one was refused.
	Watch func(ctx context.Context, changed func(*config.Config, error))
	// Events, when not nil, is told of every event.
	Events flow.Listener
}

const (
	// prefetch is how many failed messages RabbitMQ may have outstanding to the
	// intake, and parked ones to the collection. store.ReceiptsKept must not be
	// less than both.
	prefetch       = 4096
	parkedPrefetch = 1024
	// grace is how long a stop waits for RabbitMQ's answers to what was sent.
	grace = 10 * time.Second
)

// Service is one running Redrive. Make it with New, run it once with Run.
type Service struct {
	Options
	config  *config.Config
	store   engine
	metrics *metrics.Metrics
	health  *health
	flow    *flow.Flow
	give    *flow.GiveBack
	intake  *broker.Intake
	parked  *broker.Intake
	publish *broker.Publisher
	delays  *broker.Publisher // to where messages wait in RabbitMQ
	hold    *flow.Hold
	collect *flow.Collector
	loop    *stored.Loop
	gate    *release.Gate
	// consumers is the gate as the loop sees it.
	consumers *consumers
	returns   atomic.Pointer[map[string]release.Rules] // by policy
	storms    storms
	events    flow.Listener
	rates     rates
	console   *console.Console
	decoder   *decode.Decoder
	audit     *audit.Log
	notify    *notify.Engine
	// notified are the settings of notify that are in force.
	notified notify.Settings
	api      *api.API
	secure   *tls.Config // nil: plain HTTP
	listen   net.Listener
	// requests is held by each for reading, and for good once nobody is answered.
	requests sync.RWMutex
	guarded  *auth.Guard
	fleet    *fleet // nil: the store is this service's alone
	since    time.Time
	aside    atomic.Int64
	delayed  chan struct{} // closed when a policy first waits in RabbitMQ
	start    sync.Once
	refused  refusals
	nodes    nodes
	ledger   ledgerState
}

// New opens the store and the port; nothing moves before Run. Close it if Run is
// not called.
func New(c *config.Config, o Options) (*Service, error) {
	if err := c.Closed(); err != nil {
		return nil, err
	}
	s := &Service{Options: o, config: c, since: time.Now(), delayed: make(chan struct{})}
	var err error
	var metered atomic.Pointer[metrics.Metrics] // a store that others left in a mess writes as it is opened
	s.store, err = openStore(c, o.Log, func(d time.Duration) {
		if m := metered.Load(); m != nil {
			m.Synced(d)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := migrate.Refuse(context.Background(), s.store); err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	if s.listen, err = listenOn(c); err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	s.metrics = metrics.New(s.store, s.store.Free, o.Version)
	metered.Store(s.metrics)
	s.health = newHealth(o.Log, s.metrics)
	s.publish = broker.NewPublisher(s.connection(partPublish, "redrive returns"))
	s.openFleet()
	if err := s.openNotify(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.events = func(e flow.Event) {
		s.metrics.Event(e)
		s.rates.event(e)
		s.notify.Event(e)
		elsewhere := e.Kind == flow.Failed && s.gate.Failed(e.Queue, e.ID, e.At)
		if s.fleet != nil {
			s.fleet.event(e, elsewhere)
		}
		if o.Events != nil {
			o.Events(e)
		}
	}
	policies := func() policy.Set { return s.flow.Policies() }
	s.delays = broker.NewPublisher(s.connection(partDelays, "redrive delays"))
	s.hold = flow.NewHold(publisher{s.delays, s.metrics.Confirmed}, policies, s.waysFail)
	s.flow = flow.New(s.store, s.rules(c), s.hold, s.events)
	s.intake = broker.NewIntake(s.connection(partIntake, "redrive intake"), prefetch, s.stopped(partStore, wire.QueueIntake), s.setAside)
	s.collect = flow.NewCollector(s.store, s.hold.Forget, s.events)
	s.parked = broker.NewParkedIntake(s.connection(partParked, "redrive parked"), parkedPrefetch, s.stopped(partParkedStore, wire.QueueParked))
	s.give = flow.NewGiveBack(publisher{s.publish, s.metrics.Confirmed}, policies, s.events)
	s.openGate()
	s.loop = stored.New(s.store, s.give, s.consumers, s.events, o.Log, s.returnsFailed)
	if err := s.openConsole(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.loadBreakers(context.Background()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close frees what New took.
func (s *Service) Close() error {
	err := s.listen.Close()
	if s.audit != nil {
		err = errors.Join(err, s.audit.Close())
	}
	return errors.Join(err, s.store.Close())
}

// Addr is where it listens.
func (s *Service) Addr() string { return s.listen.Addr().String() }

func (s *Service) connection(part, name string) broker.Config {
	return broker.Config{URL: s.config.Broker.URL, Name: name, Log: s.Log, Majority: true, Observe: func(st broker.State) {
		what := ""
		switch {
		case st.Err != nil:
			what = st.Err.Error()
		case !st.Connected:
			what = "not connected"
		case st.Blocked != "":
			what = blockedBy + st.Blocked
		}
		s.nodes.set(part, st)
		s.health.set(part, what)
		s.metrics.Connection(part, st.Connected, st.Blocked != "")
	}}
}

// rules are those of a configuration. The connection to where messages wait in
// RabbitMQ is made when there is the first policy that needs it.
func (s *Service) rules(c *config.Config) flow.Rules {
	if len(c.Ways) > 0 {
		s.start.Do(func() {
			s.health.set(partDelays, "connecting")
			close(s.delayed)
		})
	}
	s.returns.Store(&c.Returns)
	return flow.Rules{Policies: c.Policies, Ways: c.Ways}
}

// awaitDelays lets what waits in RabbitMQ go there from the first message on.
func (s *Service) awaitDelays(ctx context.Context) {
	if len(s.config.Ways) > 0 {
		ctx, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		s.delays.Await(ctx)
	}
}

// waysFail says, once, that RabbitMQ does not take messages that are to wait in
// it, and that it does again.
func (s *Service) waysFail(way string, err error) {
	s.refused.set(way, err)
	if err != nil {
		s.Log.Warn("RabbitMQ does not take messages that are to wait in it: they wait in the store", "wait", way, "error", err)
	} else {
		s.Log.Info("messages wait in RabbitMQ again", "wait", way)
	}
}

// stopped says, once, that the messages of one of our queues cannot be kept, and
// that they can again. Each try may fail with other words; that the store is full is
// something else to see to.
func (s *Service) stopped(part, queue string) func(error) {
	var since time.Time // zero: it goes on
	full := false
	return func(err error) {
		now, was, wasFull := time.Now(), since, full
		full = errors.Is(err, store.ErrFull)
		if err == nil {
			since = time.Time{}
			s.health.set(part, "")
			if !was.IsZero() {
				s.Log.Info("intake goes on", "queue", queue, "after", now.Sub(was).Round(time.Millisecond))
			}
			return
		}
		s.health.set(part, err.Error())
		if was.IsZero() {
			since = now
		}
		if was.IsZero() || full != wasFull {
			s.Log.Error("intake stopped: messages stay in RabbitMQ until they can be kept", "queue", queue, "error", err)
		}
	}
}

// setAside says, once, how many messages RabbitMQ could not deliver and has put
// out of the way of the others.
func (s *Service) setAside(n int) {
	was := s.aside.Swap(int64(n))
	if was == int64(n) {
		return
	}
	s.metrics.Aside(n)
	if notice := s.Notices(); int64(n) > was {
		s.Log.Warn(notice[0])
	}
}

// returnsFailed says, once, that a queue's returns fail, and that they work
// again.
func (s *Service) returnsFailed(queue string, err error) {
	what := ""
	if err != nil {
		what = err.Error()
	}
	if !s.health.set(partQueue+queue, what) {
		return
	}
	if err != nil {
		s.Log.Warn("nothing returns to the queue for now; its messages wait", "queue", queue, "error", err)
	} else {
		s.Log.Info("messages return to the queue again", "queue", queue)
	}
}

// Run works until ctx ends, then stops in order: the intake finishes its batch,
// returns under way get their answers, the connections and the store close. Its
// error is one that trying again would not mend.
func (s *Service) Run(ctx context.Context) error {
	server := s.server()
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	server.BaseContext = func(net.Listener) context.Context { return requests }
	s.Log.Info("redrive is running", "version", s.Version, "broker", addresses.Redact(s.config.Broker.URL), "data", s.config.Store.Place(), "listen", s.Addr())

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var failure, parkedFailure error
	var faces, publishers, workers sync.WaitGroup
	faces.Go(func() { s.serve(server) })
	publishers.Go(func() { _ = s.publish.Run(publishing) })
	publishers.Go(func() {
		select {
		case <-s.delayed:
			_ = s.delays.Run(publishing)
		case <-publishing.Done():
		}
	})
	notifying, stopNotifying := context.WithCancel(context.WithoutCancel(ctx))
	var notifier sync.WaitGroup
	if s.fleet == nil {
		notifier.Go(func() { s.notify.Run(notifying) })
	} else { // it tells while it leads
		notifier.Go(func() { s.notify.Relay(notifying) })
		workers.Go(func() { s.fleet.Run(ctx) })
	}
	workers.Go(func() { s.loop.Run(ctx, grace) })
	workers.Go(func() { s.consumers.run(ctx) })
	workers.Go(func() { _ = s.console.Run(ctx) })
	workers.Go(func() {
		defer stop()
		s.awaitDelays(ctx)
		failure = s.intake.Run(ctx, taker{s.flow})
	})
	workers.Go(func() {
		defer stop()
		parkedFailure = s.parked.Run(ctx, taker{s.collect})
	})
	if s.Watch != nil {
		workers.Go(func() { s.Watch(ctx, s.reload) })
	}

	workers.Wait()
	stopPublishing()
	publishers.Wait()
	s.hold.Wait()
	stopNotifying() // when nothing happens any more, so that all that happened is kept
	notifier.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = server.Shutdown(closing)
	_ = server.Close()
	faces.Wait()
	endRequests()
	s.requests.Lock()
	err := errors.Join(s.audit.Close(), s.store.Close())
	s.Log.Info("redrive has stopped")
	return errors.Join(failure, parkedFailure, err)
}

func (s *Service) errorLog() *log.Logger { return slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn) }

// reload puts new policies in force, and reads bodies by the new schemas. Where to
// connect, keep and listen, and who may, is fixed until the next start.
func (s *Service) reload(c *config.Config, err error) {
	if err == nil {
		err = s.decoder.Reload(c.Decode)
	}
	if err == nil {
		err = s.reloadNotify(c)
	}
	s.metrics.ConfigLoaded(err == nil)
	if err != nil {
		s.Log.Error("the new config is refused; the old one stays in force", "error", err)
		return
	}
	for _, w := range c.Warnings {
		s.Log.Warn("config: " + w)
	}
	if c.Broker != s.config.Broker || c.Store != s.config.Store || c.Listen != s.config.Listen || !reflect.DeepEqual(c.Access, s.config.Access) {
		s.Log.Warn("config: broker, store, listen, auth, tls, read_only and audit take effect at the next start; policies, notify and decode do now")
	}
	s.flow.SetRules(s.rules(c))
	s.loop.Wake()
	s.Log.Info("the new policies are in force", "policies", len(c.Policies))
}
