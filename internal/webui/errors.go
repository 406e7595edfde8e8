package webui

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// errorsData is the list of errors, each in all queues.
type errorsData struct {
	Query      string
	QueryError *queryError
	Sort       inspect.ErrorOrder
	inspect.ErrorPage
	First bool // this is the first page
	Next  string
}

// errorsPerPage is how many errors a page has.
const errorsPerPage = 50

// shownQueues of an error are named in its row.
const shownQueues = 3

// URL is the list in another order.
func (d errorsData) URL(order string) string {
	return "/errors?" + url.Values{"q": {d.Query}, "sort": {order}}.Encode()
}

func (s *server) errors(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	q := in.Get("q")
	v := view{template: "errors", title: "Errors", nav: "/errors", command: command(append([]string{"redrive", "groups"}, positional(q)...)...)}
	order := inspect.ErrorOrder(in.Get("sort"))
	if order == "" {
		order = inspect.ByCount
	}
	page, err := s.console.Errors(r.Context(), c, q, order, in.Get("after"), errorsPerPage)
	d := errorsData{Query: q, QueryError: queryErrorOf(q, err), Sort: order, ErrorPage: page, First: in.Get("after") == ""}
	if page.After != "" {
		d.Next = d.URL(string(order)) + "&" + url.Values{"after": {page.After}}.Encode()
	}
	v.data = d
	if d.QueryError != nil {
		v.status = http.StatusUnprocessableEntity
		return v, nil
	}
	return v, err
}

// groups is where the page of errors was before.
func (s *server) groups(r *http.Request, _ auth.Caller) (view, error) {
	to := "/errors"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.Query().Encode()
	}
	return view{to: to}, nil
}

// planErrors makes a plan of an action on the parked messages of errors, and shows it.
func (s *server) planErrors(r *http.Request, c auth.Caller) (view, error) {
	var terms []string
	for _, id := range r.PostForm["id"] {
		if _, err := errorgroup.Parse(id); err != nil {
			return view{}, fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
		}
		terms = append(terms, "group:"+id)
	}
	if len(terms) == 0 {
		return view{}, fmt.Errorf("%w: no error was selected", inspect.ErrInvalid)
	}
	q := strings.Join(terms, " OR ")
	if len(terms) > 1 {
		q = "(" + q + ")"
	}
	p, err := s.console.Plan(r.Context(), c, operations.PlanRequest{Verb: actions.Verb(r.PostForm.Get("verb")), Query: "state:" + inspect.Parked + " " + q})
	if err != nil {
		return view{}, err
	}
	return view{to: "/plans/" + url.PathEscape(p.ID)}, nil
}

func (s *server) noteError(r *http.Request, c auth.Caller) (view, error) {
	if err := s.console.NoteGroup(r.Context(), c, r.PathValue("id"), strings.TrimSpace(r.PostForm.Get("note"))); err != nil {
		return view{}, err
	}
	return view{to: "/errors?" + url.Values{"q": {r.PostForm.Get("q")}, "sort": {r.PostForm.Get("sort")}, "did": {"note"}, "n": {"1"}}.Encode()}, nil
}
