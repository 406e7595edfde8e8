package httpapi

import (
	"context"
	"net/http"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
)

func (a *API) operationRoutes() {
	plan := route(http.MethodPost, "/plans", "plan", "Operations", "What an action on all that a query finds would do; the messages are frozen")
	plan.Metadata = map[string]any{"timeout": planTimeout}
	handle(a, plan, func(ctx context.Context, c auth.Caller, in *body[operations.PlanRequest]) (operations.Plan, error) {
		return a.Console.Plan(ctx, c, in.Body)
	})
	handle(a, route(http.MethodGet, "/plans/{id}", "planned", "Operations", "A plan that was made"), func(ctx context.Context, c auth.Caller, in *Named) (operations.Plan, error) {
		return a.Console.GetPlan(ctx, c, in.ID)
	})
	handle(a, route(http.MethodPost, "/plans/{id}/start", "start", "Operations", "Make an operation of a plan, and begin"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Body operations.Start
	}) (operations.Operation, error) {
		return a.Console.Start(ctx, c, in.ID, in.Body)
	})
	handle(a, route(http.MethodGet, "/operations", "operations", "Operations", "Operations, newest first"), func(ctx context.Context, c auth.Caller, _ *none) (Operations, error) {
		o, err := a.Console.Operations(ctx, c)
		return Operations{o}, err
	})
	handle(a, route(http.MethodGet, "/operations/{id}", "operation", "Operations", "How far an operation is"), func(ctx context.Context, c auth.Caller, in *Named) (operations.Operation, error) {
		return a.Console.Operation(ctx, c, in.ID)
	})
	handle(a, route(http.MethodPost, "/operations/{id}/{order}", "order", "Operations", "Pause, resume or cancel an operation"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Order operations.Order `path:"order" enum:"pause,resume,cancel"`
	}) (operations.Operation, error) {
		return a.Console.Order(ctx, c, in.ID, in.Order)
	})
	handle(a, route(http.MethodGet, "/operations/{id}/outcomes", "outcomes", "Operations", "What came of each message of an operation"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Paged
	}) (operations.Outcomes, error) {
		return a.Console.Outcomes(ctx, c, in.ID, in.After, in.Limit)
	})
}
