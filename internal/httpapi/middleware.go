package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/auth"
)

const (
	// defaultTimeout is how long a request may take, unless its route has another timeout.
	defaultTimeout = 30 * time.Second
	// planTimeout is the same for plans, which look at all messages.
	planTimeout = 10 * time.Minute
	// mostURL bounds a request's path and query.
	mostURL = 16 << 10
)

// headersAndLimits is what every request passes before its caller is known.
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
		if len(r.RequestURI) > mostURL {
			writeProblem(w, problem(http.StatusRequestURITooLong, "too_large", "the URL is too long; write the query shorter"))
			return
		}
		if decodes(r) {
			writeProblem(w, problem(http.StatusBadRequest, "malformed", "a proxy has decoded %2F in the path, which leads to something else; "+decodedSlash))
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
	writeProblem(r.ResponseWriter, problem(status, code, "there is no such route: "+r.base+v1+"/openapi.json lists them; "+decodedSlash))
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

// boundedBody bounds the wait for each piece of a body: by idle, and by the time that the
// bytes so far are worth at minSpeed. Once all of it has been read there is no deadline: one
// that passed would look as if the client had gone. Until then there is, since net/http too
// waits for what a route leaves unread; but not by HTTP/2, where it would end a request whose
// answer is still being made.
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

// boundedWriter bounds the wait until the client receives each piece: by idle, and by the time that
// the bytes so far are worth at minTaken.
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
