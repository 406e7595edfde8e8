// Package actions does what a person asks for to named messages, to a queue and to a group
// of failures. Each action checks the permission, and has two lines in the audit log: one before
// it, and one with its result. What changes messages or pauses sends an event. Read it in this order:
//
//	actions.go   what it needs; the permission check, the audit log and the event
//	act.go       replay, discard, restore or copy messages: of one record, and of as many as an
//	             operation passes
//	edit.go      a message replaced by an edited one, and how the two differ
//	settings.go  pauses and breakers in force, also those that other replicas set; notes on groups,
//	             copies of the store, and deleting what was discarded or parked long ago
//	import.go    messages as lines of JSON, exact to the last byte, out and in
package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// ErrNoAudit: the audit log cannot be written, so nothing is done.
var ErrNoAudit = hint.New("no_audit", "the audit log cannot be written, and nothing is done without it")

// Store is the part of a store that actions need. Where it is a store.Snapshotter too, it can be
// copied.
type Store interface {
	store.Searcher
	store.Changer
	store.SideTable
	Add(ctx context.Context, records []*store.Record) error
	Counts(ctx context.Context) ([]store.QueueCount, error)
}

// Audit writes the audit log: see package audit.
type Audit interface {
	Begin(e audit.Entry) (done func(outcome string, count int64), err error)
	Forget(ctx context.Context, now time.Time) error
}

// Config has the parts that actions work with.
type Config struct {
	// Inspect finds what to act on. Its log, clock and decoder are used, too.
	Inspect *inspect.Inspector
	Store   Store
	Audit   Audit
	Events  retry.Listener
	// Restorable is how long a discarded message can be restored.
	Restorable time.Duration
	// SetPaused, when not nil, pauses the retries of a queue now, or resumes them. The store has it already.
	SetPaused func(queue string, paused bool)
	// BindRetryExchange makes a queue one that messages can be retried to.
	BindRetryExchange func(ctx context.Context, queue string) error
	// Force, when not nil, sets a queue's breaker now; the store has it already.
	Force func(queue, to, by, why string)
	// AuditShort says that what room is left is for the entries of administrators; nil: never.
	AuditShort func() error
	// At returns where in RabbitMQ the service is, for reports.
	At func(context.Context) (Place, error)
	// Large bounds how many large bodies are exported and imported at once. The virtual hosts of a
	// process share it; nil: of these actions alone.
	Large *background.Places
}

// NewLarge makes Config.Large. An export takes one place, and an import all.
func NewLarge() *background.Places {
	return &background.Places{What: "transfers of large messages", All: 2, Own: 1, Wait: time.Minute}
}

// Actions does what a person asks for. Its methods may be called at once from many
// goroutines, and each checks its caller.
type Actions struct {
	Config
	// settings keeps pauses and breakers in the same order in store, scheduler and throttle. It is
	// held while the store is asked, so a caller can stop waiting for it.
	settings *semaphore.Weighted
	// forcedEntries are the entries of the breakers that were set here or that ReadSettings has
	// found, by queue; settings guards them.
	forcedEntries map[string]string

	carriedForgot time.Time // Forget's

	auditing sync.Mutex
	auditors map[string]*rate.Limiter // how much each caller adds to the audit log
}

// New makes Actions.
func New(c Config) *Actions {
	c.Large = cmp.Or(c.Large, NewLarge())
	return &Actions{Config: c, settings: semaphore.NewWeighted(1), auditors: map[string]*rate.Limiter{}}
}

func (a *Actions) now() time.Time { return a.Inspect.Now() }

// changed announces to the other replicas that the side table has changed.
func (a *Actions) changed() {
	if a.Inspect.Changed != nil {
		a.Inspect.Changed()
	}
}

// maxReasonLen is how long the reason that a person gives may be, in characters.
const maxReasonLen = 500

// maxRefused is how many bytes the audit log keeps of what a refused action was on.
const maxRefused = 256

// Permit checks that the caller may do an action: the role, and each queue that is named. A
// refusal goes to the audit log too, if that can be written.
func (a *Actions) Permit(by auth.Caller, role auth.Role, did, on string, queues ...string) error {
	err := by.May(role, "")
	for i := 0; err == nil && i < len(queues); i++ {
		err = by.May(role, queues[i])
	}
	a.refused(by, did, on, err)
	return err
}

// refused writes a refusal to the audit log, if that can be written.
func (a *Actions) refused(by auth.Caller, did, on string, err error) {
	if errors.Is(err, auth.ErrForbidden) {
		// Only the beginning: a caller without permission must not fill the disk.
		line := auditLine(by, did, on[:min(len(on), maxRefused)], 0, "")
		if a.mayWrite(by, line) == nil {
			if end, auditErr := a.Audit.Begin(line); auditErr == nil {
				end("refused: "+err.Error(), 0)
			}
		}
	}
}

const (
	// auditRate is how many bytes a second a caller may add to the audit log, and auditBurst how
	// many at once.
	auditRate, auditBurst = 4 << 10, 4 << 20
	// auditBytes is the size of an entry without its texts, roughly.
	auditBytes = 512
	// maxAuditors is how many callers' rates are kept before those at rest are dropped.
	maxAuditors = 1000
)

// mayWrite limits how much each caller adds to the audit log, and refuses all but administrators while
// the store is short of room.
func (a *Actions) mayWrite(by auth.Caller, line audit.Entry) error {
	if by.Role < auth.Admin && a.AuditShort != nil {
		if err := a.AuditShort(); err != nil {
			return fmt.Errorf("%w: %w", ErrNoAudit, err)
		}
	}
	a.auditing.Lock()
	defer a.auditing.Unlock()
	now := a.now()
	if len(a.auditors) >= maxAuditors {
		maps.DeleteFunc(a.auditors, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= auditBurst })
	}
	l := a.auditors[by.ID()]
	if l == nil {
		l = rate.NewLimiter(auditRate, auditBurst)
		a.auditors[by.ID()] = l
	}
	if !l.AllowN(now, auditBytes+len(line.On)+len(line.Why)) {
		return hint.Errorf("use one plan for many messages: it is one action",
			"%w: each action is written to the audit log", background.ErrTooMany)
	}
	return nil
}

// CheckReason refuses a reason that is too long for the audit log.
func CheckReason(why string) error {
	if utf8.RuneCountInString(why) > maxReasonLen {
		return fmt.Errorf("%w: the reason has more than %d characters", inspect.ErrInvalid, maxReasonLen)
	}
	return nil
}

// Begin writes to the audit log that an action is about to begin; without that line it must not.
// The caller ends it with the result. about is audit.Entry.About.
func (a *Actions) Begin(
	by auth.Caller, did, on string, count int64, why string, about ...string,
) (end func(err error, n int64), _ error) {
	write, err := a.BeginLine(by, did, on, count, why, about...)
	return func(err error, n int64) {
		if err != nil {
			write("failed: "+err.Error(), n)
		} else {
			write("done", n)
		}
	}, err
}

// BeginLine is Begin for a result in words.
func (a *Actions) BeginLine(
	by auth.Caller, did, on string, count int64, why string, about ...string,
) (end func(outcome string, n int64), _ error) {
	if err := CheckReason(why); err != nil {
		return nil, err
	}
	line := auditLine(by, did, on, count, why)
	line.About = strings.Join(about, "")
	if err := a.mayWrite(by, line); err != nil {
		return nil, err
	}
	write, err := a.Audit.Begin(line)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAudit, err)
	}
	return write, nil
}

// Logged does something between two lines of the audit log.
func (a *Actions) Logged(by auth.Caller, did, on, why string, do func() error) error {
	end, err := a.Begin(by, did, on, 0, why)
	if err != nil {
		return err
	}
	err = do()
	end(err, 0)
	return err
}

// Show returns a message as it is, unmasked, once the audit log has who asked for it and why.
func (a *Actions) Show(ctx context.Context, by auth.Caller, id, reason string) (inspect.Detail, error) {
	end := func(error, int64) {}
	d, err := a.Inspect.Unmasked(ctx, by, id, func(r *store.Record) error {
		if reason = strings.TrimSpace(reason); reason == "" {
			return fmt.Errorf("%w: say for which reason: the audit log has it", inspect.ErrInvalid)
		}
		begun, err := a.Begin(by, "show", r.Queue+": "+r.ID.String(), 1, reason)
		if err == nil {
			end = begun
		}
		return err
	})
	a.refused(by, "show", id, err)
	end(err, 1)
	return d, err
}

func auditLine(by auth.Caller, did, on string, count int64, why string) audit.Entry {
	return audit.Entry{Who: by.Name, How: by.How, From: by.From, Interface: by.Interface, Did: did, On: on,
		Count: count, Why: why, Outcome: "begun"}
}

// CheckCopyQueue refuses a queue that a copy cannot go to, also when it is not known whether the
// queue exists: copies to a name with a typing error would all be parked.
func (a *Actions) CheckCopyQueue(ctx context.Context, by auth.Caller, queue string) error {
	if wire.OwnQueue(queue) {
		return fmt.Errorf("%w: the queue %q is Redrive's own", inspect.ErrInvalid, queue)
	}
	at, err := a.Inspect.AtBroker(ctx, queue)
	switch {
	case err != nil:
		return fmt.Errorf("%w: it is not known whether the queue %q exists: %w", inspect.ErrPrecondition, queue, err)
	case !at.Exists:
		return a.Inspect.Meant(ctx, by, queue,
			fmt.Errorf("%w: the queue %q does not exist", inspect.ErrPrecondition, queue))
	}
	return nil
}

func (a *Actions) event(e retry.Event) {
	if a.Events != nil {
		e.At = a.now()
		a.Events(e)
	}
}
