package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// newConditions returns the conditions of a starting service: three connections are missing.
func newConditions(m *metrics.Metrics, paused func() []string) *condition.Set {
	s := condition.NewSet(m.Ready, paused)
	for _, k := range []condition.Kind{condition.Intake, condition.Parked, condition.Publish} {
		s.Put(condition.Condition{Kind: k, Text: "connecting"})
	}
	return s
}

// ofLane returns the condition of a failing lane, without its text.
func ofLane(lane store.Lane) condition.Condition {
	if lane.Forwards() {
		return condition.Condition{Kind: condition.Forward, Queue: lane.Queue, Target: lane.Forward.String()}
	}
	return condition.Condition{Kind: condition.Unreachable, Queue: lane.Queue}
}

// refusals holds the ways to wait whose messages RabbitMQ does not confirm, and why.
type refusals struct {
	mu  sync.Mutex
	why map[string]error
}

func (r *refusals) set(way string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why[way] = err; err == nil {
		delete(r.why, way)
	}
}

func (r *refusals) notices() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, way := range slices.Sorted(maps.Keys(r.why)) {
		all = append(all, fmt.Sprintf("messages that are to wait in RabbitMQ (%s) wait in the store, since RabbitMQ "+
			"does not confirm them: %v", way, r.why[way]))
	}
	return all
}

// recounted receives by how much the ledger is off, by queue, after each count of the stored messages. If it is off,
// messages are lost or in excess, and the service is not ready until a person has looked.
func (s *vhost) recounted(off map[string]int64) {
	s.metrics.Recounted(off)
	s.ledgerOff.Store(&off)
	what := ""
	if len(off) > 0 {
		what = fmt.Sprintf("the ledger does not balance: messages are missing, or there are more than came; queues "+
			"affected: %d (`redrive ledger` shows which)", len(off))
	}
	s.conditions.Put(condition.Condition{Kind: condition.Ledger, Text: what})
}

// listeners passes every event to each listener, on the goroutine that caused it: the intake's, most often. When a
// listener panics, it misses that event, which is counted, logged, and shown by readiness for a while: a dead letter
// must not end the process, at each start again.
type listeners struct {
	log        *slog.Logger
	conditions *condition.Set
	count      func(listener string)
	all        []listener
}

type listener struct {
	name    string
	receive retry.Listener
}

// failureShows is how long readiness shows a listener's failure.
const failureShows = 5 * time.Minute

func (l *listeners) add(name string, receive retry.Listener) {
	l.all = append(l.all, listener{name, receive})
}

func (l *listeners) event(e retry.Event) {
	for _, to := range l.all {
		l.call(to, e)
	}
}

func (l *listeners) call(to listener, e retry.Event) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		l.count(to.name)
		l.log.Error("a listener panicked at an event, which is missing there", "listener", to.name, "event", e.Kind,
			"queue", e.Queue, "id", e.ID, "panic", p, "stack", string(debug.Stack()))
		l.conditions.PutFor(failureShows, condition.Condition{Kind: condition.Listener, Target: to.name,
			Text: fmt.Sprintf("the event %q of queue %q is missing there after a panic (the log has the stack): "+
				"please report it", e.Kind, e.Queue)})
	}()
	to.receive(e)
}

// setupFaults puts the condition of queues whose messages are parked because of the setup.
type setupFaults struct {
	conditions *condition.Set
	mu         sync.Mutex
	put        map[string]time.Time // by queue, when it was put last
	swept      time.Time            // when old ones were left out of put
}

const (
	// setupShows is how long the condition is shown after such a message, and setupAgain how often it is put.
	setupShows = time.Hour
	setupAgain = time.Minute
	// maxSetupFaults is how many queues have it: more would say nothing new.
	maxSetupFaults = 1000
)

func (f *setupFaults) event(e retry.Event) {
	why := e.SetupFault()
	if why == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.swept) > setupAgain {
		f.swept = now
		maps.DeleteFunc(f.put, func(_ string, at time.Time) bool { return now.Sub(at) > setupShows })
	}
	last, known := f.put[e.Queue]
	if known && now.Sub(last) < setupAgain || !known && len(f.put) == maxSetupFaults {
		return
	}
	f.put[e.Queue] = now
	f.conditions.PutFor(setupShows, condition.Condition{Kind: condition.Setup, Queue: e.Queue,
		Text: "messages were parked, and not because they failed: " + why})
}

const (
	clockEvery = 5 * time.Second
	// clockJump is the smallest jump to report; smaller ones add up.
	clockJump = 3 * time.Second
	// clockShows is the shortest time to show a jump.
	clockShows = time.Hour
)

// watchClock reports when this machine's clock is set while the service runs, since due times are times of the clock.
// It compares the clock with the monotonic one, which no one can set. wall returns what the clock shows at a time.
func (s *Service) watchClock(ctx context.Context, wall func(time.Time) time.Time) {
	last := time.Now()
	shown, off, until := wall(last).Round(0), time.Duration(0), last
	for {
		if sleep(ctx, clockEvery); ctx.Err() != nil {
			return
		}
		now := time.Now()
		jump := wall(now).Round(0).Sub(shown) - now.Sub(last)
		if jump.Abs() < clockJump {
			continue
		}
		last, shown = now, wall(now).Round(0)
		if now.After(until) {
			off = 0
		}
		off += jump
		by, what := off.Abs().Round(time.Second), ""
		switch {
		case off >= clockJump:
			what = fmt.Sprintf("this machine's clock was set ahead by %s, or the machine was suspended: "+
				"what waited then is retried that much sooner than its delay says", by)
		case off <= -clockJump:
			what = fmt.Sprintf("this machine's clock was set back by %s: "+
				"what waited then is retried that much later than its delay says (`redrive replay` retries it now)", by)
		}
		s.Log.Warn(cmp.Or(what, "this machine's clock was set right again"))
		shows := max(by, clockShows)
		until = now.Add(shows)
		for _, v := range s.vhosts {
			v.conditions.PutFor(shows, condition.Condition{Kind: condition.Clock, Text: what})
			v.scheduler.Wake()
		}
	}
}

// nodes holds the address of the node that each connection is to.
type nodes struct {
	mu sync.Mutex
	at map[string]string // by part of the service
}

func (n *nodes) set(part string, st broker.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at[part] = st.At; !st.Connected {
		delete(n.at, part)
	}
}

func (n *nodes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []string
	for _, part := range slices.Sorted(maps.Keys(n.at)) {
		all = append(all, part+" at "+n.at[part])
	}
	if len(all) == 0 {
		return "not connected"
	}
	return strings.Join(all, ", ")
}

func (s *vhost) brokerAt() string {
	if s.Visitors {
		return "not shown to visitors"
	}
	text := connect.Redact(s.config.Broker.URL)
	if len(connect.SplitURLs(s.config.Broker.URL)) > 1 {
		text += fmt.Sprintf(" (%s)", &s.nodes)
	}
	return text
}

func (s *vhost) openNotify() (err error) {
	s.notify, err = notify.New(s.config.Notify,
		notify.Options{Store: s.store, Conditions: s.told, Count: s.metrics.Notified, Log: s.Log,
			Mask: func(queue, text string) string { return s.mask.Load().Text(queue, text) }})
	s.notified = s.config.Notify
	return err
}

// reloadNotify puts the notifications' settings in force, when they have changed.
func (s *vhost) reloadNotify(c *config.Config) error {
	if reflect.DeepEqual(c.Notify, s.notified) {
		return nil
	}
	err := s.notify.SetSettings(c.Notify)
	if err == nil {
		s.notified = c.Notify
	}
	return err
}

// freeFor is how long an answer of the store about its room is shown: each open page asks once a second.
const freeFor = 10 * time.Second

// parts returns a function that says how each part of the service is: as its condition says, where one holds.
func (s *vhost) parts() func() []inspect.Part {
	var mu sync.Mutex
	var asked time.Time
	var room string
	free := func() string {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(asked) < freeFor {
			return room
		}
		n, reserve, err := s.store.Free()
		asked, room = time.Now(), fmt.Sprintf("%s are free; below %s nothing is accepted",
			hint.Size(int64(n)), hint.Size(int64(reserve)))
		if err != nil {
			room = "how much is free is not known"
		}
		return room
	}
	return func() []inspect.Part {
		of := func(name, well string, kinds ...condition.Kind) inspect.Part {
			for _, k := range kinds {
				if text := s.conditions.Text(condition.Condition{Kind: k}); text != "" {
					return inspect.Part{Name: name, Text: text}
				}
			}
			return inspect.Part{Name: name, Text: well, Well: true}
		}
		api := "answers"
		if s.manage == nil {
			api = "not in the config (broker.management): what only it knows is not shown"
		} else if s.queueWatch.last.Load() == nil {
			api = "has not answered yet"
		}
		notices := inspect.Part{Name: "Notifications", Text: "none: the config has no route (notify)", Well: true}
		if n := s.notify.Routes(); n > 0 {
			notices.Text = fmt.Sprintf("to %d routes", n)
		}
		return []inspect.Part{of("Intake", "receives what fails", condition.Intake, condition.Parked),
			of("Retries", "can be published", condition.Publish, condition.Delays),
			of("Store", free(), condition.Unread, condition.Disk, condition.Redis, condition.Store,
				condition.ParkedStore),
			of("Ledger", "adds up", condition.Ledger), of("Management API", api, condition.Management), notices}
	}
}

// told returns the present conditions to notify people of.
func (s *vhost) told(ctx context.Context, t *notify.Settings) ([]notify.Condition, error) {
	all := toldOf(s.conditionsAnywhere(), t)
	now := time.Now()
	counts, err := s.store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	waits := map[string]bool{}
	for _, c := range counts {
		waits[c.Queue] = c.Waiting > 0
		if !c.NextFailed.IsZero() && now.Sub(c.NextFailed) > t.OldestWaiting {
			all = append(all, notify.Condition{Kind: notify.OldestWaiting, Queue: c.Queue,
				Since: c.NextFailed.Add(t.OldestWaiting)})
		}
	}
	for _, q := range s.activity.Queues() {
		if s.activity.Minute(q, now).Parked >= int64(t.Burst) {
			all = append(all, notify.Condition{Kind: notify.ParkedBurst, Queue: q})
		}
	}
	// With nothing waiting there is no probe, so the notification would never end.
	all = slices.DeleteFunc(all, func(c notify.Condition) bool {
		return c.Kind == notify.BreakerOpen && !waits[c.Queue] && s.throttle.View(c.Queue, now).InFlight == 0
	})
	if off := s.ledgerOff.Load(); off == nil {
		all = append(all, notify.Condition{Kind: notify.LedgerOff, Unknown: true})
	} else {
		for q, n := range *off {
			all = append(all, notify.Condition{Kind: notify.LedgerOff, Queue: q, Text: fmt.Sprintf("by %d", n)})
		}
	}
	_, reopened, err := s.groupStates(ctx)
	if err != nil {
		return nil, err
	}
	all = append(all, reopened...)
	pauses, err := inspect.Pauses(ctx, s.store)
	for q, p := range pauses {
		all = append(all, notify.Condition{Kind: notify.QueuePaused, Queue: q, Since: p.Since,
			Text: "by " + p.By + ": " + p.Reason})
	}
	return all, err
}

// groupStates returns the error groups that people have acknowledged or ignored, and of which they need no notice for
// each message; and the notices of those that have reopened by themselves.
func (s *vhost) groupStates(ctx context.Context) (
	known map[errorgroup.ID]bool, reopened []notify.Condition, err error,
) {
	set, err := inspect.SetGroupStates(ctx, s.store)
	if err != nil || len(set) == 0 {
		return nil, nil, err
	}
	groups, err := s.store.Groups(ctx)
	known = map[errorgroup.ID]bool{}
	for i := range groups {
		g := &groups[i]
		is := set[g.ID.String()].Lately(g, time.Now())
		switch {
		case is.State == inspect.Acknowledged, is.State == inspect.Ignored:
			known[g.ID] = true
		case is.StateWas != "":
			what := cmp.Or(g.Pattern, g.Type, g.Reason, "no error")
			reopened = append(reopened, notify.Condition{Kind: notify.GroupReopened, Queue: g.Queue,
				Target: g.ID.String(), Text: "it was " + is.StateWas + ": " + s.mask.Load().Text(g.Queue, what)})
		}
	}
	return known, reopened, err
}

// groupsEvery is how often the states of groups are read.
const groupsEvery = 10 * time.Second

func (s *vhost) watchGroups(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		s.readKnown(ctx)
		sleep(ctx, max(groupsEvery, 20*time.Since(began)))
	}
}

// readKnown puts in force which groups people know of. Without an answer of the store, it stays as it is.
func (s *vhost) readKnown(ctx context.Context) {
	if known, _, err := s.groupStates(ctx); err == nil {
		s.inForce.SetKnown(known)
	}
}

// toldOf returns the notifications that the replicas' conditions call for. The intake has stopped if it runs at no
// replica. For lanes and alarms one replica is enough: the others would find the same.
func toldOf(replicas [][]condition.Condition, t *notify.Settings) (all []notify.Condition) {
	once := map[notify.Condition]bool{} // conditions in all, without texts
	add := func(c notify.Condition) {
		named := notify.Condition{Kind: c.Kind, Queue: c.Queue, Target: c.Target}
		if !once[named] {
			all = append(all, c)
		}
		once[named] = true
	}
	var stopped *notify.Condition // the intake of some replica
	runs := false
	for _, holds := range replicas {
		var here *notify.Condition
		var why condition.Kind
		for _, c := range holds {
			row := condition.Kinds[c.Kind]
			told := notify.Condition{Kind: notify.Kind(row.Event), Queue: c.Queue, Target: c.Target,
				Since: c.Since, After: row.After, Grew: c.Grew, Text: c.Text}
			switch {
			case c.Alarm:
				add(notify.Condition{Kind: notify.BrokerBlocked, Text: c.Text})
			case told.Kind == notify.IntakeStopped:
				if here == nil || cmp.Or(cmp.Compare(told.After, here.After), cmp.Compare(c.Kind, why)) < 0 {
					here, why = &told, c.Kind
				}
			case told.Kind == notify.QueuePaused:
				told.Text = "they fail: " + c.Text
				add(told)
			case told.Kind == notify.NoConsumer:
				told.After = t.NoConsumer
				add(told)
			case told.Kind != "":
				add(told)
			}
		}
		if runs = runs || here == nil; here != nil {
			stopped = here
		}
	}
	if !runs && stopped != nil {
		all = append(all, *stopped)
	}
	return all
}
