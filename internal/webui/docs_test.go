package webui_test

import (
	"io/fs"
	"net/http"
	"path"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/docs"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// Each page of the documentation is served, and each of its links leads to something served, and to a heading of it.
func TestTheDocumentation(t *testing.T) {
	s := scenes()[0]
	tenant, under := s.tenant("a/b")
	for base, h := range map[string]http.Handler{"": s.handler(), tenant: under} {
		ids, links := map[string]map[string]bool{}, map[string][]string{}
		see := func(target string) {
			w := get(h, base+target)
			if kind := w.Header().Get("Content-Type"); w.Code != 200 || !strings.HasPrefix(kind, "text/html") {
				t.Fatalf("%s: %d %s", base+target, w.Code, kind)
			}
			ids[base+target] = map[string]bool{}
			for n := range parse(t, w).Descendants() {
				ids[base+target][attribute(n, "id")] = true
				if n.Type == html.CommentNode || within(n, "style") || n.Data == "style" {
					t.Errorf("%s has a <%s>", target, n.Data)
				}
				if to := attribute(n, "href") + attribute(n, "src"); inside(n, "doc") && to != "" {
					if to[0] == '#' {
						to = base + target + to
					}
					links[target] = append(links[target], to)
				}
			}
		}
		see("/docs")
		see("/docs/")
		expect.NoError(t, fs.WalkDir(docs.Files, ".", func(name string, d fs.DirEntry, err error) error {
			if path.Ext(name) == ".md" {
				see("/docs/" + name)
			}
			return err
		}))
		seen := 0
		for page, all := range links {
			for _, to := range all {
				seen++
				to, fragment, _ := strings.Cut(to, "#")
				if is, ok := ids[to]; ok {
					if fragment != "" && !is[fragment] {
						t.Errorf("%s leads to %s, which has no %s", page, to, fragment)
					}
				} else if path.Ext(to) == ".png" {
					w := get(h, to)
					expect.Equal(t, w.Header().Get("Content-Type"), "image/png", "%s: %s", page, to)
					expect.Equal(t, w.Code, 200, "%s: %s", page, to)
				} else if !strings.HasPrefix(to, "https://") && to != base+"/api/v1/openapi.json" {
					t.Errorf("%s leads to %s, which is not served", page, to)
				}
			}
		}
		if len(links) < 30 || seen < 200 {
			t.Errorf("only %d links of %d pages were found", seen, len(links))
		}
		for _, target := range []string{"/docs/nothing", "/docs/how-to", "/docs/images/nothing", "/docs/images",
			"/docs/images%2Fadopt-plan.png", "/docs/docs.go"} {
			w := get(h, base+target)
			expect.Equal(t, w.Code, 404, "%s", target)
			expect.Contains(t, w.Body.String(), target, `id="failed"`)
		}
		expect.Contains(t, get(h, base+"/help").Body.String(), "the page Help",
			`<a href="`+base+`/docs/">Documentation of this version</a>`)
	}
	s.caller = auth.Caller{}
	for _, target := range []string{"/docs/", "/docs/images/adopt-plan.png"} {
		to := get(s.handler(), target).Header().Get("Location")
		expect.Equal(t, to, "/signin?next="+strings.ReplaceAll(target, "/", "%2F"), "%s", target)
	}
}
