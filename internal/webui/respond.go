package webui

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/policy"
)

// handler makes a view of a request.
type handler func(r *http.Request, c auth.Caller) (view, error)

// view is a handler's answer: a page, a part of one, or a redirect.
type view struct {
	template string // of templates/, without .html
	part     string // only this template of it, without the frame around it
	title    string
	nav      string // which page of the navigation it belongs to
	command  string // what shows or does the same on the command line
	status   int    // 0: 200
	data     any
	to       string // go there instead
}

// frame is the data of the layout.
type frame struct {
	Title, Nav, Command string
	Caller              auth.Caller
	SignOut             string // where the caller signs out, if not here
	ReadOnly            bool
	Conditions          []condition.Condition
	Wrong               []string // what of them the page itself does not show, a line for each kind
	Mild                bool     // they only hide something
	Version             string
	VHosts              []VHost // where there are several
	Now                 time.Time
	URL                 string // of this page
	Did                 string // what was just done, in words
	Data                any
}

// May reports whether something that needs a role is offered.
func (f frame) May(role string) bool {
	r, err := auth.ParseRole(role)
	return err == nil && f.Caller.May(r, "") == nil
}

func (s *server) parse() map[string]*template.Template {
	files, err := templates.ReadDir("templates")
	if err != nil {
		panic(err) // it is embedded
	}
	base := template.Must(template.New("layout").Funcs(s.functions()).ParseFS(templates, "templates/layout.html",
		"templates/shared.html"))
	pages := map[string]*template.Template{}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".html")
		if name != "layout" && name != "shared" {
			pages[name] = template.Must(template.Must(base.Clone()).ParseFS(templates,
				path.Join("templates", f.Name())))
		}
	}
	return pages
}

// page serves a handler's view or error.
func (s *server) page(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := s.Caller(r)
		if c.Role == auth.NoRole {
			s.askToSignIn(w, r)
			return
		}
		ctx := r.Context()
		first := r.URL.Query().Get("wait") == ""
		if r.Method == http.MethodGet {
			limit := maxWait
			if first {
				limit = firstWait
			}
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		if r.Method == http.MethodPost {
			most := int64(maxForm)
			if r.Pattern == editPattern {
				most = maxEdit
			}
			r.Body = http.MaxBytesReader(w, r.Body, most)
			if err := r.ParseForm(); err != nil {
				s.render(w, r, c, errorView(fmt.Errorf("%w: the form cannot be read: %w", inspect.ErrInvalid, err)))
				return
			}
		}
		v, err := h(r.WithContext(ctx), c)
		switch {
		case errors.Is(err, auth.ErrSignIn):
			s.askToSignIn(w, r)
			return
		case err != nil && r.Context().Err() != nil:
			return // they have gone
		case err != nil && ctx.Err() != nil && first:
			v = view{template: "loading", title: "Reading", nav: "/" + strings.Split(r.URL.Path, "/")[1],
				data: withParam(r.URL, "wait", "1")}
		case err != nil:
			v = errorView(err)
			if d := v.data.(errorData); r.Method == http.MethodPost && r.PathValue("id") != "" &&
				v.status != http.StatusNotFound {
				parts := strings.SplitN(r.URL.EscapedPath(), "/", 4) // such as /operations/{id}/pause
				d.Back = "/" + parts[1] + "/" + parts[2]
				v.data = d
			}
		}
		s.render(w, r, c, v)
	})
}

// errorData is the data of the error page.
type errorData struct {
	Head, Text string
	Hint       string // what to do about it
	Again      bool   // trying again may help
	Back       string // the page of what a form was about
}

// errorView is the page of an error.
func errorView(err error) view {
	k := hint.KindOf(err, func(k hint.Kind) bool { return k.Title != "" })
	if k.Status == http.StatusPreconditionFailed { // is for conditions in headers, which a form has none of
		k.Status = http.StatusConflict
	}
	return view{template: "error", title: k.Title, status: k.Status, data: errorData{Head: k.Title,
		Text: cmp.Or(k.Says, hint.Text(err)), Hint: hint.Of(err), Again: k.Status >= 500 ||
			k.Status == http.StatusTooManyRequests}}
}

func (s *server) render(w http.ResponseWriter, r *http.Request, c auth.Caller, v view) {
	if v.to != "" {
		http.Redirect(w, r, s.at(v.to), http.StatusSeeOther)
		return
	}
	f := frame{Title: v.title, Nav: v.nav, Command: v.command, Caller: c, ReadOnly: c.ReadOnly,
		SignOut:    s.Guard.SignOutAt(c),
		Conditions: s.Conditions(c), Version: s.Version,
		Now: time.Now(), URL: r.URL.RequestURI(), Did: did(r.URL.Query()), Data: v.data}
	f.Mild = condition.Mild(f.Conditions) != ""
	f.Wrong = condition.Summary(f.Conditions)
	if c.Role == auth.NoRole {
		f.Version = ""
	} else if all := s.VHosts(); len(all) > 1 {
		f.VHosts = all
	}
	name := v.part
	if name == "" {
		name = "layout"
	}
	var b bytes.Buffer
	if err := s.pages[v.template].ExecuteTemplate(&yieldingWriter{&b, &s.rendering}, name, f); err != nil {
		s.Log.Error("the page could not be rendered", "template", v.template, "err", err)
		http.Error(w, "the page could not be rendered; the service's log says why", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Encoding")
	data := b.Bytes()
	// Others' pages must not learn from its compressed size what a page says.
	if takesGzip(r) && r.Header.Get("Sec-Fetch-Site") != "cross-site" {
		h.Set("Content-Encoding", "gzip")
		data = compressedQuickly(data)
	}
	if v.status != 0 {
		w.WriteHeader(v.status)
	}
	_, _ = w.Write(data)
}

// yieldingWriter pauses between the many small writes of a template, so that messages need not
// wait for it.
type yieldingWriter struct {
	b    *bytes.Buffer
	work *background.Work
}

func (p *yieldingWriter) Write(data []byte) (int, error) {
	p.work.Pause()
	return p.b.Write(data)
}

func (s *server) notFound(*http.Request, auth.Caller) (view, error) {
	return view{}, inspect.ErrNotFound
}

// withParam is a URL of this site with a parameter set.
func withParam(u *url.URL, name, value string) string {
	q := u.Query()
	q.Set(name, value)
	return u.EscapedPath() + "?" + q.Encode()
}

func parseQuery(q string) error {
	_, err := query.Parse(q)
	return err
}

// queryErrorOf is the error of a query, or nil when err is none.
func queryErrorOf(q string, err error) *queryError {
	var e *query.Error
	if !errors.As(err, &e) {
		return nil
	}
	r := []rune(q)
	at := min(max(e.At, 0), len(r))
	f := &queryError{Before: string(r[:at]), At: " ", Column: at + 1, Text: e.Msg}
	if at < len(r) {
		f.At, f.After = string(r[at]), string(r[at+1:])
	}
	return f
}

// Handlers and templates use paths as if the page were alone at its host. The base of one
// virtual host of several is put before a path last: in templates by at, for redirects by
// render, in the page's script by its own at.

// VHost is one of the virtual hosts that a service serves, each with a page of its
// own.
type VHost struct {
	Name string
	URL  string // of its first page, such as /v/shop/
	// Ready is false while its page has little to show, since RabbitMQ or its store
	// does not answer.
	Ready bool
	Here  bool // its page is this one
}

// at is where a browser finds a path of this page's.
func (s *server) at(path string) string { return s.Base + path }

// here adds to a redrive command the virtual host that the page shows.
func (s *server) here(line string) string {
	if s.VHost == "" {
		return line
	}
	return "redrive --vhost " + shellWord(s.VHost) + strings.TrimPrefix(line, "redrive")
}

// functions are the functions of this page's templates.
func (s *server) functions() template.FuncMap {
	all := maps.Clone(functions)
	maps.Copy(all, template.FuncMap{
		"at":   s.at,
		"here": s.here,
		"before": func(v actions.Verb) string { // "for a set time" with the time
			if s.Restorable == 0 {
				return v.Info().Before
			}
			return strings.Replace(v.Info().Before, "a set time", policy.FormatDuration(s.Restorable), 1)
		},
		"asset":    func(name string) string { return s.at(assetURL(name)) },
		"find":     func(pairs ...string) string { return s.at(findURL(pairs...)) },
		"messages": func(query string, more ...string) string { return s.at(messagesURL(query, more...)) },
		"queue":    func(name string) string { return s.at(queueURL(name)) },
		"group":    func(id string) string { return s.at(groupURL(id)) },
		"message":  func(id string) string { return s.at(messageURL(id)) },
	})
	return all
}
