package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/wire"
)

// notices returns what needs a person's attention, though it stops nothing.
func (s *vhost) notices() []string {
	all := slices.Concat(s.refused.notices(), s.damaged(), s.unserved)
	if kept, ok := s.store.(interface{ Notices() []string }); ok {
		all = append(all, kept.Notices()...)
	}
	if err := s.auditShort(); err != nil {
		all = append(all, err.Error())
	}
	if n := s.quarantine.messages.Load(); n > 0 && s.quarantine.stuck.Load() {
		all = append(all, fmt.Sprintf("messages in RabbitMQ's queue %s that cannot be parked: %d, as RabbitMQ cannot "+
			"deliver the first (this shows it and removes it: %s)", wire.QueueQuarantine, n,
			broker.RemoveQuarantined(s.config.VHost())))
	}
	return all
}

// auditShort returns an error if less than store.reserve is free.
func (s *vhost) auditShort() error {
	free, reserve, err := s.store.Free()
	if err != nil || free >= reserve { // if it is not known, do not stop anyone
		return nil
	}
	return hint.Errorf("make room", "the store has %d MiB free, less than the %d MiB of store.reserve: only "+
		"administrators can act", free>>20, reserve>>20)
}

// console has all methods that page and API call.
type console struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
}

func (c console) Act(ctx context.Context, by auth.Caller, act actions.Act) (actions.Acted, error) {
	return c.Runner.Act(ctx, by, act)
}

func (s *vhost) openConsole() (err error) {
	s.audit = audit.New(s.store, s.Log)
	s.openActions()
	tokens := auth.NewTokens(s.store, s.audit)
	if s.guard, err = s.newGuard(tokens); err != nil {
		return err
	}
	all := console{s.inspect, s.actions, s.operations}
	s.api = httpapi.New(httpapi.Config{
		Console: all, Decoder: s.decoder, Metrics: s.metricsHandler(),
		Conditions: s.conditions.List, Notices: s.notices, Ready: s.inspect.IsReady, Guard: s.guard, Tokens: tokens,
		Bounds: s.bounds, Log: s.Log, Base: s.base,
	})
	for pattern, h := range webui.Routes(all, webui.Options{
		Caller:     func(r *http.Request) auth.Caller { return auth.From(r.Context()) },
		Conditions: s.inspect.ConditionsFor, Simulation: s.drawOutage, Version: s.Version, Log: s.Log,
		Base: s.base, VHost: s.vhostLabel(), VHosts: s.links, Guard: s.guard,
		Restorable: s.config.Store.Restorable,
	}) {
		s.api.Handle(pattern, h)
	}
	return nil
}

func (s *vhost) openActions() {
	c := inspect.Config{
		Store: s.store, Broker: brokerQueues{s},
		Audit: s.audit, Policies: s.inForce.Policies, Decisions: &s.decisions, Log: s.Log,
		Version: s.Version, Since: s.since, ReadOnly: s.config.Access.ReadOnly, BrokerURL: s.brokerAt,
		Activity: &s.activity, Stops: s.stops.of, Conditions: s.conditions.All, Notices: s.notices,
		Ready: s.conditions.Ready,
		Parts: s.parts(), Checkup: s.checkup.latest,
		Decoder: s.decoder, Way: s.inForce.Way, Mask: s.mask.Load,
		Limits:    func(policy string) string { return s.policyLimits(policy).String() },
		Recounted: s.recounted, Busy: s.scheduler.Busy, Throttle: s.throttleOf, Holds: s.conditions.Text,
	}
	id := "" // of this replica, where the store can be shared
	if s.replica != nil {
		id, c.Replicas, c.Changed = s.replica.ID, s.replica.Shown, s.replica.Changed
	}
	s.inspect = inspect.New(c)
	s.actions = actions.New(actions.Config{Inspect: s.inspect, Store: s.store, Audit: s.audit, Events: s.events,
		AuditShort: s.auditShort, BindRetryExchange: s.sender.Bind, Large: s.large,
		Restorable: s.config.Store.Restorable, SetPaused: s.scheduler.Pause, Force: s.force,
		At: func(ctx context.Context) (actions.Place, error) {
			ctx, cancel := context.WithTimeout(ctx, lookWait)
			defer cancel()
			cluster, err := s.publisher.Cluster(ctx)
			return actions.Place{Cluster: cluster, VHost: s.config.VHost()}, err
		}})
	s.operations = operations.New(operations.Config{Inspect: s.inspect, Actions: s.actions, Store: s.store,
		DeadLetters: s.deadLetters, Replica: id})
}

// brokerQueues asks RabbitMQ about a queue: by its management API or, if that does not answer, by
// AMQP, which knows less.
type brokerQueues struct{ *vhost }

func (q brokerQueues) Queue(ctx context.Context, name string) (inspect.AtBroker, error) {
	if name == "" {
		return inspect.AtBroker{}, nil // a passive declare of "" asks about no queue in particular
	}
	var at management.Queue
	err := errors.New("there is no management API in the config")
	elsewhere := ""
	if q.manage != nil {
		if at, err = q.manage.Queue(ctx, name); err == nil {
			elsewhere = q.deadLettersElsewhere(name, &at)
		}
		if err == nil && at.Counted() {
			return inspect.AtBroker{Exists: true, Kind: at.Type, Consumers: at.Consumers, Ready: at.Ready,
				Unacked: &at.Unacked, DeadLetters: elsewhere}, nil
		}
	}
	consumers, ready, amqpErr := q.publisher.Queue(ctx, name)
	switch {
	case amqpErr == nil:
		return inspect.AtBroker{Exists: true, Kind: at.Type, Consumers: consumers, Ready: ready,
			DeadLetters: elsewhere}, nil
	case errors.Is(amqpErr, wire.ErrQueueGone):
		return inspect.AtBroker{}, nil
	}
	return inspect.AtBroker{}, errors.Join(err, amqpErr)
}

// deadLettersElsewhere says where a queue's dead letters go; "": to Redrive, or to a queue that it follows.
func (q brokerQueues) deadLettersElsewhere(name string, at *management.Queue) string {
	exchange, set := at.Setting("dead-letter-exchange").(string)
	queue, _ := at.Setting("dead-letter-routing-key").(string)
	switch {
	case q.followers.follows("", name):
		return ""
	case wire.OwnQueue(name), !set && at.Effective == nil: // RabbitMQ 3 without statistics does not tell
		return ""
	case !set:
		return inspect.Nowhere
	case exchange == "" && q.followers.follows(queue, ""):
		return ""
	case exchange == "" && queue != "":
		return fmt.Sprintf("to the queue %q", queue)
	case exchange == "":
		return "to the default exchange"
	case exchange == wire.ExchangeDeadLetters:
		return ""
	case at.RetriedAlone():
		return inspect.Alone
	default:
		return fmt.Sprintf("to the exchange %q", exchange)
	}
}

// activity counts what happened to each queue in the last minute, hour and day, in rings of seconds, minutes and half
// hours. Its memory depends only on the number of queues.
type activity struct {
	mu     sync.Mutex
	queues map[string]*queueActivity
	swept  int64            // the minute of the last sweep
	kept   map[string]int64 // the events since the start of queues that have an entry, as of that
}

const (
	// flowPrefix + a queue's name is the entry of its last hour and day, so that a restart does not empty the charts.
	flowPrefix = "flow/"
	// keepWait is how long writing them may take, also when the service ends.
	keepWait = 2 * time.Second
)

// keptFlow is a queue's last hour and day as they are kept.
type keptFlow struct {
	Last   int64                // the minute that was counted last
	Counts [flowKinds][60]int32 // by the minute modulo 60
	Day    [flowKinds][60]int32 // by the half hour modulo 60
}

// keep writes them once a minute, and when ctx ends. Without them, only the charts are empty after a restart.
func (r *activity) keep(ctx context.Context, s store.SideTable) {
	for ctx.Err() == nil {
		sleep(ctx, time.Minute)
		out, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWait)
		_ = s.PutEntries(out, r.entries(time.Now()))
		cancel()
	}
}

// entries returns those that differ from the kept ones; without a value, of queues that are idle.
func (r *activity) entries(now time.Time) (all []store.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := map[string]int64{}
	for queue, q := range r.queues {
		f, lately, events := keptFlow{Last: now.Unix() / 60}, int64(0), int64(0)
		for i := range q {
			q[i].minutes.forget(f.Last)
			lately += q[i].halfHours.sum(f.Last / 30)
			events += q[i].all
			f.Counts[i], f.Day[i] = q[i].minutes.counts, q[i].halfHours.counts
		}
		if lately == 0 {
			continue
		}
		kept[queue] = events
		if before, ok := r.kept[queue]; !ok || before != events {
			value, _ := json.Marshal(f) // cannot fail
			all = append(all, store.Entry{Name: flowPrefix + queue, Value: value})
		}
	}
	for queue := range r.kept {
		if _, ok := kept[queue]; !ok {
			all = append(all, store.Entry{Name: flowPrefix + queue})
		}
	}
	r.kept = kept
	return all
}

// load reads what keep wrote before the start.
func (r *activity) load(ctx context.Context, s store.SideTable) error {
	r.queues, r.kept = map[string]*queueActivity{}, map[string]int64{}
	return s.Entries(ctx, flowPrefix, "", func(e store.Entry) (bool, error) {
		var f keptFlow
		if err := json.Unmarshal(e.Value, &f); err != nil {
			return false, fmt.Errorf("the entry %q: %w", e.Name, err)
		}
		queue, q := strings.TrimPrefix(e.Name, flowPrefix), new(queueActivity)
		for i := range q {
			q[i].minutes = ring{counts: f.Counts[i], last: f.Last}
			q[i].halfHours = ring{counts: f.Day[i], last: f.Last / 30}
		}
		r.queues[queue], r.kept[queue] = q, 0
		return len(r.queues) < maxActiveQueues, nil
	})
}

// queueActivity counts, for one queue, each kind of a Flow by second, minute and half hour.
type queueActivity [flowKinds]struct {
	seconds, minutes, halfHours ring
	all                         int64 // since the start
}

// maxActiveQueues bounds the counted queues: a client that reports failures may invent names.
const maxActiveQueues = 10_000

// keptIdleQueues is how many queues to keep although nothing happened to them for an hour.
const keptIdleQueues = 1000

// sweep forgets the idle queues beyond keptIdleQueues, once a minute. The caller holds mu.
func (r *activity) sweep(minute int64) {
	if minute <= r.swept || len(r.queues) <= keptIdleQueues {
		return
	}
	r.swept = minute
	for name, q := range r.queues {
		idle := true
		for i := range q {
			idle = idle && q[i].minutes.last <= minute-60
		}
		if idle {
			delete(r.queues, name)
		}
	}
}

// ring counts events in each of the last 60 units of time.
type ring struct {
	counts [60]int32
	last   int64 // the unit that was counted last
}

const (
	flowFailed = iota
	flowRetried
	flowParked
	flowDiscarded
	flowKinds
)

func (r *ring) add(unit int64, n int32) {
	r.forget(unit)
	r.counts[unit%60] += n
}

// forget clears the units since the last one.
func (r *ring) forget(unit int64) {
	for u := max(r.last+1, unit-59); u <= unit; u++ {
		r.counts[u%60] = 0
	}
	r.last = max(r.last, unit)
}

// addTo adds the counts of the last units to a kind of flows, the current unit last.
func (r *ring) addTo(flows []inspect.Flow, unit int64, kind int) {
	r.forget(unit)
	for ago := range flows {
		*flowFields(&flows[len(flows)-1-ago])[kind] += int64(r.counts[(unit-int64(ago)+60)%60])
	}
}

func (r *ring) sum(unit int64) (n int64) {
	r.forget(unit)
	for _, c := range r.counts {
		n += int64(c)
	}
	return n
}

func (r *activity) event(e retry.Event) {
	if i, ok := flowOf[e.Kind]; ok {
		var n [flowKinds]int64
		n[i] = int64(max(1, e.N)) // an event is about N messages, or one
		r.count(e.Queue, n, e.At)
	}
}

// count counts what happened to a queue, here or at another replica.
func (r *activity) count(queue string, n [flowKinds]int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queues == nil {
		r.queues = map[string]*queueActivity{}
	}
	r.sweep(at.Unix() / 60)
	q := r.queues[queue]
	if q == nil && len(r.queues) >= maxActiveQueues {
		return
	}
	if q == nil {
		q = new(queueActivity)
		r.queues[queue] = q
	}
	second := at.Unix()
	for i, n := range n {
		if n == 0 {
			continue
		}
		q[i].seconds.add(second, int32(n))
		q[i].minutes.add(second/60, int32(n))
		q[i].halfHours.add(second/1800, int32(n))
		q[i].all += n
	}
}

// Minute returns what happened to a queue in the last minute.
func (r *activity) Minute(queue string, now time.Time) (f inspect.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[queue]; q != nil {
		for i, n := range flowFields(&f) {
			*n = q[i].seconds.sum(now.Unix())
		}
	}
	return f
}

// Hour returns what happened in each of the last 60 minutes, the current one last, to the
// queues for which sees is true.
func (r *activity) Hour(now time.Time, sees func(queue string) bool) []inspect.Flow {
	hour := make([]inspect.Flow, 60)
	minute := now.Unix() / 60
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(minute)
	for name, q := range r.queues {
		if !sees(name) {
			continue
		}
		for i := range q {
			q[i].minutes.addTo(hour, minute, i)
		}
	}
	return hour
}

// Day returns what happened to a queue in each of the last 48 half hours, the current one last.
func (r *activity) Day(now time.Time, queue string) []inspect.Flow {
	day := make([]inspect.Flow, 48)
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[queue]; q != nil {
		for i := range q {
			q[i].halfHours.addTo(day, now.Unix()/1800, i)
		}
	}
	return day
}

// Queues returns the queues active since the start, except forgotten ones.
func (r *activity) Queues() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.queues))
}

// Failed returns how many messages failed since the start, in remembered queues for which sees is true.
func (r *activity) Failed(sees func(queue string) bool) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, q := range r.queues {
		if sees(name) {
			n += q[flowFailed].all
		}
	}
	return n
}

func flowFields(f *inspect.Flow) [flowKinds]*int64 {
	return [...]*int64{flowFailed: &f.Failed, flowRetried: &f.Retried, flowParked: &f.Parked,
		flowDiscarded: &f.Discarded}
}

// flowOf maps the counted events to the kinds of a Flow.
var flowOf = map[retry.Kind]int{retry.Failed: flowFailed, retry.Retried: flowRetried, retry.Parked: flowParked,
	retry.Discarded: flowDiscarded}
