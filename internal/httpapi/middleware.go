package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/auth"
)

const (
	// answerWithin is how long a request may work before it is given up, unless its
	// route says otherwise.
	answerWithin = 30 * time.Second
	// planWithin is the same for plans, which look at all messages.
	planWithin = 10 * time.Minute
	// mostURL bounds a request's path and query.
	mostURL = 16 << 10
)

// around is what every request goes through before its caller is known.
func (a *API) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// What answers, whatever it is, is taken for nothing else, and not shown in
		// another's page. The page says what it needs beyond that.
		h := w.Header()
		h.Set("Cache-Control", "no-store") // messages do not belong in a browser's cache
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("X-Frame-Options", "DENY")
		if len(r.RequestURI) > mostURL {
			writeProblem(w, problem(http.StatusRequestURITooLong, "too_large", "the URL is too long; write the query shorter"))
			return
		}
		c := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			first := a.Idle
			if r.URL.Path == auth.SignInPath {
				first = min(first, a.Unauthenticated)
			}
			r.Body = &boundedBody{r.Body, c, r.ProtoMajor > 1, a.Idle, first}
			if r.ProtoMajor == 1 { // net/http may wait for it before it answers
				_ = c.SetReadDeadline(time.Now().Add(min(a.Idle, a.Unauthenticated)))
			}
		}
		// What a route leaves in a buffer is written after it.
		defer func() { _ = c.SetWriteDeadline(time.Now().Add(2 * a.Idle)) }()
		next.ServeHTTP(&boundedWriter{w, c, a.Idle}, r)
	})
}

// serve tells the API's routes from the page's. What the API has no route for it
// answers as it answers all else.
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
		w = &refusal{ResponseWriter: w, base: a.Base}
	}
	a.mux.ServeHTTP(w, r)
}

// refusal says as a problem what net/http says in plain text.
type refusal struct {
	http.ResponseWriter
	base string
	said bool
}

func (r *refusal) WriteHeader(status int) {
	r.said = true
	code := byStatus[status]
	if code == "" {
		code = "not_found"
	}
	writeProblem(r.ResponseWriter, problem(status, code, "there is no such route: "+r.base+v1+"/openapi.json lists them"))
}

func (r *refusal) Write(b []byte) (int, error) {
	if !r.said {
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

// slowest is how many bytes a second the other end has to send, or drops would hold
// a connection for weeks.
const slowest = 4 << 10

// boundedBody waits for each piece of a body, but not for ever: idle at most, and no
// longer than what has come is worth. Once all of it has been read there is no
// deadline: one that passed would look as if the other end had gone. Until then there
// is, since net/http too waits for what a route leaves unread; but not by HTTP/2,
// where it would end a request that is itself being waited for.
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
	b.left = min(b.idle, b.left-time.Since(began)+time.Duration(n)*time.Second/slowest)
	return n, err
}

// boundedWriter waits for the other end to take each piece, but not for ever.
type boundedWriter struct {
	http.ResponseWriter
	c    *http.ResponseController
	idle time.Duration
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	_ = w.c.SetWriteDeadline(time.Now().Add(w.idle))
	n, err := w.ResponseWriter.Write(p)
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

// within bounds how long a route works.
func (a *API) within(ctx context.Context, op huma.Operation) (context.Context, context.CancelFunc) {
	most := answerWithin
	if d, ok := op.Metadata["within"].(time.Duration); ok {
		most = d
	}
	if most < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, most)
}

// signedIn refuses a caller who is not signed in before anything of theirs is read.
func signedIn(ctx huma.Context, next func(huma.Context)) {
	if auth.From(ctx.Context()).Role == auth.NoRole {
		_, w := humago.Unwrap(ctx)
		writeProblem(w, problemOf(auth.ErrSignIn))
		return
	}
	next(ctx)
}

// role refuses a caller who can never do it before their body is read: bodies are large. The
// console checks again, for each message.
func role(r auth.Role) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if err := auth.From(ctx.Context()).May(r, ""); err != nil {
			_, w := humago.Unwrap(ctx)
			writeProblem(w, problemOf(err))
			return
		}
		next(ctx)
	}
}

// few refuses who comes when as many are served: their bodies, and what is made of
// them, are in memory.
func few(most int) func(huma.Context, func(huma.Context)) {
	places := make(chan struct{}, most)
	return func(ctx huma.Context, next func(huma.Context)) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			next(ctx)
		default:
			_, w := humago.Unwrap(ctx)
			writeProblem(w, problemOf(fmt.Errorf("%w: %d are served", ErrTooMany, most)))
		}
	}
}
