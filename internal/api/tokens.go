package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/auth"
)

func callerOf(ctx context.Context) auth.Caller {
	c, _ := ctx.Value(callerKey{}).(auth.Caller)
	return c
}

type callerKey struct{}

// WithCaller puts a caller into a context.
func WithCaller(ctx context.Context, c auth.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callers are the routes about who calls.
func (a *API) callers() {
	me := huma.Operation{Method: http.MethodGet, Path: v1 + "/me", OperationID: "me", Summary: "Who the service takes the caller for", Tags: []string{"Callers"}}
	handle(a, me, func(_ context.Context, c auth.Caller, _ *none) (Me, error) {
		return Me{Name: c.Name, How: c.How, Role: c.Role.String(), Queues: c.Queues, ReadOnly: c.ReadOnly}, nil
	})
}
