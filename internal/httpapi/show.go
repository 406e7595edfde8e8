package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
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
		for _, p := range slices.Concat(a.Problems(), a.Notices()) {
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

// ledgersAtOnce bounds how many requests wait for the ledger.
const ledgersAtOnce = 16

func (a *API) showRoutes() {
	handle(a, route(http.MethodGet, "/overview", "overview", "See", "The state of the service on one page"), func(ctx context.Context, c auth.Caller, _ *none) (inspect.Overview, error) {
		return a.Console.Overview(ctx, c)
	})
	vhosts := route(http.MethodGet, "/vhosts", "vhosts", "See", "Virtual hosts, a line each: those in which the caller may see anything")
	vhosts.Description = "Where a service has several, this path at the root has all of them, and the one under /v/NAME that one alone."
	handle(a, vhosts, func(ctx context.Context, c auth.Caller, _ *none) (VHostList, error) {
		v, err := a.Console.VHost(ctx, c)
		return VHostList{[]inspect.VHost{v}}, err
	})
	handle(a, route(http.MethodGet, "/messages", "messages", "See", "Messages that a query finds, latest first: by when each is due, or was parked or retried"), func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Paged
		Columns []string `query:"columns,explode" maxItems:"12" doc:"What each message has in these fields of the query language, such as key, header.tenant or body.customer; repeat it for several." example:"body.customer"`
		Preview bool     `query:"preview" doc:"Add the beginning of each body."`
	}) (inspect.Page, error) {
		p, err := a.Console.Search(ctx, c, in.Q, in.After, in.Limit)
		if err == nil {
			err = a.Console.AddColumns(ctx, c, &p, in.Columns, in.Preview)
		}
		return p, err
	})
	handle(a, route(http.MethodGet, "/messages/{id}", "message", "See", "All that is known of a message but its raw body"), func(ctx context.Context, c auth.Caller, in *struct {
		Named
		inspect.ReadAs
	}) (inspect.Detail, error) {
		return a.Console.Message(ctx, c, in.ID, in.ReadAs)
	})
	handle(a, route(http.MethodGet, "/count", "count", "See", "How many messages a query finds"), func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Most int64 `query:"most" minimum:"0" doc:"Where messages have to be looked at one by one, count up to this; 0: without that bound."`
	}) (Count, error) {
		n, exact, err := a.Console.Count(ctx, c, in.Q, in.Most)
		return Count{n, exact}, err
	})
	handle(a, route(http.MethodGet, "/complete", "complete", "See", "How the last word of a query may go on"), func(ctx context.Context, c auth.Caller, in *struct {
		Q      string `query:"q" maxLength:"4096" doc:"The query up to the cursor."`
		Groups bool   `query:"groups" doc:"The query is about groups, which have fewer fields."`
	}) (Suggestions, error) {
		s, err := a.Console.Complete(ctx, c, in.Q, in.Groups)
		return Suggestions{s}, err
	})
	a.listRoutes()
	a.auditRoutes()
}

// listRoutes are those of groups, errors, queues, the ledger and policies.
func (a *API) listRoutes() {
	handle(a, route(http.MethodGet, "/groups", "groups", "See", "Groups of failures among what a query finds"), func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Paged
	}) (inspect.GroupPage, error) {
		return a.Console.Groups(ctx, c, in.Q, in.After, in.Limit)
	})
	handle(a, route(http.MethodGet, "/errors", "errors", "See", "Errors, each in all queues: groups that differ in nothing but the queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Query
		Paged
		Sort inspect.ErrorOrder `query:"sort" enum:"count,last,first" default:"count" doc:"What comes first: the most parked and waiting messages, the last failure, or what is new."`
	}) (inspect.ErrorPage, error) {
		return a.Console.Errors(ctx, c, in.Q, in.Sort, in.After, in.Limit)
	})
	a.queueRoutes()
	recounts := route(http.MethodGet, "/ledger", "ledger", "See", "How many messages came for each queue, and what became of them")
	recounts.Middlewares = huma.Middlewares{atMost(ledgersAtOnce)}
	handle(a, recounts, func(ctx context.Context, c auth.Caller, in *struct {
		Paged
		Recount bool `query:"recount" doc:"Count what is kept one by one first: the more there is, the longer it takes."`
	}) (inspect.Ledger, error) {
		return a.Console.Ledger(ctx, c, in.Recount, in.After, in.Limit)
	})
	handle(a, route(http.MethodGet, "/policies", "policies", "See", "Policies in force, and the waits each gives"), func(ctx context.Context, c auth.Caller, _ *none) (Policies, error) {
		p, err := a.Console.Policies(ctx, c)
		return Policies{p}, err
	})
}

func (a *API) auditRoutes() {
	handle(a, route(http.MethodGet, "/audit", "audit", "See", "The audit log, newest first"), func(ctx context.Context, c auth.Caller, in *Paged) (AuditPage, error) {
		e, after, err := a.Console.AuditLog(ctx, c, in.After, in.Limit)
		return AuditPage{e, after}, err
	})
	handle(a, route(http.MethodGet, "/audit/actions", "audit-actions", "See", "The audit log action by action, newest first: each once, with its outcome"), func(ctx context.Context, c auth.Caller, in *struct {
		Paged
		Who   string    `query:"who" maxLength:"256" doc:"Only of this user or token."`
		Did   string    `query:"did" maxLength:"64" doc:"Only this action, such as replay; with a dot at the end, all that begin so: operation."`
		On    string    `query:"on" maxLength:"256" doc:"Only what was on this: a part of a queue's name, an id or a query."`
		From  time.Time `query:"from" doc:"Only what began then or later."`
		Until time.Time `query:"until" doc:"Only what began before."`
	}) (inspect.AuditActions, error) {
		return a.Console.AuditActions(ctx, c, inspect.AuditFilter{Who: in.Who, Did: in.Did, On: in.On, From: in.From, Until: in.Until}, in.After, in.Limit)
	})
}

func (a *API) queueRoutes() {
	handle(a, route(http.MethodGet, "/queues", "queues", "See", "Work queues: what is kept for them, and what RabbitMQ says"), func(ctx context.Context, c auth.Caller, in *struct {
		Paged
		Name   string `query:"name" maxLength:"255" doc:"A pattern with * and ?, or a part of the name in any case; left out: all."`
		Policy string `query:"policy" maxLength:"255" doc:"Only queues of this policy."`
		Sort   string `query:"sort" enum:"name,waiting,parked,failed,retried,consumers,ready,unacked" default:"name" doc:"By consumers, ready and unacked only where one page has all."`
		Desc   bool   `query:"desc" doc:"The largest first."`
	}) (Queues, error) {
		return a.Console.Queues(ctx, c, inspect.QueueQuery{Name: in.Name, Policy: in.Policy, Sort: in.Sort, Descending: in.Desc, After: in.After, Limit: in.Limit})
	})
	handle(a, route(http.MethodGet, "/queues/{queue}", "queue", "See", "All that is known of one work queue"), func(ctx context.Context, c auth.Caller, in *struct {
		Queue string `path:"queue" maxLength:"255"`
	}) (inspect.QueueDetail, error) {
		return a.Console.Queue(ctx, c, in.Queue)
	})
	handle(a, route(http.MethodGet, "/doctor", "doctor", "See", "What the doctor found in its latest run: wrong settings of RabbitMQ, its queues and the service's rights"), func(ctx context.Context, c auth.Caller, _ *none) (inspect.Examination, error) {
		return a.Console.Doctor(ctx, c)
	})
	handleNothing(a, route(http.MethodPost, "/doctor", "run-doctor", "See", "Run the doctor, which takes some 20 s and changes nothing"), func(ctx context.Context, c auth.Caller, _ *none) error {
		return a.Console.StartDoctor(ctx, c)
	})
}

// mostDecode bounds a body to read, and decodedAtOnce how many are read at once.
const (
	mostDecode    = 24 << 20
	decodedAtOnce = 4
)

func (a *API) decodeRoute() {
	op := route(http.MethodPost, "/decode", "decode", "See", "Read a body as one of a message's is read")
	op.MaxBodyBytes, op.Middlewares = mostDecode, huma.Middlewares{atMost(decodedAtOnce)}
	handle(a, op, func(ctx context.Context, c auth.Caller, in *body[DecodeRequest]) (*decode.Result, error) {
		b := in.Body
		if b.Queue != "" && !c.Sees(b.Queue) { // its schema is not theirs to see
			return nil, fmt.Errorf("%w: the queue %q", inspect.ErrNotFound, b.Queue)
		}
		return a.Decoder.Decode(ctx, decode.Body{Bytes: b.Body, Queue: b.Queue, ContentType: b.ContentType, ContentEncoding: b.ContentEncoding, Type: b.Type}), nil
	})
}
