package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// followers consumes the dead-letter queues that the config or a person lets Redrive follow, each on a connection of
// its own, so that no queue's trouble ends another's. Replicas that share a store all consume, and RabbitMQ divides the
// messages among them.
type followers struct {
	*deadLetters
	configured atomic.Pointer[[]config.Followed]
	rows       atomic.Pointer[[]followedRow] // the first match of a queue counts

	mu       sync.Mutex
	all      map[string]*follower // by queue
	surveyed map[string]knownQueue
	failed   error // why RabbitMQ did not list its queues; nil: surveyed is its list
}

const (
	// maxFollowed bounds the followed queues: each takes receipts and a connection.
	maxFollowed = 64
	// lookEvery is how often to look at a queue that cannot be followed.
	lookEvery = 3 * time.Second
	// followName is the connections' name, and begins their consumer tags.
	followName = "redrive follow"
)

// followedRow is a row of adopt in the config, or of a person.
type followedRow struct {
	config.Followed
	by string // the person who had it followed; "": the config
}

func newFollowers(d *deadLetters) *followers {
	f := &followers{deadLetters: d, all: map[string]*follower{}}
	f.configured.Store(&d.config.Adopt)
	f.rows.Store(&[]followedRow{})
	return f
}

// readRows reads the rows of the config and of people: names in the config first, then people's rows, then patterns.
func (f *followers) readRows(ctx context.Context) error {
	var rows, patterns []followedRow
	for _, row := range *f.configured.Load() {
		if row.IsPattern() {
			patterns = append(patterns, followedRow{row, ""})
		} else {
			rows = append(rows, followedRow{row, ""})
		}
	}
	named := len(rows)
	err := f.store.Entries(ctx, store.FollowPrefix, "", func(e store.Entry) (bool, error) {
		var set operations.FollowSet
		if err := json.Unmarshal(e.Value, &set); err != nil {
			return false, fmt.Errorf("the entry %q: %w", e.Name, err)
		}
		row := config.Followed{Name: strings.TrimPrefix(e.Name, store.FollowPrefix), Queue: set.Queue, Then: set.Then}
		if !slices.ContainsFunc(rows[:named], func(r followedRow) bool { return r.Name == row.Name }) {
			rows = append(rows, followedRow{row, set.By})
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	rows = append(rows, patterns...)
	f.rows.Store(&rows)
	return nil
}

// prefetchOf returns how many messages each follower may have unacknowledged.
func prefetchOf(rows []followedRow) int {
	if len(rows) > 0 && rows[len(rows)-1].IsPattern() || len(rows) > maxFollowed {
		return followedPrefetch / maxFollowed
	}
	return min(followedPrefetch/max(len(rows), 1), parkedPrefetch)
}

// run follows the queues that the rows name, and existing ones that their patterns match, until ctx ends and the
// batches under way are acknowledged.
func (f *followers) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	var surveyed time.Time
	failing := false
	for ctx.Err() == nil {
		err := f.readRows(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			f.Log.Error("cannot read which dead-letter queues to follow; trying again", "error", err)
		}
		failing = err != nil
		f.stopUnwanted()
		if rows := *f.rows.Load(); len(rows) > 0 {
			if time.Since(surveyed) >= listEvery {
				f.survey(ctx)
				surveyed = time.Now()
			}
			for _, name := range f.wanted() {
				if one := f.add(ctx, name, prefetchOf(rows)); one != nil {
					running.Go(one.run)
				}
			}
		}
		sleep(ctx, lookEvery)
	}
}

// stopUnwanted stops the followers whose row is gone or has changed, and waits for their end.
func (f *followers) stopUnwanted() {
	rows := *f.rows.Load()
	var ending []*follower
	f.mu.Lock()
	for _, one := range f.all {
		row := f.rowOf(one.queue)
		if row == nil || !reflect.DeepEqual(*row, one.row) || prefetchOf(rows) != one.prefetch {
			one.stop()
			ending = append(ending, one)
		}
	}
	f.mu.Unlock()
	for _, one := range ending {
		<-one.ended
		one.set(stateConnecting, "")
		f.remove(one.queue)
		f.Log.Info("stopped following the dead-letter queue, or its terms have changed", "queue", one.queue)
	}
}

func (f *followers) survey(ctx context.Context) {
	all, err := map[string]knownQueue(nil), errSeesNoQueues
	if f.manage != nil {
		ctx, cancel := context.WithTimeout(ctx, listWait)
		defer cancel()
		all, err = f.queues(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed = err; err == nil {
		f.surveyed = all
	}
}

// known returns what the last survey found about a queue. err is why RabbitMQ did not list its queues.
func (f *followers) known(queue string) (q knownQueue, exists bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q, exists = f.surveyed[queue]
	return q, exists, f.failed
}

// rowOf returns the first row that matches a queue, or nil.
func (f *followers) rowOf(queue string) *followedRow {
	rows := *f.rows.Load()
	for i := range rows {
		if row := &rows[i]; row.Name == queue || row.IsPattern() && policy.MatchQueue(row.Name, queue) {
			return row
		}
	}
	return nil
}

// follows reports whether a dead-letter queue is followed, or one for a work queue. Either name may be "".
func (f *followers) follows(deadLetterQueue, workQueue string) bool {
	by := func(row followedRow) bool { return row.Queue == workQueue }
	return deadLetterQueue != "" && f.rowOf(deadLetterQueue) != nil ||
		workQueue != "" && slices.ContainsFunc(*f.rows.Load(), by)
}

// wanted returns the queues to follow, named ones first.
func (f *followers) wanted() (names []string) {
	for _, row := range *f.rows.Load() {
		if !row.IsPattern() {
			names = append(names, row.Name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.surveyed)) {
		if f.rowOf(name) != nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// add returns a new follower, or nil if the queue has one already.
func (f *followers) add(ctx context.Context, queue string, prefetch int) *follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[queue] != nil {
		return nil
	}
	one := &follower{followers: f, row: *f.rowOf(queue), queue: queue, prefetch: prefetch, ended: make(chan struct{})}
	one.ctx, one.stop = context.WithCancel(ctx)
	f.all[queue] = one
	return one
}

// admit reports whether one is among the maxFollowed that are followed.
func (f *followers) admit(one *follower) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, other := range f.all {
		if other.admitted {
			n++
		}
	}
	one.admitted = one.admitted || n < maxFollowed
	return one.admitted
}

// remove forgets a queue that a pattern matched and that is gone.
func (f *followers) remove(queue string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, queue)
}

// addTo adds to a list, sorted by name, the followed queues and how they are followed. If there are any, an error of
// the list is only noted: they show without the management API too.
func (f *followers) addTo(
	list []operations.DeadLetterQueue, err error,
) ([]operations.DeadLetterQueue, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.all) == 0 {
		return list, err
	}
	list = slices.DeleteFunc(list, func(q operations.DeadLetterQueue) bool { return f.all[q.Queue] != nil })
	for name, one := range f.all {
		q := f.surveyed[name].judged()
		if q.Queue, q.Doubt = name, ""; err != nil {
			q.Unknown = err.Error()
		}
		state := one.state
		state.Then, state.Queue, state.By = one.row.Then, one.row.Queue, one.row.by
		q.Follow = &state
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b operations.DeadLetterQueue) int { return hint.Natural(a.Queue, b.Queue) })
	return list, nil
}

type follower struct {
	*followers
	row      followedRow
	queue    string
	prefetch int
	ctx      context.Context // of run
	stop     func()
	ended    chan struct{} // closed at the end of run
	// Guarded by followers.mu.
	admitted bool
	state    operations.Follow
}

// set sets the state, and logs and reports it when it changes.
func (f *follower) set(state, why string) {
	f.mu.Lock()
	was := f.state
	f.state.State, f.state.Why = state, why
	f.mu.Unlock()
	if was.State == state && was.Why == why {
		return
	}
	c := condition.Condition{Kind: condition.Followed, Queue: f.queue}
	log := f.Log.With("queue", f.queue)
	switch {
	case state == operations.Following:
		log.Info("following the dead-letter queue", "then", f.row.Then)
	case state != stateConnecting:
		c.Text = why
		log.Warn("the dead-letter queue is not followed now; its messages stay in RabbitMQ", "why", why)
	}
	f.conditions.Put(c)
}

// States besides operations.Following that have consequences here.
const (
	stateConnecting = "connecting"
	stateMissing    = "missing"
	stateUnknown    = "unknown"
)

// run follows the queue whenever that is possible, until f.ctx ends.
func (f *follower) run() {
	ctx := f.ctx
	defer close(f.ended)
	defer f.stop()
	f.set(stateConnecting, "")
	following := retry.Following{
		From: f.queue, Queue: f.row.Queue, Retry: f.row.Then == config.ThenRetry, Leads: f.leads,
	}
	intake := retry.NewFollowedIntake(f.store, f.inForce, f.names, following, f.decodeForRules, f.events)
	for ctx.Err() == nil {
		state, why := f.obstacle(ctx)
		if state == stateMissing && f.row.IsPattern() {
			f.set(stateConnecting, "")
			f.remove(f.queue)
			return
		}
		if state == "" {
			f.consume(ctx, intake)
		} else if ctx.Err() == nil {
			f.set(state, why)
		}
		sleep(ctx, lookEvery)
	}
}

// obstacle returns why the queue cannot be followed now, or "".
func (f *follower) obstacle(ctx context.Context) (state, why string) {
	if !f.admit(f) {
		return "limit", fmt.Sprintf("%d queues are followed already, and no more can be", maxFollowed)
	}
	f.publisher.AwaitUsable(ctx)
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	consumers, _, err := f.publisher.Queue(ctx, f.queue)
	if err != nil {
		return stateOf(err), err.Error()
	}
	q, exists, unlisted := f.known(f.queue)
	switch {
	case exists && q.Kind == "stream":
		return "stream", "it is a stream, which nothing can be taken from"
	case exists && q.enrolled:
		return "enrolled", "its own dead-letter exchange is redrive, so it is a work queue; " +
			"what is parked or retried from it would come back by two ways"
	case f.row.IsPattern() && q.goesOn:
		return "passes_on", "what is in it is dead-lettered on, so it may be a queue to wait in or a work queue; " +
			"name it in adopt to follow it anyway"
	case f.row.Then == config.ThenRetry && f.row.Queue == "" && !exists && unlisted == nil:
		return stateConnecting, "" // since the last survey
	case f.row.Then == config.ThenRetry && f.row.Queue == "" && !exists:
		return stateUnknown, fmt.Sprintf("which queue dead-letters to it is not known, so nothing can be retried: %v; "+
			"name the work queue in adopt", unlisted)
	}
	if n := f.others(ctx, consumers); n > 0 {
		return "consumers", fmt.Sprintf("it has consumers that are not Redrive's (%d): stop them, "+
			"or it may be a work queue", n)
	}
	return "", ""
}

func stateOf(err error) string {
	switch {
	case errors.Is(err, wire.ErrQueueGone):
		return stateMissing
	case errors.Is(err, wire.ErrExclusive):
		return "exclusive"
	case errors.Is(err, wire.ErrForbidden):
		return "forbidden"
	}
	return stateUnknown
}

// others returns how many of the queue's consumers are not Redrive's. Without the management API all may be another
// program's.
func (f *follower) others(ctx context.Context, consumers int) (n int) {
	if consumers == 0 || f.manage == nil {
		return consumers
	}
	q, err := f.manage.Queue(ctx, f.queue)
	if err != nil || !q.Counted() {
		return consumers
	}
	for _, c := range q.ConsumerDetails {
		if strings.HasPrefix(c.Tag, followName+" ") {
			consumers--
		}
	}
	return max(consumers, 0)
}

// consume consumes the queue until ctx ends, or until obstacle must look again.
func (f *follower) consume(ctx context.Context, intake *retry.Intake) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	at := f.brokerConfig(followName)
	at.Majority, at.Lasting = true, true
	at.Observe = func(st broker.State) {
		switch {
		case st.Err == nil && st.Connected:
			f.set(operations.Following, "")
		case st.Err != nil && ctx.Err() == nil:
			state := stateOf(st.Err)
			if f.set(state, st.Err.Error()); state != stateUnknown {
				stop()
			}
		}
	}
	stored := func(err error) {
		if err != nil {
			f.set("full", "its messages cannot be stored: "+err.Error())
		} else {
			f.set(operations.Following, "")
		}
	}
	_ = broker.NewFollowingConsumer(at, f.queue, f.prefetch, stored).Run(ctx, intake)
}

// leads returns the only queue that dead-letters to the queue. A similar name does not count, and neither does a
// followed queue.
func (f *follower) leads() (queue, why string) {
	q, _, err := f.known(f.queue)
	switch {
	case len(q.leads) == 1 && f.rowOf(q.leads[0]) != nil:
		return "", fmt.Sprintf("the only queue that dead-letters there, %q, is followed itself", q.leads[0])
	case len(q.leads) == 1:
		return q.leads[0], ""
	case len(q.leads) > 1:
		return "", fmt.Sprintf("%d queues dead-letter there: name one in adopt", len(q.leads))
	case err != nil:
		return "", fmt.Sprintf("which queue dead-letters there is not known: %v", err)
	}
	return "", "no queue dead-letters there: name its work queue in adopt"
}
