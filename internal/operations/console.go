package operations

import (
	"context"
	"io"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// Console is what the page and the API call: an inspect.Inspector, actions.Actions and a Runner.
// Each method checks its caller.
type Console interface {
	Overview(ctx context.Context, c auth.Caller) (inspect.Overview, error)
	Search(ctx context.Context, c auth.Caller, query, after string, limit int) (inspect.Page, error)
	Count(ctx context.Context, c auth.Caller, query string) (n int64, exact bool, err error)
	Message(ctx context.Context, c auth.Caller, id string) (inspect.Detail, error)
	Body(ctx context.Context, c auth.Caller, id string) ([]byte, error)
	Groups(ctx context.Context, c auth.Caller, query, after string, limit int) (inspect.GroupPage, error)
	Queues(ctx context.Context, c auth.Caller, after string, limit int) ([]inspect.Queue, string, error)
	Ledger(ctx context.Context, c auth.Caller, recount bool, after string, limit int) (inspect.Ledger, error)
	Policies(ctx context.Context, c auth.Caller) ([]inspect.PolicyInForce, error)
	AuditLog(ctx context.Context, c auth.Caller, after string, limit int) ([]audit.Entry, string, error)

	Act(ctx context.Context, c auth.Caller, a actions.Act) (actions.Acted, error)
	Edit(ctx context.Context, c auth.Caller, e actions.EditRequest) (actions.Edited, error)
	NoteGroup(ctx context.Context, c auth.Caller, group, note string) error
	Breaker(ctx context.Context, c auth.Caller, queue, to, reason string) error
	PauseQueue(ctx context.Context, c auth.Caller, queue, reason string) error
	ResumeQueue(ctx context.Context, c auth.Caller, queue, reason string) error
	Export(ctx context.Context, c auth.Caller, query string, w io.Writer) (n int64, err error)
	Import(ctx context.Context, c auth.Caller, r io.Reader, o actions.ImportOptions) (actions.Imported, error)
	Snapshot(ctx context.Context, c auth.Caller, folder string) (actions.SnapshotMade, error)

	Plan(ctx context.Context, c auth.Caller, r PlanRequest) (Plan, error)
	GetPlan(ctx context.Context, c auth.Caller, id string) (Plan, error)
	Start(ctx context.Context, c auth.Caller, plan string, s Start) (Operation, error)
	Operations(ctx context.Context, c auth.Caller) ([]Operation, error)
	Operation(ctx context.Context, c auth.Caller, id string) (Operation, error)
	Order(ctx context.Context, c auth.Caller, id string, o Order) (Operation, error)
	Outcomes(ctx context.Context, c auth.Caller, id, after string, limit int) (Outcomes, error)
	Watch(ctx context.Context, c auth.Caller) <-chan Tick
}
