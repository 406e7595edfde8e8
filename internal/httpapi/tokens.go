package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// callerRoutes are the routes about who calls.
func (a *API) callerRoutes() {
	me := huma.Operation{Method: http.MethodGet, Path: v1 + "/me", OperationID: "me", Summary: "Who the service takes the caller for", Tags: []string{"Callers"}}
	handle(a, me, func(_ context.Context, c auth.Caller, _ *none) (Me, error) {
		return Me{Name: c.Name, How: c.How, Role: c.Role.String(), Queues: c.Queues, ReadOnly: c.ReadOnly}, nil
	})

	a.handle("POST "+auth.SignInPath, http.HandlerFunc(a.Guard.SignIn))
	a.handle("POST "+auth.SignOutPath, http.HandlerFunc(a.Guard.SignOut))

	op := func(method, path, id, summary string) huma.Operation {
		return huma.Operation{Method: method, Path: v1 + path, OperationID: id, Summary: summary, Tags: []string{"Callers"}}
	}
	handle(a, op(http.MethodGet, "/tokens", "tokens", "Tokens, without their secrets"), func(ctx context.Context, c auth.Caller, _ *none) (TokenList, error) {
		t, err := a.Tokens.List(ctx, c)
		return TokenList{list(t)}, err
	})
	// No idempotency key: the answer would be kept, and the secret in it.
	handle(a, op(http.MethodPost, "/tokens", "make-token", "Make a token; its secret is shown this once"), func(ctx context.Context, c auth.Caller, in *body[NewToken]) (MadeToken, error) {
		n := auth.NewToken{Name: in.Body.Name, Role: in.Body.Role, Queues: in.Body.Queues}
		if in.Body.Expires != nil {
			if n.Lasts = in.Body.Expires.Sub(a.Now()); n.Lasts <= 0 {
				return MadeToken{}, fmt.Errorf("%w: it would have expired already", inspect.ErrInvalid)
			}
		}
		secret, made, err := a.Tokens.Create(ctx, c, n)
		return MadeToken{made, secret}, err
	})
	handleNothing(a, op(http.MethodDelete, "/tokens/{id}", "revoke-token", "End a token and its sessions at once"), func(ctx context.Context, c auth.Caller, in *Named) error {
		return a.Tokens.Revoke(ctx, c, in.ID)
	})
}
