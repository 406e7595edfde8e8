package inspect

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
)

// AuditAction is an action with its two lines of the audit log, before and after, as one.
type AuditAction struct {
	audit.Entry            // the first, with the outcome and the count of the second
	Line        int64      `json:"line,omitempty" doc:"The line with its outcome; absent while it has none."`
	Ended       *time.Time `json:"ended,omitempty" doc:"When its outcome was written; absent while it has none."`
}

// AuditFilter chooses actions of the audit log. Empty fields choose all.
type AuditFilter struct {
	Who   string    // the name
	Did   string    // the action or, with a dot at the end, all that begin so: operation.
	On    string    // a part of what it was on, such as a queue, an id or a query; in capitals or not
	From  time.Time // when it began: From ≤ At
	Until time.Time // At < Until
}

// AuditActions is a page of actions.
type AuditActions struct {
	Actions []AuditAction `json:"actions"`
	After   string        `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last. A page may be short, even empty, and not be the last."`
}

const (
	// outcomeWithin is how many lines after the beginning of an action its outcome is looked for.
	outcomeWithin = 2000
	// mostAuditLooked is how many lines one page looks at.
	mostAuditLooked = 50_000
	// longestAuditLook is how long it does.
	longestAuditLook = time.Second
)

func (f *AuditFilter) match(e *audit.Entry) bool {
	did := f.Did == "" || e.Did == f.Did || strings.HasSuffix(f.Did, ".") && strings.HasPrefix(e.Did, f.Did)
	return did && (f.Who == "" || e.Who == f.Who) && (f.From.IsZero() || !e.At.Before(f.From)) && (f.Until.IsZero() || e.At.Before(f.Until)) &&
		(f.On == "" || strings.Contains(strings.ToLower(e.On), strings.ToLower(f.On)))
}

// AuditActions returns a page of what people did, the newest first: each action once, with its
// outcome.
func (in *Inspector) AuditActions(ctx context.Context, by auth.Caller, f AuditFilter, after string, limit int) (page AuditActions, err error) {
	page.Actions = []AuditAction{}
	if err := mayAudit(by); err != nil {
		return page, err
	}
	before, err := readAuditPlace(after)
	if err != nil {
		return page, err
	}
	if limit, err = PageSize(limit); err != nil || in.Audit == nil {
		return page, err
	}
	outcomes := map[int64]audit.Entry{} // by the line that they are of
	looked, began := 0, time.Now()
	from := before
	if from < math.MaxInt64-outcomeWithin {
		from += outcomeWithin // the outcomes of the first actions of this page
	}
	err = in.Audit.Before(ctx, from, func(e audit.Entry) (bool, error) {
		if e.Of > 0 {
			outcomes[e.Of] = e
			return true, nil
		}
		if e.N >= before {
			delete(outcomes, e.N)
			return true, nil
		}
		if !f.From.IsZero() && e.At.Before(f.From.Add(-time.Hour)) { // clocks are set back by less
			return false, nil
		}
		if looked++; len(page.Actions) == limit || looked > mostAuditLooked || looked%100 == 0 && time.Since(began) > longestAuditLook {
			page.After = strconv.FormatInt(e.N+1, 10)
			return false, nil
		}
		out, ended := outcomes[e.N]
		delete(outcomes, e.N)
		if f.match(&e) {
			a := AuditAction{Entry: e}
			if ended {
				at := out.At
				a.Outcome, a.Count, a.Line, a.Ended = out.Outcome, out.Count, out.N, &at
			}
			page.Actions = append(page.Actions, a)
		}
		return true, nil
	})
	return page, err
}

func mayAudit(by auth.Caller) error {
	if err := by.MaySee(auth.Admin); err != nil {
		return err
	}
	if by.Queues != nil { // a line may name any queue, in free text
		return fmt.Errorf("%w: the audit log is about all queues, and %s is limited to some", auth.ErrForbidden, by.Name)
	}
	return nil
}

// readAuditPlace is the line before which a page begins.
func readAuditPlace(after string) (before int64, err error) {
	if after == "" {
		return math.MaxInt64, nil
	}
	if before, err = strconv.ParseInt(after, 10, 64); err != nil || before < 1 {
		return 0, fmt.Errorf("%w: %.60q is not the end of a page", ErrInvalid, after)
	}
	return before, nil
}
