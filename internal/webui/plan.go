package webui

import (
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
	"github.com/redrive-mq/redrive/internal/operations"
)

// plan makes a plan of an action on all that a query finds, and shows it.
func (s *server) plan(r *http.Request, c auth.Caller) (view, error) {
	in := r.PostForm
	at, err := due(in)
	if err != nil {
		return view{}, err
	}
	p, err := s.console.Plan(r.Context(), c, operations.PlanRequest{Verb: actions.Verb(in.Get("verb")), Query: in.Get("q"), At: at,
		To: strings.TrimSpace(in.Get("to")), Reason: strings.TrimSpace(in.Get("reason"))})
	if err != nil {
		return view{}, err
	}
	return view{to: "/plans/" + url.PathEscape(p.ID)}, nil
}

func (s *server) showPlan(r *http.Request, c auth.Caller) (view, error) {
	p, err := s.console.GetPlan(r.Context(), c, r.PathValue("id"))
	if err != nil {
		return view{}, err
	}
	return view{template: "plan", title: "Plan", nav: "/operations", command: planCommand(p), data: p}, nil
}

func planCommand(p operations.Plan) string {
	words := []string{"redrive", string(p.Verb), "--query", p.Query}
	if p.RestOf != "" {
		words = []string{"redrive", string(p.Verb), "--rest-of", p.RestOf}
	}
	if p.At != nil {
		words = append(words, "--at", p.At.Format(time.RFC3339))
	}
	if p.To != "" {
		words = append(words, "--to", p.To)
	}
	return command(append(words, "--dry-run")...)
}

func (s *server) start(r *http.Request, c auth.Caller) (view, error) {
	in := r.PostForm
	st := operations.Start{CanaryWait: strings.TrimSpace(in.Get("canary_wait")), Reason: strings.TrimSpace(in.Get("reason"))}
	n, err := strconv.ParseInt(in.Get("expect_count"), 10, 64)
	if err != nil {
		return view{}, fmt.Errorf("%w: the form does not say how many messages it was about", inspect.ErrInvalid)
	}
	st.ExpectCount = &n
	if v := strings.TrimSpace(in.Get("rate")); v != "" {
		if st.Rate, err = strconv.ParseFloat(v, 64); err != nil || !(st.Rate >= 0) {
			return view{}, fmt.Errorf("%w: the rate %q is not a number of messages a second", inspect.ErrInvalid, v)
		}
	}
	if v := strings.TrimSpace(in.Get("canary")); v != "" {
		if st.CanarySize, err = strconv.Atoi(v); err != nil || st.CanarySize < 0 {
			return view{}, fmt.Errorf("%w: the canary %q is not a number of messages", inspect.ErrInvalid, v)
		}
	}
	o, err := s.console.Start(r.Context(), c, r.PathValue("id"), st)
	if err != nil {
		return view{}, err
	}
	return view{to: "/operations/" + url.PathEscape(o.ID)}, nil
}

func (s *server) order(r *http.Request, c auth.Caller) (view, error) {
	order := operations.Order(r.PathValue("order"))
	if !slices.Contains([]operations.Order{operations.Pause, operations.Resume, operations.Cancel}, order) {
		return view{}, inspect.ErrNotFound
	}
	if _, err := s.console.Order(r.Context(), c, r.PathValue("id"), order); err != nil {
		return view{}, err
	}
	return view{to: "/operations/" + url.PathEscape(r.PathValue("id"))}, nil
}
