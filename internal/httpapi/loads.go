package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
)

// load is what a request holds in memory while it is served, its client's slowness included.
type load int

const (
	small    load = iota // some kilobytes
	list                 // a page of a list, or a request of up to 1 MiB
	message              // a message with its body, decoded
	download             // a body
	uploads              // a body that is sent, and what is made of it
	export               // some messages at a time: see actions.Actions.Export
	imports              // some lines at a time
	watch                // a stream of changes
)

// Bounds are how many requests of each load are served at once. The virtual hosts of a process
// share them, as they share its memory.
type Bounds map[load]*background.Places

// NewBounds makes Bounds with which any clients together hold a few hundred MiB.
func NewBounds() Bounds {
	const wait = 30 * time.Second
	return Bounds{
		list:     {What: "requests for lists", All: 12, Own: 4, Wait: wait},
		message:  {What: "requests for messages", All: 4, Own: 2, Wait: wait},
		download: {What: "downloads of bodies", All: 4, Own: 2, Wait: wait},
		uploads:  {What: "requests with a body to decode or edit", All: 2, Own: 1, Wait: wait},
		export:   {What: "exports", All: 6, Own: 2},
		imports:  {What: "imports", All: 4, Own: 2},
		watch:    {What: "live streams", All: 100, Own: 20},
	}
}

// loads has each route, of the API and of the page.
var loads = map[string]load{
	"GET /healthz": small, "GET /readyz": small, "GET /metrics": list,
	"POST " + auth.SignInPath: small, "POST " + auth.SignOutPath: small,

	"GET /api/v1/openapi.json": list, "GET /api/v1/me": small, "GET /api/v1/overview": list, "GET /api/v1/policies": list,
	"GET /api/v1/messages": list, "GET /api/v1/count": small, "GET /api/v1/groups": list, "GET /api/v1/queues": list,
	"GET /api/v1/ledger": list, "GET /api/v1/audit": list, "GET /api/v1/live": watch,
	"GET /api/v1/messages/{id}": message, "GET /api/v1/messages/{id}/body": download,
	"GET /api/v1/export": export, "POST /api/v1/import": imports, "POST /api/v1/snapshot": list,
	"POST /api/v1/decode": uploads, "POST /api/v1/edit": uploads, "POST /api/v1/act": list,
	"PUT /api/v1/groups/{id}/note": list, "PUT /api/v1/queues/{queue}/pause": list, "DELETE /api/v1/queues/{queue}/pause": small,
	"PUT /api/v1/queues/{queue}/breaker": list,
	"POST /api/v1/plans":                 list, "GET /api/v1/plans/{id}": list, "POST /api/v1/plans/{id}/start": list,
	"GET /api/v1/operations": list, "GET /api/v1/operations/{id}": list, "GET /api/v1/operations/{id}/outcomes": list,
	"POST /api/v1/operations/{id}/{order}": list,
	"GET /api/v1/tokens":                   list, "POST /api/v1/tokens": list, "DELETE /api/v1/tokens/{id}": small,

	"GET /signin": small, "GET /assets/{version}/{name}": small, "GET /": small, "GET /help": small, "GET /{$}": list,
	"GET /messages": list, "GET /messages/new": list, "GET /messages/count": small, "GET /messages/check": small,
	"GET /messages/{id}": message, "GET /messages/{id}/body": download, "GET /messages/export": export,
	"GET /messages/{id}/edit": uploads, "POST /messages/{id}/edit": uploads,
	"POST /messages/act": list, "POST /messages/plan": list,
	"GET /groups": list, "POST /groups/{id}/note": list,
	"GET /queues": list, "POST /queues/pause": list, "POST /queues/breaker": list, "POST /queues/resume": list,
	"GET /operations": list, "GET /operations/{id}": list, "POST /operations/{id}/{order}": list,
	"GET /plans/{id}": list, "POST /plans/{id}/start": list,
	"GET /policies": list, "GET /audit": list, "GET /health": list,
}

// bounded serves as many requests of a route at once as its load allows. Whoever is not signed in
// is refused without that, before anything is read.
func (a *API) bounded(pattern string, h http.Handler) http.Handler {
	l, ok := loads[pattern]
	if !ok {
		panic("httpapi: loads does not have the route " + pattern)
	}
	places := a.Bounds[l]
	if places == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := auth.From(r.Context())
		if c.Role == auth.NoRole {
			h.ServeHTTP(w, r)
			return
		}
		leave, err := places.Enter(r.Context(), c.ID(), 1)
		if err != nil {
			p := problemOf(err)
			if strings.HasPrefix(r.URL.Path, "/api/") {
				writeProblem(w, p)
			} else {
				w.Header().Set("Retry-After", "5")
				http.Error(w, p.Detail+"; try again in a moment", p.Status)
			}
			return
		}
		defer leave()
		h.ServeHTTP(w, r)
	})
}
