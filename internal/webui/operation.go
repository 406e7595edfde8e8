package webui

import (
	"net/http"
	"net/url"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
)

// operationData is an operation with a page of its outcomes.
type operationData struct {
	operations.Operation
	Rows  []actions.Outcome
	Only  string // which: operations.OnlyAgain, OnlyRest or "", all
	First bool   // this is the first page
	Next  string
	Going bool
	// Rest is how many messages failed again or were not done, when it has ended.
	Rest int64
}

// URL is the operation with some of its outcomes.
func (d operationData) URL(only string) string {
	to := "/operations/" + url.PathEscape(d.ID)
	if only != "" {
		to += "?" + url.Values{"only": {only}}.Encode()
	}
	return to
}

func (s *server) operation(r *http.Request, c auth.Caller) (view, error) {
	id, in := r.PathValue("id"), r.URL.Query()
	o, err := s.console.Operation(r.Context(), c, id)
	if err != nil {
		return view{}, err
	}
	out, err := s.console.Outcomes(r.Context(), c, id, in.Get("only"), in.Get("after"), perPage)
	if err != nil {
		return view{}, err
	}
	d := operationData{Operation: o, Rows: out.Outcomes, Only: in.Get("only"), First: in.Get("after") == "", Going: o.Ended == nil}
	if !d.Going {
		d.Rest = o.Count - o.Done + o.Again
	}
	if out.After != "" {
		d.Next = "/operations/" + url.PathEscape(id) + "?" + url.Values{"only": {d.Only}, "after": {out.After}}.Encode()
	}
	line := command("redrive", "ops", "watch", id)
	if !d.Going {
		line = command("redrive", "ops", "show", id)
	}
	return view{template: "operation", title: "Operation", nav: "/operations", command: line, data: d}, nil
}

// rest makes a plan of what failed again or was not done.
func (s *server) rest(r *http.Request, c auth.Caller) (view, error) {
	id := r.PathValue("id")
	p, err := s.console.Plan(r.Context(), c, operations.PlanRequest{Verb: actions.Replay, RestOf: id})
	if err != nil {
		return view{}, err
	}
	return view{to: "/plans/" + url.PathEscape(p.ID)}, nil
}
