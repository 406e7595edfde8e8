package webui

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// mostColumns is how many columns a list has of a person's choice.
const mostColumns = 12

// column is one that a person chose for the list of messages.
type column struct {
	query.Column
	Problem string // why it is none
}

// In is what a message has in it.
func (c column) In(m inspect.Message) string { return m.Columns[c.Name] }

// splitColumns reads the names of columns, as people write them and as a URL has them.
func splitColumns(text string) (all []column) {
	for name := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' || r == '\r' }) {
		known := false
		for _, c := range all {
			known = known || c.Name == name
		}
		if known {
			continue
		}
		c := column{}
		var err error
		if c.Column, err = query.ParseColumn(name); err != nil {
			c.Problem = err.Error()
		}
		if len(all) == mostColumns {
			c.Problem = "these are the most columns that a list has"
			return append(all, c)
		}
		all = append(all, c)
	}
	return all
}

func joinColumns(all []column) string {
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Name
	}
	return strings.Join(names, ",")
}

// listURL is the list for a query, with columns.
func listURL(query, cols string) string {
	to := messagesURL(query)
	if cols != "" {
		to += "&" + url.Values{"cols": {cols}}.Encode()
	}
	return to
}

// complete is how the last word of a query may go on, for the page's script.
func (s *server) complete(w http.ResponseWriter, r *http.Request) {
	in := r.URL.Query()
	all, err := s.console.Complete(r.Context(), s.Caller(r), in.Get("q"), in.Has("groups"))
	if err != nil {
		http.Error(w, "no suggestions", errorView(err).status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(all)
}
