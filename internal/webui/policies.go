package webui

import (
	"cmp"
	"net/http"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/policy"
)

// policiesData is the page of policies.
type policiesData struct {
	Policies []policyView
	// Name is that of a queue, which exists or not; Of is the policy that it has, or "", and Pattern
	// what of it matches. To is the queue that it is redirected to, whose policy Of is then. Hidden:
	// the caller may not see a queue of this name.
	Name, To, Of, Pattern string
	Hidden                bool
}

func (s *server) policies(r *http.Request, c auth.Caller) (view, error) {
	all, err := s.console.Policies(r.Context(), c)
	d := policiesData{Name: r.URL.Query().Get("queue")}
	if d.Hidden = d.Name != "" && !c.Sees(d.Name); !d.Hidden {
		d.To = redirectOf(all, d.Name)
		d.Of, d.Pattern = policyOf(all, cmp.Or(d.To, d.Name))
	}
	for _, p := range all {
		v := policyBars(p)
		if p.Attempts > 1 {
			v.Simulation = s.Simulation(r.Context(), p.Name)
		}
		d.Policies = append(d.Policies, v)
	}
	return view{template: "policies", title: "Policies", nav: "/policies", data: d}, err
}

// redirectOf is the queue that what fails in another one is retried to; "": it is not redirected.
func redirectOf(all []inspect.PolicyInForce, from string) (to string) {
	for _, p := range all {
		for _, r := range p.Redirects {
			if r.From == from {
				return r.To
			}
		}
	}
	return ""
}

// policyOf is the first policy with a pattern for a queue, which is the queue's.
func policyOf(all []inspect.PolicyInForce, queue string) (name, pattern string) {
	for _, p := range all {
		for _, pattern := range p.Queues {
			if policy.MatchQueue(pattern, queue) {
				return p.Name, pattern
			}
		}
	}
	return "", ""
}
