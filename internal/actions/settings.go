package actions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// set changes a setting of a queue or group: in the store before it is put into force, so that it is not
// forgotten at the next start.
func (a *Actions) set(
	ctx context.Context, by auth.Caller, did, on, reason string, e store.Entry, putIntoForce func(),
) error {
	return a.Logged(by, did, on, reason, func() error {
		if err := a.settings.Acquire(ctx, 1); err != nil {
			return err
		}
		err := a.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
		if err == nil {
			putIntoForce()
		}
		a.settings.Release(1)
		a.changed()
		return err
	})
}

// ReadSettings reads the pauses and breakers that other replicas have set, and sets them here in
// the scheduler and the throttle. It is called every half second.
func (a *Actions) ReadSettings(ctx context.Context, setPauses func(queues map[string]bool)) error {
	if err := a.settings.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.settings.Release(1)
	pauses, err := inspect.Pauses(ctx, a.Store)
	if err != nil {
		return err
	}
	paused := map[string]bool{}
	for queue := range pauses {
		paused[queue] = true
	}
	setPauses(paused)
	as := map[string]string{}
	err = a.Store.Entries(ctx, store.BreakerPrefix, "", func(e store.Entry) (bool, error) {
		as[strings.TrimPrefix(e.Name, store.BreakerPrefix)] = string(e.Value)
		return true, nil
	})
	if err != nil {
		return err
	}
	for queue, entry := range as {
		if a.forcedEntries[queue] == entry {
			continue
		}
		var f inspect.Forced
		if err := json.Unmarshal([]byte(entry), &f); err != nil {
			return fmt.Errorf("the breaker of %q: %w", queue, err)
		}
		a.Force(queue, f.To, f.By, f.Reason)
	}
	for queue := range a.forcedEntries {
		if _, is := as[queue]; !is {
			a.Force(queue, "auto", "", "a person lets it decide again")
		}
	}
	a.forcedEntries = as
	return nil
}

// noteForced keeps ReadSettings from setting a breaker again that was set here. The caller
// holds settings.
func (a *Actions) noteForced(queue string, entry []byte) {
	if a.forcedEntries == nil {
		a.forcedEntries = map[string]string{}
	}
	if a.forcedEntries[queue] = string(entry); entry == nil {
		delete(a.forcedEntries, queue)
	}
}

// PauseQueue pauses the retries of a queue until ResumeQueue, over restarts. Waiting messages
// keep their attempts and due times; what is in flight still arrives.
func (a *Actions) PauseQueue(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := a.Permit(by, auth.Operator, "pause", queue, queue); err != nil {
		return err
	}
	if err := a.checkWorkQueue(ctx, by, queue); err != nil {
		return err
	}
	pauses, err := inspect.Pauses(ctx, a.Store)
	if err != nil {
		return err
	}
	pause, paused := pauses[queue]
	switch {
	case !paused:
		pause = inspect.QueuePause{By: by.Name, Since: a.now(), Reason: reason}
	case reason != "": // the first reason stays, and each is there once
		before, more := pause.Reason+"; ", "; "+by.Name+": "+reason
		if !strings.HasPrefix(before, reason+"; ") && !strings.Contains("; "+before, more+"; ") {
			pause.Reason = strings.TrimPrefix(pause.Reason+more, "; ")
		}
	}
	entry, err := json.Marshal(pause)
	if err != nil {
		return err
	}
	return a.setPaused(ctx, by, "pause", retry.Paused, queue, reason, entry)
}

// AllowReplays has messages be replayed to a queue that is not enrolled, by the queue's retry exchange.
// The queue's own dead-lettering stays as it is.
func (a *Actions) AllowReplays(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := a.Permit(by, auth.Admin, "allow replays", queue, queue); err != nil {
		return err
	}
	if err := a.CheckCopyQueue(ctx, by, queue); err != nil {
		return err
	}
	if !a.Inspect.HasPolicy(queue) {
		return hint.Errorf("add it to the queues of a policy; then this is not needed",
			"%w: no policy allows the queue %q: what is replayed to it would be parked again",
			inspect.ErrPrecondition, queue)
	}
	return a.Logged(by, "allow replays", queue, reason, func() error {
		return a.BindRetryExchange(context.WithoutCancel(ctx), queue)
	})
}

// ResumeQueue resumes the retries of a queue: due messages are retried at once.
func (a *Actions) ResumeQueue(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := a.Permit(by, auth.Operator, "resume", queue, queue); err != nil {
		return err
	}
	entry, err := a.Store.Entry(ctx, store.PausePrefix+queue)
	switch {
	case err != nil:
		return err
	case entry == nil:
		return cmp.Or(a.checkWorkQueue(ctx, by, queue), a.notPaused(queue))
	}
	var pause inspect.QueuePause
	if err := json.Unmarshal(entry, &pause); err != nil {
		return fmt.Errorf("the pause of %q: %w", queue, err)
	}
	if err := a.setPaused(ctx, by, "resume", retry.Resumed, queue, reason, nil); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	err = a.Store.PutEntries(ctx, []store.Entry{pause.StopOf(a.now()).Entry(queue)})
	if err = errors.Join(err, inspect.TrimStops(ctx, a.Store, queue)); err != nil {
		a.Inspect.Log.Warn("messages that were retried late may not say that their queue was paused", "queue", queue,
			"error", err)
	}
	return nil
}

// notPaused returns the error for a queue that no person has paused: it says what holds it back, if anything.
func (a *Actions) notPaused(queue string) error {
	err := fmt.Errorf("%w: the retries of the queue %q are not paused", inspect.ErrPrecondition, queue)
	if a.Inspect.Throttle == nil {
		return err
	}
	switch t := a.Inspect.Throttle(queue); {
	case !t.KeepsBack():
		return err
	case t.NoConsumer != nil:
		return fmt.Errorf("%w by a person: it has no consumers, and they resume when one starts", err)
	default:
		return hint.Errorf("to retry all the same: redrive breaker QUEUE closed",
			"%w by a person, but held back: %s", err, t.Text())
	}
}

func (a *Actions) setPaused(
	ctx context.Context, by auth.Caller, did string, kind retry.Kind, queue, reason string, pause []byte,
) error {
	err := a.set(ctx, by, did, queue, reason, store.Entry{Name: store.PausePrefix + queue, Value: pause}, func() {
		if a.SetPaused != nil {
			a.SetPaused(queue, pause != nil)
		}
	})
	if err == nil {
		a.event(retry.Event{Kind: kind, Queue: queue, By: by.Name, Why: reason})
	}
	return err
}

// checkWorkQueue refuses a queue that has nothing to retry: one with a typing error in its
// name would look as if it were paused.
func (a *Actions) checkWorkQueue(ctx context.Context, by auth.Caller, queue string) error {
	if queue == "" || wire.OwnQueue(queue) {
		return fmt.Errorf("%w: %q is not a work queue", inspect.ErrInvalid, queue)
	}
	counts, err := a.Store.Counts(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(counts, func(c store.QueueCount) bool { return c.Queue == queue }) {
		return nil
	}
	if !a.Inspect.HasPolicy(queue) {
		return a.Inspect.Meant(ctx, by, queue,
			fmt.Errorf("%w: no policy names the queue %q, and nothing is kept for it", inspect.ErrNotFound, queue))
	}
	// Where RabbitMQ does not answer, the queue is taken to exist: that may be why it is paused.
	if at, err := a.Inspect.AtBroker(ctx, queue); err == nil && !at.Exists {
		return a.Inspect.Meant(ctx, by, queue,
			fmt.Errorf("%w: RabbitMQ has no queue %q, and nothing is kept for it", inspect.ErrNotFound, queue))
	}
	return nil
}

// Breaker sets a queue's circuit breaker, over restarts: open, closed, or auto, with which
// it opens and closes by itself again.
func (a *Actions) Breaker(ctx context.Context, by auth.Caller, queue, to, reason string) error {
	if err := a.Permit(by, auth.Operator, "breaker", queue, queue); err != nil {
		return err
	}
	// What was set for a queue can be undone when the queue is gone.
	if set, err := a.Store.Entry(ctx, store.BreakerPrefix+queue); err != nil {
		return err
	} else if set == nil || to != "auto" {
		if err := a.checkWorkQueue(ctx, by, queue); err != nil {
			return err
		}
	}
	var entry []byte
	switch to {
	case "auto":
	case "open", "closed":
		var err error
		if entry, err = json.Marshal(inspect.Forced{To: to, By: by.Name, Since: a.now(), Reason: reason}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: a breaker can be set to open, closed or auto, not to %.20q", inspect.ErrInvalid, to)
	}
	return a.set(ctx, by, "breaker "+to, queue, reason,
		store.Entry{Name: store.BreakerPrefix + queue, Value: entry}, func() {
			if a.Force != nil {
				a.Force(queue, to, by.Name, reason)
				a.noteForced(queue, entry)
			}
		})
}

// maxNoteLen is in characters.
const maxNoteLen = 2000

// NoteGroup sets the note of a group, or of an error in all queues; "" removes it.
func (a *Actions) NoteGroup(ctx context.Context, by auth.Caller, groupID, note string) error {
	if err := a.Permit(by, auth.Operator, "note", groupID); err != nil {
		return err
	}
	if utf8.RuneCountInString(note) > maxNoteLen {
		return fmt.Errorf("%w: the note has more than %d characters", inspect.ErrInvalid, maxNoteLen)
	}
	groups, err := a.Inspect.GroupsNamed(ctx, by, groupID)
	for _, g := range groups {
		e := store.Entry{Name: "group/" + g.ID.String() + "/note"}
		if note != "" {
			e.Value = []byte(note)
		}
		err = errors.Join(err, a.Logged(by, "note", "group "+g.ID.String()+" of "+g.Queue, "", func() error {
			return a.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
		}))
	}
	return err
}

// SetGroupState sets what people have decided about a group, or an error in all queues, with a note such as a ticket.
func (a *Actions) SetGroupState(ctx context.Context, by auth.Caller, groupID, state, note string) error {
	if !slices.Contains(inspect.GroupStates, state) {
		return fmt.Errorf("%w: the state is %.40q, and must be open, acknowledged, ignored or resolved",
			inspect.ErrInvalid, state)
	}
	if err := a.Permit(by, auth.Operator, "group "+state, groupID); err != nil {
		return err
	}
	groups, err := a.Inspect.GroupsNamed(ctx, by, groupID)
	for _, g := range groups {
		e := store.Entry{Name: store.GroupStatePrefix + g.ID.String()}
		var failed error
		if e.Value, failed = json.Marshal(inspect.NewGroupState(&g, state, by.Name, note, a.now())); failed == nil {
			failed = a.set(ctx, by, "group "+state, "group "+g.ID.String()+" of "+g.Queue, note, e, func() {})
		}
		err = errors.Join(err, failed)
	}
	return err
}

// A group's state is dropped when the group has been gone since goneFor after it was set, or when there are
// more than maxGone such states.
const (
	goneFor = 30 * 24 * time.Hour
	maxGone = 1000
)

// keepGroupStates writes down which groups have reopened by themselves, since counts by hour are soon gone, and
// drops the states of groups that are no longer there.
func (a *Actions) keepGroupStates(ctx context.Context, now time.Time) error {
	if err := a.settings.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.settings.Release(1)
	set, err := inspect.SetGroupStates(ctx, a.Store)
	if err != nil || len(set) == 0 {
		return err
	}
	groups, err := a.Store.Groups(ctx)
	if err != nil {
		return err
	}
	var entries []store.Entry
	for i := range groups {
		g, id := &groups[i], groups[i].ID.String()
		if was, ok := set[id]; ok {
			if is := was.Lately(g, now); is.State != was.State {
				value, err := json.Marshal(is)
				if err != nil {
					return err
				}
				entries = append(entries, store.Entry{Name: store.GroupStatePrefix + id, Value: value})
				a.Inspect.Log.Info("an error group has reopened", "group", id, "queue", g.Queue, "was", was.State)
			}
			delete(set, id)
		}
	}
	gone := slices.SortedFunc(maps.Keys(set), func(a, b string) int { return set[b].StateAt.Compare(*set[a].StateAt) })
	for n, id := range gone {
		if n >= maxGone || now.Sub(*set[id].StateAt) > goneFor {
			entries = append(entries, store.Entry{Name: store.GroupStatePrefix + id})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	return a.Store.PutEntries(ctx, entries)
}

// What the command line does at RabbitMQ without the service, and reports.
const (
	Enroll    = "enroll"
	Unenroll  = "unenroll"
	Move      = "move"
	DoctorFix = "doctor.fix"
)

// MaxReported is how many queues one report can name.
const MaxReported = 500

// Report names what a caller did at RabbitMQ.
type Report struct {
	Action string   `json:"action" enum:"enroll,unenroll,move,doctor.fix"`
	Queues []string `json:"queues" minItems:"1" maxItems:"500" doc:"Which queues; of a move from and to."`
	Place
}

// Place is a RabbitMQ cluster and a virtual host. The service logs only reports from its own.
type Place struct {
	Cluster string `json:"cluster" doc:"The name of RabbitMQ's cluster."`
	VHost   string `json:"vhost" doc:"The virtual host."`
}

// Report writes a caller's report to the audit log. Only such entries begin with "reported.".
func (a *Actions) Report(ctx context.Context, by auth.Caller, r Report) error {
	separator := ", "
	switch r.Action {
	case Enroll, Unenroll, DoctorFix:
	case Move:
		separator = " to "
	default:
		return fmt.Errorf("%w: %.20q cannot be reported", inspect.ErrInvalid, r.Action)
	}
	did, on := "reported."+r.Action, strings.Join(r.Queues, separator)
	err := by.MaySee(auth.Admin) // a read-only service logs it, too: it changes nothing else
	for _, queue := range r.Queues {
		if err == nil && !by.Sees(queue) {
			err = fmt.Errorf("%w: %s may not touch the queue %q", auth.ErrForbidden, by.Name, queue)
		}
	}
	if err != nil {
		a.refused(by, did, on, err)
		return err
	}
	if n := len(r.Queues); n == 0 || n > MaxReported || r.Action == Move && n != 2 {
		return fmt.Errorf("%w: %s of %d queues cannot be reported", inspect.ErrInvalid, r.Action, n)
	}
	for _, queue := range r.Queues {
		if queue == "" || len(queue) > maxNameLen {
			return fmt.Errorf("%w: %.60q is no queue's name", inspect.ErrInvalid, queue)
		}
	}
	at, err := a.At(ctx)
	if err != nil {
		return fmt.Errorf("%w: where the service itself is: %w", inspect.ErrPrecondition, err)
	}
	if at != r.Place {
		return fmt.Errorf("%w: it was done in the virtual host %q of %q, and this service is for %q of %q",
			inspect.ErrPrecondition, r.VHost, r.Cluster, at.VHost, at.Cluster)
	}
	line := auditLine(by, did, on, 0, "")
	if err := a.mayWrite(by, line); err != nil {
		return err
	}
	end, err := a.Audit.Begin(line)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoAudit, err)
	}
	end("reported", 0)
	return nil
}

// SnapshotMade is a snapshot of the store.
type SnapshotMade struct {
	Folder   string  `json:"folder" doc:"On the service's machine."`
	Messages int64   `json:"messages" doc:"How many are in it: waiting, parked and discarded."`
	Seconds  float64 `json:"seconds" doc:"How long it took."`
}

// Snapshot writes the store to a folder of this machine, while it is used. Everything in
// it is copied, so only an administrator of all queues may.
func (a *Actions) Snapshot(ctx context.Context, by auth.Caller, folder string) (made SnapshotMade, err error) {
	if err := a.Permit(by, auth.Admin, "snapshot", folder); err != nil {
		return made, err
	}
	if by.Queues != nil {
		return made, fmt.Errorf("%w: a snapshot has all queues in it, and %s is limited to some",
			auth.ErrForbidden, by.Name)
	}
	disk, ok := a.Store.(store.Snapshotter)
	if !ok {
		return made, fmt.Errorf("%w: messages are kept on Redis, so Redis' own backup is the way: "+
			"docs/how-to/backup.md", inspect.ErrPrecondition)
	}
	end, err := a.Begin(by, "snapshot", folder, 0, "")
	if err != nil {
		return made, err
	}
	defer func() { end(err, made.Messages) }()
	began := time.Now()
	n, err := disk.Snapshot(ctx, folder)
	if errors.Is(err, store.ErrSnapshotFolder) {
		err = fmt.Errorf("%w: %w", inspect.ErrPrecondition, err)
	}
	if err != nil {
		return made, err
	}
	a.Inspect.Log.Info("a snapshot of the store was written", "folder", folder, "messages", n, "took",
		time.Since(began).Round(time.Millisecond))
	return SnapshotMade{folder, n, time.Since(began).Seconds()}, nil
}

// Forget deletes the discarded messages whose time to be restored is over at now, and old entries of
// the audit log. It discards the parked messages whose retention is over.
func (a *Actions) Forget(ctx context.Context, now time.Time) error {
	if err := a.expire(ctx, now); err != nil {
		return err
	}
	n, err := a.Store.Forget(ctx, now)
	if err == nil && n > 0 {
		a.Inspect.Log.Info("discarded messages are gone for good: their time to be restored is over", "messages", n)
	}
	err = errors.Join(err, a.keepGroupStates(ctx, now), a.Audit.Forget(ctx, now))
	if now.Sub(a.carriedForgot) < carriedForgetEvery {
		return err
	}
	a.carriedForgot = now
	return errors.Join(err, store.ForgetCarried(ctx, a.Store, now), inspect.ForgetStops(ctx, a.Store, now))
}

// carriedForgetEvery is how often old entries of store.Carry, and of stops, are looked for.
const carriedForgetEvery = 24 * time.Hour

// expireStep is how many messages are discarded in one step: few enough that others do not wait long.
const expireStep = 256

// expire discards the parked messages whose retention is over at now.
func (a *Actions) expire(ctx context.Context, now time.Time) error {
	policies := a.Inspect.Config.Policies()
	if !slices.ContainsFunc(policies, func(p policy.Policy) bool { return p.Retention > 0 }) {
		return nil
	}
	counts, err := a.Store.Counts(ctx)
	if err != nil {
		return err
	}
	noted, err := store.GroupNotes(ctx, a.Store)
	if err != nil {
		return err
	}
	for _, c := range counts {
		p, ok := policies.Match(c.Queue)
		if !ok || p.Retention == 0 || c.Parked == 0 {
			continue
		}
		spared := noted
		if p.ExpireNoted {
			spared = nil
		}
		if err := a.expireQueue(ctx, c.Queue, now, now.Add(-p.Retention), spared); err != nil {
			return fmt.Errorf("discarding what was parked too long in queue %q: %w", c.Queue, err)
		}
	}
	return nil
}

// spared reports whether a record, or an earlier one of its message that a person replayed, is in one of these groups.
func (a *Actions) spared(ctx context.Context, r *store.Record, noted map[string]string) (bool, error) {
	if len(noted) == 0 || noted[a.Store.GroupOf(r).String()] != "" {
		return len(noted) > 0, nil
	}
	groups, err := store.NotedGroups(ctx, a.Store, r)
	return slices.ContainsFunc(groups, func(g errorgroup.ID) bool { return noted[g.String()] != "" }), err
}

// expireQueue discards messages of a queue that were parked before a time, except for those that noted spares.
func (a *Actions) expireQueue(
	ctx context.Context, queue string, now, before time.Time, noted map[string]string,
) error {
	over := func(r *store.Record) bool {
		return r != nil && r.Unreadable == nil && r.Queue == queue && r.State == store.Parked && !r.Due.After(before) &&
			!r.Held(now)
	}
	was, err := a.Store.Entry(ctx, store.ExpiredPrefix+queue)
	if err != nil {
		return err
	}
	total, _ := strconv.ParseInt(string(was), 10, 64)
	first := total
	var keys []store.Key
	step := func() error {
		for len(keys) > 0 {
			totals := []int64{total} // after so many of the keys
			n, err := a.Store.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit {
				sum, expires := totals[len(totals)-1], over(r)
				if expires {
					sum++
					r.State, r.Due = store.Discarded, now.Add(a.Restorable)
				}
				totals = append(totals, sum)
				return store.Edit{Keep: expires}
			}, func(n int) []store.Entry {
				return []store.Entry{{Name: store.ExpiredPrefix + queue, Value: strconv.AppendInt(nil, totals[n], 10)}}
			})
			if err != nil {
				return err
			}
			total, keys = totals[n], keys[n:]
		}
		return nil
	}
	due := store.Range{State: store.Parked, Queues: []string{queue}, To: before.Add(time.Microsecond)}
	err = a.Store.Scan(ctx, due, func(l store.Listed) (bool, error) {
		if !over(l.Record) {
			return true, nil
		}
		if spared, err := a.spared(ctx, l.Record, noted); err != nil || spared {
			return err == nil, err
		}
		if keys = append(keys, l.Key); len(keys) < expireStep {
			return true, nil
		}
		return true, step()
	})
	if err == nil {
		err = step()
	}
	if n := total - first; n > 0 {
		a.Inspect.Log.Info("parked messages are discarded: their retention is over", "queue", queue, "messages", n)
		a.event(retry.Event{Kind: retry.Discarded, Queue: queue, N: int(n), By: "retention"})
	}
	return err
}
