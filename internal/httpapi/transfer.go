package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
)

// mostImport bounds an import. It is streamed: the bound is for the disk.
const mostImport = 16 << 30

// stream registers a route that writes its answer piece by piece. An error before the first
// byte is sent as a Problem; after it, the connection is cut, so that no client takes a part
// for the whole.
func stream[I any](a *API, op huma.Operation, types []string, do func(ctx context.Context, c auth.Caller, in *I, w http.ResponseWriter, r *http.Request) error) {
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
				for _, name := range []string{"Content-Disposition", "Content-Length", "Trailer"} { // of what is not sent
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

// firstByte tells whether anything was written.
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
	stream(a, route(http.MethodGet, "/messages/{id}/body", "body", "Transfer", "A message's raw body, as a download"), []string{"application/octet-stream"},
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

	snapshot := route(http.MethodPost, "/snapshot", "snapshot", "Transfer", "Write a copy of the store, as it is at one moment, to a folder on the service's machine")
	snapshot.Metadata = map[string]any{"timeout": time.Duration(-1)}
	handle(a, snapshot, func(ctx context.Context, c auth.Caller, in *body[Snapshot]) (actions.SnapshotMade, error) {
		return a.Console.Snapshot(ctx, c, in.Body.Folder)
	})
}

func (a *API) exportRoute() {
	op := route(http.MethodGet, "/export", "export", "Transfer", "All that a query finds: jsonl with bodies, which an import takes; csv without, for people")
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
		h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="redrive-%s.%s"`, a.Now().UTC().Format("20060102-150405"), in.Format))
		h.Set("Trailer", countTrailer)
		n, err := write(ctx, c, in.Q, w)
		if err == nil {
			h.Set(countTrailer, strconv.FormatInt(n, 10))
		}
		return err
	})
}

func (a *API) importRoute() {
	in := route(http.MethodPost, "/import", "import", "Transfer", "Keep the messages of an export, parked, or as they are")
	in.Metadata = map[string]any{"timeout": time.Duration(-1)}
	in.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{typeJSONLines: {Schema: &huma.Schema{Type: huma.TypeString}}}}
	in.Middlewares = slices.Concat(huma.Middlewares{requireRole(auth.Editor)}, in.Middlewares, huma.Middlewares{upload})
	handle(a, in, func(ctx context.Context, c auth.Caller, in *struct {
		DryRun bool `query:"dry_run" doc:"Only check it."`
		AsIs   bool `query:"as_is" doc:"Keep id, state, attempts and times as in the export, also of messages that wait: for administrators."`
	}) (actions.Imported, error) {
		return a.Console.Import(ctx, c, ctx.Value(uploadKey{}).(io.Reader), actions.ImportOptions{DryRun: in.DryRun, AsIs: in.AsIs})
	})
}

// upload passes the body of an import on to its route, which reads it by itself.
func upload(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); t != typeJSONLines && t != "application/x-ndjson" {
		writeProblem(w, problem(http.StatusUnsupportedMediaType, "content_type", "an import is sent as "+typeJSONLines))
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), uploadKey{}, http.MaxBytesReader(w, r.Body, mostImport)))
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
