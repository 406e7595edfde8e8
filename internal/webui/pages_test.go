package webui_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// scene is the page in one of its states.
type scene struct {
	name   string
	shop   *webtest.Shop
	caller auth.Caller
	status int // of pages that show what is kept
}

func scenes() []scene {
	now := time.Now()
	admin := auth.Caller{Name: "dana", How: "rabbitmq", Role: auth.Admin}
	readOnly, viewer := admin, admin
	readOnly.ReadOnly, viewer.Role = true, auth.Viewer
	failing := webtest.New(now)
	failing.Fails = errors.New("the store cannot be read")
	return []scene{
		{"normal", webtest.New(now), admin, 200},
		{"read-only", webtest.New(now), readOnly, 200},
		{"viewer", webtest.New(now), viewer, 200},
		{"empty", &webtest.Shop{Now: now, Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}}, admin, 200},
		{"failing", failing, admin, 500},
	}
}

func (s scene) handler() http.Handler {
	return webui.Handler(s.shop, webui.Options{Caller: func(*http.Request) auth.Caller { return s.caller }, Version: "1.4.0"})
}

func get(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

var pages = []string{"/", "/messages", "/messages?q=state%3Aparked", "/messages?q=-queue%3Aa", "/errors", "/queues", "/queues?name=mail&sort=waiting", "/operations", "/policies", "/audit", "/health"}

// of is the pages of a scene with those of what it has.
func (s scene) of() []string {
	all := pages
	for _, m := range s.shop.Messages[:min(4, len(s.shop.Messages))] {
		all = append(all, "/messages/"+m.ID, "/messages/"+m.ID+"/edit")
	}
	for _, q := range s.shop.QueueList[:min(8, len(s.shop.QueueList))] {
		all = append(all, "/queues/"+url.PathEscape(q.Name))
	}
	for _, o := range s.shop.Ops {
		all = append(all, "/operations/"+o.ID)
	}
	for id := range s.shop.Plans {
		all = append(all, "/plans/"+id)
	}
	return all
}

// Each page in each state is whole, says what the browser may do with it, brings no
// script or style within, and asks for nothing from elsewhere; where its links and
// forms lead there is something.
func TestEachPageInEachState(t *testing.T) {
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			h := s.handler()
			led := map[string]bool{}
			for _, target := range s.of() {
				w := get(h, target)
				forbidden := w.Code == http.StatusForbidden && (strings.HasSuffix(target, "/edit") || target == "/audit" && s.caller.Role < auth.Admin)
				if w.Code != s.status && !forbidden {
					t.Errorf("%s: %d", target, w.Code)
				}
				if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") {
					t.Errorf("%s: %q", target, policy)
				}
				doc, err := html.Parse(w.Body)
				if err != nil {
					t.Fatal(err)
				}
				mains := 0
				for n := range doc.Descendants() {
					if n.Type != html.ElementNode {
						continue
					}
					if n.Data == "main" {
						mains++
					}
					if n.Data == "style" || n.Data == "script" && n.FirstChild != nil && attribute(n, "type") == "" {
						t.Errorf("%s: a %s within", target, n.Data)
					}
					for _, a := range n.Attr {
						switch {
						case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
							t.Errorf("%s: <%s %s>", target, n.Data, a.Key)
						case a.Key == "href" || a.Key == "src" || a.Key == "action":
							if !strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "#") || strings.HasPrefix(a.Val, "//") {
								t.Errorf("%s: <%s %s=%q> leads elsewhere", target, n.Data, a.Key, a.Val)
							}
							if path, _, _ := strings.Cut(a.Val, "#"); a.Key == "href" && path != "" && !elsewhere.MatchString(path) {
								led[path] = true
							}
						}
					}
				}
				if mains != 1 {
					t.Errorf("%s: %d main parts", target, mains)
				}
			}
			for target := range led {
				if w := get(h, target); w.Code == http.StatusNotFound {
					t.Errorf("a link leads to %s, which is not there", target)
				}
			}
		})
	}
}

// elsewhere is what the service has besides the page.
var elsewhere = regexp.MustCompile(`^/(healthz|readyz|metrics|api/v1/.*)$`)

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// The first paint takes the page itself and what its head names: under 100 kB as they
// are sent.
func TestTheFirstPaintIsSmall(t *testing.T) {
	h := scenes()[0].handler()
	first := get(h, "/")
	sum := compressed(t, first.Body.Bytes())
	doc, err := html.Parse(first.Body)
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for n := range doc.Descendants() {
		target := ""
		switch n.Data {
		case "script":
			target = attribute(n, "src")
		case "link":
			target = attribute(n, "href")
		}
		if target == "" {
			continue
		}
		w := get(h, target)
		if w.Code != 200 {
			t.Errorf("%s: %d", target, w.Code)
		}
		loaded++
		sum += compressed(t, w.Body.Bytes())
	}
	if loaded < 3 || sum >= 100_000 {
		t.Errorf("%d files and the page are %d bytes", loaded, sum)
	}
	t.Logf("%d bytes", sum)
}

func compressed(t *testing.T, data []byte) int {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Len()
}

// The commands that pages offer are ones there are, with flags that they have.
func TestTheCommandsAreThere(t *testing.T) {
	reference, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range strings.Split(string(reference), "\n### redrive ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		sections[name] = text
	}
	flag := regexp.MustCompile(`--[a-z-]+`)
	seen := map[string]bool{}
	s := scenes()[0]
	h := s.handler()
	for _, target := range s.of() {
		doc, err := html.Parse(get(h, target).Body)
		if err != nil {
			t.Fatal(err)
		}
		for n := range doc.Descendants() {
			if n.Data != "code" || n.FirstChild == nil || !strings.HasPrefix(n.FirstChild.Data, "redrive ") {
				continue
			}
			words := strings.Fields(n.FirstChild.Data)[1:]
			text, ok := sections[strings.Join(words[:min(2, len(words))], " ")]
			if !ok {
				text, ok = sections[words[0]]
			}
			if !ok {
				t.Errorf("%s offers %q", target, n.FirstChild.Data)
			}
			for _, f := range flag.FindAllString(n.FirstChild.Data, -1) {
				if !strings.Contains(text, f) {
					t.Errorf("%s offers %q, which has no %s", target, n.FirstChild.Data, f)
				}
			}
			seen[words[0]] = true
		}
	}
	if len(seen) < 6 {
		t.Errorf("only %v are offered", seen)
	}
}
