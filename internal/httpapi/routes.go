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
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// Public reports whether a request needs no sign-in: whether the service lives and is ready,
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
	Q string `query:"q" maxLength:"4096" doc:"A query; left out: all." example:"queue:orders.* state:parked age:>2h"`
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
	handle(a, route(http.MethodGet, "/overview", "overview", "See", "The state of the service on one page"),
		func(ctx context.Context, c auth.Caller, _ *none) (inspect.Overview, error) {
			return a.Console.Overview(ctx, c)
		})
	handle(a, route(http.MethodGet, "/messages", "messages", "See",
		"Messages that a query finds, latest first; of waiting ones alone, the soonest due first"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Query
			Paged
			Columns string `query:"columns" maxLength:"1024" doc:"Names of fields." example:"queue,body.customer"`
		}) (inspect.Page, error) {
			return a.Console.Search(ctx, c, in.Q, in.After, in.Limit, in.Columns)
		})
	handle(a, route(http.MethodGet, "/messages/{id}", "message", "See",
		"All that is known of a message but its raw body"),
		func(ctx context.Context, c auth.Caller, in *Named) (inspect.Detail, error) {
			return a.Console.Message(ctx, c, in.ID)
		})
	handle(a, route(http.MethodPost, "/messages/{id}/show", "show", "See",
		"A message unmasked, for a role in auth.show; the audit log has the reason"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Named
			Body ShowReason
		}) (inspect.Detail, error) {
			return a.Console.Show(ctx, c, in.ID, in.Body.Reason)
		})
	handle(a, route(http.MethodGet, "/count", "count", "See", "How many messages a query finds"),
		func(ctx context.Context, c auth.Caller, in *Query) (Count, error) {
			n, exact, err := a.Console.Count(ctx, c, in.Q)
			return Count{n, exact}, err
		})
	handle(a, route(http.MethodGet, "/groups", "groups", "See", "Groups of failures among what a query finds"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Query
			State string `query:"state" enum:"open,acknowledged,ignored,resolved,all" doc:"Left out: the first two."`
			By    string `query:"by" enum:"queue,error" doc:"error: one error in several queues is one group."`
			Paged
		}) (inspect.GroupPage, error) {
			if in.By == "error" {
				return a.Console.Errors(ctx, c, in.Q, in.State, in.After, in.Limit)
			}
			return a.Console.Groups(ctx, c, in.Q, in.State, in.After, in.Limit)
		})
	handle(a, route(http.MethodGet, "/groups/{id}", "group", "See",
		"A group, or an error in all queues: the newest, and what its messages have in common"),
		func(ctx context.Context, c auth.Caller, in *Named) (inspect.GroupDetail, error) {
			return a.Console.Group(ctx, c, in.ID)
		})
	handle(a, route(http.MethodGet, "/queues", "queues", "See",
		"Work queues: what is kept for them, and what RabbitMQ says"),
		func(ctx context.Context, c auth.Caller, in *Paged) (Queues, error) {
			q, after, err := a.Console.Queues(ctx, c, in.After, in.Limit)
			all := Queues{Queues: q, After: after}
			if err == nil && in.After == "" {
				var last inspect.Checkup
				last, err = a.Console.LastCheckup(ctx, c)
				all.Forgotten = last.Forgotten
			}
			return all, err
		})
	handle(a, route(http.MethodGet, "/queues/{queue}", "queue", "See",
		"A work queue: what waits, what failed and why, and what its policy does"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Queue string `path:"queue" maxLength:"255"`
		}) (inspect.QueueDetail, error) {
			return a.Console.Queue(ctx, c, in.Queue)
		})
	handle(a, route(http.MethodGet, "/ledger", "ledger", "See",
		"How many messages came for each queue, and what became of them"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Paged
			Recount bool `query:"recount" doc:"Count what is kept one by one first, which may take long."`
		}) (inspect.Ledger, error) {
			return a.Console.Ledger(ctx, c, in.Recount, in.After, in.Limit)
		})
	handle(a, route(http.MethodGet, "/policies", "policies", "See", "Policies in force, and the waits each gives"),
		func(ctx context.Context, c auth.Caller, _ *none) (Policies, error) {
			p, err := a.Console.Policies(ctx, c)
			return Policies{p}, err
		})
	handle(a, route(http.MethodGet, "/audit", "audit", "See", "The audit log, newest first"),
		func(ctx context.Context, c auth.Caller, in *struct {
			inspect.AuditFilter
			Paged
		}) (AuditPage, error) {
			e, after, err := a.Console.AuditLog(ctx, c, in.AuditFilter, in.After, in.Limit)
			return AuditPage{e, after}, err
		})
	handleNothing(a, route(http.MethodPost, "/audit", "report", "Act",
		"Report what you did at RabbitMQ without the service, for its audit log"),
		func(ctx context.Context, c auth.Caller, in *body[actions.Report]) error {
			return a.Console.Report(ctx, c, in.Body)
		})
}

// maxDecode bounds a body to read.
const maxDecode = 24 << 20

func (a *API) decodeRoute() {
	op := route(http.MethodPost, "/decode", "decode", "See", "Read a body as one of a message's is read")
	op.MaxBodyBytes = maxDecode
	handle(a, op, func(ctx context.Context, c auth.Caller, in *body[DecodeRequest]) (*decode.Result, error) {
		b := in.Body
		if b.Queue != "" && !c.Sees(b.Queue) { // its schema is not theirs to see
			return nil, fmt.Errorf("%w: the queue %q", inspect.ErrNotFound, b.Queue)
		}
		return a.Decoder.Decode(ctx, decode.Body{Bytes: b.Body, Queue: b.Queue, ContentType: b.ContentType,
			ContentEncoding: b.ContentEncoding, Type: b.Type}), nil
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
	op.Description = "Each event's data is a Tick as JSON, at most one a second. A stream ends with the event " +
		"`again` after a while; ask again then."
	a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[operations.Tick](), true, "")
	stream(a, op, []string{typeEvents},
		func(ctx context.Context, c auth.Caller, _ *none, w http.ResponseWriter, _ *http.Request) error {
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
				select { // before a tick that has come, too
				case <-a.closing:
					return nil
				default:
				}
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

// maxEdit bounds an edit, in base64.
const maxEdit = 24 << 20

func (a *API) actRoutes() {
	handle(a, route(http.MethodPost, "/act", "act", "Act", "Act on messages that are named, by a verb"),
		func(ctx context.Context, c auth.Caller, in *body[actions.Act]) (actions.Acted, error) {
			return a.Console.Act(ctx, c, in.Body)
		})

	edit := route(http.MethodPost, "/edit", "edit", "Act", "Replace a message by an edited one, or show the difference")
	edit.MaxBodyBytes = maxEdit
	edit.Middlewares = huma.Middlewares{requireRole(auth.Editor)}
	handle(a, edit, func(ctx context.Context, c auth.Caller, in *body[actions.EditRequest]) (actions.Edited, error) {
		return a.Console.Edit(ctx, c, in.Body)
	})

	handleNothing(a, route(http.MethodPut, "/groups/{id}/note", "note", "Act", "Set a group's or error's note"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Named
			Body Note
		}) error {
			return a.Console.NoteGroup(ctx, c, in.ID, in.Body.Note)
		})

	handleNothing(a, route(http.MethodPost, "/groups/{id}/state", "group-state", "Act",
		"Set a group's or error's state"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Named
			Body GroupState
		}) error {
			return a.Console.SetGroupState(ctx, c, in.ID, in.Body.State, in.Body.Note)
		})

	handleNothing(a, route(http.MethodPut, "/queues/{queue}/replays", "allow-replays", "Act",
		"Allow replays to a queue that is not enrolled"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue string `path:"queue" maxLength:"255"`
		Body  Reason
	}) error {
		return a.Console.AllowReplays(ctx, c, in.Queue, in.Body.Reason)
	})
	handleNothing(a, route(http.MethodPut, "/queues/{queue}/pause", "pause", "Act", "Pause the retries of a queue"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Queue string `path:"queue" maxLength:"255"`
			Body  Reason
		}) error {
			return a.Console.PauseQueue(ctx, c, in.Queue, in.Body.Reason)
		})
	handleNothing(a, route(http.MethodDelete, "/queues/{queue}/pause", "resume", "Act",
		"Resume the retries of a queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue  string `path:"queue" maxLength:"255"`
		Reason string `query:"reason" maxLength:"500" doc:"Why, for the audit log."`
	}) error {
		return a.Console.ResumeQueue(ctx, c, in.Queue, in.Reason)
	})
	handleNothing(a, route(http.MethodPut, "/queues/{queue}/breaker", "breaker", "Act",
		"Set a queue's circuit breaker, or let it find out by itself again"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Queue string `path:"queue" maxLength:"255"`
			Body  Breaker
		}) error {
			return a.Console.Breaker(ctx, c, in.Queue, in.Body.Force, in.Body.Reason)
		})
}

func (a *API) operationRoutes() {
	plan := route(http.MethodPost, "/plans", "plan", "Operations",
		"What an action on all that a query finds would do; the messages are frozen")
	plan.Metadata = map[string]any{"timeout": planTimeout}
	handle(a, plan,
		func(ctx context.Context, c auth.Caller, in *body[operations.PlanRequest]) (operations.Plan, error) {
			return a.Console.Plan(ctx, c, in.Body)
		})
	handle(a, route(http.MethodGet, "/plans/{id}", "planned", "Operations", "A plan that was made"),
		func(ctx context.Context, c auth.Caller, in *Named) (operations.Plan, error) {
			return a.Console.GetPlan(ctx, c, in.ID)
		})
	handle(a, route(http.MethodPost, "/plans/{id}/start", "start", "Operations",
		"Make an operation of a plan, and begin"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Body operations.Start
	}) (operations.Operation, error) {
		return a.Console.Start(ctx, c, in.ID, in.Body)
	})
	handle(a, route(http.MethodGet, "/dead-letter-queues", "dead-letter-queues", "Operations",
		"Dead-letter queues that could be adopted"),
		func(ctx context.Context, c auth.Caller, _ *none) (DeadLetterQueues, error) {
			q, err := a.Console.DeadLetterQueues(ctx, c)
			return DeadLetterQueues{q}, err
		})
	const follow = "/dead-letter-queues/{queue}/follow"
	handleNothing(a, route(http.MethodPut, follow, "follow", "Operations", "Follow a dead-letter queue"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Queue string `path:"queue" maxLength:"255"`
			Body  operations.FollowRequest
		}) error {
			return a.Console.Follow(ctx, c, in.Queue, in.Body)
		})
	handleNothing(a, route(http.MethodDelete, follow, "unfollow", "Operations", "Stop following a dead-letter queue"),
		func(ctx context.Context, c auth.Caller, in *struct {
			Queue  string `path:"queue" maxLength:"255"`
			Reason string `query:"reason" maxLength:"500"`
		}) error {
			return a.Console.Unfollow(ctx, c, in.Queue, in.Reason)
		})
	handle(a, route(http.MethodGet, "/operations", "operations", "Operations", "Operations, newest first"),
		func(ctx context.Context, c auth.Caller, _ *none) (Operations, error) {
			o, err := a.Console.Operations(ctx, c)
			return Operations{o}, err
		})
	handle(a, route(http.MethodGet, "/operations/{id}", "operation", "Operations", "How far an operation is"),
		func(ctx context.Context, c auth.Caller, in *Named) (operations.Operation, error) {
			return a.Console.Operation(ctx, c, in.ID)
		})
	handle(a, route(http.MethodPost, "/operations/{id}/{order}", "order", "Operations",
		"Pause, resume or cancel an operation"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Order operations.Order `path:"order" enum:"pause,resume,cancel"`
	}) (operations.Operation, error) {
		return a.Console.Order(ctx, c, in.ID, in.Order)
	})
	handle(a, route(http.MethodGet, "/operations/{id}/outcomes", "outcomes", "Operations",
		"What came of each message of an operation"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		Paged
	}) (operations.Outcomes, error) {
		return a.Console.Outcomes(ctx, c, in.ID, in.After, in.Limit)
	})
}

// callerRoutes are the routes about who calls.
func (a *API) callerRoutes() {
	handle(a, route(http.MethodGet, "/me", "me", "Callers", "Who the service takes the caller for"),
		func(_ context.Context, c auth.Caller, _ *none) (Me, error) {
			return Me{Name: c.Name, How: c.How, Role: c.Role.String(), Queues: c.Queues, ReadOnly: c.ReadOnly}, nil
		})

	a.handle("POST "+auth.SignInPath, http.HandlerFunc(a.Guard.SignIn))
	a.handle("POST "+auth.SignOutPath, http.HandlerFunc(a.Guard.SignOut))
	a.handle("POST "+auth.OIDCDevicePath, http.HandlerFunc(a.Guard.SignInDevice))

	handle(a, route(http.MethodGet, "/tokens", "tokens", "Callers", "Tokens, without their secrets"),
		func(ctx context.Context, c auth.Caller, _ *none) (TokenList, error) {
			t, err := a.Tokens.List(ctx, c)
			return TokenList{t}, err
		})
	handle(a, route(http.MethodPost, "/tokens", "make-token", "Callers", "Make a token; its secret is shown this once"),
		func(ctx context.Context, c auth.Caller, in *body[NewToken]) (MadeToken, error) {
			n := auth.NewToken{Name: in.Body.Name, Role: in.Body.Role, Queues: in.Body.Queues}
			if in.Body.Expires != nil {
				if n.Lasts = in.Body.Expires.Sub(a.Now()); n.Lasts <= 0 {
					return MadeToken{}, fmt.Errorf("%w: it would have expired already", inspect.ErrInvalid)
				}
			}
			secret, made, err := a.Tokens.Create(ctx, c, n)
			return MadeToken{made, secret}, err
		})
	handleNothing(a, route(http.MethodDelete, "/tokens/{id}", "revoke-token", "Callers",
		"End a token and its sessions at once"), func(ctx context.Context, c auth.Caller, in *Named) error {
		return a.Tokens.Revoke(ctx, c, in.ID)
	})
}

// maxImport bounds an import. It is streamed: the bound is for the disk.
const maxImport = 16 << 30

// stream registers a route that writes its answer piece by piece. An error before the first
// byte is sent as a Problem; after it, the connection is cut, so that no client takes a part
// for the whole.
func stream[I any](
	a *API, op huma.Operation, types []string,
	do func(ctx context.Context, c auth.Caller, in *I, w http.ResponseWriter, r *http.Request) error,
) {
	content := map[string]*huma.MediaType{}
	for _, t := range types {
		t, _, _ = strings.Cut(t, ";")
		content[t] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	op.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: content}}
	a.describe(&op)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			out := &firstByte{ResponseWriter: w}
			err := do(ctx, auth.From(ctx), in, out, r)
			switch {
			case err == nil:
			case !out.written:
				for _, name := range []string{"Content-Disposition", "Content-Length",
					"Trailer"} { // of what is not sent
					w.Header().Del(name)
				}
				writeProblem(w, a.failed(op, err).(*Problem))
			case ctx.Err() != nil:
				panic(http.ErrAbortHandler)
			default:
				a.Log.Error("an answer was cut off", "path", op.Path, "error", err)
				panic(http.ErrAbortHandler)
			}
		}}, nil
	})
}

// firstByte reports whether anything was written.
type firstByte struct {
	http.ResponseWriter
	written bool
}

func (b *firstByte) Write(p []byte) (int, error) {
	b.written = true
	return b.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (b *firstByte) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (a *API) transferRoutes() {
	stream(a, route(http.MethodGet, "/messages/{id}/body", "body", "Transfer", "A message's raw body, as a download"),
		[]string{"application/octet-stream"},
		func(ctx context.Context, c auth.Caller, in *Named, w http.ResponseWriter, _ *http.Request) error {
			body, err := a.Console.Body(ctx, c, in.ID)
			if err != nil {
				return err
			}
			// Nothing that a message contains chooses its type or its file's name.
			h := w.Header()
			h.Set("Content-Type", "application/octet-stream")
			h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="message-%s.bin"`, plainName(in.ID)))
			h.Set("Content-Length", strconv.Itoa(len(body)))
			w.WriteHeader(http.StatusOK)
			_, err = w.Write(body)
			return err
		})
	a.exportRoute()
	a.importRoute()

	snapshot := route(http.MethodPost, "/snapshot", "snapshot", "Transfer",
		"Write a copy of the store, as it is at one moment, to a folder on the service's machine")
	snapshot.Metadata = map[string]any{"timeout": time.Duration(-1)}
	handle(a, snapshot, func(ctx context.Context, c auth.Caller, in *body[Snapshot]) (actions.SnapshotMade, error) {
		return a.Console.Snapshot(ctx, c, in.Body.Folder)
	})
}

func (a *API) exportRoute() {
	op := route(http.MethodGet, "/export", "export", "Transfer",
		"All that a query finds: jsonl with bodies, which an import takes; csv without, for people")
	stream(a, op, []string{typeJSONLines, typeCSV}, func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Format string `query:"format" enum:"jsonl,csv" default:"jsonl"`
	}, w http.ResponseWriter, _ *http.Request) error {
		write, kind := a.Console.Export, typeJSONLines
		if in.Format == "csv" {
			write, kind = a.csv, typeCSV
		}
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="redrive-%s.%s"`,
			a.Now().UTC().Format("20060102-150405"), in.Format))
		h.Set("Trailer", countTrailer)
		n, err := write(ctx, c, in.Q, w)
		if err == nil {
			h.Set(countTrailer, strconv.FormatInt(n, 10))
		}
		return err
	})
}

func (a *API) importRoute() {
	in := route(http.MethodPost, "/import", "import", "Transfer",
		"Keep the messages of an export, parked, or as they are")
	in.Metadata = map[string]any{"timeout": time.Duration(-1)}
	in.RequestBody = &huma.RequestBody{Required: true,
		Content: map[string]*huma.MediaType{typeJSONLines: {Schema: &huma.Schema{Type: huma.TypeString}}}}
	in.Middlewares = slices.Concat(huma.Middlewares{requireRole(auth.Editor)}, in.Middlewares, huma.Middlewares{upload})
	handle(a, in, func(ctx context.Context, c auth.Caller, in *struct {
		DryRun     bool `query:"dry_run" doc:"Only check it."`
		AsIs       bool `query:"as_is" doc:"Keep id, state, attempts and times as exported: for administrators."`
		EvenIfKept bool `query:"even_if_kept" doc:"Also import messages that still wait or are parked here."`
	}) (actions.Imported, error) {
		return a.Console.Import(ctx, c, ctx.Value(uploadKey{}).(io.Reader),
			actions.ImportOptions{DryRun: in.DryRun, AsIs: in.AsIs, EvenIfKept: in.EvenIfKept})
	})
}

// upload passes the body of an import on to its route, which reads it by itself.
func upload(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); t != typeJSONLines && t != "application/x-ndjson" {
		writeProblem(w, problem(http.StatusUnsupportedMediaType, "content_type", "an import is sent as "+typeJSONLines))
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), uploadKey{}, http.MaxBytesReader(w, r.Body, maxImport)))
	next(humago.NewContext(ctx.Operation(), r, w))
}

// uploadKey is where a route finds a body that it reads by itself.
type uploadKey struct{}

// plainName keeps the characters of a name that are safe in a header and in a file system.
func plainName(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, s[:min(len(s), 64)])
}
