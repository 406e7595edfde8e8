package webui

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// healthData is the page of health.
type healthData struct {
	inspect.Overview
	Ledger   inspect.Ledger
	Next     string
	Paged    bool // the ledger has more than one page
	Doctor   *inspect.Examination
	Findings []inspect.Finding // what it found to look at, the worst first
	Fine     []inspect.Finding // what is as it should be
}

func (s *server) health(r *http.Request, c auth.Caller) (view, error) {
	var h healthData
	after := r.URL.Query().Get("after")
	var err error
	if h.Overview, err = s.console.Overview(r.Context(), c); err == nil {
		if h.Ledger, err = s.console.Ledger(r.Context(), c, false, after, rowsPerPage); !h.Ready {
			err = nil // which is said
		}
		if h.Ledger.After != "" {
			h.Next = "/health?" + url.Values{"after": {h.Ledger.After}}.Encode()
		}
	}
	if e, refused := s.console.Doctor(r.Context(), c); refused == nil {
		h.Doctor, h.Findings = &e, troubling(e.Findings)
		for _, f := range e.Findings {
			if f.Status == "ok" {
				h.Fine = append(h.Fine, f)
			}
		}
	}
	h.Paged = h.Next != "" || after != ""
	return view{template: "health", title: "Health", nav: "/health", command: "redrive status", data: h}, err
}

// troubling are the findings that are not ok, the worst first.
func troubling(all []inspect.Finding) []inspect.Finding {
	order := []string{"wrong", "warning", "unknown"}
	some := slices.DeleteFunc(slices.Clone(all), func(f inspect.Finding) bool { return !slices.Contains(order, f.Status) })
	slices.SortStableFunc(some, func(a, b inspect.Finding) int {
		return cmp.Compare(slices.Index(order, a.Status), slices.Index(order, b.Status))
	})
	return some
}

func (s *server) startDoctor(r *http.Request, c auth.Caller) (view, error) {
	return view{to: "/health?did=doctor&n=1"}, s.console.StartDoctor(r.Context(), c)
}
