package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// planLives is how long a plan can be started.
	planLives = 15 * time.Minute
	// maxPlans bounds those that were never started, maxOwnPlans those of one person, and
	// maxPlansOfQueue those with messages of one queue; the oldest goes first.
	maxPlans        = 100
	maxOwnPlans     = 20
	maxPlansOfQueue = 40
	// maxPlanQueues bounds the queues of one plan.
	maxPlanQueues = 1000
	samples       = 5
)

// Plan finds the messages of an action, and keeps that set: what fails later,
// or is changed, is not in it. It changes no message.
func (r *Runner) Plan(ctx context.Context, by auth.Caller, q PlanRequest) (Plan, error) {
	if err := actions.CheckReason(q.Reason); err != nil {
		return Plan{}, err
	}
	switch q.Verb {
	case actions.Adopt:
		return r.planAdoption(ctx, by, q)
	case actions.Unadopt:
		return r.planUnadoption(ctx, by, q)
	}
	c := actions.RecordChange{Verb: q.Verb, By: by.Name, To: q.To, At: q.At}
	if err := c.Check(); err != nil {
		return Plan{}, err
	}
	if q.RestOf != "" || q.DiscardedBy != "" {
		return r.planAfter(ctx, by, c, q)
	}
	if strings.TrimSpace(q.Query) == "" {
		return Plan{}, fmt.Errorf("%w: the query is empty: say which messages, such as queue:orders",
			inspect.ErrInvalid)
	}
	if err := r.Actions.Permit(by, q.Verb.Info().Role, "plan."+string(q.Verb), q.Query,
		targetOf(&Plan{Verb: q.Verb, To: q.To})...); err != nil {
		return Plan{}, err
	}
	return r.planFound(ctx, by, c, q, func(*Plan) {})
}

// planFound plans an action on what its query finds. check adds to what blocks the plan.
func (r *Runner) planFound(
	ctx context.Context, by auth.Caller, c actions.RecordChange, q PlanRequest, check func(*Plan),
) (Plan, error) {
	return r.planOf(ctx, by, c, q, check, func(upto uint64, visit func(store.Listed) (bool, error)) error {
		return r.Inspect.Find(ctx, by, q.Query, upto, visit)
	})
}

// planOf plans an action on the messages that find visits.
func (r *Runner) planOf(
	ctx context.Context, by auth.Caller, c actions.RecordChange, q PlanRequest, check func(*Plan), find finder,
) (Plan, error) {
	if _, err := r.operations(ctx); err != nil { // or Lead would delete its keys as a crash's
		return Plan{}, err
	}
	op := r.newPlan(by, q)
	leave, err := r.planners.Enter(ctx, by.ID(), 1)
	if err != nil {
		return Plan{}, err
	}
	defer leave()
	r.planning.Store(op.ID, true)
	defer r.planning.Delete(op.ID)
	err = r.freeze(ctx, c, op, find)
	if err == nil {
		err = r.checkQueues(ctx, by, &op.Operation.Plan)
	}
	if err == nil {
		check(&op.Operation.Plan)
		err = r.keepPlan(ctx, op)
	}
	if err != nil {
		// What is written is of no use; when this fails too, Lead deletes it.
		_ = r.Store.DeleteEntries(context.WithoutCancel(ctx), partsOf(op.ID))
		return Plan{}, err
	}
	return op.Operation.Plan, nil
}

func (r *Runner) newPlan(by auth.Caller, q PlanRequest) *operation {
	op, now := newOperation(), r.now()
	op.Operation.Plan = Plan{ID: uuid.Must(uuid.NewV7()).String(), Verb: q.Verb, Query: q.Query, At: q.At, To: q.To,
		Reason: q.Reason, RestOf: q.RestOf, DiscardedBy: q.DiscardedBy, By: by.Name, Made: now,
		Expires: now.Add(planLives), Queues: []PlanQueue{}, Samples: []inspect.Message{}}
	return op
}

func (r *Runner) keepPlan(ctx context.Context, op *operation) error {
	if _, err := r.operations(ctx); err != nil {
		return err
	}
	if err := r.Store.PutEntries(ctx, []store.Entry{entryOf(headPrefix+op.ID, op.head)}); err != nil {
		return err
	}
	r.lock()
	r.all[op.ID] = op
	r.mu.Release(1)
	if r.shared() {
		r.changed(op.ID) // the leader deletes those that are too many
	} else if err := r.forgetOld(ctx, op.Made); err != nil { // or plans would fill the disk
		r.log.Error("old plans cannot be forgotten; trying again", "error", err)
	}
	return nil
}

// finder visits messages whose number is at most upto.
type finder func(upto uint64, visit func(store.Listed) (bool, error)) error

// freeze writes down the messages, and counts them.
func (r *Runner) freeze(ctx context.Context, c actions.RecordChange, op *operation, find finder) error {
	p := &op.Operation.Plan
	upto, err := r.Store.NewestNumber(ctx)
	if err != nil {
		return err
	}
	op.Upto = upto
	f := freezer{store: r.Store, plan: p.ID}
	if c.Verb.Retries() {
		f.of, f.chunks = map[int]int{}, 1
	}
	index, skips := map[string]int{}, map[string]int64{}
	isOfGroups := ofGroups.MatchString(p.Query)
	errs, groups := map[string]int64{}, map[errorgroup.ID]bool{}
	err = find(upto, func(l store.Listed) (bool, error) {
		m := l.Record
		if why := r.Actions.Skip(c, m); why != "" {
			skips[why]++
			return true, nil
		}
		i, err := p.add(m, index)
		if err != nil {
			return false, err
		}
		if isOfGroups {
			g := m.Group()
			errs[cmp.Or(r.Inspect.ForAll(g.Queue, g.Pattern), g.Reason)]++
			groups[g.ID] = true
		}
		failed := m.FailedAt
		if p.Oldest == nil || failed.Before(*p.Oldest) {
			p.Oldest = &failed
		}
		if p.Newest == nil || failed.After(*p.Newest) {
			p.Newest = &failed
		}
		if len(p.Samples) < samples {
			sample := r.Inspect.Shown(auth.Caller{}, l) // what it keeps is for all
			sample.Error = actions.Short(sample.Error)  // it is kept in memory
			p.Samples = append(p.Samples, sample)
		}
		return true, f.add(ctx, frozen{l.Key, i, m.State})
	})
	if err != nil {
		return err
	}
	p.About = about(errs, len(groups), len(p.Queues))
	for _, why := range slices.Sorted(maps.Keys(skips)) {
		p.Skipped = append(p.Skipped, Skipped{Why: why, Count: skips[why]})
	}
	return f.end(ctx)
}

// ofGroups matches the queries that pages and people make of error groups alone, which say nothing to people.
var ofGroups = regexp.MustCompile(`^(state:\w+ )?\(?group:"?[0-9a-f]{16}"?( OR group:"?[0-9a-f]{16}"?)*\)?$`)

// about says which error most messages have, and of how many groups they are.
func about(errs map[string]int64, groups, queues int) string {
	if groups == 0 {
		return ""
	}
	all := slices.SortedFunc(maps.Keys(errs), func(a, b string) int {
		return cmp.Or(cmp.Compare(errs[b], errs[a]), cmp.Compare(a, b))
	})
	text := actions.Short(all[0])
	switch n := len(all) - 1; {
	case n == 1:
		text += " and another error"
	case n > 1:
		text += fmt.Sprintf(" and %d other errors", n)
	}
	switch {
	case groups > 1 && queues > 1:
		text += fmt.Sprintf(" (%d groups, %d queues)", groups, queues)
	case groups > 1:
		text += fmt.Sprintf(" (%d groups)", groups)
	}
	return text
}

// add counts a message; index has the queues of p that are known.
func (p *Plan) add(m *store.Record, index map[string]int) (queue int, err error) {
	i, ok := index[m.Queue]
	if !ok {
		if i = len(p.Queues); i == maxPlanQueues {
			return 0, fmt.Errorf("%w: the query finds messages of more than %d queues: narrow it", inspect.ErrInvalid,
				maxPlanQueues)
		}
		index[m.Queue] = i
		p.Queues = append(p.Queues, PlanQueue{Queue: m.Queue})
	}
	p.Queues[i].Count++
	p.Queues[i].FailedHere = p.Queues[i].FailedHere || m.Proven || m.Reason == wire.ReasonReported
	p.Count++
	if m.Replays > 0 {
		p.ReplayedBefore++
		p.MostReplays = max(p.MostReplays, m.Replays)
	}
	return i, nil
}

// Act is Actions.Act, whose dry run also says what a plan of the same would.
func (r *Runner) Act(ctx context.Context, by auth.Caller, act actions.Act) (actions.Acted, error) {
	if !act.DryRun {
		return r.Actions.Act(ctx, by, act)
	}
	p, index := Plan{Verb: act.Verb, To: act.To}, map[string]int{}
	act.Seen = func(m *store.Record) { _, _ = p.add(m, index) } // fewer are named than a plan may have queues
	acted, err := r.Actions.Act(ctx, by, act)
	if err != nil || p.Count == 0 {
		return acted, err
	}
	leave, err := r.planners.Enter(ctx, by.ID(), 1)
	if err != nil {
		return acted, err
	}
	defer leave()
	err = r.checkQueues(ctx, by, &p)
	acted.Warnings = slices.Concat(p.Blocked, p.Warnings)
	return acted, err
}

// checkQueues asks RabbitMQ about the queues, and fills in what prevents the plan.
func (r *Runner) checkQueues(ctx context.Context, by auth.Caller, p *Plan) error {
	pauses, err := inspect.Pauses(ctx, r.Store)
	if err != nil {
		return err
	}
	if p.Count == 0 {
		p.Blocked = append(p.Blocked, "there is nothing to "+string(p.Verb))
	}
	noAnswer := "" // why RabbitMQ did not answer
	for i := range p.Queues {
		q := &p.Queues[i]
		_, q.Paused = pauses[q.Queue]
		if noAnswer != "" {
			continue
		}
		at, err := r.Inspect.AtBroker(ctx, q.Queue)
		if err != nil {
			noAnswer = err.Error()
			continue
		}
		q.Known, q.Exists, q.Consumers, q.Ready = true, at.Exists, at.Consumers, at.Ready
		q.DeadLetters = at.DeadLetters
	}
	if p.ReplayedBefore > 0 && p.Verb == actions.Replay {
		p.Warnings = append(p.Warnings, p.replayedBefore())
	}
	switch {
	case p.Verb.Retries():
		var there []PlanQueue
		for _, q := range p.Queues {
			if q.Exists && r.Inspect.HasPolicy(q.Queue) {
				there = append(there, q)
			}
		}
		p.warn(pauses, there...)
		r.checkTargets(p, noAnswer)
	case p.Verb.Info().ToQueue:
		// A pause of retries stops no copy.
		if err := r.Actions.CheckCopyQueue(ctx, by, p.To); err != nil {
			p.Blocked = append(p.Blocked, err.Error())
		} else if at, err := r.Inspect.AtBroker(ctx, p.To); err == nil {
			p.warn(nil, PlanQueue{Queue: p.To, Consumers: at.Consumers})
		}
	}
	if noAnswer != "" && len(p.Queues) > 0 && p.Verb.Retries() {
		p.Warnings = append(p.Warnings, "RabbitMQ does not say whether the queues exist and have consumers: "+noAnswer)
	}
	return nil
}

// checkTargets says why messages cannot be retried to queues, might fail again, or wait.
func (r *Runner) checkTargets(p *Plan, noAnswer string) {
	var unnamed, gone, unseen, unbound, elsewhere []string
	var holds []condition.Condition
	for _, q := range p.Queues {
		switch {
		case !r.Inspect.HasPolicy(q.Queue):
			unnamed = append(unnamed, q.Queue)
		case noAnswer != "":
		case !q.Exists:
			gone = append(gone, q.Queue)
		case q.DeadLetters != "" && !q.FailedHere:
			unseen, elsewhere = append(unseen, q.Queue), append(elsewhere, q.DeadLetters)
			if !r.Inspect.NamedExactly(q.Queue) {
				unbound = append(unbound, q.Queue)
			}
		}
		for _, kind := range []condition.Kind{condition.Breaker, condition.Unreachable} {
			c := condition.Condition{Kind: kind, Queue: q.Queue}
			if c.Text = r.Inspect.Holds(c); c.Text != "" && (q.Exists || noAnswer != "") {
				holds = append(holds, c)
			}
		}
	}
	p.Blocked = said(p.Blocked, unnamed,
		"no policy allows the queue %s, so its messages would be parked again: add it to the queues of a policy",
		"no policy allows the queues %s, so their messages would be parked again: add them to the queues of a policy")
	p.Blocked = said(p.Blocked, gone, "the queue %s does not exist", "the queues %s do not exist")
	p.Warnings = said(p.Warnings, unbound,
		"a policy names the queue %s only by a pattern, and it is not enrolled: its messages are parked again unless "+
			"`redrive allow-replays` was run for it",
		"policies name the queues %s only by a pattern, and they are not enrolled: their messages are parked again "+
			"unless `redrive allow-replays` was run for each")
	one := ""
	if len(unseen) == 1 {
		one = "a new failure in the queue %s will not be seen here: it dead-letters " +
			strings.ReplaceAll(elsewhere[0], "%", "%%") + ", not to Redrive; enroll it, or adopt again"
	}
	p.Warnings = said(p.Warnings, unseen, one, "new failures in the queues %s will not be seen here: they do not "+
		"dead-letter to Redrive; enroll them, or adopt again")
	slices.SortStableFunc(holds, func(a, b condition.Condition) int { return hint.Natural(a.Queue, b.Queue) })
	for _, line := range condition.Summary(holds) {
		p.Warnings = append(p.Warnings, line+"; the messages wait until that is over")
	}
}

// said adds to lines the text for one queue, or for many, with their names for %s.
func said(lines, queues []string, one, many string) []string {
	slices.SortFunc(queues, hint.Natural)
	for i, q := range queues {
		queues[i] = strconv.Quote(q)
	}
	text := hint.Few(queues, 3)
	switch len(queues) {
	case 0:
		return lines
	case 1:
		return append(lines, fmt.Sprintf(one, text))
	}
	return append(lines, fmt.Sprintf(many, text))
}

func (p *Plan) replayedBefore() string {
	most := "once"
	if p.MostReplays > 1 {
		most = fmt.Sprintf("%d times", p.MostReplays)
	}
	if p.Count == 1 {
		return fmt.Sprintf("it was replayed %s before", most)
	}
	return fmt.Sprintf("messages that were replayed before: %d, one of them %s", p.ReplayedBefore, most)
}

// warn adds warnings about queues. It counts several, since the plan's table lists them.
func (p *Plan) warn(pauses map[string]inspect.QueuePause, queues ...PlanQueue) {
	var idle, paused []string
	for _, q := range queues {
		if q.Consumers == 0 {
			idle = append(idle, q.Queue)
		}
		if q.Paused {
			pause := pauses[q.Queue]
			paused = append(paused, fmt.Sprintf(
				"the retries of the queue %q are %s; its messages wait until you resume it", q.Queue, pause.Text()))
		}
	}
	say := func(of []string, one, many string) {
		switch len(of) {
		case 0:
		case 1:
			p.Warnings = append(p.Warnings, fmt.Sprintf(one, of[0]))
		default:
			p.Warnings = append(p.Warnings, fmt.Sprintf(many, len(of)))
		}
	}
	say(idle, "nothing consumes from the queue %q", "nothing consumes from %d of the queues")
	say(paused, "%s", "the retries of %d of the queues are paused: their messages wait until you resume them")
}

// GetPlan returns a plan, also one that became an operation.
func (r *Runner) GetPlan(ctx context.Context, by auth.Caller, id string) (Plan, error) {
	op, err := r.operation(ctx, by, id)
	if err != nil {
		return Plan{}, err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.Operation.Plan, nil
}

const (
	// chunk is how many messages one entry names. All entries but the last are full.
	chunk = 1000
	// chunksAtOnce is how many entries are written in one step of the store.
	chunksAtOnce = 16
	// ofEachFirst messages of each queue are in the first chunk, where they fit.
	ofEachFirst = 10
)

// frozen is one message of a plan, as it was when the plan was made.
type frozen struct {
	Key   store.Key   `json:"k"`
	Queue int         `json:"q"` // index in Plan.Queues
	State store.State `json:"s"`
}

// freezer writes the messages of a plan in the order in which the store has them: by
// when they were parked or are due. A cursor and a bound over that order would not do:
// a message that is retried, and parked again, changes its place, what the query found
// (age, state, group) changes with it, and the plan has promised an exact count.
//
// For a replay, queues take turns in the first chunk, so that a canary has messages of many.
type freezer struct {
	store  Store
	plan   string
	first  []frozen    // the first chunk, which is written last then
	of     map[int]int // how many it has of each queue; nil: the order stays
	batch  []frozen
	chunks int64 // the number of the next
}

func chunkName(plan string, n int64) string { return fmt.Sprintf("%skeys/%09d", partsOf(plan), n) }

func (f *freezer) add(ctx context.Context, m frozen) error {
	if f.of != nil && len(f.first) < chunk {
		f.first = append(f.first, m)
		f.of[m.Queue]++
		return nil
	}
	if f.batch = append(f.batch, f.displace(m)); len(f.batch) < chunk*chunksAtOnce {
		return nil
	}
	return f.flush(ctx)
}

// displace puts a message of a queue that has few in the first chunk there, and returns the one that leaves it.
func (f *freezer) displace(m frozen) frozen {
	n := f.of[m.Queue]
	if f.of == nil || n >= ofEachFirst {
		return m
	}
	most := f.first[0].Queue
	for queue, n := range f.of {
		if n > f.of[most] || n == f.of[most] && queue < most {
			most = queue
		}
	}
	if f.of[most] <= n+1 {
		return m
	}
	at := len(f.first) - 1
	for f.first[at].Queue != most {
		at--
	}
	leaves := f.first[at]
	f.first = append(slices.Delete(f.first, at, at+1), m)
	f.of[most]--
	f.of[m.Queue]++
	return leaves
}

// end writes what is in memory.
func (f *freezer) end(ctx context.Context) error {
	if err := f.flush(ctx); err != nil || len(f.first) == 0 {
		return err
	}
	var turns [][]frozen // the first message of each queue, the second of each, and so on
	seen := map[int]int{}
	for _, m := range f.first {
		n := seen[m.Queue]
		if seen[m.Queue]++; n == len(turns) {
			turns = append(turns, nil)
		}
		turns[n] = append(turns[n], m)
	}
	return f.store.PutEntries(ctx, []store.Entry{entryOf(chunkName(f.plan, 0), slices.Concat(turns...))})
}

// flush writes the batch in memory; a chunk that is not full ends the plan.
func (f *freezer) flush(ctx context.Context) error {
	var entries []store.Entry
	for part := range slices.Chunk(f.batch, chunk) {
		entries = append(entries, entryOf(chunkName(f.plan, f.chunks), part))
		f.chunks++
	}
	f.batch = f.batch[:0]
	if entries == nil {
		return ctx.Err()
	}
	return f.store.PutEntries(ctx, entries)
}

// readChunk is nil where there is none.
func (r *Runner) readChunk(ctx context.Context, name string) (all []frozen, err error) {
	value, err := r.Store.Entry(ctx, name)
	if err != nil || value == nil {
		return nil, err
	}
	if err := json.Unmarshal(value, &all); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", name, err)
	}
	return all, nil
}
