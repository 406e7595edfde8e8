package server

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/webui"
)

// routes serves page and API of the first virtual host at /, and those of each at /v/NAME/,
// with callers of its own. Where there are several, health and metrics at / are of all. All is
// served below base_path too: some proxies pass it on, and some remove it.
func (s *Service) routes() http.Handler {
	all, base := s.vhostRoutes(), s.config.BasePath
	below := httpapi.Under(base, all)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := r.URL.EscapedPath(); base != "" && (at == base || strings.HasPrefix(at, base+"/")) {
			below.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
}

func (s *Service) vhostRoutes() http.Handler {
	first := s.vhosts[0].api
	combined := map[string]http.Handler{}
	if len(s.vhosts) > 1 {
		combined["/readyz"], combined["/metrics"] = http.HandlerFunc(s.readyz), s.metricsHandler()
	}
	under := map[string]http.Handler{}
	for _, v := range s.vhosts {
		under[v.config.VHost()] = httpapi.Under(httpapi.Base(v.config.VHost()), v.api)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := combined[r.URL.Path]
		if step, ok := strings.CutPrefix(r.URL.EscapedPath(), "/v/"); ok {
			step, _, _ = strings.Cut(step, "/")
			name, err := url.PathUnescape(step)
			if h = under[name]; h == nil || err != nil {
				// Which there are is not for everybody.
				httpapi.NotFound(w, fmt.Sprintf("there is no virtual host %q here: `redrive check FILE` shows which those are that a config file serves", name))
				return
			}
		}
		if h == nil {
			h = first
		}
		h.ServeHTTP(w, r)
	})
}

// vhostLinks are the links of a page to all virtual hosts; here is its own.
func (s *Service) vhostLinks(here int) (all []webui.VHost) {
	for i, v := range s.vhosts {
		all = append(all, webui.VHost{Name: v.vhostLabel(), URL: v.base + "/", Ready: v.conditions.Ready(), Here: i == here})
	}
	return all
}

// readyz answers "ready" when all virtual hosts are ready, and with the lines that each of them
// shows this caller.
func (s *Service) readyz(w http.ResponseWriter, r *http.Request) {
	ready, hidden, lines := true, false, ""
	for _, v := range s.vhosts {
		got := answer{header: http.Header{}, status: http.StatusOK}
		v.api.ServeHTTP(&got, r)
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
				lines += "virtual host " + v.config.VHost() + ": " + line
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

// metricsHandler serves the metrics of all to callers with permission to read those of each.
func (s *Service) metricsHandler() http.Handler {
	all := make([]*metrics.Metrics, len(s.vhosts))
	for i, v := range s.vhosts {
		all[i] = v.metrics
	}
	h := metrics.Handler(all...)
	for _, v := range s.vhosts {
		h = v.api.Guarded(auth.Whole(h))
	}
	return h
}
