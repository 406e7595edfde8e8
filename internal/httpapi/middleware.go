package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/query"
)

const (
	// defaultTimeout is how long a request may take, unless its route has another timeout.
	defaultTimeout = 30 * time.Second
	// planTimeout is the same for plans, which look at all messages.
	planTimeout = 10 * time.Minute
	// maxURL bounds a request's path and query.
	maxURL = 16 << 10
)

// headersAndLimits handles every request before its caller is known.
func (a *API) headersAndLimits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// No answer is taken for another type, or shown in another site's page. The page
		// sets what it needs beyond that.
		h := w.Header()
		h.Set("Cache-Control", "no-store") // messages do not belong in a browser's cache
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("X-Frame-Options", "DENY")
		if len(r.RequestURI) > maxURL {
			writeProblem(w, problem(http.StatusRequestURITooLong, "too_large",
				"the URL is too long; write the query shorter"))
			return
		}
		if decodes(r) {
			writeProblem(w, problem(http.StatusBadRequest, "malformed",
				"a proxy has decoded %2F in the path, which leads to something else; "+decodedSlash))
			return
		}
		c := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			first := a.Idle
			if r.URL.Path == auth.SignInPath || r.URL.Path == auth.OIDCDevicePath {
				first = min(first, a.Unauthenticated)
			}
			r.Body = &boundedBody{r.Body, c, r.ProtoMajor > 1, a.Idle, first}
			if r.ProtoMajor == 1 { // net/http may wait for it before it answers
				_ = c.SetReadDeadline(time.Now().Add(min(a.Idle, a.Unauthenticated)))
			}
		}
		// net/http flushes what is buffered after the route returns: that gets a deadline too.
		defer func() { _ = c.SetWriteDeadline(time.Now().Add(2 * a.Idle)) }()
		next.ServeHTTP(&boundedWriter{w, c, a.Idle, a.Idle}, r)
	})
}

// serve passes a request to the API's routes or to the page's. Under /api/ also an unknown
// path is answered with a Problem.
func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	_, pattern := a.mux.Handler(r)
	if !strings.HasPrefix(r.URL.Path, "/api/") {
		if pattern == "" {
			a.page.ServeHTTP(w, r)
		} else {
			a.mux.ServeHTTP(w, r)
		}
		return
	}
	if auth.Foreign(r) { // a link, to an export perhaps
		writeProblem(w, problem(http.StatusForbidden, "forbidden", "a page of another site leads here"))
		return
	}
	if pattern == "" {
		w = &noRoute{ResponseWriter: w, base: a.Base}
	}
	a.mux.ServeHTTP(w, r)
}

// noRoute writes a Problem instead of the plain text of net/http.
type noRoute struct {
	http.ResponseWriter
	base    string
	written bool
}

func (r *noRoute) WriteHeader(status int) {
	r.written = true
	code := cmp.Or(codeOf(status), "not_found")
	writeProblem(r.ResponseWriter, problem(status, code,
		"there is no such route: "+r.base+v1+"/openapi.json lists them; "+decodedSlash))
}

func (r *noRoute) Write(b []byte) (int, error) {
	if !r.written {
		r.WriteHeader(http.StatusNotFound)
	}
	return len(b), nil
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// minSpeed is how many bytes a second a client must send; otherwise one that sends single
// bytes could hold a connection for weeks.
const minSpeed = 4 << 10

// boundedBody limits each read by a budget of time: at most idle, used up by waiting and refilled by a second
// for each minSpeed bytes received. A body that has been read has no deadline: one that passed would look as if
// the client had gone. Until then it has, since net/http too waits for what a route leaves unread; but not by
// HTTP/2, where it would end a request whose answer is still being made.
type boundedBody struct {
	io.ReadCloser
	c          *http.ResponseController
	http2      bool
	idle, left time.Duration
}

func (b *boundedBody) Read(p []byte) (int, error) {
	began := time.Now()
	_ = b.c.SetReadDeadline(began.Add(b.left))
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF || b.http2 {
		_ = b.c.SetReadDeadline(time.Time{})
	}
	b.left = min(b.idle, b.left-time.Since(began)+time.Duration(n)*time.Second/minSpeed)
	if err != nil && err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return n, err
}

// minTaken is how many bytes a second a client must receive, since what is left of its answer is
// held in memory.
const minTaken = 64 << 10

// boundedWriter limits each write by the same kind of budget, refilled at minTaken.
type boundedWriter struct {
	http.ResponseWriter
	c          *http.ResponseController
	idle, left time.Duration
}

func (w *boundedWriter) Write(p []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(p)); first = false {
		began, wrote := time.Now(), 0
		_ = w.c.SetWriteDeadline(began.Add(w.left))
		wrote, err = w.ResponseWriter.Write(p[n:min(len(p), n+minTaken)])
		w.left = min(w.idle, w.left-time.Since(began)+time.Duration(wrote)*time.Second/minTaken)
		n += wrote
	}
	_ = w.c.SetWriteDeadline(time.Time{})
	return n, err
}

// FlushError is for http.ResponseController.
func (w *boundedWriter) FlushError() error {
	_ = w.c.SetWriteDeadline(time.Now().Add(w.idle))
	err := w.c.Flush()
	_ = w.c.SetWriteDeadline(time.Time{})
	return err
}

// Unwrap is for http.ResponseController.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// withTimeout bounds how long a route works.
func (a *API) withTimeout(ctx context.Context, op huma.Operation) (context.Context, context.CancelFunc) {
	most := defaultTimeout
	if d, ok := op.Metadata["timeout"].(time.Duration); ok {
		most = d
	}
	if most < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, most)
}

// requireSignIn refuses a caller who is not signed in before anything of theirs is read.
var requireSignIn = check(func(c auth.Caller) error {
	if c.Role == auth.NoRole {
		return auth.ErrSignIn
	}
	return nil
})

// requireRole refuses a caller without a role before the body is read: bodies are large. The
// console checks again, for each message.
func requireRole(r auth.Role) func(huma.Context, func(huma.Context)) {
	return check(func(c auth.Caller) error { return c.May(r, "") })
}

func check(refuses func(auth.Caller) error) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if err := refuses(auth.From(ctx.Context())); err != nil {
			_, w := humago.Unwrap(ctx)
			writeProblem(w, problemOf(err))
			return
		}
		next(ctx)
	}
}

// load is the memory that a request holds while it is served, also to a slow client.
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
	"POST " + auth.OIDCDevicePath: small,

	"GET /api/v1/openapi.json": list, "GET /api/v1/me": small, "GET /api/v1/overview": list,
	"GET /api/v1/policies": list,
	"GET /api/v1/messages": list, "GET /api/v1/count": small, "GET /api/v1/groups": list, "GET /api/v1/queues": list,
	"GET /api/v1/groups/{id}":    list,
	"GET /api/v1/queues/{queue}": list, "GET /api/v1/ledger": list, "GET /api/v1/audit": list,
	"POST /api/v1/audit":        list,
	"GET /api/v1/live":          watch,
	"GET /api/v1/messages/{id}": message, "GET /api/v1/messages/{id}/body": download,
	"POST /api/v1/messages/{id}/show": message,
	"GET /api/v1/export":              export, "POST /api/v1/import": imports, "POST /api/v1/snapshot": list,
	"POST /api/v1/decode": uploads, "POST /api/v1/edit": uploads, "POST /api/v1/act": list,
	"POST /api/v1/groups/{id}/state": list,
	"PUT /api/v1/groups/{id}/note":   list, "PUT /api/v1/queues/{queue}/pause": list,
	"DELETE /api/v1/queues/{queue}/pause": small,
	"PUT /api/v1/queues/{queue}/breaker":  list, "PUT /api/v1/queues/{queue}/replays": list,
	"POST /api/v1/plans": list, "GET /api/v1/plans/{id}": list, "POST /api/v1/plans/{id}/start": list,
	"GET /api/v1/dead-letter-queues":                   list,
	"PUT /api/v1/dead-letter-queues/{queue}/follow":    list,
	"DELETE /api/v1/dead-letter-queues/{queue}/follow": list,

	"GET /api/v1/operations": list, "GET /api/v1/operations/{id}": list, "GET /api/v1/operations/{id}/outcomes": list,
	"POST /api/v1/operations/{id}/{order}": list,
	"GET /api/v1/tokens":                   list, "POST /api/v1/tokens": list, "DELETE /api/v1/tokens/{id}": small,

	"GET /signin": small, "GET " + auth.OIDCPath: small, "GET " + auth.OIDCStartPath: small,
	"GET /assets/{version}/{name}": small, "GET /": small, "GET /help": small, "GET /{$}": list,
	"GET /docs": list, "GET /docs/{page...}": list, "GET /docs/images/{name}": small,
	"GET /messages": list, "GET /messages/new": list, "GET /messages/count": small, "GET /messages/check": small,
	"POST /messages/{id}": message,
	"GET /messages/{id}":  message, "GET /messages/{id}/body": download, "GET /messages/export": export,
	"GET /messages/{id}/edit": uploads, "POST /messages/{id}/edit": uploads,
	"POST /messages/act": list, "POST /messages/plan": list,
	"GET /groups": list, "GET /groups/{id}": list, "POST /groups/{id}/note": list, "POST /groups/{id}/state": list,
	"GET /queues": list, "GET /queues/{queue}": list,
	"POST /queues/pause": list, "POST /queues/breaker": list, "POST /queues/resume": list,
	"GET /operations": list, "GET /operations/{id}": list, "POST /operations/{id}/{order}": list,
	"GET /plans/{id}": list, "POST /plans/{id}/start": list,
	"POST /follow": list, "GET /policies": list, "GET /audit": list, "GET /health": list,
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

// Base is the path of all of a virtual host's routes where a service has several. Browsers
// take . and .. for steps of a path however they are escaped, so a virtual host of such a
// name is reached by programs alone.
func Base(vhost string) string { return escaped("v", vhost) }

// Under serves a handler under a base, "" or an escaped path such as Base makes. The
// handler sees paths without it, as if it were alone. In a mux with others, register it
// for base and base + "/".
//
// http.StripPrefix compares a path as it is escaped and as it is not, each by itself;
// but a/b, escaped, is one step of a path and not two, and programs escape in
// different ways.
func Under(base string, h http.Handler) http.Handler {
	if base == "" {
		return h
	}
	steps := strings.Split(base, "/")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := strings.SplitN(r.URL.EscapedPath(), "/", len(steps)+1)
		if len(asked) < len(steps) || !slices.EqualFunc(steps, asked[:len(steps)], sameStep) {
			http.NotFound(w, r)
			return
		}
		rest := ""
		if len(asked) > len(steps) {
			rest = "/" + asked[len(steps)]
		}
		// The handler's own mux would redirect to a path without the base.
		if clean := cleaned(rest); clean != rest {
			to := base + clean
			if r.URL.RawQuery != "" {
				to += "?" + r.URL.RawQuery
			}
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		u := *r.URL
		var err error
		if u.Path, err = url.PathUnescape(rest); err != nil {
			http.NotFound(w, r)
			return
		}
		if u.RawPath = ""; u.EscapedPath() != rest {
			u.RawPath = rest
		}
		inside := *r
		inside.URL = &u
		h.ServeHTTP(w, &inside)
	})
}

func sameStep(a, b string) bool {
	a, errA := url.PathUnescape(a)
	b, errB := url.PathUnescape(b)
	return errA == nil && errB == nil && a == b
}

// slashes is how many slashes of names an escaped path has.
func slashes(path string) int { return strings.Count(strings.ToUpper(path), "%2F") }

// decodedSlash is the hint where a proxy may have decoded %2F.
const decodedSlash = "a slash in a name is %2F, which a proxy may have decoded: let it pass on paths as they are " +
	"(nginx: proxy_pass without a path)"

// decodes reports whether a proxy has decoded slashes on the way of a request from our own command
// line.
func decodes(r *http.Request) bool {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	return slashes(path) < slashes(r.Header.Get(auth.PathHeader))
}

// cleaned is an escaped path as net/http's mux expects it.
func cleaned(p string) string {
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// Errors of the API itself.
var (
	// ErrUnreachable: no service answers there.
	ErrUnreachable = hint.New("unreachable", "no service answers")
	// ErrTooLarge: the request's body is too large.
	ErrTooLarge = hint.New("too_large", "the request is too large")
	// ErrMalformed: the request's body is not as HTTP wants it, or its connection broke.
	ErrMalformed = hint.New("malformed", "the request's body cannot be read")
	// ErrQuery: a query makes no sense; Problem.At is where.
	ErrQuery = hint.New("query", "the query makes no sense")
)

// codeOf returns the code of what net/http and the validation refuse with a status, or "".
func codeOf(status int) (code string) {
	for _, k := range hint.Kinds {
		if k.Status == status && status < 500 {
			code = k.Code // the last is the most general
		}
	}
	return code
}

// typePrefix makes a code a URI, as RFC 9457 wants a problem's type.
const typePrefix = "urn:redrive:problem:"

// Problem is an error as it is sent (RFC 9457). In the client, errors.Is takes it for the
// errors that its code stands for.
type Problem struct {
	Type   string              `json:"type" doc:"urn:redrive:problem: and the code."`
	Code   string              `json:"code" doc:"What kind of error, for programs; see the head of this document."`
	Title  string              `json:"title"`
	Status int                 `json:"status"`
	Detail string              `json:"detail" doc:"What is wrong, for people."`
	Hint   string              `json:"hint,omitempty" doc:"What to do about it, for people."`
	At     *int                `json:"at,omitempty" doc:"Of a query: the character it is about, counted from 0."`
	Errors []*huma.ErrorDetail `json:"errors,omitempty" doc:"Each thing that is wrong with the request."`
}

func (p *Problem) Error() string {
	said := []string{p.Detail}
	for _, e := range p.Errors {
		said = append(said, strings.TrimPrefix(e.Location+": "+e.Message, ": "))
	}
	if p.Hint != "" {
		said = append(said, p.Hint)
	}
	return strings.Join(said, "; ")
}

// ErrorHint is for package hint.
func (p *Problem) ErrorHint() string { return p.Hint }

// Is reports whether the problem is of this kind.
func (p *Problem) Is(target error) bool { return hint.HasCode(target, p.Code) }

// GetStatus is for huma.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is for huma.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders is for huma.
func (p *Problem) GetHeaders() http.Header {
	switch p.Status {
	case http.StatusUnauthorized:
		return http.Header{"Www-Authenticate": {`Bearer realm="redrive"`}}
	case http.StatusTooManyRequests:
		return http.Header{"Retry-After": {"5"}}
	}
	return nil
}

// NotFound answers that there is no such thing, for handlers outside the API.
func NotFound(w http.ResponseWriter, detail string) {
	writeProblem(w, problem(http.StatusNotFound, "not_found", detail+"; "+decodedSlash))
}

func problem(status int, code, detail string) *Problem {
	return &Problem{Type: typePrefix + code, Code: code, Title: http.StatusText(status), Status: status, Detail: detail}
}

// problemOf is an error as a Problem.
func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var q *query.Error
	if errors.As(err, &q) {
		p = problem(http.StatusUnprocessableEntity, "query", err.Error())
		p.At = &q.At
		return p
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, large.Limit)
	}
	k := hint.HTTP(err)
	p = problem(k.Status, k.Code, hint.Text(err))
	p.Hint = hint.Of(err)
	return p
}

// validationError is the Problem of a request that is not valid. The values that it quotes are left out:
// they may be what a message contains.
func validationError(status int, detail string, errs ...error) huma.StatusError {
	for _, err := range errs {
		if errors.Is(err, ErrMalformed) {
			return problemOf(err)
		}
	}
	p := problem(status, cmp.Or(codeOf(status), "internal"), detail)
	for _, err := range errs {
		var d huma.ErrorDetailer
		switch {
		case err == nil:
		case errors.As(err, &d):
			e := d.ErrorDetail()
			p.Errors = append(p.Errors, &huma.ErrorDetail{Location: e.Location, Message: e.Message})
		default:
			p.Errors = append(p.Errors, &huma.ErrorDetail{Message: err.Error()})
		}
	}
	p.Errors = p.Errors[:min(len(p.Errors), 20)]
	return p
}

// codes are all of them, for the documentation.
func codes() (all []string) {
	for _, k := range hint.Kinds {
		if k.Status != 0 {
			all = append(all, k.Code)
		}
	}
	slices.Sort(all)
	return slices.Compact(append(all, "internal"))
}
