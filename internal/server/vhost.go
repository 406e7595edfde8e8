package server

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// prefetch and the others are how many unacknowledged messages RabbitMQ delivers to each intake. store.ReceiptsKept
	// must be at least their sum plus the 1024 of adoptions; followed queues share the rest, followedPrefetch. From
	// quarantine it is one, so that messages before one that ends the connection are parked.
	prefetch           = 4096
	parkedPrefetch     = 1024
	quarantinePrefetch = 1
	followedPrefetch   = store.ReceiptsKept - prefetch - parkedPrefetch - quarantinePrefetch - 1024
	// grace is how long a stop waits for RabbitMQ to confirm what was published.
	grace = 10 * time.Second
)

// vhost serves one virtual host, with its own store, connections and scheduler. Virtual hosts of a process share only
// the port, the memory of disk stores and the bounds of requests.
type vhost struct {
	Options
	config *config.Config
	process
	store      engine
	metrics    *metrics.Metrics
	conditions *condition.Set
	// Each consumer, for the intake of that name.
	intakeConsumer, parkedConsumer, quarantineConsumer *broker.BatchConsumer
	intake                                             *retry.Intake
	parkedIntake, quarantineIntake                     *retry.ParkedIntake
	publisher                                          *broker.Publisher // of retries, replays and forwards
	delayPublisher                                     *broker.Publisher // to where messages wait in RabbitMQ
	delayQueues                                        *retry.DelayQueues
	sender                                             *retry.Sender
	names                                              *retry.ReportedNames
	deadLetters                                        *deadLetters
	followers                                          *followers
	queueWatch                                         *queueWatch
	checkup                                            *checkup
	scheduler                                          *retry.Scheduler
	wake                                               retry.Wakeup // of scheduler
	inForce                                            *retry.InForce
	throttle                                           *throttle.Throttle
	// consumerThrottle is the throttle that the scheduler calls.
	consumerThrottle *consumerThrottle
	limitsByPolicy   atomic.Pointer[map[string]throttle.Rules]
	outagePictures   outagePictures
	events           retry.Listener
	activity         activity
	stops            *stops
	decisions        inspect.Decisions
	inspect          *inspect.Inspector
	actions          *actions.Actions
	operations       *operations.Runner
	decoder          *decode.Decoder
	mask             atomic.Pointer[mask.Rules]
	audit            *audit.Log
	notify           *notify.Engine
	// notified has the settings that notify uses.
	notified       notify.Settings
	api            *httpapi.API
	guard          *auth.Guard
	replica        *Replica // nil: no other service can use the store
	since          time.Time
	openMetrics    atomic.Pointer[metrics.Metrics] // metrics; nil until open has set it
	openConditions atomic.Pointer[condition.Set]   // conditions; nil until open has set it
	openScheduler  atomic.Pointer[retry.Scheduler] // scheduler, likewise
	delayNeeded    chan struct{}                   // closed when a policy first waits in RabbitMQ
	delayOnce      sync.Once                       // closes delayNeeded
	refused        refusals
	unserved       []string // notices, see unservedIn
	nodes          nodes
	// ledgerOff has by how much the ledger is off, for queues where it is; nil before the first count.
	ledgerOff atomic.Pointer[map[string]int64]

	manage           *management.Client  // nil: none is configured
	consent          *management.Consent // to retries of reports, by queues that dead-letter to Redrive
	quarantine       quarantine
	foreignConsumers foreignConsumers
}

// process is what a virtual host gets from the process that serves it.
type process struct {
	// multiVHost is set if the process serves several virtual hosts: logs and metrics then name this one, and an error
	// of it does not end the process.
	multiVHost bool
	base       string               // path of its page and API
	links      func() []webui.VHost // its page's links to all virtual hosts; nil: there is one
	memory     *diskstore.Memory
	bounds     httpapi.Bounds
	large      *background.Places
}

// vhostLabel returns the virtual host's name if the process serves several, otherwise "".
func (s *vhost) vhostLabel() string {
	if !s.multiVHost {
		return ""
	}
	return s.config.VHost()
}

// metricsHandler serves the metrics, with the process's own if there is no other virtual host.
func (s *vhost) metricsHandler() http.Handler {
	if s.multiVHost {
		return s.metrics.Handler()
	}
	return metrics.Handler(s.metrics)
}

// newVHost opens the store. No message moves before run; close the store if you do not call run.
func newVHost(c *config.Config, o Options, at process) (*vhost, error) {
	s := &vhost{Options: o, process: at, config: c, since: time.Now(), delayNeeded: make(chan struct{}),
		wake: retry.NewWakeup(), refused: refusals{why: map[string]error{}}, nodes: nodes{at: map[string]string{}}}
	var err error
	synced := func(d time.Duration) {
		if m := s.openMetrics.Load(); m != nil {
			m.Synced(d)
		}
	}
	onDisk := diskstore.Options{FS: o.FS, Memory: at.memory, Log: o.Log, OnFull: s.diskFull, OnSync: synced}
	s.store, err = openStore(c, onDisk, func(err error) {
		if h := s.openConditions.Load(); h != nil {
			c := condition.Condition{Kind: condition.Redis}
			if err != nil {
				c.Text = strings.TrimPrefix(err.Error(), "redis: ")
			}
			h.Put(c)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := checkOwner(context.Background(), s.store, c); err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	return s, nil
}

// open creates and wires the rest; address is where the service listens.
func (s *vhost) open(address string) error {
	s.metrics = metrics.New(s.store, s.store.Free, s.Version, s.vhostLabel())
	s.openMetrics.Store(s.metrics)
	s.mask.Store(mask.New(s.config.Mask, s.config.Access.Bodies, s.config.Access.Show...))
	s.metrics.DeclaredAgain(0, broker.OwnNames()...)
	if shared, ok := s.store.(interface{ ID() string }); ok {
		s.metrics.Store(shared.ID())
	}
	s.conditions = newConditions(s.metrics, s.pausedQueues)
	s.stops = newStops()
	s.openConditions.Store(s.conditions)
	s.publisher = broker.NewPublisher(s.connection(condition.Publish, "redrive retries"))
	s.publisher.Confirmed = s.metrics.Confirmed
	s.openReplica(address)
	if err := s.openNotify(); err != nil {
		return err
	}
	s.events = s.listeners().event
	var err error
	if s.config.Broker.Management != "" {
		if s.manage, err = s.config.Broker.API(s.config.VHost()); err != nil {
			return err
		}
	}
	s.consent = management.NewConsent(s.manage, wire.ExchangeDeadLetters)
	s.inForce = retry.NewInForce(s.retryRules(s.config))
	if s.decoder, err = decode.New(s.config.Decode); err != nil {
		return err
	}
	s.sender = retry.NewSender(s.publisher, s.inForce.Policies, s.consent, func(queue string) time.Duration {
		return cmp.Or(s.queueLimits(queue).NoQueue, throttle.DefaultNoQueue)
	}, s.wake.Wake, s.events)
	s.names = retry.NewReportedNames(s.store, s.sender)
	s.delayPublisher = broker.NewPublisher(s.connection(condition.Delays, "redrive delays"))
	s.delayPublisher.Confirmed = s.metrics.Confirmed
	s.delayQueues = retry.NewDelayQueues(s.delayPublisher, s.inForce.Policies, s.consent, s.ConfirmTimeout,
		s.wayChanged)
	s.intake = retry.NewIntake(s.store, s.inForce, s.delayQueues, s.names, s.decodeForRules, s.events)
	s.intakeConsumer = broker.NewIntakeConsumer(s.connection(condition.Intake, "redrive intake"), prefetch,
		s.intakeState(condition.Store, wire.QueueIntake), s.quarantined)
	s.intakeConsumer.Redeclared, s.intakeConsumer.Consumers = s.redeclared, s.watchIntakeConsumers
	s.parkedIntake = retry.NewParkedIntake(s.store, s.inForce, s.names, s.delayQueues.MarkLost, s.events)
	s.parkedConsumer = broker.NewParkedConsumer(s.connection(condition.Parked, "redrive parked"), parkedPrefetch,
		s.intakeState(condition.ParkedStore, wire.QueueParked))
	s.parkedConsumer.Redeclared = s.redeclared
	s.quarantineIntake = retry.NewQuarantineIntake(s.store, s.names, s.events)
	at := s.connection("quarantine", "redrive quarantine")
	at.Observe = s.quarantineConnection
	s.quarantineConsumer = broker.NewQuarantineConsumer(at, quarantinePrefetch,
		s.intakeState(condition.ParkedStore, wire.QueueQuarantine))
	s.quarantineConsumer.Redeclared = s.redeclared
	s.openThrottle()
	s.scheduler = retry.NewScheduler(s.store, s.sender, s.consumerThrottle, s.wake, s.events, s.Log, s.laneChanged)
	s.openScheduler.Store(s.scheduler)
	s.deadLetters = newDeadLetters(s)
	s.followers = newFollowers(s.deadLetters)
	s.queueWatch = newQueueWatch(s)
	s.checkup = newCheckup(s)
	if err := s.openConsole(); err != nil {
		return err
	}
	s.readKnown(context.Background())
	if err := s.activity.load(context.Background(), s.store); err != nil {
		s.Log.Warn("the counts of the last hour are incomplete", "error", err)
	}
	return s.loadBreakers(context.Background())
}

func (s *vhost) listeners() *listeners {
	l := &listeners{log: s.Log, conditions: s.conditions, count: s.metrics.ListenerFailed}
	l.add("metrics", s.metrics.Event)
	l.add("rates", s.activity.event)
	l.add("policies", s.decisions.Event)
	l.add("notify", func(e retry.Event) {
		if e.Kind == retry.Parked {
			s.notify.Look()
		}
	})
	l.add("stops", s.stops.event) // before the throttle, which opens a breaker at the failure that stops has then
	l.add("throttle", func(e retry.Event) {
		elsewhere := e.Kind == retry.Failed && s.throttle.Failed(e.Queue, e.ID, e.At)
		if s.replica != nil {
			announce(s.replica, e, elsewhere)
		}
	})
	var warning sync.Mutex
	warned := map[string]bool{} // queues: one line each, and the metric counts on
	l.add("log", func(e retry.Event) {
		if e.Ignored == "" {
			return
		}
		warning.Lock()
		defer warning.Unlock()
		if !warned[e.Queue] && len(warned) < maxActiveQueues {
			warned[e.Queue] = true
			s.Log.Warn("a failed message has a header of ours that is no number: it was ignored; further ones of the "+
				"queue are only counted", "queue", e.Queue, "header", e.Ignored, "id", e.ID)
		}
	})
	l.add("canary", func(e retry.Event) {
		if e.Kind == retry.Failed {
			s.operations.Failed(e)
		}
	})
	l.add("setup", (&setupFaults{conditions: s.conditions, put: map[string]time.Time{}}).event)
	if s.Events != nil {
		l.add("options", s.Events)
	}
	return l
}

func (s *vhost) brokerConfig(name string) broker.Config {
	return broker.Config{URL: s.config.Broker.URL, Credentials: s.config.Broker.Credentials, Name: name, Log: s.Log}
}

// connection configures a connection whose state is a condition.
func (s *vhost) connection(part condition.Kind, name string) broker.Config {
	to := s.brokerConfig(name)
	to.Majority, to.Lasting = true, s.multiVHost
	to.Observe = func(st broker.State) {
		c := condition.Condition{Kind: part}
		switch {
		case errors.As(st.Err, new(net.Error)):
			c.Text = condition.Silent + ": " + st.Err.Error()
		case st.Err != nil:
			c.Text = st.Err.Error()
		case !st.Connected:
			c.Text = "not connected"
		case st.Blocked != "":
			c.Text, c.Alarm = "blocked by an alarm of RabbitMQ: "+st.Blocked, true
		}
		s.nodes.set(string(part), st)
		s.conditions.Put(c)
		s.metrics.Connection(string(part), st.Connected, st.Blocked != "")
	}
	return to
}

// retryRules returns the policies and ways to wait of a configuration, and puts the throttle's limits in force. The
// first policy that waits in RabbitMQ makes the delay connection open.
func (s *vhost) retryRules(c *config.Config) retry.Rules {
	if len(c.Ways) > 0 {
		s.delayOnce.Do(func() {
			s.conditions.Put(condition.Condition{Kind: condition.Delays, Text: "connecting"})
			close(s.delayNeeded)
		})
	}
	s.limitsByPolicy.Store(&c.Throttle)
	return retry.Rules{Policies: c.Policies, Ways: c.Ways}
}

// awaitDelayPublisher waits for the delay connection, so that even the first message of a policy that waits in RabbitMQ
// waits there.
func (s *vhost) awaitDelayPublisher(ctx context.Context) {
	if len(s.config.Ways) > 0 {
		ctx, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		s.delayPublisher.AwaitUsable(ctx)
	}
}

// maxForRules is the maximum size in bytes of a body that is decoded for a policy's rules.
const maxForRules = 1 << 20

func (s *vhost) decodeForRules(r *store.Record) any {
	if len(r.Message.Body) > maxForRules {
		return nil
	}
	return s.decoder.Decode(context.Background(), inspect.BodyOf(r))
}

// wayChanged logs that RabbitMQ does not confirm messages of a way to wait, or does again.
func (s *vhost) wayChanged(way string, err error) {
	s.refused.set(way, err)
	if err != nil {
		s.Log.Warn("RabbitMQ does not confirm messages that are to wait in it: they wait in the store", "wait", way,
			"error", err)
	} else {
		s.Log.Info("messages wait in RabbitMQ again", "wait", way)
	}
}

// intakeState returns a function that logs once that messages of one of our queues cannot be stored, and once that they
// can again. It does not compare the error's text, which may change with each try; but it logs a full store by itself,
// as the remedy differs.
func (s *vhost) intakeState(kind condition.Kind, queue string) func(error) {
	var since time.Time // when the intake stopped; zero: it runs
	full := false
	return func(err error) {
		was, wasFull := since, full
		full = errors.Is(err, store.ErrFull)
		if err == nil {
			since = time.Time{}
			s.conditions.Put(condition.Condition{Kind: kind})
			if !was.IsZero() {
				s.Log.Info("intake resumed", "queue", queue, "after", time.Since(was).Round(time.Millisecond))
			}
			return
		}
		s.conditions.Put(condition.Condition{Kind: kind, Text: err.Error()})
		if was.IsZero() {
			since = time.Now()
		}
		if was.IsZero() || full != wasFull {
			s.Log.Error("intake stopped: messages stay in RabbitMQ until they can be stored", "queue", queue,
				"error", err)
		}
	}
}

// laneChanged logs once that publishing to a lane fails, and once that it works again.
func (s *vhost) laneChanged(lane store.Lane, err error) {
	if errors.Is(err, retry.ErrUnanswered) && !s.publisher.Ready() {
		return // the connection is the problem, say an alarm, and has its own condition
	}
	c := ofLane(lane)
	failed := s.conditions.Text(c) != ""
	if err != nil {
		c.Text = err.Error()
	}
	s.conditions.Put(c)
	if !lane.Forwards() {
		s.stops.publish(lane.Queue, err, time.Now())
	}
	if failed == (err != nil) {
		return // a target that hangs is unanswered and refused by turns; /readyz has the latest
	}
	switch log := s.Log.With("queue", lane.Queue); {
	case lane.Forwards() && err != nil:
		log.Warn("nothing is forwarded there for now; the messages wait, and retries continue", "to",
			lane.Forward.String(), "error", err)
	case lane.Forwards():
		log.Info("messages are forwarded there again", "to", lane.Forward.String())
	case err != nil:
		log.Warn("retries of the queue fail for now; its messages wait", "error", err)
	default:
		log.Info("retries of the queue work again")
	}
}

// run works until ctx ends, then stops in order: the intake finishes its batch, published retries are confirmed, and
// the connections close. HTTP requests may still be under way then; close comes after them. It returns only errors that
// trying again cannot repair.
func (s *vhost) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var publishers, workers sync.WaitGroup
	publishers.Go(func() { _ = s.publisher.Run(publishing) })
	publishers.Go(func() {
		select {
		case <-s.delayNeeded:
			_ = s.delayPublisher.Run(publishing)
		case <-publishing.Done():
		}
	})
	notifying, stopNotifying := context.WithCancel(context.WithoutCancel(ctx))
	var notifier sync.WaitGroup
	notifier.Go(func() { s.activity.keep(notifying, s.store) })
	notifier.Go(func() { s.stops.keep(notifying, s.store) })
	if s.replica == nil {
		notifier.Go(func() { s.notify.Run(notifying) })
		workers.Go(func() { s.guard.Forget(ctx) })
		workers.Go(func() { s.removeRetryExchanges(ctx) })
	} else {
		workers.Go(func() { s.replica.Run(ctx) })
	}
	workers.Go(func() { s.scheduler.Run(ctx, grace) })
	for _, run := range []func(context.Context){s.consumerThrottle.run, s.consent.Run, s.watchLimit, s.watchForeign,
		s.watchGroups, s.inspect.Run, s.operations.Run, s.deadLetters.run, s.followers.run, s.queueWatch.run,
		s.checkup.run} {
		workers.Go(func() { run(ctx) })
	}
	var failures [3]error
	for i, consume := range []func() error{
		func() error { s.awaitDelayPublisher(ctx); return s.intakeConsumer.Run(ctx, s.intake) },
		func() error { return s.parkedConsumer.Run(ctx, s.parkedIntake) },
		func() error { return s.quarantineConsumer.Run(ctx, s.quarantineIntake) },
	} {
		workers.Go(func() {
			defer stop()
			failures[i] = consume()
		})
	}

	workers.Wait()
	s.sender.Close()
	stopPublishing()
	publishers.Wait()
	s.delayQueues.Wait()
	stopNotifying() // last, so that no event is lost
	notifier.Wait()
	return errors.Join(failures[:]...)
}

func (s *vhost) reload(c *config.Config) {
	s.inForce.Replace(s.retryRules(c))
	s.followers.configured.Store(&c.Adopt)
	s.queueWatch.configured.Store(&c.Watch)
	s.wake.Wake()
	s.mask.Store(mask.New(c.Mask, s.config.Access.Bodies, s.config.Access.Show...))
	s.Log.Info("the new policies are in force", "policies", len(c.Policies))
}

// outagePictures has a picture of each policy in an outage, drawn when it is first shown and after the policy has
// changed.
type outagePictures struct {
	mu    sync.Mutex // draws one at a time: each takes a second
	drawn map[string]outagePicture
}

type outagePicture struct {
	policy policy.Policy
	rules  throttle.Rules
	svg    template.HTML
}

// drawOutage draws what a policy in force would do in an outage. Policies that wait in RabbitMQ have no picture: no
// throttle limits them.
func (s *vhost) drawOutage(ctx context.Context, name string) template.HTML {
	for _, p := range s.inForce.Policies() {
		if p.Name == name && s.inForce.Way(name) == nil {
			return s.outagePictures.draw(ctx, p, s.policyLimits(name))
		}
	}
	return ""
}

func (s *outagePictures) draw(ctx context.Context, p policy.Policy, r throttle.Rules) template.HTML {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is, ok := s.drawn[p.Name]; ok && reflect.DeepEqual(is.policy, p) && reflect.DeepEqual(is.rules, r) {
		return is.svg
	}
	result, err := simulate.Run(ctx, simulate.Brief(p, r))
	if err != nil {
		return "" // the request was cancelled, or nothing can be drawn
	}
	if s.drawn == nil || len(s.drawn) > 1000 { // with names of past policies
		s.drawn = map[string]outagePicture{}
	}
	svg := template.HTML(result.SVG()) // its texts are escaped
	s.drawn[p.Name] = outagePicture{p, r, svg}
	return svg
}

// openReplica creates the replica, if the store can be shared.
func (s *vhost) openReplica(listen string) {
	shared, ok := s.store.(store.Shared)
	if !ok {
		return
	}
	address := advertised(listen)
	s.replica = NewReplica(shared, func() cluster.About {
		return cluster.About{Address: address, Version: s.Version, Since: s.since, Conditions: s.conditions.All(),
			NotReady: !s.conditions.Ready(), CanPublish: s.publisher.Ready()}
	}, s.Log)
	s.metrics.Replicas(s.replica.All)
}

// countFlow counts what happened to a queue at another replica.
func (s *vhost) countFlow(queue string, n [flowKinds]int64, at time.Time) {
	s.activity.count(queue, n, at)
	if n[flowParked] > 0 {
		s.notify.Look()
	}
}

// announce announces an event that other replicas count too. elsewhere reports whether a message failed that was not
// retried here.
func announce(r *Replica, e retry.Event, elsewhere bool) {
	if elsewhere {
		r.AnnounceFailed(e.Queue, e.ID)
	}
	if kind, counted := flowOf[e.Kind]; counted {
		var n [flowKinds]int64
		n[kind] = int64(max(1, e.N))
		r.AnnounceFlow(e.Queue, n)
	}
}

// advertised returns an address at which other machines may reach this one.
func advertised(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return listen
	}
	name, err := os.Hostname()
	if err != nil {
		return listen
	}
	return net.JoinHostPort(name, port)
}

func (s *vhost) pausedQueues() []string {
	if open := s.openScheduler.Load(); open != nil {
		return open.Paused()
	}
	return nil
}

// conditionsAnywhere returns the conditions of each live replica, this one first.
func (s *vhost) conditionsAnywhere() [][]condition.Condition {
	all := [][]condition.Condition{s.conditions.All()}
	if s.replica != nil {
		for _, r := range s.replica.All() {
			if !r.Self {
				all = append(all, r.Conditions)
			}
		}
	}
	return all
}
