package server

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/migrate"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// prefetch is how many failed messages RabbitMQ may have outstanding to the
	// intake, and parked ones to the collection. store.ReceiptsKept must not be
	// less than both.
	prefetch       = 4096
	parkedPrefetch = 1024
	// grace is how long a stop waits for RabbitMQ's answers to what was sent.
	grace = 10 * time.Second
)

// tenant is all that serves one virtual host. It knows nothing of others, and shares
// nothing with them but the port.
type tenant struct {
	Options
	config *config.Config
	place
	store   engine
	metrics *metrics.Metrics
	health  *health
	flow    *retry.Intake
	give    *retry.Sender
	intake  *broker.Intake
	parked  *broker.Intake
	publish *broker.Publisher
	delays  *broker.Publisher // to where messages wait in RabbitMQ
	hold    *retry.DelayQueues
	collect *retry.Collector
	loop    *retry.Scheduler
	gate    *throttle.Throttle
	// consumers is the gate as the loop sees it.
	consumers *consumers
	throttles atomic.Pointer[map[string]throttle.Rules] // by policy
	storms    storms
	events    retry.Listener
	rates     rates
	console   *console.Console
	decoder   *decode.Decoder
	audit     *audit.Log
	notify    *notify.Engine
	// notified are the settings of notify that are in force.
	notified notify.Settings
	api      *httpapi.API
	guarded  *auth.Guard
	replica  *replica // nil: the store is this service's alone
	since    time.Time
	metered  atomic.Pointer[metrics.Metrics] // nil: not yet there, as the store is opened
	told     atomic.Pointer[health]          // the same
	delayed  chan struct{}                   // closed when a policy first waits in RabbitMQ
	start    sync.Once
	refused  refusals
	unserved []string // notices of stores below its own: see unservedIn
	nodes    nodes
	ledger   ledgerState

	manage     *management.Client // nil: none is configured
	consent    *management.Consent
	quarantine atomic.Int64 // messages in it
	strangers  strangers
}

// place is where a tenant is in the process that serves it.
type place struct {
	// among: others are served by the same process. What is said tells which this one
	// is, and nothing that is wrong with it ends the process.
	among  bool
	base   string               // the path that its page and API are under
	all    func() []webui.VHost // for its page to lead to the others; nil: there are none
	memory *diskstore.Memory
}

// called is what people must name to reach it; "" where it is alone.
func (s *tenant) called() string {
	if !s.among {
		return ""
	}
	return s.config.VHost()
}

// labels are on all of its metrics.
func (s *tenant) labels() prometheus.Labels {
	if !s.among {
		return nil
	}
	return prometheus.Labels{"vhost": s.called()}
}

// meters serves its metrics, and those of the process where that is its own.
func (s *tenant) meters() http.Handler {
	if s.among {
		return s.metrics.Handler()
	}
	return metrics.Handler(s.metrics)
}

// newTenant opens the store. Nothing moves before run; close it if that is not called.
func newTenant(c *config.Config, o Options, at place) (*tenant, error) {
	s := &tenant{Options: o, place: at, config: c, since: time.Now(), delayed: make(chan struct{})}
	var err error
	s.store, err = openStore(c, at.memory, o.Log, func(d time.Duration) {
		if m := s.metered.Load(); m != nil {
			m.Synced(d)
		}
	}, func(err error) {
		if h := s.told.Load(); h != nil {
			h.set(partServer, because(err))
		}
	})
	if err != nil {
		return nil, err
	}
	if err := s.owned(context.Background()); err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	return s, nil
}

// owned refuses a store that is not for this service.
func (s *tenant) owned(ctx context.Context) error {
	if err := migrate.Refuse(ctx, s.store); err != nil {
		return err
	}
	return own(ctx, s.store, s.config)
}

// open makes all parts; address is where the service listens.
func (s *tenant) open(address string) error {
	s.metrics = metrics.New(s.store, s.store.Free, s.Version, s.labels())
	s.metered.Store(s.metrics)
	s.metrics.Restored(0, broker.OwnNames()...)
	if shared, ok := s.store.(interface{ ID() string }); ok {
		s.metrics.Store(shared.ID())
	}
	s.health = newHealth(s.Log, s.metrics)
	s.told.Store(s.health)
	s.publish = broker.NewPublisher(s.connection(partPublish, "redrive returns"))
	s.publish.Confirmed = s.metrics.Confirmed
	s.openFleet(address)
	if err := s.openNotify(); err != nil {
		return err
	}
	s.events = s.listeners().event
	policies := func() policy.Set { return s.flow.Policies() }
	s.delays = broker.NewPublisher(s.connection(partDelays, "redrive delays"))
	s.delays.Confirmed = s.metrics.Confirmed
	s.hold = retry.NewDelayQueues(s.delays, policies, s.waysFail)
	s.flow = retry.NewIntake(s.store, s.rules(s.config), s.hold, s.events)
	s.intake = broker.NewIntake(s.connection(partIntake, "redrive intake"), prefetch, s.stopped(partStore, wire.QueueIntake), s.quarantined)
	s.intake.Restored, s.intake.Consumers = s.restored, s.intakeConsumers
	s.collect = retry.NewCollector(s.store, s.hold.Forget, s.events)
	s.parked = broker.NewParkedIntake(s.connection(partParked, "redrive parked"), parkedPrefetch, s.stopped(partParkedStore, wire.QueueParked))
	s.parked.Restored = s.restored
	s.give = retry.NewSender(s.publish, policies, s.events)
	if err := s.openConsent(); err != nil {
		return err
	}
	s.openThrottle()
	names := retry.NewNames(s.store, s.give)
	s.flow.UseReportedNames(names, s.give)
	s.collect.UseReportedNames(names)
	s.loop = retry.NewScheduler(s.store, s.give, s.consumers, s.events, s.Log, s.laneFailed)
	if err := s.openConsole(); err != nil {
		return err
	}
	return s.loadBreakers(context.Background())
}

// listeners are all that hear of events.
func (s *tenant) listeners() *listeners {
	l := &listeners{log: s.Log, health: s.health, count: s.metrics.ListenerFailed}
	l.add("metrics", s.metrics.Event)
	l.add("rates", s.rates.event)
	l.add("notify", s.notify.Event)
	l.add("throttle", func(e retry.Event) {
		elsewhere := e.Kind == retry.Failed && s.gate.Failed(e.Queue, e.ID, e.At)
		if s.replica != nil {
			s.replica.event(e, elsewhere)
		}
	})
	l.add("canary", func(e retry.Event) {
		if e.Kind == retry.Failed {
			s.console.Failed(e)
		}
	})
	if s.Events != nil {
		l.add("options", s.Events)
	}
	return l
}

// close frees what newTenant and open took.
func (s *tenant) close() (err error) {
	if s.audit != nil {
		err = s.audit.Close()
	}
	return errors.Join(err, s.store.Close())
}

func (s *tenant) connection(part, name string) broker.Config {
	return broker.Config{URL: s.config.Broker.URL, Credentials: s.config.Broker.Credentials, Name: name, Log: s.Log, Majority: true, Lasting: s.among, Observe: func(st broker.State) {
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
func (s *tenant) rules(c *config.Config) retry.Rules {
	if len(c.Ways) > 0 {
		s.start.Do(func() {
			s.health.set(partDelays, "connecting")
			close(s.delayed)
		})
	}
	s.throttles.Store(&c.Throttle)
	return retry.Rules{Policies: c.Policies, Ways: c.Ways}
}

// awaitDelays lets what waits in RabbitMQ go there from the first message on.
func (s *tenant) awaitDelays(ctx context.Context) {
	if len(s.config.Ways) > 0 {
		ctx, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		s.delays.Await(ctx)
	}
}

// waysFail says, once, that RabbitMQ does not take messages that are to wait in
// it, and that it does again.
func (s *tenant) waysFail(way string, err error) {
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
func (s *tenant) stopped(part, queue string) func(error) {
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

// laneFailed says, once, that a lane takes nothing, and that it does again.
func (s *tenant) laneFailed(lane store.Lane, err error) {
	what := ""
	if err != nil {
		what = err.Error()
	}
	if !s.health.set(partOf(lane), what) {
		return
	}
	switch log := s.Log.With("queue", lane.Queue); {
	case lane.Forwards() && err != nil:
		log.Warn("nothing is forwarded there for now; the messages wait, and retries go on", "to", lane.Forward.String(), "error", err)
	case lane.Forwards():
		log.Info("messages are forwarded there again", "to", lane.Forward.String())
	case err != nil:
		log.Warn("retries of the queue fail for now; its messages wait", "error", err)
	default:
		log.Info("retries of the queue work again")
	}
}

// run works until ctx ends, then stops in order: the intake finishes its batch, returns
// under way get their answers, and the connections close. What is asked and done by
// HTTP is not its own: close comes after that. Its error is one that trying again would
// not repair.
func (s *tenant) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var failure, parkedFailure error
	var publishers, workers sync.WaitGroup
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
	if s.replica == nil {
		notifier.Go(func() { s.notify.Run(notifying) })
	} else { // it tells while it leads
		notifier.Go(func() { s.notify.Relay(notifying) })
		workers.Go(func() { s.replica.Run(ctx) })
	}
	workers.Go(func() { s.loop.Run(ctx, grace) })
	workers.Go(func() { s.consumers.run(ctx) })
	workers.Go(func() { s.consent.Run(ctx) })
	workers.Go(func() { s.watchLimit(ctx) })
	workers.Go(func() { _ = s.console.Run(ctx) })
	workers.Go(func() {
		defer stop()
		s.awaitDelays(ctx)
		failure = s.intake.Run(ctx, s.flow)
	})
	workers.Go(func() {
		defer stop()
		parkedFailure = s.parked.Run(ctx, s.collect)
	})

	workers.Wait()
	s.give.Close()
	stopPublishing()
	publishers.Wait()
	s.hold.Wait()
	stopNotifying() // when nothing happens any more, so that all that happened is kept
	notifier.Wait()
	return errors.Join(failure, parkedFailure)
}

// follow puts new policies in force.
func (s *tenant) follow(c *config.Config) {
	s.flow.SetRules(s.rules(c))
	s.loop.Wake()
	s.Log.Info("the new policies are in force", "policies", len(c.Policies))
}
