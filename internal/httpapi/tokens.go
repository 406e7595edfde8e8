package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// callerRoutes are the routes about who calls.
func (a *API) callerRoutes() {
	handle(a, route(http.MethodGet, "/me", "me", "Callers", "Who the service takes the caller for"), func(_ context.Context, c auth.Caller, _ *none) (Me, error) {
		return Me{Name: c.Name, How: c.How, Role: c.Role.String(), Queues: c.Queues, ReadOnly: c.ReadOnly}, nil
	})

	a.handle("POST "+auth.SignInPath, http.HandlerFunc(a.Guard.SignIn))
	a.handle("POST "+auth.SignOutPath, http.HandlerFunc(a.Guard.SignOut))

	handle(a, route(http.MethodGet, "/tokens", "tokens", "Callers", "Tokens, without their secrets"), func(ctx context.Context, c auth.Caller, _ *none) (TokenList, error) {
		t, err := a.Tokens.List(ctx, c)
		return TokenList{t}, err
	})
	handle(a, route(http.MethodPost, "/tokens", "make-token", "Callers", "Make a token; its secret is shown this once"), func(ctx context.Context, c auth.Caller, in *body[NewToken]) (MadeToken, error) {
		n := auth.NewToken{Name: in.Body.Name, Role: in.Body.Role, Queues: in.Body.Queues}
		if in.Body.Expires != nil {
			if n.Lasts = in.Body.Expires.Sub(a.Now()); n.Lasts <= 0 {
				return MadeToken{}, fmt.Errorf("%w: it would have expired already", inspect.ErrInvalid)
			}
		}
		secret, made, err := a.Tokens.Create(ctx, c, n)
		return MadeToken{made, secret}, err
	})
	handleNothing(a, route(http.MethodDelete, "/tokens/{id}", "revoke-token", "Callers", "End a token and its sessions at once"), func(ctx context.Context, c auth.Caller, in *Named) error {
		return a.Tokens.Revoke(ctx, c, in.ID)
	})
}
