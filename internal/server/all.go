package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/webui"
)

// allPath is where the page about all virtual hosts is, below base_path.
const allPath = "/all"

// askWithin is how long a virtual host may take to answer for all: the others' answers wait for it.
// It is less than Prometheus waits, and what takes longest is to check a password at a RabbitMQ
// that does not answer.
const askWithin = 3 * time.Second

// answer records a handler's answer.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *answer) copyTo(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// askEach sends a request to each virtual host, as its own guard lets it through, to all at once.
func (s *Service) askEach(r *http.Request, handler func(*vhost) http.Handler) []answer {
	ctx, cancel := context.WithTimeout(r.Context(), askWithin)
	defer cancel()
	all := make([]answer, len(s.vhosts))
	var asked sync.WaitGroup
	for i, v := range s.vhosts {
		all[i] = answer{header: http.Header{}, status: http.StatusOK}
		own := v.guard.ForAll(r.WithContext(ctx))
		own.Body = http.NoBody
		asked.Go(func() { handler(v).ServeHTTP(&all[i], own) })
	}
	asked.Wait()
	return all
}

// readyz answers "ready" when all virtual hosts are ready, and with the lines that each of them
// shows this caller.
func (s *Service) readyz(w http.ResponseWriter, r *http.Request) {
	ready, hidden, lines := true, false, ""
	for i, got := range s.askEach(r, func(v *vhost) http.Handler { return v.api }) {
		switch got.status {
		case http.StatusOK:
		case http.StatusServiceUnavailable:
			ready = false
		default: // without permission to ask
			got.copyTo(w)
			return
		}
		for line := range strings.Lines(got.body.String()) {
			switch strings.TrimSpace(line) {
			case "ready":
			case httpapi.Unsaid: // once for all of them
				hidden = true
			default:
				lines += "virtual host " + s.vhosts[i].config.Name() + ": " + line
			}
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if ready {
		fmt.Fprintln(w, "ready")
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprint(w, lines)
	if hidden {
		fmt.Fprintln(w, httpapi.Unsaid)
	}
}

// metricsHandler serves the metrics of all to callers with permission to read those of each. Those
// of a virtual host whose RabbitMQ cannot check the caller now are left out.
func (s *Service) metricsHandler() http.Handler {
	nothing := auth.Whole(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var readable []*metrics.Metrics
		asked := s.askEach(r, func(v *vhost) http.Handler { return v.api.Guarded(nothing) })
		for i := range asked {
			switch asked[i].status {
			case http.StatusOK:
				readable = append(readable, s.vhosts[i].metrics)
			case http.StatusServiceUnavailable:
			default:
				asked[i].copyTo(w)
				return
			}
		}
		if len(readable) == 0 {
			asked[0].copyTo(w)
			return
		}
		metrics.Handler(readable...).ServeHTTP(w, r)
	})
}

// lines returns a line for each virtual host in which the caller may see anything, and of those that
// cannot tell now the name. It returns false where there is none to see: who is no one is not told
// which virtual hosts there are.
func (s *Service) lines(r *http.Request) (all []inspect.VHost, any bool) {
	seen := make([]*inspect.VHost, len(s.vhosts))
	asked := s.askEach(r, func(v *vhost) http.Handler {
		at := &seen[slices.Index(s.vhosts, v)]
		return v.api.Guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			line, err := v.inspect.VHost(r.Context(), auth.From(r.Context()))
			switch {
			case err == nil:
				*at = &line
			case !errors.Is(err, auth.ErrForbidden):
				v.Log.Warn("the virtual host is not shown among all", "error", err)
				w.WriteHeader(http.StatusInternalServerError)
			}
		}))
	})
	for i, got := range asked {
		switch {
		case seen[i] != nil:
			all, any = append(all, *seen[i]), true
		case got.status >= http.StatusInternalServerError:
			all = append(all, inspect.VHost{Identity: inspect.Identity{Name: s.vhosts[i].config.Name()}, Unknown: got.why()})
		}
	}
	return all, any
}

// why is what an answer that is no success says.
func (a *answer) why() string {
	var p httpapi.Problem
	if json.Unmarshal(a.body.Bytes(), &p) != nil || p.Detail == "" {
		return fmt.Sprintf("its store has not answered within %s", askWithin)
	}
	return p.Detail
}

// listVHosts answers httpapi.VHostsPath for all virtual hosts.
func (s *Service) listVHosts(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && !auth.Foreign(r) {
		if all, any := s.lines(r); any {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_ = json.NewEncoder(w).Encode(httpapi.VHostList{List: all})
			return
		}
	}
	s.vhosts[0].api.ServeHTTP(w, r)
}

// allPage serves the page about all virtual hosts. A browser that is signed in to none is sent to
// sign in to the first.
func (s *Service) allPage() http.Handler {
	page := webui.All(webui.Options{Base: s.config.BasePath, Version: s.Version, Log: s.Log, VHosts: func() []webui.VHost { return s.vhostLinks(-1) }})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			if all, any := s.lines(r); any {
				page(w, r, all)
				return
			}
		}
		s.vhosts[0].api.ServeHTTP(w, r)
	})
}
