package webui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// endlessly is a shop whose lists all have a next page.
type endlessly struct{ *webtest.Shop }

func (e endlessly) Search(ctx context.Context, c auth.Caller, q, after string, limit int) (inspect.Page, error) {
	p, err := e.Shop.Search(ctx, c, q, after, limit)
	p.After = "x"
	return p, err
}

func (e endlessly) Errors(ctx context.Context, c auth.Caller, q string, order inspect.ErrorOrder, after string, limit int) (inspect.ErrorPage, error) {
	p, err := e.Shop.Errors(ctx, c, q, order, after, limit)
	p.After = "x"
	return p, err
}

func (e endlessly) AuditActions(ctx context.Context, c auth.Caller, f inspect.AuditFilter, after string, limit int) (inspect.AuditActions, error) {
	all, err := e.Shop.AuditActions(ctx, c, f, after, limit)
	all.After = "x"
	return all, err
}

func (e endlessly) Outcomes(ctx context.Context, c auth.Caller, id, only, after string, limit int) (operations.Outcomes, error) {
	o, err := e.Shop.Outcomes(ctx, c, id, only, after, limit)
	o.After = "x"
	return o, err
}

// tenant serves a scene as the service serves one of several virtual hosts, to who is
// signed in: everybody but those who send a wrong token.
func (s scene) tenant(vhost string) (base string, h http.Handler) {
	base = httpapi.Base(vhost)
	return base, httpapi.Under(base, webui.Handler(endlessly{s.shop}, webui.Options{
		Caller: func(r *http.Request) auth.Caller {
			if r.Header.Get("Nobody") != "" {
				return auth.Caller{}
			}
			return s.caller
		},
		Version: "1.4.0", Base: base, VHost: vhost,
		VHosts: func() []webui.VHost {
			return []webui.VHost{{Name: "/", URL: "/", Ready: true}, {Name: vhost, URL: base + "/", Ready: true, Here: true}, {Name: hostile, URL: httpapi.Base(hostile) + "/"}}
		},
	}))
}

// hostile is a name that a virtual host can have.
const hostile = "\"><script>alert(1)</script>\u202e//evil.example"

// vhosts are names that mean something in a path, in HTML, in a shell.
var vhosts = []string{"shop", "a/b", "/", "%2F", `&amp="x' $(id)`, hostile}

// send is a form as a browser sends it.
func send(h http.Handler, target string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Where a page is under a base, a browser that loads it, or follows anything on it,
// stays there: but for what leads to the other virtual hosts.
func TestAllOfAPageIsUnderItsBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the pages that are slow take no time
		for i, s := range scenes() {
			base, h := s.tenant(vhosts[i%len(vhosts)])
			links := 0
			look := func(what string, w *httptest.ResponseRecorder) {
				t.Helper()
				if kind := w.Header().Get("Content-Type"); w.Code/100 == 3 || !strings.HasPrefix(kind, "text/html") {
					t.Errorf("%s, %s: %d %s %s", s.name, what, w.Code, kind, w.Header().Get("Location"))
					return
				}
				doc, err := html.Parse(w.Body)
				if err != nil {
					t.Fatal(err)
				}
				for n := range doc.Descendants() {
					for _, to := range leadsTo(n) {
						if strings.HasPrefix(to, "#") || inside(n, "vhosts") {
							continue
						}
						links++
						if !strings.HasPrefix(to, base+"/") || strings.HasPrefix(to, base+"//") || strings.HasPrefix(to, base+base) {
							t.Errorf("%s, %s: <%s> leads to %q, which is not under %s", s.name, what, n.Data, to, base)
						}
						if strings.HasPrefix(to, base+"/assets/") && get(h, to).Code != 200 {
							t.Errorf("%s, %s: there is no %s", s.name, what, to)
						}
					}
				}
				if root := doc.FirstChild.NextSibling; strings.HasPrefix(what, "/") && root != nil && root.Data == "html" && attribute(root, "data-base") != base {
					t.Errorf("%s, %s: the script is told %q", s.name, what, attribute(root, "data-base"))
				}
			}
			targets := append(s.of(), "/messages?q=", "/messages?q=state%3Aparked&after=x", "/messages?q=staat%3Ax", "/messages?q=queue%3Anowhere", "/errors?q=staat%3Ax", "/errors?q=queue%3Anowhere", "/errors?sort=last", "/messages?q=&cols=body.total%2Ckey%2Cno", "/audit?who=dana&from=2026-11-21T10%3A00",
				"/messages/nothing", "/plans/nothing", "/nowhere", "/help", "/signin", "/signin?error=refused&next=%2Fmessages%2Fx")
			for _, target := range targets {
				look(target, get(h, base+target))
			}
			for _, part := range []string{"/messages/count?q=", "/messages/new?q=&above=x", "/messages/check?q=staat%3Ax"} {
				look("part "+part, get(h, base+part))
			}
			s.shop.Slow = true
			for _, target := range []string{"/messages?q=text%3Aa", "/operations"} {
				look("slow "+target, get(h, base+target))
				look("endless "+target, get(h, base+target+"?&wait=1"))
			}
			s.shop.Slow = false
			id := "nothing"
			if len(s.shop.Messages) > 0 {
				id = s.shop.Messages[0].ID
			}
			for _, form := range []url.Values{{"verb": {"discard"}, "id": {id}}, {"verb": {"copy"}, "id": {id}}, {"verb": {"replay"}, "id": {id}, "one": {"1"}}, {"verb": {"restore"}, "id": {id, "x"}, "confirmed": {"1"}, "q": {"state:parked"}}, {}} {
				look("form "+form.Encode(), send(h, base+"/messages/act", form))
			}
			look("edit", send(h, base+"/messages/"+id+"/edit", url.Values{"new.name": {"a"}, "new.value": {"b"}}))
			look("no edit", send(h, base+"/messages/"+id+"/edit", url.Values{"at": {"nonsense"}}))
			if links < 500 {
				t.Errorf("%s: only %d links were seen", s.name, links)
			}
		}
	})
}

// leadsTo is all that an element makes a browser ask for, at once or when it is used.
func leadsTo(n *html.Node) (all []string) {
	for _, a := range n.Attr {
		switch {
		case slices.Contains([]string{"hx-trigger", "hx-target", "hx-swap", "hx-sync", "hx-select", "hx-include", "hx-vals"}, a.Key):
		case slices.Contains([]string{"href", "src", "srcset", "action", "formaction", "poster", "data-url"}, a.Key), strings.HasPrefix(a.Key, "hx-"):
			all = append(all, a.Val)
		case a.Key == "content" && attribute(n, "http-equiv") == "refresh":
			_, to, _ := strings.Cut(a.Val, "url=")
			all = append(all, to)
		}
	}
	if n.Data == "noscript" && n.FirstChild != nil { // is text to a browser with scripts, and to the parser
		if inner, err := html.Parse(strings.NewReader(n.FirstChild.Data)); err == nil {
			for m := range inner.Descendants() {
				all = append(all, leadsTo(m)...)
			}
		}
	}
	return all
}

func inside(n *html.Node, class string) bool {
	for ; n != nil; n = n.Parent {
		if attribute(n, "class") == class {
			return true
		}
	}
	return false
}

// What no scene shows is found in the templates themselves.
func TestNoTemplateForgetsTheBase(t *testing.T) {
	files, err := filepath.Glob("templates/*.html")
	if err != nil || len(files) < 15 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`[\w-]+=["']?/[^"'/].*?["']`).FindAllString(string(text), -1) {
			t.Errorf(`%s has %s: it must be "{{at …}}", or it leads to another virtual host's page`, file, found)
		}
	}
}

// What is done under a base leads to a page under it, and so does signing in.
func TestFormsLeadToPagesUnderTheBase(t *testing.T) {
	s := scenes()[0]
	base, h := s.tenant("a/b")
	leads := func(path string, form url.Values, want string) string {
		t.Helper()
		w := send(h, base+path, form)
		to, under := strings.CutPrefix(w.Header().Get("Location"), base)
		if w.Code != http.StatusSeeOther || !under || !strings.HasPrefix(to, want) {
			t.Errorf("%s leads to %d %q, want %s", path, w.Code, w.Header().Get("Location"), base+want)
		} else if got := get(h, base+to); got.Code != 200 {
			t.Errorf("%s leads to %s, which is %d", path, to, got.Code)
		}
		return to
	}
	leads("/messages/act", url.Values{"verb": {"discard"}, "id": {s.shop.Messages[0].ID}, "confirmed": {"1"}, "q": {"queue:a"}}, "/messages?q=queue%3Aa&did=discard&n=1")
	leads("/queues/pause", url.Values{"queue": {"mail.send"}}, "/queues?did=pause&n=1")
	leads("/queues/resume", url.Values{"queue": {"mail.send"}}, "/queues?did=resume&n=1")
	leads("/queues/breaker", url.Values{"queue": {"mail.send"}, "to": {"auto"}}, "/queues?did=auto&n=1")
	leads("/errors/"+s.shop.GroupList[0].ID+"/note", url.Values{"note": {"x"}, "q": {""}}, "/errors?did=note&n=1")
	leads("/errors/plan", url.Values{"verb": {"replay"}, "id": {s.shop.GroupList[0].ID}}, "/plans/")
	leads("/operations/"+s.shop.Ops[3].ID+"/rest", nil, "/plans/")
	leads("/operations/"+s.shop.Ops[0].ID+"/pause", nil, "/operations/"+s.shop.Ops[0].ID)
	edited := "/messages/" + s.shop.Messages[1].ID
	form := url.Values{"send": {"1"}}
	for i, header := range s.shop.Messages[1].Headers {
		form.Set(fmt.Sprint("name.", i), header.Name)
		form.Set(fmt.Sprint("value.", i), header.Value)
	}
	leads(edited+"/edit", form, "/messages/")
	plan := leads("/messages/plan", url.Values{"verb": {"replay"}, "q": {"queue:mail.send"}}, "/plans/")
	count := s.shop.Plans[strings.TrimPrefix(plan, "/plans/")].Count
	leads(plan+"/start", url.Values{"expect_count": {fmt.Sprint(count)}}, "/operations/")

	r := httptest.NewRequest("GET", base+"/messages?q=a%2Fb", nil)
	r.Header.Set("Nobody", "1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if to := w.Header().Get("Location"); to != base+"/signin?next=%2Fmessages%3Fq%3Da%252Fb" {
		t.Errorf("who is not signed in is led to %q", to)
	}
}

// Each command that a page shows names the virtual host, so that no one pastes what
// acts on another's messages; where there is but one, none does.
func TestCommandsReachTheVirtualHost(t *testing.T) {
	for i, vhost := range append(vhosts, "") {
		s := scenes()[0]
		base, h := "", s.handler()
		if vhost != "" {
			base, h = s.tenant(vhost)
		}
		want := map[string]string{"shop": "redrive --vhost shop ", "/": "redrive --vhost / ", `&amp="x' $(id)`: `redrive --vhost '&amp="x'\'' $(id)' `}[vhost]
		commands := 0
		for _, target := range append(s.of(), "/queues", "/signin", "/messages?q=queue%3Anowhere") {
			doc, err := html.Parse(get(h, base+target).Body)
			if err != nil {
				t.Fatal(err)
			}
			for n := range doc.Descendants() {
				if n.Data != "code" || n.FirstChild == nil || !strings.HasPrefix(n.FirstChild.Data, "redrive") {
					continue
				}
				commands++
				if text := n.FirstChild.Data; strings.Contains(text, "--vhost") != (vhost != "") || !strings.HasPrefix(text, want) || strings.Contains(text, "\u202e") {
					t.Errorf("%d: for %q, %s shows %q", i, vhost, target, text)
				}
			}
		}
		if commands < 20 {
			t.Errorf("only %d commands are shown", commands)
		}
	}
}

// Each page leads to the other virtual hosts, and says which of them cannot show much;
// where there is one, or no one is signed in, it says nothing of any.
func TestTheVirtualHostsOnAPage(t *testing.T) {
	s := scenes()[0]
	base, h := s.tenant("a/b")
	for _, target := range append(s.of(), "/help", "/nowhere", "/messages?q=staat%3Ax") {
		doc, err := html.Parse(get(h, base+target).Body)
		if err != nil {
			t.Fatal(err)
		}
		var shown []string
		for n := range doc.Descendants() {
			if n.Data == "title" && !strings.HasSuffix(n.FirstChild.Data, " · a/b · Redrive") {
				t.Errorf("%s is called %q: a tab must tell the virtual hosts apart", target, n.FirstChild.Data)
			}
			if n.Data == "a" && inside(n, "vhosts") {
				text := ""
				for m := range n.Descendants() {
					if m.Type == html.TextNode {
						text += m.Data
					}
				}
				shown = append(shown, attribute(n, "href")+" "+text+" "+attribute(n, "aria-current"))
			}
		}
		if want := []string{"/ / ", base + "/ a/b true", httpapi.Base(hostile) + `/ "><script>alert(1)</script>\u{202e}//evil.example not ready `}; !slices.Equal(shown, want) {
			t.Errorf("%s shows %q, want %q", target, shown, want)
		}
	}
	one := webui.Handler(s.shop, webui.Options{Caller: func(*http.Request) auth.Caller { return s.caller }, VHosts: func() []webui.VHost { return []webui.VHost{{Name: "/", URL: "/", Ready: true, Here: true}} }})
	for what, w := range map[string]*httptest.ResponseRecorder{"of one": get(one, "/"), "of none": get(s.handler(), "/"), "to sign in": get(h, base+"/signin"), "part": get(h, base+"/messages/count?q=")} {
		if strings.Contains(w.Body.String(), "vhosts") || w.Code != 200 {
			t.Errorf("the page %s: %d %s", what, w.Code, w.Body)
		}
	}
}
