package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// perPage is how many messages a page of the list has.
const perPage = 50

// tab is a saved query.
type tab struct {
	Name, Query string
	Current     bool
}

// messagesData is the list of messages.
type messagesData struct {
	Query      string
	Columns    []column // besides those of every list
	State      string   // of the tab, "" for all
	Tabs       []tab
	QueryError *queryError
	inspect.Page
	Newest string // the first message of the list: what is above it later is new
	First  bool   // this is the first page
	Next   string // URL of the next page
	Verbs  []actions.Verb
}

// URL is the list for another query, with the same columns.
func (d messagesData) URL(query string) string { return listURL(query, d.Cols()) }

// Cols are the names of the columns, as the URL has them.
func (d messagesData) Cols() string { return joinColumns(d.Columns) }

// queryError is an error in a query: the query around the character it is at.
type queryError struct {
	Before, At, After string
	Column            int
	Text              string
}

// verbsOf are the verbs that messages of a state are offered; a list of all states offers all. Copy,
// which needs a queue, has a button of its own.
func verbsOf(state string) []actions.Verb {
	switch state {
	case inspect.Retried:
		return nil
	case inspect.Discarded:
		return []actions.Verb{actions.Restore}
	case inspect.Waiting, inspect.Parked:
		return []actions.Verb{actions.Replay, actions.Discard}
	}
	return []actions.Verb{actions.Replay, actions.Discard, actions.Restore}
}

func (s *server) messages(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	query := in.Get("q")
	if !in.Has("q") {
		query = "state:" + inspect.Parked
	}
	d := messagesData{Query: query, Columns: splitColumns(in.Get("cols")), First: in.Get("after") == ""}
	d.Tabs, d.State = tabs(query)
	d.Verbs = verbsOf(d.State)
	v := view{template: "messages", title: "Messages", nav: "/messages", command: command(append([]string{"redrive", "messages", "list"}, positional(query)...)...)}
	page, err := s.console.Search(r.Context(), c, query, in.Get("after"), perPage)
	if d.QueryError = queryErrorOf(query, err); d.QueryError != nil {
		v.data, v.status = d, http.StatusUnprocessableEntity
		return v, nil
	}
	if err != nil {
		return view{}, err
	}
	names := []string{}
	for i := range d.Columns {
		if d.Columns[i].Problem == "" {
			names = append(names, d.Columns[i].Name)
		}
	}
	if err := s.console.AddColumns(r.Context(), c, &page, names, true); err != nil {
		return view{}, err
	}
	d.Page = page
	if len(page.Messages) > 0 {
		d.Newest = page.Messages[0].ID
	}
	if page.After != "" {
		d.Next = d.URL(query) + "&" + url.Values{"after": {page.After}}.Encode()
	}
	v.data = d
	return v, nil
}

// tabs are the saved queries: each is this query in another state.
func tabs(query string) (all []tab, state string) {
	rest, state := withoutState(query)
	narrowed := rest
	if slices.Contains(terms(rest), "OR") { // AND binds closer
		narrowed = "(" + rest + ")"
	}
	for _, s := range []string{inspect.Waiting, inspect.Parked, inspect.Retried, inspect.Discarded, ""} {
		t := tab{Name: strings.ToUpper(s[:min(1, len(s))]) + s[min(1, len(s)):], Query: rest, Current: s == state}
		if s == "" {
			t.Name = "All"
		} else {
			t.Query = strings.TrimSpace("state:" + s + " " + narrowed)
		}
		all = append(all, t)
	}
	return all, state
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
		} else if s, is := strings.CutPrefix(term, "state:"); is && slices.Contains([]string{inspect.Waiting, inspect.Parked, inspect.Retried, inspect.Discarded}, s) {
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

// mostCounted is how many messages are counted one by one for a page.
const mostCounted = 10_000

// countMessages is how many messages a query finds.
func (s *server) countMessages(r *http.Request, c auth.Caller) (view, error) {
	n, exact, err := s.console.Count(r.Context(), c, r.URL.Query().Get("q"), mostCounted)
	text := count(n)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		text = "many"
	case err != nil:
		text = "?"
	case !exact:
		text += "+"
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
	v.data = map[string]string{"N": text, "To": listURL(in.Get("q"), in.Get("cols"))}
	return v, nil
}

// checkQuery says what is wrong with a query while it is written.
func (s *server) checkQuery(r *http.Request, _ auth.Caller) (view, error) {
	q := r.URL.Query().Get("q")
	return view{template: "messages", part: "check", data: queryErrorOf(q, parseQuery(q))}, nil
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
	download(w, "messages.jsonl")
	if _, err := s.console.Export(r.Context(), c, q, w); err != nil {
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
