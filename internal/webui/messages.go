package webui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// perPage is how many messages a page of the list has.
const perPage = 50

// tab is a saved query.
type tab struct {
	Name, Query string
	Current     bool
	Count       string // "": not known without a search
}

// messagesData is the list of messages.
type messagesData struct {
	Query      string
	Columns    string // of one's choice, as in the link; "": the usual ones
	Chosen     []inspect.Column[inspect.Message]
	Problem    string // with Columns
	State      string // of the tab, "" for all
	Ends       string // heading of the time of ends
	Tabs       []tab
	QueryError *queryError
	inspect.Page
	Parked string // why, where all on this page were parked for the same; each row says so otherwise
	Sort   sorting
	Newest string // the first message of the list: what is above it later is new
	First  bool   // this is the first page
	Next   string // URL of the next page
	// SoFar is how many messages were looked at before the first that matches. A page without one continues
	// by itself, unless a person has Stopped it.
	SoFar   int64
	Stopped bool
	Verbs   []actions.VerbInfo
}

// queryError is an error in a query: the query around the character it is at.
type queryError struct {
	Before, At, After string
	Column            int
	Text              string
}

// verbsFor are the verbs that a caller is offered for messages of a state; for a list of all states, all.
func verbsFor(c auth.Caller, state string) (all []actions.VerbInfo) {
	for _, v := range actions.Verbs {
		offered := slices.Contains(v.Offered, state) || state == "" && v.Offered != nil
		if offered && c.May(v.Role, "") == nil {
			all = append(all, v)
		}
	}
	return all
}

func (s *server) messages(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	q := in.Get("q")
	if !in.Has("q") {
		q = "state:" + inspect.Parked
	}
	d := messagesData{Query: q, Columns: in.Get("columns"), Stopped: in.Has("stop")}
	d.SoFar, _ = strconv.ParseInt(in.Get("looked"), 10, 64)
	d.First = in.Get("after") == "" || d.SoFar > 0
	d.Tabs, d.State = tabs(q)
	d.Verbs = verbsFor(c, d.State)
	chosen, err := query.Columns(d.Columns)
	if err != nil {
		d.Problem, d.Columns = err.Error(), ""
	}
	d.Chosen = inspect.ChosenColumns(chosen)
	words := []string{"redrive", "messages", "list"}
	if d.Chosen != nil {
		words = append(words, "--columns", d.Columns)
	}
	v := view{template: "messages", title: "Messages", nav: "/messages",
		command: command(append(words, positional(query.InAllStates(q))...)...)}
	if d.Problem != "" {
		v.status = http.StatusUnprocessableEntity
	}
	page, err := s.console.Search(r.Context(), c, q, in.Get("after"), perPage, d.Columns)
	if d.QueryError = queryErrorOf(q, err); d.QueryError != nil {
		v.data, v.status = d, http.StatusUnprocessableEntity
		return v, nil
	}
	if err != nil {
		return view{}, err
	}
	d.Page = page
	if len(page.Messages) > 1 && !slices.ContainsFunc(page.Messages, func(m inspect.Message) bool {
		return m.ParkedFor != page.Messages[0].ParkedFor
	}) {
		d.Parked = page.Messages[0].ParkedFor
	}
	s.countTabs(r.Context(), c, d.Tabs)
	if len(page.Messages) > 0 {
		d.Newest = page.Messages[0].ID
	}
	stored, by := "-next", slices.Clone(messageColumns)
	d.Ends = map[string]string{inspect.Waiting: "Due", inspect.Parked: "Parked", inspect.Retried: "Retried",
		inspect.Discarded: "Restorable until", "": "Next"}[d.State]
	by[next].Head = d.Ends
	if page.Soonest {
		stored = "next"
	}
	if d.Chosen != nil {
		stored, by = "", d.Chosen
	}
	d.Sort = sortRows(s, r.URL, stored, page.Messages, page.After != "", by)
	if d.SoFar += page.Looked; page.After != "" {
		next := url.Values{"q": {q}, "after": {page.After}}
		for name, value := range map[string]string{"columns": d.Columns, "sort": d.Sort.By} {
			if value != "" {
				next.Set(name, value)
			}
		}
		if len(page.Messages) == 0 && d.First {
			next.Set("looked", strconv.FormatInt(d.SoFar, 10))
		}
		d.Next = "/messages?" + next.Encode()
	}
	v.data = d
	return v, nil
}

// messageColumns are those that messages are sorted by, where no others are chosen.
var messageColumns = []inspect.Column[inspect.Message]{
	{Field: "State"}, {Head: "What went wrong", Field: "Error", Value: func(m inspect.Message) any {
		return cmp.Or(m.Error, m.Reason)
	}}, {Field: "Queue"}, {Head: "Fails", Field: "Attempt", Value: inspect.Message.Failures}, {Field: "Failed"},
	{Field: "Size"}, next: {Field: "Next", Value: func(m inspect.Message) any { return ends(m) }},
}

const next = 6 // of messageColumns

// ends is when the state of a message ends or, of one that stays in it, began.
func ends(m inspect.Message) *time.Time { return cmp.Or(m.Due, m.ParkedAt, m.Restorable, m.RetriedAt) }

// soon is what the tab of the next ten minutes adds to the waiting ones.
const soon = "due:<10m"

// tabs are the saved queries: each is this query in another state, and the last one what is due soon.
func tabs(query string) (all []tab, state string) {
	rest, state := withoutState(query)
	words := terms(rest)
	at := slices.Index(words, soon)
	isSoon := state == inspect.Waiting && at >= 0 && (at == 0 || words[at-1] != "NOT")
	if isSoon {
		rest = strings.Join(slices.Delete(words, at, at+1), " ")
	}
	narrowed := rest
	if slices.Contains(terms(rest), "OR") { // AND binds closer
		narrowed = "(" + rest + ")"
	}
	for _, s := range []string{inspect.Waiting, inspect.Parked, inspect.Retried, inspect.Discarded, ""} {
		t := tab{Name: title(cmp.Or(s, inspect.AllStates)), Query: rest, Current: s == state && !isSoon}
		if s != "" {
			t.Query = strings.TrimSpace("state:" + s + " " + narrowed)
		}
		all = append(all, t)
	}
	return append(all, tab{Name: "Due in ten minutes", Current: isSoon,
		Query: strings.TrimSpace("state:" + inspect.Waiting + " " + soon + " " + narrowed)}), state
}

// title is a state as the name of its tab.
func title(state string) string { return strings.ToUpper(state[:1]) + state[1:] }

// countTabs fills in what the store's counts tell without a search.
func (s *server) countTabs(ctx context.Context, c auth.Caller, all []tab) {
	n, known, err := s.console.CountStates(ctx, c, all[4].Query)
	if known && err == nil {
		all[0].Count, all[1].Count, all[3].Count = count(n.Waiting), count(n.Parked), count(n.Discarded)
	}
}

// withoutState removes the state from a query's terms, where all of them must hold.
func withoutState(query string) (rest, state string) {
	all := terms(query)
	if slices.Contains(all, "OR") {
		return query, ""
	}
	var kept []string
	for i, term := range all {
		if i > 0 && all[i-1] == "NOT" {
			kept = append(kept, term)
		} else if s, is := strings.CutPrefix(term, "state:"); is &&
			slices.Contains([]string{inspect.Waiting, inspect.Parked, inspect.Retried, inspect.Discarded}, s) {
			state = s
		} else {
			kept = append(kept, term)
		}
	}
	return strings.Join(kept, " "), state
}

// terms splits a query at the spaces that are neither in quotes nor in parentheses.
func terms(query string) []string {
	quoted, escaped, depth := false, false, 0
	return strings.FieldsFunc(query, func(r rune) bool {
		switch {
		case escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case quoted:
		case r == '(':
			depth++
		case r == ')':
			depth--
		}
		return r == ' ' && !quoted && depth <= 0
	})
}

// countMessages is how many messages a query finds.
func (s *server) countMessages(r *http.Request, c auth.Caller) (view, error) {
	n, exact, err := s.console.Count(r.Context(), c, r.URL.Query().Get("q"))
	text := count(n)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && n == 0:
		text = "not counted in time"
	case errors.Is(err, context.DeadlineExceeded):
		text = "at least " + text
	case err != nil:
		text = "?"
	case !exact:
		text = "at least " + text
	}
	return view{template: "messages", part: "total", data: text}, nil
}

// newMessages is how many messages are newer than the first of a list. They are shown only when a
// person asks: no row may move under a cursor.
func (s *server) newMessages(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	v := view{template: "messages", part: "newer", data: map[string]string{}}
	page, err := s.console.Search(r.Context(), c, in.Get("q"), "", perPage)
	if err != nil {
		return v, nil // the list itself tells of errors
	}
	n := 0
	for n < len(page.Messages) && page.Messages[n].ID != in.Get("above") {
		n++
	}
	text := ""
	switch {
	case n == len(page.Messages) && page.After != "":
		text = fmt.Sprintf("%d or more", n)
	case n > 0:
		text = fmt.Sprint(n)
	}
	v.data = map[string]string{"N": text, "Query": in.Get("q"), "Columns": in.Get("columns"), "Sort": in.Get("sort")}
	return v, nil
}

// checkQuery checks a query while it is written.
func (s *server) checkQuery(r *http.Request, _ auth.Caller) (view, error) {
	in := r.URL.Query()
	q, err := query.Parse(in.Get("q"))
	if err == nil && in.Has("groups") {
		err = q.OnlyGroups()
	}
	return view{template: "messages", part: "check", data: queryErrorOf(in.Get("q"), err)}, nil
}

// export is all that a query finds, as a download.
func (s *server) export(w http.ResponseWriter, r *http.Request) {
	c := s.Caller(r)
	q := r.URL.Query().Get("q")
	if err := c.May(auth.Viewer, ""); err != nil {
		s.render(w, r, c, errorView(err))
		return
	}
	if auth.Foreign(r) {
		s.render(w, r, c, errorView(fmt.Errorf("%w: a page of another site leads to this download", auth.ErrForbidden)))
		return
	}
	if err := parseQuery(q); err != nil {
		s.render(w, r, c, errorView(fmt.Errorf("%w: %w", inspect.ErrInvalid, err)))
		return
	}
	safe := w.Header().Get("Content-Security-Policy")
	download(w, "messages.jsonl")
	_, err := s.console.Export(r.Context(), c, q, w)
	if errors.Is(err, auth.ErrForbidden) { // before its first byte
		w.Header().Del("Content-Disposition")
		w.Header().Set("Content-Security-Policy", safe)
		s.render(w, r, c, errorView(err))
		return
	}
	if err != nil {
		s.Log.Warn("an export ended early", "err", err)
		panic(http.ErrAbortHandler) // so that no one takes it for whole
	}
}

// download makes a response a file on disk, never something that a browser shows.
func download(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	w.Header().Set("Content-Security-Policy", "sandbox; default-src 'none'")
}

// messageData is one message.
type messageData struct {
	inspect.Detail
	Ref      string           // as it was asked for
	Text     string           // of the body, as much as is shown
	Cut      bool             // there is more of it
	Own      []inspect.Header // all but the next
	Ours     []inspect.Header // x-redrive-…
	Coloured bool             // Text is JSON that is short enough to be coloured
	Reason   string           // why what is masked is shown; "": it is not
	Verbs    []actions.VerbInfo
	Editable bool
}

const (
	// maxShown of a decoded body is in the page at first; what is longer makes
	// browsers slow.
	maxShown = 64 << 10
	// maxColoured: each token of JSON is an element of the page.
	maxColoured = 24 << 10
)

func (s *server) message(r *http.Request, c auth.Caller) (view, error) {
	id := r.PathValue("id")
	m, err := s.console.Message(r.Context(), c, id)
	if err != nil {
		return view{}, err
	}
	return messageView(r, c, m, ""), nil
}

// show is the answer to a post and stands in no URL, so that only another reason shows it again.
func (s *server) show(r *http.Request, c auth.Caller) (view, error) {
	id, reason := r.PathValue("id"), strings.TrimSpace(r.PostForm.Get("reason"))
	m, err := s.console.Show(r.Context(), c, id, reason)
	if err != nil {
		return view{}, err
	}
	v := messageView(r, c, m, reason)
	v.command = command("redrive", "messages", "show", id, "--unmask", "--reason", reason)
	return v, nil
}

func messageView(r *http.Request, c auth.Caller, m inspect.Detail, reason string) view {
	id := r.PathValue("id")
	d := messageData{Detail: m, Ref: id, Reason: reason, Verbs: verbsFor(c, m.State),
		Editable: m.State == inspect.Parked || m.State == inspect.Waiting}
	for _, h := range m.Headers {
		if strings.HasPrefix(h.Name, "x-redrive-") {
			d.Ours = append(d.Ours, h)
		} else {
			d.Own = append(d.Own, h)
		}
	}
	if m.Body != nil {
		d.Text = m.Body.Text
		if len(d.Text) > maxShown && reason == "" && r.URL.Query().Get("body") != "all" {
			d.Text, d.Cut = strings.ToValidUTF8(d.Text[:maxShown], ""), true // without half a character
		}
		switch m.Body.Format {
		case "json", "protobuf", "messagepack", "cbor":
			d.Coloured = len(d.Text) <= maxColoured
		}
	}
	return view{template: "message", title: "Message in " + short(60, m.Queue), nav: "/messages",
		command: command("redrive", "messages", "show", id), data: d}
}

// body is the raw body, as a download: a browser must never show it as a page.
func (s *server) body(w http.ResponseWriter, r *http.Request) {
	c := s.Caller(r)
	b, err := s.console.Body(r.Context(), c, r.PathValue("id"))
	if err != nil {
		s.render(w, r, c, errorView(err))
		return
	}
	download(w, "body.bin")
	_, _ = w.Write(b)
}

// token is a piece of JSON and its kind.
type token struct{ Kind, Text string }

// tokens splits JSON for colouring. Joined, they are the text, also when it is not JSON.
func tokens(s string) (all []token) {
	add := func(kind string, n int) {
		all = append(all, token{kind, s[:n]})
		s = s[n:]
	}
	for s != "" {
		switch c := s[0]; {
		case c == '"':
			n := 1
			for n < len(s) && s[n] != '"' {
				if s[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(s))
			kind := "str"
			if n < len(s) && s[n] == ':' {
				kind = "key"
			}
			add(kind, n)
		case c == '-' || c >= '0' && c <= '9':
			add("num", len(s)-len(strings.TrimLeft(s, "+-.eE0123456789")))
		case c >= 'a' && c <= 'z':
			add("word", len(s)-len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz")))
		default:
			n := 1
			for n < len(s) && s[n] != '"' && s[n] != '-' && (s[n] < '0' || s[n] > '9') && (s[n] < 'a' || s[n] > 'z') {
				n++
			}
			add("", n)
		}
	}
	return all
}
