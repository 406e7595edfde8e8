package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// Group is an error group: the failures with the same error.
type Group struct {
	ID        string    `json:"id"`
	ErrorID   string    `json:"error_id" doc:"Stands for the error in all queues, wherever a group's id can stand."`
	Queue     string    `json:"queue"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error,omitempty" doc:"With numbers, ids and times replaced."`
	Type      string    `json:"type,omitempty" doc:"Of the messages, where no error is known."`
	Waiting   int64     `json:"waiting"`
	Parked    int64     `json:"parked"`
	Discarded int64     `json:"discarded"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Hours     []int64   `json:"hours" doc:"Failures in each of the last 24 hours, the current one last."`
	Note      string    `json:"note,omitempty"`
	Rule      string    `json:"rule" doc:"A rule in YAML that would park such failures at once."`
	GroupState

	// Of a line for several queues, whose ID and Queue are the largest's.
	Same    []string       `json:"same,omitempty" doc:"Groups of other queues, counted here too."`
	Partial bool           `json:"partial,omitempty" csv:"-" doc:"Groups of other queues with this error are left out."`
	States  map[string]int `json:"states,omitempty" doc:"Where the states differ: how many groups have each."`
}

// GroupState is what people have decided about a group.
type GroupState struct {
	State     string     `json:"state" enum:"open,acknowledged,ignored,resolved"`
	StateWas  string     `json:"state_was,omitempty" doc:"The state in which it reopened by itself."`
	StateBy   string     `json:"state_by,omitempty" doc:"Who set it."`
	StateAt   *time.Time `json:"state_at,omitempty"`
	StateNote string     `json:"state_note,omitempty" doc:"Such as a ticket or a link."`
	// Before is how many failures there were in the day before it was ignored, or in the hour up to its resolution.
	Before int64 `json:"state_before,omitempty" csv:"-" doc:"Failures in the day, or hour, in which it was set."`
}

// States of a group. AllStates is the filter of a list that leaves out none.
const (
	Open         = "open"
	Acknowledged = "acknowledged"
	Ignored      = "ignored"
	Resolved     = "resolved"
	AllStates    = "all"
)

// GroupStates are all states of a group.
var GroupStates = []string{Open, Acknowledged, Ignored, Resolved}

// muchMore is how many times as often as in the day before an ignored group must fail to reopen.
const muchMore = 10

// NewGroupState returns the state that a person sets now.
func NewGroupState(g *store.GroupCount, state, by, note string, now time.Time) GroupState {
	s := GroupState{State: state, StateBy: by, StateAt: &now, StateNote: note}
	switch state {
	case Ignored:
		s.Before = failures(g, 24)
	case Resolved:
		s.Before = failures(g, 1)
	}
	return s
}

// failures counts those of the last hours, the current one included.
func failures(g *store.GroupCount, hours int64) (n int64) {
	for _, of := range g.Hours[max(0, int64(len(g.Hours))-hours):] {
		n += of
	}
	return n
}

// Lately returns the state at now: a resolved group reopens when a message fails after that, an ignored one when
// it comes much more often.
func (s GroupState) Lately(g *store.GroupCount, now time.Time) GroupState {
	if s.StateAt == nil {
		return GroupState{State: Open}
	}
	again := false
	switch s.State {
	case Resolved: // Last is exact to the second only
		again = g.Last.After(*s.StateAt) || failures(g, 1+now.Unix()/3600-s.StateAt.Unix()/3600) > s.Before
	case Ignored:
		again = failures(g, 24) >= muchMore*max(s.Before, 1)
	}
	if again {
		s.StateWas, s.State = s.State, Open
	}
	return s
}

// StateText describes the state for people.
func (s GroupState) StateText() string {
	return strings.TrimPrefix(s.StateWas+", reopened: ", ", reopened: ") + s.State
}

// passes reports whether a list has a group of that state. The filter is a state, AllStates, or "": all but
// ignored and resolved.
func (s GroupState) passes(filter string) bool {
	return filter == AllStates || filter == s.State || filter == "" && s.State != Ignored && s.State != Resolved
}

// SetGroupStates are the states that people have set, by group. Lately tells which of them still hold.
func SetGroupStates(ctx context.Context, s settings) (map[string]GroupState, error) {
	all, err := readSettings[GroupState](ctx, s, store.GroupStatePrefix, "state")
	maps.DeleteFunc(all, func(_ string, s GroupState) bool { return s.StateAt == nil }) // none that was written here
	return all, err
}

// Key returns the group's id, or the error's if the line is of several queues.
func (g Group) Key() string {
	if len(g.Same) > 0 {
		return g.ErrorID
	}
	return g.ID
}

// Keys returns the ids of all that is counted here, separated by blanks.
func (g Group) Keys() string {
	if g.Partial {
		return strings.Join(append([]string{g.ID}, g.Same...), " ")
	}
	return g.Key()
}

// Query returns a query that finds the messages that are counted here.
func (g Group) Query() string {
	if len(g.Same) > 0 && g.Partial {
		return GroupsQuery(strings.Fields(g.Keys())...)
	}
	return "group:" + g.Key()
}

// Queues names the queue, and says how many others there are.
func (g Group) Queues() string {
	if n := len(g.Same); n > 0 {
		return fmt.Sprintf("%s and %d more", g.Queue, n)
	}
	return g.Queue
}

// StateText describes the state for people, also where the groups of the queues differ.
func (g Group) StateText() string {
	if len(g.States) == 0 {
		return g.GroupState.StateText()
	}
	var parts []string
	for _, state := range GroupStates {
		if n := g.States[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s in %d", state, n))
		}
	}
	return strings.Join(parts, ", ")
}

// GroupsQuery returns a query that finds the messages of groups.
func GroupsQuery(ids ...string) string {
	terms := make([]string, len(ids))
	for i, id := range ids {
		terms[i] = "group:" + query.Quote(id)
	}
	if len(terms) == 1 {
		return terms[0]
	}
	return "(" + strings.Join(terms, " OR ") + ")"
}

// maxSame is how many groups a query can name, in a line that leaves out others with its error.
const maxSame = 100

// joined is the groups of queues with one error: the largest's, with the counts of all.
type joined struct {
	store.GroupCount
	of      []*store.GroupCount // the largest first
	partial bool                // others with this error were not kept
}

func ofError(g *store.GroupCount) errorgroup.ID { return g.Error }

// joinedBy joins the groups with the same key, of those that keep keeps.
func joinedBy(
	key func(*store.GroupCount) errorgroup.ID, groups []store.GroupCount, keep func(*store.GroupCount) bool,
) (all []*joined) {
	var kept []*store.GroupCount
	left := map[errorgroup.ID]bool{}
	for i := range groups {
		if g := &groups[i]; keep(g) {
			kept = append(kept, g)
		} else {
			left[key(g)] = true
		}
	}
	slices.SortFunc(kept, func(a, b *store.GroupCount) int { return placeOf(a).compare(placeOf(b)) })
	known := map[errorgroup.ID]*joined{}
	for _, g := range kept {
		sum := known[key(g)]
		if sum == nil || sum.partial && len(sum.of) == maxSame {
			sum = &joined{GroupCount: *g, of: []*store.GroupCount{g}, partial: left[key(g)]}
			known[key(g)] = sum
			all = append(all, sum)
			continue
		}
		sum.of = append(sum.of, g)
		sum.Waiting, sum.Parked, sum.Discarded = sum.Waiting+g.Waiting, sum.Parked+g.Parked, sum.Discarded+g.Discarded
		for i, n := range g.Hours {
			sum.Hours[i] += n
		}
		if g.First.Before(sum.First) {
			sum.First = g.First
		}
		if g.Last.After(sum.Last) {
			sum.Last = g.Last
		}
		if g.Note != "" && !slices.Contains(strings.Split(sum.Note, "; "), g.Note) {
			sum.Note = strings.TrimPrefix(sum.Note+"; "+g.Note, "; ")
		}
	}
	return all
}

func compareJoined(a, b *joined) int {
	return placeOf(&a.GroupCount).compare(placeOf(&b.GroupCount))
}

// shownJoined returns what callers see of an error. Its state is the most urgent of its groups.
func (in *Inspector) shownJoined(e *joined, set map[string]GroupState) Group {
	g := in.shownGroup(&e.GroupCount, set)
	g.Partial = e.partial
	states := map[string]int{}
	for i, of := range e.of {
		is := in.stateOf(of, set)
		states[is.State]++
		if i == 0 || slices.Index(GroupStates, is.State) < slices.Index(GroupStates, g.State) {
			g.GroupState = is
		}
		if i > 0 {
			g.Same = append(g.Same, of.ID.String())
		}
	}
	if len(states) > 1 {
		g.States = states
	}
	return g
}

// GroupColumns show groups on the command line.
var GroupColumns = []Column[Group]{
	{Field: "ID", Value: func(g Group) any { return g.Key() }},
	{Field: "Queue", Value: func(g Group) any { return g.Queues() }},
	{Field: "Waiting"}, {Field: "Parked"}, {Field: "Last", Narrow: 1},
	{Head: "What", Narrow: Below, Value: func(g Group) any { return g.What() }},
	{Head: "Failed", Narrow: Below, Value: func(g Group) any {
		return g.Trend() + "; since " + g.First.UTC().Format("2006-01-02 15:04 UTC")
	}},
	{Field: "State", Narrow: Below, Value: func(g Group) any {
		if g.State == Open && g.StateWas == "" && len(g.States) == 0 {
			return ""
		}
		return strings.TrimSuffix(g.StateText()+"; "+g.StateNote, "; ")
	}},
	{Field: "Note", Narrow: Below},
}

// What returns what the group's failures have in common.
func (g Group) What() string {
	if g.Error != "" {
		return g.Error
	}
	what := strings.TrimSuffix(g.Reason+", type "+g.Type, ", type ")
	return strings.TrimPrefix(what, ", ") + ", without an error text"
}

// Trend returns how often it failed lately, compared with the hours before.
func (g Group) Trend() string {
	var all, lately, before int64
	for i, n := range g.Hours {
		switch all += n; {
		case i >= len(g.Hours)-3:
			lately += n
		case i >= len(g.Hours)-6:
			before += n
		}
	}
	how := "steady"
	switch {
	case all == 0:
		return "not in the last 24 h"
	case lately == 0:
		how = "not in the last 2 h"
	case lately == all && g.Last.Sub(g.First) < 3*time.Hour:
		how = "new"
	case lately > 2*before:
		how = "rising"
	case 2*lately < before:
		how = "falling"
	}
	return hint.Thousands(strconv.FormatInt(all, 10)) + " in 24 h, " + how
}

// GroupPage is a page of groups.
type GroupPage struct {
	Groups []Group `json:"groups"`
	Total  int     `json:"total" doc:"How many groups the query finds, on all pages."`
	After  string  `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`

	Filtered map[string]int `json:"-" csv:"-"` // how many the query finds with each filter by state
}

// Groups returns a page of the error groups, those with the most parked and waiting messages first. The query may name
// what groups have: queue, reason, state, group, error (with numbers and ids replaced), type, note and text (of error
// or note); nothing else. state is a filter: see GroupState.passes. A page has limit of them; 0: MostQueues. One whose
// messages become fewer meanwhile may be on two pages.
func (in *Inspector) Groups(
	ctx context.Context, by auth.Caller, text, state, after string, limit int,
) (GroupPage, error) {
	return in.groups(ctx, by, text, state, after, limit, func(g *store.GroupCount) errorgroup.ID { return g.ID })
}

// Errors is Groups with one line for an error in several queues.
func (in *Inspector) Errors(
	ctx context.Context, by auth.Caller, text, state, after string, limit int,
) (GroupPage, error) {
	return in.groups(ctx, by, text, state, after, limit, ofError)
}

func (in *Inspector) groups(
	ctx context.Context, by auth.Caller, text, state, after string, limit int,
	key func(*store.GroupCount) errorgroup.ID,
) (page GroupPage, err error) {
	page.Groups = []Group{}
	q, err := in.parse(by, text)
	if err != nil {
		return page, err
	}
	if state != "" && state != AllStates && !slices.Contains(GroupStates, state) {
		return page, fmt.Errorf("%w: state is %.40q, and must be open, acknowledged, ignored, resolved or all",
			ErrInvalid, state)
	}
	last, err := readGroupPlace(after)
	if err != nil {
		return page, err
	}
	found, err := in.groupsSeen(ctx, by)
	if err != nil {
		return page, err
	}
	if err := q.OnlyGroups(); err != nil {
		return page, err
	}
	if limit <= 0 || limit > MostQueues {
		limit = MostQueues
	}
	set, err := SetGroupStates(ctx, in.Store)
	if err != nil {
		return page, err
	}
	filters := append([]string{"", AllStates}, GroupStates...)
	page.Filtered = map[string]int{}
	type counted struct {
		filter string
		id     errorgroup.ID
	}
	known := map[counted]bool{}
	all := joinedBy(key, found, func(g *store.GroupCount) bool {
		if !q.MatchGroup(g) {
			return false
		}
		is := in.stateOf(g, set)
		for _, filter := range filters {
			if c := (counted{filter, key(g)}); is.passes(filter) && !known[c] {
				known[c] = true
				page.Filtered[filter]++
			}
		}
		return is.passes(state)
	})
	page.Total = len(all)
	some := firstInOrder(limit+1, func(yield func(*joined) bool) {
		for _, g := range all {
			if (last == nil || placeOf(&g.GroupCount).compare(*last) > 0) && !yield(g) {
				return
			}
		}
	}, compareJoined)
	if len(some) > limit {
		some = some[:limit]
		page.After = placeOf(&some[limit-1].GroupCount).String()
	}
	for _, g := range some {
		page.Groups = append(page.Groups, in.shownJoined(g, set))
	}
	return page, nil
}

// GroupDetail is an error group with what a person needs to decide about it.
type GroupDetail struct {
	Group
	Newest   *Message       `json:"newest,omitempty" doc:"The one that failed last; absent when none is kept."`
	Recent   []Message      `json:"recent" doc:"Up to five that failed last, the newest first."`
	Sample   *decode.Result `json:"sample,omitempty" doc:"The body of the newest."`
	Oldest   *Message       `json:"oldest,omitempty" doc:"The one that failed first."`
	Types    []Share        `json:"types" doc:"The types of its messages, the most frequent first."`
	ByQueue  []Group        `json:"by_queue,omitempty" doc:"Of an error in several queues: its largest groups."`
	Attempts []Share        `json:"attempts" doc:"How often its messages failed, the most frequent first."`
	Looked   int            `json:"looked" doc:"How many messages recent, types and attempts are of."`
	Bounded  bool           `json:"bounded,omitempty" doc:"It has more messages than were looked at."`
}

// Share is how many messages have a value.
type Share struct {
	Value string `json:"value"`
	Count int    `json:"count"`
}

// maxInGroup is how many messages of a group GroupDetail looks at, maxRecent how many it has, and maxShares how many
// values.
const maxInGroup, maxRecent, maxShares = 1000, 5, 10

// Group returns one error group.
func (in *Inspector) Group(ctx context.Context, by auth.Caller, id string) (d GroupDetail, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return d, err
	}
	seen, err := in.groupsSeen(ctx, by)
	if err != nil {
		return d, err
	}
	all := joinedBy(ofError, seen, func(g *store.GroupCount) bool { return named(g, id) })
	if len(all) == 0 {
		return d, noGroup(id)
	}
	g := all[0]
	q, err := in.parse(by, "group:"+id)
	if err != nil {
		return d, err
	}
	n, err := in.narrow(ctx, by, q)
	if err != nil {
		return d, err
	}
	set, err := SetGroupStates(ctx, in.Store)
	if err != nil {
		return d, err
	}
	queues, err := in.setQueues(ctx)
	if err != nil {
		return d, err
	}
	d.Group = in.shownJoined(g, set)
	if len(g.of) > 1 {
		for _, of := range g.of[:min(len(g.of), maxSame)] {
			d.ByQueue = append(d.ByQueue, in.shownGroup(of, set))
		}
	}
	rules := in.Mask()
	types, attempts := map[string]int{}, map[string]int{}
	var recent []store.Listed
	var oldest *store.Listed
	r, began := n.Range, time.Now()
	r.NewestFirst = true
	visit := func(l store.Listed) (bool, error) {
		if d.Bounded = d.Looked == maxInGroup || time.Since(began) > maxLookTime; d.Bounded {
			return false, nil
		}
		if !n.Sure && !in.match(ctx, by, n, &l) {
			return true, nil
		}
		d.Looked++
		m := l.Record
		recent = append(recent, l)
		slices.SortStableFunc(recent, func(a, b store.Listed) int {
			return b.Record.FailedAt.Compare(a.Record.FailedAt)
		})
		recent = recent[:min(len(recent), maxRecent)]
		if oldest == nil || m.FailedAt.Before(oldest.Record.FailedAt) {
			oldest = &l
		}
		if of := m.Message.Type; of != "" {
			if !rules.Sees(by.Role) {
				of = rules.Text(m.Queue, of)
			}
			types[of]++
		}
		attempts[strconv.Itoa(m.Failures)]++
		return true, nil
	}
	if !n.None {
		err = in.Store.Scan(ctx, r, yielding(ctx, in, visit))
	}
	if err == nil && d.Bounded {
		oldest, err = in.firstIn(ctx, by, n) // oldest is one of the newest
	}
	if err != nil {
		return d, err
	}
	s := &search{Inspector: in, by: by, groupOf: n.GroupOf, queues: queues, held: map[string]string{}}
	if oldest != nil {
		s.add(*oldest)
		d.Oldest = &s.page.Messages[0]
	}
	s.page.Messages = []Message{}
	for _, l := range recent {
		s.add(l)
	}
	if d.Recent = s.page.Messages; len(recent) > 0 {
		d.Newest = &d.Recent[0]
		if l, err := in.Store.Get(ctx, recent[0].Key); err == nil { // or it was retried meanwhile
			d.Sample = in.decodedFor(ctx, by, &l)()
		}
	}
	d.Types, d.Attempts = shares(types), shares(attempts)
	return d, nil
}

// firstIn returns the message that has been kept longest; nil: none was found in time.
func (in *Inspector) firstIn(ctx context.Context, by auth.Caller, n *query.Narrowed) (first *store.Listed, err error) {
	began := time.Now()
	err = in.Store.Scan(ctx, n.Range, yielding(ctx, in, func(l store.Listed) (bool, error) {
		if n.Sure || in.match(ctx, by, n, &l) {
			first = &l
		}
		return first == nil && time.Since(began) < maxLookTime, nil
	}))
	return first, err
}

func shares(of map[string]int) []Share {
	all := []Share{}
	for value, n := range of {
		all = append(all, Share{value, n})
	}
	slices.SortFunc(all, func(a, b Share) int { return cmp.Or(b.Count-a.Count, cmp.Compare(a.Value, b.Value)) })
	return all[:min(len(all), maxShares)]
}

// GroupsNamed returns the group of an id, or those with the error of that id, of queues that the caller sees.
func (in *Inspector) GroupsNamed(ctx context.Context, by auth.Caller, id string) ([]store.GroupCount, error) {
	seen, err := in.groupsSeen(ctx, by)
	if err != nil {
		return nil, err
	}
	named := slices.DeleteFunc(seen, func(g store.GroupCount) bool { return !named(&g, id) })
	if len(named) == 0 {
		return nil, noGroup(id)
	}
	return named, nil
}

func noGroup(id string) error { return fmt.Errorf("%w: no group %.40q", ErrNotFound, id) }

func named(g *store.GroupCount, id string) bool { return g.ID.String() == id || g.Error.String() == id }

func (in *Inspector) groupsSeen(ctx context.Context, by auth.Caller) ([]store.GroupCount, error) {
	all, err := in.Store.Groups(ctx)
	all = slices.DeleteFunc(all, func(g store.GroupCount) bool { return !by.Sees(g.Queue) })
	for i := range all {
		all[i].Error = all[i].Everywhere()
	}
	if rules := in.Mask(); !rules.Sees(by.Role) {
		for i := range all {
			g := &all[i]
			g.Pattern, g.Type = rules.Text(g.Queue, g.Pattern), rules.Text(g.Queue, g.Type)
		}
	}
	return all, err
}

// groupPlace is a group's place in the list: those with the most messages come first, and of
// equal ones the one that failed last.
type groupPlace struct {
	kept, last int64
	id         string
}

func placeOf(g *store.GroupCount) groupPlace {
	return groupPlace{g.Parked + g.Waiting, g.Last.UnixMicro(), g.ID.String()}
}

func (p groupPlace) compare(o groupPlace) int {
	return cmp.Or(cmp.Compare(o.kept, p.kept), cmp.Compare(o.last, p.last), cmp.Compare(p.id, o.id))
}

func (p groupPlace) String() string { return fmt.Sprintf("%d.%d.%s", p.kept, p.last, p.id) }

func readGroupPlace(after string) (*groupPlace, error) {
	if after == "" {
		return nil, nil
	}
	parts := strings.Split(after, ".")
	if len(parts) == 3 {
		kept, err := strconv.ParseInt(parts[0], 10, 64)
		last, err2 := strconv.ParseInt(parts[1], 10, 64)
		if err == nil && err2 == nil {
			return &groupPlace{kept, last, parts[2]}, nil
		}
	}
	return nil, fmt.Errorf("%w: after is %.100q, which no page ends with", ErrInvalid, after)
}

func (in *Inspector) stateOf(g *store.GroupCount, set map[string]GroupState) GroupState {
	return set[g.ID.String()].Lately(g, in.Now())
}

func (in *Inspector) shownGroup(g *store.GroupCount, set map[string]GroupState) Group {
	return Group{ID: g.ID.String(), ErrorID: g.Error.String(), Queue: g.Queue, Reason: g.Reason, Error: g.Pattern,
		Type: g.Type, Waiting: g.Waiting, Parked: g.Parked, Discarded: g.Discarded, First: g.First, Last: g.Last,
		Hours: g.Hours[:], Note: g.Note, Rule: ruleOf(g), GroupState: in.stateOf(g, set)}
}

// replaced stands in a group's error for parts that differ between failures.
var replaced = regexp.MustCompile(`<[a-z]+>|#|\[masked\]`)

// ruleOf returns a rule for a group's failures, for the rules of a policy: the error's type, and the longest
// part of its first line that is always the same.
func ruleOf(g *store.GroupCount) string {
	var when []string
	add := func(field, value string) {
		if value != "" {
			when = append(when, field+":"+query.Quote(value))
		}
	}
	if g.Pattern == "" {
		add("reason", g.Reason)
		add("type", g.Type)
	} else {
		line, _, _ := strings.Cut(g.Pattern, " | ")
		exception := errorgroup.Exception(line)
		if replaced.MatchString(exception) {
			exception = ""
		}
		add("exception", exception)
		longest := ""
		for _, part := range replaced.Split(strings.TrimPrefix(strings.TrimPrefix(line, exception), ":"), -1) {
			if part = strings.TrimSpace(part); len(part) > len(longest) {
				longest = part
			}
		}
		add("error", longest)
	}
	if len(when) == 0 {
		when = []string{"group:" + g.ID.String()}
	}
	return fmt.Sprintf("# In the policy of %s:\nrules:\n  - when: '%s'\n    then: park\n",
		strconv.Quote(g.Queue), strings.ReplaceAll(strings.Join(when, " "), "'", "''"))
}
