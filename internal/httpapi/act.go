package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
)

// mostEdit bounds an edit, in base64.
const mostEdit = 24 << 20

func (a *API) actRoutes() {
	handle(a, route(http.MethodPost, "/act", "act", "Act", "Replay, discard, restore or copy messages that are named"),
		func(ctx context.Context, c auth.Caller, in *body[actions.Act]) (actions.Acted, error) {
			return a.Console.Act(ctx, c, in.Body)
		})

	edit := route(http.MethodPost, "/edit", "edit", "Act", "Replace a message by an edited one, or show the difference")
	edit.MaxBodyBytes = mostEdit
	edit.Middlewares = huma.Middlewares{requireRole(auth.Editor)}
	handle(a, edit, func(ctx context.Context, c auth.Caller, in *body[actions.EditRequest]) (actions.Edited, error) {
		return a.Console.Edit(ctx, c, in.Body)
	})

	handleNothing(a, route(http.MethodPut, "/groups/{id}/note", "note", "Act", "Set a group's note"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Body Note
	}) error {
		return a.Console.NoteGroup(ctx, c, in.ID, in.Body.Note)
	})

	handleNothing(a, route(http.MethodPut, "/queues/{queue}/pause", "pause", "Act", "Pause the retries of a queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue string `path:"queue" maxLength:"255"`
		Body  Reason
	}) error {
		return a.Console.PauseQueue(ctx, c, in.Queue, in.Body.Reason)
	})
	handleNothing(a, route(http.MethodDelete, "/queues/{queue}/pause", "resume", "Act", "Resume the retries of a queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue  string `path:"queue" maxLength:"255"`
		Reason string `query:"reason" maxLength:"500" doc:"Why, for the audit log."`
	}) error {
		return a.Console.ResumeQueue(ctx, c, in.Queue, in.Reason)
	})
	handleNothing(a, route(http.MethodPut, "/queues/{queue}/breaker", "breaker", "Act", "Set a queue's circuit breaker, or let it find out by itself again"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue string `path:"queue" maxLength:"255"`
		Body  Breaker
	}) error {
		return a.Console.Breaker(ctx, c, in.Queue, in.Body.Force, in.Body.Reason)
	})
}
