package webui

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
)

func (s *server) groups(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	q, state, after := in.Get("q"), in.Get("state"), in.Get("after")
	v := view{template: "groups", title: "Groups", nav: "/groups",
		command: command(append([]string{"redrive", "groups"}, positional(q)...)...)}
	if q == "" {
		v.command = "redrive groups"
	}
	if state != "" {
		v.command += " " + command("--state", state)
	}
	page, err := s.console.Errors(r.Context(), c, q, state, after, perPage)
	d := struct {
		Query      string
		QueryError *queryError
		inspect.GroupPage
		First string // page, unless this is it
		Next  string
		State string
		Tabs  []tab // whose Query is the link
		Sort  sorting
	}{Query: q, QueryError: queryErrorOf(q, err), GroupPage: page, State: state}
	of := func(state, after string) string {
		return "/groups?" + kept(url.Values{"q": {q}, "state": {state}, "after": {after}, "sort": {d.Sort.By}})
	}
	d.Sort = sortRows(s, r.URL, "", page.Groups, page.After != "", groupColumns)
	for _, filter := range slices.Concat([]string{""}, inspect.GroupStates, []string{inspect.AllStates}) {
		t := tab{Name: title(cmp.Or(filter, "unresolved")), Query: of(filter, ""), Current: filter == state}
		if page.Filtered != nil {
			t.Count = count(page.Filtered[filter])
		}
		d.Tabs = append(d.Tabs, t)
	}
	if after != "" {
		d.First = of(state, "")
	}
	if page.After != "" {
		d.Next = of(state, page.After)
	}
	v.data = d
	if d.QueryError != nil {
		v.status = http.StatusUnprocessableEntity
		return v, nil
	}
	return v, err
}

// groupColumns are those that groups are sorted by.
var groupColumns = []inspect.Column[inspect.Group]{
	{Field: "Error", Value: func(g inspect.Group) any { return cmp.Or(g.Error, g.Reason+" "+g.Type) }},
	{Field: "Queue", Value: func(g inspect.Group) any { return g.Queues() }},
	{Head: "Last 24 h", Field: "Hours"}, {Field: "Waiting"}, {Field: "Parked"}, {Field: "First"},
	{Field: "Last"}, {Field: "Note"},
}

// kept are the parameters of a link, without those that are empty.
func kept(in url.Values) string {
	maps.DeleteFunc(in, func(_ string, v []string) bool { return v[0] == "" })
	return in.Encode()
}

func (s *server) group(r *http.Request, c auth.Caller) (view, error) {
	g, err := s.console.Group(r.Context(), c, r.PathValue("id"))
	if err != nil {
		return view{}, err
	}
	d := groupData{GroupDetail: g}
	if g.Sample != nil {
		d.Text = strings.ToValidUTF8(g.Sample.Text[:min(len(g.Sample.Text), maxSample)], "") // without half a character
	}
	return view{template: "group", title: "Error in " + short(60, g.Queues()), nav: "/groups",
		command: command("redrive", "groups", g.Key()), data: d}, nil
}

// groupData is a group with the first maxSample bytes of its newest message's body.
type groupData struct {
	inspect.GroupDetail
	Text string
}

const maxSample = 1000

// rowsPerPage is how many queues or lines of the ledger a page shows.
const rowsPerPage = 100

func (s *server) queues(r *http.Request, c auth.Caller) (view, error) {
	queues, after, err := s.console.Queues(r.Context(), c, r.URL.Query().Get("after"), rowsPerPage)
	d := struct {
		Queues   []inspect.Queue
		AtBroker []inspect.Column[inspect.AtBroker]
		Counts   []inspect.Column[inspect.Queue]
		Silent   bool // RabbitMQ does not answer
		Next     string
		Sort     sorting

		Adoptable             []operations.DeadLetterQueue
		Unenrolled, Forgotten []string
	}{Queues: queues, AtBroker: inspect.BrokerColumns}
	d.Adoptable, d.Unenrolled, d.Forgotten = s.adoptable(r, c)
	d.Counts = slices.Concat(inspect.QueueCounts, []inspect.Column[inspect.Queue]{
		{Head: "Failed/min", Field: "Failed", Help: "In the last minute"},
		{Head: "Retried/min", Field: "Retried", Help: "In the last minute"},
	})
	by := []inspect.Column[inspect.Queue]{{Head: "Queue", Field: "Name"}, {Field: "Policy"}}
	for _, c := range inspect.BrokerColumns {
		by = append(by, inspect.Column[inspect.Queue]{Field: c.Field, Value: func(q inspect.Queue) any {
			if q.Broker == nil || !q.Broker.Exists {
				return nil
			}
			return c.Of(*q.Broker)
		}})
	}
	d.Sort = sortRows(s, r.URL, "name", queues, after != "", slices.Concat(by, d.Counts))
	if after != "" {
		d.Next = "/queues?" + kept(url.Values{"after": {after}, "sort": {d.Sort.By}})
	}
	for _, q := range queues {
		d.Silent = d.Silent || q.Broker == nil
	}
	return view{template: "queues", title: "Queues", nav: "/queues", command: "redrive queues", data: d}, err
}

// queueData is the page of one queue.
type queueData struct {
	inspect.QueueDetail
	Charts   []chart
	AtBroker []inspect.Column[inspect.AtBroker]
}

func (s *server) queue(r *http.Request, c auth.Caller) (view, error) {
	name := r.PathValue("queue")
	q, err := s.console.Queue(r.Context(), c, name)
	if err != nil {
		return view{}, err
	}
	d := queueData{QueueDetail: q, AtBroker: inspect.BrokerColumns,
		Charts: []chart{flowChart(q.Hour, time.Now(), time.Minute), flowChart(q.Day, time.Now(), 30*time.Minute)}}
	return view{template: "queue", title: "Queue " + short(60, name), nav: "/queues",
		command: command("redrive", "queues", name), data: d}, nil
}

func (s *server) operations(r *http.Request, c auth.Caller) (view, error) {
	ops, err := s.console.Operations(r.Context(), c)
	return view{template: "operations", title: "Operations", nav: "/operations", command: "redrive ops list",
		data: ops}, err
}

// operationData is an operation with a page of its outcomes.
type operationData struct {
	operations.Operation
	Rows  []actions.Outcome
	Next  string
	Going bool
	Until time.Time // the first of what it discarded is kept until then; the zero time: the page does not say
	// All that it discarded is forgotten.
	Forgotten bool
}

func (s *server) operation(r *http.Request, c auth.Caller) (view, error) {
	id := r.PathValue("id")
	o, err := s.console.Operation(r.Context(), c, id)
	if err != nil {
		return view{}, err
	}
	out, err := s.console.Outcomes(r.Context(), c, id, r.URL.Query().Get("after"), perPage)
	if err != nil {
		return view{}, err
	}
	s.nameOutcomes(r.Context(), c, out.Outcomes)
	d := operationData{Operation: o, Rows: out.Outcomes, Going: o.Ended == nil}
	if s.Restorable > 0 && o.Discards() {
		d.Until, d.Forgotten = o.Started.Add(s.Restorable), time.Since(*o.Ended) > s.Restorable
	}
	if out.After != "" {
		d.Next = operationURL(id) + "?" + url.Values{"after": {out.After}}.Encode()
	}
	return view{template: "operation", title: "Operation", nav: "/operations",
		command: command("redrive", "ops", "watch", id), data: d}, nil
}

// nameOutcomes adds the messages as the caller sees them; those no longer kept have only their ids.
func (s *server) nameOutcomes(ctx context.Context, c auth.Caller, all []actions.Outcome) {
	var ids []string
	for _, o := range all {
		if _, is := query.ParseID(o.ID); is {
			ids = append(ids, queryOf("id", o.ID))
		}
	}
	if ids == nil {
		return
	}
	page, _ := s.console.Search(ctx, c, strings.Join(ids, " OR "), "", perPage)
	for i, o := range all {
		same := func(m inspect.Message) bool { return m.ID == o.ID && m.Queue == o.Queue }
		if at := slices.IndexFunc(page.Messages, same); at >= 0 {
			all[i].Message = &page.Messages[at]
		}
	}
}

func (s *server) policies(r *http.Request, c auth.Caller) (view, error) {
	all, err := s.console.Policies(r.Context(), c)
	var views []policyView
	for _, p := range all {
		if last := len(views) - 1; last >= 0 && views[last].like(p) {
			v := &views[last]
			v.Names, v.Queues = append(v.Names, p.Name), slices.Concat(v.Queues, p.Queues)
			continue
		}
		v := policyBars(p)
		if v.Drawn = p.Attempts > 1 && p.Name == r.URL.Query().Get("outage"); v.Drawn {
			v.Simulation = s.Simulation(r.Context(), p.Name)
			err = cmp.Or(err, r.Context().Err())
		}
		views = append(views, v)
	}
	for i := range views {
		slices.SortFunc(views[i].Names, hint.Natural)
		views[i].Queues = slices.SortedFunc(slices.Values(views[i].Queues), hint.Natural)
	}
	return view{template: "policies", title: "Policies", nav: "/policies", data: views}, err
}

// auditData is a page of the audit log.
type auditData struct {
	Filter   inspect.AuditFilter
	Filtered bool
	Wrong    string // what of the filter cannot be read
	Entries  []audit.Entry
	Next     string
	Upto     time.Time // how far back was looked for this page
}

// By returns the link that filters by a field of the entry, besides what is filtered by already.
func (d auditData) By(name, value string) string { return auditURL(d.Filter, name, value) }

// Days returns the links to what was done today and yesterday, besides what is filtered by already.
func (d auditData) Days() []piece {
	day := func(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly) }
	today, yesterday := d.Filter, d.Filter
	today.Until, yesterday.Until = "", day(0)
	return []piece{{Text: "Today", URL: auditURL(today, "since", day(0))},
		{Text: "Yesterday", URL: auditURL(yesterday, "since", day(-1))}}
}

// piece is a part of a text, with the page of what it names; "": of nothing.
type piece struct{ Text, URL, Title string }

const aMessageID = `[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.[0-9]+)?`

var messageIn = regexp.MustCompile(`^(the canary failed again \(message )(` + aMessageID + `)`)

// linked returns the reason of an operation, with a link to the canary that failed.
func linked(why string) (all []piece) {
	if m := messageIn.FindStringSubmatch(why); m != nil {
		all = []piece{{Text: m[1]}, {Text: m[2], URL: messageURL(m[2])}}
		why = why[len(m[0]):]
	}
	return append(all, piece{Text: clean(why)})
}

// names is what a group of a pattern has: a name, or several with sep between them.
type names struct {
	sep string
	url func(name string) string
}

// auditNames says what actions' entries name, by the patterns of did and on.
var auditNames = []struct {
	did, on *regexp.Regexp
	groups  []names
}{
	{regexp.MustCompile(`^(note|group .+)$`), regexp.MustCompile(`(?s)^group ([0-9a-f]+) of (.+)$`),
		[]names{{"", groupURL}, {"", queueURL}}},
	{regexp.MustCompile(`^(edit|replay|discard|restore|copy)$`),
		regexp.MustCompile(`(?s)^(.+): (` + aMessageID + `(?: ` + aMessageID + `)*)(?: to (.+)$)?`),
		[]names{{", ", queueURL}, {" ", messageURL}, {"", queueURL}}},
	{regexp.MustCompile(`^(pause|resume|breaker .+|allow replays|follow|unfollow|adopt\.sample)$`),
		regexp.MustCompile(`(?s)^(.+)$`), []names{{"", queueURL}}},
	{regexp.MustCompile(`^reported\.(enroll|unenroll|doctor\.fix)$`), regexp.MustCompile(`(?s)^(.+)$`),
		[]names{{", ", queueURL}}},
	{regexp.MustCompile(`^reported\.move$`), regexp.MustCompile(`(?s)^(.+)$`), []names{{" to ", queueURL}}},
}

// operationOn matches an operation's id and, if known, what it does. The first shortID characters of an id are the
// millisecond in which it was made.
var operationOn = regexp.MustCompile(`(?s)^([0-9a-f-]{36})(?:$|: (.+))`)

const shortID = 13

// maxOn bounds what is shown of what an entry was on, in characters, and maxOnRead what is looked at, in bytes.
const maxOn, maxOnRead = 200, 4000

// On returns what an entry was on, in pieces.
func (d auditData) On(e audit.Entry) (all []piece) {
	on := e.Subject()
	on = on[:min(len(on), maxOnRead)]
	if m := operationOn.FindStringSubmatch(on); m != nil && strings.HasPrefix(e.Did, "operation.") {
		return []piece{{Text: short(maxOn, cmp.Or(m[2], m[1][:shortID]+"…")), URL: operationURL(m[1]), Title: m[1]}}
	}
	left, done := maxOn, 0
	upto := func(end int, url string) {
		if text := []rune(clean(on[done:end])); left > 0 && len(text) > left {
			all = append(all, piece{Text: string(text[:left]) + "…", URL: url})
			left = 0
		} else if left > 0 && len(text) > 0 {
			all = append(all, piece{Text: string(text), URL: url})
			left -= len(text)
		}
		done = end
	}
	for _, n := range auditNames {
		at := n.on.FindStringSubmatchIndex(on)
		if at == nil || !n.did.MatchString(e.Did) {
			continue
		}
		for i, g := range n.groups {
			start, end := at[2*i+2], at[2*i+3]
			if start < 0 {
				continue
			}
			upto(start, "")
			listed := []string{on[start:end]}
			if g.sep != "" {
				listed = strings.Split(listed[0], g.sep)
			}
			for _, name := range listed {
				upto(start+len(name), g.url(name))
				start = min(done+len(g.sep), end)
				upto(start, "")
			}
		}
	}
	upto(len(on), "")
	return all
}

func auditFields(f inspect.AuditFilter) [][2]string {
	return [][2]string{{"who", f.Who}, {"did", f.Did}, {"on", f.On}, {"since", f.Since}, {"until", f.Until}}
}

func auditURL(f inspect.AuditFilter, name, value string) string {
	q := url.Values{}
	for _, f := range auditFields(f) {
		if f[1] != "" {
			q.Set(f[0], f[1])
		}
	}
	q.Set(name, value)
	return "/audit?" + q.Encode()
}

func (s *server) audit(r *http.Request, c auth.Caller) (view, error) {
	q := r.URL.Query()
	d := auditData{Filter: inspect.AuditFilter{Who: q.Get("who"), Did: q.Get("did"), On: q.Get("on"),
		Since: q.Get("since"), Until: q.Get("until")}}
	entries, after, err := s.console.AuditLog(r.Context(), c, d.Filter, q.Get("after"), perPage)
	if errors.Is(err, inspect.ErrInvalid) {
		d.Wrong, err = hint.Text(err), nil
	}
	d.Entries = entries
	d.Filtered = d.Filter != inspect.AuditFilter{}
	if n, bad := strconv.ParseInt(after, 10, 64); bad == nil {
		d.Upto = time.UnixMicro(n)
	}
	if after != "" {
		d.Next = auditURL(d.Filter, "after", after)
	}
	v := view{template: "audit", title: "Audit", nav: "/audit", data: d}
	words := []string{"redrive", "audit"}
	for _, f := range auditFields(d.Filter) {
		if f[1] != "" {
			words = append(words, "--"+f[0], f[1])
		}
	}
	v.command = command(words...)
	if d.Wrong != "" {
		v.status = http.StatusUnprocessableEntity
	}
	return v, err
}

// maxFaults is how many findings Health has, and maxFaulty how many queues it names of each.
const maxFaults, maxFaulty = 50, 5

// fault is what doctor found about queues.
type fault struct {
	inspect.Finding
	Queues []string
	More   int // queues that are not named
}

// faultsOf joins the findings that say the same of several queues, those that are wrong first.
func faultsOf(all []inspect.Finding) (faults []fault) {
	known := map[[3]string]int{}
	for _, f := range all {
		key := [3]string{f.Check, f.Status, f.What}
		at, is := known[key]
		switch {
		case !is:
			known[key] = len(faults)
			faults = append(faults, fault{Finding: f, Queues: []string{f.Queue}})
		case len(faults[at].Queues) < maxFaulty:
			faults[at].Queues = append(faults[at].Queues, f.Queue)
		default:
			faults[at].More++
		}
	}
	slices.SortStableFunc(faults, func(a, b fault) int { return cmp.Compare(b.Status, a.Status) })
	return faults
}

func (s *server) health(r *http.Request, c auth.Caller) (view, error) {
	var h struct {
		inspect.Overview
		Ledger  inspect.Ledger
		Columns []inspect.Column[inspect.LedgerLine]
		Next    string
		Paged   bool // the ledger has more than one page
		Checkup inspect.Checkup
		Held    []inspect.Queue // whose retries are held back
		Apart   int             // conditions of these
		Faults  []fault
		More    int // faults that are not shown
	}
	after := r.URL.Query().Get("after")
	var err error
	if h.Checkup, err = s.console.LastCheckup(r.Context(), c); err != nil {
		return view{}, err
	}
	h.Faults = faultsOf(h.Checkup.Findings)
	h.More = max(0, len(h.Faults)-maxFaults)
	h.Faults = h.Faults[:len(h.Faults)-h.More]
	if h.Overview, err = s.console.Overview(r.Context(), c); err == nil {
		all := len(h.Conditions)
		h.Held = heldBack(&h.Overview)
		h.Apart = all - len(h.Conditions)
		if h.Ledger, err = s.console.Ledger(r.Context(), c, false, after, rowsPerPage); !h.Ready {
			err = nil // which is said
		}
		h.Columns = slices.DeleteFunc(h.Ledger.Columns(), func(c inspect.Column[inspect.LedgerLine]) bool {
			return c.Field == "Queue" || c.Field == "Forgotten" ||
				c.Field == "Moved" // Discarded has the forgotten ones; none are moved yet
		})
		if h.Ledger.After != "" {
			h.Next = "/health?" + url.Values{"after": {h.Ledger.After}}.Encode()
		}
	}
	h.Paged = h.Next != "" || after != ""
	return view{template: "health", title: "Health", nav: "/health", command: "redrive status", data: h}, err
}

func (s *server) help(*http.Request, auth.Caller) (view, error) {
	return view{template: "help", title: "Help"}, nil
}

// overviewData is the first page.
type overviewData struct {
	inspect.Overview
	Chart     chart
	Slots     []slot
	Failing   []inspect.Queue // those with the most trouble first
	AllQueues int
	HeldBack  []inspect.Queue // of those whose retries are held back, with the most messages waiting
	MoreHeld  int             // that HeldBack leaves out
	UnderWay  []operations.Operation
	Adoptable []operations.DeadLetterQueue
	Forgotten []string
}

// slot is a stretch of the calendar.
type slot struct {
	inspect.Slot
	Share float64 // of the fullest slot, in percent
}

// minSlots of the calendar are shown; later ones only where something is due.
const minSlots = 9

// maxAdoptable is how many dead-letter queues the overview offers, and adoptableWait how long it waits
// for them.
const maxAdoptable, adoptableWait = 20, 500 * time.Millisecond

// maxFailing is how many queues the overview shows, and maxUnderWay how many operations.
const maxFailing, maxUnderWay = 8, 5

// maxHeldBack is how many queues the overview names whose retries are held back.
const maxHeldBack = 5

// heldBack returns the queues whose retries are held back, and takes their conditions out of the overview: the list of
// these queues has the reasons.
func heldBack(o *inspect.Overview) (all []inspect.Queue) {
	for _, q := range o.Queues {
		if q.HeldBack() {
			all = append(all, q)
		}
	}
	o.Conditions = slices.DeleteFunc(o.Conditions, func(c condition.Condition) bool {
		return (c.Kind == condition.Breaker || c.Kind == condition.NoConsumer || c.Kind == condition.Unreachable) &&
			slices.ContainsFunc(all, func(q inspect.Queue) bool { return q.Name == c.Queue })
	})
	return all
}

// adoptable returns the dead-letter queues that can be adopted, the other queues that are not enrolled, and those of
// them that hold messages and have no consumer.
func (s *server) adoptable(r *http.Request, c auth.Caller) (
	offered []operations.DeadLetterQueue, unenrolled, forgotten []string,
) {
	// Where RabbitMQ does not list its queues in time, the rest is shown.
	ctx, cancel := context.WithTimeout(r.Context(), adoptableWait)
	defer cancel()
	all, _ := s.console.DeadLetterQueues(ctx, c)
	dead := map[string]bool{}
	for _, q := range all {
		dead[q.Queue] = true
		if q.Ready > 0 || q.Follow != nil {
			offered = append(offered, q)
		}
	}
	slices.SortStableFunc(offered, func(a, b operations.DeadLetterQueue) int { return cmp.Compare(b.Ready, a.Ready) })
	checkup, _ := s.console.LastCheckup(ctx, c)
	if checkup.Checking {
		checkup.Looked = nil
	}
	for name, enrolled := range checkup.Looked {
		if !enrolled && !dead[name] {
			unenrolled = append(unenrolled, name)
		}
	}
	slices.SortFunc(unenrolled, hint.Natural)
	return offered[:min(len(offered), maxAdoptable)], unenrolled, checkup.Forgotten
}

func (s *server) overview(r *http.Request, c auth.Caller) (view, error) {
	o, err := s.console.Overview(r.Context(), c)
	if err != nil {
		return view{}, err
	}
	d := overviewData{Overview: o, Chart: flowChart(o.Hour, o.Now, time.Minute),
		AllQueues: len(o.Queues) + o.MoreQueues}
	if d.UnderWay, err = s.console.Operations(r.Context(), c); err != nil {
		return view{}, err
	}
	d.UnderWay = slices.DeleteFunc(d.UnderWay, func(o operations.Operation) bool { return o.Ended != nil })
	d.UnderWay = d.UnderWay[:min(len(d.UnderWay), maxUnderWay)]
	d.Adoptable, _, d.Forgotten = s.adoptable(r, c)
	var most int64
	for _, sl := range o.Calendar {
		most = max(most, sl.Count)
	}
	calendar := o.Calendar
	if most == 0 {
		calendar = nil
	}
	for len(calendar) > minSlots && calendar[len(calendar)-1].Count == 0 {
		calendar = calendar[:len(calendar)-1]
	}
	for _, sl := range calendar {
		d.Slots = append(d.Slots, slot{sl, 100 * float64(sl.Count) / float64(max(most, 1))})
	}
	for _, q := range o.Queues {
		if q.Failed > 0 || q.Waiting > 0 || q.Parked > 0 || q.Unreachable != "" || q.Pause != nil {
			d.Failing = append(d.Failing, q)
		}
	}
	d.HeldBack = heldBack(&d.Overview)
	slices.SortStableFunc(d.HeldBack, func(a, b inspect.Queue) int { return cmp.Compare(b.Waiting, a.Waiting) })
	d.MoreHeld = max(0, len(d.HeldBack)-maxHeldBack)
	d.HeldBack = d.HeldBack[:len(d.HeldBack)-d.MoreHeld]
	slices.SortStableFunc(d.Failing, func(a, b inspect.Queue) int {
		return cmp.Or(cmp.Compare(b.Failed, a.Failed), cmp.Compare(b.Parked, a.Parked),
			cmp.Compare(b.Waiting, a.Waiting))
	})
	d.Failing = d.Failing[:min(len(d.Failing), maxFailing)]
	return view{template: "overview", title: "Overview", nav: "/", command: "redrive status", data: d}, nil
}

// chart is the flow over the last hour or day, drawn here for the first sight of it; the
// script draws it again from the same numbers, with a cursor.
type chart struct {
	Over    string // hour or day
	Each    string // minute or half hour
	Minutes []minute
	Most    int64
	Lines   []chartLine
	SoFarX  float64 // where what is not over begins
	Quiet   bool    // nothing happened
}

const chartWidth = 600.0

type minute struct {
	At time.Time
	inspect.Flow
	SoFar bool // it is not over; its end of the lines is pale
}

type chartLine struct{ Name, Path string }

func flowChart(flows []inspect.Flow, now time.Time, each time.Duration) chart {
	c := chart{Over: "hour", Each: "minute", Quiet: true}
	if each > time.Minute {
		c.Over, c.Each = "day", "half hour"
	}
	first := now.Truncate(each).Add(-time.Duration(len(flows)-1) * each)
	var lines [3][]int64
	for i, f := range flows {
		c.Quiet = c.Quiet && f.Failed == 0 && f.Retried == 0 && f.Parked == 0
		c.Minutes = append(c.Minutes, minute{first.Add(time.Duration(i) * each), f, i == len(flows)-1})
		for j, n := range []int64{f.Failed, f.Retried, f.Parked} {
			lines[j] = append(lines[j], n)
			c.Most = max(c.Most, n)
		}
	}
	for j, name := range []string{"failed", "retried", "parked"} {
		c.Lines = append(c.Lines, chartLine{name, svgPath(lines[j], c.Most, chartWidth, 160)})
	}
	if c.SoFarX = chartWidth; len(flows) > 1 {
		c.SoFarX -= chartWidth / float64(len(flows)-1)
	}
	return c
}
