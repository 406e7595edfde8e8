package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
)

// action is what a person does at a time since the beginning.
type action struct {
	at   time.Duration
	verb verb
	// nth chooses among the messages that are there then, and replica among the replicas.
	nth     int
	replica int
	later   time.Duration // replay: when, from then on
	heals   bool          // replay and edit: from then on its consumer processes it
	size    int           // edit: of the new body; -1: it stays
	// Pause, resume and reload are about a queue.
	queue    *workQueue
	attempts int // reload
	// Bulk: what is done to a queue's messages, how many a second (0 = unlimited), and how many are
	// watched first.
	of     actions.Verb
	rate   float64
	canary int
}

type verb int

const (
	replay verb = iota
	discard
	restore
	edit
	pause
	resume
	reload
	verbCount
)

// Drawn apart.
const (
	bulk = verbCount + iota
	replayHostile
	importing
)

func (v verb) String() string {
	return [...]string{"replay", "discard", "restore", "edit", "pause", "resume", "reload", "do in bulk", "replay a hostile message", "import"}[v]
}

func (a action) String() string {
	switch a.verb {
	case replay:
		return fmt.Sprintf("a person replays message %d in %s, healed: %t", a.nth, a.later, a.heals)
	case edit:
		return fmt.Sprintf("a person edits message %d, new size: %d, healed: %t", a.nth, a.size, a.heals)
	case bulk:
		return fmt.Sprintf("a person asks to %s %s, %v a second, %d first", a.of, a.query(), a.rate, a.canary)
	case replayHostile:
		return fmt.Sprintf("a person replays hostile message %d", a.nth)
	case discard, restore:
		return fmt.Sprintf("a person asks to %s message %d", a.verb, a.nth)
	case reload:
		return fmt.Sprintf("reload: %s has %d attempts", a.queue.name, a.attempts)
	default:
		return fmt.Sprintf("a person asks to %s %s", a.verb, a.queue.name)
	}
}

func (s *scenario) drawActions(r *rand.Rand) {
	for range max(0, r.IntN(20)-5) {
		s.actions = append(s.actions, action{at: between(r, time.Minute, faultsEnd), verb: verb(r.IntN(int(verbCount))), nth: r.IntN(100),
			later: pick(r, 0, 0, time.Minute), heals: r.IntN(2) == 0, size: pick(r, -1, 0, 50), queue: s.queues[r.IntN(len(s.queues))], attempts: 1 + r.IntN(mostAttempts)})
	}
}

var ann = auth.Caller{Name: "ann", How: "local", Interface: "api", Role: auth.Editor}

// act is a person doing something. What the service refuses has not happened.
func (w *World) act(ctx context.Context, a action) error {
	w.say("%s", a)
	switch a.verb {
	case reload:
		if a.queue.library != nil {
			return w.redeploy(a)
		}
		w.reload(a)
		return nil
	case pause:
		err := w.repeat(func() error { return w.used(a.replica).actions.PauseQueue(ctx, ann, a.queue.name, "") })
		if err == nil && w.ledger.pausedSince(a.queue).IsZero() {
			w.ledger.pause(a.queue, time.Now())
		}
		return w.refused(err)
	case resume:
		return w.resume(ctx, a.queue, a.replica)
	case bulk:
		return w.bulk(ctx, a)
	case replayHostile:
		return w.replayHostile(ctx, a)
	case importing:
		return w.importing(ctx, a)
	}
	p := w.used(a.replica) // before a message is chosen, which may be retried until there is one
	l, found, err := w.choose(ctx, a)
	if err != nil || !found {
		return err
	}
	id := idOf(l)
	w.say("it is %s, failed %d times, %s", id, l.Record.Failures, inspect.StateName(l.Record.State))
	if a.verb == edit {
		return w.edit(ctx, p, a, id, l)
	}
	act := actions.Act{Verb: actions.Verb(a.verb.String()), IDs: []string{string(l.Key)}}
	if a.verb == replay && a.later > 0 {
		at := time.Now().Add(a.later)
		act.At = &at
	}
	w.ledger.heals.Store(a.heals)
	_, err = p.actions.Act(ctx, ann, act)
	return w.refused(err)
}

// reload gives a queue's policy another number of attempts.
func (w *World) reload(a action) {
	w.ledger.allow(a.queue, a.attempts)
	for _, p := range w.replicas.running() {
		p.intake.SetRules(w.rules())
		p.scheduler.Wake()
	}
}

// choose finds the message that an action is about.
func (w *World) choose(ctx context.Context, a action) (l store.Listed, found bool, err error) {
	states := []store.State{store.Parked, store.Waiting}
	if a.verb == restore {
		states = []store.State{store.Discarded}
	}
	var all []store.Listed
	for _, state := range states {
		err := w.stored().Scan(ctx, store.Range{State: state}, func(l store.Listed) (bool, error) {
			if w.ledger.has(idOf(l)) {
				all = append(all, l)
			}
			return true, nil
		})
		if err != nil {
			return l, false, fmt.Errorf("scanning the store: %w", err)
		}
	}
	if len(all) == 0 {
		return l, false, nil
	}
	slices.SortStableFunc(all, func(a, b store.Listed) int { return strings.Compare(idOf(a), idOf(b)) })
	return all[a.nth%len(all)], true, nil
}

func idOf(l store.Listed) string {
	id, _ := l.Record.Message.Headers[idHeader].(string)
	return id
}

// edit replaces a message by one that the ledger knows by another id.
func (w *World) edit(ctx context.Context, p *process, a action, id string, l store.Listed) error {
	made, enterMade := w.ledger.edit(id, a)
	e := actions.EditRequest{ID: string(l.Key), SetHeaders: map[string]string{idHeader: made}}
	if a.size >= 0 {
		body := bodyOf(made, a.size)
		e.Body = &body
	}
	_, err := p.actions.Edit(ctx, ann, e)
	if u := (*unanswered)(nil); errors.As(err, &u) && u.open {
		w.ledger.openEdit(id, made)
	} else {
		enterMade(err == nil || doneUnanswered(err))
	}
	return w.refused(err)
}

func (w *World) resume(ctx context.Context, q *workQueue, replica int) error {
	since := w.ledger.pausedSince(q)
	w.ledger.pause(q, time.Time{})
	tries := 0
	err := w.repeat(func() error {
		tries++
		return w.used(replica).actions.ResumeQueue(ctx, ann, q.name, "")
	})
	if tries > 1 && !since.IsZero() && errors.Is(err, inspect.ErrPrecondition) {
		err = nil // the first try was done, and its answer was lost
	}
	switch {
	case since.IsZero() && err == nil:
		return fmt.Errorf("%s could be resumed, and was not paused", q.name)
	case !since.IsZero() && errors.Is(err, inspect.ErrPrecondition):
		return fmt.Errorf("%s was paused, and the service does not know: %w", q.name, err)
	case err != nil:
		w.ledger.pause(q, since)
	}
	return w.refused(err)
}

// repeat has a person try again while the store is in trouble, or at another replica than the one
// that has just crashed.
func (w *World) repeat(try func() error) error {
	for {
		err := try()
		var u *unanswered
		if !errors.As(err, &u) && !w.crashed(err) {
			return err
		}
		w.say("to be tried again: %s", err)
		time.Sleep(time.Second)
	}
}

// doneUnanswered tells that what a person asked for was done, and the answer was lost.
func doneUnanswered(err error) bool {
	var u *unanswered
	return errors.As(err, &u) && u.done
}

// crashed tells whether an error may be that a replica crashed while a person used it.
func (w *World) crashed(err error) bool {
	return w.scenario.replicas > 1 && errors.Is(err, store.ErrClosed)
}

// refused lets pass what the service may answer: a queue is deleted, the disk is full, the store is in trouble, no replica
// leads, or the message is being retried.
func (w *World) refused(err error) error {
	var u *unanswered
	if errors.Is(err, inspect.ErrNotFound) && w.ledger.anyDeleted() || errors.Is(err, store.ErrFull) || errors.Is(err, inspect.ErrPrecondition) || errors.Is(err, operations.ErrNoLeader) || errors.As(err, &u) || w.crashed(err) {
		w.say("refused: %s", err)
		return nil
	}
	return err
}

// resumeAll is a person who resumes all queues that are paused.
func (w *World) resumeAll(ctx context.Context) error {
	for _, q := range w.scenario.queues {
		if !w.ledger.pausedSince(q).IsZero() {
			if err := w.resume(ctx, q, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// noAudit is an audit log that always works.
type noAudit struct{}

func (noAudit) Begin(audit.Entry) (func(string, int64), error) { return func(string, int64) {}, nil }
