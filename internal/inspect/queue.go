package inspect

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Queue is a work queue: what the service keeps for it, and what RabbitMQ says.
type Queue struct {
	Name      string     `json:"queue"`
	Policy    string     `json:"policy,omitempty"`
	Way       string     `json:"way,omitempty" doc:"How its messages wait: disk, redis, or a way of RabbitMQ's."`
	Waiting   int64      `json:"waiting" doc:"In the store. Messages that wait in RabbitMQ are not counted here."`
	Parked    int64      `json:"parked"`
	Discarded int64      `json:"discarded"`
	NextDue   *time.Time `json:"next_due,omitempty" doc:"When the first waiting message is due."`
	Oldest    *time.Time `json:"oldest,omitempty" doc:"When the message that is due next last failed."`
	Failed    int64      `json:"failed_per_minute" doc:"In the last minute."`
	Retried   int64      `json:"retried_per_minute" doc:"In the last minute."`
	ParkedIn  int64      `json:"parked_per_minute" doc:"In the last minute."`
	// Unreachable is named blocked in the API.
	Unreachable string        `json:"blocked,omitempty" doc:"Why messages cannot be published to it; absent: they can."`
	Pause       *QueuePause   `json:"pause,omitempty" doc:"Set by a person."`
	Throttle    *ThrottleView `json:"throttle,omitempty" doc:"How its retries are limited; absent when they are not."`
	Broker      *AtBroker     `json:"broker,omitempty" csv:"+" doc:"What RabbitMQ says; absent if it does not answer."`
}

// QueuePause is a person's pause of a queue's retries.
type QueuePause struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// HeldBack reports whether due messages are not retried, or not all: see Holds.
func (q Queue) HeldBack() bool { return len(q.Holds()) > 0 }

// Holds returns why its due messages are not retried: a pause, a failing publish, no consumers, the breaker. The
// first comes into play before the others.
func (q Queue) Holds() (all []Hold) {
	if p := q.Pause; p != nil {
		all = append(all, Hold{What: "paused", Why: "retries are " + p.Text(), Since: &p.Since})
	}
	if q.Unreachable != "" {
		all = append(all, Hold{What: "stopped", Why: "retries are stopped: " + q.Unreachable})
	}
	if t := q.Throttle; t.KeepsBack() && q.Pause == nil {
		all = append(all, Hold{What: t.Name(), Why: t.Text(), Since: cmp.Or(t.NoConsumer, t.Since), Until: t.Until})
	} else if why := t.whilePaused(); why != "" && q.Pause != nil {
		all = append(all, Hold{What: t.Name(), Why: why, Since: cmp.Or(t.NoConsumer, t.Since)})
	}
	return all
}

// Held names in a word or two what holds its due messages back first, or is "".
func (q Queue) Held() string {
	if h := holding(q.Holds()); h != nil {
		return h.What
	}
	return ""
}

// AtBroker is a queue as RabbitMQ has it.
type AtBroker struct {
	Exists    bool   `json:"exists"`
	Kind      string `json:"kind,omitempty" doc:"classic, quorum or stream; absent: not known."`
	Consumers int    `json:"consumers"`
	Ready     int    `json:"ready"`
	Unacked   *int   `json:"unacked,omitempty" doc:"Absent when the management API does not answer."`
	// DeadLetters is where its dead letters go, in words; "": to Redrive, or it is not known.
	DeadLetters string `json:"-" csv:"-"`
}

// Nowhere is the AtBroker.DeadLetters of a queue without a dead-letter exchange, and Alone of one from which
// RabbitMQ alone retries.
const (
	Nowhere = "nowhere"
	Alone   = "alone"
)

// BrokerColumns show what RabbitMQ says of a queue, on the page and on the command line.
var BrokerColumns = []Column[AtBroker]{{Field: "Consumers"}, {Field: "Ready"}, {Field: "Unacked", Narrow: 3}}

// QueueCounts show what the service counts of a queue, likewise.
var QueueCounts = []Column[Queue]{{Field: "Waiting"}, {Field: "Parked"}}

// MostQueues is how many queues a page of a list has at most, and maxOnOverview how many the
// overview shows: there may be a hundred thousand.
const (
	MostQueues    = 1000
	maxOnOverview = 100
)

// Queues lists the work queues that have messages, are paused, or had messages since the service
// started, ordered by name: limit of them after the end of a page; 0: MostQueues. next is "" at
// the end of the list.
func (in *Inspector) Queues(
	ctx context.Context, by auth.Caller, after string, limit int,
) (page []Queue, next string, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, "", err
	}
	s, err := in.visibleQueues(ctx, by)
	if err != nil {
		return nil, "", err
	}
	some, next, err := pageOf(s.counts, func(n store.QueueCount) string { return n.Queue }, after, limit)
	if err != nil {
		return nil, "", err
	}
	page = s.shown(some)
	in.askBroker(ctx, page)
	return page, next, nil
}

// QueueDetail is a work queue with what a person needs to decide about it.
type QueueDetail struct {
	Queue
	Hour       []Flow                `json:"hour" doc:"Each of the last 60 minutes, the current one last."`
	Day        []Flow                `json:"day" doc:"Each of the last 48 half hours, the current one last."`
	Next       []Message             `json:"next" doc:"The waiting messages that are due first."`
	Groups     []Group               `json:"groups" doc:"The error groups with the most messages."`
	GroupCount int                   `json:"group_count" doc:"How many groups it has."`
	Pattern    string                `json:"policy_pattern,omitempty" doc:"Of the policy, that matches the queue."`
	InForce    *PolicyInForce        `json:"policy_in_force,omitempty"`
	Conditions []condition.Condition `json:"conditions" doc:"What is wrong with the queue, or makes its messages wait."`
	Checkup    Checkup               `json:"checkup" doc:"What redrive doctor would say of the queue."`
	// NotEnrolled is not set for queues that Queues lists and a policy names: their kept messages are retried.
	NotEnrolled string `json:"not_enrolled,omitempty" doc:"Why the service receives no dead letter of the queue."`
	// Alone, too, is set only for those.
	Alone bool `json:"alone,omitempty" doc:"RabbitMQ alone retries what is rejected: redrive topology fixed."`
}

// Checkup is what the checks of redrive doctor found about queues.
type Checkup struct {
	At       *time.Time `json:"at,omitempty" doc:"When it was looked at; absent: not yet, or not by this service."`
	Checking bool       `json:"checking,omitempty" doc:"That is long ago, or not yet: it is being looked at."`
	Findings []Finding  `json:"findings"`
	// Looked are the queues that were checked, and whether each is enrolled.
	Looked map[string]bool `json:"-"`
	// Forgotten are queues that hold messages, have no consumer and are not enrolled.
	Forgotten []string `json:"-"`
}

// Finding is something wrong with a queue's setup. A caller who is limited to queues gets Check, Status, Queue and
// Title, since the other texts may name what that caller does not see.
type Finding struct {
	Check    string   `json:"check"`
	Status   string   `json:"status" doc:"warning or wrong"`
	Queue    string   `json:"queue"`
	Title    string   `json:"title" doc:"What should be so."`
	What     string   `json:"what,omitempty" doc:"What is so."`
	Why      string   `json:"why,omitempty" doc:"Why it matters."`
	Remedy   string   `json:"remedy,omitempty"`
	Commands []string `json:"commands,omitempty"`
}

// LastCheckup returns what was last found about the queues that the caller sees.
func (in *Inspector) LastCheckup(_ context.Context, by auth.Caller) (Checkup, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Checkup{Findings: []Finding{}}, err
	}
	return in.checkup(by, ""), nil
}

func (in *Inspector) checkup(by auth.Caller, queue string) Checkup {
	seen := Checkup{Findings: []Finding{}}
	if in.Checkup == nil {
		return seen
	}
	all := in.Checkup(queue)
	seen.At, seen.Checking, seen.Looked = all.At, all.Checking, all.Looked
	if by.Queues != nil {
		seen.Looked = maps.Clone(all.Looked)
		maps.DeleteFunc(seen.Looked, func(name string, _ bool) bool { return !by.Sees(name) })
	}
	seen.Forgotten = slices.DeleteFunc(slices.Clone(all.Forgotten), func(q string) bool { return !by.Sees(q) })
	for _, f := range all.Findings {
		if by.Queues != nil {
			f = Finding{Check: f.Check, Status: f.Status, Queue: f.Queue, Title: f.Title}
		}
		if by.Sees(f.Queue) {
			seen.Findings = append(seen.Findings, f)
		}
	}
	return seen
}

// maxNext is how many messages that are due next QueueDetail has, and maxQueueGroups how many groups.
const maxNext, maxQueueGroups = 10, 10

// Queue returns one work queue: of those that Queues lists, or that RabbitMQ has.
func (in *Inspector) Queue(ctx context.Context, by auth.Caller, name string) (d QueueDetail, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return d, err
	}
	s, err := in.visibleQueues(ctx, by)
	if err != nil {
		return d, err
	}
	n := store.QueueCount{Queue: name}
	i, listed := slices.BinarySearchFunc(s.counts, name, byQueue)
	if listed {
		n = s.counts[i]
	}
	all := s.shown([]store.QueueCount{n})
	if by.Sees(name) {
		in.askBroker(ctx, all)
	}
	if d.Queue = all[0]; !listed && (d.Broker == nil || !d.Broker.Exists) {
		return d, in.Meant(ctx, by, name, fmt.Errorf("%w: the queue %.255q", ErrNotFound, name))
	}
	if d.Broker != nil && (!listed || d.Policy == "") {
		switch to := d.Broker.DeadLetters; {
		case to == "":
		case to == Alone:
			d.Alone = true
		case to == Nowhere:
			d.NotEnrolled = "not enrolled, what consumers reject is gone"
		case by.Queues != nil: // the text names another queue or exchange
			d.NotEnrolled = "not enrolled, its dead letters go elsewhere"
		default:
			d.NotEnrolled = "not enrolled, its dead letters go " + to
		}
	}
	d.Hour, d.Day, d.Next = []Flow{}, []Flow{}, []Message{}
	if in.Activity != nil {
		d.Hour = in.Activity.Hour(in.Now(), func(queue string) bool { return queue == name })
		d.Day = in.Activity.Day(in.Now(), name)
	}
	set := in.policies()
	if at := slices.IndexFunc(set, func(p policy.Policy) bool { return p.Name == d.Policy }); at >= 0 {
		p := in.inForce(&set[at])
		d.InForce = &p
		d.Pattern = p.Queues[slices.IndexFunc(p.Queues, func(q string) bool { return policy.MatchQueue(q, name) })]
	}
	d.Conditions = []condition.Condition{}
	if in.Conditions != nil && by.Sees(name) {
		for _, c := range in.Conditions() {
			if c.Queue == name {
				d.Conditions = append(d.Conditions, c)
			}
		}
	}
	asked := name
	if wire.OwnQueue(name) || d.Broker != nil && !d.Broker.Exists {
		asked = "" // no check would look at it
	}
	d.Checkup = in.checkup(by, asked)
	d.Checkup.Findings = slices.DeleteFunc(d.Checkup.Findings, func(f Finding) bool { return f.Queue != name })
	if _, looked := d.Checkup.Looked[name]; !looked && len(d.Checkup.Findings) == 0 {
		d.Checkup.At = nil
	}
	groups, err := in.Groups(ctx, by, "queue:"+query.Quote(name), "", "", maxQueueGroups)
	if err != nil {
		return d, err
	}
	d.Groups, d.GroupCount = groups.Groups, groups.Total
	err = in.Store.Scan(ctx, store.Range{State: store.Waiting, Queues: []string{name}},
		func(l store.Listed) (bool, error) {
			m := in.Shown(by, l)
			m.Paused = d.Pause != nil
			if l.Record.Forward == nil {
				m.Held = d.Held()
			}
			d.Next = append(d.Next, m)
			return len(d.Next) < maxNext, nil
		})
	return d, err
}

// Meant adds to an error about a queue the nearest name that the caller may see, unless the queue is known.
func (in *Inspector) Meant(ctx context.Context, by auth.Caller, queue string, err error) error {
	s, failed := in.visibleQueues(ctx, by)
	if failed != nil {
		return err
	}
	var names []string
	for _, n := range s.counts {
		names = append(names, n.Queue)
	}
	for _, p := range in.policies() {
		names = append(names, p.Queues...)
	}
	if slices.Contains(names, queue) {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !by.Sees(name) || strings.ContainsAny(name, "*?")
	})
	if near := hint.Nearest(queue, names); near != "" {
		return hint.Errorf(fmt.Sprintf("did you mean %q?", near), "%w", err)
	}
	return err
}

// HeldBack says of each queue whose due messages are not retried, or not all, why.
func (in *Inspector) HeldBack(ctx context.Context, queues []string) (all []string, err error) {
	pauses, err := Pauses(ctx, in.Store)
	policies := in.policies()
	for _, name := range queues {
		q := in.queue(store.QueueCount{Queue: name}, policies, pauses)
		if by := q.Holds(); len(by) > 0 {
			all = append(all, fmt.Sprintf("queue %q: %s", name, by[0].Why))
		}
	}
	return all, err
}

// askBroker adds RabbitMQ's state of each queue.
func (in *Inspector) askBroker(ctx context.Context, all []Queue) {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	at := in.LatelyAtBroker(ctx, names)
	for i := range all {
		if q, ok := at[all[i].Name]; ok {
			all[i].Broker = &q
		}
	}
}

// visibleQueues returns the queues that a caller may see, with their stored state.
type visibleQueues struct {
	*Inspector
	counts []store.QueueCount // ordered by name
	pauses map[string]QueuePause
	forced map[string]Forced
}

// setQueues are the settings by queue.
func (in *Inspector) setQueues(ctx context.Context) (s visibleQueues, err error) {
	s.Inspector = in
	if s.pauses, err = Pauses(ctx, in.Store); err == nil {
		s.forced, err = ForcedBreakers(ctx, in.Store)
	}
	return s, err
}

func (in *Inspector) visibleQueues(ctx context.Context, by auth.Caller) (s visibleQueues, err error) {
	if s, err = in.setQueues(ctx); err != nil {
		return s, err
	}
	s.counts, err = in.queuesOf(ctx, by, s.pauses)
	return s, err
}

// shown returns queues as people see them, without RabbitMQ's state of them.
func (s *visibleQueues) shown(some []store.QueueCount) []Queue {
	all, policies := make([]Queue, 0, len(some)), s.policies()
	for _, n := range some {
		q := s.queue(n, policies, s.pauses)
		if f, ok := s.forced[n.Queue]; ok && q.Throttle != nil {
			q.Throttle.Forced = &f
		}
		all = append(all, q)
	}
	return all
}

// topQueues returns maxOnOverview queues at most, ordered by name: those with restricted retries before
// the others, then those with the most failures, and with the most messages.
func (s *visibleQueues) topQueues() []store.QueueCount {
	if len(s.counts) <= maxOnOverview {
		return s.counts
	}
	type ranked struct {
		store.QueueCount
		restricted int
		failed     int64
	}
	found := firstInOrder(maxOnOverview, func(yield func(ranked) bool) {
		for _, n := range s.counts {
			if r := (ranked{n, s.restricted(n.Queue), s.failedLately(n.Queue)}); !yield(r) {
				return
			}
		}
	}, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.restricted, a.restricted), cmp.Compare(b.failed, a.failed),
			cmp.Compare(b.Waiting+b.Parked, a.Waiting+a.Parked), hint.Natural(a.Queue, b.Queue))
	})
	some := make([]store.QueueCount, len(found))
	for i := range found {
		some[i] = found[i].QueueCount
	}
	slices.SortFunc(some, func(a, b store.QueueCount) int { return hint.Natural(a.Queue, b.Queue) })
	return some
}

// restricted is 1 for a queue that is paused, unreachable or restricted by its breaker or for lack of
// consumers.
func (s *visibleQueues) restricted(queue string) int {
	_, paused := s.pauses[queue]
	if paused || s.unreachable(queue) != "" || s.Throttle != nil && s.Throttle(queue).KeepsBack() {
		return 1
	}
	return 0
}

// unreachable is why messages cannot be published to a queue now, or "".
func (in *Inspector) unreachable(queue string) string {
	return in.Holds(condition.Condition{Kind: condition.Unreachable, Queue: queue})
}

func (s *visibleQueues) failedLately(queue string) int64 {
	if s.Activity == nil {
		return 0
	}
	return s.Activity.Minute(queue, s.Now()).Failed
}

func (in *Inspector) queue(n store.QueueCount, policies policy.Set, pauses map[string]QueuePause) Queue {
	q := Queue{Name: n.Queue, Waiting: n.Waiting, Parked: n.Parked, Discarded: n.Discarded,
		Unreachable: in.unreachable(n.Queue)}
	q.NextDue, q.Oldest = dueFirst(n)
	if in.Activity != nil {
		f := in.Activity.Minute(n.Queue, in.Now())
		q.Failed, q.Retried, q.ParkedIn = f.Failed, f.Retried, f.Parked
	}
	if p, ok := policies.Match(n.Queue); ok {
		q.Policy, q.Way = p.Name, in.wayName(in.way(p.Name))
	}
	if p, ok := pauses[n.Queue]; ok {
		q.Pause = &p
	}
	if in.Throttle != nil {
		q.Throttle = in.Throttle(n.Queue)
		if q.Throttle != nil && (q.NextDue == nil || q.NextDue.After(in.Now())) {
			q.Throttle.LimitedBy = "" // nothing waits for the limit
		}
	}
	return q
}

// dueFirst is when the message of a queue that is due first is due, and when it failed.
func dueFirst(n store.QueueCount) (due, failed *time.Time) {
	if n.Waiting > 0 && !n.NextDue.IsZero() {
		due = &n.NextDue
		if !n.NextFailed.IsZero() {
			failed = &n.NextFailed
		}
	}
	return due, failed
}

// A count of more than MostQueues queues is used again for countReuse times as long as it took,
// for at most maxCountAge: a store reads something of each queue for it, and each open page asks
// once a second.
const (
	countReuse  = 10
	maxCountAge = 5 * time.Second
)

// queueCounts caches the counts of a store, ordered by queue.
type queueCounts struct {
	mu     sync.Mutex // also locked while it counts: all callers that wait get that count
	until  time.Time
	counts []store.QueueCount
}

// counts are the store's, ordered by queue; they are not to be changed.
func (in *Inspector) counts(ctx context.Context) ([]store.QueueCount, error) {
	t := &in.queueCounts
	t.mu.Lock()
	defer t.mu.Unlock()
	began := time.Now()
	if began.Before(t.until) {
		return t.counts, nil
	}
	counts, err := in.Store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(counts, func(a, b store.QueueCount) int { return hint.Natural(a.Queue, b.Queue) })
	if t.counts = nil; len(counts) > MostQueues {
		t.counts = counts
		t.until = time.Now().Add(min(maxCountAge, countReuse*time.Since(began)))
	}
	return counts, nil
}

// queuesOf are the queues that the caller may see, ordered by name: those that something is
// kept for, that are paused, or that something has happened to since the service started.
func (in *Inspector) queuesOf(
	ctx context.Context, by auth.Caller, pauses map[string]QueuePause,
) ([]store.QueueCount, error) {
	all, err := in.counts(ctx)
	if err != nil {
		return nil, err
	}
	var more []store.QueueCount
	add := func(name string) {
		if _, ok := slices.BinarySearchFunc(all, name, byQueue); !ok {
			more = append(more, store.QueueCount{Queue: name})
		}
	}
	for name := range pauses {
		add(name)
	}
	if in.Activity != nil {
		for _, name := range in.Activity.Queues() {
			if _, paused := pauses[name]; !paused {
				add(name)
			}
		}
	}
	if len(more) == 0 && by.Queues == nil {
		return all, nil
	}
	seen := make([]store.QueueCount, 0, len(all)+len(more))
	for _, some := range [][]store.QueueCount{all, more} {
		for _, n := range some {
			if by.Sees(n.Queue) {
				seen = append(seen, n)
			}
		}
	}
	slices.SortFunc(seen, func(a, b store.QueueCount) int { return hint.Natural(a.Queue, b.Queue) })
	return seen, nil
}

func byQueue(n store.QueueCount, name string) int { return hint.Natural(n.Queue, name) }

// firstInOrder returns the n that come first in an order, without sorting all: there may be a
// hundred thousand.
func firstInOrder[T any](n int, of func(yield func(T) bool), order func(a, b T) int) []T {
	var some []T
	cut := func() {
		slices.SortFunc(some, order)
		some = some[:min(n, len(some))]
	}
	full := false
	for v := range of {
		if full && order(v, some[n-1]) >= 0 {
			continue
		}
		if some = append(some, v); len(some) == 2*n {
			cut()
			full = true
		}
	}
	cut()
	return some
}

// pageOf returns the page of a list, ordered by name, that begins behind after, the end of the
// page before; next is "" at the end of the list.
func pageOf[T any](all []T, name func(T) string, after string, limit int) (page []T, next string, err error) {
	if after != "" {
		last, err := base64.RawURLEncoding.DecodeString(after)
		if err != nil {
			return nil, "", fmt.Errorf("%w: after is %q, which no page ends with", ErrInvalid, after)
		}
		all = all[sort.Search(len(all), func(i int) bool { return hint.Natural("."+name(all[i]), string(last)) > 0 }):]
	}
	if limit <= 0 || limit > MostQueues {
		limit = MostQueues
	}
	if len(all) <= limit {
		return all, "", nil
	}
	return all[:limit], base64.RawURLEncoding.EncodeToString([]byte("." + name(all[limit-1]))),
		nil // a name may be "", or any bytes
}

const (
	// refreshAfter is how old an answer may be before RabbitMQ is asked again about a queue that
	// is on somebody's page. A page that has an answer twice as old waits brokerWait for a new one,
	// and then shows what there is.
	refreshAfter = 5 * time.Second
	brokerWait   = time.Second
	// watchedFor is how long after a queue was shown its answer is kept fresh: somebody may still
	// look at it.
	watchedFor = 15 * time.Second
	// maxAskers is how many queues RabbitMQ is asked about at once.
	maxAskers = 4
	// maxKnown bounds the answers that are remembered.
	maxKnown = 10_000
)

// queueCache has RabbitMQ's latest answers about queues.
type queueCache struct {
	mu     sync.Mutex
	known  map[string]answer
	silent time.Time // when RabbitMQ last did not answer
}

type answer struct {
	at     AtBroker
	asOf   time.Time
	wanted time.Time // when somebody last looked
}

// keepFresh asks again about the queues that somebody looks at, so that only the first page with
// a queue waits for RabbitMQ.
func (q *queueCache) keepFresh(ctx context.Context, b Broker) {
	each := time.NewTicker(refreshAfter / 2)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-each.C:
			q.refresh(ctx, b, q.stale(q.wanted(), refreshAfter))
		}
	}
}

// wanted are the queues that somebody looked at lately.
func (q *queueCache) wanted() (names []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, a := range q.known {
		if time.Since(a.wanted) < watchedFor {
			names = append(names, name)
		}
	}
	return names
}

// ask returns what is known of the queues. It takes no longer than brokerWait, and leaves out
// those for which RabbitMQ has not answered by then.
func (q *queueCache) ask(ctx context.Context, b Broker, names []string) map[string]AtBroker {
	if b == nil {
		return nil
	}
	q.refresh(ctx, b, q.stale(names, 2*refreshAfter))
	q.mu.Lock()
	defer q.mu.Unlock()
	all, now := map[string]AtBroker{}, time.Now()
	for _, name := range names {
		if a, ok := q.known[name]; ok && now.Sub(a.asOf) <= 3*refreshAfter {
			all[name] = a.at
			a.wanted = now
			q.known[name] = a
		}
	}
	return all
}

// refresh asks about queues, for no longer than brokerWait.
func (q *queueCache) refresh(ctx context.Context, b Broker, stale []string) {
	if len(stale) == 0 {
		return
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	next := make(chan string)
	var askers sync.WaitGroup
	var answers atomic.Int64
	for range maxAskers {
		askers.Go(func() {
			for name := range next {
				switch at, err := b.Queue(ctx, name); {
				case err == nil:
					answers.Add(1)
					q.setAnswer(name, at)
				case answers.Load() == 0:
					cancel() // the others would wait for the same
				}
			}
		})
	}
	for _, name := range stale {
		select {
		case next <- name:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	askers.Wait()
	if answers.Load() == 0 && !errors.Is(whole.Err(), context.Canceled) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.silent = time.Now() // or each page would wait again
	}
}

// stale returns the queues whose answers are older than this, the oldest first: of very many,
// RabbitMQ may answer only the first in time.
func (q *queueCache) stale(names []string, than time.Duration) (stale []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.silent) < refreshAfter {
		return nil
	}
	for _, name := range names {
		if a, ok := q.known[name]; !ok || time.Since(a.asOf) > than {
			stale = append(stale, name)
		}
	}
	slices.SortStableFunc(stale, func(a, b string) int { return q.known[a].asOf.Compare(q.known[b].asOf) })
	return stale
}

func (q *queueCache) setAnswer(name string, at AtBroker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known == nil || len(q.known) >= maxKnown {
		q.known = map[string]answer{} // queues come and go
	}
	q.known[name] = answer{at, time.Now(), q.known[name].wanted}
}

// brokerTimeout is how long an action waits for what RabbitMQ says of a queue.
const brokerTimeout = 5 * time.Second

var errNoManagement = errors.New("RabbitMQ's management API is not configured")

// LatelyAtBroker returns RabbitMQ's answers about queues, of at most three times refreshAfter ago,
// and waits for those that it lacks for at most brokerWait. Those without an answer are left out.
func (in *Inspector) LatelyAtBroker(ctx context.Context, queues []string) map[string]AtBroker {
	return in.queues.ask(ctx, in.Broker, queues)
}

// AtBroker asks RabbitMQ about a queue now.
func (in *Inspector) AtBroker(ctx context.Context, queue string) (AtBroker, error) {
	if in.Broker == nil {
		return AtBroker{}, errNoManagement
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	return in.Broker.Queue(ctx, queue)
}
