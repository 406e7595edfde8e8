package httpapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// Public tells whether a request needs no sign-in: whether the service lives and is ready,
// and what its API looks like.
func Public(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == v1+"/openapi.json"
}

// Unsaid is the text of /readyz for callers without permission to know what is wrong.
const Unsaid = "not ready: who signs in sees why"

// healthRoutes are for machines: load balancers, Prometheus.
func (a *API) healthRoutes() {
	const text = "text/plain; charset=utf-8"
	a.handle("GET /healthz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", text)
		fmt.Fprintln(w, "ok")
	}))
	a.handle("GET /readyz", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", text)
		ready := a.Ready()
		c := auth.From(r.Context())
		if ready {
			fmt.Fprintln(w, "ready")
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if c.Role == auth.NoRole || c.Queues != nil { // what is wrong tells of queues
			if !ready {
				fmt.Fprintln(w, Unsaid)
			}
			return
		}
		for _, p := range slices.Concat(condition.Lines(a.Conditions()), a.Notices()) {
			fmt.Fprintln(w, p)
		}
	}))
	a.handle("GET /metrics", auth.Whole(a.Metrics))
}

// Query is a request that chooses messages.
type Query struct {
	Q string `query:"q" maxLength:"4096" doc:"In the query language; left out: all." example:"queue:orders.* state:parked age:>2h"`
}

// Paged is a request for a piece of a list.
type Paged struct {
	After string `query:"after" maxLength:"1024" doc:"The page before's after; left out: from the start."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Named is a request about one thing.
type Named struct {
	ID string `path:"id" maxLength:"256"`
}

func (a *API) showRoutes() {
	handle(a, route(http.MethodGet, "/overview", "overview", "See", "The state of the service on one page"), func(ctx context.Context, c auth.Caller, _ *none) (inspect.Overview, error) {
		return a.Console.Overview(ctx, c)
	})
	handle(a, route(http.MethodGet, "/messages", "messages", "See", "Messages that a query finds, latest first: by when each is due, or was parked or retried"), func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Paged
	}) (inspect.Page, error) {
		return a.Console.Search(ctx, c, in.Q, in.After, in.Limit)
	})
	handle(a, route(http.MethodGet, "/messages/{id}", "message", "See", "All that is known of a message but its raw body"), func(ctx context.Context, c auth.Caller, in *Named) (inspect.Detail, error) {
		return a.Console.Message(ctx, c, in.ID)
	})
	handle(a, route(http.MethodGet, "/count", "count", "See", "How many messages a query finds"), func(ctx context.Context, c auth.Caller, in *Query) (Count, error) {
		n, exact, err := a.Console.Count(ctx, c, in.Q)
		return Count{n, exact}, err
	})
	handle(a, route(http.MethodGet, "/groups", "groups", "See", "Groups of failures among what a query finds"), func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Paged
	}) (inspect.GroupPage, error) {
		return a.Console.Groups(ctx, c, in.Q, in.After, in.Limit)
	})
	handle(a, route(http.MethodGet, "/queues", "queues", "See", "Work queues: what is kept for them, and what RabbitMQ says"), func(ctx context.Context, c auth.Caller, in *Paged) (Queues, error) {
		q, after, err := a.Console.Queues(ctx, c, in.After, in.Limit)
		return Queues{q, after}, err
	})
	handle(a, route(http.MethodGet, "/ledger", "ledger", "See", "How many messages came for each queue, and what became of them"), func(ctx context.Context, c auth.Caller, in *struct {
		Paged
		Recount bool `query:"recount" doc:"Count what is kept one by one first: the more there is, the longer it takes."`
	}) (inspect.Ledger, error) {
		return a.Console.Ledger(ctx, c, in.Recount, in.After, in.Limit)
	})
	handle(a, route(http.MethodGet, "/policies", "policies", "See", "Policies in force, and the waits each gives"), func(ctx context.Context, c auth.Caller, _ *none) (Policies, error) {
		p, err := a.Console.Policies(ctx, c)
		return Policies{p}, err
	})
	handle(a, route(http.MethodGet, "/audit", "audit", "See", "The audit log, newest first"), func(ctx context.Context, c auth.Caller, in *Paged) (AuditPage, error) {
		e, after, err := a.Console.AuditLog(ctx, c, in.After, in.Limit)
		return AuditPage{e, after}, err
	})
}

// mostDecode bounds a body to read.
const mostDecode = 24 << 20

func (a *API) decodeRoute() {
	op := route(http.MethodPost, "/decode", "decode", "See", "Read a body as one of a message's is read")
	op.MaxBodyBytes = mostDecode
	handle(a, op, func(ctx context.Context, c auth.Caller, in *body[DecodeRequest]) (*decode.Result, error) {
		b := in.Body
		if b.Queue != "" && !c.Sees(b.Queue) { // its schema is not theirs to see
			return nil, fmt.Errorf("%w: the queue %q", inspect.ErrNotFound, b.Queue)
		}
		return a.Decoder.Decode(ctx, decode.Body{Bytes: b.Body, Queue: b.Queue, ContentType: b.ContentType, ContentEncoding: b.ContentEncoding, Type: b.Type}), nil
	})
}

// csv writes what a query finds as rows, a page at a time.
func (a *API) csv(ctx context.Context, c auth.Caller, query string, w io.Writer) (n int64, err error) {
	out := csv.NewWriter(w)
	columns, row := inspect.CSV[inspect.Message]()
	for after := ""; ; {
		p, err := a.Console.Search(ctx, c, query, after, 1000)
		if err != nil {
			return n, err
		}
		if after == "" {
			_ = out.Write(columns)
		}
		for i := range p.Messages {
			_ = out.Write(row(p.Messages[i]))
			n++
		}
		if out.Flush(); out.Error() != nil {
			return n, out.Error()
		}
		if after = p.After; after == "" {
			return n, nil
		}
	}
}

const (
	// heartbeat is how often a comment is sent while nothing changes, and the watcher's
	// permission is checked again.
	heartbeat = 15 * time.Second
	// watchFor is how long one stream lasts. The client then asks again by itself.
	watchFor = 10 * time.Minute
)

// EndStreams ends all that would not end by itself: for http.Server's
// RegisterOnShutdown.
func (a *API) EndStreams() { a.closeOnce.Do(func() { close(a.closing) }) }

func (a *API) liveRoute() {
	op := route(http.MethodGet, "/live", "live", "See", "What has changed, as server-sent events")
	op.Description = "Each event's data is a Tick as JSON, at most one a second. A stream ends with the event `again` after a while; ask again then."
	a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[operations.Tick](), true, "")
	stream(a, op, []string{typeEvents}, func(ctx context.Context, c auth.Caller, _ *none, w http.ResponseWriter, _ *http.Request) error {
		if err := c.May(auth.Viewer, ""); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, watchFor)
		defer cancel()
		h := w.Header()
		h.Set("Content-Type", typeEvents)
		h.Set("X-Accel-Buffering", "no") // a proxy that buffers would delay it
		out := http.NewResponseController(w)
		send := func(format string, args ...any) error {
			if _, err := fmt.Fprintf(w, format, args...); err != nil {
				return err
			}
			return out.Flush()
		}
		if err := send("retry: 2000\n: redrive\n\n"); err != nil {
			return nil // gone; no client is left to answer
		}
		beat := time.NewTicker(heartbeat)
		defer beat.Stop()
		ticks := a.Console.Watch(ctx, c)
		for {
			var err error
			select {
			case t, ok := <-ticks:
				if !ok {
					if ctx.Err() != nil { // else the store does not answer, and asking again at once would not help
						_ = send("event: again\ndata: {}\n\n")
					}
					return nil
				}
				var data []byte
				if data, err = json.Marshal(t); err == nil {
					err = send("event: tick\ndata: %s\n\n", data)
				}
			case <-beat.C:
				if err = auth.Still(ctx); err == nil {
					err = send(": still here\n\n")
				}
			case <-a.closing:
				return nil
			}
			if err != nil {
				return nil
			}
		}
	})
}
