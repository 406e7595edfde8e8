package httpapi

import (
	"context"
	"net/http"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
)

// Adoptions is a list of them.
type Adoptions struct {
	Adoptions []actions.Adoption `json:"adoptions"`
}

func (a *API) adoptRoutes() {
	handle(a, route(http.MethodPost, "/adoptions/preview", "previewAdopt", "Act", "Look at a dead-letter queue, and tell what adopting it would do"),
		func(ctx context.Context, c auth.Caller, in *body[actions.AdoptRequest]) (actions.AdoptPreview, error) {
			return a.Console.PreviewAdopt(ctx, c, in.Body)
		})
	handle(a, a.changingRoute(http.MethodPost, "/adoptions", "adopt", "Act", "Adopt a dead-letter queue: its messages are stored, parked"),
		func(ctx context.Context, c auth.Caller, in *body[actions.AdoptRequest]) (actions.Adoption, error) {
			return a.Console.Adopt(ctx, c, in.Body)
		})
	handle(a, route(http.MethodGet, "/adoptions", "adoptions", "Show", "The queues that are adopted, or were"),
		func(ctx context.Context, c auth.Caller, _ *none) (Adoptions, error) {
			all, err := a.Console.Adoptions(ctx, c)
			return Adoptions{all}, err
		})
	handleNothing(a, a.changingRoute(http.MethodDelete, "/adoptions/{queue}", "stopAdopting", "Act", "Stop adopting a queue; what was adopted stays"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue  string `path:"queue" maxLength:"255"`
		Reason string `query:"reason" maxLength:"500" doc:"Why, for the audit log."`
	}) error {
		return a.Console.StopAdopting(ctx, c, in.Queue, in.Reason)
	})
}

// PreviewAdopt tells what adopting a queue would do.
func (c Client) PreviewAdopt(ctx context.Context, r actions.AdoptRequest) (p actions.AdoptPreview, err error) {
	return p, c.call(ctx, http.MethodPost, v1+"/adoptions/preview", nil, r, &p)
}

// Adopt begins to adopt a queue.
func (c Client) Adopt(ctx context.Context, r actions.AdoptRequest) (a actions.Adoption, err error) {
	return a, c.call(ctx, http.MethodPost, v1+"/adoptions", nil, r, &a)
}

// Adoptions are the queues that are adopted, or were.
func (c Client) Adoptions(ctx context.Context) (all Adoptions, err error) {
	return all, c.call(ctx, http.MethodGet, v1+"/adoptions", nil, nil, &all)
}

// StopAdopting ends the adoption of a queue.
func (c Client) StopAdopting(ctx context.Context, queue, reason string) error {
	return c.call(ctx, http.MethodDelete, v1+"/adoptions"+escaped(queue), values("reason", reason), nil, nil)
}
