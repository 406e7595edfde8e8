package operations

import (
	"context"
	"io"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// Console is what the page and the API call: an inspect.Inspector, actions.Actions and a Runner.
// Each method checks its caller.
type Console interface {
	Overview(ctx context.Context, c auth.Caller) (inspect.Overview, error)
	VHost(ctx context.Context, c auth.Caller) (inspect.VHost, error)
	Search(ctx context.Context, c auth.Caller, query, after string, limit int) (inspect.Page, error)
	AddColumns(ctx context.Context, c auth.Caller, p *inspect.Page, columns []string, preview bool) error
	Count(ctx context.Context, c auth.Caller, query string, most int64) (n int64, exact bool, err error)
	Complete(ctx context.Context, c auth.Caller, text string, onlyGroups bool) ([]query.Suggestion, error)
	Message(ctx context.Context, c auth.Caller, id string, as inspect.ReadAs) (inspect.Detail, error)
	Body(ctx context.Context, c auth.Caller, id string) ([]byte, error)
	Groups(ctx context.Context, c auth.Caller, query, after string, limit int) (inspect.GroupPage, error)
	Errors(ctx context.Context, c auth.Caller, query string, order inspect.ErrorOrder, after string, limit int) (inspect.ErrorPage, error)
	Queues(ctx context.Context, c auth.Caller, q inspect.QueueQuery) (inspect.QueuePage, error)
	Queue(ctx context.Context, c auth.Caller, name string) (inspect.QueueDetail, error)
	Health(ctx context.Context, c auth.Caller) (inspect.Health, error)
	Doctor(ctx context.Context, c auth.Caller) (inspect.Examination, error)
	StartDoctor(ctx context.Context, c auth.Caller) error
	Ledger(ctx context.Context, c auth.Caller, recount bool, after string, limit int) (inspect.Ledger, error)
	Policies(ctx context.Context, c auth.Caller) ([]inspect.PolicyInForce, error)
	AuditLog(ctx context.Context, c auth.Caller, after string, limit int) ([]audit.Entry, string, error)
	AuditActions(ctx context.Context, c auth.Caller, f inspect.AuditFilter, after string, limit int) (inspect.AuditActions, error)

	Act(ctx context.Context, c auth.Caller, a actions.Act) (actions.Acted, error)
	Edit(ctx context.Context, c auth.Caller, e actions.EditRequest) (actions.Edited, error)
	NoteGroup(ctx context.Context, c auth.Caller, group, note string) error
	Breaker(ctx context.Context, c auth.Caller, queue, to, reason string) error
	PauseQueue(ctx context.Context, c auth.Caller, queue, reason string) error
	ResumeQueue(ctx context.Context, c auth.Caller, queue, reason string) error
	PreviewAdopt(ctx context.Context, c auth.Caller, r actions.AdoptRequest) (actions.AdoptPreview, error)
	Adopt(ctx context.Context, c auth.Caller, r actions.AdoptRequest) (actions.Adoption, error)
	StopAdopting(ctx context.Context, c auth.Caller, queue, reason string) error
	Adoptions(ctx context.Context, c auth.Caller) ([]actions.Adoption, error)
	Export(ctx context.Context, c auth.Caller, query string, w io.Writer) (n int64, err error)
	Import(ctx context.Context, c auth.Caller, r io.Reader, dryRun bool) (actions.Imported, error)
	Snapshot(ctx context.Context, c auth.Caller, folder string) (actions.SnapshotMade, error)

	Plan(ctx context.Context, c auth.Caller, r PlanRequest) (Plan, error)
	GetPlan(ctx context.Context, c auth.Caller, id string) (Plan, error)
	Start(ctx context.Context, c auth.Caller, plan string, s Start) (Operation, error)
	Operations(ctx context.Context, c auth.Caller) ([]Operation, error)
	Operation(ctx context.Context, c auth.Caller, id string) (Operation, error)
	Order(ctx context.Context, c auth.Caller, id string, o Order) (Operation, error)
	Outcomes(ctx context.Context, c auth.Caller, id, only, after string, limit int) (Outcomes, error)
	Watch(ctx context.Context, c auth.Caller) <-chan Tick
}
