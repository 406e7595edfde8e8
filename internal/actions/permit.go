package actions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
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
		if end, auditErr := a.Audit.Begin(auditLine(by, did, on[:min(len(on), mostRefused)], 0, "")); auditErr == nil {
			end("refused: "+err.Error(), 0)
		}
	}
	return err
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
	write, err := a.Audit.Begin(auditLine(by, did, on, count, why))
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

// mostNamedQueues is how many queues of an action a line of the audit log names.
const mostNamedQueues = 10

// InQueues names the queues of an action's messages, so that the audit log can be searched for them.
func InQueues(queues []string) string {
	if len(queues) == 0 {
		return ""
	}
	some := queues[:min(len(queues), mostNamedQueues)]
	text := " in " + strings.Join(some, ", ")
	if more := len(queues) - len(some); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
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
