// Package httpapi is the HTTP API of what people see and do, and its client. Read it in this
// order:
//
//	api.go          what an API is made of, how a request reaches its route, and the document of all
//	types.go        bodies that only the API has
//	middleware.go   headers and limits of every request, how many at once, and the base path; errors as
//	                they are sent
//	routes.go       the routes: reading, the stream of changes, acting on named messages, queues and
//	                many messages, who calls, and what has many bytes: bodies, export, import
//	client.go       the client
package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/operations"
)

// Decoder reads bodies.
type Decoder interface {
	Decode(ctx context.Context, b decode.Body) *decode.Result
}

// Guard is auth.Guard: it puts the caller into a request's context.
type Guard interface {
	Handler(next http.Handler) http.Handler
	SignIn(w http.ResponseWriter, r *http.Request)
	SignOut(w http.ResponseWriter, r *http.Request)
	SignInDevice(w http.ResponseWriter, r *http.Request)
}

// Config has the parts of an API.
type Config struct {
	Console operations.Console
	Decoder Decoder
	// Base is the escaped path that all is under, without a slash at its end, where a
	// service has several virtual hosts; "" where it is alone. Requests come without it:
	// see Under.
	Base    string
	Metrics http.Handler
	// Conditions are wrong now; Notices are for a person to look at.
	Conditions func() []condition.Condition
	Notices    func() []string
	// Ready is false while one of the problems is the whole service's.
	Ready func() bool
	// Guard authenticates callers; routes that Public names must need no sign-in.
	Guard  Guard
	Tokens *auth.Tokens
	// Bounds are shared by the APIs of a process; nil: NewBounds.
	Bounds Bounds
	Log    *slog.Logger
	// Idle is how long a client may take to send or receive the next bytes, so that slow
	// clients cannot hold connections for ever, and long exports are possible; 0: 30 s.
	Idle time.Duration
	// Unauthenticated is the same for bodies of callers who are not signed in; 0 is 10 s, as
	// for the heads of requests.
	Unauthenticated time.Duration
	// Now is the time, for tests; nil: time.Now.
	Now func() time.Time
}

// API answers HTTP requests. Make it with New.
type API struct {
	Config
	mux       *http.ServeMux
	page      *http.ServeMux
	huma      huma.API
	routes    []string
	handler   http.Handler
	closing   chan struct{} // closed when all streams are to end
	closeOnce sync.Once
}

// New makes an API.
func New(c Config) *API {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Idle == 0 {
		c.Idle = 30 * time.Second
	}
	if c.Unauthenticated == 0 {
		c.Unauthenticated = 10 * time.Second
	}
	if c.Bounds == nil {
		c.Bounds = NewBounds()
	}
	a := &API{Config: c, mux: http.NewServeMux(), page: http.NewServeMux(), closing: make(chan struct{})}
	ourErrors()
	a.huma = humago.New(registrar{a}, description(c.Base))
	a.healthRoutes()
	a.showRoutes()
	a.decodeRoute()
	a.actRoutes()
	a.operationRoutes()
	a.transferRoutes()
	a.liveRoute()
	a.callerRoutes()
	a.openAPIRoute()
	a.handler = a.Guarded(http.HandlerFunc(a.serve))
	return a
}

// ourErrors makes huma's validation return Problems; its hook is a global variable.
var ourErrors = sync.OnceFunc(func() { huma.NewError = validationError })

// registrar notes each route, so that a test can walk them all.
type registrar struct{ a *API }

func (r registrar) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	r.a.handle(pattern, http.HandlerFunc(h))
}

func (r registrar) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.a.mux.ServeHTTP(w, req) }

func (a *API) handle(pattern string, h http.Handler) {
	a.routes = append(a.routes, pattern)
	a.mux.Handle(pattern, a.bounded(pattern, h))
}

// Handle adds a route of the page, behind the same guard. Requests for the API never
// reach it.
func (a *API) Handle(pattern string, h http.Handler) {
	a.routes = append(a.routes, pattern)
	a.page.Handle(pattern, a.bounded(pattern, h))
}

// Routes are the patterns of all routes.
func (a *API) Routes() []string { return a.routes }

// Guarded puts a handler that is not of the API behind the same guard.
func (a *API) Guarded(next http.Handler) http.Handler {
	return a.headersAndLimits(a.Guard.Handler(next))
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// route is a route of the API; tag is its section of the document.
func route(method, path, id, tag, summary string) huma.Operation {
	return huma.Operation{Method: method, Path: v1 + path, OperationID: id, Summary: summary, Tags: []string{tag}}
}

// body is the body of a request or of an answer.
type body[T any] struct{ Body T }

// none is an empty request or response.
type none struct{}

// handle registers a route that calls the console for its caller.
func handle[I, O any](a *API, op huma.Operation, do func(ctx context.Context, c auth.Caller, in *I) (O, error)) {
	register(a, op, func(ctx context.Context, c auth.Caller, in *I) (*body[O], error) {
		out, err := do(ctx, c, in)
		return &body[O]{out}, err
	})
}

// handleNothing registers a route whose answer has no content.
func handleNothing[I any](a *API, op huma.Operation, do func(ctx context.Context, c auth.Caller, in *I) error) {
	op.DefaultStatus = http.StatusNoContent
	register(a, op, func(ctx context.Context, c auth.Caller, in *I) (*none, error) { return nil, do(ctx, c, in) })
}

func register[I, O any](a *API, op huma.Operation, do func(ctx context.Context, c auth.Caller, in *I) (*O, error)) {
	a.describe(&op)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		ctx, cancel := a.withTimeout(ctx, op)
		defer cancel()
		out, err := do(ctx, auth.From(ctx), in)
		if err != nil {
			return nil, a.failed(op, err)
		}
		return out, nil
	})
}

// failed is an error as it is sent; internal errors are logged.
func (a *API) failed(op huma.Operation, err error) error {
	p := problemOf(err)
	if p.Status == http.StatusInternalServerError {
		a.Log.Error("a request failed", "method", op.Method, "path", op.Path, "error", err)
	}
	return p
}

// description is the document's frame. Its version is the API's, not the service's.
func description(base string) huma.Config {
	bearer := &huma.SecurityScheme{Type: "http", Scheme: "bearer",
		Description: "A token, made by `redrive token create`."}
	basic := &huma.SecurityScheme{Type: "http", Scheme: "basic", Description: "A user of RabbitMQ's."}
	session := &huma.SecurityScheme{Type: "apiKey", In: "cookie", Name: "redrive",
		Description: "The page's, after signing in at POST " + auth.SignInPath +
			"; with TLS its name is __Host-redrive. Of one virtual host of several it is redrive-vhost, with TLS " +
			"__Secure-redrive-vhost."}
	schemas := huma.NewMapRegistry("#/components/schemas/", schemaName)
	schemas.RegisterTypeAlias(reflect.TypeFor[actions.Verb](), reflect.TypeFor[verbName]())
	var servers []*huma.Server // none: paths begin where the document is
	if base != "" {
		servers, session.Name = []*huma.Server{{URL: base}}, "redrive-vhost"
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Redrive", Version: "1",
				Description: "Messages that failed on RabbitMQ: see them, find them, replay them. Where no sign-in " +
					"is configured the service answers its own machine alone, without. Errors are problem+json (RFC " +
					"9457); their `code` is one of: " + strings.Join(codes(), ", ") + ". " +
					"A request whose answer got lost may be made again: a plan starts once, an import skips what it " +
					"has stored, and of messages that were acted on the answer says that they are not there any " +
					"more. Only a copy is made a second time."},
			Servers: servers,
			Components: &huma.Components{Schemas: schemas,
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": bearer, "user": basic, "session": session}},
			Security: []map[string][]string{{"token": {}}, {"user": {}}, {"session": {}}},
			Tags: []*huma.Tag{{Name: "See", Description: "Looking touches nothing."},
				{Name: "Act", Description: "On messages that are named."},
				{Name: "Operations", Description: "On all that a query finds: a plan first, then its start."},
				{Name: "Transfer"}, {Name: "Callers"}},
		},
		Formats:       huma.DefaultFormats,
		DefaultFormat: "application/json",
	}
}

// verbName stands for actions.Verb in the document: its values are made of the table.
type verbName string

func (verbName) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, v := range actions.Verbs {
		s.Enum = append(s.Enum, string(v.Verb))
	}
	return s
}

// schemaName distinguishes types of the same name in two packages. ThrottleView is named Throttle
// in the API.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case strings.HasSuffix(t.PkgPath(), "/internal/decode"):
		return "Decoded" + name
	case strings.HasSuffix(t.PkgPath(), "/internal/audit"):
		return "Audit" + name
	}
	return strings.TrimSuffix(name, "View")
}

// describe completes a route: it needs a sign-in, unless it says otherwise.
func (a *API) describe(op *huma.Operation) {
	op.BodyReadTimeout = -1 // boundedBody does it
	if op.Security == nil {
		op.Middlewares = append(huma.Middlewares{requireSignIn}, op.Middlewares...)
	}
	if op.Responses != nil { // huma adds it only to routes without Responses
		op.Responses["default"] = &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{
			"application/problem+json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](),
				true, "")}}}
	}
}

func (a *API) openAPIRoute() {
	document, err := json.MarshalIndent(a.huma.OpenAPI(), "", "  ")
	if err != nil {
		panic("the API's types make no OpenAPI document: " + err.Error())
	}
	a.handle("GET "+v1+"/openapi.json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.oai.openapi+json")
		_, _ = w.Write(document)
	}))
}
