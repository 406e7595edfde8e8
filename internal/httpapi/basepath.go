package httpapi

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
)

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

// decodedSlash is the hint where a proxy may have decoded them.
const decodedSlash = "a slash in a name is %2F, which a proxy may have decoded: let it pass on paths as they are (nginx: proxy_pass without a path)"

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
