package actions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/wire"
)

// longestReason is how long the reason that a person gives may be, in characters.
const longestReason = 500

// mostRefused is how many bytes the audit log keeps of what a refused action was on.
const mostRefused = 256

// Permit checks that the caller may do an action: the role, and each queue that is named. A
// refusal goes to the audit log too, if that can be written.
func (a *Actions) Permit(by auth.Caller, role auth.Role, did, on string, queues ...string) error {
	err := by.May(role, "")
	for _, q := range queues {
		if err == nil {
			err = by.May(role, q)
		}
	}
	if errors.Is(err, auth.ErrForbidden) && a.Audit != nil {
		// Only the beginning: a caller without permission must not fill the disk.
		line := auditLine(by, did, on[:min(len(on), mostRefused)], 0, "")
		if a.mayWrite(by, line) == nil {
			if end, auditErr := a.Audit.Begin(line); auditErr == nil {
				end("refused: "+err.Error(), 0)
			}
		}
	}
	return err
}

const (
	// auditRate is how many bytes a second a caller may add to the audit log, and auditBurst how
	// many at once.
	auditRate, auditBurst = 4 << 10, 4 << 20
	// auditBytes is what an entry has besides its texts, about.
	auditBytes = 512
	// mostAuditors is how many callers' rates are kept before those at rest are dropped.
	mostAuditors = 1000
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
	if len(a.auditors) >= mostAuditors {
		maps.DeleteFunc(a.auditors, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= auditBurst })
	}
	l := a.auditors[by.ID()]
	if l == nil {
		l = rate.NewLimiter(auditRate, auditBurst)
		a.auditors[by.ID()] = l
	}
	if !l.AllowN(now, auditBytes+len(line.On)+len(line.Why)) {
		return fmt.Errorf("%w: actions, each of which is written to the audit log: "+
			"a plan is one action for any number of messages", background.ErrTooMany)
	}
	return nil
}

// CheckReason refuses a reason that is too long for the audit log.
func CheckReason(why string) error {
	if utf8.RuneCountInString(why) > longestReason {
		return fmt.Errorf("%w: the reason has more than %d characters", inspect.ErrInvalid, longestReason)
	}
	return nil
}

// Begin writes to the audit log that an action is about to begin; without that line it must not.
// The caller ends it with the result.
func (a *Actions) Begin(by auth.Caller, did, on string, count int64, why string) (end func(err error, n int64), _ error) {
	if err := CheckReason(why); err != nil {
		return nil, err
	}
	if a.Audit == nil {
		return nil, ErrNoAudit
	}
	line := auditLine(by, did, on, count, why)
	if err := a.mayWrite(by, line); err != nil {
		return nil, err
	}
	write, err := a.Audit.Begin(line)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAudit, err)
	}
	return func(err error, n int64) {
		if err != nil {
			write("failed: "+err.Error(), n)
		} else {
			write("done", n)
		}
	}, nil
}

func auditLine(by auth.Caller, did, on string, count int64, why string) audit.Entry {
	return audit.Entry{Who: by.Name, How: by.How, From: by.From, Interface: by.Interface, Did: did, On: on, Count: count, Why: why, Outcome: "begun"}
}

// CheckCopyQueue refuses a queue that a copy cannot go to, also when it is not known whether the
// queue exists: copies to a name with a typing error would all be parked.
func (a *Actions) CheckCopyQueue(ctx context.Context, queue string) error {
	if wire.OwnQueue(queue) {
		return fmt.Errorf("%w: the queue %q is Redrive's own", inspect.ErrInvalid, queue)
	}
	at, err := a.Inspect.AtBroker(ctx, queue)
	switch {
	case err != nil:
		return fmt.Errorf("%w: it is not known whether the queue %q exists: %w", inspect.ErrPrecondition, queue, err)
	case !at.Exists:
		return fmt.Errorf("%w: the queue %q does not exist", inspect.ErrPrecondition, queue)
	}
	return nil
}

func (a *Actions) event(e retry.Event) {
	if a.Events != nil {
		e.At = a.now()
		a.Events(e)
	}
}
