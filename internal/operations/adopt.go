package operations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// DeadLetters are queues of the virtual host with dead letters that are not Redrive's.
type DeadLetters interface {
	// List returns those that are known to be dead-letter queues, by name.
	List(ctx context.Context) ([]DeadLetterQueue, error)
	// Look returns what is known of a queue that may not be one; its error says that it does not exist
	// or that RabbitMQ does not answer.
	Look(ctx context.Context, queue string) (DeadLetterQueue, error)
	// Sample takes up to n messages from a queue and puts each back at its place. It returns what an adoption
	// would store of them.
	Sample(ctx context.Context, a retry.Adoption, n int) ([]*store.Record, error)
	// Open begins to take messages from a queue.
	Open(ctx context.Context, a retry.Adoption) (Source, error)
	// Target returns what becomes of messages that are put into a queue.
	Target(ctx context.Context, queue string) (Target, error)
	// OpenTarget begins to put messages into a queue.
	OpenTarget(ctx context.Context, queue string) (Sink, error)
}

// Source takes messages from a queue, and parks them. Its methods are called from one goroutine.
type Source interface {
	// Park takes up to most messages, and parks and acknowledges them; fewer where they are large, and
	// none where there are none. After an error they may be parked, and not acknowledged: those that come
	// again in the same epoch have the same id. again: some had been delivered before.
	//
	// With ErrNewEpoch nothing is parked: call it again with an epoch that was not used before.
	Park(ctx context.Context, most int, epoch int64) (n int, again bool, err error)
	// Ready returns how many messages are left.
	Ready() (int, error)
	Close()
}

// ErrNewEpoch: the messages were never delivered before, so they need an epoch of their own.
var ErrNewEpoch = errors.New("the messages need a new epoch")

// DeadLetterQueue is a queue with dead letters that could be adopted.
type DeadLetterQueue struct {
	Queue      string   `json:"queue"`
	Kind       string   `json:"type" doc:"classic, quorum or stream; left empty where it is not known."`
	Ready      int64    `json:"ready" doc:"Messages that could be adopted now."`
	Consumers  int      `json:"consumers"`
	WorkQueues []string `json:"work_queues" doc:"Queues that dead-letter to it; or the one that it is named after."`
	Why        string   `json:"why" doc:"Why it is taken for a dead-letter queue."`
	Refused    string   `json:"refused,omitempty" doc:"Why it cannot be adopted."`
	Doubt      string   `json:"doubt,omitempty" doc:"Why it is adopted only with even_with_consumers."`
	Unknown    string   `json:"unknown,omitempty" doc:"What is not known of it, and why."`
	Follow     *Follow  `json:"follow,omitempty" doc:"How it is followed; absent: it is not."`
}

// Follow is how the service follows a dead-letter queue.
type Follow struct {
	Then  string `json:"then" doc:"retry or park."`
	Queue string `json:"queue,omitempty" doc:"The work queue, if one is named."`
	By    string `json:"by,omitempty" doc:"Who had it followed; absent: the config."`
	State string `json:"state" doc:"following, or a state that the page of adopt explains, such as missing."`
	Why   string `json:"why,omitempty" doc:"Why it is not followed now."`
}

// Following is Follow.State of a queue that is consumed.
const Following = "following"

// FollowRequest asks the service to follow a dead-letter queue.
type FollowRequest struct {
	Queue  string `json:"queue,omitempty" maxLength:"255" doc:"The work queue; absent: the only one."`
	Then   string `json:"then,omitempty" enum:"park,retry" doc:"What becomes of what lands there; left out: park."`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"Why, for the audit log."`
}

// FollowSet is a Follow as it is stored.
type FollowSet struct {
	FollowRequest
	By    string
	Since time.Time
}

// Follow has the service consume a dead-letter queue until Unfollow, also after restarts. With retry, the caller
// consents to publishing to the work queue.
func (r *Runner) Follow(ctx context.Context, by auth.Caller, queue string, q FollowRequest) error {
	queues := []string{queue}
	if q.Queue != "" {
		queues = append(queues, q.Queue)
	}
	if err := checkNames(queues...); err != nil {
		return err
	}
	for _, name := range queues {
		if strings.ContainsAny(name, "*?") {
			return fmt.Errorf("%w: %q is a pattern: expected a queue's name", inspect.ErrInvalid, name)
		}
	}
	if q.Then = cmp.Or(q.Then, "park"); q.Then != "park" && q.Then != "retry" {
		return fmt.Errorf("%w: then is %.20q: expected park or retry", inspect.ErrInvalid, q.Then)
	}
	if err := actions.CheckReason(q.Reason); err != nil {
		return err
	}
	if err := r.Actions.Permit(by, auth.Admin, "follow", queue, queues...); err != nil {
		return err
	}
	if err := r.followedByConfig(ctx, queue); err != nil {
		return err
	}
	is, err := r.DeadLetters.Look(ctx, queue)
	switch {
	case err != nil:
		return err
	case is.Refused != "":
		return fmt.Errorf("%w: %s", inspect.ErrPrecondition, is.Refused)
	}
	set := FollowSet{FollowRequest: q, By: by.Name, Since: r.now()}
	return r.setFollow(ctx, by, "follow", queue, q.Reason, entryOf(store.FollowPrefix+queue, set))
}

// Unfollow ends Follow. Messages that wait or are parked stay.
func (r *Runner) Unfollow(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := r.Actions.Permit(by, auth.Admin, "unfollow", queue, queue); err != nil {
		return err
	}
	switch e, err := r.Store.Entry(ctx, store.FollowPrefix+queue); {
	case err != nil:
		return err
	case e == nil:
		if err := r.followedByConfig(ctx, queue); err != nil {
			return err
		}
		return fmt.Errorf("%w: the queue %q is not followed", inspect.ErrPrecondition, queue)
	}
	return r.setFollow(ctx, by, "unfollow", queue, reason, store.Entry{Name: store.FollowPrefix + queue})
}

// followedByConfig returns an error if the config follows the queue.
func (r *Runner) followedByConfig(ctx context.Context, queue string) error {
	all, err := r.DeadLetters.List(ctx)
	for _, q := range all {
		if q.Queue == queue && q.Follow != nil && q.Follow.By == "" {
			return fmt.Errorf("%w: the config follows the queue %q: change adopt there", inspect.ErrPrecondition, queue)
		}
	}
	if errors.Is(err, inspect.ErrPrecondition) { // without the management API
		return nil
	}
	return err
}

func (r *Runner) setFollow(ctx context.Context, by auth.Caller, did, queue, reason string, e store.Entry) error {
	return r.Actions.Logged(by, did, queue, reason, func() error {
		return r.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
	})
}

// DeadLetterQueues lists the dead-letter queues that could be adopted and that the caller sees.
func (r *Runner) DeadLetterQueues(ctx context.Context, by auth.Caller) ([]DeadLetterQueue, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	all, err := r.DeadLetters.List(ctx)
	all = slices.DeleteFunc(all, func(q DeadLetterQueue) bool { return !by.Sees(q.Queue) })
	for i := range all {
		all[i].WorkQueues = seen(by, all[i].WorkQueues)
		if f := all[i].Follow; f != nil && !by.Sees(f.Queue) {
			hidden := *f
			hidden.Queue = ""
			all[i].Follow = &hidden
		}
	}
	return all, err
}

func seen(by auth.Caller, queues []string) []string {
	return slices.DeleteFunc(slices.Clone(queues), func(q string) bool { return !by.Sees(q) })
}

// checkNames refuses names that no queue of a user's has.
func checkNames(queues ...string) error {
	for _, name := range queues {
		if name == "" || len(name) > 255 || wire.OwnQueue(name) {
			return fmt.Errorf("%w: %.300q is empty, too long, or one of Redrive's own queues", inspect.ErrInvalid, name)
		}
	}
	return nil
}

// planAdoption plans to adopt the messages that are in a queue now. It touches nothing.
func (r *Runner) planAdoption(ctx context.Context, by auth.Caller, q PlanRequest) (Plan, error) {
	queues := append([]string{q.From}, q.WorkQueues...)
	if err := checkNames(queues...); err != nil {
		return Plan{}, err
	}
	switch {
	case q.Query != "" || q.At != nil || q.To != "":
		return Plan{}, fmt.Errorf("%w: adopt takes a queue (from), and no query, time or target", inspect.ErrInvalid)
	case q.Format != "" && !slices.Contains(retry.FormatNames(), q.Format):
		return Plan{}, fmt.Errorf("%w: the format %.40q: expected %s", inspect.ErrInvalid, q.Format,
			strings.Join(retry.FormatNames(), ", "))
	case q.Sample < 0 || q.Sample > maxSample:
		return Plan{}, fmt.Errorf("%w: a sample of %d messages: expected at most %d",
			inspect.ErrInvalid, q.Sample, maxSample)
	case q.Limit < 0 || len(q.WorkQueues) > maxPlanQueues:
		return Plan{}, fmt.Errorf("%w: limit %d with %d work queues: expected a limit from 0 (none) on, and at most "+
			"%d queues",
			inspect.ErrInvalid, q.Limit, len(q.WorkQueues), maxPlanQueues)
	}
	if err := r.Actions.Permit(by, q.Verb.Info().Role, "plan.adopt", q.From, queues...); err != nil {
		return Plan{}, err
	}
	is, err := r.DeadLetters.Look(ctx, q.From)
	if err != nil {
		return Plan{}, err
	}
	op := r.newPlan(by, q)
	if len(is.WorkQueues) == 1 {
		op.head.Lead = is.WorkQueues[0]
	}
	is.WorkQueues = seen(by, is.WorkQueues)
	p := &op.Operation.Plan
	p.From, p.WorkQueues, p.Format, p.Leads = q.From, q.WorkQueues, q.Format, is.WorkQueues
	p.Count = min(is.Ready, cmp.Or(q.Limit, math.MaxInt64))
	p.Queues = []PlanQueue{{Queue: q.From, Count: p.Count, Known: true, Exists: true,
		Consumers: is.Consumers, Ready: int(is.Ready)}}
	switch {
	case is.Refused != "":
		p.Blocked = append(p.Blocked, is.Refused)
	case is.Doubt != "" && !q.EvenWithConsumers:
		p.Blocked = append(p.Blocked, is.Doubt+"; to adopt it anyway, set even_with_consumers")
	case is.Ready == 0:
		p.Blocked = append(p.Blocked, fmt.Sprintf("the queue %q has no messages that are ready", q.From))
	case is.Doubt != "":
		p.Warnings = append(p.Warnings, is.Doubt)
	}
	if is.Unknown != "" {
		p.Warnings = append(p.Warnings, is.Unknown)
	}
	for _, queue := range q.WorkQueues {
		if len(is.WorkQueues) > 0 && !slices.Contains(is.WorkQueues, queue) {
			p.Warnings = append(p.Warnings, fmt.Sprintf("the queue %q does not seem to dead-letter to it; these do: %s",
				queue, strings.Join(is.WorkQueues, ", ")))
		}
	}
	if q.Sample > 0 && len(p.Blocked) == 0 {
		if p.Sampled, err = r.sample(ctx, by, op, q.Sample); err != nil {
			return Plan{}, err
		}
	}
	return *p, r.keepPlan(ctx, op)
}

const (
	maxSample = 1000
	maxTally  = 20
)

// sample looks at the first messages of the queue that a plan adopts.
func (r *Runner) sample(ctx context.Context, by auth.Caller, op *operation, n int) (*Sampled, error) {
	leave, err := r.planners.Enter(ctx, by.ID(), 1)
	if err != nil {
		return nil, err
	}
	defer leave()
	end, err := r.Actions.Begin(by, "adopt.sample", op.From, int64(n), op.Reason)
	if err != nil {
		return nil, err
	}
	all, err := r.DeadLetters.Sample(ctx, op.adoption(by.Name), n)
	end(err, int64(len(all)))
	if err != nil {
		return nil, err
	}
	queues, errs, formats, notes := tallies{}, tallies{}, tallies{}, tallies{}
	for _, rec := range all {
		queue := rec.Queue
		if queue != "" && !by.Sees(queue) {
			queue = "a queue that you do not see"
		}
		queues.add(queue, queue)
		if rec.Error != "" {
			first, _, _ := strings.Cut(rec.Error, "\n") // a stack follows
			errs.add(r.Inspect.Store.GroupOf(rec).String(), actions.Short(r.Inspect.ForAll(rec.Queue, first)))
		} else {
			errs.add("", "")
		}
		formats.add(rec.Format, cmp.Or(rec.Format, retry.XDeath))
		for _, note := range rec.Notes {
			notes.add(note, actions.Short(r.Inspect.ForAll(rec.Queue, note)))
		}
	}
	return &Sampled{Messages: len(all), Queues: queues.list(), Errors: errs.list(), Formats: formats.list(),
		Notes: notes.list()}, nil
}

type tallies map[string]*Tally

func (t tallies) add(key, what string) {
	if t[key] == nil {
		t[key] = &Tally{What: what}
	}
	t[key].Count++
}

func (t tallies) list() []Tally {
	all := []Tally{}
	for _, one := range t {
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b Tally) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.What, b.What))
	})
	return all[:min(len(all), maxTally)]
}

func (op *operation) adoption(by string) retry.Adoption {
	return retry.Adoption{ID: op.ID, From: op.From, By: by, Named: op.WorkQueues,
		Leads: op.head.Lead, Format: op.Format}
}

// maxParkErrors is how often in a row the connection of an adoption may end before it stops: each time
// RabbitMQ may count a failed delivery of the next message.
const maxParkErrors = 3

// epochBits is where progress.Reopened begins in an epoch, above progress.Epoch.
const epochBits = 40

// maxUnacknowledged is more than a Source has unacknowledged at any time.
const maxUnacknowledged = 2048

func (r *Runner) adoptNext(ctx context.Context, op *operation) (next time.Time, err error) {
	if op.unsaved != nil { // before anything else is taken
		return time.Now(), r.saveAdoption(ctx, op, *op.unsaved)
	}
	left := op.Count - op.processed()
	if left == 0 {
		return r.endAdoption(ctx, op)
	}
	now := time.Now()
	n := min(chunk, left, op.maxByRate())
	if readyAt := op.allows(now, int(n)); !readyAt.IsZero() {
		return readyAt, nil
	}
	step, cancel := context.WithCancel(ctx)
	defer cancel()
	op.set(func() { op.interrupt = cancel })
	parked, again, err := r.park(step, op, int(n))
	switch {
	case errors.Is(err, ErrNewEpoch):
		p := op.progress
		p.Reopened++
		return now, r.saveAdoption(ctx, op, p)
	case err != nil && step.Err() != nil && ctx.Err() == nil: // a person's order does not wait for it
		op.closeSource()
		return now, nil
	case err != nil:
		return r.adoptionFailed(ctx, op, err)
	case parked == 0:
		return r.noneLeft(ctx, op)
	}
	p := op.progress
	p.Done += int64(parked)
	if !again || p.Done-p.Epoch >= maxUnacknowledged { // what came again after a crash has come
		p.Epoch = p.Done
	}
	op.parkErrors, op.emptySince = 0, time.Time{}
	return now, r.saveAdoption(ctx, op, p)
}

// park opens the queue if it is not, and parks up to n of its messages.
func (r *Runner) park(ctx context.Context, op *operation, n int) (parked int, again bool, err error) {
	if op.source == nil {
		if op.source, err = r.DeadLetters.Open(ctx, op.adoption(op.StartedBy)); err != nil {
			op.source = nil
			return 0, false, err
		}
	}
	parked, again, err = op.source.Park(ctx, n, op.Epoch+op.Reopened<<epochBits)
	if err != nil && !errors.Is(err, ErrNewEpoch) {
		op.parkErrors++
	}
	return parked, again, err
}

// saveAdoption writes the progress of an adoption. Until it has succeeded, nothing more is taken.
func (r *Runner) saveAdoption(ctx context.Context, op *operation, p progress) error {
	op.unsaved = &p
	err := r.putProgress(ctx, op, p)
	if err == nil {
		op.unsaved = nil
		op.set(func() { op.notePace(time.Now()) })
	}
	return err
}

// noneLeftFor is how long a queue must be empty before its adoption ends early: RabbitMQ requeues the
// messages of a dead connection only when it notices.
const noneLeftFor = 45 * time.Second

// noneLeft ends an adoption whose queue has been empty for a while.
func (r *Runner) noneLeft(ctx context.Context, op *operation) (time.Time, error) {
	now := time.Now()
	if op.emptySince.IsZero() {
		op.emptySince = now
	}
	if now.Sub(op.emptySince) < noneLeftFor {
		return now.Add(time.Second), nil
	}
	return r.endAdoption(ctx, op)
}

// adoptionFailed stops an adoption where trying again could harm, or cannot succeed.
func (r *Runner) adoptionFailed(ctx context.Context, op *operation, err error) (time.Time, error) {
	op.closeSource()
	stop := func(why string) (time.Time, error) {
		p := op.progress
		now := r.now()
		p.State, p.Why, p.Ended = Stopped, why, &now
		return time.Now(), r.saveAdoption(ctx, op, p)
	}
	left := "what is left is in RabbitMQ as it was"
	switch {
	case ctx.Err() != nil || deposed(err):
		return time.Time{}, err
	case errors.Is(err, store.ErrFull): // each try would count as a failed delivery
		return stop(err.Error() + "; " + left)
	case errors.Is(err, wire.ErrQueueGone), errors.Is(err, wire.ErrExclusive), errors.Is(err, wire.ErrForbidden):
		return stop(err.Error())
	case op.parkErrors >= maxParkErrors:
		return stop(fmt.Sprintf("it failed %d times at the next message: %v; %s", maxParkErrors, err, left))
	}
	return time.Time{}, err
}

// endAdoption ends an adoption, and says how many messages came since it was planned.
func (r *Runner) endAdoption(ctx context.Context, op *operation) (time.Time, error) {
	why := ""
	if op.source != nil {
		if n, err := op.source.Ready(); err == nil && n > 0 {
			why = fmt.Sprintf("%d more messages are in the queue now", n)
		}
	}
	if left := op.Count - op.processed(); left > 0 {
		why = fmt.Sprintf("%d of the messages were not there any more: they expired, or others took them", left)
	}
	op.closeSource()
	return r.saveState(ctx, op, Finished, why)
}

// closeSource puts unacknowledged messages back. The caller has op.stepping.
func (op *operation) closeSource() {
	if op.source != nil {
		op.source.Close()
		op.source = nil
	}
	if op.sink != nil {
		op.sink.Close()
		op.sink = nil
	}
}

// closeSources ends what adoptions have open, when the service ends.
func (r *Runner) closeSources() {
	r.lock()
	all := slices.Collect(maps.Values(r.all))
	r.mu.Release(1)
	for _, op := range all {
		_ = op.stepping.Acquire(context.Background(), 1) // it never fails
		op.closeSource()
		op.stepping.Release(1)
	}
}
