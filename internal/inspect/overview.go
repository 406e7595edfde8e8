package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// Overview is the state of the service on one page.
type Overview struct {
	Version    string                `json:"version"`
	Since      time.Time             `json:"since" doc:"When the service started."`
	Now        time.Time             `json:"now"`
	Broker     string                `json:"broker" doc:"Where RabbitMQ is, without the password."`
	ReadOnly   bool                  `json:"read_only"`
	Ready      bool                  `json:"ready" doc:"As /readyz says."`
	Well       bool                  `json:"well" doc:"Nothing is wrong, as far as the caller sees."`
	Verdict    string                `json:"verdict" doc:"What to know first, in a line."`
	Conditions []condition.Condition `json:"conditions" doc:"What is wrong or makes messages wait, also by queue."`
	HeldAll    string                `json:"held_all,omitempty" doc:"Why nothing can be retried, of any queue."`
	Notices    []string              `json:"notices,omitempty" doc:"What a person should see to; it stops nothing."`
	Waiting    int64                 `json:"waiting"`
	Parked     int64                 `json:"parked"`
	Discarded  int64                 `json:"discarded"`
	Oldest     *time.Time            `json:"oldest,omitempty" doc:"When the message that is due next last failed."`
	NextDue    *time.Time            `json:"next_due,omitempty" doc:"Of the queues whose retries are not held back."`
	Overdue    Slot                  `json:"overdue" doc:"Due for seconds, not retried yet, and not held back."`
	Stopped    int64                 `json:"stopped" doc:"Wait in queues whose retries are held back."`
	LastFailed *time.Time            `json:"last_failed,omitempty" doc:"When a message that is kept here last failed."`
	Groups     []Group               `json:"groups" doc:"The errors with the most messages, of all queues."`
	PerMinute  Flow                  `json:"per_minute" doc:"In the last minute."`
	Hour       []Flow                `json:"hour" doc:"Each of the last 60 minutes, the current one last."`
	Calendar   []Slot                `json:"calendar" doc:"Upcoming retries by time, but for those held back."`
	Queues     []Queue               `json:"queues"`
	MoreQueues int                   `json:"more_queues,omitempty" doc:"How many are left out here: see queues."`
	Parts      []Part                `json:"parts,omitempty" doc:"How each part of the service is."`
	Replicas   []Replica             `json:"replicas,omitempty" doc:"Those that share the store, by id."`
}

// Part is a part of the service, or what it needs.
type Part struct {
	Name string `json:"name"`
	Text string `json:"text"`
	Well bool   `json:"well"`
}

// Flow counts the events of a minute.
type Flow struct {
	Failed    int64 `json:"failed"`
	Retried   int64 `json:"retried"`
	Parked    int64 `json:"parked"`
	Discarded int64 `json:"discarded"`
}

// Overview returns the state of the service.
func (in *Inspector) Overview(ctx context.Context, by auth.Caller) (Overview, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Overview{}, err
	}
	s, unread := in.visibleQueues(ctx, by)
	if unread != nil && (ctx.Err() != nil || in.IsReady()) {
		return Overview{}, unread
	}
	shown := s.shown(s.topQueues())
	in.askBroker(ctx, shown)
	now := in.Now()
	o := Overview{Replicas: in.replicasFor(by), Version: in.Version, Since: in.Since, Now: now, ReadOnly: in.ReadOnly ||
		by.ReadOnly,
		Ready: in.IsReady(), Conditions: in.ConditionsFor(by), Hour: []Flow{}, Groups: []Group{}, Queues: shown,
		MoreQueues: len(s.counts) - len(shown)}
	if in.BrokerURL != nil {
		o.Broker = in.BrokerURL()
	}
	o.HeldAll = condition.Brief(in.Holds(condition.Condition{Kind: condition.Publish}))
	if in.Notices != nil {
		o.Notices = in.Notices()
	}
	if in.Parts != nil {
		o.Parts = in.Parts()
	}
	var next store.QueueCount // the one whose message is due first
	var moving []store.QueueCount
	for _, n := range s.counts {
		o.Waiting += n.Waiting
		o.Parked += n.Parked
		o.Discarded += n.Discarded
		if s.restricted(n.Queue) > 0 {
			o.Stopped += n.Waiting
			continue
		}
		moving = append(moving, n)
		if n.Waiting > 0 && !n.NextDue.IsZero() && (next.NextDue.IsZero() || n.NextDue.Before(next.NextDue)) {
			next = n
		}
	}
	o.NextDue, o.Oldest = dueFirst(next)
	if in.Activity != nil {
		o.Hour = in.Activity.Hour(now, by.Sees)
		o.PerMinute = in.perMinute(by, now)
	}
	if unread != nil { // the service is not ready, and says here why as everywhere
		o.Queues, o.Calendar = []Queue{}, []Slot{}
		o.Conditions = append(o.Conditions,
			condition.Condition{Kind: condition.Unread, Text: unread.Error(), Since: now, NotReady: true})
		o.judge()
		return o, nil
	}
	groups, err := in.groupsSeen(ctx, by)
	if err != nil {
		return o, err
	}
	for _, g := range groups {
		if o.LastFailed == nil || g.Last.After(*o.LastFailed) {
			o.LastFailed = &g.Last
		}
	}
	set, err := SetGroupStates(ctx, in.Store)
	if err != nil {
		return o, err
	}
	all := joinedBy(ofError, groups, func(g *store.GroupCount) bool { return in.stateOf(g, set).passes("") })
	slices.SortFunc(all, compareJoined)
	for _, g := range all[:min(maxOverviewGroups, len(all))] {
		o.Groups = append(o.Groups, in.shownJoined(g, set))
	}
	o.judge()
	o.Overdue, o.Calendar, err = in.calendarOf(ctx, by, moving, now)
	return o, err
}

// Due says in words what of the waiting messages is overdue, due next, and held back; page and command line show it.
func (o Overview) Due() string {
	var parts []string
	switch n := o.Overdue; {
	case n.Count > 0 && n.AtLeast:
		parts = append(parts, hint.Thousands(fmt.Sprint(n.Count))+" or more overdue")
	case n.Count > 0:
		parts = append(parts, hint.Thousands(fmt.Sprint(n.Count))+" overdue")
	case o.NextDue != nil && o.NextDue.After(o.Now):
		parts = append(parts, "next due in "+policy.FormatDuration(o.NextDue.Sub(o.Now).Round(time.Second)))
	case o.NextDue != nil:
		parts = append(parts, "due now")
	}
	if o.Stopped > 0 {
		parts = append(parts, hint.Thousands(fmt.Sprint(o.Stopped))+" held back")
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing is due")
}

// maxOverviewGroups is how many error groups the overview has.
const maxOverviewGroups = 5

// judge says what a person on call should know first; page, API and command line show it.
func (o *Overview) judge() {
	held, paused := 0, 0
	for _, q := range o.Queues {
		if q.HeldBack() {
			held++
		}
		if q.Pause != nil {
			paused++
		}
	}
	switch wrong, parked := len(o.Conditions), o.PerMinute.Parked; {
	case !o.Ready && wrong == 0:
		o.Verdict = "not ready"
	case o.Mild() != "":
		o.Verdict = o.Mild()
	case wrong == 1:
		o.Verdict = "1 thing is wrong"
	case wrong > 1:
		o.Verdict = fmt.Sprintf("%d things are wrong", wrong)
	case held == 1:
		o.Verdict = "retries of 1 queue are held back"
	case held > 1:
		o.Verdict = fmt.Sprintf("retries of %d queues are held back", held)
	case parked == 1:
		o.Verdict = "1 message was parked in the last minute"
	case parked > 1:
		o.Verdict = fmt.Sprintf("%d messages were parked in the last minute", parked)
	default:
		o.Verdict, o.Well = "nothing is wrong", true
		if o.Parked == 1 {
			o.Verdict += ", but 1 message is parked and waits for a person"
		} else if o.Parked > 1 {
			o.Verdict += ", but " + hint.Thousands(fmt.Sprint(o.Parked)) + " messages are parked and wait for a person"
		}
	}
	// A pause that a person ordered is not wrong, but explains what waits.
	if wrong := len(o.Conditions) > 0; wrong && paused == 1 {
		o.Verdict += ", and retries of 1 queue are paused"
	} else if wrong && paused > 1 {
		o.Verdict += fmt.Sprintf(", and retries of %d queues are paused", paused)
	}
}

// Mild is condition.Mild of a service that is ready.
func (o Overview) Mild() string {
	if !o.Ready {
		return ""
	}
	return condition.Mild(o.Conditions)
}

// ConditionsFor returns those that hold now, without those of queues that the caller does not see.
func (in *Inspector) ConditionsFor(by auth.Caller) []condition.Condition {
	all := []condition.Condition{}
	if in.Conditions != nil && by.May(auth.Viewer, "") == nil {
		all = append(all, in.Conditions()...)
	}
	return condition.Listed(condition.Joined(slices.DeleteFunc(all, func(c condition.Condition) bool {
		return c.OfQueue() && !by.Sees(c.Queue)
	})))
}

// IsReady reports whether the service is ready.
func (in *Inspector) IsReady() bool {
	if in.Ready != nil {
		return in.Ready()
	}
	return in.Conditions == nil || len(in.Conditions()) == 0
}

// perMinute adds up the last minute of what the caller may see.
func (in *Inspector) perMinute(by auth.Caller, now time.Time) (sum Flow) {
	for _, name := range in.Activity.Queues() {
		if !by.Sees(name) {
			continue
		}
		f := in.Activity.Minute(name, now)
		sum.Failed += f.Failed
		sum.Retried += f.Retried
		sum.Parked += f.Parked
		sum.Discarded += f.Discarded
	}
	return sum
}

// Totals are the numbers of one moment.
type Totals struct {
	At         time.Time             `json:"at"`
	Waiting    int64                 `json:"waiting"`
	Parked     int64                 `json:"parked"`
	Discarded  int64                 `json:"discarded"`
	PerMinute  Flow                  `json:"per_minute"`
	Conditions []condition.Condition `json:"conditions"`
}

// Totals returns the numbers of now, of the queues that the caller sees.
func (in *Inspector) Totals(ctx context.Context, by auth.Caller) (Totals, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Totals{}, err
	}
	counts, err := in.counts(ctx)
	if err != nil {
		return Totals{}, err
	}
	t := Totals{At: in.Now(), Conditions: in.ConditionsFor(by)}
	for _, n := range counts {
		if by.Sees(n.Queue) {
			t.Waiting += n.Waiting
			t.Parked += n.Parked
			t.Discarded += n.Discarded
		}
	}
	if in.Activity != nil {
		t.PerMinute = in.perMinute(by, t.At)
	}
	return t, nil
}

// Failures is how many messages failed since the service started, in the queues that the
// caller may see.
func (in *Inspector) Failures(by auth.Caller) int64 {
	if in.Activity == nil {
		return 0
	}
	return in.Activity.Failed(by.Sees)
}

const (
	// overdueAfter is how long after its time a message is overdue: until then it is just being retried.
	overdueAfter = 5 * time.Second
	// maxCounted bounds the counting of one slot, and calendarFresh is how long a
	// calendar is shown again.
	maxCounted    = 5000
	calendarFresh = 10 * time.Second
	// maxDue is how many queues, those with the most messages, have all their due messages
	// counted; of each other queue only the message that is due first is counted.
	maxDue = 500
)

// scales are the lengths that the slots of a calendar can have, each with how many there are.
var scales = []struct {
	length time.Duration
	count  int
}{{time.Minute, 12}, {5 * time.Minute, 12}, {30 * time.Minute, 24}}

// Slot is how many messages are due in a stretch of time.
type Slot struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count int64     `json:"count"`
	// AtLeast: there are more; counting them all would have taken too long.
	AtLeast bool `json:"at_least,omitempty"`
}

// calendarCache has the counts of a moment ago, for each set of queues that
// callers are limited to.
type calendarCache struct {
	mu    sync.Mutex
	known map[string]calendar
}

type calendar struct {
	asOf    time.Time
	queues  int
	overdue Slot
	slots   []Slot
}

// calendarOf counts what is overdue, and what is due in each slot of the next minutes or hours.
func (in *Inspector) calendarOf(
	ctx context.Context, by auth.Caller, queues []store.QueueCount, now time.Time,
) (overdue Slot, slots []Slot, err error) {
	whose := strings.Join(by.Queues, "\x00")
	if by.Queues != nil {
		whose = "limited\x00" + whose
	}
	in.calendar.mu.Lock()
	cached, ok := in.calendar.known[whose]
	in.calendar.mu.Unlock()
	if ok && now.Sub(cached.asOf) < calendarFresh && !now.Before(cached.asOf) && cached.queues == len(queues) {
		return cached.overdue, cached.slots, nil
	}
	all, err := in.slots(ctx, queues, now)
	if err != nil {
		return Slot{}, nil, err
	}
	overdue, slots = all[0], fitted(all[1:], now)
	in.calendar.mu.Lock()
	defer in.calendar.mu.Unlock()
	if in.calendar.known == nil || len(in.calendar.known) > 100 {
		in.calendar.known = map[string]calendar{}
	}
	in.calendar.known[whose] = calendar{now, len(queues), overdue, slots}
	return overdue, slots, nil
}

// fitted joins fine slots to slots of the first scale that has all that is due.
func fitted(fine []Slot, now time.Time) (all []Slot) {
	for i, scale := range scales {
		end := now.Truncate(scale.length).Add(time.Duration(scale.count) * scale.length)
		within, beyond := false, false
		for _, s := range fine {
			if some := s.Count > 0 || s.AtLeast; s.From.Before(end) {
				within = within || some
			} else {
				beyond = beyond || some
			}
		}
		if (beyond || !within) && i < len(scales)-1 {
			continue
		}
		for _, s := range fine {
			last := len(all) - 1
			switch {
			case !s.From.Before(end):
				return all
			case last < 0 || all[last].To.Truncate(scale.length).Equal(all[last].To):
				all = append(all, s)
			default:
				all[last].To, all[last].Count = s.To, all[last].Count+s.Count
				all[last].AtLeast = all[last].AtLeast || s.AtLeast
			}
		}
		return all
	}
	return all
}

// slots counts what is overdue, and then what is due until each time at which a slot of some scale ends.
func (in *Inspector) slots(ctx context.Context, queues []store.QueueCount, now time.Time) ([]Slot, error) {
	fullest := firstInOrder(maxDue, func(yield func(store.QueueCount) bool) {
		for _, q := range queues {
			if q.Waiting > 0 && !yield(q) {
				return
			}
		}
	}, fuller)
	names := make([]string, len(fullest))
	for i, q := range fullest {
		names[i] = q.Queue
	}
	edges := []time.Time{now.Add(-overdueAfter)}
	all := []Slot{{From: edges[0], To: edges[0]}}
	from := now
	for _, scale := range scales {
		end := now.Truncate(scale.length).Add(time.Duration(scale.count) * scale.length)
		for from.Before(end) {
			to := from.Truncate(scale.length).Add(scale.length)
			edges, all = append(edges, to), append(all, Slot{From: from, To: to})
			from = to
		}
	}
	for _, q := range queues {
		if q.Waiting > 0 && q.NextDue.Before(all[0].From) && !q.NextDue.IsZero() {
			all[0].From = q.NextDue
		}
	}
	counts, err := in.Store.CountDue(ctx, names, edges, maxCounted)
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		all[i].Count, all[i].AtLeast = n, n == maxCounted
	}
	if len(fullest) < maxDue {
		return all, nil
	}
	for _, q := range queues {
		if q.Waiting == 0 || fuller(q, fullest[maxDue-1]) <= 0 {
			continue
		}
		for i := range all {
			if q.NextDue.Before(all[i].To) {
				all[i].Count++
				for j := i; q.Waiting > 1 && j < len(all); j++ {
					all[j].AtLeast = true
				}
				break
			}
		}
	}
	return all, nil
}

// fuller orders queues by how many messages wait, the most first.
func fuller(a, b store.QueueCount) int {
	return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), hint.Natural(a.Queue, b.Queue))
}

// ThrottleView is how the retries of a queue are limited just now, as people see it; what limits
// them is throttle.Throttle. The names in JSON are the API's, and never change.
type ThrottleView struct {
	State string `json:"state" enum:"closed,open,half-open,ramp" doc:"open: none are retried; half-open: a few."`
	// Why the breaker is in its state, in words.
	Why    string     `json:"why,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty" doc:"Of an open breaker: when it tries again."`
	Forced *Forced    `json:"forced,omitempty" doc:"A person has set it."`

	Rate        float64             `json:"rate,omitempty" doc:"Retries per second now; absent: unlimited."`
	InFlight    int                 `json:"in_flight,omitempty" doc:"Retried, and neither failed again nor finished."`
	MaxInFlight int                 `json:"most_in_flight,omitempty"`
	FailedShare float64             `json:"failed_share,omitempty" doc:"Of the retries in the window, 0 to 1."`
	Finished    int                 `json:"judged,omitempty" doc:"How many retries that share is of."`
	LimitedBy   throttle.WaitReason `json:"limited_by,omitempty" enum:"rate,in_flight" doc:"What due messages await."`
	NoConsumer  *time.Time          `json:"no_consumer_since,omitempty" doc:"None is retried since: no consumer."`
}

// Forced is a breaker that a person has set.
type Forced struct {
	To     string    `json:"to" enum:"open,closed"`
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// Text is in words what stops retries, or what a person has set the breaker to; "" for neither.
func (t *ThrottleView) Text() string {
	switch {
	case t == nil:
		return ""
	case t.NoConsumer != nil:
		return "paused: no consumers"
	case t.Forced != nil:
		return "breaker set to " + t.Forced.To + " by " + t.Forced.By
	case t.State != "closed":
		return strings.TrimSuffix("breaker "+t.State+": "+t.Why, ": ")
	}
	return ""
}

// whilePaused is Text of a queue that a person has paused, or "" if nothing else would hold it back for long.
func (t *ThrottleView) whilePaused() string {
	switch {
	case !t.KeepsBack() || t.NoConsumer == nil && t.State == string(throttle.Ramp):
		return ""
	case t.NoConsumer != nil:
		return "it has no consumers"
	case t.Forced != nil:
		return "its breaker is " + condition.WhilePaused("set to "+t.Forced.To+" by "+t.Forced.By, "")
	}
	return "its breaker is " + condition.WhilePaused(t.State, t.Why)
}

// Name says in a word or two what stops retries.
func (t *ThrottleView) Name() string {
	if t.NoConsumer != nil {
		return "no consumers"
	}
	return "breaker " + t.State
}

// KeepsBack reports whether due messages are not retried, or not all.
func (t *ThrottleView) KeepsBack() bool {
	return t != nil && (t.NoConsumer != nil || t.State != "closed")
}

// LimitText is in words the limit that due messages wait for just now, or "". They are retried as
// fast as the policy allows, so that this is no pause, and Text leaves it out.
func (t *ThrottleView) LimitText() string {
	if t == nil || t.LimitedBy == "" {
		return ""
	}
	return "limited by " + string(t.LimitedBy)
}
