package webui

import (
	"net/http"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// navAll is the page about all virtual hosts. It belongs to none of them, so it has no pages beside
// it.
const navAll = "/all"

// line is a virtual host on the page about all.
type line struct {
	Of  inspect.VHost
	URL string // of its first page
}

// All returns what serves the page about all virtual hosts, with these lines: those that the caller
// may see. Its caller authenticates.
func All(o Options) func(w http.ResponseWriter, r *http.Request, all []inspect.VHost) {
	o.All = o.Base + navAll
	s := newServer(nil, o)
	return func(w http.ResponseWriter, r *http.Request, all []inspect.VHost) {
		urls := map[string]string{}
		for _, v := range s.VHosts() {
			urls[v.Name] = v.URL
		}
		lines := make([]line, len(all))
		for i, v := range all {
			lines[i] = line{v, urls[v.Name]}
		}
		headers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.render(w, r, auth.Caller{Role: auth.Viewer}, view{template: "all", title: "All virtual hosts", nav: navAll, command: "redrive status --all", data: lines})
		})).ServeHTTP(w, r)
	}
}
