package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/webui"
)

// routes serves page and API of the first virtual host at /, and those of each at /v/NAME/,
// with callers of its own. Where there are several, health, metrics and the list of virtual hosts at
// / are of all: see all.go. All is
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
		combined[httpapi.VHostsPath], combined[allPath] = http.HandlerFunc(s.listVHosts), s.allPage()
	}
	under := map[string]http.Handler{}
	for _, v := range s.vhosts {
		under[v.config.Name()] = httpapi.Under(httpapi.Base(v.config.Name()), v.api)
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
		all = append(all, webui.VHost{Name: v.vhostLabel(), URL: v.base + "/", Ready: v.health.ready(), Here: i == here})
	}
	return all
}
