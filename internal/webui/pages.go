package webui

import (
	"net/http"

	"github.com/redrive-mq/redrive/internal/auth"
)

// rowsPerPage is how many queues, groups or lines of the ledger a page shows.
const rowsPerPage = 100

func (s *server) operations(r *http.Request, c auth.Caller) (view, error) {
	ops, err := s.console.Operations(r.Context(), c)
	return view{template: "operations", title: "Operations", nav: "/operations", command: "redrive ops list", data: ops}, err
}

func (s *server) help(*http.Request, auth.Caller) (view, error) {
	return view{template: "help", title: "Help"}, nil
}
