package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// States of a message, in the words of page, API and command line.
const (
	Waiting   = "waiting"
	Retried   = "retried" // and not seen again; RabbitMQ never reports that a consumer succeeded
	Parked    = "parked"
	Discarded = "discarded" // restorable until a date
)

var stateNames = map[store.State]string{store.Waiting: Waiting, store.Parked: Parked, store.Discarded: Discarded}

// StateName is that word for a state that records have.
func StateName(s store.State) string { return stateNames[s] }

// Message is a message without headers and body.
type Message struct {
	ID          string     `json:"id" doc:"Its x-redrive-id."`
	Key         string     `json:"key,omitempty" csv:"-" doc:"Names this copy: two can share an id. Absent: retried."`
	Queue       string     `json:"queue"`
	State       string     `json:"state" enum:"waiting,retried,parked,discarded"`
	Attempt     int        `json:"attempt" doc:"Failures so far; a replay starts again at 0."`
	Replays     int        `json:"replays,omitempty" csv:"-" doc:"How often people replayed it."`
	Due         *time.Time `json:"due,omitempty" doc:"Of a waiting one: when it is retried at the earliest."`
	Paused      bool       `json:"paused,omitempty" csv:"-" doc:"The retries of its queue are paused."`
	Held        string     `json:"held,omitempty" csv:"-" doc:"What holds a waiting one back, in a word or two."`
	ParkedAt    *time.Time `json:"parked_at,omitempty"`
	ParkedFor   string     `json:"parked_for,omitempty" doc:"Why it is parked."`
	RetriedAt   *time.Time `json:"retried_at,omitempty" csv:"-" doc:"When it was retried; it has not been seen since."`
	Restorable  *time.Time `json:"restorable_until,omitempty" csv:"-" doc:"Of a discarded one."`
	Reason      string     `json:"reason" doc:"RabbitMQ's reason for dead-lettering it, or reported."`
	Error       string     `json:"error,omitempty" doc:"What its consumer said."`
	Group       string     `json:"group,omitempty" csv:"-" doc:"The group of failures it belongs to."`
	Policy      string     `json:"policy,omitempty"`
	Rule        string     `json:"rule,omitempty" csv:"-" doc:"The rule of the policy that decided."`
	Notify      string     `json:"notify,omitempty" csv:"-" enum:"urgent,never" doc:"By a rule, once it is parked."`
	AdoptedFrom string     `json:"adopted_from,omitempty" csv:"-" doc:"The dead-letter queue that it was adopted from."`
	FirstFailed time.Time  `json:"first_failed"`
	Failed      time.Time  `json:"failed"`
	Exchange    string     `json:"exchange" doc:"As first published."`
	RoutingKey  string     `json:"routing_key" doc:"As first published."`
	Type        string     `json:"type,omitempty" doc:"The type property."`
	ContentType string     `json:"content_type,omitempty"`
	Size        *int       `json:"size,omitempty" doc:"Of the body, in bytes; absent when it was retried."`
	Notes       []string   `json:"notes,omitempty" doc:"What was odd about it."`
	SendsTo     string     `json:"sends_to,omitempty" csv:"-" doc:"Where it is forwarded to, instead of being retried."`
	MadeFrom    string     `json:"made_from,omitempty" csv:"-" doc:"The message that it is an edit or a copy of."`
	MadeInto    string     `json:"made_into,omitempty" csv:"-" doc:"What a person made of this one."`
	// Columns are the chosen ones, by their names.
	Columns map[string]string `json:"columns,omitempty" csv:"-" doc:"The columns that were asked for, as texts."`
}

// Failures is how often it failed so far. Nil: it failed, but a replay started its count again.
func (m Message) Failures() any {
	if m.Attempt == 0 {
		return nil
	}
	return m.Attempt
}

// MessageColumns show messages on the command line.
var MessageColumns = []Column[Message]{
	{Field: "ID"}, {Field: "Queue"}, {Field: "State"}, {Field: "Attempt", Narrow: 2, Value: Message.Failures},
	{Head: "When", Narrow: 1, Value: func(m Message) any {
		switch {
		case m.Due != nil:
			return Ahead{m.Due}
		}
		return cmp.Or(m.ParkedAt, m.RetriedAt, &m.Failed)
	}},
	{Head: "Held back", Field: "Held", Narrow: Below, Rare: true},
	{Field: "Reason", Narrow: 3}, {Field: "Size", Narrow: 4},
	{Head: "Why", Narrow: Below, Value: func(m Message) any {
		if m.ParkedFor == "" || m.Error == "" {
			return m.Error + m.ParkedFor
		}
		return m.Error + "; " + m.ParkedFor
	}},
}

// ChosenColumns show messages that were searched with these columns.
func ChosenColumns(chosen []query.Column) (all []Column[Message]) {
	for _, c := range chosen {
		all = append(all, Column[Message]{Head: c.Name, Value: func(m Message) any {
			text := m.Columns[c.Name]
			if t, err := time.Parse(time.RFC3339, text); err == nil && c.IsTime() {
				return t
			}
			if n, err := strconv.Atoi(text); err == nil && c.IsNumber() {
				return n
			}
			return text
		}})
	}
	return all
}

// Detail is a message with all that is known of it but the raw body.
type Detail struct {
	Message
	GroupNotes []string       `json:"group_notes,omitempty" doc:"On its group, and those it was replayed from."`
	Away       string         `json:"away,omitempty" doc:"Of a retried one: where its body and headers are."`
	HeldBy     []Hold         `json:"held_by,omitempty" doc:"What keeps it back, even once due or replayed."`
	Timeline   []Step         `json:"timeline" doc:"Each failure and what came of it, oldest first."`
	Properties []Property     `json:"properties" doc:"AMQP's own, as first published."`
	Headers    []Header       `json:"headers"`
	Body       *decode.Result `json:"body,omitempty" doc:"Absent when it was retried."`
	SameID     []Message      `json:"same_id,omitempty" doc:"Other messages that carry its id."`
	Showable   bool           `json:"-"` // parts may be masked, and the caller may see it whole for a reason
}

// Hold is what keeps a waiting message back.
type Hold struct {
	What  string     `json:"what,omitempty" doc:"In a word or two; absent: its retry only has to wait for its turn."`
	Why   string     `json:"why"`
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty" doc:"When it is over or tried again, where that is known."`
}

// Holding returns the first of HeldBy that is more than waiting for its turn, or nil.
func (d Detail) Holding() *Hold { return holding(d.HeldBy) }

func holding(all []Hold) *Hold {
	if i := slices.IndexFunc(all, func(h Hold) bool { return h.What != "" }); i >= 0 {
		return &all[i]
	}
	return nil
}

// FailuresText is how often it failed; of a message that was replayed also how often since.
func (d Detail) FailuresText() string {
	if d.Replays == 0 && !slices.ContainsFunc(d.Timeline, func(s Step) bool { return s.Replayed }) {
		if d.Attempt == 0 {
			return ""
		}
		return hint.Thousands(strconv.Itoa(d.Attempt))
	}
	text := hint.Thousands(strconv.Itoa(max(len(d.Timeline), d.Attempt+1)))
	if !d.complete() {
		text = "at least " + text
	}
	if d.Attempt == 0 {
		return text + ", before its replay"
	}
	return fmt.Sprintf("%s, %d since its replay", text, d.Attempt)
}

// complete reports whether the timeline has all failures.
func (d Detail) complete() bool {
	next := 1
	for _, s := range d.Timeline {
		if s.Attempt != next {
			return false
		}
		if next++; s.Replayed {
			next = 1
		}
	}
	return d.State != Retried && atFirst(d.Timeline[0].Failed, d.FirstFailed)
}

// atFirst compares a time with that of the first failure, which a retried message carries in seconds.
func atFirst(failed, first time.Time) bool { return !first.Before(failed.Truncate(time.Second)) }

// Step is one failure.
type Step struct {
	Attempt  int        `json:"attempt" doc:"Since the replay before it; 0: not known."`
	Failed   time.Time  `json:"failed"`
	Reason   string     `json:"reason"`
	Error    string     `json:"error,omitempty"`
	Policy   string     `json:"policy,omitempty"`
	Delay    string     `json:"delay,omitempty" doc:"How long it waits, or waited."`
	Why      string     `json:"why,omitempty" doc:"Why so long, or why it is parked."`
	Ended    *time.Time `json:"ended,omitempty" doc:"When its wait was over."`
	Ending   string     `json:"ending,omitempty" enum:"retried,forwarded,discarded"`
	Replayed bool       `json:"replayed,omitempty" doc:"A person replayed it after this failure."`
	Late     string     `json:"late,omitempty" doc:"How long after it was due that was, if a second or more."`
	LateBy   []Hold     `json:"late_by,omitempty" doc:"What stopped the retries of its queue meanwhile, newest first."`
}

// Property is one of AMQP's basic properties.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Header is one header, its value as text for people.
type Header struct {
	Name  string `json:"name"`
	Type  string `json:"type" doc:"string, bytes, int8 …, float64, decimal, bool, timestamp, table, array, void."`
	Value string `json:"value" doc:"Tables and arrays as JSON."`
	From  string `json:"from" enum:"publisher,consumer,broker,redrive" doc:"Who set it. Only broker's are proven."`
}

// Page is a piece of an answer.
type Page struct {
	Messages []Message `json:"messages"`
	After    string    `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
	// Bounded says in words, when it is not empty, which messages were not looked at.
	Bounded string `json:"bounded,omitempty" doc:"Which messages were not looked at, when not all were."`
	Looked  int64  `json:"looked" doc:"How many messages were looked at for this page."`
	Soonest bool   `json:"-"` // those that are due first come first
	Whole   bool   `json:"-"` // the caller sees messages unmasked, and may export them
}

// HeldBack says how many of its messages are held back, and by what; page and command line show it.
func (p Page) HeldBack() string {
	total, by := 0, map[string]int{}
	for _, m := range p.Messages {
		if m.Held != "" {
			total, by[m.Held] = total+1, by[m.Held]+1
		}
	}
	if total == 0 {
		return ""
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%d %s", by[what], what))
	}
	return fmt.Sprintf("%d held back, even once due: %s", total, strings.Join(parts, ", "))
}

// Shown is a record as a message, as its caller sees it.
func (in *Inspector) Shown(by auth.Caller, l store.Listed) Message {
	return in.shown(by, l, in.Store.GroupOf(l.Record))
}

func (in *Inspector) shown(by auth.Caller, l store.Listed, group errorgroup.ID) Message {
	r, _ := in.maskedTexts(by, l.Record)
	size := l.BodySize
	m := Message{ID: r.ID.String(), Key: string(l.Key), Queue: r.Queue, State: StateName(r.State), Attempt: r.Failures,
		Replays: r.Replays, Reason: r.Reason, Error: r.Error,
		Group: group.String(), Policy: r.Policy, Rule: r.Rule, Notify: r.Notify.String(),
		FirstFailed: r.FirstFailed, Failed: r.FailedAt,
		Exchange: r.Message.Exchange, RoutingKey: r.Message.RoutingKey, Type: r.Message.Type,
		ContentType: r.Message.ContentType,
		Size:        &size, Notes: r.Notes, AdoptedFrom: r.AdoptedFrom}
	due := r.Due
	switch r.State {
	case store.Parked:
		m.ParkedAt, m.ParkedFor = &due, r.ParkedFor
	case store.Discarded:
		m.Restorable, m.ParkedFor = &due, r.ParkedFor
	case query.Retried:
		m.State, m.RetriedAt, m.FirstFailed, m.Size = Retried, &due, r.FailedAt, nil
		if r.Error == "" {
			m.Group = "" // it depends on the message's type, which is not kept
		}
	default:
		m.Due = &due
	}
	if r.Forward != nil {
		m.SendsTo = sendsTo(r.Forward)
	}
	if r.MadeFrom != uuid.Nil {
		m.MadeFrom = r.MadeFrom.String()
	}
	if r.MadeInto != uuid.Nil {
		m.MadeInto = r.MadeInto.String()
	}
	return m
}

func sendsTo(d *store.Destination) string { return policy.Destination(*d).String() }

// Message returns all that is known of one message, by its id or its key; of one that was retried,
// what is remembered.
func (in *Inspector) Message(ctx context.Context, by auth.Caller, id string) (Detail, error) {
	l, others, err := in.messageNamed(ctx, by, id)
	if err != nil {
		return Detail{}, err
	}
	d, err := in.detail(ctx, by, l)
	d.SameID = in.allShown(by, others)
	d.Showable = !in.Mask().Sees(by.Role) && in.MayShow(by) == nil
	return d, err
}

func (in *Inspector) allShown(by auth.Caller, all []store.Listed) (shown []Message) {
	for _, l := range all {
		shown = append(shown, in.Shown(by, l))
	}
	return shown
}

func (in *Inspector) detail(ctx context.Context, by auth.Caller, l store.Listed) (Detail, error) {
	r := in.masked(by, l.Record)
	d := Detail{Message: in.Shown(by, l), Properties: []Property{}, Headers: []Header{}}
	pauses, err := Pauses(ctx, in.Store)
	if err != nil {
		return Detail{}, err
	}
	_, paused := pauses[r.Queue]
	d.Paused = paused && r.State == store.Waiting
	if r.State == store.Waiting || r.State == store.Parked {
		if d.HeldBy, err = in.heldBy(ctx, r, pauses); err != nil {
			return Detail{}, err
		}
	}
	if h := d.Holding(); h != nil && r.State == store.Waiting {
		d.Held = h.What
	}
	if d.GroupNotes, err = in.groupNotes(ctx, l.Record); err != nil {
		return Detail{}, err
	}
	past, err := in.Store.PastFailures(ctx, r.ID)
	if err != nil {
		return Detail{}, err
	}
	if rules := in.Mask(); !rules.Sees(by.Role) {
		for i := range past {
			past[i].Error = rules.Text(past[i].Queue, past[i].Error)
		}
	}
	d.Timeline = in.timeline(r, past)
	if slices.ContainsFunc(d.Timeline, func(s Step) bool { return s.Late != "" }) {
		if err := in.addLateBy(ctx, by, r.Queue, d.Timeline, past); err != nil {
			return Detail{}, err
		}
	}
	if r.State == query.Retried {
		if len(d.Timeline) > 0 {
			d.FirstFailed = d.Timeline[0].Failed
		}
		d.Away = in.away(ctx, r.Queue, d.Timeline)
		return d, nil
	}
	d.Properties, d.Headers = properties(&r.Message), headersOf(r)
	d.Body = in.decodedFor(ctx, by, &l)()
	return d, nil
}

// away says where a message is whose body and headers are no longer kept.
func (in *Inspector) away(ctx context.Context, queue string, steps []Step) string {
	const gone = "Its body and headers are not kept"
	q := in.LatelyAtBroker(ctx, []string{queue})[queue]
	switch {
	case len(steps) == 0 || steps[len(steps)-1].Ending != endings[store.EndedRetried]:
		return gone
	case q.Exists && q.Consumers == 0 && q.Ready > 0:
		return gone + ": it lies in " + queue + ", which nothing consumes"
	}
	return gone + ": it is in RabbitMQ, or consumed"
}

// groupNotes returns people's notes on the group of a record, and on those in which people replayed its message.
func (in *Inspector) groupNotes(ctx context.Context, r *store.Record) (all []string, err error) {
	notes, err := store.GroupNotes(ctx, in.Store)
	if err != nil || len(notes) == 0 {
		return nil, err
	}
	groups, err := store.NotedGroups(ctx, in.Store, r)
	for _, g := range append(groups, in.Store.GroupOf(r)) {
		if note := notes[g.String()]; note != "" && !slices.Contains(all, note) {
			all = append(all, note)
		}
	}
	return all, err
}

// heldBy returns what keeps a waiting record back, or would a parked one that is replayed. Pauses and breakers stop
// retries, and no forwards.
func (in *Inspector) heldBy(
	ctx context.Context, r *store.Record, pauses map[string]QueuePause,
) (all []Hold, err error) {
	forward := r.Forward
	if r.State == store.Parked {
		forward = nil // a replay drops it
	}
	var conditions []condition.Condition
	if in.Conditions != nil {
		conditions = in.Conditions()
	}
	for _, c := range conditions {
		if c.Kind == condition.Publish || forward != nil && c.Kind == condition.Forward && c.Queue == r.Queue &&
			c.Target == forward.String() {
			all = append(all, Hold{What: "stopped", Why: c.String(), Since: &c.Since})
		}
	}
	s := visibleQueues{Inspector: in, pauses: pauses}
	if s.forced, err = ForcedBreakers(ctx, in.Store); err != nil || forward != nil {
		return all, err
	}
	q := s.shown([]store.QueueCount{{Queue: r.Queue, Waiting: 1, NextDue: r.Due}})[0]
	all = append(all, q.Holds()...)
	if r.State == store.Parked {
		return all, nil
	}
	if limit := q.Throttle.LimitText(); limit != "" {
		all = append(all, Hold{Why: "retries are " + limit})
	}
	if in.Now().Before(r.Due) {
		return all, nil
	}
	before, err := in.Store.CountDue(ctx, []string{r.Queue}, []time.Time{r.Due}, maxCounted)
	if err == nil && before[0] > 0 {
		n := hint.Thousands(fmt.Sprint(before[0]))
		if before[0] == maxCounted {
			n = "at least " + n
		}
		all = append(all, Hold{Why: "messages of its queue that are due before it: " + n})
	}
	return all, err
}

// Body is a message's body as it is, without an envelope that a framework put around it. It is only for those who
// see bodies whole.
func (in *Inspector) Body(ctx context.Context, by auth.Caller, id string) ([]byte, error) {
	l, _, err := in.messageNamed(ctx, by, id)
	if err == nil {
		err = in.Whole(by)
	}
	if err != nil {
		return nil, err
	}
	if l.Record.State == query.Retried {
		return nil, fmt.Errorf("%w: the message %s was retried, and its body is not kept any more", ErrNotFound, id)
	}
	return BodyOf(l.Record).Bytes, nil
}

// messageNamed finds a message by id or key; one that is not kept any more by its last past
// failure. others have the same id.
func (in *Inspector) messageNamed(
	ctx context.Context, by auth.Caller, name string,
) (l store.Listed, others []store.Listed, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return l, nil, err
	}
	all, err := in.Named(ctx, by, name)
	id, isID := query.ParseID(name)
	switch {
	case err != nil:
		return l, nil, err
	case len(all) > 0 && isID:
		return all[0], all[1:], nil
	case len(all) > 0:
		others, err = in.Named(ctx, by, all[0].Record.ID.String())
		return all[0], slices.DeleteFunc(others, func(o store.Listed) bool { return o.Key == all[0].Key }), err
	case isID:
		if all, err = in.lastOf(ctx, by, id); err != nil {
			return l, nil, err
		}
	}
	if len(all) == 0 {
		part := ""
		if name != "" && len(name) < 36 && strings.Trim(name, "0123456789abcdef-") == "" {
			part = "; by the beginning of its id, id:" + name + "* finds it"
		}
		return l, nil, fmt.Errorf("%w: there is no message %.60q, or nothing is remembered of it%s", ErrNotFound, name,
			part)
	}
	return all[0], nil, nil
}

// Named returns the stored messages with an id, or the one with a key, in queues that the caller
// sees.
func (in *Inspector) Named(ctx context.Context, by auth.Caller, name string) (all []store.Listed, err error) {
	if id, isID := query.ParseID(name); isID {
		all, err = in.Store.Find(ctx, id)
	} else if l, getErr := in.Store.Get(ctx, store.Key(name)); getErr == nil {
		all = []store.Listed{l}
	} else if !errors.Is(getErr, store.ErrNotFound) {
		err = getErr
	}
	return slices.DeleteFunc(all, func(l store.Listed) bool { return !by.Sees(l.Record.Queue) }), err
}

// timeline is each failure that is remembered, and what came of it.
func (in *Inspector) timeline(r *store.Record, past []store.PastFailure) []Step {
	steps := []Step{}
	add := func(s Step) {
		if s.Replayed = s.Attempt == 0; s.Replayed { // the store counts again from 0
			switch i := len(steps) - 1; {
			case i < 0 && atFirst(s.Failed, r.FirstFailed), i >= 0 && steps[i].Replayed:
				s.Attempt = 1
			case i >= 0 && steps[i].Attempt > 0:
				s.Attempt = steps[i].Attempt + 1
			}
		}
		steps = append(steps, s)
	}
	for _, p := range past {
		if p.Queue != r.Queue {
			continue // another message with its id
		}
		ended := p.Ended
		s := Step{Attempt: p.Failures, Failed: p.FailedAt, Reason: p.Reason, Error: p.Error, Policy: p.Policy,
			Ended: &ended, Ending: endings[p.Ending]}
		s.Delay, s.Why = in.whyWait(p.Policy, "", p.Failures, p.Due.Sub(p.FailedAt))
		if p.Ending == store.EndedDiscarded {
			s.Delay, s.Why = "", "it was discarded, and the time to restore it is over"
		} else if late := p.Ended.Sub(p.Due).Truncate(time.Second); late > 0 {
			s.Late = policy.FormatDuration(late)
		}
		add(s)
	}
	if r.State == query.Retried {
		return steps
	}
	s := Step{Attempt: r.Failures, Failed: r.FailedAt, Reason: r.Reason, Error: r.Error, Policy: r.Policy}
	switch {
	case r.State == store.Parked:
		s.Why = r.ParkedFor
	case r.State == store.Discarded:
		s.Why = "a person discarded it"
	case r.Forward != nil:
		s.Why = "it goes to " + sendsTo(r.Forward)
	default:
		s.Delay, s.Why = in.whyWait(r.Policy, r.Rule, r.Failures, r.Due.Sub(r.FailedAt))
	}
	add(s)
	if first := steps[0]; first.Attempt != 1 && !r.FirstFailed.IsZero() && r.FirstFailed.Before(first.Failed) {
		steps = slices.Insert(steps, 0, Step{Attempt: 1, Failed: r.FirstFailed,
			Why: "it failed for the first time; nothing more is remembered of what was before the next one"})
	}
	return steps
}

var endings = map[store.Ending]string{store.EndedRetried: "retried", store.EndedForwarded: "forwarded",
	store.EndedDiscarded: "discarded"}

// whyWait explains how long a message waits after a failure.
func (in *Inspector) whyWait(name, rule string, attempt int, delay time.Duration) (text, why string) {
	text = policy.FormatDuration(delay)
	if attempt == 0 {
		return "", "a person replayed it: it starts again at attempt 1"
	}
	set := in.policies()
	i := slices.IndexFunc(set, func(p policy.Policy) bool { return p.Name == name })
	switch {
	case name == "":
		return text, ""
	case i < 0:
		return text, fmt.Sprintf("policy %q decided, which is not in force any more", name)
	}
	p, by := set[i], fmt.Sprintf("policy %q", name)
	if rule != "" {
		by = fmt.Sprintf("rule %q of %s", rule, by)
		i := slices.IndexFunc(p.Rules, func(r policy.Rule) bool { return r.Name == rule })
		if i < 0 {
			i, _ = strconv.Atoi(rule)
			i--
		}
		if i < 0 || i >= len(p.Rules) || p.Rules[i].Then.Action != policy.Retry {
			return text, by + " decided, which is not in force any more"
		}
		p.Backoff, p.Attempts = p.Rules[i].Then.Backoff, cmp.Or(p.Rules[i].Then.Attempts, p.Attempts)
	}
	if attempt >= p.Attempts {
		return text, fmt.Sprintf("failure %d of the %d that %s allows now: a person replayed it, or the policy was "+
			"changed since", attempt, p.Attempts, by)
	}
	least, most := waits(&p, in.way(name), attempt)
	between := policy.FormatDuration(least)
	if least != most {
		between += " to " + policy.FormatDuration(most) + " (" + policy.FormatDuration(p.Backoff.Delay(attempt)) +
			" with jitter " + p.Jitter.String() + ")"
	}
	why = fmt.Sprintf("failure %d of %d: %s waits %s", attempt, p.Attempts, by, between)
	if slack := 2 * time.Millisecond; delay < least-slack || delay > most+slack {
		why += "; this differs because a rule decided, its consumer asked for another delay, a person changed it, or " +
			"the policy was changed since"
	}
	return text, why
}

// properties are those that are set.
func properties(m *wire.Message) []Property {
	all := []Property{}
	add := func(name, value string) {
		if value != "" {
			all = append(all, Property{name, value})
		}
	}
	add("content_type", m.ContentType)
	add("content_encoding", m.ContentEncoding)
	switch m.DeliveryMode {
	case 0:
	case 1:
		add("delivery_mode", "1 (transient)")
	case 2:
		add("delivery_mode", "2 (persistent)")
	default:
		add("delivery_mode", strconv.Itoa(int(m.DeliveryMode)))
	}
	if m.Priority > 0 {
		add("priority", strconv.Itoa(int(m.Priority)))
	}
	add("correlation_id", m.CorrelationID)
	add("reply_to", m.ReplyTo)
	add("expiration", m.Expiration)
	add("message_id", m.MessageID)
	if !m.Timestamp.IsZero() {
		add("timestamp", m.Timestamp.UTC().Format(time.RFC3339))
	}
	add("type", m.Type)
	add("user_id", m.UserID)
	add("app_id", m.AppID)
	return all
}

// headersOf are the headers, sorted, each with who has set it.
func headersOf(r *store.Record) []Header {
	all := []Header{}
	for _, name := range slices.Sorted(maps.Keys(r.Message.Headers)) {
		v := r.Message.Headers[name]
		all = append(all, Header{Name: name, Type: TypeName(v), Value: readable(v), From: setBy(name, r)})
	}
	return all
}

// setBy returns who set a header. Believe x-death only where the broker itself dead-lettered the message, and
// x-first-death-… and x-last-death-… not even then, since RabbitMQ 3 leaves a publisher's as they are.
func setBy(name string, r *store.Record) string {
	_, counted := r.Message.Headers[wire.HeaderAttempt]
	_, identified := r.Message.Headers[wire.HeaderID]
	switch {
	case r.Reason == wire.ReasonReported && name == wire.HeaderError,
		r.Reason != wire.ReasonReported && headers.ByConsumer(r.Reason) && name == wire.HeaderRejectReason,
		headers.ByConsumer(r.Reason) && (name == wire.HeaderDelay || name == wire.HeaderPark):
		return "consumer" // a retry removes them, so they are of this failure
	case headers.Ours(name) && name != wire.HeaderDelay && name != wire.HeaderPark && name != wire.HeaderRejectReason &&
		(counted || identified) && !slices.Contains(r.Notes, headers.Foreign):
		return "redrive"
	case r.Proven && (name == "x-death" || name == "x-delivery-count" || name == "x-acquired-count"):
		return "broker"
	}
	return "publisher"
}

// readable is a header's value as text: tables and arrays as JSON.
func readable(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case amqp.Table, []any:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(asJSON(v)); err != nil {
			return err.Error()
		}
		return strings.TrimSuffix(b.String(), "\n")
	case []byte:
		if !utf8.Valid(v) {
			return base64.StdEncoding.EncodeToString(v)
		}
	}
	text, _ := query.Text(v)
	return text
}

func asJSON(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = asJSON(e)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, e := range v {
			l[i] = asJSON(e)
		}
		return l
	case bool, nil, int8, uint8, int16, uint16, int32, uint32, int64:
		return v
	}
	return readable(v)
}

// TypeName is the name of a header's AMQP type.
func TypeName(v any) string {
	switch v.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case amqp.Decimal:
		return "decimal"
	case time.Time:
		return "timestamp"
	case amqp.Table:
		return "table"
	case []any:
		return "array"
	}
	return fmt.Sprintf("%T", v) // string, bool, int8 … float64
}
