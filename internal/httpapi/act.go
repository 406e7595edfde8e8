package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
)

// mostEdit bounds an edit, in base64, and editedAtOnce how many are made.
const (
	mostEdit     = 24 << 20
	editedAtOnce = 8
)

// does is a route that changes something, once for each idempotency key.
func (a *API) does(method, path, id, summary string) huma.Operation {
	return huma.Operation{Method: method, Path: v1 + path, OperationID: id, Summary: summary, Tags: []string{"Act"},
		Middlewares: huma.Middlewares{a.again.once},
		Parameters: []*huma.Param{{Name: keyHeader, In: "header", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: ptr(mostKey)},
			Description: "Of the caller's choosing. The same key and request again within 24 h is answered as the first time, and not done again."}}}
}

func ptr[T any](v T) *T { return &v }

func (a *API) act() {
	handle(a, a.does(http.MethodPost, "/act", "act", "Replay, discard, restore or copy messages that are named"),
		func(ctx context.Context, c auth.Caller, in *body[actions.Act]) (actions.Acted, error) {
			return a.Console.Act(ctx, c, in.Body)
		})

	edit := a.does(http.MethodPost, "/edit", "edit", "Replace a message by an edited one, or show the difference")
	edit.MaxBodyBytes = mostEdit
	edit.Middlewares = append(huma.Middlewares{role(auth.Editor), few(editedAtOnce)}, edit.Middlewares...)
	handle(a, edit, func(ctx context.Context, c auth.Caller, in *body[actions.EditRequest]) (actions.Edited, error) {
		return a.Console.Edit(ctx, c, in.Body)
	})

	handleNothing(a, a.does(http.MethodPut, "/groups/{id}/note", "note", "Set a group's note"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Body Note
	}) error {
		return a.Console.NoteGroup(ctx, c, in.ID, in.Body.Note)
	})

	handleNothing(a, a.does(http.MethodPut, "/queues/{queue}/pause", "pause", "Pause the retries of a queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue string `path:"queue" maxLength:"255"`
		Body  Reason
	}) error {
		return a.Console.PauseQueue(ctx, c, in.Queue, in.Body.Reason)
	})
	handleNothing(a, a.does(http.MethodDelete, "/queues/{queue}/pause", "resume", "Resume the retries of a queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue  string `path:"queue" maxLength:"255"`
		Reason string `query:"reason" maxLength:"500" doc:"Why, for the audit log."`
	}) error {
		return a.Console.ResumeQueue(ctx, c, in.Queue, in.Reason)
	})
	handleNothing(a, a.does(http.MethodPut, "/queues/{queue}/breaker", "breaker", "Set a queue's circuit breaker, or let it find out by itself again"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue string `path:"queue" maxLength:"255"`
		Body  Breaker
	}) error {
		return a.Console.Breaker(ctx, c, in.Queue, in.Body.Force, in.Body.Reason)
	})
}

func (a *API) operations() {
	tag := func(op huma.Operation) huma.Operation {
		op.Tags = []string{"Operations"}
		return op
	}
	get := func(path, id, summary string) huma.Operation {
		return huma.Operation{Method: http.MethodGet, Path: v1 + path, OperationID: id, Summary: summary, Tags: []string{"Operations"}}
	}
	plan := tag(a.does(http.MethodPost, "/plans", "plan", "What an action on all that a query finds would do; the messages are frozen"))
	plan.Metadata = map[string]any{"within": planWithin}
	handle(a, plan, func(ctx context.Context, c auth.Caller, in *body[operations.PlanRequest]) (operations.Plan, error) {
		return a.Console.Plan(ctx, c, in.Body)
	})
	handle(a, get("/plans/{id}", "planned", "A plan that was made"), func(ctx context.Context, c auth.Caller, in *Named) (operations.Plan, error) {
		return a.Console.GetPlan(ctx, c, in.ID)
	})
	handle(a, tag(a.does(http.MethodPost, "/plans/{id}/start", "start", "Make an operation of a plan, and begin")), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Body operations.Start
	}) (operations.Operation, error) {
		return a.Console.Start(ctx, c, in.ID, in.Body)
	})
	handle(a, get("/operations", "operations", "Operations, newest first"), func(ctx context.Context, c auth.Caller, _ *none) (Operations, error) {
		o, err := a.Console.Operations(ctx, c)
		return Operations{list(o)}, err
	})
	handle(a, get("/operations/{id}", "operation", "How far an operation is"), func(ctx context.Context, c auth.Caller, in *Named) (operations.Operation, error) {
		return a.Console.Operation(ctx, c, in.ID)
	})
	handle(a, tag(a.does(http.MethodPost, "/operations/{id}/{order}", "order", "Pause, resume or cancel an operation")), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Order operations.Order `path:"order" enum:"pause,resume,cancel"`
	}) (operations.Operation, error) {
		return a.Console.Order(ctx, c, in.ID, in.Order)
	})
	handle(a, get("/operations/{id}/outcomes", "outcomes", "What came of each message of an operation"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Paged
	}) (operations.Outcomes, error) {
		o, err := a.Console.Outcomes(ctx, c, in.ID, in.After, in.Limit)
		o.Outcomes = list(o.Outcomes)
		return o, err
	})
}
